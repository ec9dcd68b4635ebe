"""Mixed difficulty: estimates and shares by hand, which tasks are drawn, and that success moves to the target."""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.agent.options import TreeOptions
from ramet.config import load
from ramet.credit import load_rule
from ramet.engine.scripted import ScriptedEngine
from ramet.errors import ConfigError, TrainError
from ramet.interfaces import Taskset
from ramet.tasks.codes import Codes, last_digit, pattern_in
from ramet.tasks.craft.taskset import Craft
from ramet.tasks.gym import Gym
from ramet.train.curriculum import Curriculum, level_counts, level_estimates, level_shares
from ramet.train.levels import SPAN, find_levels
from ramet.train.loop import train
from ramet.train.refill import collect_with_signal
from ramet.train.settings import TrainConfig
from ramet.train.step import Lesson, credited_rows
from ramet.types import Prompt, Tree
from tests.train import small

HALVES = 0.1 / math.log(2)  # a width with which 0.1 further from the target is half the weight
SIZES = "curriculum.sizes=[2, 4, 8, 16, 32]"
RULE = load_rule("rao")


def six(values: Sequence[float]) -> list[float]:
    return [round(value, 6) for value in values]


# Estimates.


def test_an_estimate_is_a_mean_over_trees_in_which_older_steps_count_less() -> None:
    # Of the first level 1 of 4 trees, then 3 of 4: (0.5 * 1 + 3 + 1 * 0.5) / (0.5 * 4 + 4 + 1).
    # Of the second 8 of 8, then none played: (0.5 * 8 + 0 + 1 * 0.5) / (0.5 * 8 + 0 + 1).
    outcomes = [[(1.0, 4), (8.0, 8)], [(3.0, 4), (0.0, 0)]]
    assert six(level_estimates(outcomes, num_levels=2, target=0.5, decay=0.5)) == [0.571429, 0.9]


def test_a_level_that_was_never_played_is_taken_to_be_at_the_target() -> None:
    assert level_estimates([], num_levels=2, target=0.4, decay=0.9) == [0.4, 0.4]
    assert level_estimates([[(0.0, 9), (0.0, 0)]], num_levels=2, target=0.4, decay=0.9) == [0.04, 0.4]


def test_a_level_that_is_not_played_any_more_drifts_back_to_the_target() -> None:
    played, idle = [(0.0, 9)], [(0.0, 0)]
    drift = [level_estimates([played, *[idle] * more], num_levels=1, target=0.5, decay=0.5)[0] for more in range(4)]
    assert six(drift) == [0.05, 0.090909, 0.153846, 0.235294]  # 0.5 over 10, 5.5, 3.25 and 2.125


# Shares.


@pytest.mark.parametrize(
    ("estimates", "floor", "shares"),
    [
        ([0.9, 0.3], 0.0, [1 / 3, 2 / 3]),  # 0.3 + 0.2 = 0.5
        ([0.9, 0.3], 0.1, [1 / 3, 2 / 3]),  # the floor is made up for
        # Weights 1/16, 1/2 and 1/8. Easy: mean (0.9 / 16 + 0.6 / 2) / (9 / 16) = 19/30; hard: 0.2; part: 9/13.
        ([0.9, 0.6, 0.2], 0.0, [1 / 13, 8 / 13, 4 / 13]),
        ([1.0, 0.9], 0.0, [1 / 3, 2 / 3]),  # all too easy: weights 1/32 and 1/16
        ([1.0, 0.9], 0.1, [0.1 + 0.8 / 3, 0.1 + 1.6 / 3]),
        ([0.0, 0.1], 0.0, [1 / 3, 2 / 3]),  # all too hard
        ([0.5, 0.5, 0.5, 0.5], 0.05, [0.25] * 4),
        ([0.5, 0.0], 0.0, [1.0, 0.0]),
        ([1.0, 0.0, 0.0, 0.0], 0.2, [0.4, 0.2, 0.2, 0.2]),  # 0.5 is out of reach
        ([1.0, 0.2], 0.5, [0.5, 0.5]),
    ],
)
def test_shares_by_hand(estimates: list[float], floor: float, shares: list[float]) -> None:
    assert six(level_shares(estimates, target=0.5, floor=floor, width=HALVES)) == six(shares)


