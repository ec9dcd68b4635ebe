"""An OpenAI-compatible server on loopback that fails on purpose: one scripted answer per request.

Example:
    async with serve([whole("slow down", status=429), says("hello")]) as server:
        engine = HttpEngine(server.url, model="m")  # gets the 429 first, then the answer
"""

from __future__ import annotations

import json
import math
import socket
import struct
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

import anyio
from anyio.abc import SocketAttribute, SocketStream

from tests.waiting import PATIENCE_S


class Fault(Enum):
    """How a connection breaks."""

    RESET = auto()
    CLOSED = auto()


RESET, CLOSED = Fault.RESET, Fault.CLOSED
HANG = math.inf
GONE = (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError)

# Bytes to send, seconds to wait, a condition to wait for, or the end of the connection.
Step = bytes | float | Callable[[], bool] | Fault
Event = Mapping[str, Any]


async def until(ready: Callable[[], bool]) -> None:
    """Wait for a condition."""
    with anyio.fail_after(PATIENCE_S):
        while not ready():  # noqa: ASYNC110 (conditions are plain functions)
            await anyio.sleep(0.005)


# Responses.


@dataclass(frozen=True, slots=True)
class Answer:
    """The response to one request, step by step."""

    steps: tuple[Step, ...]

    @property
    def hangs(self) -> bool:
        return HANG in self.steps


def breaks(*steps: Step) -> Answer:
    """No response at all: `breaks(RESET)`, `breaks(HANG)`."""
    return Answer(steps)


def whole(
    body: object, *, status: int = 200, headers: Mapping[str, str] | None = None, missing: int = 0, kind: str = "json"
) -> Answer:
    """A response in one piece: a string unchanged, anything else as JSON. The last `missing` bytes are never sent."""
    data = body if isinstance(body, bytes) else (body if isinstance(body, str) else json.dumps(body)).encode()
    sent = {"Content-Type": f"application/{kind}", "Content-Length": str(len(data)), **(headers or {})}
    steps = (_head(status, sent), data[: len(data) - missing])
    return Answer((*steps, CLOSED) if missing else (b"".join(steps),))


def stream(*steps: Event | str | Step, done: bool = True) -> Answer:
    """Server-sent events: a mapping is sent as JSON, a string unchanged. `done` ends them with `[DONE]`."""
    head = _head(200, {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked"})
    data = [_chunk(step) if isinstance(step, (Mapping, str)) else step for step in steps]
    end = (_chunk("[DONE]") if done else b"") + b"0\r\n\r\n"
    return Answer((head, *data, end))


def says(text: str, *, finish: str = "stop", tokens: int | None = None) -> Answer:
    """A correct chat response, one word per event. `tokens` defaults to the number of words."""
    words = text.split(" ")
    pieces = [words[0], *(f" {word}" for word in words[1:])]
    return stream(*map(chat, pieces), chat("", finish=finish), usage(len(pieces) if tokens is None else tokens))


def _head(status: int, headers: Mapping[str, str]) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status} So", *(f"{k}: {v}" for k, v in headers.items()), "", ""]).encode()


def _chunk(event: Event | str) -> bytes:
    text = event if isinstance(event, str) else json.dumps(event, ensure_ascii=False)
    data = f"data: {text}\n\n".encode()
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


# Events, in the formats that servers use.


def chat(text: str, *, finish: str | None = None) -> Event:
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}]}


def vllm(text: str, ids: Sequence[int], *, finish: str | None = None) -> Event:
    """`/completions` of vLLM with return_token_ids; an event may have several tokens."""
    probs = {"tokens": [str(i) for i in ids], "token_logprobs": [-0.5] * len(ids), "text_offset": [0] * len(ids)}
    choice = {"index": 0, "text": text, "token_ids": list(ids), "logprobs": probs, "finish_reason": finish}
    return {"choices": [choice], "usage": None}


def llama(text: str, ids: Sequence[int], *, finish: str | None = None) -> Event:
    """`/completions` of llama.cpp: the ids are in the log-probs."""
    probs = {"content": [{"id": i, "token": text, "logprob": -0.5, "top_logprobs": []} for i in ids]} if ids else None
    return {"choices": [{"index": 0, "text": text, "logprobs": probs, "finish_reason": finish}]}


def usage(generated: int, prompt: int = 7) -> Event:
    details = {"cached_tokens": 3}
    used = {"completion_tokens": generated, "prompt_tokens": prompt, "prompt_tokens_details": details}
    return {"choices": [], "usage": used}


