"""A tree drawn as text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

import ramet
from ramet.draw import GOAL_WIDTH, counted, cut_apart, one_line, walk
from ramet.types import Meter, Refusal, State, Turn


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
    """A tree with nodes in all states."""
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


def test_a_tree_is_drawn_as_one_line_per_node_and_a_line_of_totals() -> None:
    assert str(small()).splitlines() == [
        "0  Compare Rome and Oslo    1,234 tok   10.0 s  answered, 2 refused",
        "1  ├─ Rome                    200 tok    2.5 s  budget: partial answer",
        "3  │  ├─ Rome by night          5 tok    2.0 s  error: no answer",
        "4  │  └─ Rome by day            0 tok    2.0 s  deadline: no answer",
        "2  └─ Oslo                     10 tok    2.0 s  window: partial answer",
        "5     └─ Oslo in winter        37 tok   12.3 s  sampling",
        "1,456 of 4,000 tokens · 700 on the critical path · 6 of 16 nodes · 12.3 of 60 s",
    ]


def test_failed_calls_are_counted_apart_from_refused_clones() -> None:
    turns = [refused("a"), refused(), refused()]
    turns[0].faults, turns[1].faults, turns[2].faults = 1, 1, 2  # the first fault is the refusal
    assert "answered, 1 refused, 3 failed calls" in str(tree(node(0, None, "Why?", 10, turns=turns)))
    turns[2].faults = 0
    assert str(tree(node(0, None, "Why?", 10, turns=turns[1:]))).splitlines()[0].endswith("answered, 1 failed call")


def test_a_turn_that_was_cut_off_is_no_failed_call() -> None:
    turns = [refused("a"), refused(), refused()]
    turns[0].faults, turns[1].faults, turns[2].faults = 1, 1, 3
    turns[0].finish = turns[1].finish = turns[2].finish = "length"
    drawn = str(tree(node(0, None, "Why?", 10, turns=turns)))
    assert "answered, 1 refused, 2 turns cut off, 2 failed calls" in drawn


def test_totals_show_lost_tokens_and_money() -> None:
    only = node(0, None, "Why?", 10)
    only.usage = ramet.Usage(tokens=10, lost_tokens=1990, cost=25 * 10**9, critical_path_tokens=10)
    budget = ramet.Budget(money=0.5, prices=ramet.Prices(generated=1.0))
    assert str(tree(only, budget=budget)).splitlines()[-1] == (
        "10 of 4,000 tokens · 1,990 lost to cancelled calls · 10 on the critical path · "
        "1 of 16 nodes · $0.0250 of $0.5 · 12.3 s"
    )


def test_a_tree_without_nodes_has_only_totals() -> None:
    assert str(tree(seconds=0.0)) == "0 of 4,000 tokens · 0 on the critical path · 0 of 16 nodes · 0.0 s"


def test_a_count_of_one_is_singular() -> None:
    assert [counted(number, "node") for number in (0, 1, 2000)] == ["0 nodes", "1 node", "2,000 nodes"]


def test_long_goals_are_shortened_to_a_column() -> None:
    drawn = str(tree(node(0, None, "word " * 30, 1), node(1, 0, "x" * GOAL_WIDTH, 1), node(2, 0, "y" * 99, 1)))
    first, second, third, _ = drawn.splitlines()
    assert first.startswith("0  word word word word word word word word word …    ")
    assert second.startswith(f"1  ├─ {'x' * GOAL_WIDTH}  ")
    assert third.startswith(f"2  └─ {'y' * (GOAL_WIDTH - 1)}…  ")
    assert len({line.index(" tok") for line in (first, second, third)}) == 1


def test_goals_that_begin_alike_are_cut_where_they_differ() -> None:
    places = ["Oslo in May", "Oslo in June", "Rome"]
    goals = ["Count", *(f"Count the ships in the harbour of {place}" for place in places)]
    assert cut_apart(goals, [20] * 4) == ["Count", "Count …Oslo in May", "Count …Oslo in June", "Count …of Rome"]
    assert cut_apart([f"{'a' * 50}{end}" for end in "xy"], [20, 20]) == ["aaaaaa…aaaaaax", "aaaaaa…aaaaaay"]
    assert cut_apart(["same " * 20] * 2, [20, 20]) == ["same same same same…"] * 2
    drawn = str(tree(node(0, None, "Why?", 1), *(node(i, 0, f"{'so ' * 30}{i}", 1) for i in range(1, 9))))
    assert len({line.partition(" tok")[0] for line in drawn.splitlines()}) == 10


@given(st.lists(st.text("ab ", max_size=60), max_size=6), st.integers(12, 30))
def test_texts_that_are_cut_apart_fit_and_differ_if_their_words_do(texts: list[str], width: int) -> None:
    shown = cut_apart(texts, [width] * len(texts))
    lines = [" ".join(text.split()) for text in texts]
    assert all(len(line) <= width for line in shown)
    assert all(
        line == whole for line, whole in zip(shown, lines, strict=True) if len(whole) <= width and "…" not in line
    )
    if len(lines) == 2 and lines[0] != lines[1]:
        assert shown[0] != shown[1]


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
    assert all(order.index(n.parent) < order.index(n.index) for n in nodes if n.parent is not None)
