"""The engine on a GPU keeps the same guarantees as on a CPU. Run with `pytest -m gpu`."""

# pyright: standard

from __future__ import annotations

import gc
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import anyio
import pytest
import torch
from transformers import PreTrainedModel

from ramet.engine.local import LocalEngine
from ramet.engine.local.decoder import can_fuse
from ramet.errors import ConfigError
from ramet.types import Completion, Meter, Prompt
from tests.engine.local.models import KINDS, VOCABULARY, ask, granite, largest_difference, make, plain_logprobs, texts
from tests.engine.local.test_engine import change, until

DEVICE = "cuda"
CLOSE = 1e-4
# Ignore warnings of torch and triton while they compile.
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:::torch", "ignore:::triton")]


def placed(kind: str = "llama", **more: Any) -> PreTrainedModel:
    """A new module on the GPU, always with the same float32 weights."""
    return make(kind, device=DEVICE, **more)


def twin(model: PreTrainedModel) -> PreTrainedModel:
    """The same weights in a module that no engine has used."""
    other = placed()
    other.load_state_dict(model.state_dict())
    return other


def small_engine(model: PreTrainedModel, **settings: Any) -> LocalEngine:
    """A small engine: by default one takes half of the free GPU memory."""
    sizes: dict[str, Any] = {"max_batch": 8, "chunk": 64, "cache_tokens": 8192}
    return LocalEngine(model, **(sizes | settings))


def sampled_ids(answers: Sequence[Completion]) -> list[tuple[int, ...]]:
    return [answer.token_ids for answer in answers]


# Exactness.


@pytest.mark.parametrize("window", [512, 256], ids=["split attention", "unsplit attention"])
@pytest.mark.parametrize("kind", list(KINDS))
def test_log_probs_equal_a_plain_forward_pass(kind: str, window: int) -> None:
    prompts = texts(30)
    with small_engine(placed(kind), window=window) as engine:
        answers = ask(engine, prompts, max_tokens=lambda place: 3 + place)
    assert [len(answer.token_ids) for answer in answers] == [3 + place for place in range(30)]
    assert largest_difference(placed(kind), prompts, answers) < CLOSE


def test_an_unknown_architecture_runs_through_its_own_forward() -> None:
    model, prompts = granite(DEVICE), texts(12)
    assert not can_fuse(model)
    with small_engine(model) as engine:
        answers = ask(engine, prompts)
    assert largest_difference(granite(DEVICE), prompts, answers) < CLOSE


@pytest.mark.parametrize("kind", list(KINDS))
def test_greedy_completions_equal_generate(kind: str) -> None:
    prompts, plain = texts(12), placed(kind)
    generate: Any = plain.generate
    with small_engine(placed(kind)) as engine:
        answers = ask(engine, prompts, temperature=0.0, max_tokens=16)
    for prompt, answer in zip(prompts, answers, strict=True):
        ids = torch.tensor([prompt], device=DEVICE)
        options: dict[str, Any] = {"do_sample": False, "max_new_tokens": 16, "eos_token_id": None, "pad_token_id": 0}
        generated = generate(ids, attention_mask=torch.ones_like(ids), **options)
        assert generated[0, len(prompt) :].tolist() == list(answer.token_ids)
    assert largest_difference(plain, prompts, answers) < CLOSE  # reported at temperature 1


def test_in_lockstep_other_requests_in_the_batch_change_no_token() -> None:
    model, prompts = placed(), texts(24)
    together, apart = (small_engine(model, lockstep=True, max_batch=size) for size in (24, 1))
    with together, apart:
        assert sampled_ids(ask(together, prompts)) == sampled_ids(ask(apart, prompts))


def test_in_lockstep_repeating_the_same_requests_gives_the_same_bits() -> None:
    model, prompts = placed(), texts(40)

    def once() -> list[tuple[tuple[int, ...], tuple[float, ...]]]:
        with small_engine(model, lockstep=True, cache_tokens=640) as engine:
            first = ask(engine, prompts, max_tokens=lambda place: 5 + place % 17)
            again = [(*prompts[place], *answer.token_ids, 7) for place, answer in enumerate(first)]
            return [(answer.token_ids, answer.logprobs) for answer in (*first, *ask(engine, again))]

    assert once() == once()


# Sampling.


