"""`/v1/responses`."""

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
    reasoning_tokens,
    refuse_sampling,
    sse,
)
from ramet.serve.conversation import Remembered, Said, read_conversation
from ramet.serve.errors import RequestError, wrong
from ramet.serve.fields import Fields
from ramet.serve.tools import read_tools
from ramet.types import ToolCall

NAME = "responses"
ROLES = ("system", "developer", "user", "assistant")
TEXTS = ("input_text", "output_text", "text")
ITEMS = "one of message, function_call, function_call_output, reasoning"
WHOLE_CONVERSATION = "the server stores no conversations: send the whole conversation in input"
ECHOED = ("instructions", "max_output_tokens", "metadata", "temperature", "tool_choice", "tools", "parallel_tool_calls")
DEFAULTS: dict[str, Any] = {"tool_choice": "auto", "tools": [], "parallel_tool_calls": True, "metadata": {}}


def read(body: Fields, *, served: Sequence[str], remembered: Remembered) -> Ask:
    """A request in the format of OpenAI's responses."""
    limits = read_model(body, served, most=("max_output_tokens",))
    body.refuse("previous_response_id", WHOLE_CONVERSATION)
    body.refuse("conversation", WHOLE_CONVERSATION)
    body.refuse("prompt", "stored prompts are not available: send instructions and input")
    body.refuse("background", "a response is sent when its tree has ended", unless=(False,))
    body.refuse("top_logprobs", "log-probs are not returned", unless=(0.0,))
    refuse_sampling(body)
    text = body.object("text")
    messages = [*_instructions(body), *_input(body)]
    conversation = read_conversation(messages, param="input", remembered=remembered)
    return Ask(
        model=body.text("model"),
        conversation=conversation,
        limits=limits,
        context=read_context(body, conversation),
        temperature=body.number("temperature", low=0, high=2),
        seed=body.count("seed", least=-(2**63)),
        use=read_tools(body, nested=False),
        schema=read_format(None if text is None else text.object("format"), nested=False),
        stream=body.flag("stream"),
        echo={**DEFAULTS, **{key: body.values[key] for key in ECHOED if body.has(key)}},
    )


def _instructions(body: Fields) -> list[Said]:
    text = body.text("instructions", "")
    return [Said(role="system", text=text, param="instructions")] if text else []


def _input(body: Fields) -> list[Said]:
    given = body.values.get("input")
    if isinstance(given, str):
        return [Said(role="user", text=body.text("input"), param="input")]
    if given is None:
        raise wrong("input", "input is missing: send a string or an array of messages")
    said: list[Said] = []
    for item in body.objects("input"):
        found = _item(item)
        if found is not None and found.calls and said and said[-1].role == "assistant" and said[-1].calls:
            before = said.pop()  # calls of one turn are items of their own
            found = Said(role="assistant", text=before.text, calls=before.calls + found.calls, param=before.param)
        if found is not None:
            said.append(found)
    return said


def _item(item: Fields) -> Said | None:
    """One item of the input. Reasoning that a client sends back is left out."""
    sort, place = item.text("type", "message"), item.path.rstrip(".")
    if sort == "reasoning":
        return None
    if sort == "message":
        role = item.choice("role", ROLES)
        text = read_content(item, "content", texts=TEXTS)
        return Said(role="system" if role == "developer" else role, text=text, param=place)
    if sort == "function_call":
        call = ToolCall(id=item.text("call_id"), name=item.text("name"), arguments=item.text("arguments", "") or "{}")
        return Said(role="assistant", text="", calls=(call,), param=place)
    if sort == "function_call_output":
        text = read_content(item, "output", texts=TEXTS)
        return Said(role="tool", text=text, call_id=item.text("call_id"), param=place)
    raise item.wrong("type", ITEMS)


def usage(answer: Answer) -> dict[str, Any]:
    used = answer.tree.usage
    return {
        "input_tokens": used.prompt_tokens,
        "input_tokens_details": {"cached_tokens": used.cached_tokens},
        "output_tokens": used.tokens,
        "output_tokens_details": {"reasoning_tokens": reasoning_tokens(answer)},
        "total_tokens": used.prompt_tokens + used.tokens,
        "ramet": answer.details,
    }


def whole(ask: Ask, answer: Answer) -> dict[str, Any]:
    """The response to a request without `stream`."""
    return _response(ask, answer.tree.id, created=int(time.time()), answer=answer, output=_output(answer))


def _response(
    ask: Ask,
    tree_id: str,
    *,
    created: int,
    answer: Answer | None = None,
    output: Sequence[dict[str, Any]] = (),
    error: RequestError | None = None,
) -> dict[str, Any]:
    cut = answer is not None and answer.finish == "length"
    status = "failed" if error else "in_progress" if answer is None else "incomplete" if cut else "completed"
    return {
        **ask.echo,
        "id": f"resp_{tree_id}",
        "object": "response",
        "created_at": created,
        "status": status,
        "error": None if error is None else {"code": "server_error", "message": str(error)},
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "model": ask.model,
        "output": list(output),
        "usage": None if answer is None else usage(answer),
    }


