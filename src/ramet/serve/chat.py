"""`/v1/chat/completions`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from ramet.serve.asking import Answer, Ask
from ramet.serve.common import (
    deltas,
    read_content,
    read_context,
    read_format,
    read_model,
    read_stop,
    reasoning_tokens,
    refuse_sampling,
    sse,
)
from ramet.serve.conversation import Remembered, Said, read_conversation
from ramet.serve.errors import RequestError, wrong
from ramet.serve.fields import Fields
from ramet.serve.tools import read_tools
from ramet.types import ToolCall

NAME = "chat"
DONE = b"data: [DONE]\n\n"
ROLES = ("system", "developer", "user", "assistant", "tool")


def read(body: Fields, *, served: Sequence[str], remembered: Remembered) -> Ask:
    """A request in the format of OpenAI's chat completions."""
    limits = read_model(body, served, most=("max_tokens", "max_completion_tokens"))
    body.refuse("n", "a request gets one answer; the only accepted value is 1", unless=(1.0,))
    body.refuse("logprobs", "log-probs are not returned", unless=(False,))
    body.refuse("top_logprobs", "log-probs are not returned", unless=(0.0,))
    body.refuse("audio", "only text is supported")
    body.refuse("modalities", 'the only accepted value is ["text"]', unless=(["text"],))
    body.refuse("functions", "use tools")
    body.refuse("function_call", "use tool_choice", unless=("none", "auto"))
    body.refuse("web_search_options", "offer a tool for it")
    refuse_sampling(body)
    if not body.has("messages"):
        raise wrong("messages", "messages is missing: send an array of messages, one of them with role user")
    options = body.object("stream_options")
    conversation = read_conversation([_said(entry) for entry in body.objects("messages")], remembered=remembered)
    return Ask(
        model=body.text("model"),
        conversation=conversation,
        limits=limits,
        context=read_context(body, conversation),
        temperature=body.number("temperature", low=0, high=2),
        seed=body.count("seed", least=-(2**63)),
        stop=read_stop(body),
        use=read_tools(body, nested=True),
        schema=read_format(body.object("response_format"), nested=True),
        stream=body.flag("stream"),
        include_usage=options is not None and options.flag("include_usage"),
    )


def _said(message: Fields) -> Said:
    role = message.choice("role", ROLES)
    calls = tuple(_call(entry) for entry in message.objects("tool_calls")) if role == "assistant" else ()
    return Said(
        role="system" if role == "developer" else role,
        text=read_content(message, "content", texts=("text",)),
        calls=calls,
        call_id=message.text("tool_call_id") if role == "tool" else "",
        param=message.path.rstrip("."),
    )


def _call(entry: Fields) -> ToolCall:
    function = entry.object("function")
    if function is None:
        raise entry.wrong("function", "an object with a name and arguments")
    return ToolCall(id=entry.text("id"), name=function.text("name"), arguments=function.text("arguments", "") or "{}")


def usage(answer: Answer) -> dict[str, Any]:
    """The usage of the whole tree."""
    used = answer.tree.usage
    return {
        "prompt_tokens": used.prompt_tokens,
        "completion_tokens": used.tokens,
        "total_tokens": used.prompt_tokens + used.tokens,
        "prompt_tokens_details": {"cached_tokens": used.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": reasoning_tokens(answer)},
        "ramet": answer.details,
    }


def whole(ask: Ask, answer: Answer) -> dict[str, Any]:
    """The response to a request without `stream`."""
    message: dict[str, Any] = {"role": "assistant", "content": answer.content, "refusal": answer.refusal}
    if answer.calls:
        message["tool_calls"] = [_call_facts(call) for call in answer.calls]
    choice = {"index": 0, "message": message, "finish_reason": answer.finish, "logprobs": None}
    return {
        "id": f"chatcmpl-{answer.tree.id}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": ask.model,
        "choices": [choice],
        "usage": usage(answer),
    }


def _call_facts(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


class Stream:
    """The events of one answer. Progress of the tree is reasoning content."""

    def __init__(self, ask: Ask, tree_id: str) -> None:
        self.ask = ask
        self._head: dict[str, Any] = {
            "id": f"chatcmpl-{tree_id}",
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": ask.model,
        }

    def opening(self) -> Iterator[bytes]:
        yield self._chunk({"role": "assistant", "content": ""})

    def progress(self, line: str) -> Iterator[bytes]:
        yield self._chunk({"reasoning_content": line})

    def answer(self, answer: Answer) -> Iterator[bytes]:
        for text in deltas(answer.content or ""):
            yield self._chunk({"content": text})
        if answer.refusal is not None:
            yield self._chunk({"refusal": answer.refusal})
        for number, call in enumerate(answer.calls):
            yield self._chunk({"tool_calls": [{"index": number, **_call_facts(call)}]})
        yield self._chunk({}, finish=answer.finish)
        if self.ask.include_usage:
            yield sse({**self._head, "choices": [], "usage": usage(answer)})
        yield DONE

    def failed(self, error: RequestError) -> Iterator[bytes]:
        yield sse(error.body)
        yield DONE

    def _chunk(self, delta: dict[str, Any], *, finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
        return sse({**self._head, "choices": [choice]})
