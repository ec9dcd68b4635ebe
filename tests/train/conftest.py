"""Tiny models are slower on several threads than on one, and a run that ends looks for garbage among all objects."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True, scope="package")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True, scope="module")
def older_objects_are_not_collected() -> None:
    """Leave what earlier tests imported and keep out of garbage collection, as what was imported before all of them."""
    gc.collect()
    gc.freeze()
