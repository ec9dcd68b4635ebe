"""The built-in recipes: variants differ in what they say, and small ones take steps on a CPU."""

from __future__ import annotations

import re
import tomllib
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from ramet.config import load
from ramet.credit import load_rule
from ramet.errors import ConfigError
from ramet.recipes import recipe_file, recipe_names
from ramet.store import RunDir, read_trees
from ramet.tasks.play import demonstrate
from ramet.tasks.registry import load_taskset, parse_spec
from ramet.tokens.huggingface import load_renderer
from ramet.train.bounds import draw_budget, parse_bounds
from ramet.train.loop import check_plan, train
from ramet.train.settings import TrainConfig
from tests.train import small


def recipe(name: str, *words: str) -> TrainConfig:
    return load(TrainConfig, file=recipe_file(name), words=words)


def differences(name: str, base: str) -> dict[str, Any]:
    """The settings in which a recipe differs from another, by their whole names."""

    def flat(settings: dict[str, Any], inside: str = "") -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in settings.items():
            found |= flat(value, f"{inside}{key}.") if isinstance(value, dict) else {f"{inside}{key}": value}
        return found

    one, other = flat(asdict(recipe(name))), flat(asdict(recipe(base)))
    return {key: value for key, value in one.items() if other.get(key) != value}


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("40k", {"budget.window": 40000, "update.micro_batch_tokens": 40000, "eval.budget.window": 262144}),
        (
            "single",
            {"budget.depth": 0, "budget.turns": 200, "eval.budget.depth": 0, "eval.budget.turns": 20000},
        ),
        ("sparse", {"credit.success": "sparse"}),
    ],
)
def test_a_variant_of_a_recipe_differs_in_what_it_says_and_nothing_else(name: str, settings: dict[str, Any]) -> None:
    name = f"rao-craft-4b-{name}"
    assert differences(name, "rao-craft-4b") == {"name": name} | settings
    check_plan(recipe(name))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nanno", "no recipe 'nanno': did you mean nano?"),
        ("arithmetic", "no recipe 'arithmetic': did you mean arithmetic-135m or selfcest-arithmetic-4b?"),
        ("mine.tml", "there is no file mine.tml: did you mean mine.toml?"),
        ("deep/nano.toml", "there is no file deep/nano.toml: did you mean nano?"),
        ("deep/nano", "there is no file deep/nano: did you mean nano?"),
        ("x" * 300 + "/y.toml", ": give a TOML file or a built-in recipe; ramet train lists them"),
        ("craft:easy", "no recipe 'craft:easy'; to train on that task: task=craft:easy"),
        ("folder", "folder is a folder; a recipe is a TOML file"),
        ("run", "run is a folder; a recipe is a TOML file; ramet train --resume run resumes this run, ramet train "),
    ],
)
def test_a_recipe_that_is_not_there_is_answered_with_what_may_be_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").touch()
    (tmp_path / "folder").mkdir()
    RunDir.create(tmp_path, "run", kind="train")
    with pytest.raises(ConfigError, match=re.escape(said)):
        recipe_file(name)


def test_combined_variants_of_the_paper_are_a_few_words_away() -> None:
    check_plan(recipe("rao-craft-4b-single", "budget.window=40000", "eval.budget.window=262144"))
    check_plan(recipe("rao-craft-4b-sparse", "credit.depth_weights=false"))


def test_the_settings_of_the_other_tasks_of_the_paper_are_the_papers() -> None:
    craft, counts, search = (recipe(f"rao-{name}-4b") for name in ("craft", "aggregate", "search"))
    for config in (craft, counts, search):
        assert (config.tasks_per_step, config.group_size, config.overlap, config.dialect) == (16, 8, 3, "python")
        assert (config.loss.kind, config.loss.bounds) == ("cispo", (0.0, 5.0))
    assert (counts.credit["bonus"], counts.update.lora_rank, counts.update.learning_rate) == (0.4, 32, 3e-5)
    assert (counts.budget["depth"], counts.budget["turns"], counts.budget["window"]) == (2, 15, 32768)
    assert (search.credit["bonus"], search.update.lora_rank, search.update.learning_rate) == (0.0, 0, 3e-6)
    assert (search.budget["depth"], search.budget["turns"], search.budget["window"]) == (4, 25, 40000)
    assert search.taskset["metric"] == "judge"
    for config in (counts, search):
        assert config.judge.model
        assert config.judge.tokens is not None
        assert config.eval.budget["window"] == 262144


