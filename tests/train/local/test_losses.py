"""Losses by hand. A ratio is now over then; every case also states the gradient by the log-prob."""

from __future__ import annotations

from math import exp, inf, log, nan
from typing import Any

import pytest
import torch
from hypothesis import given
from torch import Tensor

from ramet.errors import ConfigError, TrainError
from ramet.train.local.losses import Term, k3, terms, token_loss
from ramet.train.loss import Loss, idle_settings, share, totals
from ramet.train.rows import Row
from tests.train.tiny import row, tries


def one(
    loss: Loss,
    *,
    now: float,
    then: float | None,
    credit: float,
    proximal: float | None = None,
    reference: float | None = None,
) -> tuple[float, float, Term]:
    """The loss of one token and its gradient. Probabilities in, not logs."""

    def tensor(probability: float | None) -> Tensor | None:
        return None if probability is None else torch.tensor([log(probability)], dtype=torch.float64)

    logprobs = torch.tensor([log(now)], dtype=torch.float64, requires_grad=True)
    term = token_loss(
        logprobs,
        tensor(then),
        torch.tensor([credit], dtype=torch.float64),
        loss,
        proximal=tensor(proximal),
        reference=tensor(reference),
    )
    term.loss.sum().backward()
    return term.loss.item(), 0.0 if logprobs.grad is None else logprobs.grad.item(), term


PPO = Loss(kind="ppo")  # bounds 0.8 and 1.2
CISPO = Loss(kind="cispo", bounds=(0.8, 1.2))
DUAL = Loss(kind="ppo", dual_clip=3.0)
PLAIN = Loss(kind="plain")


@pytest.mark.parametrize(
    ("loss", "now", "then", "credit", "value", "gradient", "clipped"),
    [
        pytest.param(PPO, 0.55, 0.5, 2.0, -2.2, -2.2, False, id="ppo, ratio 1.1, good"),
        pytest.param(PPO, 0.75, 0.5, 2.0, -2.4, 0.0, True, id="ppo, ratio 1.5, good: far enough"),
        pytest.param(PPO, 0.25, 0.5, 2.0, -1.0, -1.0, False, id="ppo, ratio 0.5, good: back up"),
        pytest.param(PPO, 0.45, 0.5, -2.0, 1.8, 1.8, False, id="ppo, ratio 0.9, bad"),
        pytest.param(PPO, 0.75, 0.5, -2.0, 3.0, 3.0, False, id="ppo, ratio 1.5, bad: back down"),
        pytest.param(PPO, 0.25, 0.5, -2.0, 1.6, 0.0, True, id="ppo, ratio 0.5, bad: far enough"),
        pytest.param(PPO, 0.75, 0.5, 0.0, 0.0, 0.0, False, id="ppo, no credit"),
        pytest.param(DUAL, 0.8, 0.2, -2.0, 6.0, 0.0, True, id="ppo, dual clip: 3 times at most"),
        pytest.param(DUAL, 0.4, 0.2, -2.0, 4.0, 4.0, False, id="ppo, dual clip not reached"),
        pytest.param(DUAL, 0.8, 0.2, 2.0, -2.4, 0.0, True, id="ppo, dual clip leaves good tokens alone"),
        pytest.param(CISPO, 0.55, 0.5, 2.0, -2.2 * log(0.55), -2.2, False, id="cispo, ratio 1.1, good"),
        pytest.param(CISPO, 0.75, 0.5, 2.0, -2.4 * log(0.75), -2.4, True, id="cispo, ratio 1.5, good: at the bound"),
        pytest.param(CISPO, 0.25, 0.5, 2.0, -1.6 * log(0.25), -1.6, True, id="cispo, ratio 0.5, good: at the bound"),
        pytest.param(CISPO, 0.45, 0.5, -2.0, 1.8 * log(0.45), 1.8, False, id="cispo, ratio 0.9, bad"),
        pytest.param(CISPO, 0.75, 0.5, -2.0, 2.4 * log(0.75), 2.4, True, id="cispo, ratio 1.5, bad"),
        pytest.param(CISPO, 0.25, 0.5, -2.0, 1.6 * log(0.25), 1.6, True, id="cispo, ratio 0.5, bad"),
        pytest.param(Loss(kind="cispo"), 0.9, 0.1, 1.0, -5.0 * log(0.9), -5.0, True, id="cispo, bounds 0 and 5"),
        pytest.param(PLAIN, 0.25, 0.5, 2.0, -2.0 * log(0.25), -2.0, False, id="plain, good"),
        pytest.param(PLAIN, 0.25, 0.5, -2.0, 2.0 * log(0.25), 2.0, False, id="plain, bad"),
        pytest.param(PLAIN, 0.25, None, 1.0, -log(0.25), -1.0, False, id="plain is supervised learning"),
    ],
)
def test_losses_and_gradients_by_hand(
    loss: Loss, now: float, then: float | None, credit: float, value: float, gradient: float, clipped: bool
) -> None:
    found, slope, term = one(loss, now=now, then=then, credit=credit)
    assert found == pytest.approx(value, abs=1e-12)
    assert slope == pytest.approx(gradient, abs=1e-12)
    assert term.clipped.item() is clipped


