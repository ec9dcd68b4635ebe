"""An evaluation in a run directory: created, found again, refused, locked, resumed."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

import ramet
from ramet.engine.scripted import Reply
from ramet.errors import ConfigError
from ramet.evaluate import Evaluation, evaluate
from ramet.evaluate.run import Progress
from ramet.evaluate.session import EvalRun, written_command
from ramet.evaluate.settings import EvaluateConfig
from ramet.interfaces import Taskset
from ramet.store import RunDir
from ramet.store.lock import exclusive_lock
from ramet.tasks.arithmetic import Arithmetic
from ramet.types import Prompt

TASKS = ["arithmetic:eval"]


def evaluated(into: Path, engine: ramet.ScriptedEngine | None = None, **settings: Any) -> Evaluation:
    given: dict[str, Any] = {"methods": ["single"], "budgets": [300], "n": 3} | settings
    engine = engine or ramet.ScriptedEngine(lambda prompt: "Answer: 1")
    return anyio.run(partial(evaluate, TASKS, engine=engine, into=into, **given))


def test_a_run_directory_records_where_its_numbers_come_from(tmp_path: Path) -> None:
    evaluation = evaluated(tmp_path / "here", seed=3)
    meta = json.loads((tmp_path / "here" / "meta.json").read_text())
    assert (meta["kind"], meta["seed"], meta["engine"]) == ("eval", 3, "ScriptedEngine")
    assert meta["hardware"]["cores"] >= 1
    assert evaluation.facts()["run"] == str(tmp_path / "here")


def test_two_tasksets_of_one_class_are_both_evaluated() -> None:
    small, large = Arithmetic(operators=(1, 1)), Arithmetic(operators=(9, 9))
    assert questions((small, "train"), (large, "eval"), "arithmetic:long") == [
        small.task("train", 0).question,
        large.task("eval", 0).question,
        Arithmetic().task("long", 0).question,
    ]
    large.name = "large"
    assert questions(small, large) == [small.task("eval", 0).question, large.task("eval", 0).question]


def test_two_tasksets_of_one_name_and_split_are_refused() -> None:
    said = "arithmetic:eval is given twice: give one of two tasksets of the same class another `name`"
    for tasks in ((Arithmetic(), Arithmetic(digits=1)), ("arithmetic:eval", Arithmetic())):
        with pytest.raises(ConfigError, match=said):
            questions(*tasks)


def questions(*tasks: str | Taskset | tuple[Taskset, str]) -> list[str]:
    """What an evaluation of one task per split asks."""
    asked: list[str] = []

    def answer(prompt: Prompt) -> str:
        asked.append(prompt.goal)
        return "Answer: 1"

    engine = ramet.ScriptedEngine(answer)
    evaluation = anyio.run(partial(evaluate, tasks, engine=engine, methods=["single"], budgets=[400], n=1))
    assert [section.title for section in evaluation.sections()] == list(evaluation.config.tasks)
    return asked


def test_a_finished_evaluation_is_read_without_the_engine(tmp_path: Path) -> None:
    before = evaluated(tmp_path / "here")
    engine = ramet.ScriptedEngine(lambda prompt: "Answer: 2")
    after = evaluated(tmp_path / "here", engine)
    assert after.records == before.records
    assert engine.prompts == []


def test_an_evaluation_without_its_folder_of_trees_is_resumed(tmp_path: Path) -> None:
    first = ramet.ScriptedEngine(lambda prompt: Reply(text="", fault="gone") if first.prompts[1:] else "Answer: 1")
    assert len(evaluated(tmp_path / "here", first, concurrency=1).records) == 1
    shutil.rmtree(tmp_path / "here" / "trees")
    after = evaluated(tmp_path / "here", concurrency=1)
    assert len(after.records) == 3
    assert len(list(ramet.read_trees(tmp_path / "here"))) == 2


def test_callbacks_get_the_run_directory_and_then_the_progress(tmp_path: Path) -> None:
    events: list[object] = []

    def on_start(run: RunDir) -> None:
        events.append(run.path)

    evaluated(tmp_path / "here", on_start=on_start, on_progress=events.append, concurrency=1)
    assert events == [tmp_path / "here", *[Progress(done, 3, int(done == 3), 1) for done in range(4)]]
    evaluated(tmp_path / "here", on_start=on_start, on_progress=events.append, concurrency=1)
    assert len(events) == 5


def test_other_settings_are_refused_and_named(tmp_path: Path) -> None:
    evaluated(tmp_path / "here")
    with pytest.raises(ConfigError, match=r"here was made with other settings \(seed\): give another --into"):
        evaluated(tmp_path / "here", seed=1)
    RunDir.create(tmp_path, "question")
    with pytest.raises(ConfigError, match="question was made with other settings, by ramet run"):
        evaluated(tmp_path / "question")


def test_another_engine_is_refused(tmp_path: Path) -> None:
    class Other(ramet.ScriptedEngine):
        pass

    evaluated(tmp_path / "here")
    with pytest.raises(ConfigError, match="the model has changed"):
        evaluated(tmp_path / "here", Other(lambda prompt: "Answer: 1"))


def test_two_processes_cannot_write_to_one_directory(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, "mine")
    refused = pytest.raises(ramet.StoreError, match="another process is writing to")
    with exclusive_lock(run.path), refused, exclusive_lock(run.path):
        pass
    with exclusive_lock(run.path):
        pass


def test_a_locked_evaluation_is_not_resumed(tmp_path: Path) -> None:
    engine = ramet.ScriptedEngine(lambda prompt: "Answer: 1")
    config = EvaluateConfig(tasks=("arithmetic:eval",), methods=("single",), budgets=(300,), num_tasks=3)
    run = EvalRun.locate_for(engine, config, into=tmp_path / "here").create()
    with exclusive_lock(run.path), pytest.raises(ramet.StoreError, match="another process is writing to"):
        evaluated(tmp_path / "here", engine)
    assert len(evaluated(tmp_path / "here", engine).records) == 3


@pytest.mark.parametrize(
    ("argv", "written"),
    [
        (["/bin/ramet", "eval", "craft:easy", "--api-key", "secret", "-n", "3"], "ramet eval craft:easy -n 3"),
        (["ramet", "eval", "--api-key=secret", "a b"], "ramet eval 'a b'"),
        (["/site/ramet/__main__.py", "eval", "craft:easy"], "ramet eval craft:easy"),
        (["scripts/compare.py", "--token", "secret"], "compare.py"),
    ],
)
def test_the_command_is_recorded_without_secrets(argv: list[str], written: str) -> None:
    assert written_command(argv) == written
