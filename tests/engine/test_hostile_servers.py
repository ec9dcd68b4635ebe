"""Servers that send too much, too little, or lies: reading is bounded, and no budget depends on what they report."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ramet
from ramet import Budget, EngineError, HttpEngine, Message, Prompt, Stop
from ramet.engine.reading import MAX_ERROR_BYTES, MAX_LINE_BYTES, most_bytes, read_lines, read_text
from ramet.engine.scripted import WordTokenizer
from ramet.engine.wire import Event, StreamedCompletion
from ramet.errors import EngineBusy
from ramet.tokens.render import TextRenderer, TokenRenderer
from ramet.types import Completion, Meter
from tests.engine.faulty import (
    Answer,
    FaultyServer,
    Script,
    Step,
    breaks,
    chat,
    llama,
    says,
    serve,
    stream,
    usage,
    vllm,
    whole,
)
from tests.waiting import PATIENCE_S

KEY = "sk-0123456789abcdef"
HELLO = Prompt(messages=[Message("user", "Hello?")], ids=None, node_id="tree/0")
HEAD = b"HTTP/1.1 200 So\r\nContent-Type: text/event-stream\r\n\r\n"


@asynccontextmanager
async def meeting(script: Script, **how: Any) -> AsyncIterator[tuple[FaultyServer, HttpEngine]]:
    listing = how.pop("listing", None)
    async with serve(script, listing=listing) as server, HttpEngine(server.url, model="m", tries=1, **how) as engine:
        with anyio.fail_after(120):
            yield server, engine


def forever(*steps: Step | str | dict[str, Any], times: int = 100_000) -> Answer:
    """An endless stream, without a length."""
    events = [
        step if isinstance(step, (bytes, float)) else b"data: " + json.dumps(step).encode() + b"\n\n" for step in steps
    ]
    return breaks(HEAD, *(events * times))


def words(count: int) -> TokenRenderer:
    tokenizer = WordTokenizer()
    tokenizer.encode(" ".join(f"w{i}" for i in range(count)))
    return TokenRenderer(tokenizer)


# More than was asked for.


@pytest.mark.anyio
@pytest.mark.parametrize("reported", [None, 0, 1, 52, 520, 2**70])
async def test_a_stream_is_cut_off_at_the_tokens_that_were_asked_for(reported: int | None):
    late = [] if reported is None else [usage(reported)]
    meter = Meter()
    async with meeting(stream(*[chat("a ")] * 520, chat("", finish="stop"), *late)) as (_, engine):
        completion = await engine.sample(HELLO, max_tokens=60, meter=meter)
    assert (completion.num_tokens, completion.finish, completion.text) == (60, "length", "a " * 60)
    assert meter.tokens == 61  # the event that showed it


@pytest.mark.anyio
async def test_an_endless_stream_ends_without_a_deadline():
    async with meeting(forever(chat("a"))) as (server, engine):
        completion = await engine.sample(HELLO, max_tokens=10)
        assert completion.text == "a" * 10
        with anyio.fail_after(PATIENCE_S):
            while server.running:  # noqa: ASYNC110 (the server notices that its client has gone)
                await anyio.sleep(0.01)


@pytest.mark.anyio
@pytest.mark.parametrize("shape", [vllm, llama])
async def test_ids_beyond_the_limit_are_dropped_and_the_text_is_that_of_the_rest(shape: Any):
    renderer = words(50)
    events = [shape("".join(renderer.tokenizer.decode([i])), [i]) for i in range(40)]
    async with meeting(stream(*events, shape("", [], finish="stop"), usage(1)), tokenizer=renderer) as (_, engine):
        completion = await engine.sample(Prompt(messages=(), ids=[1]), max_tokens=7)
    assert completion.token_ids == tuple(range(7))
    assert len(completion.logprobs) == completion.num_tokens == 7
    assert completion.text == renderer.decode(list(range(7)))


@pytest.mark.anyio
async def test_one_event_with_too_many_ids_is_cut():
    renderer = words(50)
    ids = list(range(40))
    answer = stream(vllm(renderer.decode(ids), ids, finish="stop"), usage(1))
    async with meeting(answer, tokenizer=renderer) as (_, engine):
        completion = await engine.sample(Prompt(messages=(), ids=[1]), max_tokens=7)
    assert (completion.token_ids, completion.num_tokens, completion.finish) == (tuple(range(7)), 7, "length")


@pytest.mark.anyio
async def test_a_whole_response_that_is_far_too_long_is_cut_by_its_bytes():
    answer = whole({"choices": [{"message": {"content": "x" * 10_000}, "finish_reason": "stop"}], "usage": {}})
    async with meeting(answer) as (_, engine):
        completion = await engine.sample(HELLO, max_tokens=5)
    assert (completion.num_tokens, len(completion.text), completion.finish) == (5, 80, "length")


@pytest.mark.anyio
@pytest.mark.parametrize("reported", [0, 1, 10**9])
async def test_a_tree_stays_within_its_budget_but_for_one_event(reported: int):
    async with meeting(stream(*[chat("word ")] * 500, chat("", finish="stop"), usage(reported))) as (_, engine):
        tree = await ramet.run("How many?", engine=engine, budget=Budget(tokens=100, turns=3))
    assert tree.root.stop is not Stop.ERROR
    assert tree.usage.calls == 2
    assert 100 <= tree.usage.tokens <= 101


@pytest.mark.anyio
async def test_a_server_that_sent_more_than_the_whole_budget_is_not_asked_again():
    answer = whole({"choices": [{"message": {"content": "word " * 2000}, "finish_reason": "stop"}], "usage": {}})
    async with meeting(answer) as (server, engine):
        tree = await ramet.run("How many?", engine=engine, budget=Budget(tokens=100, turns=3))
    assert (len(server.requests), tree.usage.calls) == (1, 1)
    assert (tree.root.stop, tree.usage.tokens) == (Stop.BUDGET, 500)


# Usage.


@given(
    st.integers(-(2**70), 2**70) | st.none(),
    st.lists(st.text(max_size=40), max_size=20),
    st.integers(1, 30),
    st.sampled_from(["stop", "length"]),
)
@settings(max_examples=200, deadline=None)
def test_whatever_is_reported_the_count_lies_between_what_came_and_what_was_allowed(
    reported: int | None, texts: list[str], max_tokens: int, finish: str
):
    completion = collect(
        [*map(chat, texts), chat("", finish=finish), *([] if reported is None else [usage(reported)])], max_tokens
    )
    came = min(max_tokens, len([text for text in texts if text]))
    assert came <= completion.num_tokens <= max_tokens
    assert "".join(texts).startswith(completion.text)


def collect(events: Sequence[Any], max_tokens: int, *, renderer: TokenRenderer | None = None) -> Completion:
    collected = StreamedCompletion(Meter(), max_tokens=max_tokens)
    for event in events:
        collected.add(Event.model_validate_json(json.dumps(event)))
        if collected.is_over:
            break
    return collected.completion(renderer=renderer or TextRenderer())


@pytest.mark.parametrize("reported", [0, 1, 7, 400, 2**70, -3])
def test_with_ids_a_false_count_changes_nothing(reported: int):
    renderer = words(9)
    events = [vllm(renderer.decode([0, 1, 2]), [0, 1, 2], finish="stop"), usage(reported)]
    completion = collect(events, 50, renderer=renderer)
    assert completion.token_ids == (0, 1, 2)
    assert completion.num_tokens in (3, 4)  # an end-of-turn token may be withheld


@pytest.mark.parametrize("number", [-1, 2**31 + 5, 2**40, 2**70])
def test_an_id_that_no_vocabulary_has_is_one_clear_error(number: int):
    with pytest.raises((EngineBusy, ValueError)):
        collect([vllm("a", [number], finish="stop")], 50, renderer=words(9))


def test_an_id_outside_the_vocabulary_is_one_clear_error():
    with pytest.raises(EngineError, match="outside the tokenizer's vocabulary"):
        collect([vllm("a", [9_999], finish="stop")], 50, renderer=words(9))


@pytest.mark.anyio
@pytest.mark.parametrize("prompt_tokens", [2**70, -(2**70), 2**31 - 1, True, None])
async def test_a_tree_with_false_counts_can_be_stored(prompt_tokens: Any, tmp_path: Any):
    used = {"completion_tokens": 2, "prompt_tokens": prompt_tokens, "prompt_tokens_details": {"cached_tokens": 2**70}}
    answer = stream(chat("Answer: x", finish="stop"), {"choices": [], "usage": used})
    async with meeting(answer) as (_, engine):
        tree = await ramet.run("Add up.", engine=engine)
    run = ramet.RunDir.create(tmp_path, "run")
    run.write([tree])
    assert [read.answer for read in ramet.read_trees(run)] == ["x"]


# Too slow, or nothing at all.


@pytest.mark.anyio
@pytest.mark.parametrize(
    "nothing", [b": ping\n\n", {"choices": []}, chat(""), usage(3)], ids=["comments", "no choices", "no text", "usage"]
)
async def test_bytes_without_tokens_are_no_progress(nothing: Any):
    async with meeting(forever(nothing, 0.02), stall_s=1.0) as (_, engine):
        with pytest.raises(EngineError, match="timed out"):
            await engine.sample(HELLO, max_tokens=50)


@pytest.mark.anyio
async def test_headers_that_never_end_are_a_timeout():
    slow = breaks(b"HTTP/1.1 200 So\r\n", *[step for _ in range(10_000) for step in (b"X-A: b\r\n", 0.02)])
    async with meeting(slow, stall_s=1.0) as (_, engine):
        with pytest.raises(EngineError, match="timed out"):
            await engine.sample(HELLO, max_tokens=50)


@pytest.mark.anyio
async def test_an_error_that_never_ends_is_a_timeout_or_cut():
    head = b"HTTP/1.1 400 So\r\nContent-Type: text/plain\r\n\r\n"
    async with meeting(breaks(head, *[b"x" * 4096] * 1000), stall_s=20.0) as (_, engine):
        with pytest.raises(EngineError, match=r"answered 400: x+"):
            await engine.sample(HELLO, max_tokens=50)


# Size.


async def read_all(response: httpx.Response, *, limit: int) -> list[str]:
    return [line async for line in read_lines(response, limit=limit)]


def pieces(data: bytes, size: int) -> httpx.Response:
    async def body() -> AsyncIterator[bytes]:
        for start in range(0, len(data), size):
            yield data[start : start + size]

    return httpx.Response(200, content=body())


def test_a_line_without_end_is_refused():
    with pytest.raises(EngineBusy, match="a line of more than"):
        anyio.run(lambda: read_all(pieces(b"x" * (MAX_LINE_BYTES + 2), 65_536), limit=10**9))


def test_a_response_without_end_is_refused():
    with pytest.raises(EngineBusy, match="more than 1,000 bytes"):
        anyio.run(lambda: read_all(pieces(b"x\n" * 600, 64), limit=1000))


@given(st.binary(max_size=200), st.integers(1, 50))
@settings(max_examples=100, deadline=None)
def test_lines_do_not_depend_on_where_the_network_splits_them(data: bytes, size: int):
    expected = [line.decode(errors="replace") for line in data.split(b"\n")]
    assert anyio.run(lambda: read_all(pieces(data, size), limit=10**6)) == expected


def test_a_gzip_bomb_costs_no_more_memory_than_the_limit():
    bomb = gzip.compress(b"\0" * 300_000_000, compresslevel=9)

    async def read() -> str:
        return await read_text(
            httpx.Response(200, headers={"Content-Encoding": "gzip"}, stream=httpx.ByteStream(bomb)),
            limit=MAX_ERROR_BYTES,
        )

    tracemalloc.start()
    try:
        assert len(anyio.run(read)) == MAX_ERROR_BYTES
        assert tracemalloc.get_traced_memory()[1] < 8 * 2**20
    finally:
        tracemalloc.stop()


def test_what_a_server_compresses_without_being_asked_is_read():
    async def read() -> str:
        packed = gzip.compress(b"hello")
        return await read_text(
            httpx.Response(200, headers={"Content-Encoding": "gzip"}, stream=httpx.ByteStream(packed)), limit=99
        )

    assert anyio.run(read) == "hello"


@pytest.mark.anyio
async def test_no_compression_is_asked_for():
    async with meeting(says("hello")) as (server, engine):
        await engine.sample(HELLO, max_tokens=5)
        await engine.check()
    assert {request.headers["accept-encoding"] for request in server.requests + server.asked} == {"identity"}


def test_a_request_for_more_tokens_may_have_a_longer_response():
    assert most_bytes(1000) - most_bytes(0) == 1000 * 4096


# The key.

ESCAPED = "".join(f"\\u{ord(letter):04x}" for letter in KEY)


@given(st.integers(0, 400), st.sampled_from([KEY, ESCAPED]), st.sampled_from(["error", "listing", "event", "page"]))
@settings(max_examples=60, deadline=None)
def test_no_part_of_a_key_that_a_server_repeats_is_shown(before: int, key: str, where: str):
    leak = "x" * before + key
    body = f'{{"error": {{"message": "{leak}"}}}}'
    faults = {
        "error": (whole(body, status=400), None),
        "page": (whole(f"<p>{leak}</p>", status=500), None),
        "event": (stream(f'{{"choices": "{leak}"}}'), None),
        "listing": (whole("", status=404), whole(f'{{"data": [{{"id": "{leak}"}}]}}')),
    }
    answer, listing = faults[where]

    async def texts() -> list[str]:
        found: list[str] = []
        async with meeting(answer, listing=listing, api_key=KEY) as (_, engine):
            for call in (lambda: engine.sample(HELLO, max_tokens=5), engine.check):
                try:
                    await call()
                except EngineError as error:
                    found.append(str(error))
        return found

    for text in anyio.run(texts):
        assert KEY[:10] not in text
        assert ESCAPED[:30] not in text


@pytest.mark.anyio
async def test_a_key_that_a_server_repeats_in_its_answer_is_replaced():
    async with meeting(stream(*map(chat, ["Answer: ", *KEY]), chat("", finish="stop")), api_key=KEY) as (_, engine):
        assert (await engine.sample(HELLO, max_tokens=99)).text == "Answer: ***"


@pytest.mark.anyio
async def test_a_placeholder_key_does_not_change_answers():
    async with meeting(says("the box is EMPTY"), api_key="EMPTY") as (_, engine):
        assert (await engine.sample(HELLO, max_tokens=99)).text == "the box is EMPTY"
