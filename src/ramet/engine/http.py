"""An engine for OpenAI-compatible servers: vLLM, SGLang, llama.cpp, hosted APIs.

With a tokenizer the engine sends and receives token ids (`/completions`), and its trees can be trained on. Without one
it sends messages (`/chat/completions`) and receives text: such trees run, but cannot be trained on.

Responses are streamed, so that tokens are counted as they arrive and cancelling a node ends its request on the server.
Failures before the first token are retried here. When a stream breaks later, the node pays for the tokens and retries.
"""

from __future__ import annotations

import json
import logging
import random
import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import anyio
import anyio.lowlevel
import httpx

from ramet.draw import counted
from ramet.engine.address import check_base_url, key_headers, shorten, unknown_model
from ramet.engine.calls import wire_message
from ramet.engine.clients import Clients
from ramet.engine.keys import Secret
from ramet.engine.parameters import Parameters
from ramet.engine.providers import Provider, find_provider, provider_of_owner
from ramet.engine.reading import MAX_ERROR_BYTES, MAX_LISTING_BYTES, most_bytes, read_text
from ramet.engine.retrying import RETRIED_STATUS, back_off, retry_after
from ramet.engine.wire import StreamedCompletion, error_text, events
from ramet.errors import ConfigError, EngineBusy, EngineError, EngineInterrupted
from ramet.tokens.render import Renderer, TextRenderer
from ramet.types import Completion, Meter, Prompt

LOG = logging.getLogger(__name__)  # of notes
NOT_LISTING = {404, 405, 501}  # status of servers that have no list of models
NAME_LENGTH = 200  # of a model that a server offers


class NoModelList(EngineError):
    """The server does not list its models."""


class _Refused(EngineError):
    """The server refused a parameter, which can be sent in another form or left out."""


class _Stalled(EngineBusy):
    """The server said nothing new for `stall_s` seconds, or could not be connected to in time."""


