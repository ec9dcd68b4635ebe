"""The trie: as small as it can be, and every token sees exactly its own past."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.train.local.packing import Packed, Stretch, common, pack, plan_batches
from ramet.train.rows import Row
from tests.train.tiny import row, tries


def test_two_rows_that_part_share_the_position_before_they_do() -> None:
    # Both read 1 2; the first then predicts 3, the second reads 4 and predicts 5.
    packed = pack([row(1, 2, 3), row(1, 2, 4, 5, trained=2)])
    assert packed == Packed(
        token_ids=(1, 2, 4),
        depths=(0, 1, 2),
        ends=(3, 3, 3),
        stretches=(Stretch(span=(0, 2), path=()), Stretch(span=(2, 3), path=((0, 2),))),
        positions=(1, 1, 2),
        targets=(3, 4, 5),
    )


def test_a_trie_with_three_branches_worked_out_by_hand() -> None:
    #   1 ─ 2 ─ 3          reads 1 2 3 | 1 2 4 5 | 1 6
    #   │   └── 4 ─ 5
    #   └── 6
    packed = pack([row(1, 6, 9), row(1, 2, 4, 5, 9), row(1, 2, 3, 9)])
    assert packed.token_ids == (1, 2, 3, 4, 5, 6)
    assert packed.depths == (0, 1, 2, 2, 3, 1)
    assert packed.ends == (6, 5, 3, 5, 5, 6)
    assert [stretch.path for stretch in packed.stretches] == [(), ((0, 2),), ((0, 1),)]
    assert packed.positions == (5, 4, 2)


@given(tries())
def test_every_target_sees_exactly_the_tokens_before_it(rows: list[Row]) -> None:
    packed = pack(rows)
    spots = iter(zip(packed.positions, packed.targets, strict=True))
    for each in rows:
        for at in each.trained:
            position, target = next(spots)
            seen = [key for key in range(position + 1) if position < packed.ends[key]]
            assert tuple(packed.token_ids[key] for key in seen) == each.token_ids[:at]
            assert [packed.depths[key] for key in seen] == list(range(at))
            assert target == each.token_ids[at]
    assert next(spots, None) is None


@given(tries())
def test_every_prefix_is_there_once(rows: list[Row]) -> None:
    prefixes = {row.read[: end + 1] for row in rows for end in range(len(row.read))}
    assert len(pack(rows).token_ids) == len(prefixes)


@given(tries())
def test_stretches_cover_the_sequence_and_their_paths_are_what_is_seen(rows: list[Row]) -> None:
    packed = pack(rows)
    spans = [stretch.span for stretch in packed.stretches]
    assert [at for first, last in spans for at in range(first, last)] == list(range(len(packed.token_ids)))
    for stretch in packed.stretches:
        first = stretch.span[0]
        path = [at for start, end in stretch.path for at in range(start, end)]
        assert path == [key for key in range(first) if first < packed.ends[key]]


@given(st.lists(st.integers(0, 1)), st.lists(st.integers(0, 1)))
def test_common_prefixes_are_as_long_as_a_loop_finds_them(left: list[int], right: list[int]) -> None:
    length = 0
    while length < min(len(left), len(right)) and left[length] == right[length]:
        length += 1
    assert common(tuple(left), tuple(right)) == length


@given(tries(), st.integers(1, 40), st.integers(0, 99), st.booleans())
def test_batches_hold_every_row_once_fit_and_do_not_depend_on_order(
    rows: list[Row], tokens: int, seed: int, packed: bool
) -> None:
    batches = plan_batches(rows, tokens=tokens, packed=packed)
    planned = sorted(row.node for batch in batches for row in batch)
    assert planned == sorted(row.node for row in rows if row.num_trained)
    for batch in batches:
        padded = len(batch) * max(len(row.read) for row in batch)
        assert len(batch) == 1 or (len(pack(batch).token_ids) if packed else padded) <= tokens
    shuffled = random.Random(seed).sample(rows, len(rows))
    assert plan_batches(shuffled, tokens=tokens, packed=packed) == batches


def group(name: int, *, size: int) -> list[Row]:
    prompt = tuple(range(100 * name, 100 * name + 20))
    return [row(*prompt, at, at, at, trained=3, tree_id=f"{name}.{at}", group=str(name)) for at in range(size)]


def test_a_batch_ends_between_groups_rather_than_inside_one() -> None:
    # A group packs into 20 + 4 × 2 = 28 tokens. One and a half would fit into 40: the half waits for its group.
    batches = plan_batches(group(2, size=4) + group(1, size=4), tokens=50)
    assert [{row.group for row in batch} for batch in batches] == [{"1"}, {"2"}]


def test_a_group_larger_than_a_batch_is_cut_and_reads_its_prompt_again() -> None:
    batches = plan_batches(group(1, size=20), tokens=40)
    assert [len(batch) for batch in batches] == [10, 10]
    assert [len(pack(batch).token_ids) for batch in batches] == [40, 40]


@pytest.mark.parametrize("packed", [True, False])
def test_a_row_longer_than_a_batch_has_one_of_its_own(packed: bool) -> None:
    short, long, longer = row(1, 2, 3), row(*range(1, 13), node=1), row(*range(1, 20), node=2)
    last = row(7, 8, 9, node=3)
    batches = plan_batches([longer, short, last, long], tokens=10, packed=packed)
    assert [sorted(row.node for row in batch) for batch in batches] == (
        [[0], [1], [2], [3]] if packed else [[0, 3], [1], [2]]
    )


def test_padded_batches_put_rows_of_like_length_together() -> None:
    rows = [row(*range(length)) for length in (3, 9, 3, 9)]
    assert [[len(row.read) for row in batch] for batch in plan_batches(rows, tokens=16, packed=False)] == [
        [2, 2],
        [8, 8],
    ]


def test_rows_that_share_a_prompt_are_planned_together_whichever_tree_they_are_of() -> None:
    prompts = {"left": range(10), "right": range(50, 60)}
    rows = [row(*prompt, 99, tree_id=tree, group=side) for tree in "abc" for side, prompt in prompts.items()]
    batches = plan_batches(rows, tokens=12)
    assert [{row.group for row in batch} for batch in batches] == [{"left"}, {"right"}]
