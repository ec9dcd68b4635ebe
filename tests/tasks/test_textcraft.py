"""TextCraft: recipes with choices, known solutions, and invalid files."""

from __future__ import annotations

import functools
import gzip
import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from ramet.errors import ConfigError
from ramet.tasks.craft.oracle import Crafter
from ramet.tasks.craft.plan import Way
from ramet.tasks.craft.textcraft import TextCraft, depths_of, gold_ways, read_book, uniform_needs
from ramet.tasks.craft.worker import Worker
from ramet.tasks.craft.world import CraftWorld, targets_of
from ramet.tasks.play import demonstrate
from ramet.tasks.registry import load_taskset
from ramet.tasks.validate import validate
from ramet.types import Tree


def recipe(result: str, count: int, *ingredients: tuple[int, str, object]) -> dict[str, Any]:
    """A recipe as in the file; an ingredient is an amount, the kind of name, and the name."""
    return {"result": result, "count": count, "ingredients": [{"count": n, kind: one} for n, kind, one in ingredients]}


RECIPES: dict[str, Any] = {
    "recipes": [
        recipe("oak_planks", 4, (1, "tag", "oak_logs")),
        recipe("birch_planks", 4, (1, "item", "birch_log")),
        recipe("stick", 4, (2, "tag", "planks")),
        recipe("stick", 1, (2, "item", "bamboo")),
        recipe("torch", 4, (1, "item", "stick"), (1, "any", ["coal", "charcoal"])),
        recipe("sign", 3, (6, "item", "oak_planks"), (1, "item", "stick")),
        recipe("iron_ingot", 1, (9, "item", "iron_nugget")),
        recipe("iron_nugget", 9, (1, "item", "iron_ingot")),
        recipe("pick", 1, (3, "item", "iron_ingot"), (2, "item", "stick")),
    ],
    "tags": {"oak_logs": ["oak_log", "oak_wood"], "planks": ["oak_planks", "birch_planks"]},
}
SYNTH_RECIPES: dict[str, Any] = {
    "base_items": ["ore"],
    "recipes": [
        recipe("m1", 2, (1, "item", "ore")),
        recipe("m2", 1, (2, "item", "m1"), (1, "item", "ore")),
        recipe("m3", 1, (2, "item", "m2"), (2, "item", "m1")),
    ],
}


def craft(item: str, times: int, result_count: int, **ingredients: int) -> dict[str, Any]:
    return {"action": "craft", "target": [item, times], "ingredients": ingredients, "result_count": result_count}


def row(targets: dict[str, int], inventory: dict[str, int], *gold: dict[str, Any]) -> dict[str, Any]:
    meta = {"target_items": targets, "initial_inventory": inventory, "gold_trajectory": list(gold)}
    return {"id": "x", "question": "Craft it", "answer": "secret", "meta": {"dataset": "textcraft", **meta}}


TRAIN = [
    row(
        {"sign": 2, "torch": 4},
        {"oak_wood": 2, "coal": 3, "birch_log": 2, "poppy": 2},
        craft("oak_planks", 2, 8, oak_wood=2),
        craft("birch_planks", 1, 4, birch_log=1),
        craft("stick", 1, 4, birch_planks=2),
        craft("sign", 1, 3, oak_planks=6, stick=1),
        craft("stick", 1, 4, birch_planks=2),
        craft("torch", 1, 4, stick=1, coal=1),
    ),
    row({"stick": 4}, {"birch_planks": 3}, craft("stick", 1, 4, birch_planks=2)),
    row(
        {"pick": 1, "torch": 4},
        {"oak_planks": 2, "birch_planks": 4, "iron_nugget": 27, "charcoal": 1},
        craft("stick", 1, 4, oak_planks=2),
        craft("iron_ingot", 3, 3, iron_nugget=27),
        craft("pick", 1, 1, iron_ingot=3, stick=2),
        craft("stick", 1, 4, birch_planks=2),
        craft("torch", 1, 4, stick=1, charcoal=1),
    ),
]


