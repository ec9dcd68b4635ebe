"""A tree as people see it."""

from __future__ import annotations

import io

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

import ramet
from ramet.demo.tour import delegate
from ramet.draw import GOAL_WIDTH, one_line, walk
from ramet.terminal.live import left, summary, table, watch
from ramet.types import Meter, Refusal, State, Turn
from tests.conftest import in_virtual_time


def node(index: int, parent: int | None, goal: str, tokens: int, **more: object) -> ramet.Node:
    """A node that has ended; by default with an answer."""
    made = ramet.Node(index=index, parent=parent, depth=0, path=(), goal=goal, grant=100)
    made.usage = ramet.Usage(tokens=tokens)
    values = {"state": State.ENDED, "stop": ramet.Stop.ANSWERED, "answer": "yes", "ended_s": 2.0} | more
    for name, value in values.items():
        setattr(made, name, value)
    return made


def tree(*nodes: ramet.Node, budget: ramet.Budget | None = None, seconds: float = 12.34) -> ramet.Tree:
    task = ramet.Task(question="Why?")
    return ramet.Tree(id="t", task=task, budget=budget or ramet.Budget(), nodes=list(nodes), seconds=seconds)


def refused(*goals: str) -> Turn:
    refusals = [Refusal(goal=goal, reason="no room") for goal in goals]
    return Turn(tokens=1, finish="stop", started_s=0.0, sampled_s=0.0, refusals=refusals)


def small() -> ramet.Tree:
    """One of everything."""
    root = node(0, None, "Compare Rome\nand Oslo", 1234, turns=[refused("a"), refused("b")], ended_s=9.96)
    root.usage.critical_path_tokens = 700
    return tree(
        root,
        node(1, 0, "Rome", 200, started_s=1.0, stop=ramet.Stop.BUDGET, ended_s=3.5),
        node(2, 0, "Oslo", 10, stop=ramet.Stop.WINDOW),
        node(3, 1, "Rome by night", 5, stop=ramet.Stop.ERROR, answer=None),
        node(4, 1, "Rome by day", 0, stop=ramet.Stop.DEADLINE, answer=None),
        node(5, 2, "Oslo in winter", 7, state=State.SAMPLING, stop=None, ended_s=None, meter=Meter(tokens=30)),
        budget=ramet.Budget(tokens=4000, seconds=60),
    )


def test_a_tree_is_drawn_one_line_a_node_and_a_line_of_totals() -> None:
    assert str(small()).splitlines() == [
        "Compare Rome and Oslo    1,234 tok   10.0 s  answered, 2 refused",
        "├─ Rome                    200 tok    2.5 s  budget: partial answer",
        "│  ├─ Rome by night          5 tok    2.0 s  error: no answer",
        "│  └─ Rome by day            0 tok    2.0 s  deadline: no answer",
        "└─ Oslo                     10 tok    2.0 s  context: partial answer",
        "   └─ Oslo in winter        37 tok   12.3 s  sampling",
        "1,456 of 4,000 tokens · 700 on the critical path · 6 of 16 nodes · 12.3 of 60 s",
    ]


def test_lost_tokens_and_money_stand_in_the_totals() -> None:
    only = node(0, None, "Why?", 10)
    only.usage = ramet.Usage(tokens=10, lost_tokens=1990, cost=25 * 10**9, critical_path_tokens=10)
    budget = ramet.Budget(money=0.5, prices=ramet.Prices(generated=1.0))
    assert str(tree(only, budget=budget)).splitlines()[-1] == (
        "10 of 4,000 tokens · 1,990 paid for and cut off · 10 on the critical path · "
        "1 of 16 nodes · $0.0250 of $0.5 · 12.3 s"
    )


def test_a_tree_that_never_began_has_only_totals() -> None:
    assert str(tree(seconds=0.0)) == "0 of 4,000 tokens · 0 on the critical path · 0 of 16 nodes · 0.0 s"


def test_long_goals_are_shortened_to_a_column() -> None:
    drawn = str(tree(node(0, None, "word " * 30, 1), node(1, 0, "x" * GOAL_WIDTH, 1), node(2, 0, "y" * 99, 1)))
    first, second, third, _ = drawn.splitlines()
    assert first.startswith("word word word word word word word word word …    ")
    assert second.startswith(f"├─ {'x' * GOAL_WIDTH}  ")
    assert third.startswith(f"└─ {'y' * (GOAL_WIDTH - 1)}…  ")
    assert len({line.index(" tok") for line in (first, second, third)}) == 1