@pytest.mark.parametrize(
    ("kind", "now", "then", "proximal", "credit", "value", "gradient"),
    [
        # The only pass: the whole ratio 4 is staleness, truncated to 1.5.
        pytest.param("plain", 0.4, 0.1, None, 2.0, -3.0 * log(0.4), -3.0, id="plain, 4 truncated to 1.5"),
        pytest.param("plain", 0.2, 0.4, None, 2.0, -1.0 * log(0.2), -1.0, id="plain, 0.5 is left alone"),
        pytest.param("ppo", 0.4, 0.1, None, 2.0, -3.0, -3.0, id="ppo, 4 truncated to 1.5"),
        pytest.param("ppo", 0.4, 0.1, None, -2.0, 3.0, 3.0, id="ppo, bad, 4 truncated to 1.5"),
        pytest.param("cispo", 0.4, 0.1, None, 2.0, -3.0 * log(0.4), -3.0, id="cispo, 4 truncated to 1.5"),
        # A second pass: 0.1 when sampled, 0.2 when the update began (2, truncated to 1.5), ratio 1.5 or 1.1 since.
        pytest.param("ppo", 0.3, 0.1, 0.2, 2.0, -3.6, 0.0, id="ppo, second pass, 1.5 × clipped 1.2"),
        pytest.param("ppo", 0.22, 0.1, 0.2, 2.0, -3.3, -3.3, id="ppo, second pass, 1.5 × 1.1"),
        pytest.param("cispo", 0.22, 0.1, 0.2, 2.0, -3.3 * log(0.22), -3.3, id="cispo, second pass, 1.5 × 1.1"),
    ],
)
def test_pitfall_7_importance_weights_of_stale_tokens_are_truncated_token_by_token(
    kind: str, now: float, then: float, proximal: float | None, credit: float, value: float, gradient: float
) -> None:
    loss = Loss(kind=kind, ceiling=1.5)
    found, slope, _ = one(loss, now=now, then=then, credit=credit, proximal=proximal)
    assert found == pytest.approx(value, abs=1e-12)
    assert slope == pytest.approx(gradient, abs=1e-12)


def test_ratios_against_where_the_update_began_without_a_correction() -> None:
    found, slope, _ = one(PPO, now=0.22, then=0.1, proximal=0.2, credit=2.0)
    assert (found, slope) == (pytest.approx(-2.2), pytest.approx(-2.2))


def test_kl_by_hand() -> None:
    # Reference 0.5, now 0.25: exp(log 2) - log 2 - 1 = 1 - log 2. Gradient of ratio × k3 where the ratio is 1: log 0.5.
    found, slope, term = one(Loss(kind="plain", kl=0.1), now=0.25, then=0.25, credit=0.0, reference=0.5)
    assert found == pytest.approx(0.1 * (1 - log(2)))
    assert slope == pytest.approx(0.1 * log(0.5))
    assert term.kl is not None
    assert term.kl.item() == pytest.approx(1 - log(2))


