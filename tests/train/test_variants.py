"""The single variant of every recipe: the same run with one node per tree."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from ramet.config import load
from ramet.engine.scripted import WordTokenizer
from ramet.recipes import recipe_file, recipe_names
from ramet.tasks.registry import load_taskset, parse_spec
from ramet.tokens.render import TokenRenderer
from ramet.train.loss import Loss, idle_settings
from ramet.train.settings import TrainConfig, warm_config
from ramet.train.variants import published_variant, single_variant
from ramet.train.warmstart import demonstrations
from tests.tasks.test_multihop import TWO_WIKI


def recipe(name: str) -> TrainConfig:
    return load(TrainConfig, file=recipe_file(name))


def two_wiki(folder: Path) -> Path:
    """A data folder with twelve questions, each with three pages of its own that do not matter."""
    rows: list[dict[str, Any]] = []
    for number in range(12):
        pages = [{"title": f"Page {number}.{place}", "text": "A page.", "supporting": False} for place in range(3)]
        rows.append(TWO_WIKI | {"id": f"2wiki-{number}", "context": [*TWO_WIKI["context"], *pages]})
    (folder / "2wiki_train.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return folder


@pytest.mark.parametrize("name", recipe_names())
def test_nothing_but_delegation_and_the_name_changes(name: str) -> None:
    clones, single = recipe(name), single_variant(recipe(name))
    assert single.name == f"{name.removesuffix('-single')}-single"
    assert single.budget == clones.budget | {"depth": 0, "nodes": 1}
    before, after = (asdict(replace(config, name="", budget={}, warm={})) for config in (clones, single))
    assert before == after
    changed = {key for key in single.warm if single.warm[key] != clones.warm.get(key)}
    assert changed <= {"delegate", "budget"}


@pytest.mark.parametrize("name", [name for name in recipe_names() if recipe(name).warm.get("steps")])
def test_its_demonstrations_are_alone_and_some_are_right(name: str, tmp_path: Path) -> None:
    config = recipe(name)
    # Alone, no hard goal fits the window of this recipe: its single agent starts from shallow goals.
    warm = config.warm | ({"task": "craft:train_shallow"} if name == "craft-hard-135m" else {})
    start = warm_config(single_variant(replace(config, warm=warm)))
    assert start is not None
    taskset, split = parse_spec(start.task)
    options = start.taskset | ({"data": two_wiki(tmp_path)} if "2wiki" in split else {})
    renderer = TokenRenderer(WordTokenizer())
    places = range(12)
    trees = anyio.run(partial(demonstrations, load_taskset(taskset, **options), split, start, renderer, places))
    assert [len(tree.nodes) for tree in trees] == [1] * 12
    assert all(tree.budget.depth == 0 for tree in trees)
    assert any(tree.root.verdict is not None and tree.root.verdict.is_right for tree in trees)


def test_a_drawn_depth_becomes_none_and_other_limits_stay() -> None:
    config = TrainConfig(
        name="a", budget={"tokens": [200, 900], "depth": [1, 3]}, warm={"steps": 2, "budget": {"depth": [0, 4]}}
    )
    single = single_variant(config)
    assert single.budget == {"tokens": [200, 900], "depth": 0, "nodes": 1}
    assert single.warm == {"steps": 2, "delegate": 0.0, "budget": {"depth": 0, "nodes": 1}}
    assert single_variant(single) == single


def test_a_run_without_a_supervised_start_gets_none() -> None:
    assert single_variant(TrainConfig(warm={"steps": 0})).warm == {"steps": 0}
    assert single_variant(TrainConfig()).warm == {}


def test_the_published_rule_keeps_no_setting_of_another_loss() -> None:
    loss = Loss(kind="ppo", bounds=(0.9, 1.1), dual_clip=3.0, aggregation="constant", divisor=7.0, ceiling=2.0, kl=0.1)
    published = published_variant(TrainConfig(loss=loss)).loss
    assert idle_settings(published) == []
    assert published == Loss(kind="cispo", aggregation="token", ceiling=2.0, kl=0.1)