rates = st.lists(st.floats(0, 1), min_size=2, max_size=8)


@given(rates, st.floats(0.05, 0.95), st.floats(0, 1), st.floats(0.05, 1))
def test_shares_sum_to_one_keep_the_floor_and_aim_at_the_target(
    estimates: list[float], target: float, part: float, width: float
) -> None:
    floor = part / len(estimates)
    shares = level_shares(estimates, target=target, floor=floor, width=width)
    assert sum(shares) == pytest.approx(1)
    assert min(shares) >= floor - 1e-12
    expected = sum(share * estimate for share, estimate in zip(shares, estimates, strict=True))
    equal = sum(estimates) / len(estimates)
    if part == 0 and min(estimates) < target <= max(estimates):
        assert expected == pytest.approx(target)
    assert abs(expected - target) <= abs(equal - target) + 1e-9  # never further away than equal shares


@given(rates, st.randoms(use_true_random=False))
def test_the_order_of_levels_does_not_matter(estimates: list[float], dice: random.Random) -> None:
    order = dice.sample(range(len(estimates)), len(estimates))
    shares = level_shares(estimates, target=0.5, floor=0.02, width=0.1)
    mixed = level_shares([estimates[place] for place in order], target=0.5, floor=0.02, width=0.1)
    assert mixed == pytest.approx([shares[place] for place in order])


def test_counts_are_shares_of_the_tasks_rounded_by_chance() -> None:
    assert level_counts([0.25, 0.75], 2, offset=0.4) == [1, 1]  # the points 0.2 and 0.7
    assert level_counts([0.25, 0.75], 2, offset=0.6) == [0, 2]  # the points 0.3 and 0.8
    assert level_counts([0.5, 0.25, 0.25], 8, offset=0.0) == [4, 2, 2]


@given(rates, st.integers(1, 60), st.floats(0, 1, exclude_max=True))
def test_no_count_is_further_than_one_from_its_share(estimates: list[float], tasks: int, offset: float) -> None:
    shares = level_shares(estimates, target=0.5, floor=0.02, width=0.1)
    counts = level_counts(shares, tasks, offset=offset)
    assert sum(counts) == tasks
    assert all(abs(count - share * tasks) <= 1 + 1e-9 for count, share in zip(counts, shares, strict=True))


# Levels.


def config(*words: str) -> TrainConfig:
    return load(TrainConfig, words=["tasks_per_step=10", "group_size=2", "steps=20", *words])


def make(taskset: Taskset, given: TrainConfig, *, records: Sequence[dict[str, Any]] = ()) -> Curriculum:
    return Curriculum(find_levels(taskset, "train", given.curriculum), taskset, given, records=records)


def test_levels_by_size_hold_the_tasks_up_to_each_size_and_no_larger_ones() -> None:
    taskset = Codes()
    given = config("curriculum.sizes=[2, 8]", "tasks_per_step=30")
    drawn = make(taskset, given, records=[outcome(given, step, [0.5, 0.5]) for step in range(3)]).tasks(3)
    sizes = [(one.level, taskset.size_of(taskset.task("train", one.index))) for one in drawn]
    assert {size for level, size in sizes if level == 0} == {2}
    assert {size for level, size in sizes if level == 1} == {4, 8}
    assert [one.place for one in drawn] == list(range(30))
    assert all(3 * SPAN <= one.index < 4 * SPAN for one in drawn)


