"""Log-probs and tokens equal those of a plain forward pass over the same ids."""

from __future__ import annotations

import random

import pytest
import torch

from ramet.engine.local import LocalEngine
from ramet.engine.local.decoder import FusedDecoder, can_fuse
from tests.engine.local.models import KINDS, ask, granite, largest_difference, make, plain_logprobs, texts


@pytest.mark.parametrize("kind", list(KINDS))
def test_log_probs_equal_a_plain_forward_pass(kind: str) -> None:
    model, prompts = make(kind), texts(30)
    with LocalEngine(model, max_batch=8, chunk=64) as engine:
        answers = ask(engine, prompts, max_tokens=lambda place: 3 + place)
    assert largest_difference(model, prompts, answers) < 1e-4
    assert [len(answer.token_ids) for answer in answers] == [3 + place for place in range(30)]


@pytest.mark.parametrize("kind", list(KINDS))
def test_greedy_tokens_are_the_most_likely_of_a_plain_forward_pass(kind: str) -> None:
    model, prompts = make(kind), texts(12)
    with LocalEngine(model, max_batch=8, chunk=64) as engine:
        answers = ask(engine, prompts, temperature=0.0)
    for prompt, answer in zip(prompts, answers, strict=True):
        assert plain_logprobs(model, prompt, answer.token_ids).argmax(-1).tolist() == list(answer.token_ids)
    assert largest_difference(model, prompts, answers) < 1e-4  # reported at temperature 1


def test_an_unknown_architecture_runs_through_its_own_forward() -> None:
    model, prompts = granite(), texts(12)
    assert not can_fuse(model)
    with LocalEngine(model, max_batch=8, chunk=64) as engine:
        answers = ask(engine, prompts)
    assert largest_difference(model, prompts, answers) < 1e-4


@pytest.mark.parametrize("heat", [0.3, 0.7, 1.6])
def test_log_probs_are_those_of_the_scaled_distribution(heat: float) -> None:
    model, prompts = make(), texts(12)
    with LocalEngine(model, max_batch=8, chunk=64) as engine:
        answers = ask(engine, prompts, temperature=heat)
    assert largest_difference(model, prompts, answers, heat) < 1e-4


def test_log_probs_with_top_k_and_top_p_are_renormalised() -> None:
    model, prompts = make(), texts(20)
    with LocalEngine(model, max_batch=8, chunk=64) as engine:
        answers = ask(engine, prompts, top_k=5, top_p=0.8, temperature=1.5)
    for prompt, answer in zip(prompts, answers, strict=True):
        for row, token, logprob in zip(
            plain_logprobs(model, prompt, answer.token_ids, heat=1.5), answer.token_ids, answer.logprobs, strict=True
        ):
            probs, order = row.exp().sort(descending=True)
            probs = probs[:5] / probs[:5].sum()
            kept = int((probs.cumsum(0) < 0.8).sum()) + 1  # as many as it takes to reach 0.8
            place = order.tolist().index(token)
            assert place < kept
            assert logprob == pytest.approx(float((probs[place] / probs[:kept].sum()).log()), abs=1e-4)


@pytest.mark.parametrize(("dtype", "near"), [(torch.float64, 1e-4), (torch.bfloat16, 0.5)])
def test_the_cache_has_the_dtype_of_the_model(dtype: torch.dtype, near: float) -> None:
    model, prompts = make().to(dtype), texts(8)
    with LocalEngine(model, max_batch=8) as engine:
        answers = ask(engine, prompts)
        assert engine.runner.pool.dtype == dtype
    assert largest_difference(model, prompts, answers) < near


def test_a_small_cache_changes_no_token_and_no_log_prob() -> None:
    model, prompts = make(), texts(20)
    roomy, tight = (
        LocalEngine(model, max_batch=16, chunk=64),
        LocalEngine(model, cache_tokens=320, max_batch=16, chunk=64),
    )
    with roomy, tight:
        easy, hard = ask(roomy, prompts, max_tokens=40), ask(tight, prompts, max_tokens=40)
        assert tight.stats.preemptions > 0
        assert tight.stats.evicted_pages > 0
    assert [answer.token_ids for answer in easy] == [answer.token_ids for answer in hard]
    assert largest_difference(model, prompts, hard) < 1e-4


def test_other_requests_in_the_batch_change_no_token() -> None:
    model, prompts = make(), texts(24)
    with LocalEngine(model, max_batch=24) as together, LocalEngine(model, max_batch=1) as apart:
        assert [a.token_ids for a in ask(together, prompts)] == [a.token_ids for a in ask(apart, prompts)]


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 8))])
def test_random_requests_with_a_tiny_cache_equal_a_one_request_engine(seed: int) -> None:
    model, rng, prompts = make(), random.Random(seed), texts(25, seed=seed)
    options = {
        "max_tokens": lambda place: 1 + place * 3 % 50,
        "temperature": lambda place: [0.0, 0.8, 1.0][place % 3],
        "top_k": lambda place: [0, 4][place % 2],
    }
    small = LocalEngine(
        model, cache_tokens=rng.randrange(280, 500), max_batch=rng.randrange(2, 12), chunk=rng.choice([16, 64])
    )
    with small, LocalEngine(model, max_batch=1) as single:
        ours, reference = ask(small, prompts, **options), ask(single, prompts, **options)
        cache = small.scheduler.cache
        assert cache.available == cache.total
    for mine, theirs in zip(ours, reference, strict=True):
        assert mine.token_ids == theirs.token_ids
        assert mine.logprobs == pytest.approx(theirs.logprobs, abs=1e-4)


def test_fused_weights_are_views_of_the_parameters_so_training_changes_both() -> None:
    model = make("qwen2")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    folded = FusedDecoder(model)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    attn = model.get_decoder().layers[0].self_attn
    with torch.no_grad():
        attn.k_proj.weight.add_(1.0)
        attn.v_proj.bias.add_(2.0)
    heads = 6 * 16
    assert torch.equal(folded.layers[0].qkv.weight[heads : heads + 32], attn.k_proj.weight)
    assert torch.equal(folded.layers[0].qkv.bias[heads + 32 :], attn.v_proj.bias)
    joint = folded.layers[0].qkv.weight.data_ptr()
    folded.refresh()
    assert folded.layers[0].qkv.weight.data_ptr() == joint
