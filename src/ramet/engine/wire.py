"""The responses of OpenAI-compatible servers: event streams, token ids and log-probs in their several formats."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any, cast

import anyio
import httpx
from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from ramet.engine.calls import CallDelta, CallsInParts, delta_text
from ramet.engine.reading import MAX_ERROR_BYTES, read_lines, read_text
from ramet.errors import EngineBusy, EngineError
from ramet.tokens.render import Renderer
from ramet.types import Completion, Meter, clean

DRAIN_S = 0.5  # the longest wait for the end of a stream after its last event
LARGEST = 2**31  # ids and counts are below this
CUT = ("length", "max_tokens")  # reasons to finish that mean: there would have been more
BROKEN = ("abort", "error")  # reasons to finish that mean: the server gave up (vLLM, SGLang, OpenRouter)
TOKEN_BYTES = 16  # text without ids has at least one token for so many bytes other than spaces
WITHOUT_IDS = (
    "run without a tokenizer, or use a server that has return_token_ids (vLLM) or ids in its log-probs (llama.cpp)"
)
Hide = Callable[[str], str]  # replaces what must not be shown, such as an API key


def _count(value: object) -> object:
    """A number of tokens as a server reports it; None when it cannot be one."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < LARGEST else None


def _finite(value: object) -> object:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _text(value: object) -> object:
    """Some servers send the content of a message as a list of parts."""
    if not isinstance(value, list):
        return value
    parts = [cast(dict[str, object], part).get("text") for part in cast(list[object], value) if isinstance(part, dict)]
    return "".join(part for part in parts if isinstance(part, str))


def _or_empty(value: object) -> object:
    return [] if value is None else value


Text = Annotated[str | None, BeforeValidator(_text)]
Count = Annotated[int | None, BeforeValidator(_count)]
TokenId = Annotated[int, Field(ge=0, lt=LARGEST)]
Logprob = Annotated[float | None, BeforeValidator(_finite)]


class TokenLogprob(BaseModel):
    """One entry per token, with its id (llama.cpp)."""

    id: TokenId | None = None
    logprob: Logprob


class Logprobs(BaseModel):
    content: list[TokenLogprob] | None = None  # llama.cpp
    token_logprobs: list[Logprob] | None = None  # vLLM


class DeltaMessage(BaseModel):
    content: Text = None
    reasoning_content: Text = None  # thoughts, if the server sends them separately; two spellings
    reasoning: Text = None
    refusal: Text = None  # in place of content (OpenAI)
    tool_calls: list[CallDelta] | None = None


class Choice(BaseModel):
    text: str | None = None  # /completions
    delta: DeltaMessage | None = None  # /chat/completions, streamed
    message: DeltaMessage | None = None  # /chat/completions, whole
    token_ids: list[TokenId] | None = None
    prompt_token_ids: list[TokenId] | None = None  # SGLang
    logprobs: Logprobs | None = None
    finish_reason: str | None = None


class PromptDetails(BaseModel):
    cached_tokens: Count = None


class Usage(BaseModel):
    prompt_tokens: Count = None
    completion_tokens: Count = None
    prompt_tokens_details: PromptDetails | None = None


class Event(BaseModel):
    """One event of a stream, or a complete response."""

    choices: Annotated[list[Choice], BeforeValidator(_or_empty)] = []
    prompt_token_ids: list[TokenId] | None = None  # vLLM, with the first event
    usage: Usage | None = None
    error: Any = None
    type: Any = None  # `ping`: nothing, to keep the connection open


def unchanged(text: str) -> str:
    return text


async def events(response: httpx.Response, *, limit: int, hide: Hide = unchanged) -> AsyncIterator[Event]:
    """The events of a stream of at most `limit` bytes. A server that does not stream sends one."""
    if "event-stream" not in response.headers.get("content-type", ""):
        yield _event(await read_text(response, limit=limit), hide)
        return
    lines = read_lines(response, limit=limit)
    async for line in lines:
        data = line.removeprefix("data:").strip()
        if line.startswith("data:") and data == "[DONE]":
            break
        if line.startswith("data:"):
            yield _event(data, hide)
    with anyio.move_on_after(DRAIN_S):  # only a connection read to its end can be reused
        async for _ in lines:
            pass


