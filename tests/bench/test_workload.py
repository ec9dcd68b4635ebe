"""Workloads: sizes computed by hand, and work that does not depend on what a model samples."""

from __future__ import annotations

import random

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramet.agent.tree import run
from ramet.bench.workload import Call, Progress, Sampled, Workload, flat, recorded, trees
from ramet.budget import Budget
from ramet.engine.scripted import ScriptedEngine
from ramet.errors import ConfigError
from ramet.types import Prompt, Tree

SYSTEM = (1, 2, 3)
# A root that delegates (4 tokens), two children that answer (5 and 2), and the root's answer (3) after both.
SMALL = Workload(
    "tree",
    (
        Call(segments=((*SYSTEM, 7),), new_tokens=4),
        Call(segments=((*SYSTEM, 8, 8),), new_tokens=5, after=(0,)),
        Call(segments=((*SYSTEM, 9),), new_tokens=2, after=(0,)),
        Call(segments=((*SYSTEM, 7), Sampled(0), (6,), Sampled(1), (6,), Sampled(2)), new_tokens=3, after=(0, 1, 2)),
    ),
)


def finish(workload: Workload, *, dice: random.Random) -> tuple[list[int], list[list[int]]]:
    """Run the calls in a random order; returns the order and the prompts."""
    progress = Progress(workload)
    ready, order = progress.start(), list[int]()
    prompts: dict[int, list[int]] = {}
    while ready:
        index = ready.pop(dice.randrange(len(ready)))
        order.append(index)
        prompts[index] = progress.prompt(index)
        ready += progress.end(index, [dice.randrange(1000) for _ in range(workload.calls[index].new_tokens)])
    assert progress.done
    return order, [prompts[index] for index in range(len(workload.calls))]


def test_the_size_of_a_small_tree_matches_a_count_by_hand() -> None:
    shape = SMALL.shape()
    assert (shape.roots, shape.calls, shape.generated_tokens) == (1, 4, 14)
    assert SMALL.prompt_tokens() == [4, 5, 4, 4 + 4 + 1 + 5 + 1 + 2]
    assert shape.prompt_tokens == 30
    # The system prompt once, one or two tokens of each goal, and the new tokens of the root's second turn.
    assert shape.unique_prompt_tokens == 3 + (1 + 2 + 1) + (1 + 5 + 1 + 2)
    assert shape.critical_path_tokens == 4 + 5 + 3
    assert shape.longest == 20


def test_room_is_counted_in_whole_pages() -> None:
    assert SMALL.room() == 30 + 14
    assert SMALL.room(8) == 8 + 16 + 8 + 24


def test_a_second_turn_reads_the_first_and_the_answers_of_the_children() -> None:
    progress = Progress(SMALL)
    assert progress.start() == [0]
    assert progress.end(0, [10, 11, 12, 13]) == [1, 2]
    assert progress.end(2, [30, 31]) == []
    assert progress.end(1, [20, 21, 22, 23, 24]) == [3]
    assert progress.prompt(3) == [1, 2, 3, 7, 10, 11, 12, 13, 6, 20, 21, 22, 23, 24, 6, 30, 31]
    assert not progress.done
    assert progress.end(3, [40, 41, 42]) == []
    assert progress.done


def test_a_call_that_quotes_another_must_wait_for_it() -> None:
    with pytest.raises(ConfigError, match="call 1 of bad quotes a call it does not wait for"):
        Workload("bad", (Call(segments=((1,),), new_tokens=1), Call(segments=(Sampled(0),), new_tokens=1)))
    with pytest.raises(ConfigError, match="call 0 of bad quotes"):
        Workload("bad", (Call(segments=((1,),), new_tokens=1, after=(0,)),))
    with pytest.raises(ConfigError, match="call 0 of bad is empty"):
        Workload("bad", (Call(segments=((1,),), new_tokens=0),))