def _output(answer: Answer) -> list[dict[str, Any]]:
    tree_id = answer.tree.id
    items = [_reasoning(tree_id, answer.progress)] if answer.progress else []
    items += [_message(tree_id, _parts(answer))] if _parts(answer) else []
    return items + [_call_item(call, "completed") for call in answer.calls]


def _parts(answer: Answer) -> list[dict[str, Any]]:
    if answer.refusal is not None:
        return [{"type": "refusal", "refusal": answer.refusal}]
    if answer.content is None and answer.calls:
        return []
    return [{"type": "output_text", "text": answer.content or "", "annotations": [], "logprobs": []}]


def _reasoning(tree_id: str, progress: str) -> dict[str, Any]:
    summary = [{"type": "summary_text", "text": progress}] if progress else []
    return {"id": f"rs_{tree_id}", "type": "reasoning", "summary": summary}


def _message(tree_id: str, parts: Sequence[dict[str, Any]], *, status: str = "completed") -> dict[str, Any]:
    return {"id": f"msg_{tree_id}", "type": "message", "role": "assistant", "status": status, "content": list(parts)}


def _call_item(call: ToolCall, status: str) -> dict[str, Any]:
    done = status == "completed"
    return {
        "id": f"fc_{call.id}",
        "type": "function_call",
        "call_id": call.id,
        "name": call.name,
        "arguments": call.arguments if done else "",
        "status": status,
    }


class Stream:
    """The events of one response. Progress of the tree is the summary of a reasoning item."""

    def __init__(self, ask: Ask, tree_id: str) -> None:
        self.ask = ask
        self.tree_id = tree_id
        self.created = int(time.time())
        self._number = 0
        self._begun = False  # the summary

    def opening(self) -> Iterator[bytes]:
        for name in ("response.created", "response.in_progress"):
            yield self._event(name, response=self._response())

    def progress(self, line: str) -> Iterator[bytes]:
        if not self._begun:
            self._begun = True
            yield self._event("response.output_item.added", output_index=0, item=_reasoning(self.tree_id, ""))
            part = {"type": "summary_text", "text": ""}
            yield self._event("response.reasoning_summary_part.added", **self._place, part=part)
        yield self._event("response.reasoning_summary_text.delta", **self._place, delta=line)

    def answer(self, answer: Answer) -> Iterator[bytes]:
        output = _output(answer)
        for index, item in enumerate(output):
            yield from self._item(index, item, answer)
        response = self._response(answer=answer, output=output)
        yield self._event(f"response.{response['status']}", response=response)

    def failed(self, error: RequestError) -> Iterator[bytes]:
        """Both ways in which clients expect an error in a stream."""
        yield self._event("response.failed", response=self._response(error=error))
        details = error.body["error"]
        yield self._event(
            "error", message=details["message"], code=details["code"], param=details["param"], error=details
        )

    def _item(self, index: int, item: dict[str, Any], answer: Answer) -> Iterator[bytes]:
        place = {"item_id": item["id"], "output_index": index}
        if item["type"] == "reasoning":
            part = item["summary"][0]
            yield self._event("response.reasoning_summary_text.done", **self._place, text=part["text"])
            yield self._event("response.reasoning_summary_part.done", **self._place, part=part)
        elif item["type"] == "function_call":
            call = next(call for call in answer.calls if call.id == item["call_id"])
            yield self._event("response.output_item.added", output_index=index, item=_call_item(call, "in_progress"))
            yield self._event("response.function_call_arguments.delta", **place, delta=call.arguments)
            done = {"arguments": call.arguments, "name": call.name}
            yield self._event("response.function_call_arguments.done", **place, **done)
        else:
            empty = _message(self.tree_id, (), status="in_progress")
            yield self._event("response.output_item.added", output_index=index, item=empty)
            yield from self._content(place | {"content_index": 0}, item["content"][0])
        yield self._event("response.output_item.done", output_index=index, item=item)

    def _content(self, place: dict[str, Any], part: dict[str, Any]) -> Iterator[bytes]:
        key = "refusal" if part["type"] == "refusal" else "text"
        name = "response.refusal" if key == "refusal" else "response.output_text"
        more: dict[str, Any] = {} if key == "refusal" else {"logprobs": []}
        yield self._event("response.content_part.added", **place, part={**part, key: ""})
        for text in deltas(part[key]):
            yield self._event(f"{name}.delta", **place, delta=text, **more)
        yield self._event(f"{name}.done", **place, **{key: part[key]}, **more)
        yield self._event("response.content_part.done", **place, part=part)

    def _response(self, **known: Any) -> dict[str, Any]:
        return _response(self.ask, self.tree_id, created=self.created, **known)

    @property
    def _place(self) -> dict[str, Any]:
        return {"item_id": f"rs_{self.tree_id}", "output_index": 0, "summary_index": 0}

    def _event(self, name: str, **facts: Any) -> bytes:
        event = {"type": name, "sequence_number": self._number, **facts}
        self._number += 1
        return sse(event, name=name)
