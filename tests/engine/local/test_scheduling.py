"""Requests that share pages, grow, are cancelled and preempted sample the same tokens as when they run alone."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramet.engine.local.cache import OUTDATED, Page, PrefixCache
from ramet.engine.local.request import Request
from tests.engine.local.simulated import SimulatedEngine, check_pages, random_text, sampled_alone


def play(
    *,
    seed: int,
    size: int,
    lag: int,
    tightness: float,
    keep_cache: bool = False,
    prompts_every: int = 1,
    make: type[SimulatedEngine] = SimulatedEngine,
) -> SimulatedEngine:
    """Run random requests with a cache of `tightness` times the longest text; checks the pages after every step."""
    rng = random.Random(seed)
    pieces = [[rng.randrange(7) for _ in range(rng.randrange(1, 40))] for _ in range(4)]
    longest = 4 * 40 + 12 + 40
    pages = int(tightness * longest / size) + 2
    limits = {"pages": pages, "size": size, "max_batch": rng.randrange(1, 9), "chunk": rng.randrange(4, 64)}
    engine = make(**limits, lag=lag, keep_cache=keep_cache, prompts_every=prompts_every)
    engine.scheduler.many = 2
    asked: list[tuple[Request, list[int], int]] = []
    for _ in range(rng.randrange(1, 80)):
        for _ in range(rng.choice([0, 0, 0, 1, 5])):
            finished = [request.ids for request, _, _ in asked if request.finish]
            text = (
                [*rng.choice(finished), rng.randrange(7)]
                if finished and rng.random() < 0.4
                else random_text(rng, pieces)
            )
            text = text[: longest - 40]
            number = rng.randrange(1, 40)
            request = engine.submit(text, max_tokens=number, seed=rng.randrange(3), node_id=rng.choice(["", "a", "b"]))
            asked.append((request, text, number))
        running = [request for request, _, _ in asked if not request.done]
        if running and rng.random() < 0.1:
            rng.choice(running).cancelled = True
        if rng.random() < 0.02:
            engine.scheduler.set_version(engine.scheduler.version + 1)
        if rng.random() < 0.1:
            engine.scheduler.ended(rng.choice(["a", "b"]))
        if rng.random() < 0.05:  # a step that did not run
            engine.scheduler.undo(engine.scheduler.plan())
            check_pages(engine)
        engine.step()
        check_pages(engine)
    engine.run()
    check_pages(engine)
    assert engine.scheduler.cache.available == pages, "a page is still in use"
    for request, text, number in asked:
        assert request.error is None
        if not request.cancelled:
            assert request.sampled == sampled_alone(text, max_tokens=number, seed=request.sampling.seed)
            assert request.logprobs == [float(-token) for token in request.sampled]
    return engine


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    size=st.sampled_from([1, 2, 4, 16]),
    lag=st.sampled_from([0, 1]),
    tightness=st.sampled_from([1.0, 1.5, 4.0]),
    keep_cache=st.booleans(),
    prompts_every=st.sampled_from([1, 3]),
)
def test_a_request_samples_the_same_tokens_as_alone_whatever_else_runs(
    seed: int, size: int, lag: int, tightness: float, keep_cache: bool, prompts_every: int
) -> None:
    play(seed=seed, size=size, lag=lag, tightness=tightness, keep_cache=keep_cache, prompts_every=prompts_every)


def test_the_random_requests_above_share_evict_and_preempt() -> None:
    stats = [play(seed=seed, size=4, lag=seed % 2, tightness=1.0).scheduler.stats for seed in range(20)]
    assert sum(each.preemptions for each in stats) > 20
    assert sum(each.evicted_pages for each in stats) > 200
    assert sum(each.cached_tokens for each in stats) > 1_000


def test_a_cache_too_small_for_all_preempts_requests_and_changes_no_token() -> None:
    engine = SimulatedEngine(pages=12, size=4, max_batch=8, chunk=16)
    requests = [engine.submit([seed % 7, 1, 2, 3, 4], max_tokens=40, seed=seed) for seed in range(8)]
    engine.run()
    assert engine.scheduler.stats.preemptions > 0
    assert engine.scheduler.stats.evicted_pages > 0
    for request in requests:
        assert request.sampled == sampled_alone([request.ids[0], 1, 2, 3, 4], max_tokens=40, seed=request.sampling.seed)


def reads(prompts_every: int, *, decoding: int, arriving: int = 1) -> list[int]:
    """The prompts that each of ten steps reads, while so many requests decode and as many arrive before every step."""
    engine = SimulatedEngine(pages=2_000, size=4, max_batch=200, chunk=500, prompts_every=prompts_every)
    for number in range(decoding):
        engine.submit([number, 1, 2], max_tokens=100, seed=number)
    engine.step()
    read: list[int] = []
    for step in range(10):
        for number in range(arriving):
            engine.submit([1_000 + 100 * step + number, 3], max_tokens=1)
        read.append(len(engine.step().chunks))
    return read


def test_while_many_requests_decode_the_prompts_of_several_steps_are_read_together() -> None:
    assert reads(4, decoding=150) == [0, 0, 0, 4, 0, 0, 0, 4, 0, 0]
    assert reads(1, decoding=150) == [1] * 10


def test_the_prompts_of_requests_that_wait_for_a_slot_are_read_together_too() -> None:
    """All 150 slots decode, at least one is free again after each step, and 100 requests wait for one."""
    engine = SimulatedEngine(pages=2_000, size=4, max_batch=150, chunk=500, prompts_every=4)
    for number in range(150):
        engine.submit([number, 1, 2], max_tokens=3 + number, seed=number)
    for number in range(100):
        engine.submit([1_000 + number, 3], max_tokens=100)
    read = [step for step in range(40) if engine.step().chunks]
    assert len(read) >= 4
    assert all(later - earlier >= 4 for earlier, later in pairwise(read))


def test_prompts_are_read_at_once_if_few_requests_decode_or_many_wait() -> None:
    assert reads(4, decoding=20) == [1] * 10
    assert reads(4, decoding=40, arriving=10)[:2] == [10, 10]


def test_a_cancelled_request_frees_its_slot_and_pages_within_one_step() -> None:
    engine = SimulatedEngine(pages=50, size=4, max_batch=1, chunk=64)
    first = engine.submit([1, 2, 3], max_tokens=1_000, seed=5)
    second = engine.submit([4, 5, 6], max_tokens=3, seed=1)
    engine.step()
    assert engine.scheduler.running == [first]
    first.cancelled = True
    engine.step()
    assert engine.scheduler.running == [second]
    check_pages(engine)


def test_a_request_waits_for_a_common_prefix_and_computes_only_its_own_end() -> None:
    engine = SimulatedEngine(pages=64, size=4, max_batch=8, chunk=6)
    shared = [1, 2, 3, 4, 5, 6, 1, 2, 3, 4]
    for end in range(5):
        engine.submit([*shared, 6, end], max_tokens=2, seed=3)
    engine.run()
    # ten shared tokens and the 6 once, then the five ends
    assert engine.scheduler.stats.prefill_tokens == 10 + 1 + 5


def test_a_repeated_prompt_computes_one_token() -> None:
    engine = SimulatedEngine(pages=64, size=4, max_batch=8, chunk=100)
    for _ in range(3):
        engine.submit([1, 2, 3, 4, 5, 6, 1, 2], max_tokens=2)
        engine.run()
    assert engine.scheduler.stats.prefill_tokens == 8 + 1 + 1


def test_a_node_between_turns_keeps_its_pages_while_ended_nodes_lose_theirs() -> None:
    engine = SimulatedEngine(pages=12, size=4, max_batch=4, chunk=64)
    parent = [1] * 16
    engine.submit(parent, max_tokens=1, node_id="parent")
    engine.run()
    for child in range(2, 7):
        engine.submit([child] * 16, max_tokens=1, node_id=f"child{child}")
        engine.run()
        engine.scheduler.ended(f"child{child}")
    assert engine.scheduler.stats.evicted_pages > 0
    before = engine.scheduler.stats.prefill_tokens
    engine.submit([*parent, 2], max_tokens=1, node_id="parent")
    engine.run()
    assert engine.scheduler.stats.prefill_tokens == before + 1


def test_after_an_update_a_node_that_keeps_its_cache_computes_only_what_is_new() -> None:
    engine = SimulatedEngine(pages=64, size=4, max_batch=4, chunk=64, keep_cache=True)
    stats, text = engine.scheduler.stats, [1, 2, 3, 4, 5, 6, 1, 2]
    engine.submit(text, max_tokens=1, node_id="early")
    engine.run()
    engine.scheduler.set_version(1)
    engine.submit([*text, 3, 4], max_tokens=1, node_id="early")  # its second turn
    engine.run()
    assert stats.prefill_tokens == 8 + 2
    engine.submit(text, max_tokens=1, node_id="late")  # with the same text: it does not get the cache of old weights
    engine.run()
    assert stats.prefill_tokens == 8 + 2 + 8
    engine.scheduler.ended("early")
    engine.submit([*text, 3, 4, 5], max_tokens=1, node_id="early")  # a new node of the same name
    engine.run()
    assert stats.prefill_tokens == 8 + 2 + 8 + 3


def test_a_node_that_waited_during_an_update_is_read_by_the_new_weights_alone() -> None:
    engine = SimulatedEngine(pages=64, size=4, max_batch=1, chunk=64, keep_cache=True)
    text = [1, 2, 3, 4, 5, 6, 1, 2]
    engine.submit(text, max_tokens=3, node_id="first")
    second = engine.submit(text, max_tokens=1, node_id="second")
    engine.step()
    assert second.version == -1  # there is one slot
    engine.scheduler.set_version(1)
    engine.run()
    assert second.version == 1
    assert engine.scheduler.stats.prefill_tokens == 8 + 8


@pytest.mark.parametrize(("keep_cache", "preempted", "computed"), [(False, 1, 12 + 15), (True, 0, 12)])
def test_a_running_request_is_read_again_after_an_update_unless_it_keeps_its_cache(
    keep_cache: bool, preempted: int, computed: int
) -> None:
    engine = SimulatedEngine(pages=64, size=4, max_batch=4, chunk=64, keep_cache=keep_cache)
    request = engine.submit([1, 2, 3, 4, 5, 6] * 2, max_tokens=9, seed=1, node_id="a")
    for _ in range(3):
        engine.step()
    engine.scheduler.set_version(1)
    engine.run()
    assert engine.scheduler.stats.preemptions == preempted
    assert engine.scheduler.stats.prefill_tokens == computed
    assert request.version == 0
    assert request.sampled == sampled_alone([1, 2, 3, 4, 5, 6] * 2, max_tokens=9, seed=1)


def test_without_node_ids_the_least_recently_used_pages_are_evicted_first() -> None:
    engine = SimulatedEngine(pages=12, size=4, max_batch=4, chunk=64)
    for child in range(1, 6):
        engine.submit([child] * 16, max_tokens=1)
        engine.run()
    before = engine.scheduler.stats.prefill_tokens
    engine.submit([5] * 16 + [1], max_tokens=1)
    engine.run()
    assert engine.scheduler.stats.prefill_tokens == before + 1
    engine.submit([1] * 16 + [1], max_tokens=1)
    engine.run()
    assert engine.scheduler.stats.prefill_tokens == before + 1 + 17


class Watched(PrefixCache):
    """Compares every evicted page with all that could be evicted."""

    def _evict(self) -> None:
        before = {id(page): (page.pins > 0, page.last_used) for page in self._leaves() if not page.users}
        free = len(self._free)
        super()._evict()
        left = {id(page) for page in self._leaves()}
        evicted = [key for page, key in before.items() if page not in left]
        assert evicted == [min(before.values())]
        assert len(self._free) == free + 1

    def _leaves(self) -> list[Page]:
        waiting = list(self._roots.values())
        leaves: list[Page] = []
        while waiting:
            page = waiting.pop()
            waiting += page.children
            if not page.children and page.parent is not None:
                leaves.append(page)
        return leaves


class WatchedEngine(SimulatedEngine):
    """Its cache drops outdated candidates often, because it has few pages."""

    def __init__(self, *, pages: int, size: int, **more: Any) -> None:
        super().__init__(pages=pages, size=size, **more)
        self.scheduler.cache = Watched(pages=pages, size=size)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32), size=st.sampled_from([1, 4, 16]), tightness=st.sampled_from([1.0, 1.5]))
def test_the_least_recently_used_page_is_evicted_and_pinned_ones_last(seed: int, size: int, tightness: float) -> None:
    play(seed=seed, size=size, lag=0, tightness=tightness, make=WatchedEngine)


def test_candidates_for_eviction_stay_within_a_multiple_of_the_pages_however_many_nodes_end() -> None:
    engine = SimulatedEngine(pages=16, size=4, max_batch=2, chunk=64)
    cache, rng = engine.scheduler.cache, random.Random(0)
    for number in range(500):
        engine.submit([rng.randrange(7) for _ in range(20)], max_tokens=2, node_id=f"tree/{number}")
        engine.run()
        engine.scheduler.ended(f"tree/{number}")
        assert len(cache._candidates) <= OUTDATED * 16
    assert cache.evicted > 500


@pytest.mark.parametrize("lag", [0, 1])
def test_a_step_that_did_not_run_can_be_reverted(lag: int) -> None:
    engine = SimulatedEngine(pages=80, size=4, max_batch=6, chunk=10, lag=lag)
    shared = [1, 2, 3, 4, 5, 6]
    asked = [
        (engine.submit([*shared, seed % 3, 6], max_tokens=20, seed=seed), [*shared, seed % 3, 6]) for seed in range(9)
    ]
    rng = random.Random(3)
    while not engine.scheduler.idle or engine.in_flight:
        if rng.random() < 0.3:
            engine.scheduler.undo(engine.scheduler.plan())
            check_pages(engine)
        engine.step()
        check_pages(engine)
    for request, text in asked:
        assert request.sampled == sampled_alone(text, max_tokens=20, seed=request.sampling.seed)


def test_a_prompt_that_does_not_fit_the_cache_fails_and_the_others_continue() -> None:
    engine = SimulatedEngine(pages=8, size=4, max_batch=4, chunk=64)
    good = engine.submit([1, 2, 3], max_tokens=4, seed=1)
    bad = engine.submit([1] * 60, max_tokens=4)
    after = engine.submit([2, 2, 3], max_tokens=4, seed=1)
    engine.run()
    assert bad.error == "a text of 60 tokens does not fit the cache of 32: raise cache_tokens"
    assert good.finish
    assert after.finish
    check_pages(engine)


def test_a_prompt_that_needs_the_page_it_could_copy_from_is_computed_whole() -> None:
    engine = SimulatedEngine(pages=4, size=4, max_batch=4, chunk=64)
    engine.submit([1, 2, 3, 4, 5, 6], max_tokens=2, seed=1)
    engine.run()
    prompt = [1, 2, 3, 4, 5, *range(7, 15)]  # all four pages; the second begins like that of the first request
    request = engine.submit(prompt, max_tokens=2, seed=1)
    engine.run()
    assert (request.error, request.cached_tokens) == (None, 4)
    assert request.sampled == sampled_alone(prompt, max_tokens=2, seed=1)
    check_pages(engine)


def test_requests_of_a_node_at_the_same_time_leave_no_page_pinned_when_it_has_ended() -> None:
    engine = SimulatedEngine(pages=16, size=4, max_batch=4, chunk=64)
    for seed in range(2):
        engine.submit([seed] * 9, max_tokens=2, seed=seed, node_id="tree/0")
    engine.run()
    engine.scheduler.ended("tree/0")
    cache = engine.scheduler.cache
    held = [cache.match([seed] * 10, salt=0, step=99).pages for seed in range(2)]
    assert [page.pins for pages in held for page in pages] == [0] * 4


def test_a_request_that_outgrows_the_cache_fails_and_the_others_continue() -> None:
    engine = SimulatedEngine(pages=5, size=4, max_batch=4, chunk=64)
    seed = next(seed for seed in range(99) if len(sampled_alone([1], max_tokens=40, seed=seed)) > 30)
    bad = engine.submit([1], max_tokens=40, seed=seed)
    engine.run()
    good = engine.submit([1, 2, 3], max_tokens=4, seed=1)
    engine.run()
    assert bad.error == "this request alone fills the cache of 20 tokens: raise cache_tokens"
    assert good.finish
    check_pages(engine)


def test_a_whole_page_that_is_still_being_computed_is_waited_for() -> None:
    cache = PrefixCache(pages=8, size=2)
    first, second = cache.allocate(2) or []
    cache.link(first, (1, 2), after=cache.root(0), ready=2)
    cache.link(second, (3, 4), after=first, ready=1)
    match = cache.match((1, 2, 3, 4, 5), salt=0, step=1)
    assert (match.pages, match.pending) == ([first], True)
    second.ready = 2
    match = cache.match((1, 2, 3, 4, 5), salt=0, step=1)
    assert (match.pages, match.pending, match.partial) == ([first, second], False, None)