@pytest.mark.parametrize(
    ("kl_gradient", "then", "proximal", "ceiling", "value", "gradient"),
    [
        # Reference 0.5, now 0.25, so the gap is log 2: k3 = 2 - log 2 - 1, and its own gradient 1 - 2.
        pytest.param("plain", 0.25, None, None, 1 - log(2), -1.0, id="plain, ratio 1"),
        pytest.param("plain", 0.5, None, None, 1 - log(2), -1.0, id="plain, ratio 0.5: it does not matter"),
        pytest.param("plain", 0.05, 0.5, 2.0, 1 - log(2), -1.0, id="plain, importance weight 2: neither does that"),
        # Times the ratio w, whose gradient is w: w × (1 - log 2 - 1).
        pytest.param("weighted", 0.25, None, None, 1 - log(2), -log(2), id="weighted, ratio 1"),
        pytest.param("weighted", 0.5, None, None, 0.5 * (1 - log(2)), -0.5 * log(2), id="weighted, ratio 0.5"),
        pytest.param("weighted", 0.05, 0.5, 2.0, 1 - log(2), -log(2), id="weighted, ratio 0.5 × weight 10, at most 2"),
    ],
)
def test_both_gradients_of_kl_by_hand(
    kl_gradient: str, then: float, proximal: float | None, ceiling: float | None, value: float, gradient: float
) -> None:
    loss = Loss(kind="ppo", kl=0.1, kl_gradient=kl_gradient, ceiling=ceiling)
    found, slope, _ = one(loss, now=0.25, then=then, credit=0.0, proximal=proximal, reference=0.5)
    assert (found, slope) == (pytest.approx(0.1 * value), pytest.approx(0.1 * gradient))
    step = 1e-6
    higher, lower = (
        one(loss, now=0.25 * exp(move), then=then, credit=0.0, proximal=proximal, reference=0.5)[0]
        for move in (step, -step)
    )
    assert (higher - lower) / (2 * step) == pytest.approx(slope, abs=1e-7)


def test_the_plain_gradient_of_kl_is_that_of_the_divergence_the_other_way_round() -> None:
    logits = torch.tensor([0.3, -1.0, 0.8, 0.1], dtype=torch.float64, requires_grad=True)
    reference = torch.log_softmax(torch.tensor([1.0, 0.2, -0.5, 0.0], dtype=torch.float64), dim=0)
    now = torch.log_softmax(logits, dim=0)
    (other,) = torch.autograd.grad((reference.exp() * (reference - now)).sum(), logits, retain_graph=True)
    loss = Loss(kind="ppo", kl=1.0, kl_gradient="plain")
    term = token_loss(now, now.detach(), torch.zeros(4).double(), loss, reference=reference)
    (found,) = torch.autograd.grad((now.exp().detach() * term.loss).sum(), logits)
    torch.testing.assert_close(found, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["ppo", "cispo", "plain"])
def test_pitfall_15_the_gradient_of_kl_is_unbiased(kind: str) -> None:
    logits = torch.tensor([0.3, -1.0, 0.8, 0.1], dtype=torch.float64, requires_grad=True)
    reference = torch.log_softmax(torch.tensor([1.0, 0.2, -0.5, 0.0], dtype=torch.float64), dim=0)
    now = torch.log_softmax(logits, dim=0)
    (exact,) = torch.autograd.grad((now.exp() * (now - reference)).sum(), logits, retain_graph=True)
    # Every token once, weighed by how often it is sampled: the expectation over samples of this policy.
    term = token_loss(now, now.detach(), torch.zeros(4).double(), Loss(kind=kind, kl=1.0), reference=reference)
    (found,) = torch.autograd.grad((now.exp().detach() * term.loss).sum(), logits, retain_graph=True)
    (naive,) = torch.autograd.grad((now.exp().detach() * k3(now, reference)).sum(), logits)
    torch.testing.assert_close(found, exact, rtol=0, atol=1e-12)
    assert (naive - exact).abs().max() > 0.01


def test_pitfall_15_kl_is_off_by_default_and_asks_for_its_reference() -> None:
    assert Loss().kl == 0.0
    with pytest.raises(ConfigError, match=r"loss\.kl needs the log-probs of a reference"):
        one(Loss(kl=0.1), now=0.5, then=0.5, credit=1.0)


