"""SELFCEST: costs, group advantage and clone weights of the authors' code, by hand, and two baselines for clones."""

from __future__ import annotations

from functools import partial
from itertools import product

import anyio
import pytest

import ramet
from ramet.credit.adherence import marks_answer, num_calls, num_published_calls, num_repairs
from ramet.credit.selfcest import Selfcest, length_cost, other_trees_reward, ratio
from ramet.types import Piece, Prompt, Refusal, Stop, Turn
from tests.agent.scripts import call, delegate
from tests.credit.trees import column, group, plant, singles

MATHS = Selfcest(clone_share=0.4, call_cost=0.0, length_cap=0.5, floor=0.0)
RATIO = Selfcest(clone_weight="ratio")
LOW = plant("low", [0.0])  # to compare with


def six(values: list[float]) -> list[float]:
    return [round(value, 6) for value in values]


# The cost of tokens, calls and repairs.


@pytest.mark.parametrize(
    ("tokens", "root", "clone"),
    [
        (0, 0.0, 0.0),
        (512, 0.0, 0.0),
        (640, 0.118041, 0.044240),
        (768, 0.189636, 0.078694),
        (1024, 0.259399, 0.126424),
        (1536, 0.294505, 0.172933),
        (2048, 0.299256, 0.190043),
        (4096, 0.300000, 0.199818),
    ],
)
def test_the_cost_of_length_rises_to_a_limit(tokens: int, root: float, clone: float):
    assert round(length_cost(tokens, free=512, scale=256.0, most=0.3), 6) == root
    assert round(length_cost(tokens, free=512, scale=512.0, most=0.2), 6) == clone
    root_only = Selfcest(normalise=False).credit([group(plant("a", [1.0], tokens=[tokens]), LOW)])
    assert round(root_only["a", 0].reward, 6) == round(1 - root, 6)
    both = Selfcest(normalise=False).credit([group(plant("a", [1.0, 1.0], [None, 0], tokens=[1, tokens]), LOW)])
    assert round(both["a", 0].reward, 6) == round(1 - clone, 6)


def test_only_the_longest_clone_costs_at_any_depth():
    long_leaf = plant("a", [1.0] * 4, [None, 0, 0, 2], tokens=[100, 700, 640, 1024])
    assert round(Selfcest().credit([group(long_leaf, LOW)])["a", 0].reward, 6) == round(1 - 0.126424, 6)


def test_every_clone_costs_its_price_at_any_depth():
    tree = plant("a", [1.0] * 4, [None, 0, 0, 2])
    priced = Selfcest(clone_cost=0.05, normalise=False).credit([group(tree, LOW)])
    assert round(priced["a", 0].reward, 6) == 0.85
    assert Selfcest().credit([group(tree, LOW)])["a", 0].reward == 1.0


@pytest.mark.parametrize(("calls", "cost"), [(0, 0.0), (1, 0.0), (2, 0.0), (3, 0.1), (5, 0.3)])
def test_two_calls_are_free(calls: int, cost: float):
    tree = plant("a", [1.0], words=[delegate("x") * calls + "Answer: 2"])
    assert round(Selfcest().credit([group(tree, LOW)])["a", 0].reward, 6) == round(1 - cost, 6)


def test_all_costs_together():
    words = [delegate("x", "y") * 4, "Answer: 1", "Answer: 2"]
    tree = plant("a", [1.0, 1.0, 1.0], [None, 0, 0], tokens=[640, 1024, 600], words=words, repairs=1)
    credits = Selfcest().credit([group(tree, LOW)])
    assert six(column(credits, "reward")) == [0.505535, 0.555535, 0.555535, 0.0]


def test_the_reward_of_a_wrong_and_long_tree_is_below_zero():
    tree = plant("a", [0.0], tokens=[640], repairs=2)
    assert round(Selfcest().credit([group(tree, LOW)])["a", 0].reward, 6) == -0.218041


def test_the_settings_for_mathematics_cap_the_length_cost_and_have_a_floor():
    tree = plant("a", [1.0, 1.0], [None, 0], tokens=[4096, 4096], words=[delegate("x") * 9, "Answer: 1"])
    wrong = plant("b", [0.0, 0.0], [None, 0], tokens=[640, 10])
    credits = MATHS.credit([group(tree, wrong)])
    assert six(column(credits, "reward")) == [0.500183, 0.200073, 0.0, 0.0]
    assert MATHS.credit([group(plant("c", [1.0], tokens=[640]), LOW)])["c", 0].reward == pytest.approx(1 - 0.118041)


# The group.


