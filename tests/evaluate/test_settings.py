"""Settings of an evaluation: every knob is there on purpose, and is read."""

from __future__ import annotations

import ast
from dataclasses import fields
from pathlib import Path

import ramet
from ramet.config import load, to_toml
from ramet.evaluate.settings import EvaluateConfig

SOURCE = Path(ramet.__file__).parent
KNOBS = [
    *["tasks", "taskset", "methods", "budgets", "num_tasks", "dialect", "temperature", "seed", "show_budget"],
    *["trained", "concurrency", "budget", "engine", "judge"],
]


def test_knobs_are_added_on_purpose() -> None:
    assert [knob.name for knob in fields(EvaluateConfig)] == KNOBS


def test_every_knob_is_read_by_what_evaluates() -> None:
    files = [*(SOURCE / "evaluate").glob("*.py"), SOURCE / "engine" / "choose.py"]
    reads = {
        node.attr
        for path in files
        if path.name != "settings.py"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    }
    assert set(KNOBS) - reads == set()


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