def test_levels_that_are_splits_may_be_named_with_their_taskset() -> None:
    words = 'curriculum.splits=["craft:train_easy", "train_medium", "train_hard"]'
    levels = find_levels(Craft(), "train", config(words).curriculum)
    assert [(level.name, level.split, len(level.members or ())) for level in levels] == [
        ("train_easy", "train_easy", 588),
        ("train_medium", "train_medium", 852),
        ("train_hard", "train_hard", 544),
    ]


def test_sizes_of_a_finite_split_are_levels_too() -> None:
    levels = find_levels(Craft(), "train_mixed", config("curriculum.sizes=[2, 4, 6]").curriculum)
    assert [level.name for level in levels] == ["upto_2", "upto_4", "upto_6"]
    assert sum(len(level.members or ()) for level in levels) == 1440


@pytest.mark.parametrize(
    ("taskset", "words", "said"),
    [
        (Codes(), "curriculum.splits=['train', 'lang']", "codes has no split 'lang': did you mean long?"),
        (Codes(), "curriculum.splits=['train', 'craft:hard']", "levels are splits of one taskset, here codes"),
        (Codes(), "curriculum.sizes=[32, 64]", "codes:train has no task of a size above 32 and up to 64"),
        (Codes(), "curriculum.sizes=[1, 2]", "codes:train has no task of a size up to 1"),
        (Gym(), "curriculum.sizes=[1, 2]", "tasks of gym have no sizes; give curriculum.splits"),
    ],
)
def test_levels_that_do_not_exist_are_one_line(taskset: Taskset, words: str, said: str) -> None:
    with pytest.raises(ConfigError, match=r"^.+\Z") as caught:
        find_levels(taskset, "train", config(words).curriculum)
    assert said in str(caught.value)


# What is drawn.


def outcome(given: TrainConfig, step: int, rates: Sequence[float]) -> dict[str, Any]:
    """The metrics of a step in which ten trees of every level were played."""
    names = [f"upto_{size:g}" for size in given.curriculum.sizes]
    return {
        "step": step,
        "success_by_level": dict(zip(names, rates, strict=True)),
        "trees_by_level": dict.fromkeys(names, 10),
    }


def test_a_step_uses_the_steps_before_it_that_overlap_leaves_known() -> None:
    for overlap in (0, 1, 3):
        given = config(SIZES, f"overlap={overlap}")
        records = [outcome(given, step, [1.0, 1.0, 1.0, 0.5, 0.0]) for step in range(6)]
        curriculum = make(Codes(), given, records=records)
        estimates = [curriculum.draw(step).estimates[0] for step in range(6 + overlap)]
        assert estimates[: overlap + 1] == [0.5] * (overlap + 1)  # nothing is known yet
        assert estimates[overlap + 1] == 10.5 / 11
        assert estimates[overlap + 2] == 19.5 / 20  # 0.9 * 10 + 10 + 0.5, of 0.9 * 10 + 10 + 1
        assert all(one < other for one, other in zip(estimates[overlap:], estimates[overlap + 1 :], strict=False))


def test_what_is_drawn_does_not_depend_on_what_else_is_known_by_then() -> None:
    given = config(SIZES, "overlap=2")
    records = [outcome(given, step, [1.0, 1.0, 0.8, 0.1 * step, 0.0]) for step in range(8)]
    early, late = make(Codes(), given, records=records[:4]), make(Codes(), given, records=records)
    assert [early.tasks(step) for step in range(6)] == [late.tasks(step) for step in range(6)]


def test_a_resumed_run_draws_the_same_tasks_and_another_seed_others() -> None:
    given = config(SIZES, "refill=1")
    records = [outcome(given, step, [1.0, 0.9, 0.8, 0.5, 0.1]) for step in range(5)]
    logged = [json.loads(json.dumps(record)) for record in records]
    one, other = make(Codes(), given, records=records), make(Codes(), given, records=logged)
    first = [one.tasks(step) for step in range(6)]
    assert other.tasks(5) == first[5]
    assert list(other.fresh_tasks(5)) == list(one.fresh_tasks(5))
    assert make(Codes(), config(SIZES, "refill=1", "seed=1"), records=records).tasks(5) != first[5]


