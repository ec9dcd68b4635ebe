"""The responses of OpenAI-compatible servers: event streams, token ids and log-probs in their several formats."""

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

DRAIN_S = 0.5  # the longest wait for the end of a stream after its last event


class TokenLogprob(BaseModel):
    """One entry per token, with its id (llama.cpp)."""

    id: int | None = None
    logprob: float


class Logprobs(BaseModel):
    content: list[TokenLogprob] | None = None  # llama.cpp
    token_logprobs: list[float | None] | None = None  # vLLM


class DeltaMessage(BaseModel):
    content: str | None = None
    reasoning_content: str | None = None  # thoughts, if the server sends them separately; two spellings
    reasoning: str | None = None


class Choice(BaseModel):
    text: str | None = None  # /completions
    delta: DeltaMessage | None = None  # /chat/completions, streamed
    message: DeltaMessage | None = None  # /chat/completions, whole
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
    """One event of a stream, or a complete response."""

    choices: list[Choice] = []
    usage: Usage | None = None
    error: Any = None


async def events(response: httpx.Response) -> AsyncIterator[Event]:
    """The events of a stream. A server that does not stream sends one."""
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
    with anyio.move_on_after(DRAIN_S):  # only a connection read to its end can be reused
        async for _ in lines:
            pass


async def _lines(response: httpx.Response) -> AsyncIterator[str]:
    """Lines that end with a newline. Text may contain other characters that Python treats as line breaks."""
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
        kind = "invalid JSON" if first["type"] == "json_invalid" else "JSON of an unexpected shape"
        raise EngineBusy(f"the server sent {kind}: {text[:80]!r}") from None
    if "choices" not in event.model_fields_set and event.error is None:
        raise EngineBusy(f"the server sent JSON of an unexpected shape: {text[:80]!r}")
    if event.error is not None:  # an error inside the stream
        raise EngineBusy(f"the server reported an error: {error_text(text)}")
    return event


def error_text(body: str) -> str:
    """The message inside an error response, on one line."""
    try:
        content: object = json.loads(body)
    except (ValueError, RecursionError):
        content = body
    for key in ("error", "message", "detail"):
        if isinstance(content, dict) and key in content:
            content = cast(dict[str, object], content)[key]
    return clean(" ".join(str(cast(object, content)).split())[:300]) or "no reason given"


class StreamedCompletion:
    """A completion assembled from events."""

    def __init__(self, meter: Meter) -> None:
        self.meter = meter
        self.finish: str | None = None
        self._text: list[str] = []
        self._ids: list[int] = []
        self._logprobs: list[float] = []
        self._usage = Usage()
        self._thought_bytes = 0  # thoughts are generated but not part of the text

    def add(self, event: Event) -> None:
        self._usage = event.usage or self._usage
        for choice in event.choices:
            message = choice.delta or choice.message
            text = choice.text or (message.content if message else None) or ""
            self._text.append(text)
            ids, logprobs = _tokens(choice)
            self._ids += ids
            self._logprobs += logprobs
            thoughts = (message.reasoning_content or message.reasoning or "") if message else ""
            self._thought_bytes += len(thoughts.encode())
            # Without ids, an event with text counts as one token.
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
        """Raise unless all ids are present; the server may withhold one end-of-turn token."""
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
        """The number the server reports, else the number of ids, else an upper bound."""
        reported = self._usage.completion_tokens
        if reported is not None:
            return max(reported, len(self._ids), 1 if text else 0)
        if self._ids:
            return len(self._ids)
        most = len(text.encode()) + self._thought_bytes
        return max_tokens if self.finish == "length" else min(max_tokens, most)


def _tokens(choice: Choice) -> tuple[list[int], list[float]]:
    """Ids and log-probs of one event, in the format of llama.cpp or vLLM."""
    logprobs = choice.logprobs or Logprobs()
    if logprobs.content is not None:
        ids = [entry.id for entry in logprobs.content if entry.id is not None]
        return ids, [entry.logprob for entry in logprobs.content]
    return choice.token_ids or [], [value or 0.0 for value in logprobs.token_logprobs or []]