class HttpEngine:
    """A model behind an OpenAI-compatible server.

    Example:
        HttpEngine("http://127.0.0.1:8000/v1", model="Qwen/Qwen3-4B", tokenizer="path/to/model")

    `tokenizer` is passed to `ramet.tokens.huggingface.load_renderer`. `concurrency` limits requests in flight, `tries`
    attempts per request. A request fails after `stall_s` seconds without a new token. Reading ends when the server has
    sent `max_tokens` tokens. `extra` is added to every request body. `provider` is the name of a preset
    (`ramet.engine.providers`). Without a `model`, the server's only one is used. `session_id` is what a router should
    keep on one replica (header `X-Session-ID`): a node, or a whole tree.

    `notes` has a line for everything about the server that a user should see and that is not an error. Each is also
    logged once as a warning; the commands print it on standard error.
    """

    def __init__(
        self,
        base_url: str,
        *,
        model: str = "",
        provider: str = "",
        api_key: str | None = None,
        tokenizer: str | Path | Renderer | None = None,
        concurrency: int = 64,
        tries: int = 5,
        stall_s: float = 120.0,
        extra: Mapping[str, Any] | None = None,
        session_id: Literal["node", "tree"] = "node",
    ) -> None:
        if concurrency < 1 or tries < 1 or not stall_s > 0:
            raise ConfigError("concurrency and tries must be at least 1, stall_s above 0")
        if session_id not in ("node", "tree"):
            raise ConfigError(f"session_id is node or tree; got {session_id!r}")
        if api_key is not None and not (api_key.isascii() and api_key.isprintable()):
            raise ConfigError("the API key has characters that are not allowed in a request header")
        self.base_url = check_base_url(base_url)
        self.model = model
        self.provider: Provider = find_provider(provider, self.base_url)
        self.notes: list[str] = []
        self.tries = tries
        self.renderer = _renderer(tokenizer)
        self._secret = Secret(api_key)
        self._headers = key_headers(self.provider, api_key)
        self._parameters = Parameters(
            self.base_url, limit=self.provider.limit, left_out=self.provider.left_out, note=self._note
        )
        self._stall_s = stall_s
        self._timeout = httpx.Timeout(stall_s, connect=min(10.0, stall_s))
        self._extra = dict(extra or {})
        self._session_id = session_id
        self._concurrency = concurrency
        self._slots: anyio.CapacityLimiter | None = None
        self._clients: Clients | None = None
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
        clients, self._clients = self._clients, None
        if clients is not None:
            await clients.aclose()

    async def models(self) -> list[str]:
        """The models that the server offers. One request, no retry; raises `EngineError` when it fails."""
        url = f"{self.base_url}/models"
        try:
            async with self._sending(), self._open().stream("GET", url, headers=self._headers) as response:
                if response.status_code in NOT_LISTING:
                    raise NoModelList(f"{self.base_url} does not list its models")
                await self._check_status(response)
                listing = await read_text(response, limit=MAX_LISTING_BYTES)
        except EngineBusy as error:
            raise EngineError(str(error), lasting=error.lasting) from error
        try:
            entries: list[dict[str, object]] = json.loads(listing)["data"] or []
            names = [self._hide(str(entry["id"]))[:NAME_LENGTH] for entry in entries]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise EngineError(f"{self.base_url} does not answer like an OpenAI-compatible server") from None
        self._recognise(entries)
        return names

    def _recognise(self, entries: Sequence[Mapping[str, object]]) -> None:
        """Use the preset of a server that its list of models gives away, unless another was chosen."""
        owner = entries[0].get("owned_by") if entries else None
        found = provider_of_owner(owner) if isinstance(owner, str) and not self.provider.name else None
        self.provider = found or self.provider

    async def check(self) -> None:
        """Find out whether the server can be reached, and which model to ask for if none was named.

        A model that is not in the server's list is a note: aliases and new models often are not.
        """
        try:
            offered = await self.models()
        except NoModelList as error:
            if not self.model:
                raise EngineError(f"which model? {error}: name one with --model (model=... in Python)") from None
            return self._note(f"{error}: whether it has {self.model!r} is not known before the first request")
        if not self.model:
            self.model = self._only(offered)
        elif offered and self.model not in offered:
            listed = f"the models that {self.base_url} lists: {shorten(offered)}"
            self._note(f"{self.model!r} is requested, although it is not among {listed}")
        return None

    def _only(self, offered: Sequence[str]) -> str:
        if len(offered) != 1:
            serves = f"{self.base_url} serves {shorten(offered) or 'none'}"
            raise EngineError(f"which model? {serves}: name one with --model (model=... in Python)")
        return offered[0]

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)
            LOG.warning("%s", text)

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
        if not self.model:
            await self.check()
        path, body = self._request(prompt, max_tokens=max_tokens, stop=stop, temperature=temperature, seed=seed)
        for attempt in range(1, self.tries + 1):
            try:
                async with self._limiter():
                    collected = StreamedCompletion(meter, max_tokens=max_tokens)
                    meter.partial = partial(self._partial, collected)
                    await self._attempt(path, body, prompt, collected)
                return self._secret.clean(collected.completion(renderer=self.renderer))
            except EngineBusy as busy:
                if meter.tokens:
                    raise EngineInterrupted(f"{busy}, after {counted(meter.tokens, 'token')}") from busy
                await back_off(busy, attempt, tries=self.tries, jitter=self._jitter)
                if isinstance(busy, _Stalled):
                    LOG.warning("%s, trying again, %d of %d", busy, attempt + 1, self.tries)
        raise AssertionError("unreachable")

    async def try_once(self, prompt: Prompt, *, max_tokens: int) -> StreamedCompletion:
        """What one request brings, without retries. A failure that may be temporary is `EngineBusy`."""
        path, body = self._request(prompt, max_tokens=max_tokens, stop=(), temperature=0.0, seed=None)
        collected = StreamedCompletion(Meter(), max_tokens=max_tokens)
        async with self._limiter():
            await self._attempt(path, body, prompt, collected)
        return collected

    def _partial(self, collected: StreamedCompletion) -> Completion:
        return self._secret.clean(collected.partial(renderer=self.renderer))

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
            body["messages"] = [wire_message(message) for message in prompt.messages]
            if prompt.tools:
                body["tools"] = list(prompt.tools)
                body["tool_choice"] = "none" if prompt.closing else "auto"
            if self.provider.ids:
                body |= {"return_token_ids": True, "logprobs": True}
            return "chat/completions", body | self._extra
        body |= {"prompt": list(prompt.ids), "logprobs": 1, "return_token_ids": True}
        return "completions", body | self._extra

    async def _attempt(self, path: str, body: dict[str, Any], prompt: Prompt, collected: StreamedCompletion) -> None:
        """One request, again in another form if a parameter is refused.

        Raises `EngineBusy` for failures worth a retry, `EngineError` for others.
        """
        while True:
            with suppress(_Refused):  # each parameter is changed once, so this ends
                return await self._send(path, self._parameters.fit(body), prompt, collected)

    async def _send(self, path: str, body: dict[str, Any], prompt: Prompt, collected: StreamedCompletion) -> None:
        headers = {**self._headers, **self._routing(prompt)}
        url = f"{self.base_url}/{path}"
        limit = most_bytes(collected.max_tokens)
        try:
            async with (
                self._sending() as progress,
                self._open().stream("POST", url, json=body, headers=headers) as response,
            ):
                await self._check_status(response, sent=body)
                async for event in events(response, limit=limit, hide=self._hide):
                    if collected.add(event):
                        progress.deadline = anyio.current_time() + self._stall_s
                    if collected.is_over:
                        return
        except EngineBusy:
            if not collected.is_complete:  # else the end of the stream broke, and the answer is there
                raise
        if not collected.is_complete:
            raise EngineBusy("the response ended early")

    def _routing(self, prompt: Prompt) -> dict[str, str]:
        """Headers that name the node, and what should stay on one replica because it shares a prefix."""
        if not prompt.node_id:
            return {}
        session = prompt.tree_id if self._session_id == "tree" else prompt.node_id
        return {"X-Request-Id": request_id(prompt.node_id), "X-Session-ID": session}

    async def _check_status(self, response: httpx.Response, *, sent: Mapping[str, Any] | None = None) -> None:
        """Raise the error of a response that is not 200. `sent`: the request, if it named a model."""
        if response.status_code == 200:
            return
        text = await read_text(response, limit=MAX_ERROR_BYTES)
        if sent is not None and self._parameters.learn(sent, response.status_code, text):
            raise _Refused("a parameter was refused")
        if response.status_code == 404 and sent is not None:
            raise EngineError(await self._not_found(text), lasting="missing")
        raise self._status_error(response.status_code, response.headers, text)

    @asynccontextmanager
    async def _sending(self) -> AsyncGenerator[anyio.CancelScope]:
        """Translate network errors to `EngineBusy`. The scope ends a request without progress: move its deadline on."""
        try:
            with anyio.fail_after(self._stall_s) as progress:
                yield progress
        except EngineError as error:
            self._secret.scrub(error)
            raise
        except httpx.ConnectTimeout:
            raise _Stalled(f"{self.base_url} timed out (no connection in {self._timeout.connect:g} s)") from None
        except (httpx.TimeoutException, TimeoutError):
            raise _Stalled(f"{self.base_url} timed out (no answer for {self._stall_s:g} s)") from None
        except httpx.ConnectError as error:
            reason = self._reason(error)
            raise EngineBusy(f"cannot reach {self.base_url}: {reason}", lasting="unreachable") from None
        except httpx.RemoteProtocolError as error:
            # Usually the server closed an idle keep-alive connection: retry at once.
            raise EngineBusy(
                f"the connection to {self.base_url} broke: {self._reason(error)}", retry_after_s=0
            ) from None
        except httpx.RequestError as error:
            raise EngineBusy(f"the connection to {self.base_url} broke: {self._reason(error)}") from None

    def _hide(self, text: str) -> str:
        return self._secret.hide(text)

    def _reason(self, error: httpx.RequestError) -> str:
        return self._hide(str(error)) or type(error).__name__

    def _status_error(self, status: int, headers: Mapping[str, str], text: str) -> EngineError:
        reason = error_text(text, self._hide)
        if status in RETRIED_STATUS:
            return EngineBusy(f"{self.base_url} answered {status}: {reason}", retry_after_s=retry_after(headers))
        if status in (401, 403):
            key = "the API key was rejected" if self._headers else "an API key is needed"
            return EngineError(f"{self.base_url} answered {status}: {key} ({reason})", lasting="rejected")
        return EngineError(f"{self.base_url} answered {status}: {reason}")

    async def _not_found(self, text: str) -> str:
        """The error text for a 404: a wrong model or a wrong address. The server's list of models tells which."""
        try:
            offered = await self.models()
        except EngineError:
            offered = [self.model]
        if self.model in offered:  # the address is wrong
            return f"{self.base_url} answered 404: {error_text(text, self._hide)}"
        return unknown_model(self.base_url, self.model, offered)

    def _open(self) -> Clients:
        self._enter_loop()
        if self._clients is None:
            self._clients = Clients(self._timeout)
        return self._clients

    def _limiter(self) -> anyio.CapacityLimiter:
        self._enter_loop()
        if self._slots is None:
            self._slots = anyio.CapacityLimiter(self._concurrency)
        return self._slots

    def _enter_loop(self) -> None:
        """Drop connections and slots that belong to another event loop."""
        loop = anyio.lowlevel.current_token()
        if self._loop != loop:
            self._loop, self._clients, self._slots = loop, None, None


def request_id(node_id: str) -> str:
    """The `X-Request-Id` of a node: a UUID, because some servers (llama-cpp-python) refuse any other id.

    Example:
        request_id("5f1c/0")  # "298363d5-d770-5147-b6e1-5ba046fc6ff8"
    """
    return str(uuid.uuid5(uuid.NAMESPACE_OID, node_id))


def _renderer(tokenizer: str | Path | Renderer | None) -> Renderer:
    if tokenizer is None:
        return TextRenderer()
    if isinstance(tokenizer, (str, Path)):
        from ramet.tokens.huggingface import load_renderer

        return load_renderer(tokenizer)
    return tokenizer
