"""What methods of a taskset of one's own return: a mistake is one line that names the method."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

import anyio
import pytest

from ramet.agent.options import TreeOptions
from ramet.config import load
from ramet.engine.scripted import ScriptedEngine
from ramet.errors import ConfigError, PluginError
from ramet.evaluate.items import select_items
from ramet.store import RunDir, read_trees
from ramet.store.facts import tree_facts
from ramet.tasks.play import play
from ramet.tasks.registry import find_task, load_taskset
from ramet.tasks.validate import Report, validate
from ramet.train.preview import preview
from ramet.train.settings import TrainConfig
from ramet.types import Tree
from tests.plugin_files import write_plugins

IMPORTS = """from dataclasses import replace
from my_tasks import Backwards
from numpy import array, float32
from ramet import Verdict
"""
METHODS = {
    "Number": "def verdict(self, task, world, node): return 1.0",
    "Large": "def verdict(self, task, world, node): return Verdict(score=2.0, how='exact')",
    "Several": "def verdict(self, task, world, node): return Verdict(score=array([0.0, 1.0]), how='exact')",
    "Misspelt": "def verdict(self, task, world, node): return Verdict(score=1.0, how='exaxt')",
    "Unset": "def verdict(self, task, world, node): return Verdict(score=1.0, how=None)",
    "Text": "def task(self, split, index): return 'hello'",
    "Table": "def budget(self, task): return {'tokens': 100}",
    "Flat": "def world(self, task): return {}",
    "Silent": "def oracle(self, task, *, delegate, seed): return 'an answer'",
    "Single": "def self_check(self, task): return 1.0",
    "Below": "def size(self, split): return -1",
    "Empty": "def size(self, split): return 0",
    "Missing": "oracle = None",
    "Raises": "def verdict(self, task, world, node): return Verdict(score=1 / 0, how='exact')",
    "Listed": "splits = ['train']",
    "Same": "def task(self, split, index): return replace(super().task(split, index), id='same')",
}
FAULTS = {
    "Number": "Number.verdict must return ramet.Verdict or None; got float",
    "Large": "backwards gave node 0 of backwards:train/0 the score 2.0: a score is a number from 0 to 1",
    "Several": "backwards gave node 0 of backwards:train/0 the score array([0., 1.]): a score is a number from 0 to 1",
    "Misspelt": "backwards gave node 0 of backwards:train/0 a verdict with how='exaxt': did you mean exact? "
    "(accepted: exact, judge, root)",
    "Unset": "backwards gave node 0 of backwards:train/0 a verdict with how=None: accepted: exact, judge, root",
    "Text": "Text.task must return ramet.Task; got str",
    "Table": "Table.budget must return ramet.Budget; got dict",
    "Flat": "Flat.world must return an object with functions and context, such as ramet.TaskWorld(task); got dict",
    "Silent": "Silent.oracle must return an object with a method move, such as ramet.Direct(answer); got str",
    "Single": "Single.self_check must return two scores from 0 to 1, of a right and of a wrong solution; got float",
    "Below": "Below.size must return a number of tasks, or None if there is no end; got -1",
    "Empty": "backwards:train has no tasks",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with faulty tasksets in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    classes = (f"class {name}(Backwards):\n    {method}\n" for name, method in METHODS.items())
    (tmp_path / "bad.py").write_text(IMPORTS + "".join(classes))
    return write_plugins(tmp_path)


def checked(name: str) -> Report:
    return anyio.run(partial(validate, load_taskset(f"bad.py:{name}"), "train", num_tasks=2))


@pytest.mark.parametrize("name", FAULTS)
def test_the_check_of_a_taskset_names_a_mistake_once(folder: Path, name: str) -> None:
    assert checked(name).faults == [FAULTS[name]]


@pytest.mark.parametrize("name", ["Number", "Large", "Misspelt", "Text", "Table", "Flat", "Silent"])
def test_a_mistake_is_one_line_before_a_training(folder: Path, name: str) -> None:
    config = load(TrainConfig, words=["model=nano", "dialect=terse", f"task=bad.py:{name}"])
    with pytest.raises(PluginError) as caught:
        preview(load_taskset(f"bad.py:{name}"), "train", config)
    assert str(caught.value) == FAULTS[name]


@pytest.mark.parametrize("name", ["Number", "Large", "Misspelt", "Text", "Table", "Flat"])
def test_a_mistake_is_one_line_when_a_tree_is_run(folder: Path, name: str) -> None:
    async def run() -> None:
        taskset, task = find_task(f"bad.py:{name}:train/0", {})
        await play(taskset, task, TreeOptions(engine=ScriptedEngine(lambda prompt: "Answer: red")))

    with pytest.raises(PluginError) as caught:
        anyio.run(run)
    assert str(caught.value) == FAULTS[name]


@pytest.mark.parametrize("score", ["True", "array([1.0] * 2).all()", "float32(0.5)"])
def test_a_score_of_any_kind_of_number_can_be_stored(folder: Path, score: str) -> None:
    verdict = f"def verdict(self, task, world, node): return Verdict(score={score}, how='exact')"
    (folder / "odd.py").write_text(f"{IMPORTS}class Odd(Backwards):\n    {verdict}\n")

    async def run() -> Tree:
        taskset, task = find_task("odd.py:Odd:train/0", {})
        return await play(taskset, task, TreeOptions(engine=ScriptedEngine(lambda prompt: "Answer: red")))

    tree = anyio.run(run)
    assert json.loads(json.dumps(tree_facts(tree)))["verdict"]["score"] in (1.0, 0.5)
    stored = RunDir.create(folder, "odd")
    stored.write([tree])
    assert [read.root.verdict for read in read_trees(stored.path)] == [tree.root.verdict]


def test_a_reward_that_raises_names_the_node_and_the_task(folder: Path) -> None:
    (fault, *_) = checked("Raises").faults
    assert fault.startswith("backwards:train/0 (tools, alone): ZeroDivisionError in bad.py, line ")
    assert fault.endswith(": division by zero (grading node 0 of backwards:train/0)")


def test_a_task_that_is_none_is_one_line_in_an_evaluation(folder: Path) -> None:
    with pytest.raises(PluginError, match=r"^Text\.task must return ramet\.Task; got str$"):
        select_items([("bad", load_taskset("bad.py:Text"), "train")], num_tasks=1)


def test_a_method_that_is_none_is_found_when_the_taskset_is_loaded(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"^bad\.py:Missing: oracle must be a method; got NoneType$"):
        load_taskset("bad.py:Missing")


def test_splits_that_are_no_dict_are_found_when_the_taskset_is_loaded(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"^bad\.py:Listed: splits must be a dict, like .*; got \['train'\]$"):
        load_taskset("bad.py:Listed")


def test_tasks_that_share_an_id_are_a_fault(folder: Path) -> None:
    assert checked("Same") == Report(
        tasks=2, trees=12, delegating=0, faults=["backwards:train/1 has the id 'same' of another task"]
    )


def test_a_file_without_a_name_lists_its_classes_that_fit(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"^my_tasks\.py is a file: write .*:NAME; tasksets in it: Backwards$"):
        load_taskset("my_tasks.py")
    with pytest.raises(ConfigError, match=r"^my_rule\.py is a file: write .*; it has no class that is a taskset$"):
        load_taskset("my_rule.py")
    with pytest.raises(ConfigError, match=r"^my_tasks\.py is a file: write my_tasks\.py:NAME"):
        load(TrainConfig, words=["task=my_tasks.py"])
    with pytest.raises(ConfigError, match=r"^nothing\.py: no such file: nothing\.py$"):
        load_taskset("nothing.py")
