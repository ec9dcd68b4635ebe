"""`run_sync`, and defaults that are the same everywhere."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import Any

import anyio
import pytest

import ramet
from ramet.engine.settings import EngineConfig
from ramet.errors import ConfigError
from ramet.evaluate.settings import EvaluateConfig
from ramet.inputs.settings import RunConfig


class Counted(ramet.ScriptedEngine):
    closed = 0

    async def aclose(self) -> None:
        self.closed += 1


def test_a_tree_is_run_without_an_event_loop_and_the_engine_can_be_used_again() -> None:
    engine = Counted(lambda prompt: ramet.Reply(text=f"Answer: {prompt.goal}"))
    trees = [ramet.run_sync(goal, engine=engine, budget=ramet.Budget(tokens=500)) for goal in ("one", "two")]
    assert [tree.answer for tree in trees] == ["one", "two"]
    assert trees[0].budget.tokens == 500
    assert engine.closed == 2


def test_the_engine_of_clones_is_disconnected_too() -> None:
    engine, clones = (Counted(lambda _: ramet.Reply(text="Answer: yes")) for _ in range(2))
    ramet.run_sync("q", engine=engine, clone_engine=clones)
    assert (engine.closed, clones.closed) == (1, 1)


def test_it_has_the_parameters_of_run() -> None:
    assert inspect.signature(ramet.run_sync) == inspect.signature(ramet.run)


def test_where_an_event_loop_runs_the_error_says_what_to_write() -> None:
    engine = ramet.ScriptedEngine(lambda _: ramet.Reply(text="Answer: yes"))

    async def inside() -> None:
        ramet.run_sync("q", engine=engine)

    with pytest.raises(ConfigError, match=r"await ramet\.run"):
        anyio.run(inside)


def default(function: object, name: str) -> object:
    return inspect.signature(function).parameters[name].default  # pyright: ignore[reportArgumentType]


def test_the_command_line_and_python_have_the_same_defaults() -> None:
    settings = {setting.name: setting.default for setting in fields(RunConfig)}
    options = {setting.name: setting.default for setting in fields(ramet.TreeOptions)}
    evaluation = {setting.name: setting.default for setting in fields(EvaluateConfig)}
    for name in ("temperature", "seed", "show_budget", "allow_same_goal", "instructions"):
        assert default(ramet.run, name) == settings[name] == options[name], name
    assert default(ramet.run, "dialect") == options["dialect"] == "tools"  # what auto means without a server
    assert evaluation["temperature"] == settings["temperature"]
    engine = {setting.name: setting.default for setting in fields(EngineConfig)}
    for name in ("concurrency", "tries", "stall_s"):
        assert default(ramet.HttpEngine, name) == engine[name], name


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"engine": "http://127.0.0.1:8000/v1"}, r"engine must be an object like ramet\.HttpEngine\(.*; got a str"),
        ({"budget": {"tokens": 5}}, r"budget must be an object like ramet\.Budget\(tokens=4000\); got a dict"),
    ],
)
def test_an_address_is_no_engine_and_a_dictionary_is_no_budget(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ramet.ConfigError, match=message):
        ramet.run_sync("q", **{"engine": ramet.ScriptedEngine(lambda _: "Answer: 1")} | settings)
