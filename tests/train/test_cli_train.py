"""`ramet train` and `ramet warmstart` as people meet them."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

import ramet
from ramet.config import load, to_toml
from ramet.store import RunDir
from ramet.train.checkpoint import latest
from ramet.train.loop import work_of
from ramet.train.settings import TrainConfig
from ramet.train_commands import RECIPES, recipes
from tests.test_cli import RAMET, complaint, environment, printed
from tests.train import small


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small.folder(tmp_path_factory.mktemp("cli"))


@pytest.fixture
def recipe(tmp_path: Path, folder: Path) -> str:
    file = tmp_path / "small.toml"
    file.write_text(to_toml(small.config(folder, "name=small")))
    return str(file)


def test_a_run_prints_a_line_a_step_and_can_be_asked_afterwards(tmp_path: Path, recipe: str) -> None:
    said = printed(tmp_path, "train", recipe, "steps=2", "eval.every=2", "eval.number=2")
    lines = said.splitlines()
    assert lines[0] == "runs/small"
    for word in ("step 1", "reward", "success", "delegated", "tokens"):
        assert word in lines[1]
    assert "eval success" in lines[2]
    assert "runs/small/checkpoints/step-000002" in lines[3]
    assert json.loads(printed(tmp_path, "sql", "runs/small", "select count(*) as steps from metrics", "--json")) == [
        {"steps": 2}
    ]
    assert "nothing" not in printed(tmp_path, "train", "--resume", "runs/small")


def test_interrupted_it_says_how_to_go_on_and_does(tmp_path: Path, recipe: str) -> None:
    words = ["train", recipe, "steps=100000", "save_every=100000"]
    process = subprocess.Popen(
        [RAMET, *words], cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert any("step 3" in line for line in process.stdout)
    process.send_signal(signal.SIGINT)
    said, complaints = process.communicate()
    assert process.returncode == 130
    assert "train --resume runs/small" in said
    assert complaints == "ramet: interrupted\n"
    run = RunDir.open(tmp_path / "runs" / "small")
    steps = [record["step"] for record in run.metrics()]
    assert steps == list(range(len(steps)))
    assert len(list(ramet.read_trees(run))) in (12 * len(steps), 12 * (len(steps) + 1))


def test_a_warm_start_for_machines_is_a_json_line_a_step(tmp_path: Path, folder: Path) -> None:
    words = [f"model={folder}", "options.operators=2", "options.digits=1", "sampler.device=cpu", "steps=3", "trees=2"]
    said = printed(tmp_path, "warmstart", *words, "--json")
    assert [json.loads(line)["step"] for line in said.splitlines()] == [0, 1, 2]
    assert latest(tmp_path / "runs" / "warmstart") is not None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train", "nowhere"], "no recipe 'nowhere': give a TOML file, or one of"),
        (["train", "arithmetic-315m"], "no recipe 'arithmetic-315m': did you mean arithmetic-135m?"),
        (["train", "nowhere.toml"], "cannot read nowhere.toml"),
        (["train", "stpes=3"], "unknown setting 'stpes': did you mean steps?"),
        (["train", "group=1"], "group=1: rao compares the trees of one task; give group=2 or more"),
        (["train", "--resume", "nowhere"], "nowhere is not a run directory"),
        (["train", "steps=3", "--resume", "nowhere"], "a resumed run keeps its settings"),
        (["train", "model=nowhere"], "no model at 'nowhere'"),
        (["warmstart", "loss.kind=ppo"], "a warm start has no ratios"),
        (["warmstart", "run=nowhere"], "nowhere is not a run directory"),
    ],
)
def test_what_cannot_begin_is_one_line(tmp_path: Path, words: list[str], said: str) -> None:
    assert said in complaint(tmp_path, *words)


@pytest.mark.parametrize("name", recipes())
def test_recipes_that_we_ship_make_sense(name: str) -> None:
    work_of(load(TrainConfig, file=RECIPES / f"{name}.toml"))
