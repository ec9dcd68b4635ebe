"""A clone does not get a goal that cannot be met, if a setting forbids it; the model reads why."""

from __future__ import annotations

import pytest

import ramet
from ramet.agent.options import TreeOptions
from ramet.agent.tree import TreeRun
from ramet.types import Prompt, Refusal
from tests.agent.scripts import delegate
from tests.conftest import in_virtual_time


def why(goal: str) -> str | None:
    return "gold is a base material: it cannot be made" if "gold" in goal else None


def run(**options: object) -> ramet.Tree:
    """A root that asks for gold and for a ring."""

    def script(prompt: Prompt) -> str:
        return delegate("2x gold", "1x ring") if prompt.depth + prompt.turn == 0 else "Answer: ok"

    given = TreeOptions(engine=ramet.ScriptedEngine(script), **options)  # pyright: ignore[reportArgumentType]
    return in_virtual_time(TreeRun("Make a crown", given).run)


def refusals(tree: ramet.Tree) -> list[Refusal]:
    return [refusal for node in tree.nodes for turn in node.turns for refusal in turn.refusals]


def test_an_impossible_goal_is_refused_and_the_model_reads_why():
    tree = run(impossible=why, allow_impossible=False)
    assert [node.goal for node in tree.nodes] == ["Make a crown", "1x ring"]
    reason = "gold is a base material: it cannot be made"
    assert refusals(tree) == [Refusal(goal="2x gold", reason=reason, kind="impossible")]
    assert f"clone 1.1: refused: {reason} [goal: 2x gold]\nclone 1.2: ok" in tree.root.pieces[2].text


@pytest.mark.parametrize("options", [{"impossible": why}, {"allow_impossible": False}, {}])
def test_goals_are_not_refused_by_default_nor_where_nothing_is_known(options: dict[str, object]):
    tree = run(**options)
    assert [node.goal for node in tree.nodes] == ["Make a crown", "2x gold", "1x ring"]
    assert refusals(tree) == []


def test_a_long_reason_is_cut():
    tree = run(impossible=lambda goal: f"no {'x' * 9000}" if "gold" in goal else None, allow_impossible=False)
    (refusal,) = refusals(tree)
    assert len(refusal.reason.encode()) <= 200
    assert "bytes in all" in refusal.reason


def test_an_impossible_goal_that_is_also_an_ancestor_s_counts_as_that():
    def script(prompt: Prompt) -> str:
        return delegate("Make a crown") if prompt.turn == 0 else "Answer: ok"

    engine = ramet.ScriptedEngine(script)
    options = TreeOptions(engine=engine, impossible=lambda goal: "there are no crowns", allow_impossible=False)
    tree = in_virtual_time(TreeRun("Make a crown", options).run)
    assert [refusal.kind for refusal in refusals(tree)] == ["same_goal"]
