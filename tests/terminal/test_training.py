"""A training run as it is drawn in a terminal."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ramet.config import load
from ramet.errors import EngineError
from ramet.store import RunDir
from ramet.store.checkpoints import Best, write_best
from ramet.terminal.training import (
    TrainingView,
    clock,
    ending,
    restart_command,
    sparkline,
    step_line,
    time_left,
    watch_training,
)
from ramet.train.settings import TrainConfig, warm_config


def drawn(watch: TrainingView) -> str:
    console = Console(width=160, file=io.StringIO())
    with console.capture() as captured:
        console.print(watch.frame())
    return captured.get()


def watching(tmp_path: Path, *, seconds: float = 10.0, **settings: Any) -> TrainingView:
    """Every look at the clock is so many seconds later."""
    times = iter(range(10_000))
    watch = TrainingView(now=lambda: seconds * next(times))
    watch.on_start(RunDir.create(tmp_path, "mine", config=TrainConfig(**settings), kind="train"))
    return watch


def record(step: int, **more: Any) -> dict[str, Any]:
    return {"step": step, "reward": 0.1 * step, "success": 0.25, "success_by_depth": [0.25, None, 1.0], **more}


def test_while_a_model_is_loaded_it_says_so() -> None:
    assert "loading" in drawn(TrainingView())


def test_before_the_first_step_it_says_where_the_run_is_and_how_long_it_is(tmp_path: Path) -> None:
    said = drawn(watching(tmp_path, steps=12))
    assert str(tmp_path / "mine").split("/")[-1] in said
    assert "step 1 of 12" in said
    assert "left" not in said


def test_it_shows_the_last_numbers_their_course_and_the_time_left(tmp_path: Path) -> None:
    watch = watching(tmp_path, steps=12)
    for step in range(4):
        watch.on_step(record(step, tokens=1234.0, logprob_gap=2e-4, **({"eval_success": 0.5} if step == 1 else {})))
    said = drawn(watch)
    assert "step 5 of 12" in said
    assert "about 1:20 left" in said  # eight steps of ten seconds
    for words in (
        "reward 0.300 ▁▃▆█",
        "by depth: 25% · – · 100%",
        "tokens per tree 1,234",
        "logprob gap 2.0e-04",
        "eval success 50%",
    ):
        assert words in " ".join(said.split())
    assert "delegated" not in said  # nobody told it


def test_signs_of_trouble_are_shown_as_soon_as_there_are_any(tmp_path: Path) -> None:
    watch = watching(tmp_path, steps=12)
    calm = {"passed_on": 0.0, "impossible": None, "refused": 0.0, "root_stops": {"answered": 1.0, "window": 0.0}}
    watch.on_step(record(0, **calm))
    said = drawn(watch)
    for words in ("passed", "impossible", "refused", "window", "answered"):
        assert words not in said
    assert "window" not in str(step_line(record(0, **calm)))
    troubled = record(1, **calm | {"passed_on": 0.25, "root_stops": {"answered": 0.5, "window": 0.5}})
    watch.on_step(troubled)
    said = " ".join(drawn(watch).split())
    assert "passed their goal on 25% ▁█" in said
    assert "roots: window full 50% ▁█" in said
    assert "passed on 25%  window full 50%" in str(step_line(troubled))


def test_a_run_that_stopped_says_why_and_how_to_go_on_from_its_best_model(tmp_path: Path) -> None:
    settings = TrainConfig(steps=9, warm={"steps": 2})
    run = RunDir.create(tmp_path, "mine", config=settings, kind="train")
    failed = record(5, stopped="no signal in 3 steps")
    assert "no signal in 3 steps" in str(step_line(failed))
    first, last = ending(run, [failed], 3)
    assert first == "stopped after step 6: no signal in 3 steps"
    assert last.endswith(f"train --resume {run.path}")
    (run.path / "best").mkdir()
    write_best(run.path, Best(step=4, value=0.5))
    _, best, _ = ending(run, [failed], 3)
    assert best.startswith("go on from the best, 50% after step 4, with: ")
    assert best.endswith(f" train {run.path}/config.toml model={run.path}/best warm.steps=0")
    config = load(TrainConfig, file=run.path / "config.toml", words=best.split()[-2:])
    assert (config.model, warm_config(config)) == (f"{run.path}/best", None)


def test_a_run_that_ended_says_only_what_there_is_to_say(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, "mine", config=TrainConfig(steps=9), kind="train")
    assert ending(run, [record(8)], 0) == []
    assert ending(run, [record(5)], 3)[0].startswith("the time limit is reached; resume with: ")
    assert "warm.steps" not in restart_command(run)


def test_a_run_whose_server_is_gone_prints_how_to_resume_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = RunDir.create(tmp_path, "mine", config=TrainConfig(), kind="train")

    def training(*, on_start: Callable[[RunDir], None], **_: object) -> RunDir:
        on_start(run)
        raise EngineError("nothing answers")

    for as_json in (False, True):
        with pytest.raises(EngineError, match="nothing answers"):
            watch_training(training, as_json=as_json)
    assert [line.endswith(f" train --resume {run.path}") for line in capsys.readouterr().out.splitlines()] == [
        False,
        True,
    ]


def test_a_supervised_start_counts_its_own_steps_and_so_does_what_follows(tmp_path: Path) -> None:
    watch = watching(tmp_path, steps=3, task="craft:train", warm={"steps": 2, "task": "craft:train_easy"})
    watch.on_step({"step": 0, "part": "warm", "loss": 1.5})
    said = drawn(watch)
    assert "supervised start" in said
    assert "step 2 of 2" in said
    assert "loss" in said
    watch.on_step({"step": 1, "part": "warm", "loss": 1.0})
    assert watch.steps_left == 3
    watch.on_step(record(0, note="no signal"))
    said = drawn(watch)
    assert "training" in said
    assert "step 2 of 3" in said
    assert "no signal" in said
    assert watch.steps_left == 2


def test_a_resumed_run_goes_on_with_the_curves_it_had(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, "mine", config=TrainConfig(steps=5), kind="train")
    for step in range(3):
        run.log(record(step))
    watch = TrainingView(now=lambda: 0.0)
    watch.on_start(run)
    watch.on_step(record(3))
    assert "step 5 of 5" in drawn(watch)
    assert "done" not in drawn(watch)
    assert "▁▃▆█" in drawn(watch)
    watch.on_step(record(4))
    assert "done" in drawn(watch)


def test_steps_are_counted_where_metrics_of_some_are_missing(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, "mine", config=TrainConfig(steps=5), kind="train")
    for step in (0, 2):
        run.log(record(step))
    watch = TrainingView(now=lambda: 0.0)
    watch.on_start(run)
    assert watch.steps_left == 2
    assert "step 4 of 5" in drawn(watch)
    assert not TrainingView().steps_left


def test_curves_times_and_paces_by_hand() -> None:
    assert sparkline([1.0, 1.0]) == "▁▁"
    assert sparkline([None, None]) == "  "
    assert sparkline([]) == ""
    assert clock(59.6) == "1:00"
    assert time_left([5.0], 3) is None
    assert time_left([0.0, *range(100, 200, 10)], 2) == 2 * (190 - 0) / 10


def test_numbers_of_demonstrations_are_the_oracles() -> None:
    record = {"step": 0, "part": "warm", "success": 1.0, "tokens": 70, "loss": 0.5}
    assert str(step_line(record, oracle=True)) == "warm step 1  success (oracle) 100%  tokens (oracle) 70  loss 0.500"
    assert "oracle" not in str(step_line(record))
    view = TrainingView()
    view.part = "warm"
    assert view.shows_oracle
    view.part, view.kind = "train", "warmstart"
    assert view.shows_oracle
    view.kind = "train"
    assert not view.shows_oracle
