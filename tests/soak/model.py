"""A model server whose answers take a while, for the steady load on `ramet serve`.

python -m tests.soak.model        # prints its address
"""

from __future__ import annotations

import json
import random
import re
import socket
import sys
from typing import Any

import anyio

MODEL = "steady"
LEAST_S, MOST_S = 0.5, 2.0  # of an answer
QUESTION = re.compile(r"(?:question|part) \d+")


def reply(messages: list[dict[str, Any]]) -> str | None:
    """What the model says after these messages; None: the beginning of an answer that never ends."""
    last = str(messages[-1]["content"])
    if "stall" in last:
        return None
    if "12 degrees" in last:
        return "Answer: 12 degrees"
    if "weather" in last:
        return _call("get_weather", city="Oslo")
    asked = QUESTION.findall(last)
    if "split" in last:
        return _call("delegate", goals=["part 1", "part 2"])
    return f"Answer: you said {' and '.join(asked)}"


def _call(name: str, **arguments: object) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


async def app(scope: Any, receive: Any, send: Any) -> None:
    """`/v1/models`, and streams of `/v1/chat/completions`."""
    body = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    if scope["path"].endswith("/models"):
        await _start(send, "application/json")
        await _end(send, json.dumps({"object": "list", "data": [{"id": MODEL, "object": "model"}]}))
        return
    async with anyio.create_task_group() as group:
        group.start_soon(_watch, receive, group.cancel_scope)
        await _answer(send, reply(json.loads(body)["messages"]))
        group.cancel_scope.cancel()


async def _watch(receive: Any, scope: anyio.CancelScope) -> None:
    """End the answer when its client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


async def _answer(send: Any, text: str | None) -> None:
    await _start(send, "text/event-stream")
    await _event(send, {"role": "assistant", "content": "Well. " if text is None else ""})
    await anyio.sleep(random.uniform(LEAST_S, MOST_S))
    if text is None:
        await anyio.sleep_forever()
        return
    await _event(send, {"content": text})
    await _event(send, {}, finish="stop")
    usage = {"prompt_tokens": 50, "completion_tokens": 12, "total_tokens": 62}
    await _end(send, f"data: {json.dumps(_chunk() | {'usage': usage})}\n\ndata: [DONE]\n\n")


def _chunk(*choices: dict[str, Any]) -> dict[str, Any]:
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": MODEL}
    return head | {"choices": list(choices)}


async def _event(send: Any, delta: dict[str, str], *, finish: str | None = None) -> None:
    chunk = _chunk({"index": 0, "delta": delta, "finish_reason": finish})
    body = f"data: {json.dumps(chunk)}\n\n".encode()
    await send({"type": "http.response.body", "body": body, "more_body": True})


async def _start(send: Any, sort: str) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", sort.encode())]})


async def _end(send: Any, text: str) -> None:
    await send({"type": "http.response.body", "body": text.encode()})


def main() -> None:
    import uvicorn

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        sys.stdout.write(f"http://127.0.0.1:{listener.getsockname()[1]}/v1\n")
        sys.stdout.flush()
        uvicorn.Server(uvicorn.Config(app, log_level="error", access_log=False, lifespan="off")).run([listener])


if __name__ == "__main__":
    main()
