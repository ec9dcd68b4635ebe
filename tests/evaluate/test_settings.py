"""The settings of an evaluation: each one changes what is run."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

import ramet
from ramet.config import load, to_toml
from ramet.evaluate import Evaluation, evaluate
from ramet.evaluate.settings import EvaluateConfig
from ramet.types import Completion, Prompt
from tests.conftest import in_virtual_time

SETTINGS = [
    *["tasks", "taskset", "world", "methods", "budgets", "num_tasks", "dialect", "temperature", "seed", "show_budget"],
    "allow_same_goal",
    "allow_impossible",
    "instructions",
    "delegate_instructions",
    *["trained", "concurrency", "budget", "engine", "judge"],
]


class Recorder(ramet.ScriptedEngine):
    """Records the sampling options of every call."""

    def __init__(self) -> None:
        super().__init__(lambda prompt: ramet.Reply(text="Answer: 1", seconds=1.0))
        self.sampled: list[tuple[int | None, float]] = []

    async def sample(self, prompt: Prompt, *, temperature: float = 1.0, **more: Any) -> Completion:
        self.sampled.append((more.get("seed"), temperature))
        return await super().sample(prompt, temperature=temperature, **more)


def run(**settings: Any) -> tuple[Evaluation, Recorder]:
    engine = Recorder()
    given: dict[str, Any] = {"methods": ["single"], "n": 3, "taskset": {"operators": [1, 3]}} | settings
    tasks = given.pop("tasks", ["arithmetic:eval"])
    return in_virtual_time(partial(evaluate, tasks, engine=engine, **given)), engine


def test_a_clone_gets_the_goal_of_its_parent_only_if_that_is_allowed() -> None:
    def passes_on(prompt: Prompt) -> str:
        call = {"name": "delegate", "arguments": {"goals": [prompt.goal]}}
        return "Answer: 1" if prompt.turn else f"<tool_call>{json.dumps(call)}</tool_call>"

    for allowed in (False, True):
        engine = ramet.ScriptedEngine(passes_on)
        settings: dict[str, Any] = {"methods": ["clones"], "n": 1, "allow_same_goal": allowed}
        (record,) = anyio.run(partial(evaluate, ["arithmetic:eval"], engine=engine, **settings)).records
        assert record.nodes == (4 if allowed else 1)  # as deep as the task allows, or alone


def test_a_clone_gets_an_impossible_goal_only_if_that_is_allowed() -> None:
    call = {"name": "delegate", "arguments": {"goals": ["Craft 2x m0_ore"]}}
    asked = f"<tool_call>{json.dumps(call)}</tool_call>"
    for allowed in (False, True):
        engine = ramet.ScriptedEngine(lambda prompt: "Answer: 1" if prompt.turn or prompt.depth else asked)
        settings: dict[str, Any] = {"methods": ["clones"], "n": 1, "allow_impossible": allowed}
        (record,) = anyio.run(partial(evaluate, ["craft:easy"], engine=engine, **settings)).records
        assert record.nodes == (2 if allowed else 1)


@pytest.mark.parametrize(
    ("setting", "value", "outcome"),
    [
        ("tasks", ["arithmetic:train"], lambda evaluation, engine: [one.task for one in evaluation.records]),
        ("taskset", {"operators": 5}, lambda evaluation, engine: {one.size for one in evaluation.records}),
        ("methods", ["clones"], lambda evaluation, engine: {one.method for one in evaluation.records}),
        ("budgets", [70], lambda evaluation, engine: {one.budget for one in evaluation.records}),
        ("n", 2, lambda evaluation, engine: len(evaluation.records)),
        ("dialect", "python", lambda evaluation, engine: {prompt.messages[0].content for prompt in engine.prompts}),
        ("temperature", 0.0, lambda evaluation, engine: {temperature for _, temperature in engine.sampled}),
        ("seed", 1, lambda evaluation, engine: {seed for seed, _ in engine.sampled}),
        ("show_budget", True, lambda evaluation, engine: {prompt.last for prompt in engine.prompts}),
        ("trained", "0:0", lambda evaluation, engine: {one.beyond for one in evaluation.records}),
        ("concurrency", 1, lambda evaluation, engine: engine.most_running),
        ("budget", {"prices": {"prompt": 1.0}}, lambda evaluation, engine: {one.dollars for one in evaluation.records}),
    ],
)
def test_a_setting_changes_the_evaluation(
    setting: str, value: Any, outcome: Callable[[Evaluation, Recorder], object]
) -> None:
    assert outcome(*run(**{setting: value})) != outcome(*run())


def test_a_new_setting_needs_a_test() -> None:
    """`engine` and `judge` are used by `run_evaluation` only: see tests/cli/test_evaluate.py."""
    assert [field.name for field in fields(EvaluateConfig)] == SETTINGS


def test_a_config_written_as_toml_loads_equal(tmp_path: Path) -> None:
    config = EvaluateConfig(
        tasks=("craft:hard", "math:train"),
        taskset={"seed": 3},
        methods=("single", "vote@8"),
        budgets=(100, 2000),
        budget={"nodes": 4, "prices": {"generated": 0.5}},
        trained="2:5",
    )
    (tmp_path / "config.toml").write_text(to_toml(config))
    assert load(EvaluateConfig, file=tmp_path / "config.toml") == config
