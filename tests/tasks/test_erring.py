"""Demonstrations with mistakes: what goes wrong, how it is mended, what is reported, and which turns are taught."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import anyio
import pytest

from ramet.agent.goals import same_words
from ramet.errors import ConfigError
from ramet.interfaces import Ask, ComparesGoals, Do, Move, Taskset, View
from ramet.tasks.arithmetic import HABITS, Arithmetic, Calculator, check_last_digit
from ramet.tasks.countdown.oracle import check_formula
from ramet.tasks.countdown.puzzle import Puzzle
from ramet.tasks.countdown.taskset import Countdown
from ramet.tasks.dice import Dice
from ramet.tasks.erring import AGAIN, Check, Erring, Habits, Kind, NodeWork, Wrong
from ramet.tasks.manner import make_manner
from ramet.tasks.multihop.taskset import Multihop
from ramet.tasks.number_search import HABITS as GUESSING
from ramet.tasks.number_search import NumberSearch, Searcher
from ramet.tasks.oracle import write_python, write_terse, write_tools
from ramet.tasks.play import demonstrate
from ramet.tasks.registry import TASKSETS, load_taskset
from ramet.tasks.validate import dialects_for
from ramet.train.warmstart import filter_by_score, rows_to_copy
from ramet.types import Node, Piece, Slip, Tree, Turn

OWN = "Compute 12*3+45*2"
PARTS = ("Compute 12*3", "Compute 45*2")


class Halves:
    """Asks for both products of `12*3+45*2` and adds them up."""

    def move(self, view: View) -> Move:
        if view.turn == 0:
            return Move(thought="two products", asks=tuple(Ask(goal=goal) for goal in PARTS))
        return Move(thought="+".join(view.history[0]), answer=str(sum(map(int, view.history[0]))))


def work(kind: Kind | None, *, slip: Slip = "name", habits: Habits = HABITS, depth: int = 0) -> NodeWork:
    solo = Calculator(delegate=False, dice_seed=())
    erring = Erring(Halves(), solo=solo, habits=habits, mistakes=0.0, seed=())
    node = NodeWork(erring, View(goal=OWN, depth=depth))
    node.kind, node.slip = kind, slip
    node.wrong = {1: Wrong(ask=Ask(goal="Compute 45*7"), line="I asked for 45*7, but my part is 45*2")}
    return node


def drive(node: NodeWork, *results: tuple[str, ...]) -> list[Move]:
    """The moves up to the answer."""
    moves = node.moves()
    made = [next(moves)]
    for told in results:
        assert made[-1].answer is None
        made.append(moves.send(told))
    assert made[-1].answer is not None
    return made


def asked(move: Move) -> tuple[str, ...]:
    return tuple(ask.goal for ask in move.asks)


# One node, by hand.


def test_without_a_mistake_the_node_checks_the_answers_of_its_clones() -> None:
    moves = drive(work(None), ("36", "90"))
    assert [asked(move) for move in moves] == [PARTS, ()]
    assert moves[1].thought == "2*3=6, so 12*3 can be 36\n5*2=10, so 45*2 can be 90\n36+90"
    assert moves[1].answer == "126"


def test_the_own_goal_is_refused_and_then_split() -> None:
    moves = drive(work("own goal"), ("refused: this is your own goal",), ("36", "90"))
    assert [asked(move) for move in moves] == [(OWN,), PARTS, ()]
    assert [move.mistake for move in moves] == [True, False, False]


def test_a_slip_is_followed_by_the_same_move_in_its_right_form() -> None:
    moves = drive(work("slip"), (), ("36", "90"))
    assert [move.slip for move in moves] == ["name", "", ""]
    assert [move.mistake for move in moves] == [True, False, False]
    assert moves[0].asks == moves[1].asks
    assert (moves[0].thought, moves[1].thought) == ("two products", "")  # it is in the window already


def test_a_wrong_part_is_asked_for_again_and_the_other_is_not() -> None:
    moves = drive(work("spoil"), ("36", "315"), ("90",))
    assert asked(moves[0]) == ("Compute 12*3", "Compute 45*7")
    assert [move.mistake for move in moves] == [True, False, False]
    assert moves[1] == Move(thought="I asked for 45*7, but my part is 45*2", asks=(Ask(goal=PARTS[1]),))
    assert moves[2].answer == "126"


def test_a_forgotten_part_is_noticed() -> None:
    moves = work("forget").moves()
    wrong = next(moves)
    assert wrong.mistake
    (first,) = asked(wrong)
    (left,) = set(PARTS) - {first}
    second = moves.send((str(36 if first == PARTS[0] else 90),))
    assert second == Move(thought=f"Not asked yet: {left}", asks=(Ask(goal=left),))
    assert moves.send((str(36 if left == PARTS[0] else 90),)).answer == "126"


def test_a_wrong_answer_of_a_clone_is_noticed_and_asked_for_again() -> None:
    moves = drive(work(None), ("36", "91"), ("90",))
    assert asked(moves[1]) == (PARTS[1] + AGAIN,)
    assert moves[1].thought == "2*3=6, so 12*3 can be 36\n5*2=10, so 45*2 is not 91"
    assert moves[2].thought == "5*2=10, so 45*2 can be 90\n36+90"
    assert [move.mistake for move in moves] == [False, False, False]


def test_a_part_that_fails_twice_is_done_alone() -> None:
    lost = HABITS.report("I lost track")
    moves = drive(work(None), ("36", lost), (lost,))
    assert moves[1].thought.endswith("No result for: Compute 45*2")
    assert moves[2].thought == f"I do it myself: {PARTS[1]}\n45*2=90\n36+90"
    assert moves[2].answer == "126"


def test_a_refused_part_is_done_alone_at_once() -> None:
    moves = drive(work(None), ("36", "refused: no clones left of 3: do it yourself"))
    assert moves[1].answer == "126"
    assert "I do it myself" in moves[1].thought


def test_a_root_that_cannot_work_alone_reports_what_no_clone_could_do() -> None:
    habits = replace(HABITS, works_alone=False)
    lost = HABITS.report("I lost track")
    moves = drive(work(None, habits=habits), ("36", lost), (lost,))
    assert moves[2] == Move(answer="Could not compute it: no clone could do this: Compute 45*2")
    clone = drive(work(None, habits=habits, depth=1), ("36", lost), (lost,))
    assert clone[2].answer == "126"  # a clone has its texts


def test_a_report_of_failure_never_contains_the_mark_before_an_answer() -> None:
    assert (
        Habits(verb="find out").report("what helps to answer: Who?") == "Could not find out: what helps to answer Who?"
    )


def test_a_clone_that_errs_answers_at_once_and_wrongly() -> None:
    node = work("misanswer", depth=1)
    (move,) = drive(node)
    assert move.mistake
    assert check_last_digit(Ask(goal=OWN), move.answer or "").ok is False


@pytest.mark.parametrize(("told", "ok"), [("36", True), ("26", True), ("37", False), ("-36", False), ("none", False)])
def test_the_last_digit_of_a_product_is_checked(told: str, ok: bool) -> None:
    assert check_last_digit(Ask(goal="Compute 12*3"), told).ok is ok


def test_a_negative_value_is_checked_by_its_distance() -> None:
    assert check_last_digit(Ask(goal="Compute 12-45"), "-33") == Check(line="2-5=-3, so 12-45 can be -33")


def test_numbers_of_one_digit_are_not_checked_because_that_would_be_the_whole_computation() -> None:
    assert check_last_digit(Ask(goal="Compute 2*3+4"), "11") == Check()
    assert check_last_digit(Ask(goal="Compute 2*3+4"), "?") == Check(ok=False, line="2*3+4: no number")
    view = replace(work(None, depth=1).view, goal="Compute 2*3+4")
    assert HABITS.misanswer(view, "10", Dice("any")) is None  # the clone reports a failure instead


def test_a_formula_that_makes_another_number_is_noticed() -> None:
    ask = Ask(goal=Puzzle((3, 8), Fraction(24)).goal())
    assert check_formula(ask, "3 + 8") == Check(ok=False, line="3 + 8 = 11, not 24")
    assert check_formula(ask, "4 * 6") == Check(ok=False, line="4 * 6 = 24, with other numbers")
    assert check_formula(ask, "3 * 8").ok
    assert check_formula(ask, "impossible").ok


def test_parts_beyond_the_limit_of_a_call_are_asked_for_in_the_next_turn() -> None:
    solo = Searcher(delegate=False, dice_seed=())
    erring = Erring(Searcher(delegate=True, dice_seed=()), solo=solo, habits=GUESSING, mistakes=0.0, seed=())
    node = NodeWork(erring, View(goal="Guess the correct number between 1 and 90.", depth=0))
    node.kind = "many"
    moves = node.moves()
    first = next(moves)
    assert (len(first.asks), first.mistake) == (9, True)
    second = moves.send((*["not between 1 and 10"] * 8, "refused: one call starts at most 8 clones"))
    assert second == Move(thought="Not started: 1 of 9", asks=first.asks[8:])
    assert moves.send(("85",)).answer == "85"


def test_a_call_with_a_wrong_value_is_followed_by_the_right_one() -> None:
    solo = Searcher(delegate=False, dice_seed=())
    node = NodeWork(
        Erring(solo, solo=solo, habits=GUESSING, mistakes=0.0, seed=()),
        View(goal="Guess the correct number between 1 and 9.", depth=1),
    )
    node.kind = "misdo"
    moves = drive(node, ("error: n is a whole number, not 'number 5'",), ("too high",), ("correct",))
    assert [do.arguments for move in moves for do in move.does] == [{"n": "number 5"}, {"n": 5}, {"n": 2}]
    assert [move.mistake for move in moves] == [True, False, False, False]
    assert moves[-1].answer == "2"


def test_nothing_is_mended_when_another_clone_has_found_the_number() -> None:
    solo = Searcher(delegate=False, dice_seed=())
    erring = Erring(
        Searcher(delegate=True, dice_seed=(), uniform=True), solo=solo, habits=GUESSING, mistakes=0.0, seed=()
    )
    moves = NodeWork(erring, View(goal="Guess the correct number between 1 and 90.", depth=0)).moves()
    next(moves)
    assert moves.send(("Could not find it: I lost track", "77")).answer == "77"


# Slips in every dialect.

ASKS = Move(thought="t", asks=(Ask(goal="a", context=("k",)), Ask(goal="b", context=("k",))), mistake=True)


@pytest.mark.parametrize(
    ("slip", "tools", "python"),
    [
        (
            "name",
            '{"name": "ask_clone", "arguments": {"goals": ["a"], "context": ["k"]}}',
            "ask_clone(goal='a', context",
        ),
        ("argument", '{"name": "delegate", "arguments": {"tasks": ["a"], "texts": ["k"]}}', "delegate(task='a', texts"),
        ("syntax", 'delegate(["a"], ["k"])', "delegate(goal='b', context=['k'])\nprint"),
    ],
)
def test_slips_of_requests(slip: Slip, tools: str, python: str) -> None:
    move = replace(ASKS, slip=slip)
    assert f"<tool_call>{tools}</tool_call>" in write_tools(move)
    assert python in write_python(move)
    assert write_terse(move) == "t\na @k\nb @k"


@pytest.mark.parametrize("slip", ["name", "argument", "syntax"])
def test_a_slip_of_an_answer_or_a_call_never_ends_a_node(slip: Slip) -> None:
    answer = Move(answer="7", slip=slip)
    assert "Answer:" not in write_tools(answer)
    assert "finish" not in write_python(answer)
    assert write_terse(answer) == "7"
    guess = Move(does=(Do(name="guess", arguments={"n": 5}),), slip=slip)
    assert '{"name": "guess", "arguments": {"n": 5}}' not in write_tools(guess)
    assert "[guess(n=5)]" not in write_python(guess)


# Whole demonstrations.


def offline() -> list[str]:
    return sorted(set(TASKSETS) - {"math", "gym", "jsonl", "textcraft"})  # these need files or packages


def options_of(name: str, folder: Path, **options: Any) -> dict[str, Any]:
    """Options with which a taskset works without data of its own; files are written to the folder."""
    if name == "jsonl":
        texts = [{"title": "House", "text": "Ann lives here."}, {"title": "Street", "text": "It is long."}]
        rows = [
            {"question": f"Who lives in {i}?", "answer": "Ann", "context": texts if i % 2 else []} for i in range(9)
        ]
        (folder / "own.jsonl").write_text("\n".join(map(json.dumps, rows)))
        return {"file": folder / "own.jsonl", "eval_share": 0.0, **options}
    if name == "math":
        rows = [{"question": f"What is {i}+1?", "answer": str(i + 1), "meta": {"verify": "number"}} for i in range(9)]
        (folder / "gsm8k_train.jsonl").write_text("\n".join(map(json.dumps, rows)))
        return {"data": folder, **options}
    return {**options, "style": "uniform"} if name == "craft" else options


def show(taskset: Taskset, index: int, *, dialect: str = "tools", split: str = "train") -> Tree:
    return anyio.run(partial(demonstrate, taskset, taskset.task(split, index), dialect=dialect, seed=index))


def turns(node: Node) -> Iterator[tuple[Piece, Turn]]:
    """What a node wrote, with what came of it."""
    return zip((piece for piece in node.pieces if piece.sampled), node.turns, strict=True)


def is_mistaken(node: Node) -> bool:
    return any(piece.sampled and not piece.taught for piece in node.pieces)


@pytest.mark.parametrize("mistakes", [0.0, 0.5])
@pytest.mark.parametrize("name", sorted(set(TASKSETS) - {"textcraft"}))
def test_no_taught_turn_gives_a_clone_the_goal_of_the_node(name: str, mistakes: float, tmp_path: Path) -> None:
    if name == "gym" and find_spec("reasoning_gym") is None:
        pytest.skip("needs reasoning-gym")
    taskset = load_taskset(name, **options_of(name, tmp_path, mistakes=mistakes))
    splits = [split for split in ("train", "long") if split in taskset.splits]
    for split in splits:
        for index in range(6):
            tree = show(taskset, index, split=split)
            for node in tree.nodes:
                for piece, turn in turns(node):
                    if not piece.taught:
                        continue
                    assert [refusal for refusal in turn.refusals if refusal.kind == "same_goal"] == []
                    for child in turn.children:
                        goal = tree.nodes[child].goal
                        assert not same_words(goal, node.goal)
                        if isinstance(taskset, ComparesGoals):
                            assert not taskset.same_goal(tree.task, goal, node.goal)


@pytest.mark.parametrize("name", sorted(set(offline()) - {"craft"} | {"jsonl", "math"}))
def test_every_root_is_right_or_reports_plainly_that_it_failed(name: str, tmp_path: Path) -> None:
    taskset = load_taskset(name, **options_of(name, tmp_path, mistakes=0.5))
    for index in range(8):
        for dialect in dialects_for(taskset, taskset.task("train", index)):
            root = show(taskset, index, dialect=dialect).root
            right = root.verdict is not None and root.verdict.is_right
            assert right or (root.answer or "").startswith("Could not")
            assert [piece for piece in root.pieces if piece.sampled][-1].taught


@pytest.mark.parametrize("name", ["arithmetic", "codes", "countdown", "multihop"])
def test_the_share_of_nodes_with_mistakes_is_as_set(name: str) -> None:
    taskset = load_taskset(name, mistakes=0.3)
    nodes = [node for index in range(60) for node in show(taskset, index).nodes if not node.goal.endswith(AGAIN)]
    assert 0.2 < sum(map(is_mistaken, nodes)) / len(nodes) < 0.4  # three standard deviations of 200 nodes are 0.1


def test_mistaken_turns_carry_no_loss_and_all_other_turns_do() -> None:
    taskset = Arithmetic(mistakes=1.0)
    tree = show(taskset, 0)
    assert all(map(is_mistaken, [node for node in tree.nodes if not node.goal.endswith(AGAIN)]))
    for node in tree.nodes:
        for piece, turn in turns(node):
            if turn.faults:  # a refusal or a call that could not be read
                assert not piece.taught
    rows = {row.node: row for row in rows_to_copy([tree])}
    for node in tree.nodes:
        taught = sum(len(piece.token_ids) for piece in node.pieces if piece.sampled and piece.taught)
        assert (rows[node.index].num_trained if node.index in rows else 0) == taught


def test_a_root_that_reports_its_failure_is_kept_when_honest_failures_are_wanted() -> None:
    taskset = Multihop(mistakes=0.6)
    trees = [show(taskset, index) for index in range(40)]
    failed = [tree for tree in trees if (tree.answer or "").startswith("Could not find out: ")]
    assert failed
    assert filter_by_score(trees, least=1.0, source="s", honest_failures=True) == trees
    kept = filter_by_score(trees, least=1.0, source="s")
    assert not any(tree in kept for tree in failed)


def test_a_clone_names_only_the_first_page_it_lacks_and_its_parent_passes_it_on() -> None:
    taskset = Multihop(mistakes=1.0)
    answers = [node.answer or "" for index in range(40) for node in show(taskset, index).nodes]
    reports = [answer for answer in answers if answer.startswith("Could not find out: I was not given")]
    assert reports
    assert not any("," in report for report in reports)


def test_the_same_seed_makes_the_same_mistakes() -> None:
    one, other = (show(NumberSearch(mistakes=0.5), 3) for _ in range(2))
    assert [[piece.text for piece in node.pieces] for node in one.nodes] == [
        [piece.text for piece in node.pieces] for node in other.nodes
    ]


# Defaults and styles.

DIGESTS: Mapping[str, str] = {
    "aggregate": "83bf6554d8e35988",
    "arithmetic": "3a189b16df79c719",
    "codes": "b56b8bbca1edbc4c",
    "countdown": "edd39da7ea0e1524",
    "craft": "b1156ec7f347caa0",
    "game24": "8adcef2e91890bff",
    "multihop": "903e9a577324c764",
    "number_search": "e0ac628141d42343",
    "search": "ed515d0f0c178448",
}


def digest(name: str) -> str:
    taskset, seen = load_taskset(name), hashlib.sha256()
    for index in range(3):
        for dialect in ("tools", "terse"):
            if dialect == "tools" or not taskset.world(taskset.task("train", index)).functions:
                tree = show(taskset, index, dialect=dialect)
                said = [[piece.text for piece in node.pieces if piece.sampled] for node in tree.nodes]
                seen.update(json.dumps([said, [node.goal for node in tree.nodes]]).encode())
    return seen.hexdigest()[:16]


@pytest.mark.parametrize("name", sorted(DIGESTS))
def test_demonstrations_are_the_same_as_without_these_options(name: str) -> None:
    assert digest(name) == DIGESTS[name]


@pytest.mark.parametrize("name", ["arithmetic", "codes", "number_search", "aggregate", "multihop", "search"])
@pytest.mark.parametrize("style", ["uniform", "mixed"])
def test_every_node_of_another_style_is_right(name: str, style: str) -> None:
    taskset = load_taskset(name, style=style)
    for index in range(4):
        tree = show(taskset, index)
        assert all(node.verdict is not None and node.verdict.is_right for node in tree.nodes)
        assert not any(turn.faults for node in tree.nodes for turn in node.turns)


def test_a_uniform_sum_is_cut_after_every_five_operators_at_every_depth() -> None:
    oracle = Calculator(delegate=True, dice_seed=(), uniform=True)
    for depth in (0, 2):
        move = oracle.move(View(goal="Compute 1+2+3+4-5-6-7-8", depth=depth))
        assert (move.thought, asked(move)) == ("(1+2+3+4-5-6)+(-7-8)", ("Compute 1+2+3+4-5-6", "Compute -7-8"))
        assert oracle.move(View(goal="Compute 1+2+3+4+5+6", depth=depth)).answer == "21"


def test_mixed_demonstrations_are_uniform_four_times_in_five() -> None:
    manner = make_manner("arithmetic", style="mixed")
    drawn = Counter(manner.is_uniform("arithmetic:train/0", seed) for seed in range(1000))
    assert 760 < drawn[True] < 840


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"style": "unform"}, "countdown has no style 'unform': did you mean uniform"),
        ({"mistakes": 1.5}, "countdown: mistakes is a share from 0 to 1; got 1.5"),
        ({"mistakes": True}, "countdown: mistakes is a share from 0 to 1; got True"),
        ({"ask_tokens": 5}, "countdown: ask_tokens is true or false; got 5"),
        ({"mistake": 0.5}, "countdown has no option 'mistake': did you mean mistakes"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_taskset("countdown", **options)
    assert str(caught.value).startswith(message)


def test_mistakes_differ_from_the_dice_of_the_oracle() -> None:
    """Mistakes are drawn apart, so the parts of a demonstration are those of one without mistakes."""
    goals = [[node.goal for node in show(Countdown(mistakes=mistakes), 0).nodes[:2]] for mistakes in (0.0, 0.01)]
    assert goals[0] == goals[1]
    assert Dice("mistake", "a").below(1000) != Dice("cut", "a").below(1000)
