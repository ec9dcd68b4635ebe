"""How grants follow sizes, worked out by hand."""

from __future__ import annotations

import pytest

from ramet.budget import Budget
from ramet.train.behaviour import behaviour_metrics
from ramet.train.grants import grant_metrics, spearman
from ramet.types import Node, Task, Tree


def tree(*clones: tuple[int, float | None, int]) -> Tree:
    """A root and its descendants: parent, size and grant of each."""
    nodes = [Node(index=0, parent=None, depth=0, path=(), goal="root", grant=1000)]
    for index, (parent, size, grant) in enumerate(clones, start=1):
        depth = nodes[parent].depth + 1
        nodes.append(Node(index=index, parent=parent, depth=depth, path=(index,), goal="g", grant=grant, size=size))
    return Tree(id="t", task=Task(question="root"), budget=Budget(), nodes=nodes)


@pytest.mark.parametrize(
    ("first", "second", "wanted"),
    [
        ([1, 2, 3], [10, 20, 30], 1.0),
        ([1, 2, 3], [10, 30, 20], 0.5),  # 1 - 6 * 2 / (3 * 8)
        ([1, 2, 3, 4], [4, 3, 2, 1], -1.0),
        ([1, 1, 2], [5, 6, 7], 0.75**0.5),  # ranks 1.5, 1.5, 3: covariance 1.5, squares 1.5 and 2
        ([1, 2], [7, 7], None),
        ([1], [7], None),
        ([], [], None),
    ],
)
def test_hand_computed_rank_correlations(first: list[float], second: list[float], wanted: float | None) -> None:
    assert spearman(first, second) == (None if wanted is None else pytest.approx(wanted))


def test_only_clones_with_siblings_of_another_size_count() -> None:
    alone, equal = tree((0, 9.0, 50)), tree((0, 4.0, 90), (0, 4.0, 10))
    unequal = tree((0, 1.0, 100), (0, 3.0, 300), (0, 2.0, 200), (1, 8.0, 20))
    metrics = grant_metrics([alone, equal, unequal])
    assert metrics["grant_by_size"] == pytest.approx(1.0)
    assert metrics["granted_by_size"] == {"smaller": 100.0, "larger": 300.0}  # the mean is 2.0, the size of the third


def test_equal_grants_for_unequal_goals_have_no_correlation_but_means() -> None:
    metrics = grant_metrics([tree((0, 1.0, 100), (0, 5.0, 100)), tree((0, 2.0, 100), (0, 3.0, 100))])
    assert metrics == {"grant_by_size": None, "granted_by_size": {"smaller": 100.0, "larger": 100.0}}


def test_a_step_without_such_clones_has_no_numbers_but_the_same_fields() -> None:
    metrics = behaviour_metrics([tree((0, None, 100), (0, None, 200)), tree()])
    assert metrics["grant_by_size"] is None
    assert metrics["granted_by_size"] == {"smaller": None, "larger": None}