@pytest.mark.parametrize(
    ("scores", "exact", "padded"),
    [
        ((1.0, 0.0, 0.0, 0.0), [1.5, -0.5, -0.5, -0.5], [1.499997, -0.499999, -0.499999, -0.499999]),
        ((1.0, 1.0, 0.0, 0.0), [0.866025, 0.866025, -0.866025, -0.866025], [0.866024, 0.866024, -0.866024, -0.866024]),
        ((1.0, 1.0, 1.0, 0.0), [0.5, 0.5, 0.5, -1.5], [0.499999, 0.499999, 0.499999, -1.499997]),
    ],
)
def test_advantages_are_in_standard_deviations_of_the_group(
    scores: tuple[float, ...], exact: list[float], padded: list[float]
):
    assert six(column(Selfcest(epsilon=0.0).credit([singles(*scores)]), "advantage")) == exact
    assert six(column(Selfcest().credit([singles(*scores)]), "advantage")) == padded


def test_without_normalising_the_advantage_is_the_difference():
    credits = Selfcest(normalise=False).credit([singles(1.0, 0.0, 0.0, 0.0)])
    assert column(credits, "advantage") == [0.75, -0.25, -0.25, -0.25]


def test_clones_are_not_part_of_the_group_mean():
    alone = Selfcest().credit([singles(1.0, 0.0)])
    many = plant("a", [1.0] * 6, [None, 0, 0, 0, 0, 0])
    assert Selfcest().credit([group(many, LOW)])["a", 0] == alone["sums/1:s0", 0]


def test_a_group_of_one_may_take_its_reward_as_its_advantage():
    rule = Selfcest(group_of_one="reward", epsilon=0.0)
    credits = rule.credit([group(plant("a", [0.5, 1.0], [None, 0]))])
    assert column(credits, "advantage") == [0.5, 0.5]
    assert column(credits, "baseline") == [0.0, 0.0]


# The weight of a clone.


@pytest.mark.parametrize(
    ("words", "tokens", "well_formed"),
    [
        ("so it is Answer: 12", 500, True),
        ("FINAL ANSWER: 12", 500, True),
        ("the answer is 12", 193, False),
        ("the answer is 12", 192, True),
        ("", 1, True),
    ],
)
@pytest.mark.parametrize("rule", [Selfcest(), RATIO], ids=["gate", "ratio"])
def test_a_long_clone_that_marks_no_answer_is_gated(rule: Selfcest, words: str, tokens: int, well_formed: bool):
    tree = plant("a", [1.0, 1.0], [None, 0], tokens=[10, tokens], words=["Answer: 1", words])
    credits = rule.credit([group(tree, LOW)])
    assert credits["a", 1].reward == (1.0 if well_formed else 0.0)
    assert credits["a", 1].advantage == (credits["a", 0].advantage if well_formed else 0.0)


def test_the_gate_applies_to_positive_and_negative_advantages():
    silent = ["Answer: 1", "hm"]
    good = plant("a", [1.0, 1.0], [None, 0], tokens=[10, 500], words=silent)
    bad = plant("b", [0.0, 1.0], [None, 0], tokens=[10, 500], words=silent)
    assert column(Selfcest().credit([group(good, bad)]), "advantage")[1::2] == [0.0, 0.0]


def weight_of(rule: Selfcest, score: float, *, repairs: int = 0, tokens: int = 10) -> float:
    """A clone's advantage over its root's."""
    tree = plant("a", [score, 1.0], [None, 0], tokens=[tokens, 10], repairs=repairs)
    credits = rule.credit([group(tree, plant("z", [0.77]))])
    return round(credits["a", 1].advantage / credits["a", 0].advantage, 6)


@pytest.mark.parametrize(
    ("case", "score", "repairs", "tokens", "ratio_", "gate", "maths_ratio"),
    [
        ("a right answer", 1.0, 0, 10, 1.0, 1.0, 0.4),
        ("a wrong one with partial credit", 0.2, 0, 10, 1.0, 1.0, 0.4),
        ("a reward of zero", 0.0, 0, 10, 0.0, 1.0, 0.0),
        ("below zero, or at the floor", 0.0, 0, 640, 1.0, 1.0, 0.0),
        ("one repaired call", 0.5, 1, 10, 1.111111, 1.0, 0.444444),
        ("two repaired calls", 1.0, 2, 10, 1.111111, 1.0, 0.444444),
        ("repairs that outweigh the reward", 0.03, 1, 10, -1.5, 1.0, -0.6),
        ("repairs just below the reward", 0.06, 1, 10, 1.5, 1.0, 1.5),
    ],
)
def test_clone_weights_as_a_ratio_and_as_a_gate(
    case: str, score: float, repairs: int, tokens: int, ratio_: float, gate: float, maths_ratio: float
):
    del case
    maths = Selfcest(clone_weight="ratio", clone_share=0.4, call_cost=0.0, length_cap=0.5, floor=0.0)
    assert weight_of(RATIO, score, repairs=repairs, tokens=tokens) == ratio_
    assert weight_of(Selfcest(), score, repairs=repairs, tokens=tokens) == gate
    assert weight_of(maths, score, repairs=repairs, tokens=tokens) == maths_ratio
    assert weight_of(MATHS, score, repairs=repairs, tokens=tokens) == 0.4