@pytest.mark.parametrize("name", ["arithmetic", "math", "2wiki"])
def test_the_limits_of_selfcest_are_those_of_its_code(name: str) -> None:
    text = recipe_file(f"selfcest-{name}-4b").read_text(encoding="utf-8")
    settings = tomllib.loads(text.replace("\n#: ", "\n"))  # lines to activate when their settings exist
    budget = settings["budget"]
    assert (budget["depth"], budget["turns"], budget["children"], budget["max_calls"]) == (1, 10, 30, 10)
    assert (budget["result_bytes"], budget["max_result_chars"]) == (256, 512)
    root, clone = budget["node_tokens"], budget.get("clone_tokens", budget["node_tokens"])
    assert (root, clone) == (1024 if name == "2wiki" else 4096, 1024)
    assert (settings["loss"]["kl"], settings["loss"]["kl_gradient"]) == (5e-4, "plain")
    assert settings["update"]["mini_batch_nodes"] == 32
    assert "delegate" in settings["delegate_instructions"].lower() or "clones" in settings["delegate_instructions"]


@pytest.mark.parametrize("name", recipe_names())
def test_the_credit_of_a_recipe_can_be_loaded(name: str) -> None:
    config = recipe(name)
    load_rule(config.rule, config.credit)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small.folder(tmp_path_factory.mktemp("recipes"), max_position_embeddings=16_384)


SHORT = ["steps=1", "tasks_per_step=1", "group_size=2", "warm.steps=1", "warm.trees_per_step=2", "warm.least=0.0"]
TINY = [
    "sampler.device=cpu",
    "sampler.cache_tokens=32768",
    "budget.window=12000",
    "budget.node_tokens=24",
    "eval.every=0",
]


@pytest.mark.parametrize("name", ["aggregate-135m", "search-135m"])
def test_a_small_recipe_takes_a_supervised_step_and_one_of_rl_on_a_cpu(tmp_path: Path, folder: Path, name: str) -> None:
    words = [f"model={folder}", *SHORT, *TINY, "warm.budget={window=12000, tokens=6000}"]
    run = train(recipe(name, *words), runs=tmp_path)
    assert [record["step"] for record in run.metrics()] == [0]
    trees = list(read_trees(run))
    assert len(trees) == 2
    assert all(node.verdict is not None for tree in trees for node in tree.nodes)


def test_in_the_arithmetic_recipe_clones_are_cheaper_for_long_expressions_and_dearer_for_short_ones(
    smollm2: Path,
) -> None:
    config = recipe("arithmetic-135m")
    options = config.taskset | {"mistakes": 0.0, "operators": [8, 40]}
    taskset, renderer = load_taskset("arithmetic", **options), load_renderer(str(smollm2))
    bounds = parse_bounds(config.budget | {"tokens": 4000})

    def cost(index: int, *, delegate: bool) -> int:
        task = taskset.task("train", index)
        budget = draw_budget(taskset.budget(task), bounds, seed=0)
        play = partial(demonstrate, taskset, task, delegate=delegate, budget=budget, renderer=renderer, seed=index)
        tree = anyio.run(play)
        assert tree.root.verdict is not None
        assert tree.root.verdict.score == 1.0
        return tree.usage.tokens

    sizes = {index: taskset.size_of(taskset.task("train", index)) or 0 for index in range(40)}
    short, long = (
        next(i for i, size in sizes.items() if at_least <= size <= at_most) for at_least, at_most in ((8, 10), (20, 24))
    )
    assert cost(short, delegate=False) < cost(short, delegate=True)
    assert cost(long, delegate=True) < cost(long, delegate=False)


@pytest.mark.parametrize("name", ["aggregate-135m", "search-135m", "multihop-135m"])
def test_the_oracle_is_right_within_the_budget_of_a_small_recipe_and_delegates(smollm2: Path, name: str) -> None:
    config = recipe(name)
    taskset_name, split = parse_spec(config.task)
    options = config.taskset | {"mistakes": 0.0}
    taskset, renderer = load_taskset(taskset_name, **options), load_renderer(str(smollm2))
    for index in range(12):
        task = taskset.task(split, index)
        budget = draw_budget(taskset.budget(task), parse_bounds(config.budget), seed=0)
        play = partial(demonstrate, taskset, task, budget=budget, renderer=renderer, seed=index)
        tree = anyio.run(play)
        assert len(tree.nodes) > 1
        assert [node.verdict and node.verdict.score for node in tree.nodes] == [1.0] * len(tree.nodes)
