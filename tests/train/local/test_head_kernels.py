"""The kernels of log-probs over a vocabulary, run on a CPU by Triton's interpreter: `make test-kernels`."""

from __future__ import annotations

import os

import pytest
import torch
from torch import nn

from ramet.train.local.head import Targets, token_logprobs

pytestmark = pytest.mark.kernels


@pytest.fixture(scope="module", autouse=True)
def _interpreter() -> None:
    assert os.environ.get("TRITON_INTERPRET") == "1", "the interpreter is chosen before Triton is imported"


def targets_of(*tokens_of_slots: tuple[int, ...]) -> Targets:
    return Targets(
        slots=torch.tensor([slot for slot, tokens in enumerate(tokens_of_slots) for _ in tokens]),
        tokens=torch.tensor([token for tokens in tokens_of_slots for token in tokens]),
        counts=tuple(map(len, tokens_of_slots)),
    )


# Slots are asked for nothing, for one token, for tokens that repeat, and for more tokens than are compared at a time.
MANY = tuple(number % 7 for number in range(40))
TARGETS = targets_of((3,), (5, 5, 0), (), (4999,), MANY, (4999, 0, 4999))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["single", "half"])
@pytest.mark.parametrize("chunk_elements", [1, 5000, 10**6], ids=["one slot", "four slots", "all slots"])
@pytest.mark.parametrize("temperature", [0.6, 1.0])
def test_kernels_give_what_torch_gives(dtype: torch.dtype, chunk_elements: int, temperature: float) -> None:
    torch.manual_seed(0)
    head = nn.Linear(16, 5000).to(dtype)  # more than one block, and not a whole number of them
    hidden = (3 * torch.randn(6, 16)).to(dtype).requires_grad_()
    upstream = torch.randn(len(TARGETS.tokens))
    found, expected = (
        token_logprobs(
            hidden,
            head,
            TARGETS,
            temperature=temperature,
            entropy=True,
            chunk_elements=chunk_elements,
            fused=fused,
        )
        for fused in (True, False)
    )
    for one, other in zip(found, expected, strict=True):
        assert one is not None
        assert other is not None
        torch.testing.assert_close(one, other, rtol=0, atol=2e-5)
    inputs = [hidden, *head.parameters()]
    gradients = (torch.autograd.grad((one[0] * upstream).sum(), inputs) for one in (found, expected))
    bound = 1e-5 if dtype is torch.float32 else 0.01  # rounding may differ by one bit, and so may chunks
    for one, other in zip(*gradients, strict=True):
        assert one.dtype == dtype
        assert float((one - other).norm()) <= bound * float(other.norm())


def test_a_target_that_is_almost_certain_keeps_its_small_gradient() -> None:
    """The gradient of such a target is the difference of two numbers that half precision cannot tell apart."""
    head = nn.Linear(2, 3, bias=False).bfloat16()
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[9.0, 0.0], [0.0, 0.0], [0.0, 0.0]]))
    hidden = torch.tensor([[1.0, 0.0]], dtype=torch.bfloat16, requires_grad=True)
    logprobs, _ = token_logprobs(hidden, head, targets_of((0,)), fused=True)
    (found,) = torch.autograd.grad(logprobs.sum(), [hidden])
    rest = 1 - torch.tensor([9.0, 0.0, 0.0]).softmax(0)[0]  # 2.5e-4
    assert float(found[0, 0]) == pytest.approx(9 * float(rest), rel=0.01)
