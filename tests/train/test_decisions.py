"""The stage between collecting and credit: decisions are replayed on the real runtime, counted, bounded and stored."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

import ramet
from ramet.agent.options import TreeOptions
from ramet.config import load
from ramet.credit import load_rule
from ramet.credit.counterfactual import Counterfactual
from ramet.engine.scripted import ScriptedEngine, WordTokenizer
from ramet.errors import ConfigError, TrainError
from ramet.recipes import recipe_file
from ramet.store import RunDir
from ramet.tasks.codes import Codes, last_digit, pattern_in
from ramet.tasks.play import play
from ramet.tokens.render import TokenRenderer
from ramet.train.backend import Backend
from ramet.train.decisions import REPLAY, DecisionReplays
from ramet.train.loop import resume, train
from ramet.train.phase import OpenBackend, open_local
from ramet.train.settings import TrainConfig, WarmConfig
from ramet.train.step import Lesson
from ramet.train.warmstart import load_demonstrations
from ramet.types import Prompt, Tree
from tests.train import small
from tests.train.separate import SeparateBackend
from tests.train.test_loop import Stopped, bits, numbers

CODES = Codes()
TASKS = {name: CODES.task("train", index) for index, name in enumerate(["helped", "hurt", "idle"])}
RIGHT = {task.question: str(task.reference) for task in TASKS.values()}
DELEGATED = RIGHT | {TASKS["hurt"].question: "x"}
ALONE = RIGHT | {TASKS["helped"].question: "x"}


def script(prompt: Prompt) -> str:
    """A root that delegates where it may. It is right alone or with clones, depending on the task."""
    if prompt.depth:
        return "= 1"
    if prompt.messages[0].content == ".":  # the system prompt of a node that may not delegate
        return f"= {ALONE[prompt.goal]}"
    if prompt.turn == 0:
        return "> first part\n> second part"
    # With a clone refused, the root does as it would alone.
    return f"= {(ALONE if 'no' in prompt.last else DELEGATED)[prompt.goal]}"


class Stage:
    """A step of three tasks, played by a script, and its replays."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.run = RunDir.create(folder, "run")
        self.engine = ScriptedEngine(script, renderer=TokenRenderer(WordTokenizer()))
        self.options = TreeOptions(engine=self.engine, dialect="terse")
        counterfactual = Counterfactual(**({"share": 1.0} | settings))
        self.replays = DecisionReplays(counterfactual, CODES, self.options, self.run, seed=0)
        self.trees = anyio.run(self._play)

    async def _play(self) -> list[Tree]:
        trees: list[Tree] = []
        for name, task in TASKS.items():
            for member in ("a", "b"):
                tree = await play(CODES, task, self.options)
                tree.id = f"{name}-{member}"
                trees.append(tree)
        before = self.engine.generated
        await self.replays.replay(trees, step=7)
        self.generated = self.engine.generated - before
        return trees

    def lesson(self) -> Lesson:
        return self.replays.lesson(self.trees, rule=load_rule("rao", {"depth_weights": False}))


@pytest.mark.parametrize("alternative", ["alone", "one_less"])
def test_a_delegation_that_helped_earns_one_one_that_hurt_minus_one_and_an_idle_one_nothing(
    tmp_path: Path, alternative: str
) -> None:
    stage = Stage(tmp_path, alternative=alternative)
    lesson = stage.lesson()
    # Both trees of a task have the same scores, so the base rule gives no node an advantage.
    roots = [row for row in lesson.rows if row.node == 0]
    rest, decided = roots[::2], roots[1::2]
    assert {row.tree_id: row.advantage for row in decided} == {
        "helped-a": 1.0,
        "helped-b": 1.0,
        "hurt-a": -1.0,
        "hurt-b": -1.0,
        "idle-a": 0.0,
        "idle-b": 0.0,
    }
    assert all(row.mask.index(True) > turn.mask.index(True) for row, turn in zip(rest, decided, strict=True))
    assert {row.advantage for row in lesson.rows if row not in decided} == {0.0}


