"""Server responses assembled into completions."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise
from typing import Any

import anyio
import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramet.engine.scripted import WordTokenizer
from ramet.engine.wire import Event, StreamedCompletion, error_text, events
from ramet.errors import EngineBusy, EngineError
from ramet.tokens.render import TextRenderer, TokenRenderer
from ramet.types import Completion, Meter
from tests.engine.faulty import chat, llama, usage, vllm

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["choices", "usage", "error", "text", "delta", "logprobs", "content", "id", "message"]),
            inner,
        )
    ),
    max_leaves=8,
)


TEXT = st.text(st.characters(codec="utf-8") | st.sampled_from("\n\r\x0b\x0c\x1e\x85\u2028\u2029é😀"), max_size=6)


EXACT = TokenRenderer(WordTokenizer())
EXACT.tokenizer.encode(" ".join(f"w{i}" for i in range(400)), control=False)  # ids 0 to 399 are words


def read(data: bytes, *, pieces: Sequence[bytes] | None = None, kind: str = "text/event-stream") -> list[Event]:
    """The events in a body, which may arrive in pieces."""

    async def body() -> AsyncIterator[bytes]:
        for piece in pieces or [data]:
            yield piece

    async def work() -> list[Event]:
        response = httpx.Response(200, headers={"Content-Type": kind}, content=body())
        return [event async for event in events(response, limit=10**6)]

    return anyio.run(work)


def collect(*sent: Any, exact: bool = False, max_tokens: int = 50) -> Completion:
    collected = StreamedCompletion(Meter(), max_tokens=max_tokens)
    for event in sent:
        collected.add(Event.model_validate(event))
    return collected.completion(renderer=EXACT if exact else TextRenderer())


def sse(*sent: Any) -> bytes:
    return "".join(f"data: {json.dumps(event, ensure_ascii=False)}\n\n" for event in sent).encode()


@given(st.lists(TEXT, min_size=1, max_size=4), st.lists(st.integers(0, 400), max_size=6), st.booleans())
@settings(max_examples=60, deadline=None)
def test_events_do_not_depend_on_where_the_network_splits_them(texts: list[str], cuts: list[int], windows: bool):
    """Including splits in the middle of a character."""
    data = sse(*(chat(text) for text in texts)) + b": ping\n\nevent: x\ndata:[DONE]\n\n"
    data = data.replace(b"\n", b"\r\n") if windows else data
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    pieces = [data[a:b] for a, b in pairwise(edges)]
    received = [choice.delta.content for event in read(data, pieces=pieces) for choice in event.choices if choice.delta]
    assert received == texts


def test_nothing_is_read_after_the_end():
    assert read(sse(chat("a")) + b"data: [DONE]\n\ndata: nonsense\n\n") == [Event.model_validate(chat("a"))]


@given(JSON)
@settings(max_examples=100, deadline=None)
def test_any_json_is_an_event_or_a_transient_failure(value: Any):
    for kind in ("application/json", "text/event-stream"):
        body = json.dumps(value).encode()
        try:
            received = read(body if kind == "application/json" else b"data: " + body + b"\n\n", kind=kind)
        except EngineBusy:
            continue
        for event in received:
            StreamedCompletion(Meter(), max_tokens=50).add(event)


@given(st.text() | JSON.map(json.dumps))
@settings(max_examples=100, deadline=None)
def test_an_error_body_of_any_kind_becomes_one_short_line(text: str):
    line = error_text(text)
    assert 0 < len(line) <= 300
    assert "\n" not in line


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "1" * 5000, '{"error": "\\ud83d"}'], ids=["deep", "long", "half a pair"]
)
def test_an_error_body_that_cannot_be_parsed_can_be_printed(text: str):
    assert error_text(text).encode()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"error": {"message": "no\\n such  model", "type": "x"}}', "no such model"),
        ('{"error": "plain"}', "plain"),
        ('{"message": "flat"}', "flat"),
        ('{"detail": "fast"}', "fast"),
        ("Bad Gateway", "Bad Gateway"),
        ('"quoted"', "quoted"),
        ("  \n ", "no reason given"),
        ('{"error": ""}', "no reason given"),
    ],
)
def test_the_message_in_an_error_body_is_found(text: str, message: str):
    assert error_text(text) == message


@pytest.mark.parametrize("shape", [vllm, llama])
def test_ids_and_log_probs_are_read_in_both_formats(shape: Any):
    completion = collect(shape("a", [5]), shape(" b c", [6, 7]), shape("", [], finish="stop"), usage(3), exact=True)
    assert (completion.text, completion.token_ids, completion.logprobs) == ("a b c", (5, 6, 7), (-0.5, -0.5, -0.5))
    assert (completion.num_tokens, completion.prompt_tokens, completion.cached_tokens) == (3, 7, 3)


def test_a_text_engine_ignores_ids():
    completion = collect(vllm("a", [5], finish="stop"))
    assert (completion.token_ids, completion.logprobs, completion.num_tokens) == ((), (), 1)


def test_log_probs_that_do_not_match_their_ids_are_dropped():
    event = vllm("a b", [5, 6], finish="stop")
    event["choices"][0]["logprobs"]["token_logprobs"] = [-0.5]
    completion = collect(event, exact=True)
    assert (completion.token_ids, completion.logprobs) == ((5, 6), ())


def test_text_without_ids_is_an_error_for_an_exact_engine_only():
    sent = [chat("a"), chat("", finish="stop"), usage(1)]
    assert collect(*sent).text == "a"
    with pytest.raises(EngineError, match="returns none"):
        collect(*sent, exact=True)


def test_an_empty_answer_needs_no_ids():
    assert collect(chat("", finish="stop"), usage(0), exact=True).token_ids == ()


@pytest.mark.parametrize(
    ("reason", "finish"), [("stop", "stop"), ("length", "length"), ("tool_calls", "stop"), ("content_filter", "stop")]
)
def test_every_reason_to_finish_is_a_stop_except_length(reason: str, finish: str):
    assert collect(chat("a", finish=reason), usage(1)).finish == finish


@pytest.mark.parametrize(
    ("sent", "num_tokens"),
    [
        ([chat("a b c", finish="stop"), usage(3)], 3),  # reported
        ([vllm("ab", [1, 2], finish="stop"), usage(1)], 2),  # more ids than reported
        ([vllm("ab", [1, 2], finish="stop")], 2),  # not reported: counted by ids
        ([chat("äöü", finish="stop")], 6),  # neither: a token is at least one byte
        ([chat("a" * 90, finish="stop")], 50),  # at most what was allowed
        ([chat("a", finish="length")], 50),  # cut off by the limit
        ([chat("a", finish="max_tokens")], 50),  # the same, in the words of another API
        ([chat("", finish="stop")], 0),
    ],
)
def test_the_token_count_is_reported_or_counted_or_an_upper_bound(sent: list[Any], num_tokens: int):
    assert collect(*sent).num_tokens == num_tokens


def test_the_meter_counts_as_events_arrive():
    meter = Meter()
    collected = StreamedCompletion(meter, max_tokens=50)
    seen: list[int] = []
    for event in (chat(""), chat("a"), vllm("b c", [1, 2]), llama("", [3]), usage(9)):
        collected.add(Event.model_validate(event))
        seen.append(meter.tokens)
    assert seen == [0, 1, 3, 4, 4]
