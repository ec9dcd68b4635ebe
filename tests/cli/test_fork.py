"""`ramet fork`: a turn of a stored tree is taken again, and both trees are shown."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import pytest

import ramet
from ramet.agent.recording import ForkPoint
from ramet.models.folders import nano_folder
from ramet.store import RunDir
from ramet.tasks.codes import Codes
from ramet.tasks.forking import resolve_fork
from ramet.tasks.play import demonstrate
from ramet.tokens.huggingface import load_renderer
from ramet.train.settings import TrainConfig
from tests.cli.test_main import complaint, printed
from tests.fork_server import installed

MODEL = ("--model", "nano")


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A run with the tree of the oracle of `codes`, in the tokens of the nano model: a root with two clones or more."""

    async def show() -> ramet.Tree:
        codes = Codes()
        budget = ramet.Budget(tokens=1500, nodes=40, depth=2, window=200, reserve=4)
        renderer = load_renderer(nano_folder())
        return await demonstrate(codes, codes.task("train", 3), dialect="terse", budget=budget, renderer=renderer)

    tree = anyio.run(show)
    tree.id = "shown"
    run = RunDir.create(tmp_path / "made", "codes", config=TrainConfig(task="codes:train", dialect="terse"))
    run.write([tree])
    return run.path


def test_a_fork_shows_both_trees_and_is_stored_with_its_provenance(tmp_path: Path, made: Path) -> None:
    before = next(ramet.read_trees(made))
    last = len(before.root.turns) - 1
    shown = printed(tmp_path, "fork", str(made), "--node", "0", "--turn", str(last), "--say", "= none", *MODEL)
    lines = shown.splitlines()
    assert lines[0] == "recorded: shown"
    assert sum(line.startswith("→ 0  Add longest runs") for line in lines) == 2
    assert f"→ first difference: node 0, turn {last}" in lines
    assert "  forked:   = none" in lines
    assert "0 tokens were generated for the fork" in lines
    stored = RunDir.open(tmp_path / "runs" / f"fork-shown-0-{last}")
    assert stored.meta["fork"] == {
        "run": str(made),
        "tree": "shown",
        "node": 0,
        "turn": last,
        "option": {"say": "= none"},
    }
    forked = next(ramet.read_trees(stored))
    assert (forked.answer, forked.root.verdict and forked.root.verdict.score) == ("none", 0.0)
    assert [node.pieces for node in forked.nodes[1:]] == [node.pieces for node in before.nodes[1:]]


def test_a_fork_without_delegation_is_one_node_and_can_be_printed_as_json(tmp_path: Path, made: Path) -> None:
    words = ("fork", str(made), "--node", "0", "--turn", "0", "--without-delegation", "--seed", "1", *MODEL)
    facts = json.loads(printed(tmp_path, *words, "--json", start=installed))
    assert facts["fork"]["option"] == {"without_delegation": True}
    assert facts["first_difference"] == {"path": [], "turn": 0}
    assert len(facts["recorded"]["nodes"]) > 1
    assert len(facts["forked"]["nodes"]) == 1
    assert facts["new_tokens"] == facts["forked"]["usage"]["tokens"] > 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--tree", "shwn", "--node", "0", "--turn", "0"], "has no tree 'shwn': did you mean shown?"),
        (["--node", "99", "--turn", "0"], "tree shown has nodes 0 to "),
        (["--node", "0", "--turn", "99"], "node 0 of tree shown has turns 0 to "),
        (["--node", "0", "--turn", "0", "--without-delegation", "--say", "x"], "exclude each other"),
        (["--node", "0", "--turn", "0", "--without-clone", "0"], "did not start clone 0: it started 1, "),
        (["--node", "0", "--turn", "0", "budget.tokens=9"], "budget cannot be set: a forked tree keeps that of its"),
        (["--node", "0", "--turn", "0", "engine.modle=x"], "did you mean engine.model?"),
    ],
)
def test_a_fork_that_cannot_begin_is_one_line(tmp_path: Path, made: Path, words: list[str], said: str) -> None:
    assert said in complaint(tmp_path, "fork", str(made), *words, *MODEL)


def test_a_run_without_a_model_of_its_own_asks_for_one(tmp_path: Path, made: Path) -> None:
    assert "which model?" in complaint(tmp_path, "fork", str(made), "--node", "0", "--turn", "0")


def test_a_server_with_one_model_needs_no_name(made: Path) -> None:
    """Which one that is, is asked for when the fork begins (`with_model`)."""
    plan = resolve_fork(made, None, ForkPoint(node=0, turn=0), flags={"engine.base_url": "http://127.0.0.1:1/v1"})
    assert (plan.config.engine.kind, plan.config.engine.model) == ("http", "")


def test_several_trees_are_listed(tmp_path: Path, made: Path) -> None:
    run, tree = RunDir.open(made), next(ramet.read_trees(made))
    tree.id = "shown-2"
    run.write([tree])
    assert "has 2 trees: give --tree (shown, shown-2)" in complaint(
        tmp_path, "fork", str(made), "--node", "0", "--turn", "0", *MODEL
    )
