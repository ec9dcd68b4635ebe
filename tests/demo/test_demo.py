"""The demo: its claims are computed from records, and it can be resumed."""

from __future__ import annotations

from pathlib import Path

import pytest

from ramet.demo.demo import demo
from ramet.demo.effects import Measured, effects_text, measure_effects
from ramet.errors import ConfigError
from ramet.evaluate.record import Record
from ramet.store import RunDir

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


def test_a_finished_demo_is_only_read_the_second_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    demo(tmp_path, words=TINY, num_tasks=20)
    first = capsys.readouterr().out
    assert (tmp_path / "demo" / "report" / "index.html").is_file()
    assert first.count("holds") + first.count("does not hold") >= 4
    demo(tmp_path, words=TINY, num_tasks=20)
    again = capsys.readouterr().out
    assert "is already trained" in again
    assert again.split("3. Results")[1] == first.split("3. Results")[1]


def test_an_interrupted_demo_is_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    demo(tmp_path / "whole", words=TINY, num_tasks=20)
    whole = capsys.readouterr().out.split("3. Results")[1].replace(str(tmp_path / "whole"), "")
    demo(tmp_path / "cut", words=TINY, num_tasks=20)
    capsys.readouterr()
    run = RunDir.open(tmp_path / "cut" / "demo")
    lines = (run.path / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run.path / "metrics.jsonl").write_text(lines[0])  # as if it had been killed during its second step
    for name in ("before", "after", "wide", "report"):
        (run.path / name).rename(tmp_path / name)
    for newest in sorted((run.path / "checkpoints").iterdir())[-1:]:
        newest.rename(tmp_path / "newest")
    demo(tmp_path / "cut", words=TINY, num_tasks=20)
    assert len(run.metrics()) == 2
    assert capsys.readouterr().out.split("3. Results")[1].replace(str(tmp_path / "cut"), "") == whole


def test_a_demo_with_other_settings_is_refused(tmp_path: Path):
    demo(tmp_path, words=TINY, num_tasks=20)
    with pytest.raises(
        ConfigError, match="was made with other settings: remove it, or give another folder with --runs"
    ):
        demo(tmp_path, words=("steps=3", *TINY[1:]), num_tasks=20)