@given(st.text(), st.integers(1, 80))
def test_any_goal_fits_on_one_line(text: str, width: int) -> None:
    shown = one_line(text, width)
    assert len(shown) <= width
    assert len(shown.splitlines()) <= 1


@given(st.lists(st.integers(0, 10**6), max_size=60))
def test_every_node_is_drawn_once_and_below_its_parent(choices: list[int]) -> None:
    nodes = [node(0, None, "root", 1)]
    for index, choice in enumerate(choices, start=1):
        nodes.append(node(index, choice % index, f"node {index}", 1))
    order = [drawn.index for drawn, _ in walk(tree(*nodes))]
    assert sorted(order) == list(range(len(nodes)))
    assert all(order.index(one.parent) < order.index(one.index) for one in nodes if one.parent is not None)


# In the terminal.


def printed(*things: object, width: int = 120) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False, soft_wrap=True)
    console.print(*things)
    return console.file.getvalue()


def test_the_summary_has_the_tree_its_answer_and_its_totals() -> None:
    lines = [line.rstrip() for line in printed(summary(small(), width=120)).splitlines()]
    assert lines[:2] == [
        "Compare Rome and Oslo  1,234 tok  10.0 s  answered, 2 refused",
        "├─ Rome                  200 tok   2.5 s  budget: partial answer",
    ]
    assert lines[-4:-1] == ["", "yes", ""]
    assert lines[-1].endswith("6 of 16 nodes · 12.3 of 60 s")


def test_the_summary_says_why_grants_were_refused_and_nodes_failed() -> None:
    broken = node(1, 0, "Rome", 1, stop=ramet.Stop.ERROR, answer=None, error="the server is gone")
    root = node(0, None, "Why?", 1, turns=[refused("a [/b]")])
    assert "refused: a [/b]: no room\nfailed: Rome: the server is gone\n" in printed(
        summary(tree(root, broken), width=80)
    )
    root.turns = [refused(*"abcdefgh")]
    assert "refused: e: no room\n… and 4 more\n" in printed(summary(tree(root, broken), width=80))


def test_no_answer_is_said_in_the_summary() -> None:
    assert "\nno answer\n" in printed(summary(tree(node(0, None, "Why?", 1, answer=None)), width=80))


def test_when_nodes_are_too_many_the_busy_ones_are_shown() -> None:
    done = [node(index, 0, f"done {index}", 1) for index in range(1, 50)]
    busy = node(50, 0, "busy", 1, state=State.WAITING, stop=None, ended_s=None)
    root = node(0, None, "root", 1, state=State.WAITING, stop=None, ended_s=None)
    shown = printed(table(tree(root, *done, busy), width=80, rows=10, now=3.0))
    assert len(shown.splitlines()) <= 10 + 1
    assert "root" in shown
    assert "busy" in shown
    assert "… and 49 more nodes" in shown


@pytest.mark.parametrize("question", ["Why?", "[/b] why [bold]?"])
def test_a_tree_is_shown_while_it_grows(question: str) -> None:
    def script(prompt: ramet.Prompt) -> ramet.Reply:
        if prompt.depth == 0 and prompt.turn == 0:
            return ramet.Reply(text=delegate(["one", "two", "three", "four", "five"], [None] * 5), seconds=1)
        return ramet.Reply(text="Answer: yes", seconds=2)

    async def run() -> tuple[str, ramet.Tree, str]:
        budget = ramet.Budget(seconds=60, money=1.0, prices=ramet.Prices(generated=1.0))
        tree_run = ramet.TreeRun(question, engine=ramet.ScriptedEngine(script), budget=budget)
        console = Console(file=io.StringIO(), force_terminal=True, width=100, height=8, color_system=None)
        with anyio.fail_after(60):
            await watch(tree_run, console)
        return console.file.getvalue(), tree_run.tree, left(tree_run)

    screen, grown, in_the_end = in_virtual_time(run)
    assert grown.answer == "yes"
    assert f"{question}   " in screen
    assert "sampling" in screen
    assert "waiting" in screen
    assert "more nodes" in screen
    assert "left: 4,000 tokens · 15 nodes · 60 s · $1.0000" in screen
    used = grown.usage
    assert in_the_end == f"left: {4000 - used.tokens:,} tokens · 10 nodes · 55 s · ${1 - used.dollars:.4f}"
