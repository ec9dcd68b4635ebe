"""The players of a training run, seen from the training process: it gives them trees and samples for them.

What a tree is made of follows from its attempt alone. So a player that dies is replaced, and the trees that it had
under way are played again, from their beginning.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import anyio

from ramet.agent.options import TreeOptions
from ramet.engine.submitting import EngineTasks, Submitting
from ramet.errors import ConfigError, RametError, TrainError
from ramet.interfaces import Engine, Taskset, Windowed
from ramet.tasks.play import judge_rest
from ramet.tokens.render import TokenRenderer
from ramet.train.collect import Attempt
from ramet.train.players.messages import Open, Source
from ramet.train.players.pickling import NOT_PICKLED, dumps
from ramet.train.players.process import PlayerLost, PlayerProcess
from ramet.train.prefetch import background_tasks
from ramet.train.settings import TrainConfig
from ramet.types import Tree, printable

MAX_LOSSES = 3  # players that may die with the same tree under way before the run fails


def say(text: str) -> None:
    """A sentence for the user, while a run goes on."""
    sys.stderr.write(f"ramet: {printable(text)}\n")


class Players:
    """As many players as `collect.processes` says, while it is open as a context.

    `play` has the signature of `collect.play_here`. Nodes that only a judge can grade are graded in this process.
    """

    def __init__(
        self,
        config: TrainConfig,
        *,
        engine: Engine,
        renderer: TokenRenderer,
        evaluation: Taskset | None,
        folder: Path,
        warn: Callable[[str], None] = say,
    ) -> None:
        self._config = config
        self._engine = engine
        self._renderer = renderer
        self._evaluation = evaluation
        self._folder = folder
        self._warn = warn
        self._players: list[PlayerProcess] = []
        self._replacing = anyio.Lock()
        self._open = AsyncExitStack()
        self._submitting: Submitting | None = engine if isinstance(engine, Submitting) else None

    async def __aenter__(self) -> Self:
        if self._submitting is None:
            tasks = await self._open.enter_async_context(background_tasks())
            self._submitting = EngineTasks(self._engine, tasks)
        self._open.push_async_callback(self._close)
        try:
            await self._start_all()
        except BaseException:
            await self.__aexit__(*sys.exc_info())
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._open.__aexit__(kind, error, trace)

    async def _start_all(self) -> None:
        failed: list[RametError] = []
        started: dict[int, PlayerProcess] = {}

        async def start(place: int) -> None:
            try:
                started[place] = await self._start(place)
            except RametError as error:  # raised below, not inside an exception group
                failed.append(error)

        try:
            async with anyio.create_task_group() as group:
                for place in range(self._config.collect.processes):
                    group.start_soon(start, place)
        finally:  # the first one writes for viewers, in whatever order they were ready
            self._players = [started[place] for place in sorted(started)]
        if failed:
            raise failed[0]

    async def _close(self) -> None:
        with anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as group:
                for player in self._players:
                    group.start_soon(player.close)
        self._players = []

    async def play(self, taskset: Taskset, attempt: Attempt, options: TreeOptions) -> Tree:
        """Have a tree played by the player that has the fewest, and again by another if it dies."""
        source: Source = "eval" if taskset is self._evaluation else "train"
        sent = _pickled_attempt(attempt)
        code = 0
        for _ in range(MAX_LOSSES):
            player = await self._choose()
            try:
                tree = await player.play(source, sent, temperature=options.temperature)
            except PlayerLost:
                code = await player.close()
                continue
            await judge_rest(tree, options.judge)
            return tree
        raise TrainError(
            f"tree {attempt.id} cannot be played: {MAX_LOSSES} processes that had it under way ended "
            f"({_describe(code)}); collect.processes=0 plays trees in this process"
        )

    async def _choose(self) -> PlayerProcess:
        """The player with the fewest trees, after those that have ended were replaced."""
        async with self._replacing:
            for place, player in enumerate(self._players):
                if player.lost:
                    ended = _describe(await player.close())
                    self._warn(f"a process that plays trees ended ({ended}): another one plays its trees again")
                    self._players[place] = await self._start(place)
        return min(self._players, key=lambda player: len(player.trees))

    async def _start(self, place: int) -> PlayerProcess:
        """Start a player. Only the first one writes what its trees do for viewers: they read one file."""
        window = self._engine.window if isinstance(self._engine, Windowed) else None
        opening = Open(self._config, self._renderer, window, self._folder if place == 0 else None)
        if self._submitting is None:
            raise AssertionError("Players is used as a context")
        try:
            return await PlayerProcess.start(opening, self._submitting)
        except PlayerLost:
            raise TrainError("a process that plays trees ended before its first tree; its error is above") from None


def _pickled_attempt(attempt: Attempt) -> bytes:
    try:
        return dumps(attempt)
    except NOT_PICKLED as error:
        raise ConfigError(
            f"collect.processes: task {attempt.task.id} cannot be sent to another process ({error}); "
            "set collect.processes=0"
        ) from None


def _describe(code: int) -> str:
    """An exit code in words.

    Example:
        _describe(-9)  # "killed by SIGKILL"
    """
    names = {number.value: number.name for number in signal.Signals}
    return f"exit code {code}" if code >= 0 else f"killed by {names.get(-code, f'signal {-code}')}"