def test_far_ratios_stay_finite() -> None:
    for loss in (PPO, CISPO, Loss(kind="plain", ceiling=2.0)):
        for then, now in ((1e-300, 1.0), (1.0, 1e-300)):
            found, slope, _ = one(loss, now=now, then=then, credit=0.0)
            assert (found, slope) == (0.0, 0.0)


FAMILY = [
    row(1, 2, 3, trained=2, tree_id="a", node=0),
    row(1, 2, 3, 4, 5, trained=4, tree_id="a", node=1),
    row(1, 2, 3, trained=2, tree_id="b", node=0),
]


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (Loss(aggregation="token"), [1 / 8, 1 / 8, 1 / 8]),
        (Loss(aggregation="node"), [1 / 6, 1 / 12, 1 / 6]),
        (Loss(aggregation="tree"), [1 / 8, 1 / 16, 1 / 4]),
        (Loss(aggregation="constant", divisor=100), [1 / 100, 1 / 100, 1 / 100]),
    ],
)
def test_shares_by_hand(loss: Loss, expected: list[float]) -> None:
    counted = totals(FAMILY)
    assert [share(row, counted, loss) for row in FAMILY] == pytest.approx(expected)


@pytest.mark.parametrize("aggregation", ["token", "node", "tree"])
@given(rows=tries().filter(lambda rows: any(row.num_trained for row in rows)))
def test_shares_of_a_step_add_up_to_one(aggregation: str, rows: list[Row]) -> None:
    counted, loss = totals(rows), Loss(aggregation=aggregation)
    assert sum(row.num_trained * share(row, counted, loss) for row in rows if row.num_trained) == pytest.approx(1)


def test_two_rows_of_one_node_are_still_one_node() -> None:
    rows = [row(1, 2, 3, node=4), row(1, 5, 3, 4, 5, node=4, trained=3), row(1, 2, node=5)]
    counted = totals(rows)
    assert [share(row, counted, Loss(aggregation="node")) for row in rows] == [1 / 8, 1 / 8, 1 / 2]


def test_pitfall_8_a_row_s_advantage_lands_on_its_own_tokens() -> None:
    rows = [row(1, 2, 3, trained=2, advantage=1.0), row(1, 2, node=1, advantage=-2.0, weight=0.5)]
    rows.append(row(1, 2, 3, 4, trained=3, node=2, advantage=3.0))
    known = terms(rows, totals(rows), Loss(kind="plain"), like=torch.zeros(0, dtype=torch.float64))
    assert known.credit.tolist() == [1.0, 1.0, -1.0, 3.0, 3.0, 3.0]


def test_pitfall_10_a_tree_s_size_is_no_hidden_weight_unless_asked_for() -> None:
    assert Loss().aggregation == "tree"
    small = [row(1, 2, tree_id="a"), *(row(1, 2, tree_id="b", node=node) for node in range(3))]
    for aggregation, expected in {"tree": [1 / 2, 1 / 2], "node": [1 / 4, 3 / 4], "token": [1 / 4, 3 / 4]}.items():
        counted, loss = totals(small), Loss(aggregation=aggregation)
        weights = {"a": 0.0, "b": 0.0}
        for each in small:
            weights[each.tree_id] += each.num_trained * share(each, counted, loss)
        assert list(weights.values()) == pytest.approx(expected)


def test_pitfall_11_a_short_and_a_long_row_in_two_micro_batches_weigh_as_in_one() -> None:
    # One token of loss 1 and three of loss 0: the mean of the step is 0.25, the mean of micro-batch means 0.5.
    rows = [row(1, 2), row(1, 2, 3, 4, trained=3, node=1)]
    counted, losses = totals(rows), {0: [1.0], 1: [0.0, 0.0, 0.0]}
    like = torch.zeros(0, dtype=torch.float64)
    step = 0.0
    for each in rows:
        known = terms([each], counted, Loss(kind="plain", aggregation="token"), like=like)
        step += float((torch.tensor(losses[each.node], dtype=torch.float64) * known.share).sum())
    assert step == pytest.approx(0.25)


