"""Trees in processes of their own: the same trees, and what happens when a process dies or a tree is cancelled."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

import ramet
from ramet.agent.options import TreeOptions
from ramet.config import load
from ramet.errors import BudgetTooSmall, ConfigError, EngineError, TrainError
from ramet.interfaces import Engine
from ramet.tasks.arithmetic import Arithmetic
from ramet.tokens.huggingface import HfTokenizer
from ramet.tokens.render import TokenRenderer
from ramet.train.collect import Play, collect, play_here, step_attempts
from ramet.train.loop import resolve_plan
from ramet.train.players.messages import Played
from ramet.train.players.pickling import dumps, loads, sendable
from ramet.train.players.pool import Players
from ramet.train.players.process import PlayerProcess, UnderWay
from ramet.train.settings import TrainConfig
from ramet.types import Completion, Meter, Prompt, Tree
from tests.train import small

DELEGATE = '<tool_call>{"name": "delegate", "arguments": {"goals": ["2 + 2", "3 + 4"]}}</tool_call>'
TEXTS = [DELEGATE, "Answer: 4", "Answer: 7", "Let me think."]
TIMES = {"seconds", "started_s", "sampled_s", "ended_s", "id"}  # that differ between two plays; ids are random


def renderer() -> TokenRenderer:
    return TokenRenderer(HfTokenizer(small.tokenizer()))


class Dice:
    """Answers by the seed of the call alone. `hold` is awaited in every call before its first token."""

    window = 2048

    def __init__(self, made: TokenRenderer, hold: Callable[[int], Awaitable[None]] | None = None) -> None:
        self.renderer = made
        self.hold = hold
        self.calls = 0
        self.held = 0
        self.cancelled = 0
        self.ended_nodes: list[str] = []

    async def sample(
        self,
        prompt: Prompt,
        *,
        max_tokens: int,
        stop: Sequence[str] = (),
        temperature: float = 1.0,
        seed: int | None = None,
        meter: Meter | None = None,
    ) -> Completion:
        self.calls += 1
        assert prompt.ids
        dice = random.Random(f"{seed} {temperature}")
        made = self._completion(dice, max_tokens)
        if self.hold is not None:
            if meter is not None:
                meter.tokens = 2
                meter.partial = lambda: replace(
                    made, token_ids=made.token_ids[:2], logprobs=made.logprobs[:2], num_tokens=2, finish="length"
                )
            self.held += 1
            try:
                await self.hold(self.calls)
            except BaseException:
                self.cancelled += 1
                raise
        return made

    def _completion(self, dice: random.Random, max_tokens: int) -> Completion:
        ids = tuple(self.renderer.tokenizer.encode(dice.choice(TEXTS), control=False))[:max_tokens]
        return Completion(
            text="",
            token_ids=ids,
            logprobs=tuple(-dice.random() for _ in ids),
            num_tokens=len(ids),
            finish="stop",
            policy_version=3,
        )

    def ended(self, node_id: str) -> None:
        self.ended_nodes.append(node_id)


class Decoding(Dice):
    """The same for trees in this process: with text."""

    async def sample(self, prompt: Prompt, **given: Any) -> Completion:
        made = await super().sample(prompt, **given)
        return replace(made, text=self.renderer.decode(made.token_ids))


def config(*words: str) -> TrainConfig:
    base = {**small.WORDS, "model": "nano", "tasks_per_step": 3, "group_size": 4}
    budget = {"tokens": [200, 900], "nodes": 7, "depth": 2, "turns": 3, "reserve": 16, "window": 1500}
    return load(TrainConfig, base=base | {"budget": budget}, words=["collect.processes=1", "eval.every=1", *words])


def with_players(
    given: TrainConfig,
    engine: Engine,
    folder: Path,
    work: Callable[[Players], Awaitable[Any]],
    warn: Callable[[str], None] = lambda text: None,
) -> Any:
    """What `work` returns, while the players of these settings are open."""
    plan = resolve_plan(given)
    evaluation = None if plan.evaluation is None else plan.evaluation[0]

    async def inside() -> Any:
        made: Any = engine.renderer
        async with Players(
            given, engine=engine, renderer=made, evaluation=evaluation, folder=folder, warn=warn
        ) as players:
            return await work(players)

    return anyio.run(inside)


async def play_step(given: TrainConfig, engine: Engine, play: Play, *, evaluation: bool = False) -> list[Tree]:
    """The trees of the first step, or those of its evaluation. The taskset is the object that `resolve_plan` made."""
    plan = resolve_plan(given)
    taskset, split = plan.evaluation if evaluation and plan.evaluation else (plan.taskset, plan.split)
    return await collect(
        taskset,
        step_attempts(taskset, split, given, step=0),
        TreeOptions.from_settings(given, engine=engine),
        play=play,
    )


def facts(trees: Sequence[Tree]) -> list[Any]:
    """All that is recorded of trees, without times."""

    def timeless(value: Any) -> Any:
        items: Any = value
        if isinstance(value, dict):
            return {name: timeless(item) for name, item in items.items() if name not in TIMES}
        return [timeless(item) for item in items] if isinstance(value, list | tuple) else value

    return [timeless(asdict(tree)) for tree in trees]


def test_trees_of_other_processes_are_those_of_this_one(tmp_path: Path) -> None:
    given, made = config("collect.processes=2"), renderer()
    here = anyio.run(partial(play_step, given, Decoding(made), play_here))
    engine = Dice(made)
    there = with_players(given, engine, tmp_path, lambda players: play_step(given, engine, players.play))
    assert facts(there) == facts(here)
    assert [tree.id for tree in there] == [tree.id for tree in here]
    assert max(len(tree.nodes) for tree in there) > 2
    assert all(node.verdict is not None for tree in there for node in tree.nodes)
    assert len(engine.ended_nodes) == sum(len(tree.nodes) for tree in there)


def test_a_player_that_dies_is_replaced_and_a_tree_that_kills_three_is_one_clear_error(tmp_path: Path) -> None:
    given, made, said = config(), renderer(), list[str]()
    opened: list[Players] = []

    async def kill(call: int, *, at: int) -> None:
        if call >= at:
            engine.hold = None if at == 5 else engine.hold
            opened[0]._players[0].process.kill()  # pyright: ignore[reportPrivateUsage]
            await anyio.sleep_forever()

    engine = Dice(made, partial(kill, at=5))

    async def work(players: Players) -> list[Tree]:
        opened.append(players)
        there = await play_step(given, engine, players.play)
        assert said == ["a process that plays trees ended (killed by SIGKILL): another one plays its trees again"]
        engine.hold = partial(kill, at=0)
        with pytest.raises(TrainError, match=r"tree 000000-00\d-00\d cannot be played: 3 processes .*SIGKILL"):
            await play_step(given, engine, players.play)
        return there

    there = with_players(given, engine, tmp_path, work, warn=said.append)
    assert facts(there) == facts(anyio.run(partial(play_step, given, Decoding(made), play_here)))
    assert len(said) == 3


async def _signal_and_wait(event: anyio.Event, call: int) -> None:
    event.set()
    await anyio.sleep_forever()


async def _wait(call: int) -> None:
    await anyio.sleep_forever()


async def _fail(call: int) -> None:
    raise EngineError("out of memory")


def test_calls_that_end_early_leave_their_tokens_or_their_error(tmp_path: Path) -> None:
    given = config("tasks_per_step=1", "group_size=2", "budget.seconds=2")
    engine = Dice(renderer(), _wait)

    async def work(players: Players) -> tuple[list[Tree], int]:
        cut = await play_step(given, engine, players.play)
        after = engine.cancelled
        under_way = anyio.Event()
        engine.hold = partial(_signal_and_wait, under_way)
        async with anyio.create_task_group() as group:
            patient = replace(given, budget=given.budget | {"seconds": 60})
            group.start_soon(play_step, patient, engine, players.play)
            await under_way.wait()
            group.cancel_scope.cancel()
        engine.hold = None  # the same player goes on
        await play_step(given, engine, players.play)
        assert engine.cancelled == engine.held > after  # no call is left of the trees that were cancelled
        engine.hold = _fail
        with pytest.raises(EngineError, match="out of memory") as raised:
            await play_step(given, engine, players.play)
        assert raised.value.tree is not None
        assert raised.value.tree.root.error == "out of memory"
        return cut, after

    trees, after = with_players(given, engine, tmp_path, work)
    for tree in trees:
        assert {(turn.finish, turn.tokens) for turn in tree.root.turns} == {("cut", 2)}
        assert [len(piece.token_ids) for piece in tree.root.pieces if piece.sampled] == [2] * len(tree.root.turns)
        assert tree.usage.tokens == 2 * len(tree.root.turns)
    assert after >= sum(len(tree.root.turns) for tree in trees)  # a call that is cut before its player hears of a token


def test_settings_that_a_player_cannot_use_are_refused_as_in_this_process(tmp_path: Path) -> None:
    broken = replace(config(), task="nothing.py:Missing:train")
    players = Players(broken, engine=Dice(renderer()), renderer=renderer(), evaluation=None, folder=tmp_path)

    async def enter() -> None:
        async with players:
            pass

    with pytest.raises(ConfigError, match=r"nothing\.py"):
        anyio.run(enter)
    with pytest.raises(ConfigError, match=r"collect\.processes is a whole number from 0 up; got -1"):
        config("collect.processes=-1")
    with pytest.raises(ConfigError, match=r"collect\.processes=1 needs task by reference"):
        ramet.train("nano", task=Arithmetic(), collect={"processes": 1})


def test_records_are_the_same_after_a_pickle() -> None:
    made = renderer()
    trees = anyio.run(partial(play_step, config(), Decoding(made), play_here))
    assert loads(dumps(trees)) == trees
    options = TreeOptions(engine=Dice(made), budget=trees[0].budget)
    assert loads(dumps((options.budget, made.chat))) == (options.budget, made.chat)
    again = loads(dumps(made))
    assert again.open("system", "user") == made.open("system", "user")


def test_errors_that_another_process_cannot_restore_are_sent_as_their_text() -> None:
    class Own(EngineError):
        def __init__(self, code: int) -> None:
            super().__init__(f"code {code}")

    assert type(sendable(Own(5))) is EngineError
    assert str(sendable(Own(5))) == "code 5"
    small = BudgetTooSmall("too small", limit="window")
    assert sendable(small) is small
    restored = loads(dumps(small))
    assert (type(restored), str(restored), restored.limit) == (BudgetTooSmall, "too small", "window")


def test_a_tree_that_has_arrived_is_kept_when_its_player_ends() -> None:
    player: Any = object.__new__(PlayerProcess)
    player.trees, player.lost, player._opened = {}, False, anyio.Event()
    tree = player.trees[0] = UnderWay()
    played = Played(0, b"")
    player._receive(played)
    player._lose()
    assert tree.message is played


FORKING = """
import os, time
from pathlib import Path
from ramet.tasks.arithmetic import Arithmetic

ENDED = Path(__file__).with_name("ended")

class Forking(Arithmetic):
    def world(self, task):
        if os.fork() == 0:
            while not ENDED.exists():
                time.sleep(0.02)
            os._exit(0)
        return super().world(task)
"""


def test_the_death_of_a_player_is_noticed_although_a_process_that_it_forked_has_its_socket(tmp_path: Path) -> None:
    (tmp_path / "forking.py").write_text(FORKING)
    given, made, opened = config(f"task={tmp_path}/forking.py:Forking:train"), renderer(), list[Players]()

    async def kill(call: int) -> None:
        del call
        engine.hold = None
        os.kill(opened[0]._players[0].process.pid, signal.SIGKILL)  # pyright: ignore[reportPrivateUsage]
        await anyio.sleep_forever()

    engine = Dice(made, kill)

    async def work(players: Players) -> list[Tree]:
        opened.append(players)
        return await play_step(given, engine, players.play)

    try:
        trees = with_players(given, engine, tmp_path, work, warn=lambda text: None)
    finally:
        (tmp_path / "ended").touch()
    assert all(tree.root.verdict is not None for tree in trees)
