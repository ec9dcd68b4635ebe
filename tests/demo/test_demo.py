"""The demo: its claims are computed from records, and it can be resumed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ramet.config import load
from ramet.demo.demo import demo
from ramet.demo.effects import Measured, effects_text, measure_effects
from ramet.errors import ConfigError
from ramet.evaluate.record import Record
from ramet.store import RunDir
from ramet.store.checkpoints import latest
from ramet.terminal.console import out
from ramet.train.settings import TrainConfig

TINY = ("steps=2", "tasks_per_step=2", "group_size=2", "warm.steps=2", "warm.trees_per_step=8", "save_every=1")


def record(
    task: int,
    *,
    method: str = "clones",
    size: int,
    score: float = 1.0,
    delegated: bool = False,
    generated: int = 40,
    critical: int = 40,
    beyond: bool = False,
) -> Record:
    return Record(
        method=method,
        budget=None,
        task=f"codes:eval/{task}",
        bucket="",
        size=size,
        beyond=beyond,
        score=score,
        answer="1",
        generated=generated,
        prompt=6,
        cached=0,
        critical_path=critical,
        critical_path_prompts=critical + 6,
        peak_window=40,
        nodes=3 if delegated else 1,
        depth=int(delegated),
        delegated=delegated,
        concurrent=None,
        seconds=0.1,
        dollars=None,
        trees=(f"tree-{task}",),
    )


def model(*, blind: bool, good: bool, critical: int = 40) -> list[Record]:
    """Forty small tasks, forty large ones, and twenty beyond the training range, alone and with clones."""
    small = [record(task, size=4, delegated=blind and task % 2 == 0) for task in range(40)]
    large = [
        record(task, size=24, delegated=not blind or task % 2 == 0, score=float(good or task % 2), critical=critical)
        for task in range(40, 80)
    ]
    far = [record(task, size=64, score=float(good), beyond=True, delegated=True) for task in range(80, 100)]
    alone = [record(task, size=64, score=0.0, beyond=True, method="single") for task in range(80, 100)]
    return [*small, *large, *far, *alone]


def wide(*, critical: int = 60) -> list[Record]:
    return [record(task, size=24, method="single", critical=critical) for task in range(40, 80)]


def holds(measured: Measured) -> list[bool]:
    return [effect.holds for effect in measure_effects(measured)]


def test_a_model_that_learnt_when_to_delegate_shows_all_four_effects():
    measured = Measured(before=model(blind=True, good=False), after=model(blind=False, good=True), wide=wide())
    assert holds(measured) == [True, True, True, True]
    text = " ".join(str(effects_text(measure_effects(measured))).split())
    assert "delegated, up to 4 codes 50% [35, 65] before, 0% [0, 9] after" in text
    assert "delegated, 16 codes and more 50% [35, 65] before, 100% [91, 100] after" in text
    assert "by number of codes, before 4: 50%, 24: 50%" in text
    assert "by number of codes, after 4: 0%, 24: 100%" in text
    assert "75% [65, 83] before, 100% [95, 100] after" in text  # 60 of 80
    assert "+25 points" in text
    assert "64 codes, trained on at most 32" in text


def test_a_model_that_learnt_nothing_shows_none_of_them():
    same = model(blind=True, good=False)
    assert holds(Measured(before=same, after=same, wide=wide(critical=30))) == [False, False, False, False]


def test_a_shorter_critical_path_does_not_count_at_lower_accuracy():
    measured = Measured(before=model(blind=True, good=False), after=model(blind=False, good=False), wide=wide())
    assert holds(measured)[3] is False


def test_fewer_tokens_do_not_count_at_low_accuracy():
    before = [record(task, size=24, score=0.0, generated=100, beyond=False) for task in range(40)]
    after = [record(task, size=24, score=0.0, generated=10, beyond=False) for task in range(40)]
    nothing = [record(task, size=4, score=0.0) for task in range(40, 80)]
    alone = [record(task, size=24, method="single") for task in range(40)]
    far = [record(task, size=64, score=0.0, beyond=True, method=how) for task in (1, 2) for how in ("single", "clones")]
    measured = Measured(before=[*before, *nothing, *far], after=[*after, *nothing, *far], wide=alone)
    assert holds(measured)[1] is False


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of a whole demo, and what it printed as results."""
    runs = tmp_path_factory.mktemp("demo") / "runs"
    with out.capture() as printed:
        demo(runs, words=TINY, num_tasks=6)
    return runs, results(printed.get(), runs)


def results(printed: str, runs: Path) -> str:
    return printed.split("3. Results")[1].replace(str(runs), "")


def copied(finished: tuple[Path, str], tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished[0], tmp_path / "runs"))


def test_a_finished_demo_is_only_read_the_second_time(finished: tuple[Path, str], capsys: pytest.CaptureFixture[str]):
    runs, first = finished
    written = (runs / "demo" / "report" / "index.html").stat().st_mtime_ns
    assert first.count("holds") + first.count("does not hold") >= 4
    demo(runs, words=TINY, num_tasks=6)
    assert (runs / "demo" / "report" / "index.html").stat().st_mtime_ns == written
    again = capsys.readouterr().out
    assert "is already trained" in again
    assert results(again, runs) == first


def test_an_interrupted_demo_is_resumed(finished: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    runs = copied(finished, tmp_path)
    run = RunDir.open(runs / "demo")
    lines = (run.path / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run.path / "metrics.jsonl").write_text(lines[0])  # as if it had been killed during its second step
    for name in ("before", "after", "wide", "report"):
        shutil.rmtree(run.path / name)
    shutil.rmtree(sorted((run.path / "checkpoints").iterdir())[-1])
    demo(runs, words=TINY, num_tasks=6)
    assert len(run.metrics()) == 2
    assert results(capsys.readouterr().out, runs) == finished[1]


def test_a_demo_with_other_settings_is_refused(finished: tuple[Path, str], tmp_path: Path):
    runs = copied(finished, tmp_path)
    with pytest.raises(
        ConfigError, match="was made with other settings: remove it, or give another folder with --runs"
    ):
        demo(runs, words=("steps=3", *TINY[1:]), num_tasks=6)


@pytest.mark.slow
def test_a_comparison_trains_the_variants_from_the_same_start(
    finished: tuple[Path, str], capsys: pytest.CaptureFixture[str]
):
    runs, _ = finished
    folder = runs / "demo"
    demo(runs, words=TINY, num_tasks=6, compare=True)
    printed = capsys.readouterr().out
    start = str(latest(folder / "warm"))
    for name in ("published", "single"):
        config = load(TrainConfig, file=folder / name / "config.toml")
        assert (config.model, config.warm["steps"]) == (start, 0)
        assert len(RunDir.open(folder / name).metrics()) == 2
    published = load(TrainConfig, file=folder / "published" / "config.toml")
    assert published.credit == {"baseline": "leave_one_out", "depth_weights": True, "clone_cost": 0.0}
    assert (published.loss.aggregation, published.allow_same_goal) == ("token", True)
    assert load(TrainConfig, file=folder / "single" / "config.toml").budget["nodes"] == 1
    line = next(line for line in printed.splitlines() if line.startswith("right, beyond training"))
    assert line.count("%") == 3
    page = (folder / "report" / "index.html").read_text(encoding="utf-8")
    assert "after, published" in page
    assert "training, single" in page
