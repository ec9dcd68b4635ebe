"""The engine on a GPU: the same promises as on a CPU, kept by other kernels. `pytest -m gpu`."""

# pyright: standard

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

import anyio
import pytest
import torch
from transformers import PreTrainedModel

from ramet.engine.local import LocalEngine
from ramet.engine.local.decoder import foldable
from ramet.errors import ConfigError
from ramet.types import Completion, Meter, Prompt
from tests.engine.local.models import KINDS, VOCABULARY, ask, farthest, granite, make, plain_logprobs, texts
from tests.engine.local.test_engine import change, until

DEVICE = "cuda"
CLOSE = 1e-4
# What torch and triton remark while they compile is not about us.
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:::torch", "ignore:::triton")]


def placed(kind: str = "llama", **more: Any) -> PreTrainedModel:
    """Always the same weights in single precision, in a module of its own."""
    return make(kind, device=DEVICE, **more)


def twin(model: PreTrainedModel) -> PreTrainedModel:
    """The same weights in a module that no engine has ever seen."""
    other = placed()
    other.load_state_dict(model.state_dict())
    return other


def engine_of(model: PreTrainedModel, **knobs: Any) -> LocalEngine:
    """Small: by default an engine takes half of the memory a GPU has free."""
    sizes: dict[str, Any] = {"max_batch": 8, "chunk": 64, "cache_tokens": 8192}
    return LocalEngine(model, **(sizes | knobs))


def spoken(answers: Sequence[Completion]) -> list[tuple[int, ...]]:
    return [answer.token_ids for answer in answers]


# Exactness.


@pytest.mark.parametrize("window", [512, 256], ids=["texts attended to in parts", "texts attended to at once"])
@pytest.mark.parametrize("kind", list(KINDS))
def test_log_probs_equal_a_plain_forward_of_the_same_ids(kind: str, window: int) -> None:
    prompts = texts(30)
    with engine_of(placed(kind), window=window) as engine:
        answers = ask(engine, prompts, max_tokens=lambda place: 3 + place)
    assert [len(answer.token_ids) for answer in answers] == [3 + place for place in range(30)]
    assert farthest(placed(kind), prompts, answers) < CLOSE


def test_a_decoder_of_another_shape_runs_through_its_own_forward() -> None:
    model, prompts = granite(DEVICE), texts(12)
    assert not foldable(model)
    with engine_of(model) as engine:
        answers = ask(engine, prompts)
    assert farthest(granite(DEVICE), prompts, answers) < CLOSE


@pytest.mark.parametrize("kind", list(KINDS))
def test_greedy_answers_equal_generate_token_for_token(kind: str) -> None:
    prompts, plain = texts(12), placed(kind)
    generate: Any = plain.generate
    with engine_of(placed(kind)) as engine:
        answers = ask(engine, prompts, temperature=0.0, max_tokens=16)
    for prompt, answer in zip(prompts, answers, strict=True):
        ids = torch.tensor([prompt], device=DEVICE)
        options: dict[str, Any] = {"do_sample": False, "max_new_tokens": 16, "eos_token_id": None, "pad_token_id": 0}
        said = generate(ids, attention_mask=torch.ones_like(ids), **options)
        assert said[0, len(prompt) :].tolist() == list(answer.token_ids)
    assert farthest(plain, prompts, answers) < CLOSE  # reported at temperature 1


def test_in_lockstep_who_else_is_in_the_batch_changes_no_token() -> None:
    model, prompts = placed(), texts(24)
    together, apart = (engine_of(model, lockstep=True, max_batch=size) for size in (24, 1))
    with together, apart:
        assert spoken(ask(together, prompts)) == spoken(ask(apart, prompts))


def test_in_lockstep_the_same_requests_again_give_the_same_bits() -> None:
    model, prompts = placed(), texts(40)

    def once() -> list[tuple[tuple[int, ...], tuple[float, ...]]]:
        with engine_of(model, lockstep=True, cache_tokens=640) as engine:
            first = ask(engine, prompts, max_tokens=lambda place: 5 + place % 17)
            again = [(*prompts[place], *answer.token_ids, 7) for place, answer in enumerate(first)]
            return [(answer.token_ids, answer.logprobs) for answer in (*first, *ask(engine, again))]

    assert once() == once()


