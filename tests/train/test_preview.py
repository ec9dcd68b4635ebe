"""The first task of a training, tried before it starts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ramet.config import load
from ramet.engine.settings import JudgeConfig
from ramet.errors import ConfigError
from ramet.recipes import recipe_file
from ramet.train.backend_settings import BackendConfig
from ramet.train.loop import check_plan, train
from ramet.train.preview import Preview, device_problems, preview
from ramet.train.settings import SamplerConfig, TrainConfig
from tests.train import small


def tried(config: TrainConfig) -> Preview:
    plan = check_plan(config)
    return preview(plan.taskset, plan.first_split, config)


def test_a_task_is_played_by_its_oracle_in_the_tokens_of_the_model() -> None:
    (said,) = tried(load(TrainConfig, file=recipe_file("nano"))).notes
    assert said.startswith("codes:train/0: its oracle answers, right, with ")
    assert said.endswith(" of 64 tokens")


def test_a_window_that_is_too_small_is_found_before_anything_is_written(tmp_path: Path) -> None:
    folder = small.folder(tmp_path)
    config = small.config(folder, "budget.window=40")
    with pytest.raises(ConfigError, match=r"arithmetic:train/\d+: the task needs a window of \d+ tokens"):
        tried(config)
    with pytest.raises(ConfigError, match=r"budget\.window is 40"):
        train(config, runs=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_a_window_that_is_too_small_for_evaluations_is_found_before_anything_is_written(tmp_path: Path) -> None:
    config = small.config(small.folder(tmp_path), "eval.every=2", "eval.budget.window=40")
    with pytest.raises(
        ConfigError, match=r"arithmetic:eval/\d+: the task needs a window of \d+ tokens; budget\.window is"
    ):
        train(config, runs=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_the_window_of_the_model_counts_too(tmp_path: Path) -> None:
    folder = small.folder(tmp_path, max_position_embeddings=48)
    with pytest.raises(ConfigError, match="the model reads at most 48 tokens"):
        tried(small.config(folder))


def test_the_window_of_a_model_that_is_still_to_be_made_counts_too() -> None:
    with pytest.raises(ConfigError, match=r"budget\.window is 512 \(the model reads at most 512 tokens"):
        tried(TrainConfig(model="nano", task="number_search:train", dialect="tools", budget={"window": 1400}))


def test_clones_that_a_limit_stopped_are_counted() -> None:
    said = tried(load(TrainConfig, file=recipe_file("nano"), words=["budget.tokens=60"])).notes[0]
    assert "not right, with 3 nodes (2 stopped by budget) and " in said


def test_an_oracle_that_is_never_right_is_a_problem_with_its_reason() -> None:
    found = tried(load(TrainConfig, file=recipe_file("nano"), words=["budget.tokens=60"]))
    assert len(found.notes) == 5
    assert found.problem == (
        "the oracle of codes:train is right in none of 5 tasks (2 stopped by budget); see ramet tasks check codes:train"
    )


def test_an_oracle_that_is_right_with_the_largest_budget_is_no_problem() -> None:
    found = tried(load(TrainConfig, file=recipe_file("nano"), words=["budget.tokens=[60,1500]"]))
    smallest, largest = found.notes
    assert "not right" in smallest
    assert " of 60 tokens; " in smallest
    assert ", right, " in largest
    assert " of 1,500 tokens; " in largest
    assert found.problem is None


def test_an_oracle_whose_tasks_only_a_judge_can_grade_is_no_problem(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"question": "Who?", "answer": "Ada"}\n')
    options = {"file": str(tmp_path / "rows.jsonl"), "check": "judge"}
    flags = {"task": "jsonl:all", "model": "nano", "taskset": options, "sampler.window": 4096}
    config = load(TrainConfig, flags=flags)
    with pytest.raises(ConfigError, match="this taskset needs a judge, and none is given"):
        tried(config)
    found = tried(replace(config, judge=JudgeConfig(model="policy")))
    assert "its oracle answers, for the judge to grade, with 1 node" in found.notes[0]
    assert found.problem is None


def test_a_model_that_is_elsewhere_is_no_error() -> None:
    (said,) = tried(TrainConfig(model="not-here")).notes
    assert said.startswith("no task was tried: no tokenizer at 'not-here'")


def test_a_misspelt_built_in_model_is_refused_before_a_training() -> None:
    with pytest.raises(ConfigError, match=r"^no model at 'nanoo': .*; did you mean nano\?$"):
        check_plan(TrainConfig(model="nanoo"))
    check_plan(TrainConfig(model="nanoo", backend=BackendConfig(kind="tinker", base_url="http://127.0.0.1:1")))


def test_a_device_that_is_not_here_is_reported_and_no_error() -> None:
    (problem,) = device_problems(TrainConfig(sampler=SamplerConfig(device="cuda:99")))
    assert problem.startswith("there is no device 'cuda:99': torch sees ")
    assert device_problems(TrainConfig(sampler=SamplerConfig(device="cpu"))) == []
