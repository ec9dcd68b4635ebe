"""The uniform oracle of crafting: the same acts at every depth, mistakes, how they are mended, honest reports."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import anyio
import pytest

from ramet.budget import Budget
from ramet.errors import ConfigError
from ramet.interfaces import Ask, Do, Move, View
from ramet.tasks.craft.mistakes import Kind, Mistake, draw_mistake, misname, possible_kinds, wrong_craft
from ramet.tasks.craft.plan import Ways, craft_line, ways_of, work_out
from ramet.tasks.craft.taskset import Craft
from ramet.tasks.craft.worker import NodeWork, Worker
from ramet.tasks.craft.world import Book, CraftWorld, Recipe, goal_for
from ramet.tasks.dice import Dice
from ramet.tasks.play import demonstrate
from ramet.tasks.validate import tree_faults, validate
from ramet.types import Stop, Tree

BOOK = Book(
    recipes={
        "plank": (Recipe(slots=((("log",), 1),), makes=4),),
        "stick": (Recipe(slots=((("plank",), 2),), makes=4),),
        "torch": (Recipe(slots=((("stick",), 1), (("plank",), 1)), makes=1),),
    },
    depths={"log": 0, "plank": 1, "stick": 2, "torch": 3},
)
WAYS: Ways = ways_of(BOOK)
STICKS = goal_for({"stick": 2})
BUDGET = Budget(tokens=100_000, nodes=128, depth=6, turns=12, node_tokens=1200, window=2560, parent_share=0.25)


def craft(target: str, count: int, **ingredients: int) -> Do:
    return Do(name="craft", arguments={"ingredients": ingredients, "target": target, "count": count})


def info(*items: str) -> Do:
    return Do(name="get_info", arguments={"items": list(items)})


def work_on(goal: str, mistake: Mistake | None = None, *, depth: int = 1, delegate: bool = True) -> NodeWork:
    work = NodeWork(Worker(WAYS, items=BOOK.depths, delegate=delegate, mistakes=0.0, seed=()), goal, depth)
    work.mistake = mistake
    return work


def drive(work: NodeWork, world: CraftWorld, *told: str) -> list[Move]:
    """The moves up to the answer. Functions act on the world; clones say what is told, and craft it if they say so."""
    said = iter(told)
    moves = work.moves()
    made = [next(moves)]
    while made[-1].answer is None:
        results = [str(world.functions[do.name](**do.arguments)) for do in made[-1].does]
        for _ in made[-1].asks:
            results.append(next(said))
            number, _, item = results[-1].removeprefix("Crafted ").partition("x ")
            if results[-1].startswith("Crafted"):
                world.inventory[item] = world.inventory.get(item, 0) + int(number)
        made.append(moves.send(tuple(results)))
    assert next(said, None) is None
    return made


def flags(moves: Sequence[Move]) -> list[bool]:
    return [move.mistake for move in moves]


# Without mistakes.


@pytest.mark.parametrize("depth", [0, 4])
def test_a_node_looks_up_delegates_crafts_and_answers_at_every_depth(depth: int) -> None:
    moves = drive(work_on("Craft 2x torch", depth=depth), CraftWorld(BOOK, {"log": 3}), "Crafted 2x stick")
    assert moves == [
        Move(does=(info("torch"),)),
        Move(
            thought="2x torch: 2 crafts of 1 from 2x stick, 2x plank", does=(info("plank"),), asks=(Ask(goal=STICKS),)
        ),
        Move(
            thought="2x plank: 1 craft of 4 from 1x log",
            does=(craft("plank", 4, log=1), craft("torch", 2, stick=2, plank=2)),
        ),
        Move(answer="Crafted 2x torch"),
    ]


def test_a_node_that_may_not_delegate_crafts_everything_itself() -> None:
    moves = drive(work_on("Craft 2x torch", delegate=False), CraftWorld(BOOK, {"log": 9}))
    assert [move.does[0].arguments["items"] for move in moves[:2]] == [["torch"], ["plank", "stick"]]
    assert moves[2].does == (
        craft("plank", 4, log=1),
        craft("stick", 4, plank=2),
        craft("torch", 2, stick=2, plank=2),
    )
    assert moves[3].answer == "Crafted 2x torch"


def test_a_refused_clone_s_part_is_crafted_by_the_node() -> None:
    moves = drive(
        work_on("Craft 1x torch"), CraftWorld(BOOK, {"log": 9}), "refused: no clones left of 3: do it yourself"
    )
    assert moves[2].does == (info("stick"),)
    assert [do.arguments["target"] for do in moves[3].does] == ["plank", "stick", "torch"]
    assert moves[4].answer == "Crafted 1x torch"


@pytest.mark.parametrize(
    ("goal", "answer"),
    [
        ("Craft 2x log", "Could not craft 2x log: log is a base material"),
        ("Craft 2x planks", "Could not craft 2x planks: there is no item planks"),
        ("tidy up", "Could not craft : the goal names no item"),
    ],
)
def test_a_goal_that_cannot_be_met_is_reported(goal: str, answer: str) -> None:
    assert drive(work_on(goal), CraftWorld(BOOK, {"log": 9}))[-1] == Move(answer=answer)


def test_a_missing_base_material_is_reported_by_the_clone_and_by_its_parent() -> None:
    clone = drive(work_on("Craft 8x plank"), CraftWorld(BOOK, {"log": 1}))
    assert clone[-1] == Move(answer="Could not craft 8x plank: 1x log is missing")
    parent = drive(
        work_on("Craft 1x torch"), CraftWorld(BOOK, {"log": 1}), "Could not craft 1x stick: 1x log is missing"
    )
    assert parent[-1] == Move(answer="Could not craft 1x torch: 1x log is missing")
    assert len(parent) == 3  # it did not try anything else


# Mistakes.


def test_a_wrong_number_of_crafts_is_repeated_and_then_corrected_from_the_error() -> None:
    mistake = Mistake(kind="once", repeats=1)
    moves = drive(work_on("Craft 6x plank", mistake), CraftWorld(BOOK, {"log": 9}))
    assert moves[1].thought == "6x plank: 1 craft of 4 from 1x log"  # no error: four of six were made
    assert moves[2] == Move(thought="2x plank: 1 craft of 4 from 1x log", does=(craft("plank", 4, log=1),))
    assert flags(moves) == [False, True, False, False]


def test_as_many_crafts_as_items_is_an_error_that_is_repeated_and_mended() -> None:
    moves = drive(work_on("Craft 4x plank", Mistake(kind="times", repeats=2)), CraftWorld(BOOK, {"log": 3}))
    assert moves[1].thought == "4x plank: 4 crafts of 4 from 4x log"
    assert flags(moves) == [False, True, True, True, False, False]
    assert moves[1].does == moves[2].does == moves[3].does
    assert moves[4] == Move(thought="4x plank: 1 craft of 4 from 1x log", does=(craft("plank", 4, log=1),))
    assert moves[5].answer == "Crafted 4x plank"


def test_too_many_crafts_are_an_error_or_use_up_too_much() -> None:
    sums = work_out(WAYS, {"plank": 4})
    found = [wrong_craft("times", WAYS, sums, Dice(seed)) for seed in range(20)]
    calls = [one[1].call for one in found if one is not None]
    assert len(calls) == 20
    assert {call.arguments["count"] for call in calls if call is not None} == {4, 16}
    assert all(call is not None and call.arguments["ingredients"] == {"log": 4} for call in calls)
    world = CraftWorld(BOOK, {"log": 4})
    assert world.craft({"log": 4}, "plank", 4) == "error: 4x plank takes exactly 1x log, not 4"
    assert world.craft({"log": 4}, "plank", 16) == "crafted 16x plank, 16 held now"


def test_an_ingredient_that_was_left_out_is_crafted_after_the_error() -> None:
    mistake = Mistake(kind="skip", repeats=1)
    moves = drive(work_on("Craft 1x torch", mistake), CraftWorld(BOOK, {"log": 3}), "Crafted 1x stick")
    wrong, right = craft("torch", 1, stick=1, plank=1), craft("plank", 4, log=1)
    assert [move.does for move in moves[2:5]] == [(wrong,), (wrong,), (right, wrong)]
    assert flags(moves) == [False, False, True, True, False, False]
    assert moves[4].thought == "1x plank: 1 craft of 4 from 1x log"


def test_a_clone_that_repeated_an_error_twice_reports_what_is_missing() -> None:
    mistake = Mistake(kind="skip", repeats=2)
    moves = drive(work_on("Craft 1x torch", mistake), CraftWorld(BOOK, {"log": 3}), "Crafted 1x stick")
    assert moves[-1] == Move(answer="Could not craft 1x torch: 1x plank is missing")
    assert flags(moves) == [False, False, True, True, True, False]


def test_a_false_claim_is_a_mistake_and_the_parent_asks_again_after_the_error() -> None:
    claim = Mistake(kind="skip", claims=True)
    clone = drive(work_on("Craft 1x torch", claim), CraftWorld(BOOK, {"log": 3}), "Crafted 1x stick")
    assert clone[-1] == Move(answer="Crafted 1x torch", mistake=True)
    world = CraftWorld(BOOK, {"log": 3, "stick": -2})  # the first clone claims two sticks and makes none
    parent = drive(work_on("Craft 2x torch"), world, "Crafted 2x stick", "Crafted 2x stick")
    assert parent[3] == Move(thought="2x stick is missing", asks=(Ask(goal=f"{STICKS}. The first try failed"),))
    assert parent[-1] == Move(answer="Crafted 2x torch")


def test_a_clone_s_report_makes_the_parent_ask_again_and_a_second_one_is_passed_on() -> None:
    failed = "Could not craft 2x stick: 4x plank is missing"
    moves = drive(work_on("Craft 2x torch"), CraftWorld(BOOK, {"log": 3}), failed, "Crafted 2x stick")
    assert moves[2] == Move(thought="2x stick is missing", asks=(Ask(goal=f"{STICKS}. The first try failed"),))
    assert moves[-1].answer == "Crafted 2x torch"
    moves = drive(work_on("Craft 2x torch"), CraftWorld(BOOK, {"log": 3}), failed, failed)
    assert moves[-1].answer == "Could not craft 2x torch: 4x plank is missing"


def test_a_clone_that_tries_again_makes_no_mistake() -> None:
    worker = Worker(WAYS, items=BOOK.depths, delegate=True, mistakes=1.0, seed=())
    assert NodeWork(worker, STICKS, 1).mistake is not None
    assert NodeWork(worker, f"{STICKS}. The first try failed", 1).mistake is None


def test_a_base_material_is_asked_for_reported_and_then_taken_from_the_inventory() -> None:
    report = "Could not craft 1x log: log is a base material"
    moves = drive(work_on("Craft 3x plank", Mistake(kind="base")), CraftWorld(BOOK, {"log": 3}), report)
    assert moves[1] == Move(asks=(Ask(goal=goal_for({"log": 1})),), mistake=True)
    assert moves[2].does == (craft("plank", 4, log=1),)
    assert moves[3] == Move(answer="Crafted 3x plank")


def test_after_a_refusal_because_of_a_wrong_name_the_right_one_is_asked_for() -> None:
    told = "refused: there is no item stick_0 [goal: Craft the following items: 2x stick_0]"
    moves = drive(
        work_on("Craft 2x torch", Mistake(kind="misname")), CraftWorld(BOOK, {"log": 3}), told, "Crafted 2x stick"
    )
    assert moves[2] == Move(thought="2x stick is missing", asks=(Ask(goal=STICKS),))
    assert moves[-1].answer == "Crafted 2x torch"


def test_demonstrations_whose_impossible_goals_are_refused_are_mended_too() -> None:
    taskset = Craft(style="mixed", mistakes=0.3)

    async def show() -> list[Tree]:
        tasks = [taskset.task("train_shallow", index) for index in range(60)]
        shown = [await demonstrate(taskset, task, budget=BUDGET, allow_impossible=False, seed=3) for task in tasks]
        return [tree for tree in shown if any(turn.refusals for node in tree.nodes for turn in node.turns)]

    trees = anyio.run(show)
    kinds = {refusal.kind for tree in trees for node in tree.nodes for turn in node.turns for refusal in turn.refusals}
    assert kinds == {"impossible", "same_goal"}
    assert all(map(is_right, trees))


def test_a_wrong_name_is_reported_and_the_right_one_asked_for() -> None:
    report = "Could not craft 2x stick_0: there is no item stick_0"
    moves = drive(
        work_on("Craft 2x torch", Mistake(kind="misname")), CraftWorld(BOOK, {"log": 3}), report, "Crafted 2x stick"
    )
    assert moves[1].mistake
    assert STICKS not in [ask.goal for ask in moves[1].asks]
    assert moves[2] == Move(thought="2x stick is missing", asks=(Ask(goal=STICKS),))
    assert moves[-1].answer == "Crafted 2x torch"
    assert {misname("a3_i2_10", CRAFT.items.book.depths, Dice(seed)) for seed in range(30)} == {
        "a3_2_10",
        "a3_i2_10_0",
        "a3_i2_10_00",
    }  # a3_i2 is an item


def test_too_few_items_are_asked_for_and_the_rest_after_the_error() -> None:
    moves = drive(
        work_on("Craft 2x torch", Mistake(kind="few")),
        CraftWorld(BOOK, {"log": 3}),
        "Crafted 1x stick",
        "Crafted 1x stick",
    )
    assert moves[1].asks == (Ask(goal=goal_for({"stick": 1})),)
    assert moves[3].thought == "1x stick is missing"
    assert moves[-1] == Move(answer="Crafted 2x torch")
    none = drive(work_on("Craft 1x torch", Mistake(kind="few")), CraftWorld(BOOK, {"log": 3}), "Crafted 1x stick")
    assert none[1].asks == ()
    assert none[3].asks == (Ask(goal=goal_for({"stick": 1})),)


def test_a_part_for_a_clone_that_the_node_keeps_lacks_its_ingredients() -> None:
    ways: Ways = {**WAYS, "lamp": ways_of(BOOK)["torch"]}
    worker = Worker(ways, items={**BOOK.depths, "lamp": 3}, delegate=True, mistakes=0.0, seed=())
    work = NodeWork(worker, "Craft 1x torch", 1)
    work.mistake = Mistake(kind="keep")
    moves = drive(work, CraftWorld(BOOK, {"log": 3}))
    assert moves[1].does == (info("stick", "plank"),)
    assert moves[1].asks == ()
    assert [do.arguments["target"] for do in moves[2].does] == ["stick", "torch"]  # without planks
    assert [do.arguments["target"] for do in moves[3].does] == ["plank", "stick", "torch"]
    assert flags(moves) == [False, True, True, False, False]


def test_an_own_goal_is_refused_and_then_split() -> None:
    refusal = "refused: this is your own goal: ask for smaller parts of your goal, or do it yourself"
    moves = drive(
        work_on("Craft 2x torch", Mistake(kind="own goal")), CraftWorld(BOOK, {"log": 3}), refusal, "Crafted 2x stick"
    )
    assert moves[1] == Move(asks=(Ask(goal=goal_for({"torch": 2})),), mistake=True)
    assert moves[2].asks == (Ask(goal=STICKS),)
    assert moves[-1] == Move(answer="Crafted 2x torch")


def test_only_mistakes_that_are_possible_are_drawn() -> None:
    sticks = work_out(WAYS, {"stick": 2}, [])
    assert possible_kinds(WAYS, sticks, delegate=False, parts={}) == ["times", "amount", "skip"]
    with_clones = possible_kinds(WAYS, work_out(WAYS, {"torch": 2}, ["stick"]), delegate=True, parts={"stick": 2})
    assert with_clones == ["own goal", "base", "few", "misname", "keep", "times", "once", "amount", "skip"]
    kinds: list[Kind] = ["skip"]
    roots = [draw_mistake(Dice(seed), kinds, depth=0) for seed in range(40)]
    assert {(one.repeats, one.claims) for one in roots} == {(0, False), (1, False)}
    clones = [draw_mistake(Dice(seed), kinds, depth=1) for seed in range(40)]
    assert {one.repeats for one in clones} == {0, 1, 2}
    assert 2 <= sum(one.claims for one in clones) <= 16


def test_the_line_of_a_craft_says_how_often_and_from_what() -> None:
    assert craft_line(WAYS, "stick", 5) == "5x stick: 2 crafts of 4 from 4x plank"
    assert craft_line(WAYS, "stick", 5, times=5) == "5x stick: 5 crafts of 4 from 10x plank"


# Demonstrations.

CRAFT = Craft(style="uniform")


@functools.cache
def shown(style: str, mistakes: float, split: str, number: int, *, dialect: str = "tools") -> tuple[Tree, ...]:
    taskset = Craft(style=style, mistakes=mistakes)

    async def run() -> tuple[Tree, ...]:
        return tuple(
            [
                await demonstrate(taskset, taskset.task(split, index), seed=index, budget=BUDGET, dialect=dialect)
                for index in range(number)
            ]
        )

    return anyio.run(run)


def is_right(tree: Tree) -> bool:
    return tree.root.verdict is not None and tree.root.verdict.is_right


def test_the_uniform_oracle_is_right_alone_and_delegating_in_both_dialects() -> None:
    report = anyio.run(functools.partial(validate, CRAFT, "easy", num_tasks=6))
    assert report.faults == []
    assert report.delegating > 0


def test_every_node_of_deeper_goals_is_right_within_the_budget_of_the_style() -> None:
    async def run() -> list[Tree]:
        return [await demonstrate(CRAFT, CRAFT.task("medium", index)) for index in range(6)]

    trees = anyio.run(run)
    assert [fault for tree in trees for fault in tree_faults(tree, delegate=True)] == []
    assert sum(len(tree.nodes) for tree in trees) > 60


def test_without_mistakes_every_demonstration_is_right_and_all_of_it_is_taught() -> None:
    trees = shown("uniform", 0.0, "train_mixed", 30)
    assert all(is_right(tree) for tree in trees)
    assert all(piece.taught for tree in trees for node in tree.nodes for piece in node.pieces)
    assert max(tree.depth for tree in trees) >= 4


def test_demonstrations_with_mistakes_are_mended_and_some_nodes_report_honestly() -> None:
    trees = shown("mixed", 0.3, "train_shallow", 200)
    nodes = [node for tree in trees for node in tree.nodes]
    assert sum(map(is_right, trees)) >= 195
    honest = [tree for tree in trees if any((node.answer or "").startswith("Could not") for node in tree.nodes)]
    assert 0.05 <= len(honest) / len(trees) <= 0.25
    reports = [(node.answer or "") for node in nodes if (node.answer or "").startswith("Could not")]
    for reason in ("is a base material", "there is no item", "is missing"):
        assert sum(reason in report for report in reports) >= 2
    erring = [node for node in nodes if any(not piece.taught for piece in node.pieces)]
    assert 0.1 <= len(erring) / len(nodes) <= 0.3  # 0.3 of those in the uniform style
    assert all(node.pieces[0].taught for node in erring)
    mended = [node for node in erring if node.verdict is not None and node.verdict.is_right]
    assert len(mended) >= 0.8 * len(erring)


def test_no_answer_that_is_taught_claims_what_was_not_crafted() -> None:
    for tree in shown("mixed", 0.3, "train_shallow", 200):
        for node in tree.nodes:
            claims = node.stop is Stop.ANSWERED and (node.answer or "").startswith("Crafted")
            if claims and node.verdict is not None and node.verdict.how == "exact" and not node.verdict.is_right:
                assert not node.pieces[-1].taught


def test_demonstrations_with_mistakes_are_the_same_every_time() -> None:
    def texts(trees: Sequence[Tree]) -> list[tuple[str, bool]]:
        return [(piece.text, piece.taught) for tree in trees for node in tree.nodes for piece in node.pieces]

    first = texts(shown("mixed", 0.3, "train_shallow", 20))
    shown.cache_clear()
    assert texts(shown("mixed", 0.3, "train_shallow", 20)) == first


def test_mistakes_are_written_in_python_too() -> None:
    trees = shown("uniform", 1.0, "train_shallow", 6, dialect="python")
    assert sum(map(is_right, trees)) >= 5
    assert any(not piece.taught for tree in trees for node in tree.nodes for piece in node.pieces)


def test_moves_depend_only_on_goal_depth_and_history() -> None:
    taskset = Craft(style="uniform", mistakes=1.0)
    task = taskset.task("train_mixed", 3)
    first, second = (taskset.oracle(task, delegate=True, seed=1) for _ in range(2))
    views = [View(goal=goal_for({"m0_i2": n}), depth=d) for n in (1, 2, 3) for d in (1, 2)]
    assert [first.move(view) for view in views] == [second.move(view) for view in reversed(views)][::-1]


def test_mixed_takes_four_fifths_of_demonstrations_in_the_uniform_style() -> None:
    taskset = Craft(style="mixed")
    task = taskset.task("train_shallow", 0)
    uniform = [isinstance(taskset.oracle(task, delegate=True, seed=seed), Worker) for seed in range(200)]
    assert 145 <= sum(uniform) <= 175


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"style": "unifrom"}, r"craft has no style 'unifrom': did you mean uniform\?"),
        ({"style": "uniform", "mistakes": 1.5}, "mistakes is a share from 0 to 1; got 1.5"),
        ({"mistakes": 0.3}, "demonstrations with mistakes need the style uniform or mixed"),
    ],
)
def test_wrong_options_are_named(options: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Craft(**options)  # pyright: ignore[reportArgumentType]
