"""A node cannot give a clone its own goal or the goal of a node above it; the reason says what to do instead."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import ramet
from ramet.agent.goals import same_words
from ramet.agent.options import TreeOptions
from ramet.agent.tree import TreeRun
from ramet.types import Prompt, Refusal, Task
from tests.agent.scripts import cell, delegate, gather, words
from tests.conftest import in_virtual_time

OWN = "this is your own goal: ask for smaller parts of your goal, or do it yourself"
ABOVE = "this is the whole task that your goal is a part of: ask for smaller parts of your goal, or do it yourself"
PAGES = {"one": "a" * 40, "two": "b" * 30, "three": "c" * 30}


def run(script: Callable[[Prompt], str], task: Task | str = "Sort them", **options: object) -> ramet.Tree:
    given = TreeOptions(engine=ramet.ScriptedEngine(script), **options)  # pyright: ignore[reportArgumentType]
    return in_virtual_time(TreeRun(task, given).run)


def asks_once(*goals: object, **more: object) -> Callable[[Prompt], str]:
    """A root that asks for these goals; every other turn is an answer."""
    return lambda prompt: delegate(*goals, **more) if prompt.depth + prompt.turn == 0 else "Answer: ok"


def refusals(tree: ramet.Tree) -> list[Refusal]:
    return [refusal for node in tree.nodes for turn in node.turns for refusal in turn.refusals]


@pytest.mark.parametrize(
    ("goal", "other", "same"),
    [
        ("Compute 1+2", "compute  1+2.", True),
        (" Sort\nthem ", "sort them", True),
        ("STRASSE", "Straße", True),
        ("Compute 1+2", "Compute 2+1", False),
        ("Add runs of 1?0", "Add runs of 10", False),
        ("Compute 5!", "Compute 5", False),
        ("Compute 12", "Compute 1 2", False),
        ("Craft 2x axe", "Craft 12x axe", False),
    ],
)
def test_goals_are_compared_without_case_spaces_and_a_final_full_stop(goal: str, other: str, same: bool):
    assert same_words(goal, other) is same_words(other, goal) is same


def test_its_own_goal_is_refused_and_the_model_reads_why():
    tree = run(asks_once("sort  them.", "Sort the first half"))
    assert [node.goal for node in tree.nodes] == ["Sort them", "Sort the first half"]
    assert refusals(tree) == [Refusal(goal="sort  them.", reason=OWN, kind="same_goal")]
    assert f"clone 1.1: refused: {OWN} [goal: sort  them.]\nclone 1.2: ok" in tree.root.pieces[2].text


def test_the_goal_of_any_node_above_is_refused():
    goals = ["half", "quarter", "eighth"]

    def script(prompt: Prompt) -> str:
        if prompt.turn:
            return "Answer: ok"
        if prompt.depth < 3:
            return delegate(goals[prompt.depth])
        return delegate("Sort them", "HALF", "quarter.", "eighth", "sixteenth")

    tree = run(script, budget=ramet.Budget(tokens=50_000, nodes=20, depth=5))
    assert [node.goal for node in tree.nodes] == ["Sort them", *goals, "sixteenth"]
    assert refusals(tree)[:4] == [
        Refusal(goal="Sort them", reason=ABOVE, kind="same_goal"),
        Refusal(goal="HALF", reason=ABOVE, kind="same_goal"),
        Refusal(goal="quarter.", reason=ABOVE, kind="same_goal"),
        Refusal(goal="eighth", reason=OWN, kind="same_goal"),
    ]


def test_the_goal_of_a_sibling_is_not_refused():
    tree = run(asks_once("first half", "first half"))
    assert [node.goal for node in tree.nodes] == ["Sort them", "first half", "first half"]
    assert refusals(tree) == []


def test_a_refused_goal_uses_up_no_clone():
    """One clone is left; it goes to the second goal."""
    tree = run(asks_once("Sort them", "half", "other half"), budget=ramet.Budget(tokens=5000, nodes=2, depth=1))
    assert [node.goal for node in tree.nodes] == ["Sort them", "half"]
    assert [refusal.kind for refusal in refusals(tree)] == ["same_goal", "nodes"]


def test_the_same_goal_can_be_allowed():
    tree = run(asks_once("Sort them"), allow_same_goal=True)
    assert [node.goal for node in tree.nodes] == ["Sort them", "Sort them"]


def test_run_takes_the_setting():
    async def allowed(allow: bool) -> int:
        engine = ramet.ScriptedEngine(asks_once("Sort them"))
        return len((await ramet.run("Sort them", engine=engine, allow_same_goal=allow)).nodes)

    assert in_virtual_time(lambda: allowed(False)) == 1
    assert in_virtual_time(lambda: allowed(True)) == 2


def test_a_taskset_can_say_that_differently_worded_goals_are_the_same():
    """Here: the same letters. The comparison gets the new goal first."""
    asked: list[tuple[str, str]] = []

    def same_letters(goal: str, other: str) -> bool:
        asked.append((goal, other))
        return sorted(goal) == sorted(other)

    tree = run(asks_once("Sort meth", "Sort me"), same_goal=same_letters)
    assert [node.goal for node in tree.nodes] == ["Sort them", "Sort me"]
    assert [refusal.reason for refusal in refusals(tree)] == [OWN]
    assert asked == [("Sort meth", "Sort them"), ("Sort me", "Sort them")]


# Texts: the same goal with a part of them is a part of the work.


@pytest.mark.parametrize(
    ("keys", "started"),
    [
        ([], False),
        (["unknown"], False),
        (["one"], True),  # 40 of 100 characters
        (["one", "two"], False),  # 70
        (["one", "two", "three"], False),
    ],
)
def test_the_same_goal_is_for_a_clone_with_at_most_half_of_the_texts(keys: list[str], started: bool):
    tree = run(asks_once("Sort them", context=keys), Task(question="Sort them", context=PAGES))
    assert len(tree.nodes) == 1 + started
    reason = (
        "this is your own goal: ask for smaller parts of your goal, give each clone at most half of your texts, "
        "or ask what single texts say"
    )
    assert [refusal.reason for refusal in refusals(tree)] == ([] if started else [reason])


def test_a_clone_with_texts_can_also_do_it_itself():
    def script(prompt: Prompt) -> str:
        if prompt.turn or prompt.depth == 2:
            return "Answer: ok"
        return delegate("half" if prompt.depth == 0 else "Sort them", context=["one", "two"])

    tree = run(script, Task(question="Sort them", context=PAGES))
    assert [refusal.reason for refusal in refusals(tree)] == [
        "this is the whole task that your goal is a part of: ask for smaller parts of your goal, "
        "give each clone at most half of your texts, or do it yourself"
    ]


def test_a_python_node_may_halve_its_text_again_and_again():
    halve = 'n = len(context) // 2\nparts = [await delegate("sort", context=t) for t in (context[:n], context[n:])]'

    def script(prompt: Prompt) -> str:
        if prompt.depth == 0:
            return cell("finish(await delegate('sort', context='dcba'))")
        return cell(halve, "finish(sum(parts))") if prompt.depth < 3 else cell("finish(len(context))")

    tree = run(script, dialect="python", budget=ramet.Budget(tokens=100_000, nodes=20, depth=3))
    assert (tree.root.value, len(tree.nodes), refusals(tree)) == (4, 8, [])


def test_a_python_node_without_texts_cannot_get_around_it_with_a_text():
    code = "print(await delegate('Sort them', context='x'))"
    tree = run(lambda prompt: cell("finish(1)") if prompt.turn else cell(code), dialect="python")
    assert tree.root.pieces[2].text.count(f"[refused: {OWN} [goal: Sort them]]") == 1


# Other dialects and other refusals.


def test_terse_says_same():
    def script(prompt: Prompt) -> str:
        return "= ok" if prompt.depth + prompt.turn else "> Sort them\n> half"

    tree = run(script, dialect="terse")
    assert "< same\n< ok" in tree.root.pieces[2].text


def test_python_reads_the_reason():
    def script(prompt: Prompt) -> str:
        return cell("finish(1)") if prompt.turn else cell(gather(["Sort them"]), "print(parts[0])")

    tree = run(script, dialect="python")
    assert f"[refused: {OWN} [goal: Sort them]]" in tree.root.pieces[2].text


@pytest.mark.parametrize(
    ("turn", "limits", "kinds"),
    [
        (delegate("a"), {"depth": 0}, ["depth"]),
        (delegate("Sort them"), {"depth": 0}, ["depth"]),
        (delegate("a", "b"), {"children": 1}, ["children"]),
        (delegate("a", "b"), {"nodes": 2}, ["nodes"]),
        (delegate("", 7), {}, ["malformed", "malformed"]),
        (delegate("a", tokens=[3]), {}, ["tokens"]),
        (delegate("a", context=["long"]), {"window": 2000}, ["window"]),
        (delegate("a"), {"money": 0.012, "prices": ramet.Prices(prompt=10.0, generated=10.0)}, ["money"]),
    ],
)
def test_every_refusal_has_a_kind(turn: str, limits: dict[str, object], kinds: list[str]):
    budget = ramet.Budget(**({"tokens": 8000, "reserve": 20} | limits))  # pyright: ignore[reportArgumentType]
    task = Task(question="Sort them", context={"long": words(5000)})
    tree = run(lambda prompt: "Answer: ok" if prompt.depth + prompt.turn else turn, task, budget=budget)
    assert [refusal.kind for refusal in refusals(tree)] == kinds
