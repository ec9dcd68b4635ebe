"""Verdicts from a judge model: parsed, retried once, and never a silent zero."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ramet
from ramet.tasks.judge import Judge, read_verdict
from ramet.types import Node, Piece, Prompt, Task, Tree, Verdict


def tree_with(answer: str | None) -> Tree:
    """A root that delegated its task to a clone."""
    task = Task(question="How many legs has a spider?", reference="8")
    root = Node(index=0, parent=None, depth=0, path=(), goal=task.question, grant=100, answer="8")
    child = Node(index=1, parent=0, depth=1, path=(0,), goal="Count the legs", grant=50, answer=answer)
    child.pieces = [Piece(sampled=False, text="SYSTEM PROMPT"), Piece(sampled=True, text="I count them")]
    return Tree(id="t", task=task, budget=ramet.Budget(), nodes=[root, child])


def judged(script: Callable[[Prompt], str], *, node: int = 1) -> tuple[Verdict | None, ramet.ScriptedEngine]:
    engine = ramet.ScriptedEngine(script)
    tree = tree_with("8 legs")

    async def work() -> Verdict | None:
        return await Judge(engine).verdict(tree.nodes[node], tree)

    return anyio.run(work), engine


def test_a_verdict_is_parsed_with_its_reason():
    verdict, _ = judged(lambda prompt: '{"reason": "counted right", "score": 1}')
    assert verdict == Verdict(score=1.0, how="judge", reason="counted right")


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ('{"reason": "x", "score": 0.5}', 0.5),
        ('<think>{"score": 0}</think> Sure: {"score": 1, "reason": "ok"} .', 1.0),
        ("{'reason': 'single quotes', 'score': 0.25,}", 0.25),
        ('{"success": true}', 1.0),
        ('```json\n{"score": 0}\n```', 0.0),
        ("no", None),
        ('{"score": 7}', None),
        ('{"score": "high"}', None),
        ('{"score": NaN}', None),
        ("[1]", None),
    ],
)
def test_replies_are_parsed_leniently_and_nonsense_is_no_verdict(text: str, score: float | None):
    verdict = read_verdict(text)
    assert (verdict and verdict.score) == score


@given(st.text())
def test_no_reply_breaks_the_parser(text: str):
    verdict = read_verdict(text)
    assert verdict is None or 0 <= verdict.score <= 1


def test_an_unreadable_reply_is_retried_once():
    replies = iter(["hmm", '{"score": 1, "reason": "second try"}'])
    verdict, engine = judged(lambda prompt: next(replies))
    assert verdict is not None
    assert verdict.reason == "second try"
    assert len(engine.prompts) == 2


def test_two_unreadable_replies_are_no_verdict():
    verdict, engine = judged(lambda prompt: "hmm")
    assert verdict is None
    assert len(engine.prompts) == 2


def test_the_judge_sees_the_goal_the_work_and_the_answer_of_a_child_but_no_prompt_or_reference():
    _, engine = judged(lambda prompt: '{"score": 1}')
    shown = engine.prompts[0].last
    assert "Count the legs" in shown
    assert "I count them" in shown
    assert "8 legs" in shown
    assert "SYSTEM PROMPT" not in shown
    assert "Right answer" not in shown


def test_the_root_is_judged_against_the_reference():
    _, engine = judged(lambda prompt: '{"score": 1}', node=0)
    assert "Right answer:\n8" in engine.prompts[0].last


def test_the_judge_counts_its_own_tokens():
    engine = ramet.ScriptedEngine(lambda prompt: '{"score": 1}')
    judge, tree = Judge(engine), tree_with(None)

    async def work() -> None:
        await judge.verdict(tree.nodes[1], tree)

    anyio.run(work)
    assert judge.tokens == engine.generated > 0