def shares(row: torch.Tensor, token: int, *, top_k: int, top_p: float) -> list[float]:
    """The log-probs that `token` may have after top-k and top-p; empty if it is not among them.

    There are several where the last tokens are so close that rounding decides which are kept.
    """
    ordered = row.double().sort(descending=True).values[: top_k or None]
    reached = ordered.softmax(0).cumsum(0)
    least, most = (1 + int((reached < edge).sum()) for edge in (top_p - CLOSE, top_p + CLOSE))
    if top_p == 1:
        least = len(ordered)
    return [
        float(row[token] - ordered[:number].logsumexp(0))
        for number in range(least, min(most, len(ordered)) + 1)
        if row[token] > ordered[number - 1] - CLOSE
    ]


# One block of the vocabulary, and several of which the last is not full.
@pytest.mark.parametrize("vocabulary", [VOCABULARY, 5_003])
@pytest.mark.parametrize(("top_k", "top_p"), [(5, 1.0), (0, 0.8), (7, 0.8), (10**9, 1.0)])
def test_log_probs_with_top_k_and_top_p_are_renormalised(top_k: int, top_p: float, vocabulary: int) -> None:
    prompts = texts(20)
    with small_engine(placed(vocab_size=vocabulary), top_k=top_k, top_p=top_p) as engine:
        answers = ask(engine, prompts, temperature=0.5)
    plain = placed(vocab_size=vocabulary)
    for prompt, answer in zip(prompts, answers, strict=True):
        rows = plain_logprobs(plain, prompt, answer.token_ids, heat=0.5)
        for row, token, logprob in zip(rows, answer.token_ids, answer.logprobs, strict=True):
            assert any(
                logprob == pytest.approx(share, abs=CLOSE) for share in shares(row, token, top_k=top_k, top_p=top_p)
            )


def test_requests_in_a_batch_keep_their_own_settings() -> None:
    prompts = texts(24)
    heats, counts = (0.0, 0.7, 1.0, 1.5), (0, 0, 4)
    with small_engine(placed(), max_batch=24) as engine:
        answers = ask(
            engine, prompts, temperature=lambda place: heats[place % 4], top_k=lambda place: counts[place % 3]
        )
    plain = placed()
    for place, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        rows = plain_logprobs(plain, prompt, answer.token_ids, heat=heats[place % 4] or 1.0)
        for row, token, logprob in zip(rows, answer.token_ids, answer.logprobs, strict=True):
            assert shares(row, token, top_k=counts[place % 3], top_p=1.0) == pytest.approx([logprob], abs=CLOSE)
        if not heats[place % 4]:
            assert list(answer.token_ids) == rows.argmax(-1).tolist()


def test_token_frequencies_match_their_probabilities() -> None:
    """One prompt, many seeds."""
    number = 4_000
    with small_engine(placed(), max_batch=256) as engine:
        answers = ask(engine, [[1, 2, 3]] * number, max_tokens=1)
    often = torch.tensor(sampled_ids(answers)).flatten().bincount(minlength=VOCABULARY) / number
    probs = plain_logprobs(placed(), [1, 2, 3], [0])[0].exp()
    # five standard deviations of each frequency, and one draw for rare tokens
    assert bool(((often - probs).abs() <= 5 * (probs / number).sqrt() + 1 / number).all())


# Memory.


def test_a_small_cache_preempts_requests_and_log_probs_stay_exact() -> None:
    prompts = texts(30)
    with small_engine(placed(), cache_tokens=320, max_batch=16) as engine:
        answers = ask(engine, prompts, max_tokens=60)
        assert engine.stats.preemptions > 0
        assert engine.stats.evicted_pages > 0
        assert engine.scheduler.cache.available == engine.scheduler.cache.total
    assert {len(answer.token_ids) for answer in answers} == {60}
    assert largest_difference(placed(), prompts, answers) < CLOSE


def test_a_cache_larger_than_memory_is_refused_and_a_smaller_one_then_works() -> None:
    model = placed()
    with pytest.raises(ConfigError) as caught:
        LocalEngine(model, cache_tokens=100_000_000_000)
    assert str(caught.value) == "not enough memory for a cache of 100,000,000,000 tokens (71525.6 GiB)"
    with small_engine(model) as engine:
        assert len(ask(engine, texts(3))) == 3


def test_an_unsupported_head_size_is_refused() -> None:
    with pytest.raises(ConfigError, match="head_dim must be a power of two, at least 16, on a GPU; got 24"):
        small_engine(placed(head_dim=24))


