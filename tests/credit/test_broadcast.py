"""The control: the root's advantage for every node."""

from __future__ import annotations

import pytest

from ramet.credit.broadcast import Broadcast
from tests.credit.trees import column, group, plant, singles


def test_every_node_gets_its_root_s_advantage_regardless_of_its_own_score():
    credits = Broadcast().credit([group(plant("a", [1.0, 0.0, 1.0], [None, 0, 1]), plant("b", [0.0, 1.0], [None, 0]))])
    assert column(credits, "advantage") == [0.5, 0.5, 0.5, -0.5, -0.5]
    assert column(credits, "reward") == [1.0, 1.0, 1.0, 0.0, 0.0]
    assert column(credits, "weight") == [1.0] * 5


def test_the_baseline_is_the_mean_of_all_roots_or_of_the_other_roots():
    scores = (1.0, 0.0, 0.5, 1.0)
    assert column(Broadcast().credit([singles(*scores)]), "advantage") == [0.375, -0.625, -0.125, 0.375]
    others = column(Broadcast(baseline="leave_one_out").credit([singles(*scores)]), "advantage")
    assert others == pytest.approx([0.5, -0.833333, -0.166667, 0.5], abs=1e-6)


def test_advantages_can_be_divided_by_the_standard_deviation():
    credits = Broadcast(normalise=True, epsilon=0.0).credit([singles(1.0, 0.0, 0.0, 0.0)])
    assert column(credits, "advantage") == [1.5, -0.5, -0.5, -0.5]
    padded = column(Broadcast(normalise=True).credit([singles(1.0, 0.0, 0.0, 0.0)]), "advantage")
    assert [round(value, 6) for value in padded] == [1.499997, -0.499999, -0.499999, -0.499999]
