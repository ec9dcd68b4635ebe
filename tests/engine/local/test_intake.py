"""Requests as the scheduler and the kernels get them."""

from __future__ import annotations

from typing import Any

import pytest

from ramet.engine.local.intake import Intake
from ramet.types import Prompt

REQUEST: dict[str, Any] = {"max_tokens": 4, "stop": (), "temperature": 1.0, "seed": 1, "meter": None}


@pytest.mark.parametrize(("wanted", "given"), [(0, 0), (5, 5), (211, 211), (212, 211), (10**12, 211)])
def test_top_k_is_at_most_the_vocabulary(wanted: int, given: int) -> None:
    """The kernel that looks for the lowest logit of `top_k` finds none where there are fewer."""
    prompt = Prompt(messages=(), ids=(1, 2, 3))
    intake = Intake(window=64, vocabulary=211, top_p=1.0, top_k=0, stop_tokens=frozenset())
    assert intake.request(prompt, top_k=wanted, **REQUEST).sampling.top_k == given
    intake = Intake(window=64, vocabulary=211, top_p=1.0, top_k=wanted, stop_tokens=frozenset())
    assert intake.request(prompt, **REQUEST).sampling.top_k == given