def test_a_cancelled_request_frees_its_pages() -> None:
    async def main() -> int:
        meter = Meter()
        prompt = Prompt(messages=(), ids=(1, 2, 3))
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: engine.sample(prompt, max_tokens=500, stop_tokens=(), meter=meter))
            await until(lambda: meter.tokens >= 5)
            group.cancel_scope.cancel()
        await until(lambda: engine.idle)
        return meter.tokens

    prompts = texts(3)
    with small_engine(placed(), max_batch=1) as engine:
        assert 5 <= anyio.run(main) < 500
        cache = engine.scheduler.cache
        assert cache.available == cache.total
        assert largest_difference(placed(), prompts, ask(engine, prompts)) < CLOSE


# New weights.


def test_after_an_update_the_cache_of_the_old_weights_is_not_used() -> None:
    model, prompts = placed(), texts(12)
    with small_engine(model) as engine:
        first = ask(engine, prompts)
        with engine.updating() as weights:
            change(weights)
        second = ask(engine, prompts)
    assert {answer.policy_version for answer in first} == {0}
    assert {answer.policy_version for answer in second} == {1}
    assert largest_difference(placed(), prompts, first) < CLOSE
    assert largest_difference(twin(model), prompts, second) < CLOSE
    assert largest_difference(placed(), prompts, second) > 0.01


def test_weights_may_move_in_memory_during_an_update() -> None:
    """A captured graph contains addresses."""
    model, prompts = placed(), texts(12)
    with small_engine(model) as engine:
        ask(engine, prompts)
        with engine.updating():
            for weight in model.parameters():
                weight.data, old = weight.data.clone(), weight.data
                old.zero_()
            change(model)
        answers = ask(engine, prompts)
    assert largest_difference(twin(model), prompts, answers) < CLOSE


def test_a_running_request_continues_with_the_new_weights_and_a_new_cache() -> None:
    model, ids = placed(), (1, 2, 3, 4, 5)

    async def main() -> tuple[Completion, int]:
        meter, answers, at_update = Meter(), list[Completion](), 0

        async def sampling() -> None:
            prompt = Prompt(messages=(), ids=ids)
            answers.append(await engine.sample(prompt, max_tokens=500, seed=3, stop_tokens=(), meter=meter))

        async with anyio.create_task_group() as group:
            group.start_soon(sampling)
            await until(lambda: meter.tokens >= 20)
            with engine.updating():
                change(model)
                at_update = meter.tokens
        return answers[0], at_update

    with small_engine(model, max_batch=2) as engine:
        answer, at_update = anyio.run(main)
    plain = plain_logprobs(twin(model), ids, answer.token_ids)
    plain = plain.gather(1, torch.tensor(answer.token_ids).unsqueeze(1)).squeeze(1)
    difference = (plain - torch.tensor(answer.logprobs)).abs()
    assert answer.policy_version == 0
    assert float(difference[at_update:].max()) < CLOSE  # sampled with the new weights
    assert float(difference[:at_update].max()) > 0.01  # sampled with the old weights


def test_garbage_collection_of_old_engines_does_not_break_a_capture() -> None:
    model, prompts = placed(), texts(6)
    wanted = sampled_ids(ask(small_engine(model), prompts))
    before = gc.get_threshold()
    gc.set_threshold(1)  # Python collects constantly, also while graphs are captured
    try:
        for _ in range(4):
            assert sampled_ids(ask(small_engine(model), prompts)) == wanted
    finally:
        gc.set_threshold(*before)


# Captures beside a learner.


def test_a_size_that_occurs_while_the_learner_works_is_captured_at_the_next_change_of_the_weights() -> None:
    with small_engine(placed()) as engine:
        with engine.undisturbed():
            before = ask(engine, texts(4), max_tokens=lambda _: 12)
            assert engine.runner.captures == 0
        with engine.updating():
            pass
        assert engine.runner.captures > 0
        assert sampled_ids(ask(engine, texts(4), max_tokens=lambda _: 12)) == sampled_ids(before)


def test_another_thread_that_waits_for_the_device_all_the_time_does_not_end_the_engine() -> None:
    ended = threading.Event()

    def keep_waiting() -> None:
        while not ended.is_set():
            with suppress(RuntimeError):  # raised in the middle of a capture, which this call breaks
                torch.cuda.synchronize()

    with small_engine(placed()) as engine:
        expected = sampled_ids(ask(engine, texts(12), max_tokens=lambda place: 3 + place))
    thread = threading.Thread(target=keep_waiting)
    with small_engine(placed()) as engine:
        thread.start()
        try:
            assert sampled_ids(ask(engine, texts(12), max_tokens=lambda place: 3 + place)) == expected
        finally:
            ended.set()
            thread.join()
        assert sampled_ids(ask(engine, texts(12), max_tokens=lambda place: 3 + place)) == expected
