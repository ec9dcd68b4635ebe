"""A tree in the terminal, while it runs and afterwards."""

from __future__ import annotations

import io

import anyio
import pytest
from rich.console import Console

import ramet
from ramet.demo.tour import delegate
from ramet.terminal.live import remaining, summary, table, watch_tree
from ramet.types import Meter, Piece, State, Turn
from tests.conftest import in_virtual_time
from tests.test_draw import node, refused, small, tree


def printed(*things: object, width: int = 120) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False, soft_wrap=True)
    console.print(*things)
    return console.file.getvalue()


def test_the_summary_has_the_tree_its_answer_and_its_totals() -> None:
    lines = [line.rstrip() for line in printed(summary(small(), width=120)).splitlines()]
    assert lines[:2] == [
        "0  Compare Rome and Oslo  1,234 tok  10.0 s  answered, 2 refused",
        "1  ├─ Rome                  200 tok   2.5 s  budget: partial answer",
    ]
    assert lines[-4:-1] == ["", "yes", ""]
    assert lines[-1].endswith("6 of 16 nodes · 12.3 of 60 s")


def test_the_summary_gives_reasons_for_refused_grants_and_failed_nodes() -> None:
    broken = node(1, 0, "Rome", 1, stop=ramet.Stop.ERROR, answer=None, error="the server is gone")
    root = node(0, None, "Why?", 1, turns=[refused("a [/b]")])
    assert "refused: a [/b]: no room\nnode 1 failed: Rome: the server is gone\n" in printed(
        summary(tree(root, broken), width=80)
    )
    root.turns = [refused(*"abcdefgh")]
    assert "refused: e: no room\n… and 4 more\n" in printed(summary(tree(root, broken), width=80))


def test_a_narrow_terminal_cuts_how_a_node_ended_and_no_number() -> None:
    root = node(0, None, "Compare Rome and Oslo", 1234, turns=[refused("a"), refused("b")])
    lines = printed(table(tree(root, node(1, 0, "Rome", 200)), width=36), width=36).splitlines()
    assert [line.rstrip() for line in lines] == [
        "0  Compare R…  1,234 tok  2.0 s  an…",
        "1  └─ Rome       200 tok  2.0 s  an…",
    ]


def test_refused_goals_that_begin_alike_are_cut_where_they_differ() -> None:
    goals = [f"Summarise what the first report of the company says about {year}" for year in (2023, 2024)]
    lines = printed(summary(tree(node(0, None, "Why?", 1, turns=[refused(*goals)])), width=80)).splitlines()
    shown = [line for line in lines if line.startswith("refused: ")]
    assert len(set(shown)) == 2
    assert [line.endswith(f"{year}: no room") for line, year in zip(shown, (2023, 2024), strict=True)] == [True, True]


def test_the_summary_of_a_tree_without_an_answer_says_so() -> None:
    assert "\nno answer\n" in printed(summary(tree(node(0, None, "Why?", 1, answer=None)), width=80))
    silent = node(0, None, "Why?", 0, answer=None, stop=ramet.Stop.DEADLINE)
    assert "\nno answer: no token had arrived when the time was up" in printed(summary(tree(silent), width=80))


def test_the_summary_of_a_cancelled_tree_has_the_text_that_had_arrived() -> None:
    root = node(0, None, "Why?", 3, answer=None, stop=ramet.Stop.CANCELLED)
    root.pieces = [Piece(sampled=False, text="Why?"), Piece(sampled=True, text="Because the")]
    root.turns = [Turn(tokens=3, finish="cut", started_s=0.0, sampled_s=1.0)]
    assert "\nno answer\nits root had written so far:\nBecause the\n" in printed(summary(tree(root), width=80))
    root.turns = [Turn(tokens=3, finish="stop", started_s=0.0, sampled_s=1.0)]
    assert "Because the" not in printed(summary(tree(root), width=80))


def sampling(index: int, parent: int | None, goal: str, text: str) -> ramet.Node:
    """A node whose call has brought this text so far."""
    made = node(index, parent, goal, 1, state=State.SAMPLING, stop=None, ended_s=None)
    made.meter = Meter(tokens=2, partial=lambda: ramet.Completion(text=text, num_tokens=2, finish="stop"))
    return made


def test_the_last_words_of_working_nodes_are_below_them_as_far_as_there_is_room() -> None:
    root = node(0, None, "root", 1, state=State.WAITING, stop=None, ended_s=None)
    grown = tree(root, sampling(1, 0, "one", "It was\na dark night " + "and stormy " * 30), sampling(2, 0, "two", ""))
    lines = [line.rstrip() for line in printed(table(grown, width=80, rows=9, now=1.0, words=True)).splitlines()]
    assert [line[:7] for line in lines] == ["0  root", "1  ├─ o", "   │  …", "2  └─ t"]
    assert lines[2].endswith("and stormy and stormy")
    assert "stormy" not in printed(table(grown, width=80, rows=3, now=1.0, words=True))
    assert "stormy" not in printed(table(grown, width=80, now=1.0))


def test_running_nodes_are_shown_when_there_are_too_many() -> None:
    done = [node(index, 0, f"done {index}", 1) for index in range(1, 50)]
    busy = node(50, 0, "busy", 1, state=State.WAITING, stop=None, ended_s=None)
    root = node(0, None, "root", 1, state=State.WAITING, stop=None, ended_s=None)
    shown = printed(table(tree(root, *done, busy), width=80, rows=10, now=3.0))
    assert len(shown.splitlines()) <= 10 + 1
    assert "root" in shown
    assert "busy" in shown
    assert "… and 49 more nodes" in shown


@pytest.mark.parametrize("question", ["Why?", "[/b] why [bold]?"])
def test_a_tree_is_shown_while_it_runs(question: str) -> None:
    def script(prompt: ramet.Prompt) -> ramet.Reply:
        if prompt.depth == 0 and prompt.turn == 0:
            return ramet.Reply(text=delegate(["one", "two", "three", "four", "five"], [None] * 5), seconds=1)
        return ramet.Reply(text="Answer: yes", seconds=2)

    async def run() -> tuple[str, ramet.Tree, str]:
        budget = ramet.Budget(seconds=60, money=1.0, prices=ramet.Prices(generated=1.0))
        tree_run = ramet.TreeRun(question, ramet.TreeOptions(engine=ramet.ScriptedEngine(script), budget=budget))
        console = Console(file=io.StringIO(), force_terminal=True, width=100, height=8, color_system=None)
        with anyio.fail_after(60):
            await watch_tree(tree_run, console)
        return console.file.getvalue(), tree_run.tree, remaining(tree_run)

    screen, grown, in_the_end = in_virtual_time(run)
    assert grown.answer == "yes"
    assert f"{question}   " in screen
    assert "sampling" in screen
    assert "waiting" in screen
    assert "more nodes" in screen
    assert "left: 4,000 tokens · 15 nodes · 60 s · $1.0000" in screen
    used = grown.usage
    assert in_the_end == f"left: {4000 - used.tokens:,} tokens · 10 nodes · 55 s · ${1 - used.dollars:.4f}"
