"""A judge in training: a policy that judges itself, a server, and what a step logs about them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

import ramet
from ramet.agent.options import TreeOptions
from ramet.config import load
from ramet.engine.settings import JudgeConfig
from ramet.errors import ConfigError, EngineError
from ramet.interfaces import Engine
from ramet.store import RunDir, read_trees
from ramet.tasks.arithmetic import Arithmetic
from ramet.tasks.judge import FILE, Judge
from ramet.tasks.play import play
from ramet.train.judging import judge_engine_config
from ramet.train.loop import check_plan, resume, train
from ramet.train.metrics import tree_metrics
from ramet.train.settings import TrainConfig, WarmConfig
from ramet.types import Prompt, Task, Tree
from tests.agent.scripts import delegate
from tests.cli.test_main import Server, server
from tests.train import small
from tests.train.test_loop import bits, numbers

__all__ = ["server"]  # the fixture

ROWS = '{"question": "Say something nice.", "answer": "anything nice"}\n' * 4
SETTLED = ("judge_seconds", "judge_calls", "judge_tokens", "judge_generated", "judge_cached")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small.folder(tmp_path_factory.mktemp("judging"))


def judged_config(folder: Path, tmp_path: Path, *words: str) -> TrainConfig:
    """A task that only a judge can grade."""
    file = tmp_path / "mine.jsonl"
    file.write_text(ROWS)
    task = ["task=jsonl:all", f"taskset={{file='{file}', check='judge'}}", "judge.max_tokens=8", "judge.tries=1"]
    return small.config(folder, *task, "steps=2", "save_every=1", *words, taskset={})


def settled(run: RunDir) -> list[dict[str, Any]]:
    """What was logged, apart from what asking cost."""
    return [{name: value for name, value in record.items() if name not in SETTLED} for record in numbers(run)]


def test_a_policy_judges_itself_and_replies_that_cannot_be_parsed_end_no_run(tmp_path: Path, folder: Path) -> None:
    run = train(judged_config(folder, tmp_path, "judge.model=policy"), runs=tmp_path / "runs")
    for record in run.metrics():
        assert record["trees"] == 12
        assert record["judge_nodes"] + record["judge_failed"] >= 12  # a random model writes no JSON
        assert record["judge_capped"] == 0
        assert record["judge_calls"] >= 1
        assert record["judge_tokens"] > record["judge_generated"] > 0
    assert all(tree.root.verdict is not None for tree in read_trees(run))
    assert not (run.path / FILE).exists()


def test_a_task_that_only_a_judge_can_grade_may_have_a_supervised_start(tmp_path: Path, folder: Path) -> None:
    shown = "{steps=1, trees_per_step=2, budget={tokens=900, turns=9}}"
    parts: list[str] = []
    train(
        judged_config(folder, tmp_path, "judge.model=policy", f"warm={shown}"),
        runs=tmp_path / "runs",
        on_step=lambda record: parts.append(record.get("part", "train")),
    )
    assert parts == ["warm", "train", "train"]
    with pytest.raises(ConfigError, match="needs a judge, and none is given"):  # not after the supervised start
        train(judged_config(folder, tmp_path, f"warm={shown}"), runs=tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_a_run_that_judges_itself_and_is_resumed_ends_with_the_same_bits(tmp_path: Path, folder: Path) -> None:
    config = judged_config(folder, tmp_path, "judge.model=policy")
    whole = train(config, runs=tmp_path / "whole")
    parts = train(replace(config, steps=1), runs=tmp_path / "parts")
    text = (parts.path / "config.toml").read_text().replace("steps = 1\n", "steps = 2\n", 1)
    (parts.path / "config.toml").write_text(text)
    assert bits(resume(parts.path)) == bits(whole)
    assert settled(parts) == settled(whole)


@pytest.fixture
def judge(server: Server) -> Server:
    """A server whose model finds everything half done."""
    server.reply = '{"reason": "nice", "score": 0.5}'
    return server


def test_a_server_judges_and_a_resumed_run_asks_it_nothing_twice(tmp_path: Path, folder: Path, judge: Server) -> None:
    words = ["judge.model=tiny", f"judge.base_url={judge.url}", "judge.max_tokens=64"]
    run = train(judged_config(folder, tmp_path, *words, "steps=1"), runs=tmp_path / "runs")
    (record,) = run.metrics()
    asked = len(judge.bodies)
    assert record["judge_calls"] == asked > 0
    assert record["judge_success"] == 0.0  # half a score is not right
    assert record["score"] == 0.5
    origin = next(read_trees(run)).root.verdict
    assert origin is not None
    assert origin.judgement is not None
    assert (origin.judgement.model, origin.judgement.reply) == ("tiny", judge.reply)
    # The step is played again, as after a kill before its checkpoint was written.
    for checkpoint in (run.path / "checkpoints").iterdir():
        for file in checkpoint.iterdir():
            file.unlink()
        checkpoint.rmdir()
    again = resume(run.path)
    assert len(judge.bodies) == asked
    assert [record["judge_calls"] for record in again.metrics()] == [0]
    assert settled(again) == [{k: v for k, v in record.items() if k not in SETTLED and not k.endswith("_s")}]


def test_a_judge_whose_server_is_down_is_an_error_before_the_first_step(tmp_path: Path, folder: Path) -> None:
    words = ["judge.model=huge", "judge.base_url=http://127.0.0.1:9/v1"]
    with pytest.raises(EngineError, match=r"cannot reach http://127\.0\.0\.1:9/v1"):
        train(judged_config(folder, tmp_path, *words), runs=tmp_path / "runs")


def test_limits_of_the_run_leave_the_rest_to_the_fallback(tmp_path: Path, folder: Path, judge: Server) -> None:
    words = ["judge.model=tiny", f"judge.base_url={judge.url}", "judge.calls=1"]
    run = train(judged_config(folder, tmp_path, *words, "steps=1"), runs=tmp_path / "runs")
    (record,) = run.metrics()
    assert record["judge_calls"] == len(judge.bodies) == 1
    assert record["judge_capped"] > 0


def test_the_judge_of_a_run_is_checked_before_a_model_is_loaded(folder: Path) -> None:
    config = small.config(folder, "judge.model=huge")
    with pytest.raises(ConfigError, match=r"judge.model 'huge' is not on this machine: .* smollm2 or policy"):
        check_plan(config)
    check_plan(small.config(folder, "judge.model=policy"))
    frozen = judge_engine_config(small.config(folder, f"judge.model={folder}"))
    assert frozen is not None
    assert (frozen.kind, frozen.model, frozen.device) == ("local", str(folder), "cpu")


def test_without_a_judge_a_step_logs_nothing_about_one(tmp_path: Path, folder: Path) -> None:
    run = train(small.config(folder, "steps=1"), runs=tmp_path)
    assert [name for name in run.metrics()[0] if name.startswith("judge")] == []


# Numbers, worked out by hand.


def played(judge_script: Any, **settings: Any) -> Tree:
    """A root with an exact verdict and three clones without one."""

    def script(prompt: Prompt) -> str:
        if prompt.depth:
            return f"Answer: {prompt.goal[-1]}"
        return delegate("Think of a", "Think of b", "Think of c") if prompt.turn == 0 else "Answer: 10"

    task = Task(id="arithmetic:test/0", question="Compute 2*3+4", reference=10)
    judge = Judge(ramet.ScriptedEngine(judge_script), JudgeConfig(**settings))
    options = TreeOptions(engine=ramet.ScriptedEngine(script), judge=judge)
    return anyio.run(play, Arithmetic(), task, options)


def test_the_metrics_of_a_judge_are_sums_over_the_trees() -> None:
    def script(prompt: Prompt) -> str:
        if "Think of c" in prompt.last:
            return "no"
        return json.dumps({"score": 1 if "Think of a" in prompt.last else 0})

    metrics = tree_metrics([played(script), played(script, tree_calls=2)])
    names = ("nodes", "failed", "capped", "cached", "calls", "success")
    # The first tree: two verdicts, and two calls in vain. The second: one verdict, two nodes not asked about.
    assert [metrics[f"judge_{name}"] for name in names] == [3, 1, 2, 0, 5, 2 / 3]
    assert metrics["success_by_verdict"]["judge"] == [None, 2 / 3]
    assert metrics["nodes_by_verdict"]["root"] == [0, 3]


# Evaluation during training has limits of its own.


def test_evaluation_may_have_another_budget_than_training(tmp_path: Path, folder: Path) -> None:
    config = small.config(folder, "steps=1", "eval.every=1", "eval.num_tasks=2", "eval.budget.depth=0")
    run = train(config, runs=tmp_path)
    depths = {tree.id.startswith("eval-"): tree.budget.depth for tree in read_trees(run)}
    assert depths == {True: 0, False: 1}


# Instructions in the system prompt.


def prompts_with(**settings: str) -> dict[int, str]:
    def script(prompt: Prompt) -> str:
        return "Answer: 1" if prompt.depth or prompt.turn else delegate("Compute 1")

    engine: Engine = ramet.ScriptedEngine(script)

    async def work() -> Tree:
        return await ramet.run("Compute 1+0", engine=engine, budget=ramet.Budget(depth=1), **settings)

    return {node.depth: node.messages[0].content for node in anyio.run(work).nodes}


def test_instructions_end_the_system_prompt_of_all_nodes_or_of_those_that_may_delegate() -> None:
    plain = prompts_with()
    both = prompts_with(instructions="Be brief.", delegate_instructions="Delegate all sums.")
    assert both == {0: f"{plain[0]}\n\nBe brief.\n\nDelegate all sums.", 1: f"{plain[1]}\n\nBe brief."}


def test_instructions_reach_training_and_its_supervised_start(tmp_path: Path, folder: Path) -> None:
    words = ["steps=1", "delegate_instructions=Delegate all.", "instructions=Be brief.", "budget.window=1200"]
    warm = ["warm.steps=1", "warm.trees_per_step=2", "warm.delegate=1.0", "warm.budget={tokens=400, window=1200}"]
    run = train(small.config(folder, *words, *warm), runs=tmp_path)
    assert all("Be brief.\n\nDelegate all." in tree.root.pieces[0].text for tree in read_trees(run))
    config = load(WarmConfig, file=run.path / "warm" / "config.toml")
    assert (config.instructions, config.delegate_instructions) == ("Be brief.", "Delegate all.")
