"""What OpenAI-compatible servers send back, in the shapes they really use."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, cast

import anyio
import httpx
from pydantic import BaseModel, ValidationError

from ramet.errors import EngineBusy, EngineError
from ramet.tokens.render import Renderer
from ramet.types import Completion, Meter, clean

DRAIN_S = 0.5


class TokenLogprob(BaseModel):
    """llama.cpp: one entry per token, with its id."""

    id: int | None = None
    logprob: float


class Logprobs(BaseModel):
    content: list[TokenLogprob] | None = None  # llama.cpp
    token_logprobs: list[float | None] | None = None  # vLLM


class Words(BaseModel):
    content: str | None = None
    reasoning_content: str | None = None  # thoughts, where a server sends them apart; two spellings
    reasoning: str | None = None


class Choice(BaseModel):
    text: str | None = None  # /completions
    delta: Words | None = None  # /chat/completions, streamed
    message: Words | None = None  # /chat/completions, whole
    token_ids: list[int] | None = None
    logprobs: Logprobs | None = None
    finish_reason: str | None = None


class PromptDetails(BaseModel):
    cached_tokens: int | None = None


class Usage(BaseModel):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None


class Event(BaseModel):
    """One object of a stream, or a whole answer."""

    choices: list[Choice] = []
    usage: Usage | None = None
    error: Any = None


async def events(response: httpx.Response) -> AsyncIterator[Event]:
    """The events of a stream; a server that does not stream sends one."""
    if "event-stream" not in response.headers.get("content-type", ""):
        yield _event((await response.aread()).decode(errors="replace"))
        return
    lines = _lines(response)
    async for line in lines:
        data = line.removeprefix("data:").strip()
        if line.startswith("data:") and data == "[DONE]":
            break
        if line.startswith("data:"):
            yield _event(data)
    with anyio.move_on_after(DRAIN_S):  # a connection that was read to its end can be used again
        async for _ in lines:
            pass


async def _lines(response: httpx.Response) -> AsyncIterator[str]:
    """Lines as the protocol means them: text may hold other characters that Python takes for line breaks."""
    rest = b""
    async for data in response.aiter_bytes():
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            yield line.decode(errors="replace")
    yield rest.decode(errors="replace")


def _event(text: str) -> Event:
    try:
        event = Event.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        kind = "invalid JSON" if first["type"] == "json_invalid" else "JSON of an unknown shape"
        raise EngineBusy(f"the server sent {kind}: {text[:80]!r}") from None
    if "choices" not in event.model_fields_set and event.error is None:
        raise EngineBusy(f"the server sent JSON of an unknown shape: {text[:80]!r}")
    if event.error is not None:  # an error in the middle of a stream
        raise EngineBusy(f"the server reported an error: {problem(text)}")
    return event


def problem(text: str) -> str:
    """The one sentence in an error body."""
    try:
        said: object = json.loads(text)
    except (ValueError, RecursionError):
        said = text
    for key in ("error", "message", "detail"):
        if isinstance(said, dict) and key in said:
            said = cast(dict[str, object], said)[key]
    return clean(" ".join(str(cast(object, said)).split())[:300]) or "no reason given"


class Collected:
    """A completion put together from events."""

    def __init__(self, meter: Meter) -> None:
        self.meter = meter
        self.finish: str | None = None
        self._text: list[str] = []
        self._ids: list[int] = []
        self._logprobs: list[float] = []
        self._usage = Usage()
        self._unseen = 0  # bytes of thoughts that are no part of the answer

    def add(self, event: Event) -> None:
        self._usage = event.usage or self._usage
        for choice in event.choices:
            words = choice.delta or choice.message
            text = choice.text or (words.content if words else None) or ""
            self._text.append(text)
            ids, logprobs = _tokens(choice)
            self._ids += ids
            self._logprobs += logprobs
            thoughts = (words.reasoning_content or words.reasoning or "") if words else ""
            self._unseen += len(thoughts.encode())
            # Without ids a piece of text is at least one token.
            self.meter.tokens += len(ids) or (1 if text or thoughts else 0)
            self.finish = choice.finish_reason or self.finish

    def completion(self, *, max_tokens: int, renderer: Renderer) -> Completion:
        text = "".join(self._text)
        num_tokens = self._num_tokens(text, max_tokens)
        if renderer.exact:
            self._check_ids(text, num_tokens, renderer)
        details = self._usage.prompt_tokens_details
        cached = (details.cached_tokens if details else None) or 0
        prompt_tokens = self._usage.prompt_tokens or 0
        return Completion(
            text=text,
            token_ids=tuple(self._ids) if renderer.exact else (),
            logprobs=tuple(self._logprobs) if renderer.exact and len(self._logprobs) == len(self._ids) else (),
            num_tokens=num_tokens,
            finish="length" if self.finish == "length" else "stop",
            prompt_tokens=prompt_tokens if prompt_tokens > 0 else None,
            cached_tokens=max(0, cached),
        )

    def _check_ids(self, text: str, num_tokens: int, renderer: Renderer) -> None:
        """Ids are recorded only when they are all there; one end-of-turn token may stay with the server."""
        if text and not self._ids:
            raise EngineError(
                "the server takes token ids but returns none: run without a tokenizer, or use a server that has "
                "return_token_ids (vLLM) or ids in its log-probs (llama.cpp)"
            )
        if len(self._ids) != num_tokens and (
            num_tokens - len(self._ids) > 1 or not renderer.decode(self._ids).startswith(text)
        ):
            raise EngineError(
                f"the server returned {len(self._ids)} ids for {num_tokens} tokens (llama.cpp does so for characters "
                "made of several tokens): run without a tokenizer, or use another server"
            )

    def _num_tokens(self, text: str, max_tokens: int) -> int:
        """What the server says; failing that what was counted; failing that the most it can have been."""
        said = self._usage.completion_tokens
        if said is not None:
            return max(said, len(self._ids), 1 if text else 0)
        if self._ids:
            return len(self._ids)
        most = len(text.encode()) + self._unseen
        return max_tokens if self.finish == "length" else min(max_tokens, most)


def _tokens(choice: Choice) -> tuple[list[int], list[float]]:
    """Ids and log-probs of one event: llama.cpp's shape, or vLLM's."""
    logprobs = choice.logprobs or Logprobs()
    if logprobs.content is not None:
        ids = [entry.id for entry in logprobs.content if entry.id is not None]
        return ids, [entry.logprob for entry in logprobs.content]
    return choice.token_ids or [], [value or 0.0 for value in logprobs.token_logprobs or []]