def _event(text: str, hide: Hide) -> Event:
    try:
        event = Event.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        kind = "invalid JSON" if first["type"] == "json_invalid" else "JSON of an unexpected shape"
        raise EngineBusy(f"the server sent {kind}: {hide(text[:MAX_ERROR_BYTES])[:80]!r}") from None
    if "choices" not in event.model_fields_set and event.error is None and event.type != "ping":
        raise EngineBusy(f"the server sent JSON of an unexpected shape: {hide(text[:MAX_ERROR_BYTES])[:80]!r}")
    if event.error is not None:  # an error inside the stream
        raise EngineBusy(f"the server reported an error: {error_text(text, hide)}")
    return event


def error_text(body: str, hide: Hide = unchanged) -> str:
    """The message inside an error response, on one line. What must not be shown is replaced before it is shortened."""
    try:
        content: object = json.loads(body)
    except (ValueError, RecursionError):
        content = body
    for key in ("error", "message", "detail"):
        if isinstance(content, dict) and key in content:
            content = cast(dict[str, object], content)[key]
    return clean(" ".join(hide(_as_text(cast(object, content))).split())[:300]) or "no reason given"


def _as_text(content: object) -> str:
    try:
        return str(content)
    except (ValueError, RecursionError):  # a number of 5,000 digits, a list 10,000 deep
        return "an error that cannot be printed"