def test_the_calls_of_a_flat_batch_are_independent() -> None:
    shape = flat(batch=16, prompt=64, new=32).shape()
    assert (shape.roots, shape.calls, shape.prompt_tokens, shape.generated_tokens) == (16, 16, 1024, 512)
    assert 1024 - 16 <= shape.unique_prompt_tokens <= 1024  # two prompts may start with the same token


def test_the_same_seed_draws_the_same_trees() -> None:
    assert trees(count=3, seed=5) == trees(count=3, seed=5)
    assert trees(count=3, seed=5).shape() != trees(count=3, seed=6).shape()


def test_trees_share_their_system_prompt_and_vary_in_fanout_and_length() -> None:
    workload = trees(count=20, system=200)
    shape = workload.shape()
    assert shape.roots == 20
    assert shape.unique_prompt_tokens < shape.prompt_tokens / 2
    answers = [call.new_tokens for call in workload.calls]
    assert 16 <= min(answers) < 25
    assert 150 < max(answers) <= 200
    waits = [len(call.after) - 1 for call in workload.calls if len(call.after) > 1]
    assert {2, 3, 4, 5, 6} == set(waits)
    assert len({call.segments[0][:200] for call in workload.calls if not isinstance(call.segments[0], Sampled)}) == 1


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), order_seed=st.integers(0, 2**32))
def test_the_work_does_not_depend_on_the_sampled_tokens_or_the_order_of_calls(seed: int, order_seed: int) -> None:
    workload = trees(count=2, system=8, longest=20, seed=seed)
    order, prompts = finish(workload, dice=random.Random(order_seed))
    assert sorted(order) == list(range(len(workload.calls)))
    assert all(order.index(other) < order.index(i) for i, call in enumerate(workload.calls) for other in call.after)
    assert [len(prompt) for prompt in prompts] == workload.prompt_tokens()


@pytest.mark.parametrize("count", range(1, 13))
def test_every_prefix_of_a_workload_is_a_workload(count: int) -> None:
    part = trees(count=1, system=4).first(count)
    assert len(finish(part, dice=random.Random(0))[0]) == min(count, len(part.calls))


def test_a_shifted_workload_is_the_same_work_with_other_tokens() -> None:
    for workload in (SMALL, trees(count=4), flat(batch=8, prompt=16, new=4)):
        moved = workload.shifted(1)
        assert moved.shape() == workload.shape()
        pairs = zip(moved.calls, workload.calls, strict=True)
        assert all(first.segments[0] != second.segments[0] for first, second in pairs)
    assert SMALL.shifted(1).calls[0].segments == ((2, 3, 4, 8),)


def test_the_calls_of_a_recorded_tree_can_be_replayed() -> None:
    delegate = '<tool_call>{"name": "delegate", "arguments": {"goals": ["left", "right", "middle"]}}</tool_call>'

    def script(prompt: Prompt) -> str:
        if prompt.depth:
            return f"Answer: {prompt.goal} side"
        return delegate if prompt.turn == 0 else "Answer: all of it"

    async def grow() -> Tree:
        return await run("what is there?", engine=ScriptedEngine(script), budget=Budget(tokens=4000, nodes=9, depth=2))

    tree = anyio.run(grow)
    workload = recorded([tree, tree])
    shape = workload.shape()
    assert (shape.roots, shape.calls) == (2, 10)
    assert shape.generated_tokens == 2 * tree.usage.tokens
    assert shape.critical_path_tokens == tree.usage.critical_path_tokens
    assert workload.prompt_tokens()[:5] == workload.prompt_tokens()[5:]
    assert sum(workload.prompt_tokens()) == 2 * tree.usage.prompt_tokens
    assert [len(call.after) for call in workload.calls[:5]] == [0, 1, 1, 1, 4]


def test_a_run_without_token_ids_cannot_be_replayed() -> None:
    async def grow() -> Tree:
        engine = ScriptedEngine(lambda _: "Answer: yes", token_ids=False)
        return await run("is it?", engine=engine, budget=Budget(tokens=4000))

    with pytest.raises(ConfigError, match="the run has no token ids"):
        recorded([anyio.run(grow)])
