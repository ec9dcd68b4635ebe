"""A server of the Tinker API whose model is a script: it takes time, ends what it began, and counts its tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.lowlevel

from ramet.engine.scripted import Reply, WordTokenizer
from ramet.engine.tinker.calls import Calls
from ramet.engine.tinker.engine import TinkerEngine, Version
from ramet.engine.tinker.service import Sampled
from ramet.errors import EngineError
from ramet.tokens.render import TokenRenderer
from ramet.types import Completion, Prompt


@dataclass
class SilentService:
    """The part of a service that an engine needs beside a sampler."""

    gone: bool = False

    async def check(self) -> None:
        if self.gone:
            raise EngineError("nothing answers at http://silent")


@dataclass
class ReplySampler:
    """The reply to one prompt, request by request."""

    server: ScriptedServer
    reply: Reply
    ids: list[int]
    prompt_size: int

    async def sample(self, token_ids: Sequence[int], *, max_tokens: int, **_: Any) -> Sampled:
        begin = len(token_ids) - self.prompt_size
        ids = self.ids[begin : begin + max_tokens]
        await anyio.lowlevel.checkpoint()
        if self.reply.fault is not None and begin + len(ids) == len(self.ids):
            raise EngineError(self.reply.fault)
        self.server.generated += len(ids)  # the server ends what it began, whether or not its caller waits
        self.server.waiting += 1
        done = False
        try:
            await anyio.sleep(self.reply.seconds * len(ids) / len(self.ids))
            done = True
        finally:
            self.server.waiting -= 1
            self.server.unseen += 0 if done else len(ids)
            self.server.cancelled += not done
        return Sampled(token_ids=tuple(ids), logprobs=(-0.5,) * len(ids), stopped=begin + len(ids) == len(self.ids))


@dataclass
class ScriptedServer:
    """An engine over it is used like any other; `prompts` are those it was asked."""

    script: Callable[[Prompt], str | Reply]
    chunk: int | None = 16
    generated: int = 0
    unseen: int = 0  # generated for callers that had gone
    cancelled: int = 0
    waiting: int = 0
    prompts: list[Prompt] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tokenizer = WordTokenizer()
        self.renderer = TokenRenderer(self.tokenizer)
        self._asked: ContextVar[ReplySampler] = ContextVar("asked")
        self.engine = TinkerEngine(
            Calls(SilentService(), deadline_s=1e6),  # pyright: ignore[reportArgumentType]
            self._current,
            renderer=self.renderer,
            window=10**6,
            chunk=self.chunk,
            vocabulary=10**6,
        )

    async def sample(self, prompt: Prompt, **how: Any) -> Completion:
        self.prompts.append(prompt)
        reply = self.script(prompt)
        reply = Reply(text=reply) if isinstance(reply, str) else reply
        end = self.renderer.end_of_turn
        ids = [*self.tokenizer.encode(reply.text), *([] if end is None else [end])]
        self._asked.set(ReplySampler(self, reply, ids, len(prompt.ids or ())))
        return await self.engine.sample(prompt, **how)

    async def _current(self) -> Version:
        return Version(sampler=self._asked.get(), number=7)