class StreamedCompletion:
    """A completion assembled from events, at most `max_tokens` long whatever the server sends."""

    def __init__(self, meter: Meter, *, max_tokens: int) -> None:
        self.meter = meter
        self.max_tokens = max_tokens
        self.finish: str | None = None
        self.is_over = False  # the server sent more than it was asked for
        self._text: list[str] = []
        self._thoughts: list[str] = []
        self._calls = CallsInParts()
        self._prompt_ids: tuple[int, ...] = ()
        self._ids: list[int] = []
        self._logprobs: list[float | None] = []
        self._usage = Usage()
        self._events = 0  # with text but without ids
        self._bytes = 0  # of text, thoughts and calls
        self._solid = 0  # of text, thoughts and calls without ids, spaces not counted

    @property
    def is_complete(self) -> bool:
        """Whether the server has said why the answer ends, and did not give up."""
        return self.finish is not None and self.finish not in BROKEN

    def add(self, event: Event) -> bool:
        """Take what an event brings; False if that is nothing new. Of an event beyond `max_tokens` the rest is cut."""
        self._usage = event.usage or self._usage
        for source in (event, *event.choices):
            self._prompt_ids = self._prompt_ids or tuple(source.prompt_token_ids or ())
        news = [self._add_choice(choice) for choice in event.choices]
        return any(news)

    def _add_choice(self, choice: Choice) -> bool:
        message = choice.delta or choice.message or DeltaMessage()
        text = choice.text or message.content or message.refusal or ""
        thoughts = message.reasoning_content or message.reasoning or ""
        deltas = message.tool_calls or []
        brought = text + thoughts + delta_text(deltas)
        ids, logprobs = _tokens(choice)
        room = self.max_tokens - len(self._ids)
        self._ids += ids[:room]
        self._logprobs += logprobs[:room]
        self.finish = choice.finish_reason or self.finish
        if not ids:
            self._events += 1 if brought else 0
            self._solid += len("".join(brought.split()).encode(errors="replace"))
        before, self.meter.tokens = self.meter.tokens, max(self._received(len(ids) - room), self.meter.tokens)
        self.is_over = self.meter.tokens > self.max_tokens
        if not self.is_over:
            self._text.append(text)
            self._thoughts.append(thoughts)
            for delta in deltas:
                self._calls.add(delta)
        elif before < self.max_tokens:  # the event that went over: of its text a part may fit, of its calls none
            most = TOKEN_BYTES * (self.max_tokens - before)
            self._thoughts.append(thoughts[:most])
            self._text.append(text[: max(0, most - len(thoughts))])
        self._bytes += len(brought.encode(errors="replace"))
        return bool(self.meter.tokens > before or brought or choice.finish_reason)

    def _received(self, beyond: int) -> int:
        """Tokens received so far, at the least; `beyond`: ids that did not fit."""
        return len(self._ids) + max(0, beyond) + max(self._events, math.ceil(self._solid / TOKEN_BYTES))

    def completion(self, *, renderer: Renderer) -> Completion:
        text = "".join(self._text)
        if renderer.exact:
            self._check_ids(text, renderer)
            text = renderer.decode(self._ids) if self.is_over else text
        details = self._usage.prompt_tokens_details
        ids, logprobs = self._kept_ids(renderer)
        return Completion(
            text=text,
            token_ids=ids,
            logprobs=logprobs,
            num_tokens=self._num_tokens(),
            finish="length" if self.is_over or self.finish in CUT else "stop",
            thoughts="".join(self._thoughts),
            calls=self._calls.result(),
            prompt_ids=self._prompt_ids if ids and not renderer.exact else (),
            prompt_tokens=self._usage.prompt_tokens or None,
            cached_tokens=(details.cached_tokens if details else None) or 0,
        )

    def partial(self, *, renderer: Renderer) -> Completion:
        """What has been received so far, of a call that is cancelled. Ids that are not the tokenizer's are dropped."""
        known = not renderer.exact or renderer.knows(self._ids)
        ids, logprobs = self._kept_ids(renderer) if known else ((), ())
        return Completion(
            text=renderer.decode(ids) if renderer.exact else "".join(self._text),
            token_ids=ids,
            logprobs=logprobs,
            num_tokens=min(self.meter.tokens, self.max_tokens),
            finish="length",
            thoughts="".join(self._thoughts),
            calls=self._calls.result(),
            prompt_ids=self._prompt_ids if ids and not renderer.exact else (),
        )

    def _kept_ids(self, renderer: Renderer) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """Ids and log-probs: those of an exact engine, or those that come with the ids of a prompt of messages."""
        if not renderer.exact and not self._prompt_ids:
            return (), ()
        logprobs = tuple(value for value in self._logprobs[: len(self._ids)] if value is not None)
        return tuple(self._ids), logprobs if len(logprobs) == len(self._ids) else ()

    def _check_ids(self, text: str, renderer: Renderer) -> None:
        """Raise unless the ids are those of the whole text."""
        if not renderer.knows(self._ids):
            raise EngineError(
                "the server returned token ids outside the tokenizer's vocabulary: is it another model's?"
            )
        if text and not self._ids:
            raise EngineError(f"the server takes token ids but returns none: {WITHOUT_IDS}")
        reported = self._usage.completion_tokens
        if (
            not self.is_over
            and reported not in (None, len(self._ids))
            and not renderer.decode(self._ids).startswith(text)
        ):
            raise EngineError(
                f"the server returned {len(self._ids)} ids for {reported} tokens (llama.cpp does so for characters "
                "made of several tokens): run without a tokenizer, or use another server"
            )

    def _num_tokens(self) -> int:
        """What the server reports, as far as that can be true; without a report the ids, or an upper bound."""
        if self.is_over:
            return self.max_tokens
        reported, counted = self._usage.completion_tokens, self._received(0)
        if self._ids:  # one end-of-turn token may be withheld
            return min(max(reported or 0, counted), counted + 1, self.max_tokens)
        if reported is not None:
            return min(max(reported, counted), self.max_tokens)
        return self.max_tokens if self.finish in CUT else min(self.max_tokens, self._bytes)


def _tokens(choice: Choice) -> tuple[list[int], list[float | None]]:
    """Ids and log-probs of one event, in the format of llama.cpp or vLLM."""
    logprobs = choice.logprobs or Logprobs()
    if logprobs.content is not None:
        ids = [entry.id for entry in logprobs.content if entry.id is not None]
        return ids or choice.token_ids or [], [entry.logprob for entry in logprobs.content]
    return choice.token_ids or [], list(logprobs.token_logprobs or [])
