"""A training run as it is drawn in a terminal."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from rich.console import Console

from ramet.store import RunDir
from ramet.terminal.training import TrainingView, clock, sparkline, time_left
from ramet.train.settings import TrainConfig


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


def test_curves_times_and_paces_by_hand() -> None:
    assert sparkline([1.0, 1.0]) == "▁▁"
    assert sparkline([None, None]) == "  "
    assert sparkline([]) == ""
    assert clock(59.6) == "1:00"
    assert time_left([5.0], 3) is None
    assert time_left([0.0, *range(100, 200, 10)], 2) == 2 * (190 - 0) / 10
