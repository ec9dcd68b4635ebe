"""Values and slopes of token losses without torch are those of torch, also where log-ratios are clamped."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from ramet.train.local.losses import token_loss
from ramet.train.loss import Loss
from ramet.train.tinker.terms import token_terms
from tests.train.tiny import row

GAPS = (-25.0, -20.0, -19.0, -0.1, 0.0, 0.1, 19.0, 20.0, 25.0)  # of log-probs; the clamp is at 20
LOSSES: list[dict[str, Any]] = [
    {"kind": "ppo"},
    {"kind": "ppo", "dual_clip": 3.0},
    {"kind": "ppo", "bounds": (0.0, float("inf"))},
    {"kind": "ppo", "ceiling": 2.0},
    {"kind": "cispo"},
    {"kind": "plain"},
]


@pytest.mark.parametrize("advantage", [2.0, -2.0, 0.0])
@pytest.mark.parametrize("kl", [{}, {"kl": 0.5}, {"kl": 0.5, "kl_gradient": "plain"}], ids=["no kl", "kl", "plain kl"])
@pytest.mark.parametrize("settings", LOSSES, ids=str)
def test_slopes_are_those_of_autograd_at_any_distance(
    settings: dict[str, Any], kl: dict[str, Any], advantage: float
) -> None:
    """The sampler and the reference model are each as far from the policy as `GAPS` says."""
    loss = Loss(**settings, **kl)
    sampled, other = (np.array(one).ravel() for one in np.meshgrid(GAPS, GAPS))
    now = np.full(len(sampled), -30.0)
    behaviour, reference = now - sampled, now + other
    trained = row(*range(len(now) + 1), trained=len(now), logprobs=(0.0, *behaviour), advantage=advantage)
    found = token_terms(trained, now, loss, reference=reference if kl else None)
    logprobs = torch.tensor(now, requires_grad=True)
    expected = token_loss(
        logprobs,
        torch.tensor(behaviour),
        torch.full((len(now),), advantage, dtype=torch.float64),
        loss,
        reference=torch.tensor(reference) if kl else None,
    )
    expected.loss.sum().backward()
    assert logprobs.grad is not None
    np.testing.assert_allclose(found.loss, expected.loss.detach().numpy(), rtol=1e-12)
    np.testing.assert_allclose(found.slope, logprobs.grad.numpy(), rtol=1e-6, atol=1e-9)
    assert found.clipped.tolist() == expected.clipped.tolist()
