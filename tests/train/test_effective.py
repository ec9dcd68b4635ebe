"""All settings of a training with their values, as `--check` prints them."""

from __future__ import annotations

import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from ramet.budget import Budget
from ramet.config import load
from ramet.credit.rao import Rao
from ramet.recipes import recipe_file
from ramet.terminal.recipes import print_settings
from ramet.train.demos import DemosConfig
from ramet.train.effective import effective_settings
from ramet.train.loop import resolve_plan
from ramet.train.settings import SAME, TrainConfig, WarmConfig


def recipe(name: str, *words: str) -> TrainConfig:
    return load(TrainConfig, file=recipe_file(name), words=words)


def effective(config: TrainConfig) -> dict[str, Any]:
    return effective_settings(resolve_plan(config))


def test_open_tables_have_every_setting() -> None:
    found = effective(recipe("nano"))
    assert found.keys() == {setting.name for setting in fields(TrainConfig)}
    assert found["budget"].keys() == {limit.name for limit in fields(Budget)}
    assert found["credit"].keys() == {setting.name for setting in fields(Rao)}
    assert found["warm"].keys() == {setting.name for setting in fields(WarmConfig)} - {*SAME}
    assert found["demos"].keys() == {setting.name for setting in fields(DemosConfig)}


def test_the_clipping_of_the_kind_of_loss_is_shown() -> None:
    shown = [effective(recipe("nano", *words))["loss"]["bounds"] for words in (["loss.kind=ppo"], ["loss.kind=plain"])]
    assert shown == [(0.8, 1.2), None]


def test_what_is_set_replaces_what_the_task_the_rule_and_the_run_have() -> None:
    found = effective(recipe("nano", "budget.turns=3", "warm.dialect=tools", "credit.bonus=0.5"))
    assert (found["budget"]["turns"], found["budget"]["children"]) == (3, Budget().children)
    assert (found["warm"]["dialect"], found["warm"]["task"]) == ("tools", "codes:train")
    assert (found["credit"]["bonus"], found["credit"]["success"]) == (0.5, "dense")
    off = effective(TrainConfig(model="nano"))
    assert (off["warm"]["steps"], off["demos"]["weight"]) == (0, 0.0)


@pytest.mark.parametrize("name", ["nano", "craft-135m"])
def test_what_is_printed_is_a_recipe_of_the_same_run(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = recipe(name)
    print_settings(config, effective(config), as_json=False, notes=("a note",))
    said = capsys.readouterr().out
    (tmp_path / "again.toml").write_text(said)
    assert load(TrainConfig, file=tmp_path / "again.toml") == config
    assert said.startswith("# a note\n")


def test_what_is_not_set_is_printed_as_a_comment(capsys: pytest.CaptureFixture[str]) -> None:
    config = recipe("nano")
    print_settings(config, effective(config), as_json=False)
    said = capsys.readouterr().out
    for line in ("# minutes: not set", "# bounds = [0.0, 5.0]", "# turns = 10", "# bonus = 0.0", "# weight = 0.0"):
        assert f"\n{line}\n" in said
    assert "\ntokens = 1500\n" in said
    lines = [line.removeprefix("# ") for line in said.splitlines() if " = " in line or "[" in line]
    assert tomllib.loads("\n".join(lines))["warm"]["update"]["lora_alpha"] == 32.0
