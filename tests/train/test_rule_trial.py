"""A credit rule of one's own, tried before a training starts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ramet.errors import ConfigError, TrainError
from ramet.train.loop import check_plan, train
from tests.plugin_files import write_plugins
from tests.train import small

RULES = '''
from ramet import Credit, make_credits

class Misspelt:
    def credit(self, groups):
        return {node.index: node.tokens for group in groups for tree in group.trees for node in tree.nodes}

class Nothing:
    def credit(self, groups):
        return None

class Table:
    def credit(self, groups):
        return {}

class Roots:
    def credit(self, groups):
        credit = Credit(reward=1.0, baseline=0.0, advantage=1.0, weight=1.0)
        return make_credits(groups, {(tree.id, 0): credit for group in groups for tree in group.trees})

class Counts:
    """Fails with what it was given."""

    def credit(self, groups):
        assert False, [[len(tree.nodes) > 1 for tree in group.trees] for group in groups]
'''
SUMS = {"task": "arithmetic:train", "taskset": {"operators": 6}}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with faulty rules in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "rules.py").write_text(RULES)
    return write_plugins(tmp_path)


def test_a_rule_is_tried_on_a_group_of_trees_with_clones_and_without(folder: Path) -> None:
    with pytest.raises(AssertionError, match=r"\[\[True, False, True, False, True\]\]"):
        check_plan(small.config(folder, "rule=rules.py:Counts", "group_size=5", **SUMS))


def test_a_rule_that_forgets_clones_is_found_where_the_first_task_needs_none(folder: Path) -> None:
    task = dict(SUMS, taskset={"operators": [1, 2]})
    with pytest.raises(TrainError, match=r"^the rule gave no credit to node 1 of tree 00000[1-7]-000-000: all nodes"):
        check_plan(small.config(folder, "rule=rules.py:Roots", "seed=0", **task))


@pytest.mark.parametrize(("rule", "got"), [("Nothing", "NoneType"), ("Table", "dict")])
def test_a_rule_that_returns_no_credits_is_one_line(folder: Path, rule: str, got: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{rule}\.credit must return make_credits\(groups, \.\.\.\); got {got}$"):
        check_plan(small.config(folder, f"rule=rules.py:{rule}"))


def test_a_rule_that_fails_is_found_before_the_supervised_start(folder: Path) -> None:
    model = small.folder(folder)
    config = small.config(model, "rule=rules.py:Misspelt", "warm.steps=1", "warm.trees_per_step=1")
    with pytest.raises(AttributeError, match="'Node' object has no attribute 'tokens'"):
        train(config, runs=folder / "runs")
    assert not (folder / "runs").exists()


def test_a_rule_for_tasks_without_an_oracle_is_not_tried(folder: Path) -> None:
    text = (folder / "my_tasks.py").read_text()
    (folder / "alone.py").write_text(
        text.replace("return Direct(backwards(task.question))", "raise NotImplementedError")
    )
    assert "raise NotImplementedError" in (folder / "alone.py").read_text()
    check_plan(small.config(folder, "rule=rules.py:Nothing", task="alone.py:Backwards", taskset={}))


def test_a_rule_that_works_passes(folder: Path) -> None:
    check_plan(small.config(folder, "rule=my_rule.py:Plain", task="my_tasks.py:Backwards", taskset={}))
