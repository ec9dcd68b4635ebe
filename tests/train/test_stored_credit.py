"""Credit of stored trees, as the viewer, `ramet show --node` and `ramet sql` compute it again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import ramet
from ramet.terminal.query import print_query
from ramet.terminal.trees import show_node
from ramet.train.stored_credit import NOT_A_STEP, stored_credit
from ramet.types import Piece
from tests.evaluate.trees import answered


@pytest.fixture
def run(tmp_path: Path) -> ramet.RunDir:
    """A training of one step: two trees of one task, of which one is right."""
    run = ramet.RunDir.create_at(tmp_path / "training", kind="train")
    (run.path / "config.toml").write_text('rule = "rao"\n', encoding="utf-8")
    trees = [answered("5", score=1.0, name="right"), answered("6", score=0.0, name="wrong")]
    for tree in trees:
        tree.root.pieces = [Piece(sampled=True, text="5", token_ids=(5,), logprobs=(-0.1,))]
    run.write(trees, name="step-000000")
    run.write([answered("7", score=1.0, name="held-out")], name="eval-000001")
    return run


def test_the_baseline_of_a_tree_is_the_other_one(run: ramet.RunDir) -> None:
    assert stored_credit(run, "right")["nodes"]["0"] == {
        "reward": 1.0,
        "baseline": 0.0,
        "advantage": 1.0,
        "weight": 1.0,
    }
    assert stored_credit(run, "wrong")["nodes"]["0"]["advantage"] == -1.0
    assert stored_credit(run, "held-out") == {"nodes": {}, "why": NOT_A_STEP}


def test_a_node_of_a_training_is_shown_with_its_credit(run: ramet.RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    show_node(run.path, 0, tree_id="wrong", as_json=False)
    assert "credit by rule rao: reward 0, baseline 1, advantage -1, weight 1" in capsys.readouterr().out
    show_node(run.path, 0, tree_id="wrong", as_json=True)
    assert json.loads(capsys.readouterr().out)["credit"]["advantage"] == -1.0
    show_node(run.path, 0, tree_id="held-out", as_json=False)
    assert f"no credit: {NOT_A_STEP}" in capsys.readouterr().out


def test_a_node_of_another_run_is_shown_without_a_word_on_credit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ramet.RunDir.create(tmp_path, "question")
    run.write([answered("5")])
    show_node(run.path, 0, tree_id=None, as_json=False)
    assert "credit" not in capsys.readouterr().out


def test_sql_joins_nodes_with_their_credit(run: ramet.RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    print_query(run.path, "select answer, advantage from nodes join credit using (tree, node) order by 2", as_json=True)
    assert json.loads(capsys.readouterr().out) == [
        {"answer": "6", "advantage": -1.0},
        {"answer": "5", "advantage": 1.0},
    ]


def test_a_rule_that_fails_costs_its_credit_and_nothing_else(
    run: ramet.RunDir, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rules.py").write_text("class Mine:\n    def credit(self, groups):\n        return 1 / 0\n")
    (run.path / "config.toml").write_text(f'rule = "{tmp_path}/rules.py:Mine"\n', encoding="utf-8")
    show_node(run.path, 0, tree_id="right", as_json=False)
    shown = capsys.readouterr().out
    assert "ZeroDivisionError in rules.py, line 3" in shown
    assert "answered" in shown
    print_query(run.path, "select count(*) as n from credit", as_json=True)
    printed = capsys.readouterr()
    assert json.loads(printed.out) == [{"n": 0}]
    assert "step-000000.parquet: the credit of this step cannot be computed here" in printed.err