def test_pitfall_12_with_a_constant_divisor_a_token_weighs_the_same_in_a_long_answer() -> None:
    short, long = row(1, 2), row(1, *range(50), trained=50, node=1)
    counted, loss = totals([short, long]), Loss(aggregation="constant", divisor=64)
    assert share(short, counted, loss) == share(long, counted, loss) == 1 / 64


def test_a_weight_below_zero_turns_the_advantage_around_before_it_is_clipped() -> None:
    turned = row(1, 2, logprobs=(0.0, log(0.5)), advantage=2.0, weight=-1.0)
    known = terms([turned], totals([turned]), PPO, like=torch.zeros(0, dtype=torch.float64))
    now = torch.tensor([log(0.25)], dtype=torch.float64)
    assert token_loss(now, known.behaviour, known.credit, PPO).loss.item() == pytest.approx(1.6)


def test_losses_that_need_log_probs_say_which_row_has_none() -> None:
    for loss in (PPO, CISPO, Loss(kind="plain", ceiling=2.0)):
        with pytest.raises(TrainError, match="node 0 of tree 't': the engine recorded no log-probs"):
            terms([row(1, 2)], totals([row(1, 2)]), loss, like=torch.zeros(0))


def test_settings_that_make_no_sense_are_refused() -> None:
    bad = ({"kind": "grpo"}, {"aggregation": "mean"}, {"divisor": 0.0}, {"kl_gradient": "ratio"}, {"kl": -1.0})
    for settings in bad:
        with pytest.raises(ConfigError):
            Loss(**settings)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"bounds": (1.2, 0.8)}, r"loss\.bounds are two numbers from 0 up, the lower one first; got \[1\.2, 0\.8\]"),
        ({"bounds": (-0.1, 1.2)}, "loss.bounds are"),
        ({"bounds": (nan, nan)}, "loss.bounds are"),
        ({"bounds": (0.8, nan)}, "loss.bounds are"),
        ({"ceiling": -1.0}, "loss.ceiling is a number above 0; got -1.0"),
        ({"ceiling": 0.0}, "loss.ceiling is"),
        ({"ceiling": nan}, "loss.ceiling is"),
        ({"kind": "ppo", "dual_clip": 1.0}, "loss.dual_clip is a number above 1; got 1.0"),
        ({"kind": "ppo", "dual_clip": -1.0}, "loss.dual_clip is"),
        ({"kind": "ppo", "dual_clip": nan}, "loss.dual_clip is"),
        ({"aggregation": "constant", "divisor": nan}, "loss.divisor is a number above 0; got nan"),
        ({"aggregation": "constant", "divisor": inf}, "loss.divisor is"),
        ({"kl": nan}, "loss.kl is"),
    ],
)
def test_limits_that_turn_a_gradient_around_or_off_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Loss(**settings)


def test_a_limit_that_never_applies_is_accepted() -> None:
    Loss(kind="ppo", bounds=(0.0, inf), ceiling=inf, dual_clip=inf)


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (Loss(dual_clip=3.0), "loss.dual_clip has no effect with loss.kind=cispo: it is for ppo"),
        (Loss(kind="plain", dual_clip=3.0), "loss.dual_clip has no effect with loss.kind=plain: it is for ppo"),
        (Loss(kind="plain", bounds=(0.0, 2.0)), "loss.bounds has no effect with loss.kind=plain: it is for ppo and"),
        (Loss(divisor=7.0), "loss.divisor has no effect with loss.aggregation=tree: it is for constant"),
        (Loss(kl_gradient="plain"), "loss.kl_gradient has no effect with loss.kl=0"),
    ],
)
def test_settings_without_effect_on_a_loss_are_named(loss: Loss, said: str) -> None:
    assert [note.startswith(said) for note in idle_settings(loss)] == [True]


def test_settings_with_an_effect_and_defaults_pass() -> None:
    assert idle_settings(Loss(kind="ppo", bounds=(0.8, 1.2), dual_clip=3.0, kl=0.1, kl_gradient="plain")) == []
    assert idle_settings(Loss(kind="plain", aggregation="constant", divisor=7.0)) == []
    for kind in ("ppo", "cispo", "plain"):
        assert idle_settings(Loss(kind=kind)) == []
