"""One optimiser step: what its gradient is made of, and what it reports."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Sequence
from itertools import compress

import pytest
import torch
from transformers.modeling_layers import GradientCheckpointingLayer

from ramet.errors import ConfigError, TrainError
from ramet.train.local.forward import row_logprobs
from ramet.train.local.gradients import current_logprobs, forward_backward
from ramet.train.local.learner import add_gradients, clip_gradients, make_learner
from ramet.train.local.policy import Policy, prepare
from ramet.train.loss import Aggregation, Kind, KlGradient, Loss, select
from ramet.train.rows import Row
from ramet.train.settings import UpdateConfig
from tests.train.tiny import VOCABULARY, gradients, largest_difference, model, row

CLOSE = 1e-9
PLAIN = Loss(kind="plain")


def sample(policy: Policy, prompt: tuple[int, ...], *, tokens: int, temperature: float, **known: object) -> Row:
    """A row as an engine would record it: one token at a time, from the whole model."""
    token_ids, logprobs = list(prompt), [0.0] * len(prompt)
    for _ in range(tokens):
        with torch.no_grad():
            logits = policy.core(input_ids=torch.tensor([token_ids])).logits[0, -1] / temperature
        choice = int(torch.multinomial(logits.softmax(-1), 1))
        token_ids.append(choice)
        logprobs.append(float(logits.log_softmax(-1)[choice]))
    return row(*token_ids, trained=tokens, logprobs=tuple(logprobs), **known)


def test_rows_of_the_same_weights_have_no_gap_and_every_loss_the_same_gradient() -> None:
    torch.manual_seed(0)
    policy = prepare(model("qwen3"))
    prompts = [(1, 2, 3), (1, 2, 3), (1, 2, 4, 5)]
    rows = [
        sample(policy, prompt, tokens=6, temperature=0.8, node=node, advantage=node - 0.7)
        for node, prompt in enumerate(prompts)
    ]
    found = []
    for loss in (Loss(kind="ppo"), Loss(kind="cispo"), PLAIN, Loss(kind="ppo", ceiling=2.0)):
        stats = forward_backward(policy, rows, loss=loss, micro_batch_tokens=100, temperature=0.8)
        assert stats.logprob_gap_max is not None
        assert stats.logprob_gap_max < CLOSE
        assert stats.clip_fraction == 0.0
        found.append(gradients(policy))
    for other in found[1:]:
        assert largest_difference(found[0], other) < CLOSE


@pytest.mark.parametrize("aggregation", ["token", "node", "tree", "constant"])
@pytest.mark.parametrize("kind", ["ppo", "cispo", "plain"])
def test_rows_without_credit_are_not_computed_and_change_nothing(aggregation: Aggregation, kind: Kind) -> None:
    torch.manual_seed(0)
    policy, loss = prepare(model()), Loss(kind=kind, aggregation=aggregation, divisor=7.0)
    credits = [(0.7, 1.0), (0.0, 1.0), (0.7, 0.0), (-1.2, 0.5), (0.0, 0.0)]
    rows = [
        sample(policy, (1, 2, 3 + place), tokens=2 + place, temperature=1.0, advantage=advantage, weight=weight)
        for place, (advantage, weight) in enumerate(credits)
    ]
    rows = [dataclasses.replace(one, node=place, tree_id="ab"[place % 2]) for place, one in enumerate(rows)]
    found = []
    for skips in (False, True):
        selected = select(rows, loss, skip_zero_credit=skips)
        stats = forward_backward(policy, selected, loss=loss, micro_batch_tokens=9)
        found.append((stats, gradients(policy)))
    (every, whole), (some, part) = found
    assert (every.num_skipped, some.num_skipped) == (0, 3)
    assert some.num_rows == every.num_rows == 5
    assert some.num_trained == every.num_trained == 2 + 3 + 4 + 5 + 6
    assert some.num_tokens == every.num_tokens == sum(2 + count for count in (2, 3, 4, 5, 6))
    assert some.num_read < every.num_read
    assert some.loss == pytest.approx(every.loss, abs=CLOSE)
    assert largest_difference(whole, part) < CLOSE
    assert max(float(one.abs().max()) for one in whole.values()) > 1e-3


def test_rows_without_credit_are_computed_if_the_loss_has_a_kl_term() -> None:
    policy, loss = prepare(model()), Loss(kind="plain", kl=0.5)
    rows = [row(1, 2, 3, advantage=0.0), row(1, 2, 4, node=1)]
    found = []
    for skips in (False, True):
        stats = forward_backward(
            policy,
            select(rows, loss, skip_zero_credit=skips),
            loss=loss,
            micro_batch_tokens=99,
            reference=lambda batch: torch.full((len(batch),), -1.0, dtype=torch.float64),
        )
        assert stats.num_skipped == 0
        found.append(gradients(policy))
    assert largest_difference(*found) == 0.0


@pytest.mark.parametrize("kl_gradient", ["weighted", "plain"])
@pytest.mark.parametrize("aggregation", ["token", "node", "tree", "constant"])
def test_the_gradient_of_the_kl_term_is_the_slope_of_the_loss(
    aggregation: Aggregation, kl_gradient: KlGradient
) -> None:
    """A small move along the gradient changes the loss by the square of its norm, in every aggregation."""
    torch.manual_seed(0)
    policy = prepare(model())
    loss = Loss(kind="ppo", bounds=(0.0, 9.0), kl=0.5, kl_gradient=kl_gradient, aggregation=aggregation, divisor=7.0)
    rows = [
        sample(policy, (1, 2, 3 + place), tokens=2 + place, temperature=1.0, node=place, tree_id="ab"[place % 2])
        for place in range(3)
    ]
    rows = [dataclasses.replace(one, advantage=place - 1.0) for place, one in enumerate(rows)]

    def reference(batch: Sequence[Row]) -> torch.Tensor:
        recorded = [value for one in batch for value in compress(one.logprobs or (), one.mask)]
        return torch.tensor(recorded, dtype=torch.float64) - 0.4

    def total() -> float:
        return forward_backward(policy, rows, loss=loss, micro_batch_tokens=9, reference=reference).loss

    total()
    slopes = gradients(policy)
    square, step = sum(float((one**2).sum()) for one in slopes.values()), 1e-7
    found = []
    for move in (step, -2 * step):
        with torch.no_grad():
            for name, parameter in policy.model.named_parameters():
                parameter += move * slopes[name]
        found.append(total())
    assert square > 1e-3
    assert (found[0] - found[1]) / (2 * step) == pytest.approx(square, rel=1e-5)


def test_the_gap_is_taken_of_rows_this_version_sampled() -> None:
    policy = prepare(model())
    old, new = (
        row(1, 2, 3, logprobs=(0, 0, -9.0), versions=(3,)),
        row(1, 2, 4, node=1, versions=(4,), logprobs=(0,) * 3),
    )
    now = row_logprobs(policy, [new]).logprobs.item()
    stats = forward_backward(policy, [old, new], loss=PLAIN, micro_batch_tokens=100, version=4)
    assert stats.logprob_gap == pytest.approx(abs(now))
    assert stats.logprob_gap_max == pytest.approx(abs(now))
    assert forward_backward(policy, [old], loss=PLAIN, micro_batch_tokens=100, version=4).logprob_gap is None


def test_what_a_step_reports_by_hand() -> None:
    rows = [row(1, 2, 3, 4, trained=2), row(1, 2, 5, node=1), row(7, 8, node=2), row(1, 2, node=3, mask=(False, False))]
    stats = forward_backward(prepare(model()), rows, loss=PLAIN, micro_batch_tokens=3, entropy=True)
    assert (stats.num_rows, stats.num_trained) == (4, 4)
    assert stats.num_tokens == 3 + 2 + 1  # what rows read, each for itself
    assert stats.num_read == 3 + 1  # 1 2 3 and 7: the second row reads nothing of its own
    assert stats.num_batches == 2
    assert stats.logprob_gap is None
    assert stats.kl is None
    assert stats.entropy is not None
    assert 0 < stats.entropy <= torch.tensor(VOCABULARY).log().item()


def test_a_step_without_rows_is_nothing() -> None:
    policy = prepare(model())
    stats = forward_backward(policy, [], loss=PLAIN, micro_batch_tokens=10)
    assert (stats.loss, stats.num_batches, stats.clip_fraction) == (0.0, 0, None)
    assert gradients(policy) == {}


def test_pitfall_10_a_tree_may_grow_without_pulling_harder() -> None:
    policy = prepare(model())
    alone = [row(1, 2, 3, tree_id="a"), row(1, 4, 5, tree_id="b", advantage=-1.0)]
    grown = [*alone, row(1, 2, 3, tree_id="a", node=1), row(1, 2, 3, tree_id="a", node=2)]
    steps = {}
    for aggregation in ("tree", "node"):
        for name, rows in {"alone": alone, "grown": grown}.items():
            forward_backward(policy, rows, loss=Loss(kind="plain", aggregation=aggregation), micro_batch_tokens=100)
            steps[aggregation, name] = gradients(policy)
    assert largest_difference(steps["tree", "alone"], steps["tree", "grown"]) < CLOSE
    assert largest_difference(steps["node", "alone"], steps["node", "grown"]) > 1e-3


def test_pitfall_17_tokens_sampled_alike_in_two_trees_are_computed_once_and_own_a_term_each() -> None:
    policy = prepare(model())
    loss = Loss(kind="plain", aggregation="constant")
    first, second = row(1, 2, 3, trained=2, advantage=0.25), row(1, 2, 3, trained=2, advantage=0.5, tree_id="u")
    stats = forward_backward(policy, [first, second], loss=loss, micro_batch_tokens=100)
    assert stats.num_read == 2
    both = gradients(policy)
    forward_backward(policy, [dataclasses.replace(first, advantage=0.75)], loss=loss, micro_batch_tokens=100)
    assert largest_difference(both, gradients(policy)) < CLOSE


def test_pitfall_20_padding_has_no_loss_not_even_kl() -> None:
    loss = Loss(kind="plain", kl=0.5, aggregation="constant")
    other = prepare(model("qwen3"))
    rows = [row(1, 2, 3, 4, 5, 6, trained=2), row(1, 2, node=1, advantage=0.0)]
    steps = []
    for packed in (True, False):
        policy = prepare(model("llama"), packed=packed)
        stats = forward_backward(
            policy,
            rows,
            loss=loss,
            micro_batch_tokens=100,
            reference=lambda batch: row_logprobs(other, batch, temperature=1.0).logprobs,
        )
        assert stats.kl is not None
        assert stats.kl > 0
        steps.append(gradients(policy))
    policy = prepare(model("llama"), packed=False)
    for alone in rows:
        forward_backward(
            policy,
            [alone],
            loss=loss,
            micro_batch_tokens=100,
            reference=lambda batch: row_logprobs(other, batch).logprobs,
        )
    steps.append(gradients(policy))
    assert largest_difference(steps[0], steps[1]) < CLOSE
    assert largest_difference(steps[0], steps[2]) < CLOSE


def test_rows_without_a_trained_token_change_nothing() -> None:
    policy = prepare(model())
    rows = [row(1, 2, 3), row(1, 4, 5, node=1)]
    silent = row(1, 2, 9, node=2, tree_id="other", mask=(False, False, False))
    forward_backward(policy, rows, loss=PLAIN, micro_batch_tokens=100)
    before = gradients(policy)
    forward_backward(policy, [*rows, silent], loss=PLAIN, micro_batch_tokens=100)
    assert largest_difference(before, gradients(policy)) == 0.0


def test_a_layer_computed_again_in_another_thread_still_follows_its_plan() -> None:
    rows = [row(1, 2, 3, at, at, trained=3, node=at) for at in range(5)]
    kept, again = prepare(model()), prepare(model(), checkpointing=True)
    row_logprobs(kept, rows).logprobs.sum().backward()
    total = row_logprobs(again, rows).logprobs.sum()
    thread = threading.Thread(target=total.backward)
    thread.start()
    thread.join()
    assert largest_difference(gradients(kept), gradients(again)) < CLOSE


@pytest.mark.parametrize("packed", [True, False])
def test_log_probs_of_the_current_weights_come_back_in_the_order_of_the_rows(packed: bool) -> None:
    torch.manual_seed(0)
    policy = prepare(model(), packed=packed)
    rows = [sample(policy, (1, 2, 9 - place), tokens=1 + place, temperature=0.7, node=place) for place in range(4)]
    rows.append(row(1, 2, 3, mask=(False, False, False)))
    found = current_logprobs(policy, rows, micro_batch_tokens=9, temperature=0.7)
    assert len(found) == 5
    for one, values in zip(rows, found, strict=True):
        assert values == pytest.approx(one.logprobs or (0.0, 0.0, 0.0), abs=CLOSE)


def test_rows_with_and_without_log_probs_of_the_start_do_not_mix() -> None:
    rows = [row(1, 2, logprobs=(0.0, -1.0), proximal=(0.0, -1.0)), row(1, 3, logprobs=(0.0, -1.0), node=1)]
    with pytest.raises(TrainError, match="node 1 of tree 't': other rows have log-probs of the start of the step"):
        forward_backward(prepare(model()), rows, loss=Loss(), micro_batch_tokens=99)


def test_a_second_pass_takes_ratios_from_where_the_update_began() -> None:
    policy = prepare(model())
    rows = [row(1, 2, 3, trained=2, logprobs=(0.0, -1.0, -1.0))]
    (began,) = current_logprobs(policy, rows, micro_batch_tokens=100, temperature=1.0)
    rows = [dataclasses.replace(rows[0], proximal=began)]
    stats = forward_backward(policy, rows, loss=Loss(kind="ppo"), micro_batch_tokens=100)
    assert stats.clip_fraction == 0.0
    assert stats.loss == pytest.approx(-1.0)
    assert stats.logprob_gap is None


@pytest.mark.parametrize("micro_batch_tokens", [9, 100])
def test_gradients_added_after_the_backward_pass_are_those_added_during_it_bit_for_bit(micro_batch_tokens: int) -> None:
    rows = [row(1, 2, 3 + node, 4, 5, trained=3, node=node, advantage=node - 0.7) for node in range(4)]
    found: list[list[torch.Tensor]] = []
    for when in ("during", "after"):
        policy = prepare(model("qwen3").to(torch.bfloat16))
        learner = make_learner(policy, UpdateConfig(add_gradients=when))
        stats = forward_backward(
            policy,
            rows,
            loss=PLAIN,
            micro_batch_tokens=micro_batch_tokens,
            after_backward=lambda learner=learner: add_gradients(learner),
        )
        assert stats.num_batches == (2 if micro_batch_tokens == 9 else 1)
        assert all(parameter.grad is None for parameter in policy.trained)
        clip_gradients(learner)
        found.append([master.grad for master in learner.masters if master.grad is not None])
    assert len(found[0]) == len(found[1]) > 0
    assert all(torch.equal(during, after) for during, after in zip(*found, strict=True))


@pytest.mark.slow  # compiles C++
@pytest.mark.filterwarnings("ignore:::torch")
def test_compiled_layers_have_the_same_losses_and_gradients() -> None:
    rows = [row(*range(1, 4 + node), trained=2, node=node, advantage=node - 0.7) for node in range(4)]
    compiled, plain = prepare(model("qwen3"), compiled=True), prepare(model("qwen3"))
    for tokens in (9, 100):
        fast, slow = (
            forward_backward(policy, rows, loss=PLAIN, micro_batch_tokens=tokens) for policy in (compiled, plain)
        )
        assert fast.loss == pytest.approx(slow.loss, abs=CLOSE)
        assert largest_difference(gradients(compiled), gradients(plain)) < CLOSE


@pytest.mark.parametrize("option", ["compiled", "checkpointing"])
def test_a_model_without_layers_that_transformers_can_checkpoint_is_refused(option: str) -> None:
    made = model()
    for module in made.modules():
        if isinstance(module, GradientCheckpointingLayer):
            module.__class__ = type("Other", (torch.nn.Module,), {})
    with pytest.raises(ConfigError, match=r" has no layers that can be (compiled|checkpointed)$"):
        prepare(made, **{option: True})
