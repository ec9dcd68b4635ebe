"""Chosen log-probs in chunks against log softmax over everything."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ramet.train.local.head import Targets, pick, token_logprobs

# Five hidden states; the second is asked twice for the same token and once for another, the fourth for none.
TARGETS = Targets(
    slots=torch.tensor([0, 1, 1, 1, 2, 4]), tokens=torch.tensor([3, 5, 5, 0, 6, 2]), counts=(1, 3, 1, 0, 1)
)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("chunk_elements", [1, 14, 1000])
@pytest.mark.parametrize("temperature", [0.6, 1.0])
def test_values_and_gradients_are_those_of_log_softmax(bias: bool, chunk_elements: int, temperature: float) -> None:
    torch.manual_seed(0)
    head = nn.Linear(4, 7, bias=bias).double()
    hidden = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    upstream = torch.randn(6, dtype=torch.float64)
    inputs = [hidden, *head.parameters()]

    expected = (head(hidden) / temperature).log_softmax(-1)
    chosen = expected[TARGETS.slots, TARGETS.tokens]
    entropy = -(expected.exp() * expected).sum(-1)[TARGETS.slots]
    slopes = torch.autograd.grad((chosen * upstream).sum(), inputs)

    found, entropies = token_logprobs(
        hidden, head, TARGETS, temperature=temperature, entropy=True, chunk_elements=chunk_elements
    )
    picked, picked_entropies = pick(head(hidden), TARGETS, temperature=temperature, entropy=True)
    for values, disorder in ((found, entropies), (picked, picked_entropies)):
        assert disorder is not None
        assert not disorder.requires_grad
        torch.testing.assert_close(values, chosen, rtol=0, atol=1e-12)
        torch.testing.assert_close(disorder, entropy, rtol=0, atol=1e-12)
        own = torch.autograd.grad((values * upstream).sum(), inputs)
        for left, right in zip(own, slopes, strict=True):
            torch.testing.assert_close(left, right, rtol=0, atol=1e-12)


def test_a_head_that_is_not_trained_gets_no_gradient_but_passes_one_on() -> None:
    head = nn.Linear(4, 7, bias=False).requires_grad_(False)
    hidden = torch.randn(5, 4, requires_grad=True)
    token_logprobs(hidden, head, TARGETS)[0].sum().backward()
    assert head.weight.grad is None
    assert hidden.grad is not None


def test_half_precision_is_summed_in_single() -> None:
    torch.manual_seed(0)
    head = nn.Linear(16, 4096, bias=False).bfloat16()
    hidden = torch.randn(5, 16).bfloat16()
    found, _ = token_logprobs(hidden, head, TARGETS)
    assert found.dtype == torch.float32
    expected = head(hidden).float().log_softmax(-1)[TARGETS.slots, TARGETS.tokens]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_under_autocast_the_head_computes_as_linear_layers_do() -> None:
    torch.manual_seed(0)
    head, hidden = nn.Linear(16, 50), torch.randn(5, 16, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        found, _ = token_logprobs(hidden, head, TARGETS)
        expected = head(hidden).float().log_softmax(-1)[TARGETS.slots, TARGETS.tokens]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    found.sum().backward()
    assert head.weight.grad is not None
    assert head.weight.grad.dtype == torch.float32
