"""One player, seen from the training process: its process, the trees it plays, the engine calls it waits for."""

from __future__ import annotations

import asyncio
import itertools
import socket
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

import anyio
import anyio.to_thread

from ramet.engine.submitting import Submitting
from ramet.errors import RametError
from ramet.interfaces import Caching
from ramet.train.child import end_child, start_child
from ramet.train.players.link import Link
from ramet.train.players.messages import (
    Call,
    Cancel,
    CancelCall,
    Ended,
    Failed,
    Open,
    Play,
    Played,
    Ready,
    Reply,
    Source,
)
from ramet.train.players.pickling import loads, sendable
from ramet.types import Completion, Meter, Tree


class PlayerLost(Exception):
    """A player ended while it had work."""


@dataclass(slots=True)
class UnderWay:
    """A tree that a player plays."""

    calls: set[int] = field(default_factory=set[int])  # that it waits for
    done: anyio.Event = field(default_factory=anyio.Event)
    message: Played | Failed | None = None  # None at the end: the player is lost


@dataclass(frozen=True, slots=True)
class OpenCall:
    """An engine call of a player."""

    tree: UnderWay
    meter: Meter
    cancel: Callable[[], None]


class PlayerProcess:
    """One player: its process, the trees it plays, the calls it waits for."""

    def __init__(self, process: subprocess.Popen[bytes], engine: Submitting) -> None:
        self.process = process
        self.trees: dict[int, UnderWay] = {}
        self.lost = False
        self._engine = engine
        self._caching = engine if isinstance(engine, Caching) else None
        self._calls: dict[int, OpenCall] = {}
        self._numbers = itertools.count()
        self._opened = anyio.Event()
        self._refused: Failed | None = None
        self._link: Link | None = None

    @classmethod
    async def start(cls, opening: Open, engine: Submitting) -> Self:
        """Start a process and wait until it is ready to play."""
        ours, theirs = socket.socketpair()
        with theirs:
            player = cls(start_child("ramet.train.players.player", theirs.fileno()), engine)
        player._link = await Link.open(ours, player._receive, player._lose)
        watch = partial(player._watch, asyncio.get_running_loop(), player._link)
        threading.Thread(target=watch, name="ramet player", daemon=True).start()
        try:
            await player._open(opening)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await player.close()
            raise
        return player

    def _watch(self, loop: asyncio.AbstractEventLoop, link: Link) -> None:
        """Close the connection when the process ends: a process that it forked may still have the other end."""
        self.process.wait()
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(link.close)

    async def _open(self, opening: Open) -> None:
        self._send(opening)
        await self._opened.wait()
        if self._refused is not None:
            raise loads(self._refused.error)
        if self.lost:
            raise PlayerLost

    async def play(self, source: Source, attempt: bytes, *, temperature: float) -> Tree:
        """Have a tree played. `PlayerLost` if the process ends meanwhile."""
        if self.lost:
            raise PlayerLost
        number = next(self._numbers)
        tree = self.trees[number] = UnderWay()
        self._send(Play(number, source, attempt, temperature))
        try:
            await tree.done.wait()
        finally:
            del self.trees[number]
            if not tree.done.is_set():
                self._send(Cancel(number))
            for call in tree.calls:
                self._calls.pop(call).cancel()
        match tree.message:
            case Played():
                return loads(tree.message.played)
            case Failed():
                raise loads(tree.message.error)
            case None:
                raise PlayerLost

    async def close(self) -> int:
        """End the process; returns its exit code."""
        if self._link is not None:
            self._link.close()
        return await anyio.to_thread.run_sync(end_child, self.process)

    def _send(self, message: Any) -> None:
        if self._link is not None and not self.lost:
            self._link.send(message)

    def _receive(self, message: Any) -> None:
        match message:
            case Call():
                if message.tree in self.trees:
                    self._start_call(message, self.trees[message.tree])
                else:  # cancelled here while the message was on its way
                    self._send(Reply(message.call, None, 0))
            case Ended():
                if self._caching is not None:
                    self._caching.ended(message.node_id)
            case CancelCall():
                self._cancel_call(message.call)
            case Failed(tree=None):
                self._refused = message
                self._opened.set()
            case Played() | Failed():
                if message.tree in self.trees:
                    self._end(self.trees[message.tree], message)
            case Ready():
                self._opened.set()
            case _:
                raise AssertionError(f"unknown message {message!r}")

    def _start_call(self, call: Call, tree: UnderWay) -> None:
        meter = Meter()
        try:
            cancel = self._engine.submit(
                call.prompt,
                max_tokens=call.max_tokens,
                stop=call.stop,
                temperature=call.temperature,
                seed=call.seed,
                meter=meter,
                on_end=partial(self._end_call, call.call),
            )
        except RametError as error:  # raised in the tree
            self._send(Reply(call.call, sendable(error), 0))
            return
        self._calls[call.call] = OpenCall(tree, meter, cancel)
        tree.calls.add(call.call)

    def _end_call(self, number: int, result: Completion | RametError) -> None:
        call = self._calls.pop(number, None)
        if call is not None:
            call.tree.calls.discard(number)
            sent = result if isinstance(result, Completion) else sendable(result)
            self._send(Reply(number, sent, call.meter.tokens))

    def _cancel_call(self, number: int) -> None:
        """Cancel a call and reply with what had been received."""
        call = self._calls.pop(number, None)
        if call is None:  # its reply is on the way, or its tree was cancelled
            self._send(Reply(number, None, 0))
            return
        call.tree.calls.discard(number)
        call.cancel()
        partial_of = call.meter.partial
        self._send(Reply(number, None if partial_of is None else partial_of(), call.meter.tokens))

    def _lose(self) -> None:
        self.lost = True
        self._opened.set()
        for tree in self.trees.values():
            self._end(tree, None)

    def _end(self, tree: UnderWay, message: Played | Failed | None) -> None:
        if not tree.done.is_set():  # a tree that has arrived is kept
            tree.message = message
            tree.done.set()