def write(folder: Path, name: str, rows: list[dict[str, Any]]) -> None:
    with gzip.open(folder / f"{name}.jsonl.gz", "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(one) + "\n" for one in rows)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "textcraft_recipes.json").write_text(json.dumps(RECIPES))
    (tmp_path / "textcraft_synth_recipes.json").write_text(json.dumps(SYNTH_RECIPES))
    write(tmp_path, "textcraft_train", TRAIN)
    write(tmp_path, "textcraft_eval", [row({"torch": 3}, {"bamboo": 2, "coal": 1}, *bamboo_torch())])
    for split in ("train", "eval"):
        write(tmp_path, f"textcraft_synth_{split}", [row({"m3": 2, "m1": 1}, {"ore": 20})])
    return tmp_path


def bamboo_torch() -> list[dict[str, Any]]:
    return [craft("stick", 1, 1, bamboo=2), craft("torch", 1, 4, stick=1, coal=1)]


def test_a_row_becomes_a_task_that_shows_only_its_targets(data: Path) -> None:
    task = load_taskset("textcraft", data=data).task("train", 0)
    assert task.id == "textcraft:train/0"
    assert task.question.startswith("Craft the following items: 2x sign, 4x torch. What is asked for")
    assert targets_of(task) == {"sign": 2, "torch": 4}
    assert not task.context


def test_tasks_are_the_same_on_every_machine(data: Path) -> None:
    textcraft = TextCraft(data=data)
    tasks = [textcraft.task(split, i) for split in textcraft.splits for i in range(textcraft.size(split) or 0)]
    text = "\n".join(repr((task.question, task.reference, dict(task.context))) for task in tasks)
    assert (
        hashlib.sha256(text.encode()).hexdigest() == "3eb5652cb604565d8f59f482079e78bb32e79be9e09e3611874f6c43510d1bfd"
    )


def test_recipes_may_have_choices_and_items_several_recipes(data: Path) -> None:
    book = read_book(data / "textcraft_recipes.json")
    world = CraftWorld(book, {"oak_planks": 3, "birch_planks": 1, "bamboo": 2, "coal": 1, "charcoal": 1})
    assert world.craft({"oak_planks": 3, "birch_planks": 1}, "stick", 8) == "crafted 8x stick, 8 held now"
    assert world.craft({"bamboo": 2}, "stick", 1) == "crafted 1x stick, 9 held now"
    assert world.craft({"stick": 2, "coal": 1, "charcoal": 1}, "torch", 8) == "crafted 8x torch, 8 held now"
    assert world.craft({"bamboo": 2}, "stick", 4) == "error: none of the 2 recipes of stick takes just that"
    assert world.get_info(["stick"])[0]["recipes"] == [
        {"ingredients": {"oak_planks or birch_planks": 2}, "result_count": 4},
        {"ingredients": {"bamboo": 2}, "result_count": 1},
    ]


def test_depth_is_the_shortest_way_and_circular_items_are_materials(data: Path) -> None:
    book = read_book(data / "textcraft_recipes.json")
    wanted = {
        "oak_wood": 0,
        "oak_planks": 1,
        "stick": 1,
        "torch": 2,
        "sign": 2,
        "iron_ingot": 0,
        "iron_nugget": 0,
        "pick": 2,
    }
    assert {item: book.depths[item] for item in wanted} == wanted
    assert depths_of({}) == {}


def test_inventory_items_without_a_recipe_are_items(data: Path) -> None:
    textcraft = TextCraft(data=data)
    world = textcraft.world(textcraft.task("train", 0))
    assert world.functions["get_info"](["poppy"])[0]["in_inventory"] == 2
    assert world.functions["craft"]({}, "poppy", 1) == "error: poppy is a base material: it has no recipe"


def test_goals_are_compared_and_known_as_impossible_by_their_items(data: Path) -> None:
    textcraft = TextCraft(data=data)
    task = textcraft.task("train", 0)
    assert textcraft.same_goal(task, "make 4x torch and 2x sign", task.question)
    assert not textcraft.same_goal(task, "make 4x torch", task.question)
    goals = ("make 4x torch", "make 2x poppy", "make 4x lantern")
    assert [textcraft.impossible(task, goal) for goal in goals] == [False, True, True]


def test_the_oracle_takes_its_recipes_from_the_known_solution(data: Path) -> None:
    assert gold_ways([{"ingredients": {"log": 2}, "target": "planks", "count": 8, "times": 2}]) == {
        "planks": Way(takes={"log": 1}, makes=4)
    }
    textcraft = TextCraft(data=data)
    oracle = textcraft.oracle(textcraft.task("train", 2), delegate=False, seed=0)
    assert oracle.ways["stick"] == Way(takes={"oak_planks": 2}, makes=4)  # four are enough for pick and torch
    short = row({"pick": 2, "torch": 4}, {"oak_planks": 2, "birch_planks": 4, "iron_ingot": 6, "coal": 1})
    short["meta"]["gold_trajectory"] = [
        craft("stick", 1, 4, oak_planks=2),
        craft("pick", 2, 2, iron_ingot=6, stick=4),
        craft("stick", 1, 4, birch_planks=2),
        craft("torch", 1, 4, stick=1, coal=1),
    ]
    write(data, "textcraft_eval", [short])
    task = textcraft.task("eval", 0)
    assert textcraft.oracle(task, delegate=False, seed=0).ways["stick"] == Way(takes={"birch_planks": 2}, makes=4)


def test_the_known_solution_succeeds_and_fails_without_its_last_craft(data: Path) -> None:
    textcraft = TextCraft(data=data)
    for split in textcraft.splits:
        for index in range(textcraft.size(split) or 0):
            assert textcraft.self_check(textcraft.task(split, index)) == (1.0, 0.0)


@pytest.mark.parametrize("split", ["train", "eval", "synth_train", "synth_eval"])
@pytest.mark.parametrize("seed", range(3))
def test_the_oracle_is_right_alone_and_delegating_in_both_dialects(data: Path, split: str, seed: int) -> None:
    report = anyio.run(functools.partial(validate, TextCraft(data=data), split, seed=seed))
    assert report.faults == []
    assert report.delegating > 0


@pytest.mark.parametrize("split", ["train", "synth_train"])
def test_the_uniform_oracle_is_right_alone_and_delegating(data: Path, split: str) -> None:
    report = anyio.run(functools.partial(validate, TextCraft(data=data, style="uniform"), split))
    assert report.faults == []


def test_base_materials_decide_whether_a_demonstration_can_be_uniform(data: Path) -> None:
    """1x m3 takes 2x m2, by a clone from 4 + 2 half and whole ore: 4, and 2x m1, by the node from 1: 5 in all."""
    taskset = TextCraft(data=data, style="uniform")
    task = taskset.task("synth_train", 0)
    for ore, kind in ((5, Worker), (4, Crafter)):
        tight = replace(task, question="Craft 1x m3", reference={"targets": {"m3": 1}, "inventory": {"ore": ore}})
        oracle = taskset.oracle(tight, delegate=True, seed=0)
        assert isinstance(oracle, kind)
        if isinstance(oracle, Worker):
            assert uniform_needs(oracle, {"m3": 1}) == {"ore": 5}


def test_mistakes_need_the_uniform_style(data: Path) -> None:
    with pytest.raises(ConfigError, match="demonstrations with mistakes need the style uniform or mixed"):
        TextCraft(data=data, mistakes=0.3)
    taskset = TextCraft(data=data, style="uniform", mistakes=1.0)
    tree = anyio.run(functools.partial(demonstrate, taskset, taskset.task("train", 0)))
    assert any(piece.sampled and not piece.taught for node in tree.nodes for piece in node.pieces)


def trees(data: Path, index: int) -> list[Tree]:
    textcraft = TextCraft(data=data)

    async def run() -> list[Tree]:
        return [await demonstrate(textcraft, textcraft.task("train", index), seed=seed) for seed in range(8)]

    return anyio.run(run)


def test_a_task_of_one_craft_has_no_parts(data: Path) -> None:
    assert {len(tree.nodes) for tree in trees(data, 1)} == {1}


def test_targets_and_ingredients_are_delegated(data: Path) -> None:
    goals = {node.goal.partition(": ")[2] for tree in trees(data, 0) for node in tree.nodes[1:]}
    assert "4x torch" in goals
    assert any("stick" in goal or "planks" in goal for goal in goals)
    assert not any("sign" in goal and "torch" in goal for goal in goals)


def test_prompts_contain_only_the_question(data: Path) -> None:
    for tree in trees(data, 0):
        for node in tree.nodes:
            words = set(re.findall(r"\w+", node.pieces[0].text))
            assert not words & {"oak_wood", "birch_log", "poppy", "coal", "secret", "gold_trajectory", "meta"}


# Invalid files.


def test_without_data_the_error_names_the_flag() -> None:
    with pytest.raises(ConfigError, match="textcraft reads textcraft_eval from a data folder: give --data PATH"):
        TextCraft().task("eval", 0)


def test_an_unknown_split_or_task_is_named(data: Path) -> None:
    with pytest.raises(ConfigError, match=r"textcraft has no split 'evl': did you mean eval\?"):
        TextCraft(data=data).task("evl", 0)
    with pytest.raises(ConfigError, match="textcraft:train has tasks 0 to 2, not 3"):
        TextCraft(data=data).task("train", 3)


GOOD = craft("stick", 1, 4, birch_planks=2)


BAD_ROWS: list[tuple[dict[str, Any], str]] = [
    ({"target_items": {}}, "field meta.target_items must be an object of amounts by item"),
    ({"target_items": ["stick"]}, "field meta.target_items must be an object of amounts by item"),
    ({"target_items": {"stick": 0}}, "field meta.target_items: the amount of 'stick' must be a whole number"),
    ({"initial_inventory": None}, "field meta.initial_inventory must be an object of amounts by item"),
    ({"initial_inventory": {"log": "2"}}, "field meta.initial_inventory: the amount of 'log' must be a whole number"),
    ({"gold_trajectory": []}, "field meta.gold_trajectory must be a list of crafts"),
    ({"gold_trajectory": [GOOD, {}]}, r"field meta.gold_trajectory\[1\] must have target"),
    ({"gold_trajectory": [GOOD | {"target": ["stick", 0]}]}, r"gold_trajectory\[0\]: 0 crafts cannot make"),
    ({"gold_trajectory": [GOOD | {"target": ["stick", 3]}]}, r"gold_trajectory\[0\]: 3 crafts cannot make"),
    (
        {"gold_trajectory": [GOOD | {"ingredients": []}]},
        r"gold_trajectory\[0\].ingredients must be an object of amounts",
    ),
]


@pytest.mark.parametrize(("change", "message"), BAD_ROWS)
def test_a_bad_row_names_file_row_and_field(data: Path, change: dict[str, Any], message: str) -> None:
    bad = row({"stick": 4}, {"birch_planks": 3}, GOOD)
    bad["meta"] |= change
    write(data, "textcraft_train", [TRAIN[0], bad])
    textcraft = TextCraft(data=data)
    assert textcraft.task("train", 0)
    with pytest.raises(ConfigError, match=rf"textcraft_train.jsonl.gz, row 2: .*{message}"):
        textcraft.task("train", 1)


def test_a_row_without_meta_names_file_line_and_field(data: Path) -> None:
    write(data, "textcraft_train", [TRAIN[0], {"question": "?"}])
    with pytest.raises(ConfigError, match=r"textcraft_train.jsonl.gz, line 2: field 'meta' is missing"):
        TextCraft(data=data).size("train")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "JSONDecodeError"),
        ("{}", "KeyError: 'recipes'"),
        ("[]", "AttributeError"),
        ('{"recipes": [{"result": "a"}]}', "KeyError: 'ingredients'"),
        ('{"recipes": [{"result": "a", "count": 1, "ingredients": [{"count": 1, "tag": "b"}]}]}', "KeyError: 'b'"),
    ],
)
def test_invalid_recipes_name_their_file(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "textcraft_recipes.json"
    file.write_text(text)
    with pytest.raises(ConfigError, match=f"cannot read recipes from .*textcraft_recipes.json: {message}"):
        read_book(file)
