"""A packed batch is the padded batch: losses, gradients, everything, in double precision."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from ramet.models.attention import unsupported
from ramet.train.local.forward import row_logprobs
from ramet.train.local.gradients import forward_backward
from ramet.train.local.packing import pack
from ramet.train.local.policy import Lora, Policy, prepare
from ramet.train.local.trie_attention import SegmentAttention
from ramet.train.loss import Loss
from ramet.train.metrics import Stats
from ramet.train.rows import Row
from tests.train.tiny import SIZES, exact, gradients, largest_difference, model, row, tries

CLOSE = 1e-9
PACKED = {family: prepare(model(family)) for family in ("llama", "qwen3", "granite")}
PADDED = {family: prepare(model(family), packed=False) for family in PACKED}
LOSS = Loss(kind="cispo", ceiling=2.0)


def step(policy: Policy, rows: Sequence[Row], *, tokens: int = 1000, loss: Loss = LOSS) -> tuple[Stats, dict]:
    stats = forward_backward(policy, rows, loss=loss, micro_batch_tokens=tokens, temperature=0.7, entropy=True)
    return stats, gradients(policy)


@pytest.mark.parametrize("family", PACKED)
@settings(max_examples=30, deadline=None)
@given(rows=tries().filter(lambda rows: any(row.num_trained for row in rows)))
def test_packed_and_padded_losses_and_gradients_agree(family: str, rows: list[Row]) -> None:
    packed, packed_gradients = step(PACKED[family], rows)
    padded, padded_gradients = step(PADDED[family], rows)
    assert packed.loss == pytest.approx(padded.loss, abs=CLOSE)
    assert packed.entropy == pytest.approx(padded.entropy, abs=CLOSE)
    assert packed.logprob_gap == pytest.approx(padded.logprob_gap, abs=CLOSE)
    assert packed.num_read <= padded.num_read
    assert largest_difference(packed_gradients, padded_gradients) < CLOSE


CORNERS = {
    "one trained token after one token": [row(1, 2)],
    "identical rows": [row(1, 2, 3, trained=2), row(1, 2, 3, trained=2, node=1), row(1, 2, 3, trained=2, node=2)],
    "a row that is a prefix of another": [row(1, 2, 3), row(1, 2, 3, 4, 5, 6, node=1, trained=3)],
    "rows that part after their first token": [row(1, 2, 3), row(1, 4, 5, node=1), row(1, 6, node=2)],
    "rows that share nothing": [row(1, 2, 3), row(2, 2, 3, node=1), row(3, 2, 3, node=2)],
    "one position with several targets": [row(1, 2, 3), row(1, 2, 4, node=1), row(1, 2, 5, node=2)],
    "a branch that is trained in one row and read in another": [
        row(1, 2, 3, 4, trained=3),
        row(1, 2, 3, 4, 5, node=1, trained=1),
    ],
    "text after the last trained token": [
        row(1, 2, 3, 4, 5, mask=(False, True, False, False, False)),
        row(1, 2, 3, 4, 6, node=1),
    ],
}


@pytest.mark.parametrize("family", PACKED)
@pytest.mark.parametrize("rows", CORNERS.values(), ids=CORNERS.keys())
def test_corners_of_a_trie_agree_with_padding(family: str, rows: list[Row]) -> None:
    loss = Loss(kind="plain")
    packed, packed_gradients = step(PACKED[family], rows, loss=loss)
    padded, padded_gradients = step(PADDED[family], rows, loss=loss)
    assert packed.loss == pytest.approx(padded.loss, abs=CLOSE)
    assert largest_difference(packed_gradients, padded_gradients) < CLOSE


@settings(max_examples=30, deadline=None)
@given(rows=tries(most=6), seed=st.integers(0, 99), tokens=st.integers(1, 40))
@pytest.mark.parametrize("aggregation", ["token", "node", "tree"])
def test_neither_micro_batches_nor_the_order_of_rows_change_a_step(
    aggregation: str, rows: list[Row], seed: int, tokens: int
) -> None:
    rows = [row for row in rows if row.num_trained]
    if not rows:
        return
    loss = Loss(kind="ppo", bounds=(0.5, 1.5), aggregation=aggregation)
    whole, whole_gradients = step(PACKED["llama"], rows, loss=loss)
    shuffled = random.Random(seed).sample(rows, len(rows))
    parts, parts_gradients = step(PACKED["llama"], shuffled, tokens=tokens, loss=loss)
    assert parts.loss == pytest.approx(whole.loss, abs=CLOSE)
    assert parts.clip_fraction == pytest.approx(whole.clip_fraction)
    assert largest_difference(parts_gradients, whole_gradients) < CLOSE


def test_rows_in_another_order_give_the_very_same_gradient() -> None:
    rows = [row(1, 2, 3, at, trained=2, node=at) for at in range(8)]
    _, forwards = step(PACKED["qwen3"], rows, tokens=9, loss=Loss(kind="plain"))
    _, backwards = step(PACKED["qwen3"], rows[::-1], tokens=9, loss=Loss(kind="plain"))
    assert largest_difference(forwards, backwards) == 0.0


def test_scores_come_back_in_the_order_of_rows() -> None:
    first, second = row(5, 6, 7, trained=2), row(1, 2, 3, 4, trained=3, node=1)
    together = row_logprobs(PACKED["llama"], [first, second]).logprobs
    apart = [row_logprobs(PADDED["llama"], [only]).logprobs for only in (first, second)]
    torch.testing.assert_close(together, torch.cat(apart), rtol=0, atol=CLOSE)


def test_pitfall_6_log_probs_are_those_of_the_whole_model_at_the_sampler_s_temperature() -> None:
    for family, policy in PACKED.items():
        with torch.no_grad():
            logits = model(family)(input_ids=torch.tensor([[3, 1, 4, 1]])).logits[0]
        expected = torch.log_softmax(logits / 0.5, dim=-1)
        scores = row_logprobs(policy, [row(3, 1, 4, 1, trained=3)], temperature=0.5, entropy=True)
        torch.testing.assert_close(scores.logprobs, expected[[0, 1, 2], [1, 4, 1]], rtol=0, atol=CLOSE)
        entropy = -(expected.exp() * expected).sum(-1)[:3]
        torch.testing.assert_close(scores.entropies, entropy, rtol=0, atol=CLOSE)


def test_a_model_that_scales_its_logits_is_called_as_a_whole() -> None:
    assert PACKED["llama"].head is not None
    assert PACKED["granite"].head is None


def test_the_vocabulary_in_chunks_is_the_vocabulary_at_once() -> None:
    rows = [row(1, 2, 3, at, at, trained=3, node=at) for at in range(5)]
    results: list[torch.Tensor] = []
    for chunk_elements in (1, 40, 10**6):
        policy = prepare(model("qwen3"))
        scores = row_logprobs(policy, rows, temperature=0.3, chunk_elements=chunk_elements)
        (scores.logprobs * torch.arange(15)).sum().backward()
        results.append(torch.cat([p.grad.flatten() for p in policy.trained if p.grad is not None]))
    torch.testing.assert_close(results[0], results[2], rtol=0, atol=CLOSE)
    torch.testing.assert_close(results[1], results[2], rtol=0, atol=CLOSE)


@pytest.mark.parametrize("lora", [None, Lora(rank=2, alpha=4)], ids=["whole model", "lora"])
def test_layers_that_are_computed_again_give_the_same_gradient(lora: Lora | None) -> None:
    rows = [row(1, 2, 3, at, at, trained=3, node=at) for at in range(5)]
    torch.manual_seed(0)
    kept = prepare(model("llama"), lora=lora)
    torch.manual_seed(0)
    again = prepare(model("llama"), lora=lora, checkpointing=True)
    _, expected = step(kept, rows, loss=Loss(kind="plain"))
    _, found = step(again, rows, loss=Loss(kind="plain"))
    assert largest_difference(found, expected) < CLOSE


def test_layers_really_are_computed_again() -> None:
    policy = prepare(model("llama"), checkpointing=True)
    calls: list[int] = []
    for layer in policy.decoder.layers:
        layer.mlp.register_forward_pre_hook(lambda *_: calls.append(1))
    step(policy, [row(1, 2, 3)], loss=Loss(kind="plain"))
    assert len(calls) == 2 * len(policy.decoder.layers)


def test_lora_trains_its_own_matrices_alone_packed_as_padded() -> None:
    rows = [row(1, 2, 3, at, at, trained=3, node=at) for at in range(5)]
    found: list[dict[str, torch.Tensor]] = []
    for packed in (True, False):
        torch.manual_seed(0)
        policy = prepare(model("qwen3"), packed=packed, lora=Lora(rank=2, alpha=4))
        found.append(step(policy, rows, loss=Loss(kind="plain"))[1])
    assert all("lora" in name for name in found[0])
    assert largest_difference(*found) < CLOSE


def test_dropout_is_off_so_that_the_learner_sees_what_the_sampler_saw() -> None:
    made = LlamaForCausalLM(LlamaConfig(**SIZES, attention_dropout=0.9))
    policy = prepare(exact(made).train(), checkpointing=True)
    rows = [row(1, 2, 3, 4, 5, 6, trained=4)]
    assert torch.equal(row_logprobs(policy, rows).logprobs, row_logprobs(policy, rows).logprobs)


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4},
        {"rope_type": "dynamic", "factor": 2.0},
        {"rope_type": "linear", "factor": 2.0},
    ],
    ids=lambda rope: rope["rope_type"],
)
def test_stretched_positions_are_the_same_packed_and_padded(rope: dict[str, object]) -> None:
    """Within the window a model is made for none of these depends on who else is in the batch."""
    config = LlamaConfig(**SIZES, rope_parameters={"rope_theta": 10000.0, **rope})
    made = exact(LlamaForCausalLM(config))
    rows = [row(1, 2, 3, *range(at, at + 9), trained=9, node=at) for at in range(5)] + [row(1, 4, node=9)]
    packed, padded = (prepare(copy.deepcopy(made), packed=packed) for packed in (True, False))
    assert packed.packs
    _, found = step(packed, rows, loss=Loss(kind="plain"))
    _, expected = step(padded, rows, loss=Loss(kind="plain"))
    assert largest_difference(found, expected) < CLOSE


def test_a_model_whose_positions_depend_on_the_length_of_the_text_is_not_packed() -> None:
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0] * 2, "long_factor": [2.0] * 2}
    config = LlamaConfig(**SIZES, rope_parameters={**rope, "original_max_position_embeddings": 4, "factor": 128.0})
    made = LlamaForCausalLM(config)
    assert "longrope" in str(unsupported(made))
    assert not prepare(made).packs


def test_segments_give_what_a_dense_mask_gives_and_nothing_leaks_between_branches() -> None:
    torch.manual_seed(0)
    packed = pack([row(1, 2, 3, 4, 5), row(1, 2, 6, 7, 8, node=1), row(1, 9, 9, node=2), row(4, 4, node=3)])
    size = len(packed.token_ids)
    queries, keys, values = (torch.randn(size, heads, 8, dtype=torch.float64) for heads in (4, 2, 2))
    seen = SegmentAttention(packed, torch.device("cpu")).attend(0, queries, keys, values, 8**-0.5)
    place = torch.arange(size)
    mask = (place[None] <= place[:, None]) & (place[:, None] < torch.tensor(packed.ends)[None])
    whole = torch.nn.functional.scaled_dot_product_attention(
        *(tensor.transpose(0, 1)[None] for tensor in (queries, keys, values)), attn_mask=mask, enable_gqa=True
    )[0].transpose(0, 1)
    torch.testing.assert_close(seen, whole, rtol=0, atol=1e-12)


def test_pitfall_23_a_model_that_cannot_be_packed_is_padded() -> None:
    policy = prepare(exact(MistralForCausalLM(MistralConfig(**SIZES, sliding_window=4))))
    assert unsupported(policy.core) is not None
    assert not policy.packs
    rows = [row(1, 2, 3, 4, 5, 6, 7, trained=2), row(1, 2, 3, node=1)]
    together, apart = row_logprobs(policy, rows).logprobs, [row_logprobs(policy, [only]).logprobs for only in rows]
    torch.testing.assert_close(together, torch.cat(apart), rtol=0, atol=CLOSE)
