"""A process that plays trees. Started by `pool`, it ends when its socket is closed.

It has the taskset and the tokenizer of the run, and no model: engine calls go to the training process.
"""

from __future__ import annotations

import gc
import os
import socket
import sys
import traceback
from dataclasses import replace
from typing import Any

import anyio
from anyio.abc import TaskGroup

from ramet import plugins
from ramet.agent.live import LiveLog
from ramet.agent.options import TreeOptions
from ramet.errors import ConfigError, RametError
from ramet.interfaces import Taskset
from ramet.tasks.play import play_unjudged
from ramet.train.collect import Attempt, options_of
from ramet.train.loop import resolve_tasks
from ramet.train.players.engine import Calls, PlayerEngine
from ramet.train.players.link import Link
from ramet.train.players.messages import Cancel, Failed, Open, Play, Played, Ready, Reply, Source
from ramet.train.players.pickling import NOT_PICKLED, dumps, loads
from ramet.types import Tree

# New objects after which Python looks for garbage; as in the training process on a GPU (`local/overhead.py`).
GARBAGE_THRESHOLD = 50_000


class Player:
    """Plays the trees it is asked for, each in a task of its own."""

    def __init__(self, group: TaskGroup) -> None:
        self._group = group
        self._link: Link | None = None
        self._calls = Calls(self._send)
        self._tasksets: dict[Source, Taskset] = {}
        self._open: Open | None = None
        self._options: TreeOptions | None = None
        self._trees: dict[int, anyio.CancelScope] = {}

    async def connect(self, end: socket.socket) -> None:
        self._link = await Link.open(end, self._receive, self._lost)

    def _send(self, message: Any) -> None:
        if self._link is not None:
            self._link.send(message)

    def _receive(self, message: Any) -> None:
        match message:
            case Reply():
                self._calls.end(message)
            case Play():
                self._trees[message.tree] = anyio.CancelScope()
                self._group.start_soon(self._play, message)
            case Cancel():
                if message.tree in self._trees:
                    self._trees[message.tree].cancel()
            case Open():
                self._prepare(message)
            case _:
                raise AssertionError(f"unknown message {message!r}")

    def _prepare(self, opened: Open) -> None:
        """Load what the trees of this run share."""
        try:
            (taskset, _), evaluation = resolve_tasks(opened.config)
        except RametError as error:
            self._send(Failed(None, _pickled_error(error)))
            return
        self._open = opened
        self._tasksets["train"] = taskset
        if evaluation is not None:
            self._tasksets["eval"] = evaluation[0]
        watcher = None if opened.live is None else LiveLog(opened.live)
        self._options = TreeOptions.from_settings(opened.config, engine=self._engine(tree=-1), watcher=watcher)
        gc.collect()
        gc.freeze()
        gc.set_threshold(GARBAGE_THRESHOLD, *gc.get_threshold()[1:])
        self._send(Ready())

    def _engine(self, *, tree: int) -> PlayerEngine:
        if self._open is None:
            raise AssertionError("a tree came before `Open`")
        window = sys.maxsize if self._open.window is None else self._open.window
        return PlayerEngine(self._calls, tree=tree, renderer=self._open.renderer, window=window)

    async def _play(self, message: Play) -> None:
        """Play one tree and send it back, or the error that ended it. A cancelled tree is not sent."""
        try:
            with self._trees[message.tree]:
                self._send(Played(message.tree, _pickled_tree(await self._tree(message))))
        except Exception as error:  # noqa: BLE001 (top of the tree: raised again in the training process)
            self._send(Failed(message.tree, _pickled_error(error)))
        finally:
            del self._trees[message.tree]

    async def _tree(self, message: Play) -> Tree:
        if self._options is None:
            raise AssertionError("a tree came before `Open`")
        attempt: Attempt = loads(message.attempt)
        options = replace(self._options, engine=self._engine(tree=message.tree), temperature=message.temperature)
        return await play_unjudged(self._tasksets[message.source], attempt.task, options_of(attempt, options))

    def _lost(self) -> None:
        """The training process is gone: end all trees, and with them the process."""
        self._calls.close()
        self._group.cancel_scope.cancel()


def _pickled_tree(tree: Tree) -> bytes:
    try:
        return dumps(tree)
    except NOT_PICKLED as error:
        raise ConfigError(
            f"collect.processes: a tree of {tree.task.id} cannot be sent to another process ({error}); "
            "set collect.processes=0"
        ) from None


def _pickled_error(error: Exception) -> bytes:
    """The error, with where it was raised if that was not on purpose. A mistake of a plug-in is the line users read."""
    mistake = None if isinstance(error, RametError) else plugins.mistake(error)
    if mistake is not None:
        return dumps(ConfigError(mistake))
    if not isinstance(error, RametError):
        error.add_note(f"In a process that plays trees:\n{''.join(traceback.format_exception(error))}")
    try:
        data = dumps(error)
        loads(data)  # some errors can be pickled and not restored
        return data
    except Exception:  # noqa: BLE001 (whatever its class raises)
        return dumps(RuntimeError("".join(traceback.format_exception(error))))


async def play_until_closed(end: socket.socket) -> None:
    """Play trees until the training process closes its end."""
    async with anyio.create_task_group() as group:
        await Player(group).connect(end)
        await anyio.sleep_forever()


def main() -> None:
    end = socket.socket(fileno=int(sys.argv[1]))
    os.set_inheritable(end.fileno(), False)  # not for sandboxes and graders: the socket closes with this process
    anyio.run(play_until_closed, end)


if __name__ == "__main__":
    main()