# The server.


@dataclass(slots=True)
class Received:
    """One request, and how it ended."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any
    answering: bool = True
    disconnected: bool = False  # the client disconnected before the end of the response

    @property
    def goal(self) -> str:
        """The first user message: the goal of a node."""
        return self.body["messages"][1]["content"]


Script = Answer | Sequence[Answer] | Callable[[Received], Answer]


@dataclass(slots=True)
class FaultyServer:
    """Answers POSTs by script: always the same response, a list (whose last one repeats), or a function.

    `GET /models` lists `models`, or returns `listing`.
    """

    script: Script
    models: Sequence[str] = ("m",)
    listing: Answer | None = None
    url: str = ""
    requests: list[Received] = field(default_factory=list[Received])  # POSTs; GETs are in `asked`
    asked: list[Received] = field(default_factory=list[Received])
    running: int = 0
    most_running: int = 0

    @property
    def bodies(self) -> list[Any]:
        return [request.body for request in self.requests]

    async def talk(self, socket_stream: SocketStream) -> None:
        """Serve one connection, request after request."""
        with suppress(*GONE):
            async with socket_stream:
                connection = _Connection(socket_stream)
                while await self._answer(connection, await connection.request()):
                    pass

    def _choose(self, request: Received) -> Answer:
        if request.method == "GET":
            self.asked.append(request)
            return self.listing or whole({"data": [{"id": name} for name in self.models]})
        self.requests.append(request)
        if isinstance(self.script, Answer):
            return self.script
        if callable(self.script):
            return self.script(request)
        return self.script[min(len(self.requests), len(self.script)) - 1]

    async def _answer(self, connection: _Connection, request: Received) -> bool:
        """Send the response; returns whether the connection can be reused."""
        answer = self._choose(request)
        kept = False
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        async with anyio.create_task_group() as group:
            group.start_soon(self._watch, connection, request, group.cancel_scope)
            with suppress(*GONE):
                kept = await self._send(connection, request, answer.steps)
            group.cancel_scope.cancel()
        self._ended(request)
        return kept

    async def _send(self, connection: _Connection, request: Received, steps: Sequence[Step]) -> bool:
        for number, step in enumerate(steps, start=1):
            if isinstance(step, Fault) or (number == len(steps) and isinstance(step, bytes)):
                self._ended(request)  # before the last bytes: the client may act on them at once
            if isinstance(step, bytes):
                await connection.stream.send(step)
            elif isinstance(step, Fault):
                await connection.end(step)
                return False
            elif callable(step):
                await until(step)
            else:
                await anyio.sleep(step)
        return True

    async def _watch(self, connection: _Connection, request: Received, scope: anyio.CancelScope) -> None:
        """Notice when the client disconnects."""
        try:
            while True:
                await connection.more()
        except GONE:
            request.disconnected = request.answering
            self._ended(request)
            scope.cancel()

    def _ended(self, request: Received) -> None:
        self.running -= request.answering
        request.answering = False


class _Connection:
    """Parses requests from a socket. Bytes of the next request stay in the buffer."""

    def __init__(self, socket_stream: SocketStream) -> None:
        self.stream = socket_stream
        self._buffer = bytearray()

    async def more(self) -> None:
        self._buffer += await self.stream.receive()

    async def request(self) -> Received:
        while b"\r\n\r\n" not in self._buffer:
            await self.more()
        head = self._take(self._buffer.index(b"\r\n\r\n") + 4).decode()
        first, *lines = head.strip().split("\r\n")
        method, path, _ = first.split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(headers.get("content-length", "0"))
        while len(self._buffer) < length:
            await self.more()
        body = self._take(length)
        return Received(method, path, headers, json.loads(body) if body else None)

    async def end(self, fault: Fault) -> None:
        if fault is RESET:
            raw = self.stream.extra(SocketAttribute.raw_socket)
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            await anyio.aclose_forcefully(self.stream)
        else:
            await self.stream.aclose()

    def _take(self, size: int) -> bytes:
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        return taken


@asynccontextmanager
async def serve(
    script: Script, *, models: Sequence[str] = ("m",), listing: Answer | None = None
) -> AsyncIterator[FaultyServer]:
    """A server for the duration of the block, on a port that the system picks."""
    server = FaultyServer(script, models=models, listing=listing)
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    server.url = f"http://127.0.0.1:{listener.extra(SocketAttribute.local_port)}/v1"
    async with listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, server.talk)
        yield server
        group.cancel_scope.cancel()
