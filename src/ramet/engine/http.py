"""An engine for OpenAI-compatible servers: vLLM, SGLang, llama.cpp, hosted APIs.

With a tokenizer the engine sends and receives token ids (`/completions`), and its trees can be trained on. Without one
it sends messages (`/chat/completions`) and receives text: such trees run, but cannot be trained on.

Responses are streamed, so that tokens are counted as they arrive and cancelling a node ends its request on the server.
Failures before the first token are retried here. When a stream breaks later, the node pays for the tokens and retries.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import anyio
import anyio.lowlevel
import httpx

from ramet.engine.reading import IDENTITY, MAX_ERROR_BYTES, MAX_LISTING_BYTES, most_bytes, read_text
from ramet.engine.wire import StreamedCompletion, error_text, events
from ramet.errors import ConfigError, EngineBusy, EngineError, EngineInterrupted
from ramet.tokens.render import Renderer, TextRenderer
from ramet.types import Completion, Meter, Prompt

RETRIED_STATUS = {408, 425, 429, 500, 502, 503, 504, 529}
FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 20.0  # exponential backoff
LONGEST_RETRY_AFTER_S = 600.0  # a server that asks for a longer wait is an error
SECRET_LENGTH = 12  # a shorter API key, like EMPTY, is a placeholder: it is not removed from what the model writes
ESCAPE = re.compile(r"\\u([0-9a-fA-F]{4})")
NAMES_SHOWN, NAME_LENGTH = 20, 200  # of the models that a server offers, in an error


class HttpEngine:
    """A model behind an OpenAI-compatible server.

    Example:
        HttpEngine("http://127.0.0.1:8000/v1", model="Qwen/Qwen3-4B", tokenizer="path/to/model")

    `tokenizer` is passed to `ramet.tokens.huggingface.load_renderer`. `concurrency` limits requests in flight, `tries`
    attempts per request. A request fails after `stall_s` seconds without a new token; bytes that bring none do not
    count. Reading ends when the server has sent `max_tokens` tokens. `extra` goes into every request body.
    """

    def __init__(
        self,
        base_url: str,
        *,
        model: str,
        api_key: str | None = None,
        tokenizer: str | Path | Renderer | None = None,
        concurrency: int = 64,
        tries: int = 5,
        stall_s: float = 120.0,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        if concurrency < 1 or tries < 1 or not stall_s > 0:
            raise ConfigError("concurrency and tries must be at least 1, stall_s above 0")
        if api_key is not None and not (api_key.isascii() and api_key.isprintable()):
            raise ConfigError("the API key has characters that are not allowed in a request header")
        self.base_url = _check_base_url(base_url)
        self.model = model
        self.tries = tries
        self.renderer = _renderer(tokenizer)
        self._api_key = api_key
        self._headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        self._stall_s = stall_s
        self._timeout = httpx.Timeout(stall_s, connect=min(10.0, stall_s))
        self._extra = dict(extra or {})
        self._concurrency = concurrency
        self._slots: anyio.CapacityLimiter | None = None
        self._client: httpx.AsyncClient | None = None
        self._loop: object = None
        self._jitter = random.Random()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close connections. The engine can be used again afterwards."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def models(self) -> list[str]:
        """The models that the server offers. One request, no retry; raises `EngineError` when it fails."""
        url = f"{self.base_url}/models"
        try:
            async with self._sending(), self._open().stream("GET", url, headers=self._headers) as response:
                await self._check_status(response)
                listing = await read_text(response, limit=MAX_LISTING_BYTES)
        except EngineBusy as error:
            raise EngineError(str(error)) from error
        try:
            return [self._hide(str(entry["id"]))[:NAME_LENGTH] for entry in json.loads(listing)["data"]]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise EngineError(f"{self.base_url} does not answer like an OpenAI-compatible server") from None

    async def check(self) -> None:
        """Raise `EngineError` if the server cannot be reached or does not offer the model."""
        offered = await self.models()
        if offered and self.model not in offered:
            raise EngineError(_unknown_model(self.base_url, self.model, offered))

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
        meter = meter or Meter()
        path, body = self._request(prompt, max_tokens=max_tokens, stop=stop, temperature=temperature, seed=seed)
        for attempt in range(1, self.tries + 1):
            try:
                async with self._limiter():
                    collected = StreamedCompletion(meter, max_tokens=max_tokens)
                    meter.partial = partial(self._partial, collected)
                    await self._attempt(path, body, prompt, collected)
                return self._without_key(collected.completion(renderer=self.renderer))
            except EngineBusy as busy:
                if meter.tokens:
                    raise EngineInterrupted(f"{busy} after {meter.tokens} tokens") from busy
                await self._back_off(busy, attempt)
        raise AssertionError("unreachable")

    def _partial(self, collected: StreamedCompletion) -> Completion:
        return self._without_key(collected.partial(renderer=self.renderer))

    def _request(
        self, prompt: Prompt, *, max_tokens: int, stop: Sequence[str], temperature: float, seed: int | None
    ) -> tuple[str, dict[str, Any]]:
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": max_tokens,
            "temperature": temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if stop:
            body["stop"] = list(stop)
        if seed is not None:
            body["seed"] = seed
        if prompt.ids is None:
            body["messages"] = [{"role": message.role, "content": message.content} for message in prompt.messages]
            return "chat/completions", body | self._extra
        body |= {"prompt": list(prompt.ids), "logprobs": 1, "return_token_ids": True}
        return "completions", body | self._extra

    async def _attempt(self, path: str, body: dict[str, Any], prompt: Prompt, collected: StreamedCompletion) -> None:
        """One request. Raises `EngineBusy` for failures worth a retry, `EngineError` for others."""
        headers = {**self._headers, "X-Request-Id": prompt.node_id or "ramet"}
        url = f"{self.base_url}/{path}"
        limit = most_bytes(collected.max_tokens)
        async with (
            self._sending() as progress,
            self._open().stream("POST", url, json=body, headers=headers) as response,
        ):
            await self._check_status(response, asked=True)
            async for event in events(response, limit=limit, hide=self._hide):
                if collected.add(event):
                    progress.deadline = anyio.current_time() + self._stall_s
                if collected.is_over:
                    return
        if collected.finish is None:
            raise EngineBusy("the response ended early")

    async def _check_status(self, response: httpx.Response, *, asked: bool = False) -> None:
        """Raise the error of a response that is not 200. `asked`: whether the request named a model."""
        if response.status_code == 200:
            return
        text = await read_text(response, limit=MAX_ERROR_BYTES)
        if response.status_code == 404 and asked:
            raise EngineError(await self._not_found(text))
        raise self._status_error(response.status_code, response.headers, text)

    @asynccontextmanager
    async def _sending(self) -> AsyncGenerator[anyio.CancelScope]:
        """Translate network errors to `EngineBusy`. The scope ends a request without progress: move its deadline on."""
        try:
            with anyio.fail_after(self._stall_s) as progress:
                yield progress
        except (httpx.TimeoutException, TimeoutError):
            raise EngineBusy(f"{self.base_url} timed out") from None
        except httpx.ConnectError as error:
            raise EngineBusy(f"cannot reach {self.base_url}: {_reason(error)}") from None
        except httpx.RemoteProtocolError as error:
            # Usually the server closed an idle keep-alive connection: retry at once.
            raise EngineBusy(f"the connection to {self.base_url} broke: {_reason(error)}", retry_after_s=0) from None
        except httpx.RequestError as error:
            raise EngineBusy(f"the connection to {self.base_url} broke: {_reason(error)}") from None

    def _hide(self, text: str) -> str:
        """A text without the API key, plain or with JSON escapes: some servers repeat it in their errors."""
        if not self._api_key:
            return text
        plain = ESCAPE.sub(lambda escape: chr(int(escape[1], 16)), text)
        return (plain if self._api_key in plain else text).replace(self._api_key, "***")

    def _without_key(self, completion: Completion) -> Completion:
        if self._api_key is None or len(self._api_key) < SECRET_LENGTH or self._api_key not in completion.text:
            return completion
        return replace(completion, text=self._hide(completion.text))

    async def _back_off(self, busy: EngineBusy, attempt: int) -> None:
        """Wait before the next attempt. Raises `EngineError` when no attempts or no time is left."""
        if attempt >= self.tries:
            raise EngineError(f"{busy} (tried {'once' if attempt == 1 else f'{attempt} times'})") from busy
        backoff = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** (attempt - 1)) * self._jitter.uniform(0.5, 1.0)
        wait = backoff if busy.retry_after_s is None else busy.retry_after_s + self._jitter.uniform(0.0, FIRST_WAIT_S)
        if busy.retry_after_s == 0 and attempt == 1:
            wait = 0.0
        remaining = anyio.current_effective_deadline() - anyio.current_time()
        if wait >= remaining:
            raise EngineError(f"{busy} (the next attempt in {wait:.1f} s would miss the deadline)") from busy
        if wait > LONGEST_RETRY_AFTER_S:
            raise EngineError(f"{busy} (it asks to wait {wait:.0f} s)") from busy
        await anyio.sleep(wait)

    def _status_error(self, status: int, headers: Mapping[str, str], text: str) -> EngineError:
        reason = error_text(text, self._hide)
        if status in RETRIED_STATUS:
            return EngineBusy(f"{self.base_url} answered {status}: {reason}", retry_after_s=_retry_after(headers))
        if status in (401, 403):
            key = "the API key was rejected" if self._headers else "an API key is needed"
            return EngineError(f"{self.base_url} answered {status}: {key} ({reason})")
        return EngineError(f"{self.base_url} answered {status}: {reason}")

    async def _not_found(self, text: str) -> str:
        """The error text for a 404: a wrong model or a wrong address. The server's list of models tells which."""
        try:
            offered = await self.models()
        except EngineError:
            offered = [self.model]
        if self.model in offered:  # the address is wrong
            return f"{self.base_url} answered 404: {error_text(text, self._hide)}"
        return _unknown_model(self.base_url, self.model, offered)

    def _open(self) -> httpx.AsyncClient:
        self._enter_loop()
        if self._client is None:
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
            self._client = httpx.AsyncClient(timeout=self._timeout, limits=limits, headers=IDENTITY)
        return self._client

    def _limiter(self) -> anyio.CapacityLimiter:
        self._enter_loop()
        if self._slots is None:
            self._slots = anyio.CapacityLimiter(self._concurrency)
        return self._slots

    def _enter_loop(self) -> None:
        """Drop connections and slots that belong to another event loop."""
        loop = anyio.lowlevel.current_token()
        if self._loop != loop:
            self._loop, self._client, self._slots = loop, None, None


