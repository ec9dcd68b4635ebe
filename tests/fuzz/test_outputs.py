"""Whatever a model writes becomes text or a verdict on its node. `make fuzz` tries a hundred times as many outputs."""

from __future__ import annotations

import pytest

from tests.fuzz.driver import PER_TREE, SHARES, fuzz, open_harness

OUTPUTS = 2000


@pytest.mark.parametrize("dialect", SHARES)
def test_no_output_of_a_model_raises_out_of_its_tree(dialect: str) -> None:
    wanted = int(SHARES[dialect] * OUTPUTS)
    with open_harness() as (harness, portal):
        fuzz(dialect, wanted, harness, portal, derandomize=True)
        assert harness.tried[dialect] >= wanted - PER_TREE
