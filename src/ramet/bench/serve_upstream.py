"""A model server that answers at once, for measuring what is in front of it.

python -m ramet.bench.serve_upstream --port 8000
"""

from __future__ import annotations

import argparse
import json
from typing import Any

MODEL = "instant"
TEXT = "Answer: 42"
USAGE = {"prompt_tokens": 50, "completion_tokens": 3, "total_tokens": 53}


async def app(scope: Any, receive: Any, send: Any) -> None:
    """`/v1/models` and `/v1/chat/completions`, streamed or not."""
    if scope["type"] != "http":
        return
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    if scope["path"].endswith("/models"):
        await _reply(send, json.dumps({"object": "list", "data": [{"id": MODEL, "object": "model"}]}))
    elif json.loads(body).get("stream"):
        await _reply(send, "".join(f"data: {event}\n\n" for event in _events()), sort="text/event-stream")
    else:
        choice = {"index": 0, "message": {"role": "assistant", "content": TEXT}, "finish_reason": "stop"}
        await _reply(send, json.dumps(_head("chat.completion") | {"choices": [choice], "usage": USAGE}))


def _events() -> list[str]:
    head = _head("chat.completion.chunk")
    deltas: list[tuple[dict[str, str], str | None]] = [({"role": "assistant", "content": TEXT}, None), ({}, "stop")]
    chunks = [head | {"choices": [{"index": 0, "delta": d, "finish_reason": f}]} for d, f in deltas]
    return [*map(json.dumps, [*chunks, head | {"choices": [], "usage": USAGE}]), "[DONE]"]


def _head(kind: str) -> dict[str, Any]:
    return {"id": "chatcmpl-1", "object": kind, "created": 1, "model": MODEL}


async def _reply(send: Any, text: str, *, sort: str = "application/json") -> None:
    headers = [(b"content-type", sort.encode()), (b"content-length", str(len(text)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": text.encode()})


def main() -> None:
    import uvicorn

    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    uvicorn.run(app, port=parser.parse_args().port, log_level="error", access_log=False)


if __name__ == "__main__":
    main()
