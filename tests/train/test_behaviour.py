"""What nodes did, counted by hand on small trees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from ramet.budget import Budget
from ramet.engine.scripted import ScriptedEngine
from ramet.interfaces import HostFunction, World
from ramet.tasks.arithmetic import Arithmetic
from ramet.train.behaviour import REFUSALS, behaviour_metrics
from ramet.types import Node, Piece, Refusal, Stop, Task, Tree, Turn, Usage, Verdict


def node(index: int, parent: Node | None, goal: str, *, wrote: str = "", **more: Any) -> Node:
    how, score = more.pop("how", "exact"), more.pop("score", None)
    return Node(
        index=index,
        parent=None if parent is None else parent.index,
        depth=0 if parent is None else parent.depth + 1,
        path=(index,),
        goal=goal,
        grant=more.pop("grant", 100),
        stop=more.pop("stop", Stop.ANSWERED),
        pieces=[Piece(sampled=False, text='the prompt names "craft"'), Piece(sampled=True, text=wrote)],
        usage=Usage(tokens=more.pop("tokens", 10)),
        verdict=None if score is None else Verdict(score=score, how=how),
        **more,
    )


def tree(*nodes: Node) -> Tree:
    return Tree(id="t", task=Task(question=nodes[0].goal), budget=Budget(), nodes=list(nodes))


def turn(**more: Any) -> Turn:
    return Turn(tokens=5, finish="stop", started_s=0.0, sampled_s=1.0, **more)


class Bench:
    """A world with one function that looks something up and one that acts."""

    context: Mapping[str, str] = {}
    functions: Mapping[str, HostFunction] = {"get_info": str, "craft": str}
    actions = ("craft",)


class Crafts(Arithmetic):
    """A taskset that compares goals by their last word and knows that gold cannot be made."""

    def world(self, task: Task) -> World:
        return Bench()

    def same_goal(self, task: Task, goal: str, other: str) -> bool:
        return goal.split()[-1] == other.split()[-1]

    def impossible(self, task: Task, goal: str) -> bool:
        return goal.endswith("gold")


def family(*goals: str, **more: Any) -> Tree:
    """A root and its clones."""
    root = node(0, None, goals[0])
    return tree(root, *(node(place, root, goal, **more) for place, goal in enumerate(goals[1:], start=1)))


def test_a_goal_that_is_its_parent_s_is_passed_on() -> None:
    trees = [family("make an axe", "Make  an axe.", "make a handle"), family("make a hat", "a hat", "make gold")]
    assert behaviour_metrics(trees)["passed_on"] == 1 / 4  # by words alone
    assert behaviour_metrics(trees, Crafts())["passed_on"] == 2 / 4


def test_only_clones_pass_goals_on_and_a_step_without_clones_has_no_share() -> None:
    metrics = behaviour_metrics([family("make an axe")], Crafts())
    assert (metrics["passed_on"], metrics["impossible"]) == (None, None)


def test_goals_that_cannot_be_met_are_counted_where_the_taskset_knows_them() -> None:
    trees = [family("make a ring", "make gold", "make gold", "make fire"), family("make a hat", "make felt")]
    assert behaviour_metrics(trees, Crafts())["impossible"] == 2 / 4
    assert behaviour_metrics(trees, Arithmetic())["impossible"] is None


CALL = '{"name": "craft", "arguments": {"target": "axe"}}'


@pytest.mark.parametrize(
    ("wrote", "unearned"),
    [
        (("", "", ""), 3 / 3),
        ((CALL, "", ""), 2 / 3),  # the root worked, its clones did not
        (("", "", CALL), 0 / 3),  # whoever works, works for all above
        (("", "craft ('axe')", ""), 1 / 3),
        (("", "an axe\n$ craft axe", ""), 1 / 3),
        (("", "it costs $ craft", ""), 3 / 3),
        (("", "", "I could craft an axe. I have crafted (an axe)"), 3 / 3),
        (("", "", '{"name": "get_info"}'), 3 / 3),  # looking something up is no work
    ],
)
def test_a_success_is_unearned_if_nothing_in_the_subtree_was_done(wrote: tuple[str, ...], unearned: float) -> None:
    root = node(0, None, "a", wrote=wrote[0], score=1.0)
    child = node(1, root, "b", wrote=wrote[1], score=1.0)
    grown = tree(root, child, node(2, child, "c", wrote=wrote[2], score=1.0), node(3, root, "d", score=0.0))
    assert behaviour_metrics([grown], Crafts())["unearned"] == unearned


def test_where_answers_are_all_that_nodes_do_no_success_is_unearned() -> None:
    grown = tree(node(0, None, "1+1", wrote="2", score=1.0))
    assert behaviour_metrics([grown], Arithmetic())["unearned"] is None


def test_refusals_repairs_and_faults_are_means_over_trees() -> None:
    own = Refusal(goal="a", reason="this is your own goal", kind="same_goal")
    few = Refusal(goal="b", reason="not enough tokens", kind="tokens")
    busy = tree(node(0, None, "a", turns=[turn(refusals=[own, few], repairs=1), turn(refusals=[own], faults=3)]))
    metrics = behaviour_metrics([busy, tree(node(0, None, "b"))])
    assert metrics["refused"] == 3 / 2
    assert metrics["refusals"] == dict.fromkeys(REFUSALS, 0.0) | {"same_goal": 2 / 2, "tokens": 1 / 2}
    assert (metrics["repairs"], metrics["faults"]) == (1 / 2, 3 / 2)


def test_every_kind_of_refusal_of_the_runtime_is_a_metric() -> None:
    """The list is that of `Refusal`, so that no kind is counted in `refused` alone."""
    listed = (Refusal.__doc__ or "").partition("one of ")[2].partition(";")[0]
    assert tuple(listed.replace("\n", " ").split(", ")) == REFUSALS


def test_stops_are_shares_of_nodes_and_of_roots() -> None:
    root = node(0, None, "a", stop=Stop.WINDOW)
    grown = tree(root, node(1, root, "b"), node(2, root, "c", stop=Stop.BUDGET))
    metrics = behaviour_metrics([grown, tree(node(0, None, "d"))])
    none = dict.fromkeys(map(str, Stop), 0.0)
    assert metrics["stops"] == none | {"answered": 2 / 4, "window": 1 / 4, "budget": 1 / 4}
    assert metrics["root_stops"] == none | {"answered": 1 / 2, "window": 1 / 2}


def test_success_is_told_apart_by_depth_and_by_what_graded_a_node() -> None:
    """A clone without a check of its own has its root's verdict: that is no success of clones."""
    trees = []
    for score in (1.0, 0.0):
        root = node(0, None, "a", score=score)
        exact = node(1, root, "b", score=1.0)
        trees.append(tree(root, exact, node(2, root, "c", score=score, how="root"), node(3, exact, "d")))
    metrics = behaviour_metrics(trees)
    assert metrics["nodes_by_depth"] == [2, 4, 2]
    assert metrics["nodes_by_verdict"] == {"exact": [2, 2, 0], "judge": [0, 0, 0], "root": [0, 2, 0]}
    assert metrics["success_by_verdict"] == {
        "exact": [0.5, 1.0, None],
        "judge": [None, None, None],
        "root": [None, 0.5, None],
    }