def test_a_ratio_is_bounded_and_a_zero_counts_as_a_tiny_positive_number():
    assert ratio(0.4, 1.0, bound=1.5) == 0.4
    assert ratio(0.06, -0.04, bound=1.5) == -1.5
    assert ratio(1.0, 0.0, bound=1.5) == ratio(1.0, -0.0, bound=1.5) == 1.5
    assert ratio(0.0, 0.0, bound=1.5) == 0.0
    assert ratio(-0.3, -0.3, bound=1.5) == 1.0


def test_the_gate_can_be_switched_off():
    tree = plant("a", [1.0, 1.0], [None, 0], tokens=[10, 500], words=["Answer: 1", "hm"])
    credits = Selfcest(clone_weight="one").credit([group(tree, LOW)])
    assert credits["a", 1].advantage == credits["a", 0].advantage


def test_clones_of_clones_get_the_advantage_of_the_root_above_them():
    credits = Selfcest().credit([group(plant("a", [1.0, 0.0, 0.0], [None, 0, 1]), LOW)])
    assert len({credits["a", i].advantage for i in range(3)}) == 1


# Baselines for clones.


def test_a_difference_reward_compares_with_trees_without_the_clone():
    with_two = plant("a", [1.0, 1.0, 1.0], [None, 0, 0])
    with_one = plant("b", [0.2, 1.0], [None, 0])
    rule = Selfcest(baseline="difference", normalise=False)
    credits = rule.credit([group(with_two, with_one, plant("c", [0.6]))])
    assert six(column(credits, "baseline")) == [0.6, 0.6, 0.4, 0.6, 0.6, 0.6]
    assert six(column(credits, "advantage")) == [0.4, 0.4, 0.6, -0.4, -0.4, 0.0]


def test_a_counterfactual_baseline_compares_with_other_samples_at_the_same_path():
    with_two = plant("a", [1.0, 1.0, 1.0], [None, 0, 0])
    with_one = plant("b", [0.2, 1.0], [None, 0])
    rule = Selfcest(baseline="counterfactual", normalise=False)
    credits = rule.credit([group(with_two, with_one, plant("c", [0.6]))])
    assert six(column(credits, "baseline")) == [0.6, 0.2, 0.4, 0.6, 1.0, 0.6]  # no other tree had a second clone
    assert six(column(credits, "advantage")) == [0.4, 0.8, 0.6, -0.4, -0.8, 0.0]


@pytest.mark.parametrize("baseline", ["difference", "counterfactual"])
def test_in_a_group_of_two_the_other_tree_is_the_baseline_and_a_group_of_one_has_none(baseline: str):
    rule = Selfcest(baseline=baseline, normalise=False, group_of_one="reward")  # pyright: ignore[reportArgumentType]
    forked = plant("a", [0.7, 1.0], [None, 0])
    assert rule.credit([group(forked, plant("b", [0.2]))])["a", 1].baseline == 0.2
    assert rule.credit([group(forked)])["a", 1].baseline == 0.0


def test_without_a_matching_tree_the_baseline_is_the_mean_of_all_others():
    assert other_trees_reward(0, [1.0, 0.0, 0.6], [True, True, False], with_clone=False) == 0.6
    assert other_trees_reward(0, [1.0, 0.0, 0.6], [True, True, False], with_clone=True) == 0.0
    assert other_trees_reward(0, [1.0, 0.0, 0.6], [True, True, True], with_clone=False) == 0.3


@pytest.mark.parametrize(("baseline", "shrinks"), [("difference", 1.0), ("counterfactual", 1.0), ("group", 2 / 3)])
def test_baselines_for_clones_leave_their_gradient_unbiased(baseline: str, shrinks: float):
    """All outcomes of three trees: a root delegates with chance q, its clone is right with chance p; else 0.4."""
    q, p = 0.6, 0.3
    chances = {"none": 1 - q, "wrong": q * (1 - p), "right": q * p}
    rule = Selfcest(baseline=baseline, normalise=False)  # pyright: ignore[reportArgumentType]
    total = 0.0
    for outcome in product(chances, repeat=3):
        chance = chances[outcome[0]] * chances[outcome[1]] * chances[outcome[2]]
        trees = [
            plant(f"t{i}", [0.4]) if one == "none" else plant(f"t{i}", [float(one == "right")] * 2, [None, 0])
            for i, one in enumerate(outcome)
        ]
        credits = rule.credit([group(*trees)])
        for i, one in enumerate(outcome):
            if one != "none":
                total += chance * credits[f"t{i}", 1].advantage * ((one == "right") - p) / 3
    assert total == pytest.approx(q * p * (1 - p) * shrinks)