def _check_base_url(base_url: str) -> str:
    """The URL without a trailing slash; `/v1` is added when it has no path."""
    try:
        url = httpx.URL(base_url)
    except httpx.InvalidURL as error:
        raise ConfigError(f"base_url {base_url!r} is not a URL: {error}") from None
    if url.userinfo:
        raise ConfigError("base_url contains a password: give it as the API key, which is never stored")
    if url.scheme not in ("http", "https") or not url.host:
        raise ConfigError(f"base_url must be a URL like http://127.0.0.1:8000/v1; got {base_url!r}")
    return str(url).rstrip("/") + ("/v1" if url.path in ("", "/") else "")


def _renderer(tokenizer: str | Path | Renderer | None) -> Renderer:
    if tokenizer is None:
        return TextRenderer()
    if isinstance(tokenizer, (str, Path)):
        from ramet.tokens.huggingface import load_renderer

        return load_renderer(tokenizer)
    return tokenizer


def _unknown_model(base_url: str, model: str, offered: Sequence[str]) -> str:
    more = f" and {len(offered) - NAMES_SHOWN} more" if len(offered) > NAMES_SHOWN else ""
    return f"{base_url} has no model {model!r}; it serves {', '.join(offered[:NAMES_SHOWN]) or 'none'}{more}"


def _reason(error: httpx.RequestError) -> str:
    return str(error) or type(error).__name__


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds from the Retry-After header, which is a number or a date."""
    value = headers.get("Retry-After")
    if value is None:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):
        return None