def test_rows_of_a_turn_and_of_its_node_share_no_trained_token_and_leave_none_out(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    tree = stage.trees[0]
    rows = [row for row in stage.lesson().rows if row.tree_id == tree.id and row.node == 0]
    assert len(rows) == 2
    assert [sum(masks) for masks in zip(*(row.mask for row in rows), strict=True)] == [
        int(sampled) for sampled in tree.root.mask
    ]
    assert rows[0].token_ids == rows[1].token_ids == tuple(tree.root.token_ids)


def test_replays_are_counted_and_stored_and_marked(tmp_path: Path) -> None:
    stage = Stage(tmp_path, replays=2)
    metrics = stage.lesson().metrics
    assert (metrics["replays"], metrics["replays_refused"], metrics["replays_dropped"]) == (12, 0, 0)
    assert metrics["replay_tokens"] == stage.generated
    assert metrics["replay_difference"] == 0.0
    stored = list(ramet.read_trees(stage.run))
    assert len(stored) == 12
    assert all(tree.id.startswith(REPLAY) for tree in stored)
    assert [file.name for file in stage.run.files()] == ["replay-000007.parquet"]
    with pytest.raises(TrainError, match="none of the 0 trees"):
        load_demonstrations(WarmConfig(run=str(stage.run.path)))


def test_replays_never_generate_more_than_their_limit(tmp_path: Path) -> None:
    least = Stage(tmp_path).trees[0].budget.tokens
    for limit in (1, least - 1, least, 2 * least, 10**6):
        stage = Stage(tmp_path, max_tokens=limit)
        metrics = stage.lesson().metrics
        assert stage.generated == metrics["replay_tokens"] <= limit
        assert metrics["replays"] + metrics["replays_dropped"] == 6
        assert (metrics["replays"] == 0) == (limit < least)
        assert (metrics["replays"] == 6) == (limit == 10**6)


def test_bad_settings_name_the_nearest_right_one() -> None:
    with pytest.raises(ConfigError, match=r"did you mean counterfactual\.share"):
        load(TrainConfig, words=["counterfactual.shares=0.5"])
    with pytest.raises(ConfigError, match=r"counterfactual\.alternative"):
        load(TrainConfig, words=["counterfactual.alternative=none"])


# Whole runs, on both backends. A script samples, so that there are decisions to replay; the model learns from them.

WORDS = (
    "task=codes:train",
    "dialect=terse",
    "steps=3",
    "save_every=1",
    "tasks_per_step=2",
    "group_size=2",
    "max_logprob_gap=1e9",
)
BUDGET = {"tokens": 4000, "nodes": 8, "depth": 2, "window": 900, "reserve": 8}


class ScriptedBackend:
    """A backend whose engine is a script."""

    def __init__(self, backend: Backend, script: Callable[[Prompt], str] | None = None) -> None:
        self._backend = backend
        self.engine = ScriptedEngine(script or solves_with_clones, renderer=backend.renderer)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)


def solves_with_clones(prompt: Prompt) -> str:
    """Right with clones, wrong alone."""
    if prompt.depth or prompt.messages[0].content == ".":
        return "= x"
    return "> first part\n> second part" if prompt.turn == 0 else f"= {last_digit(pattern_in(prompt.goal) or '')}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small.folder(tmp_path_factory.mktemp("decisions"))


@pytest.fixture(params=["local", "separate"])
def backend(request: pytest.FixtureRequest) -> OpenBackend:
    opener = {"local": open_local, "separate": SeparateBackend}[request.param]
    return lambda config: ScriptedBackend(opener(config))


def config(folder: Path, *words: str) -> TrainConfig:
    return small.config(folder, *WORDS, *words, taskset={}, budget=BUDGET)


def test_a_run_learns_from_decisions_and_logs_what_they_cost(
    tmp_path: Path, folder: Path, backend: OpenBackend
) -> None:
    run = train(config(folder, "counterfactual.share=0.5"), runs=tmp_path, open_backend=backend)
    for record in run.metrics():
        assert (record["replays"], record["replay_difference"]) == (2, 1.0)  # four trees, one decision each
        assert record["replay_tokens"] > 0
        assert record["grad_norm"] > 0  # all trees are right: without replays there would be no signal
        assert "note" not in record
    stored = [tree.id for tree in ramet.read_trees(run)]
    assert sum(name.startswith(REPLAY) for name in stored) == 3 * 2
    assert len(stored) == len(set(stored)) == 3 * (4 + 2)
    plain = train(config(folder), runs=tmp_path, open_backend=backend)
    assert all("replays" not in record and "note" in record for record in plain.metrics())


def test_a_resumed_run_replays_the_same_decisions(tmp_path: Path, folder: Path, backend: OpenBackend) -> None:
    settings = config(folder, "counterfactual.share=0.5", "counterfactual.alternative=one_less")
    whole = train(settings, runs=tmp_path, open_backend=backend)

    def stop(record: dict[str, Any]) -> None:
        if record["step"] == 1:
            raise Stopped

    with pytest.raises(Stopped):
        train(settings, runs=tmp_path, open_backend=backend, on_step=stop)
    broken = resume(tmp_path / "train-2", open_backend=backend)
    assert bits(broken) == bits(whole)
    assert numbers(broken) == numbers(whole)
    assert [tree.id for tree in ramet.read_trees(broken)] == [tree.id for tree in ramet.read_trees(whole)]


@pytest.mark.slow
def test_a_nano_model_replays_its_decisions_on_codes(tmp_path: Path) -> None:
    words = ["steps=3", "tasks_per_step=4", "warm.steps=60", "warm.trees_per_step=32", "save_every=3"]
    settings = load(TrainConfig, file=recipe_file("nano"), words=[*words, "counterfactual.share=0.5"])
    run = train(settings, runs=tmp_path)
    records = run.metrics()
    assert sum(record["replays"] for record in records) > 0
    assert all(record["replays_refused"] == record["replays_dropped"] == 0 for record in records)
    assert all(record["replay_tokens"] >= record["replays"] for record in records)
    assert max(record["logprob_gap"] for record in records if record["logprob_gap"] is not None) < 1e-4