# Adherence to the dialect.


def test_only_calls_for_clones_are_counted():
    text = delegate("x") + call("craft", item="a") + delegate("y", "z")
    tree = plant("a", [1.0], words=[text])
    assert num_calls(tree, tree.root) == 2
    broken = plant("b", [1.0], words=["<tool_call>{'name': 'delegate', 'arguments': {'goals': ['x'"])
    assert num_calls(broken, broken.root) == 1


@pytest.mark.parametrize("dialect", ["tools", "tools-returns"])
def test_counted_as_published_every_tool_call_counts_whatever_it_calls(dialect: str):
    text = delegate("x") + call("craft", item="a") + delegate("y", "z") + "<tool_call>{'name': 'loo"
    tree = plant("a", [1.0], words=[text], dialect=dialect)
    assert (num_calls(tree, tree.root), num_published_calls(tree, tree.root)) == (2, 4)
    tree.root.pieces[0] = Piece(sampled=False, text="Write <tool_call> and </tool_call> around a call")
    assert num_published_calls(tree, tree.root) == 4
    other = plant("b", [1.0], words=["<tool_call> is only text here"], dialect="python")
    assert num_published_calls(other, other.root) == num_calls(other, other.root) == 0


@pytest.mark.parametrize(("calls", "cost"), [(0, 0.0), (1, 0.0), (2, 0.0), (3, 0.1), (5, 0.3), (12, 1.0)])
def test_published_calls_cost_a_tenth_each_after_two(calls: int, cost: float):
    """max(0, 0.1 * calls - 0.2), over every `<tool_call>` in the root's text and none in a clone's."""
    text = "".join((delegate("x"), call("craft", item="a"))[i % 2] for i in range(calls))
    tree = plant("a", [1.0, 1.0], [None, 0], words=[text + "Answer: 2", call("craft", item="a") * 9 + "Answer: 2"])
    rule = Selfcest(call_count="published")
    assert round(rule.credit([group(tree, LOW)])["a", 0].reward, 6) == round(1 - cost, 6)
    ours = max(0, (calls + 1) // 2 - 2) / 10  # every second call is for clones
    assert round(Selfcest().credit([group(tree, LOW)])["a", 0].reward, 6) == round(1 - ours, 6)


def test_in_python_every_turn_with_a_request_is_a_call_and_ending_with_an_answer_marks_it():
    tree = plant("a", [1.0], words=["finish(2)"], dialect="python")
    refused = [Refusal(goal="x", reason="no clones left")]
    for children, refusals in ([1, 2], []), ([], refused), ([], []):
        turn = Turn(tokens=1, finish="stop", started_s=0.0, sampled_s=0.0, children=children, refusals=refusals)
        tree.root.turns.append(turn)
    assert num_calls(tree, tree.root) == 2
    assert marks_answer(tree, tree.root)
    tree.root.stop = Stop.BUDGET
    assert not marks_answer(tree, tree.root)


def test_calls_and_repairs_of_a_tree_that_really_ran():
    def script(prompt: Prompt) -> str:
        if prompt.depth:
            return "Answer: fine"
        sloppy = delegate("x").removesuffix("}</tool_call>") + "</tool_call>"
        return [sloppy + delegate("y"), delegate("z"), "Answer: done"][prompt.turn]

    tree = anyio.run(partial(ramet.run, "q", engine=ramet.ScriptedEngine(script)))
    assert (num_calls(tree, tree.root), num_repairs(tree.root)) == (3, 1)
    assert all(marks_answer(tree, node) for node in tree.nodes)


@pytest.mark.parametrize(
    ("dialect", "turns"),
    [
        ("terse", ["!nothing of the kind", "> part", "= 4"]),
        ("python", ["<python>\nwhat is this\n</python>", "<python>\nfinish(4)\n</python>"]),
    ],
)
def test_in_dialects_without_repairs_an_invalid_turn_is_a_fault_and_costs_nothing(dialect: str, turns: list[str]):
    def script(prompt: Prompt) -> str:
        return turns[-1] if prompt.depth else turns[prompt.turn]

    tree = anyio.run(partial(ramet.run, "q", engine=ramet.ScriptedEngine(script), dialect=dialect))
    assert tree.answer == "4"
    assert (sum(turn.faults for turn in tree.root.turns), num_repairs(tree.root)) == (1, 0)
    assert marks_answer(tree, tree.root)
    assert num_calls(tree, tree.root) == len(tree.nodes) - 1