# Drawing.


def shares(row: torch.Tensor, token: int, *, top_k: int, top_p: float) -> list[float]:
    """Log-probs `token` may have among the likeliest. Two or three where the last of them are so close that rounding
    decides who they are; none where it is not one of them.
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


# One block of logits, and several of them, the last not full.
@pytest.mark.parametrize("vocabulary", [VOCABULARY, 5_003])
@pytest.mark.parametrize(("top_k", "top_p"), [(5, 1.0), (0, 0.8), (7, 0.8)])
def test_only_the_likeliest_are_drawn_and_log_probs_are_those_among_them(
    top_k: int, top_p: float, vocabulary: int
) -> None:
    prompts = texts(20)
    with engine_of(placed(vocab_size=vocabulary), top_k=top_k, top_p=top_p) as engine:
        answers = ask(engine, prompts, temperature=0.5)
    plain = placed(vocab_size=vocabulary)
    for prompt, answer in zip(prompts, answers, strict=True):
        rows = plain_logprobs(plain, prompt, answer.token_ids, heat=0.5)
        for row, token, said in zip(rows, answer.token_ids, answer.logprobs, strict=True):
            assert any(
                said == pytest.approx(share, abs=CLOSE) for share in shares(row, token, top_k=top_k, top_p=top_p)
            )


def test_requests_with_other_wishes_in_the_same_batch_each_get_their_own() -> None:
    prompts = texts(24)
    heats, counts = (0.0, 0.7, 1.0, 1.5), (0, 0, 4)
    with engine_of(placed(), max_batch=24) as engine:
        answers = ask(
            engine, prompts, temperature=lambda place: heats[place % 4], top_k=lambda place: counts[place % 3]
        )
    plain = placed()
    for place, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        rows = plain_logprobs(plain, prompt, answer.token_ids, heat=heats[place % 4] or 1.0)
        for row, token, said in zip(rows, answer.token_ids, answer.logprobs, strict=True):
            assert shares(row, token, top_k=counts[place % 3], top_p=1.0) == pytest.approx([said], abs=CLOSE)
        if not heats[place % 4]:
            assert list(answer.token_ids) == rows.argmax(-1).tolist()


def test_tokens_are_drawn_as_often_as_they_are_likely() -> None:
    """One prompt, many seeds: the noise of the kernels is fair."""
    number = 4_000
    with engine_of(placed(), max_batch=256) as engine:
        answers = ask(engine, [[1, 2, 3]] * number, max_tokens=1)
    often = torch.tensor(spoken(answers)).flatten().bincount(minlength=VOCABULARY) / number
    probs = plain_logprobs(placed(), [1, 2, 3], [0])[0].exp()
    # five standard deviations of a share p among so many draws, and one draw for those that hardly ever come
    assert bool(((often - probs).abs() <= 5 * (probs / number).sqrt() + 1 / number).all())


# Memory.


def test_a_cache_that_is_too_small_makes_requests_wait_and_answers_stay_exact() -> None:
    prompts = texts(30)
    with engine_of(placed(), cache_tokens=320, max_batch=16) as engine:
        answers = ask(engine, prompts, max_tokens=60)
        assert engine.stats.preemptions > 0
        assert engine.stats.evicted_pages > 0
        assert engine._scheduler.cache.available == engine._scheduler.cache.total
    assert {len(answer.token_ids) for answer in answers} == {60}
    assert farthest(placed(), prompts, answers) < CLOSE


def test_a_cache_larger_than_memory_is_refused_in_one_line_and_a_smaller_one_is_then_made() -> None:
    model = placed()
    with pytest.raises(ConfigError) as caught:
        LocalEngine(model, cache_tokens=100_000_000_000)
    assert str(caught.value) == "no memory for a cache of 100,000,000,000 tokens (71525.6 GiB)"
    with engine_of(model) as engine:
        assert len(ask(engine, texts(3))) == 3


def test_heads_that_the_kernels_cannot_take_are_refused_with_their_size() -> None:
    with pytest.raises(ConfigError, match="heads of size 24 cannot be run on a GPU: powers of two from 16 can"):
        engine_of(placed(head_dim=24))


def test_a_cancelled_request_gives_its_pages_back() -> None:
    async def main() -> int:
        meter = Meter()
        prompt = Prompt(messages=(), ids=(1, 2, 3))
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: engine.sample(prompt, max_tokens=500, stop_tokens=(), meter=meter))
            await until(lambda: meter.tokens >= 5)
            group.cancel_scope.cancel()
        await until(lambda: not (engine._scheduler.running or engine._waiters))
        return meter.tokens

    prompts = texts(3)
    with engine_of(placed(), max_batch=1) as engine:
        assert 5 <= anyio.run(main) < 500
        cache = engine._scheduler.cache
        assert cache.available == cache.total
        assert farthest(placed(), prompts, ask(engine, prompts)) < CLOSE


# New weights.


def test_new_weights_are_seen_by_the_next_request_and_what_the_old_ones_cached_is_not() -> None:
    model, prompts = placed(), texts(12)
    with engine_of(model) as engine:
        first = ask(engine, prompts)
        with engine.updating() as weights:
            change(weights)
        second = ask(engine, prompts)
    assert {answer.policy_version for answer in first} == {0}
    assert {answer.policy_version for answer in second} == {1}
    assert farthest(placed(), prompts, first) < CLOSE
    assert farthest(twin(model), prompts, second) < CLOSE
    assert farthest(placed(), prompts, second) > 0.01


def test_weights_that_lie_elsewhere_after_an_update_are_found_there() -> None:
    """A captured graph remembers addresses."""
    model, prompts = placed(), texts(12)
    with engine_of(model) as engine:
        ask(engine, prompts)
        with engine.updating():
            for weight in model.parameters():
                weight.data, old = weight.data.clone(), weight.data
                old.zero_()
            change(model)
        answers = ask(engine, prompts)
    assert farthest(twin(model), prompts, answers) < CLOSE


def test_a_request_under_way_goes_on_with_the_new_weights_from_a_fresh_cache() -> None:
    model, ids = placed(), (1, 2, 3, 4, 5)

    async def main() -> tuple[Completion, int]:
        meter, answers, told = Meter(), list[Completion](), 0

        async def sampling() -> None:
            prompt = Prompt(messages=(), ids=ids)
            answers.append(await engine.sample(prompt, max_tokens=500, seed=3, stop_tokens=(), meter=meter))

        async with anyio.create_task_group() as group:
            group.start_soon(sampling)
            await until(lambda: meter.tokens >= 20)
            with engine.updating():
                change(model)
                told = meter.tokens
        return answers[0], told

    with engine_of(model, max_batch=2) as engine:
        answer, told = anyio.run(main)
    plain = plain_logprobs(twin(model), ids, answer.token_ids)
    plain = plain.gather(1, torch.tensor(answer.token_ids).unsqueeze(1)).squeeze(1)
    far = (plain - torch.tensor(answer.logprobs)).abs()
    assert answer.policy_version == 0
    assert float(far[told:].max()) < CLOSE  # sampled by the weights there are now
    assert float(far[:told].max()) > 0.01  # and the beginning by those there were


def test_engines_that_nobody_holds_any_more_do_not_disturb_the_next_one_s_graphs() -> None:
    model, prompts = placed(), texts(6)
    wanted = spoken(ask(engine_of(model), prompts))
    before = gc.get_threshold()
    gc.set_threshold(1)  # Python collects all the time, also while graphs are captured
    try:
        for _ in range(4):
            assert spoken(ask(engine_of(model), prompts)) == wanted
    finally:
        gc.set_threshold(*before)
