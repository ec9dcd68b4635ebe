"""One record says how a tree is run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest

import ramet
from ramet.agent.options import TreeOptions
from ramet.agent.tree import TreeRun
from ramet.engine.scripted import WordTokenizer
from ramet.interfaces import TaskWorld
from ramet.tokens.render import TokenRenderer
from ramet.types import Piece, Prompt, Stop, Task
from tests.conftest import in_virtual_time

ENGINE = ramet.ScriptedEngine(lambda prompt: "Answer: 4")


@pytest.mark.parametrize("temperature", [-0.1, float("inf"), float("nan")])
def test_an_invalid_temperature_is_refused(temperature: float):
    with pytest.raises(ramet.ConfigError, match="temperature is a number from 0 up"):
        TreeOptions(engine=ENGINE, temperature=temperature)


def test_without_options_a_tree_has_the_default_budget_and_the_texts_of_its_task():
    task = Task(question="q", context={"key": "text"})
    run = TreeRun(task, TreeOptions(engine=ENGINE))
    assert run.budget == ramet.Budget()
    assert isinstance(run.world, TaskWorld)
    assert (run.world.context, run.world.functions) == ({"key": "text"}, {})


def test_the_engine_gets_the_temperature_and_a_seed_that_follows_from_that_of_the_tree():
    seen: list[tuple[float, int | None]] = []

    class Recording(ramet.ScriptedEngine):
        async def sample(self, prompt: Prompt, **settings: object) -> ramet.Completion:  # pyright: ignore[reportIncompatibleMethodOverride]
            seen.append((settings["temperature"], settings["seed"]))  # pyright: ignore[reportArgumentType]
            return await super().sample(prompt, **settings)  # pyright: ignore[reportArgumentType]

    options = TreeOptions(engine=Recording(lambda prompt: "Answer: 4"), temperature=0.3)
    for seed in (None, 1, 1, 2):
        in_virtual_time(TreeRun("q", replace(options, seed=seed)).run)
    seeds = [seed for _, seed in seen]
    assert {temperature for temperature, _ in seen} == {0.3}
    assert seeds[0] is None
    assert seeds[1] == seeds[2] != seeds[3]


def test_show_budget_puts_the_remaining_budget_into_the_prompt():
    options = TreeOptions(engine=ENGINE, budget=ramet.Budget(tokens=700))
    prompts = [TreeRun("q", replace(options, show_budget=show)).tree.root.pieces[0].text for show in (False, True)]
    assert ["700 tokens" in prompt for prompt in prompts] == [False, True]


@pytest.mark.parametrize("dialect", ["tools", "python", "terse"])
@pytest.mark.parametrize(
    "limits",
    [
        {},
        {"seconds": 86_400.0},
        {"tokens": 90_000_000, "turns": 5000, "nodes": 200_000, "depth": 1000, "seconds": 1e6, "window": 200_000},
    ],
    ids=str,
)
def test_room_is_kept_for_the_longest_closing_message_of_any_budget(dialect: str, limits: dict[str, Any]):
    engine = ramet.ScriptedEngine(lambda prompt: "Answer: 4", token_ids=False)  # sizes are bytes
    budget, renderer = ramet.Budget(**limits), engine.renderer
    run = TreeRun("q", TreeOptions(engine=engine, budget=budget, dialect=dialect, show_budget=True))
    before = Piece(sampled=True, text="")
    for why in (Stop.BUDGET, Stop.TURNS, Stop.WINDOW, Stop.DEADLINE):
        message = f"{run.remaining(run.root)}\n\n{run.dialect.closing(why)}"
        assert renderer.size(renderer.reply(message, after=before)) <= run.closing_size(renderer)


class SmallModel(ramet.ScriptedEngine):
    """An engine whose model reads 400 tokens at most."""

    window = 400


def test_no_prompt_exceeds_the_window_of_the_model_whatever_the_budget_allows():
    sizes: list[int] = []

    def ramble(prompt: Prompt) -> str:
        sizes.append(len(prompt.ids or ()))
        return "word " * 80

    engine = SmallModel(ramble, renderer=TokenRenderer(WordTokenizer()))
    budget = ramet.Budget(tokens=5000, window=8192, turns=20)
    tree = in_virtual_time(TreeRun("q", TreeOptions(engine=engine, budget=budget, dialect="terse")).run)
    assert tree.budget.window == 400
    assert tree.root.stop is ramet.Stop.WINDOW
    assert len(sizes) > 2
    assert max(sizes) < 400


def test_a_window_smaller_than_that_of_the_model_stays():
    options = TreeOptions(
        engine=SmallModel(lambda prompt: "Answer: 4"), budget=ramet.Budget(window=300), dialect="terse"
    )
    assert TreeRun("q", options).budget.window == 300


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"engine": None}, "engine is missing: give an object like ramet.HttpEngine"),
        ({"engine": ENGINE, "clone_engine": "http://x"}, "clone_engine must be an object like ramet.HttpEngine"),
        ({"engine": ENGINE, "temperature": "hot"}, "temperature is a number from 0 up; got 'hot'"),
        ({"engine": ENGINE, "world": {"f": len}}, r"world must be an object like .*functions=.*context=.*; got a dict"),
        ({"engine": ENGINE, "world": "w.py"}, r"world must be an object like .*functions=.*context=.*; got a str"),
        ({"engine": ENGINE, "world": ramet.TaskWorld}, "world must be an object like .*; got the class TaskWorld"),
        ({"engine": ENGINE, "budget": 300}, "budget must be an object like .*; got an int"),
        ({"engine": ENGINE, "dialect": None}, 'dialect is a name like "tools" or an object like .*; got None'),
        ({"engine": ENGINE, "judge": "gpt"}, "judge must be an object like ramet.Judge.*; got a str"),
        ({"engine": ENGINE, "seed": "abc"}, "seed is a whole number; got 'abc'"),
        ({"engine": ENGINE, "seed": 1.5}, "seed is a whole number; got 1.5"),
        ({"engine": ENGINE, "instructions": None}, "instructions is a text; got None"),
        ({"engine": ENGINE, "delegate_instructions": ["be brief"]}, "delegate_instructions is a text; got "),
    ],
)
def test_wrong_options_are_named(given: dict[str, object], said: str):
    with pytest.raises(ramet.ConfigError, match=said):
        TreeOptions(**given)  # pyright: ignore[reportArgumentType]


def test_a_world_whose_functions_are_a_property_is_not_asked_for_them_early():
    class Lazy:
        context: Mapping[str, str] = MappingProxyType({})

        @property
        def functions(self) -> dict[str, Any]:
            raise AssertionError("too early")

    TreeOptions(engine=ENGINE, world=Lazy())
