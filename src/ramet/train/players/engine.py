"""The engine of the training process, as a tree in a player sees it."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import anyio

from ramet.errors import EngineError, RametError
from ramet.tokens.render import TokenRenderer
from ramet.train.players.messages import Call, CancelCall, Ended, Reply
from ramet.types import Completion, Meter, Prompt

GONE = "the training process has ended"


class _Waiting:
    """A call that has no reply yet."""

    __slots__ = ("event", "reply")

    def __init__(self) -> None:
        self.event = anyio.Event()
        self.reply: Reply | None = None


class Calls:
    """The calls of all trees of a player that wait for a reply."""

    def __init__(self, send: Callable[[Any], None]) -> None:
        self.send = send
        self.closed = False
        self._numbers = itertools.count()
        self._waiting: dict[int, _Waiting] = {}

    def start(self) -> tuple[int, _Waiting]:
        number, waiting = next(self._numbers), _Waiting()
        self._waiting[number] = waiting
        return number, waiting

    def end(self, reply: Reply) -> None:
        waiting = self._waiting.pop(reply.call, None)
        if waiting is not None:
            waiting.reply = reply
            waiting.event.set()

    def close(self) -> None:
        """End all calls: the training process is gone."""
        self.closed = True
        for number in list(self._waiting):
            self.end(Reply(number, EngineError(GONE), 0))


class PlayerEngine:
    """Samples in the training process, for the nodes of one tree. Prompts are sent as ids, without their messages."""

    def __init__(self, calls: Calls, *, tree: int, renderer: TokenRenderer, window: int) -> None:
        self.renderer = renderer
        self.window = window
        self._calls = calls
        self._tree = tree

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
        """Sample there. If this is cancelled, wait for what had been received: the node has to account for it."""
        if self._calls.closed:
            raise EngineError(GONE)
        meter = meter or Meter()
        number, waiting = self._calls.start()
        ids = None if prompt.ids is None else array("i", prompt.ids)  # pickled as bytes
        prompt = replace(prompt, messages=(), ids=ids)
        self._calls.send(Call(self._tree, number, prompt, max_tokens, tuple(stop), temperature, seed))
        try:
            await waiting.event.wait()
        except BaseException:
            if not waiting.event.is_set():
                self._calls.send(CancelCall(number))
            with anyio.CancelScope(shield=True):
                await waiting.event.wait()
            _record(meter, waiting.reply, self.renderer)
            raise
        result = _record(meter, waiting.reply, self.renderer)
        if isinstance(result, RametError):
            raise result
        if result is None:
            raise EngineError("the training process cancelled the call")
        return result

    def ended(self, node_id: str) -> None:
        self._calls.send(Ended(node_id))


def _record(meter: Meter, reply: Reply | None, renderer: TokenRenderer) -> Completion | RametError | None:
    """The result of a call, decoded, with its tokens counted in the meter."""
    if reply is None:
        raise AssertionError("a call ended without a reply")
    result = reply.result
    meter.tokens = reply.tokens
    if isinstance(result, Completion):
        completion = result if result.text else replace(result, text=renderer.decode(result.token_ids))
        meter.partial = lambda: completion
        return completion
    return result