def test_missing_metrics_are_named() -> None:
    given = config(SIZES, "overlap=1")
    curriculum = make(Codes(), given, records=[outcome(given, 0, [0.5] * 5)])
    assert len(curriculum.tasks(2)) == 10
    with pytest.raises(TrainError, match="the metrics of step 1 are missing: a curriculum needs those of all earlier"):
        curriculum.tasks(3)


def test_a_finite_level_is_gone_through_before_a_task_comes_again() -> None:
    # 112 and 16 tasks, half of each: every step draws five of the smaller level.
    given = config("curriculum.splits=['long', 'longer']", "curriculum.floor=0.5")
    played = {"success_by_level": {"long": 0.0, "longer": 0.0}, "trees_by_level": {"long": 10, "longer": 10}}
    curriculum = make(Codes(), given, records=[{"step": step} | played for step in range(6)])
    drawn = [one.index for step in range(6) for one in curriculum.tasks(step) if one.level == 1]
    assert len(drawn) == 30
    assert sorted(drawn[:16]) == list(range(16))
    assert len(set(drawn[16:])) == 14


def test_tasks_that_replace_others_are_none_of_the_step_and_come_by_the_same_shares() -> None:
    given = config("curriculum.sizes=[2, 8]", "curriculum.floor=0.0", "tasks_per_step=100", "refill=2")
    records = [outcome(given, 0, [1.0, 0.5])]
    curriculum = make(Codes(), given, records=records)
    shares = curriculum.draw(1).shares
    fresh, own = list(curriculum.fresh_tasks(1)), curriculum.tasks(1)
    assert [one.place for one in fresh] == list(range(100, 300))
    assert len({(one.level, one.index) for one in own + fresh}) == 300
    drawn = Counter(one.level for one in fresh)
    assert shares[1] > 0.95
    assert drawn[1] > 180


def test_a_level_that_runs_out_gives_no_task_twice_in_a_step() -> None:
    given = config("curriculum.splits=['long', 'longer']", "curriculum.floor=0.5", "refill=9")
    curriculum = make(Codes(), given)
    own, fresh = curriculum.tasks(0), list(curriculum.fresh_tasks(0))
    assert len({(one.level, one.index) for one in own + fresh}) == len(own) + len(fresh)
    assert Counter(one.level for one in own + fresh)[1] == 16


# Trees.


def play_steps(
    given: TrainConfig, chance: Callable[[int, int], float], *, steps: int, teach: Callable[[Sequence[Tree]], Lesson]
) -> list[dict[str, Any]]:
    """Steps of a policy that is right in a share of the trees of each task, by step and size; their metrics."""
    taskset = Codes()
    curriculum = make(taskset, given)
    step, asked = 0, Counter[str]()

    def script(prompt: Prompt) -> str:
        pattern = pattern_in(prompt.goal) or ""
        before = chance(step, 2 ** pattern.count("?")) * asked[prompt.goal]
        asked[prompt.goal] += 1
        right = math.floor(before + chance(step, 2 ** pattern.count("?"))) > math.floor(before)
        return f"Answer: {last_digit(pattern) if right else 'unknown'}"

    async def work() -> list[dict[str, Any]]:
        nonlocal step
        records: list[dict[str, Any]] = []
        options = TreeOptions(engine=ScriptedEngine(script))
        for step in range(steps):
            trees = await collect_with_signal(curriculum, taskset, given, options, rule=RULE, step=step)
            asked.clear()
            records.append(dict(curriculum.lesson(trees, teach=teach).metrics) | {"trees": trees})
        return records

    return anyio.run(work)


def total_success(record: dict[str, Any]) -> float:
    trees, rates = record["trees_by_level"], record["success_by_level"]
    return sum((rates[name] or 0.0) * trees[name] for name in trees) / sum(trees.values())


