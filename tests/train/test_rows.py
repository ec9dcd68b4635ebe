"""Trees become rows: ids as recorded, one loss term per sampled token, credit by node."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

import ramet
from ramet.errors import TrainError
from ramet.train.loss import totals
from ramet.train.rows import Row, tree_rows
from ramet.types import Node, Piece, Task, Tree
from tests.conftest import in_virtual_time
from tests.train.tiny import row

DELEGATE = '<tool_call>{"name": "delegate", "arguments": {"goals": ["left", "right"]}}</tool_call>'


def play(*, token_ids: bool = True) -> tuple[Tree, ramet.ScriptedEngine]:
    """A root that hands over two goals; the second child answers first."""

    def script(prompt: ramet.Prompt) -> ramet.Reply:
        if prompt.depth:
            return ramet.Reply(text=f"Answer: {prompt.goal} done", seconds=5.0 if prompt.goal == "left" else 1.0)
        return ramet.Reply(text=DELEGATE if prompt.turn == 0 else "Answer: both")

    engine = ramet.ScriptedEngine(script, token_ids=token_ids)

    async def work() -> Tree:
        return await ramet.run("Do both.", engine=engine, budget=ramet.Budget(tokens=4000, nodes=4, depth=1))

    return in_virtual_time(work), engine


def tree_of(*pieces: Piece) -> Tree:
    node = Node(index=0, parent=None, depth=0, path=(), goal="g", grant=10, pieces=list(pieces))
    return Tree(id="t", task=Task(question="q", id="sum-7"), budget=ramet.Budget(tokens=10), nodes=[node])


def given(*ids: int) -> Piece:
    return Piece(sampled=False, text="given", token_ids=ids)


def said(*ids: int, version: int = 0, logprobs: tuple[float, ...] | None = None) -> Piece:
    known = (-0.5,) * len(ids) if logprobs is None else logprobs
    return Piece(sampled=True, text="said", token_ids=ids, logprobs=known, policy_version=version)


def test_a_node_s_pieces_become_one_row() -> None:
    tree = tree_of(given(1, 2), said(3, 4, version=7, logprobs=(-0.1, -0.2)), given(5), said(6, version=8))
    (only,) = tree_rows(tree, {0: (0.5, 2.0)})
    assert only == Row(
        token_ids=(1, 2, 3, 4, 5, 6),
        mask=(False, False, True, True, False, True),
        logprobs=(0.0, 0.0, -0.1, -0.2, 0.0, -0.5),
        advantage=0.5,
        weight=2.0,
        tree_id="t",
        node=0,
        group="sum-7",
        versions=(7, 8),
    )
    assert only.read == (1, 2, 3, 4, 5)


def test_a_mistake_in_a_demonstration_is_read_but_carries_no_loss() -> None:
    mistake = replace(said(3, 4, logprobs=(-0.1, -0.2)), taught=False)
    tree = tree_of(given(1, 2), mistake, given(5), said(6, 7, logprobs=(-0.3, -0.4)))
    (only,) = tree_rows(tree, {0: (1.0, 1.0)})
    assert only.token_ids == (1, 2, 3, 4, 5, 6, 7)
    assert only.mask == (False, False, False, False, False, True, True)
    assert only.logprobs == (0.0, 0.0, 0.0, 0.0, 0.0, -0.3, -0.4)
    assert only.num_trained == 2
    assert only.read == (1, 2, 3, 4, 5, 6)
    counted = totals([only, row(1, 2, 3, trained=2)])
    assert counted.tokens == 4  # two of the mistaken tree, two of the other


def test_a_node_that_only_made_mistakes_has_no_row() -> None:
    assert tree_rows(tree_of(given(1, 2), replace(said(3), taught=False)), {0: (1.0, 1.0)}) == []


def test_nodes_that_said_nothing_have_no_row() -> None:
    assert tree_rows(tree_of(given(1, 2)), {}) == []


def test_a_tree_of_a_text_only_engine_is_refused_with_the_reason() -> None:
    tree, _ = play(token_ids=False)
    with pytest.raises(TrainError, match=r"node 0: no token ids were recorded.*can run, but not train"):
        tree_rows(tree, {node.index: (1.0, 1.0) for node in tree.nodes})


def test_a_node_without_credit_is_refused_not_dropped() -> None:
    tree, _ = play()
    with pytest.raises(TrainError, match=r"nodes \[2\] sampled tokens but got no credit"):
        tree_rows(tree, {0: (1.0, 1.0), 1: (1.0, 1.0)})


def test_log_probs_are_all_there_or_none() -> None:
    (without,) = tree_rows(tree_of(given(1), said(2, logprobs=())), {0: (1.0, 1.0)})
    assert without.logprobs is None
    with pytest.raises(TrainError, match="1 sampled tokens, 0 log-probs"):
        tree_rows(tree_of(given(1), said(2), given(3), said(4, logprobs=())), {0: (1.0, 1.0)})


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_numbers_that_are_not_finite_are_refused_where_they_come_in(number: float) -> None:
    with pytest.raises(TrainError, match=r"node 3 of tree 't'.*finite"):
        row(1, 2, node=3, advantage=number)
    with pytest.raises(TrainError, match="finite"):
        row(1, 2, weight=number)
    with pytest.raises(TrainError, match="finite"):
        row(1, 2, logprobs=(0.0, -number))


def test_a_first_token_cannot_be_trained() -> None:
    with pytest.raises(TrainError, match="nothing precedes it"):
        row(1, 2, trained=2)


def test_lengths_must_match() -> None:
    with pytest.raises(TrainError, match="differ in length"):
        row(1, 2, logprobs=())


def test_pitfalls_1_and_2_rows_are_the_very_ids_that_went_in_and_came_out() -> None:
    tree, engine = play()
    rows = {f"{row.tree_id}/{row.node}": row for row in tree_rows(tree, dict.fromkeys(range(3), (1.0, 1.0)))}
    for prompt in engine.prompts:
        assert prompt.ids is not None
        assert rows[prompt.node_id].token_ids[: len(prompt.ids)] == tuple(prompt.ids)


def test_pitfall_3_parallel_children_are_told_apart_by_node_not_by_order_or_prefix() -> None:
    tree, engine = play()
    rows = tree_rows(tree, {0: (0.0, 1.0), 1: (0.1, 1.0), 2: (0.2, 1.0)})
    assert [row.advantage for row in rows] == [0.0, 0.1, 0.2]
    for child in rows[1:]:
        words = engine.tokenizer.decode([child.token_ids[at] for at in child.trained])
        assert tree.nodes[child.node].goal in words


def test_pitfall_9_the_group_is_data_on_the_row() -> None:
    tree = tree_of(given(1), said(2))
    assert tree_rows(tree, {0: (1.0, 1.0)})[0].group == "sum-7"
    assert tree_rows(tree, {0: (1.0, 1.0)}, group="sum-7/roots")[0].group == "sum-7/roots"


def test_pitfall_13_a_row_knows_every_version_that_sampled_it() -> None:
    tree = tree_of(given(1), said(2, version=5), given(3), said(4, version=3), given(5), said(6, version=5))
    assert tree_rows(tree, {0: (1.0, 1.0)})[0].versions == (3, 5)


def test_pitfall_17_every_sampled_token_of_a_tree_is_trained_exactly_once() -> None:
    tree, engine = play()
    rows = tree_rows(tree, dict.fromkeys(range(3), (1.0, 1.0)))
    assert sum(row.num_trained for row in rows) == engine.generated
