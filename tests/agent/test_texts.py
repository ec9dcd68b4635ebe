"""Clones read the texts of a task; the root reads them only if it cannot delegate."""

from __future__ import annotations

import pytest

import ramet
from ramet.agent.options import TreeOptions
from ramet.agent.tree import TreeRun

TEXTS = {"Ada": "Born 1815. " * 40, "Alan": "Born 1912. " * 40}
TASK = ramet.Task(question="Who is older?", context=TEXTS)


def opening(*, dialect: str = "tools", **limits: int) -> str:
    """The root's first prompt."""
    engine = ramet.ScriptedEngine(lambda prompt: "Answer: Ada")
    run = TreeRun(TASK, TreeOptions(engine=engine, dialect=dialect, budget=ramet.Budget(tokens=100, **limits)))
    return run.tree.root.pieces[0].text


@pytest.mark.parametrize("dialect", ["tools", "terse"])
def test_a_root_that_can_delegate_sees_titles(dialect: str) -> None:
    assert "Alan" in opening(dialect=dialect)
    assert "1912" not in opening(dialect=dialect)


@pytest.mark.parametrize("dialect", ["tools", "terse"])
def test_a_root_that_cannot_delegate_reads_the_texts_itself(dialect: str) -> None:
    for text in TEXTS.values():
        assert text.strip() in opening(dialect=dialect, depth=0)
        assert opening(dialect=dialect, nodes=1) == opening(dialect=dialect, depth=0)


def test_texts_that_do_not_fit_the_window_are_cut_to_equal_shares() -> None:
    prompt = opening(depth=0, window=300)
    assert prompt.count("Born 1815.") == prompt.count("Born 1912.") > 5
    assert "(440 bytes in all)" in prompt


def test_a_question_that_does_not_fit_is_still_refused() -> None:
    with pytest.raises(ramet.ConfigError, match="the task needs a window of"):
        opening(depth=0, window=60)


def test_texts_that_are_cut_leave_an_eighth_of_the_window_to_work_in() -> None:
    engine = ramet.ScriptedEngine(lambda prompt: "Answer: Ada")
    budget = ramet.Budget(tokens=1000, depth=0, window=320, reserve=4)
    run = TreeRun(TASK, TreeOptions(engine=engine, budget=budget))
    root = run.root
    room = budget.window - root.limits.smallest_window(root.transcript.size)
    assert 40 <= room < 60