def test_tokens_granted_and_used_are_means_over_the_nodes_of_a_depth() -> None:
    root = node(0, None, "a", grant=900, tokens=50)
    grown = tree(root, node(1, root, "b", grant=300, tokens=10), node(2, root, "c", grant=100, tokens=40))
    metrics = behaviour_metrics([grown])
    assert metrics["granted_by_depth"] == [900, 200]
    assert metrics["used_by_depth"] == [50, 25]


def test_trees_of_the_real_runtime_have_all_of_it() -> None:
    """A root that asks for its own goal is refused, and then answers."""
    import anyio

    from ramet.agent.options import TreeOptions
    from ramet.tasks.play import play

    tasks = Arithmetic(operators=1, digits=1)
    task = tasks.task("train", 0)

    def script(prompt: Any) -> str:
        asks = f'<tool_call>{{"name": "delegate", "arguments": {{"goals": ["{prompt.goal}"]}}}}</tool_call>'
        return asks if prompt.turn == 0 and prompt.depth == 0 else "Answer: -1"

    async def played(**more: Any) -> Sequence[Tree]:
        return [await play(tasks, task, TreeOptions(engine=ScriptedEngine(script), **more))]

    refused = behaviour_metrics(anyio.run(played), tasks)
    assert (refused["refusals"]["same_goal"], refused["passed_on"]) == (1.0, None)

    async def allowed() -> Sequence[Tree]:
        return await played(allow_same_goal=True)

    passed = behaviour_metrics(anyio.run(allowed), tasks)
    assert (passed["refused"], passed["passed_on"], passed["nodes_by_depth"]) == (0.0, 1.0, [1, 1])
