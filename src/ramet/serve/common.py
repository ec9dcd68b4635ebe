"""What both APIs have in common: fields that mean the same, limits, texts and content parts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, cast

from ramet.serve.asking import Answer
from ramet.serve.budgets import Limits, read_limits, split_model
from ramet.serve.conversation import KEY, Conversation
from ramet.serve.errors import wrong
from ramet.serve.fields import Fields, kind, shown
from ramet.serve.schema import Schema, read_schema
from ramet.types import clean

RAMET = "ramet"  # the field with what OpenAI's API does not have
EXTRAS = ("budget", "context")
DELTA = 48  # characters of the answer in one event
LINE_ENDS = re.compile("[\x85\u2028\u2029]")  # of `str.splitlines`, which clients use, and not of JSON
NEUTRAL_SAMPLING = {"top_p": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0, "top_k": 0.0, "min_p": 0.0}


def read_model(body: Fields, served: Sequence[str], *, most: tuple[str, ...]) -> tuple[tuple[str, Limits], ...]:
    """All limits that a request asks for. `most`: fields that limit the generated tokens."""
    _, suffix = split_model(body.text("model"), served)
    extra = body.object(RAMET)
    budget = None if extra is None else extra.object("budget")
    tokens = [(name, {"tokens": count}) for name in most if (count := body.count(name)) is not None]
    return (("model", suffix), (f"{RAMET}.budget", read_limits(budget)), *tokens)


def read_context(body: Fields, conversation: Conversation) -> dict[str, str]:
    """Texts by key, in `ramet.context`: the root sees the keys, and hands texts to clones.

    The key of earlier messages is not accepted where there are some: they would be lost.
    """
    extra = body.object(RAMET)
    if extra is None:
        return {}
    for key in extra.values:
        if key not in EXTRAS:
            raise wrong(f"{RAMET}.{key}"[:200], f"{RAMET} accepts {' and '.join(EXTRAS)}, not {shown(key)}")
    texts = extra.object("context")
    if texts is not None and texts.has(KEY) and conversation.history:
        raise wrong(
            texts.name(KEY), f"{texts.name(KEY)} is reserved: the earlier messages have this key; choose another one"
        )
    return {} if texts is None else {clean(key): texts.text(key) for key in texts.values}


def refuse_sampling(body: Fields) -> None:
    """Ways of sampling that belong to the server."""
    for name, neutral in NEUTRAL_SAMPLING.items():
        body.refuse(name, f"it is set by the server; the only accepted value is {neutral:g}", unless=(neutral,))
    body.refuse("logit_bias", "leave it out", unless=({},))


def read_stop(body: Fields) -> tuple[str, ...]:
    """Stop sequences: the answer ends before the first of them."""
    value = body.values.get("stop")
    if value is None or isinstance(value, str):
        return (value,) if value else ()
    marks = cast(list[object], value) if isinstance(value, list) else [None]
    if len(marks) > 4 or not all(isinstance(mark, str) and mark for mark in marks):
        raise body.wrong("stop", "a string or an array of up to 4 strings")
    return tuple(cast(list[str], marks))


def read_format(holder: Fields | None, *, nested: bool) -> Schema | None:
    """`response_format` (chat, with the schema one level deeper) or `text.format` (responses)."""
    if holder is None:
        return None
    sort = holder.choice("type", ("text", "json_object", "json_schema"))
    if sort == "text":
        return None
    if sort == "json_object":
        return Schema({"type": "object"})
    inner = holder.object("json_schema") if nested else holder
    schema = None if inner is None else inner.object("schema")
    if schema is None:
        raise wrong(holder.path.rstrip("."), f"{holder.path}{'json_schema.' if nested else ''}schema is missing")
    return read_schema(schema.values, schema.path.rstrip("."))


def read_content(fields: Fields, key: str, *, texts: Sequence[str]) -> str:
    """The text of a message: a string, or an array of text parts. Images, audio and files are a 400."""
    value = fields.values.get(key)
    if value is None:
        return ""
    if isinstance(value, str):
        return clean(value)
    if not isinstance(value, list):
        raise fields.wrong(key, f"a string or an array of text parts, not {kind(value)}")
    parts: list[str] = []
    for part in fields.objects(key):
        sort = part.text("type")
        if sort == "refusal":
            parts.append(part.text("refusal"))
        elif sort in texts:
            parts.append(part.text("text"))
        else:
            name = part.path.rstrip(".")
            raise wrong(name, f"{name} is of type {shown(sort)}; only text is supported", code="unsupported_content")
    return "".join(parts)


def deltas(text: str) -> Iterator[str]:
    """A text in parts that end after a space, as far as possible."""
    at = 0
    while at < len(text):
        end = min(len(text), at + DELTA)
        space = text.rfind(" ", at, end)
        end = space + 1 if space > at and end < len(text) else end
        yield text[at:end]
        at = end


def reasoning_tokens(answer: Answer) -> int:
    """Tokens of the tree that are not the root's last turn."""
    turns = answer.tree.root.turns
    return max(0, answer.tree.usage.tokens - (turns[-1].tokens if turns else 0))


def sse(event: dict[str, Any], *, name: str | None = None) -> bytes:
    """One server-sent event. Its JSON is on one line, whatever the client takes for the end of a line."""
    head = "" if name is None else f"event: {name}\n"
    data = clean(json.dumps(event, ensure_ascii=False, separators=(",", ":")))
    return f"{head}data: {LINE_ENDS.sub(_escaped, data)}\n\n".encode()


def _escaped(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"