def test_drawn_levels_move_so_that_success_approaches_the_target_and_follow_the_policy() -> None:
    def chance(step: int, size: int) -> float:
        """Up to 8 codes always right, 16 in half of the trees, 32 never; from step 12 on twice as many codes."""
        solved = 8 if step < 12 else 16
        return 1.0 if size <= solved else 0.5 if size == 2 * solved else 0.0

    given = config(SIZES, "tasks_per_step=20", "steps=40", "curriculum.decay=0.7")
    records = play_steps(given, chance, steps=32, teach=lambda trees: Lesson(rows=()))
    assert set(records[0]["share_by_level"].values()) == {0.2}
    assert total_success(records[0]) == pytest.approx(0.7)  # equal shares: three levels right, one half, one never
    before = [total_success(record) for record in records[6:12]]
    after = [total_success(record) for record in records[26:32]]
    assert sum(before) / 6 == pytest.approx(0.5, abs=0.05)
    assert sum(after) / 6 == pytest.approx(0.05 * 4 + 0.8 * 0.5)  # four easy levels at their floor, no hard one
    assert max(records[11]["share_by_level"], key=records[11]["share_by_level"].get) == "upto_16"
    assert max(records[31]["share_by_level"], key=records[31]["share_by_level"].get) == "upto_32"
    assert all(min(record["share_by_level"].values()) >= 0.05 - 1e-12 for record in records)


def test_metrics_by_level_count_every_tree_that_was_played() -> None:
    given = config("curriculum.sizes=[2, 32]", "curriculum.floor=0.5", "tasks_per_step=4", "refill=1")
    record = play_steps(
        given,
        lambda step, size: 0.5 if size == 2 else 0.0,
        steps=1,
        teach=partial(credited_rows, rule=RULE, num_groups=4),
    )[0]
    # Two tasks of each level; the two of the harder one are flat, so two more are drawn.
    played, again = record["trees_by_level"], Counter(len(tree.nodes) for tree in record["trees"])
    assert sum(played.values()) == again[1] == 2 * (4 + 2)
    assert record["success_by_level"] == {"upto_2": 0.5, "upto_32": 0.0}
    assert record["estimate_by_level"] == {"upto_2": 0.5, "upto_32": 0.5}
    assert record["refilled"] == 2


def test_a_level_that_was_not_played_has_no_success() -> None:
    given = config("curriculum.sizes=[2, 32]", "curriculum.floor=0.0", "tasks_per_step=4")
    records = play_steps(
        given, lambda step, size: 0.5 if size == 2 else 0.0, steps=3, teach=lambda trees: Lesson(rows=())
    )
    assert records[2]["success_by_level"]["upto_32"] is None
    assert records[2]["trees_by_level"] == {"upto_2": 8, "upto_32": 0}


# Whole runs.


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small.folder(tmp_path_factory.mktemp("curriculum"))


@pytest.mark.parametrize("overlap", [0, 1])
def test_a_run_logs_levels_and_draws_by_them(tmp_path: Path, folder: Path, overlap: int) -> None:
    words = ["curriculum.sizes=[1, 2]", "taskset.operators=[1, 2]", "tasks_per_step=4", "group_size=2"]
    run = train(small.config(folder, *words, f"overlap={overlap}", "steps=4"), runs=tmp_path)
    records = run.metrics()
    assert [sum(record["trees_by_level"].values()) for record in records] == [8] * 4
    assert [record["estimate_by_level"]["upto_1"] for record in records[: overlap + 1]] == [0.5] * (overlap + 1)
    later = records[overlap + 1]
    played = records[0]
    right = (played["success_by_level"]["upto_1"] or 0.0) * played["trees_by_level"]["upto_1"]
    assert later["estimate_by_level"]["upto_1"] == (right + 0.5) / (played["trees_by_level"]["upto_1"] + 1)
