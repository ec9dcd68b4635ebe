"""The HTTP engine against a server that fails on purpose."""

from __future__ import annotations

import json
import re
import socket
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any, Literal

import anyio
import pytest
from anyio.from_thread import start_blocking_portal

import ramet
from ramet import Budget, ConfigError, EngineError, HttpEngine, Message, Prices, Prompt, Stop, TreeRun
from ramet.agent.options import TreeOptions
from ramet.engine.http import request_id
from ramet.engine.scripted import WordTokenizer
from ramet.errors import EngineBusy, EngineInterrupted
from ramet.tokens.render import TokenRenderer
from ramet.types import Completion, Meter
from tests.conftest import in_virtual_time
from tests.engine.faulty import (
    CLOSED,
    HANG,
    RESET,
    Answer,
    FaultyServer,
    Received,
    Script,
    breaks,
    chat,
    llama,
    says,
    serve,
    stream,
    until,
    usage,
    vllm,
    whole,
)

KEY = "sk-very-secret"
HELLO = Prompt(messages=[Message("system", "Be brief."), Message("user", "Hello?")], ids=None, node_id="tree/0")
HOUR = timedelta(hours=1)


@contextmanager
def closed_port() -> Iterator[str]:
    """The address of a port that is bound but does not listen."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


@asynccontextmanager
async def meeting(
    script: Script, *, models: Sequence[str] = ("m",), listing: Answer | None = None, **settings: Any
) -> AsyncIterator[tuple[FaultyServer, HttpEngine]]:
    """A faulty server and an engine connected to it."""
    async with (
        serve(script, models=models, listing=listing) as server,
        HttpEngine(server.url, model="m", **settings) as engine,
    ):
        with anyio.fail_after(120):
            yield server, engine


async def ask(engine: HttpEngine, *, max_tokens: int = 50, meter: Meter | None = None, **how: Any) -> Completion:
    return await engine.sample(HELLO, max_tokens=max_tokens, meter=meter, **how)


def some_words() -> TokenRenderer:
    """A renderer whose ids 0 to 399 are words."""
    tokenizer = WordTokenizer()
    tokenizer.encode(" ".join(f"w{i}" for i in range(400)))
    return TokenRenderer(tokenizer)


def http_date(offset: timedelta) -> str:
    return format_datetime(datetime.now(UTC) + offset, usegmt=True)


def busy(after: str | None = None, *, status: int = 429) -> Answer:
    headers = {} if after is None else {"Retry-After": after}
    return whole({"error": {"message": "too many requests"}}, status=status, headers=headers)


def stall_s(answer: Answer) -> float:
    """A short timeout only where the server hangs: other responses may take any time on a busy machine."""
    return 2.0 if answer.hangs else 120.0


def error_object(text: str = "out of memory") -> dict[str, Any]:
    return {"error": {"message": text, "type": "server_error", "code": 500}}


# Failures before the first token that are worth a retry, and the error message when they persist.
TRANSIENT = {
    "429 and no delay": (busy("0"), "answered 429: too many requests"),
    "429 and a date that has passed": (busy(http_date(-HOUR)), "answered 429: too many requests"),
    "429 and an invalid delay": (busy("soon"), "answered 429: too many requests"),
    "429 without a delay": (busy(), "answered 429: too many requests"),
    "500 with an error object": (whole(error_object(), status=500), "answered 500: out of memory"),
    "502 with a web page": (whole("<h1>Bad\nGateway</h1>", status=502), "answered 502: <h1>Bad Gateway</h1>"),
    "503 without a body": (whole("", status=503), "answered 503: no reason given"),
    "reset before any byte": (breaks(RESET), "the connection to .* broke"),
    "closed before any byte": (breaks(CLOSED), "the connection to .* broke"),
    "silence": (breaks(HANG), "timed out"),
    "silence after the headers": (stream(HANG), "timed out"),
    "a stream of nothing": (stream(done=False), "the response ended early"),
    "a stream of nothing but the end": (stream(), "the response ended early"),
    "a stream closed before the first token": (stream(chat(""), CLOSED), "the connection to .* broke"),
    "half a body": (whole({"choices": [{"text": "ab", "finish_reason": "stop"}]}, missing=9), "connection to .* broke"),
    "a body that is not gzip": (
        whole(b"plain", headers={"Content-Encoding": "gzip"}),
        "compressed data that is broken",
    ),
    "an error that is not gzip": (whole(b"no", status=500, headers={"Content-Encoding": "gzip"}), "is broken"),
    "invalid JSON": (whole('{"choices": [{"te'), "invalid JSON: .*choices"),
    "a web page": (whole("<html>welcome</html>"), "invalid JSON: .*welcome"),
    "an empty body": (whole(""), "invalid JSON"),
    "invalid JSON in a stream": (stream('{"choices": [{"de'), "invalid JSON: .*choices"),
    "JSON that is not an object": (whole([1, 2]), "unexpected shape"),
    "JSON without choices": (whole({"hello": "world"}), "unexpected shape"),
    "choices of another type": (whole({"choices": "none"}), "unexpected shape"),
    "choices of another type in a stream": (stream({"choices": [{"delta": 7}]}), "unexpected shape"),
    "an error object in place of an answer": (whole(error_object()), "reported an error: out of memory"),
    "an error object in a stream": (stream(error_object()), "reported an error: out of memory"),
}


# One of each kind, because retries take time.
RETRIED = [
    "429 and no delay",
    "429 and a date that has passed",
    "429 without a delay",
    "500 with an error object",
    "reset before any byte",
    "closed before any byte",
    "silence",
    "a stream of nothing",
    "half a body",
    "a body that is not gzip",
    "invalid JSON",
    "invalid JSON in a stream",
    "JSON that is not an object",
    "an error object in a stream",
]


@pytest.mark.anyio
@pytest.mark.parametrize("fault", RETRIED)
async def test_a_transient_failure_is_retried(fault: str):
    broken = TRANSIENT[fault][0]
    async with meeting([broken, says("all is well")], tries=2, stall_s=stall_s(broken)) as (server, engine):
        completion = await ask(engine)
    assert completion.text == "all is well"
    assert len(server.requests) == 2
    assert server.bodies[0] == server.bodies[1]


@pytest.mark.anyio
@pytest.mark.parametrize("fault", TRANSIENT)
async def test_a_failure_that_persists_is_one_clear_error(fault: str):
    answer, message = TRANSIENT[fault]
    async with meeting(answer, tries=1, stall_s=stall_s(answer)) as (server, engine):
        meter = Meter()
        with pytest.raises(EngineError, match=message) as caught:
            await ask(engine, meter=meter)
    assert not isinstance(caught.value, (EngineBusy, EngineInterrupted))
    assert (meter.tokens, len(server.requests)) == (0, 1)


@pytest.mark.anyio
async def test_every_new_try_after_a_silence_is_logged(caplog: pytest.LogCaptureFixture):
    silent = breaks(HANG)
    async with meeting([silent, silent, says("here")], tries=3, stall_s=stall_s(silent)) as (_, engine):
        assert (await ask(engine)).text == "here"
    said = f"{engine.base_url} timed out (no answer for {stall_s(silent):g} s), trying again,"
    assert [record.getMessage() for record in caplog.records] == [f"{said} 2 of 3", f"{said} 3 of 3"]


@pytest.mark.anyio
async def test_the_engine_makes_as_many_attempts_as_it_is_given():
    async with meeting(busy("0"), tries=3) as (server, engine):
        with pytest.raises(EngineError, match=r"too many requests \(tried 3 times\)"):
            await ask(engine)
    assert len(server.requests) == 3


@pytest.mark.anyio
async def test_different_failures_in_a_row_are_all_retried():
    async with meeting([busy("0"), breaks(RESET), says("here")], tries=3) as (server, engine):
        assert (await ask(engine)).text == "here"
    assert len(server.requests) == 3


@pytest.mark.anyio
async def test_an_unreachable_server_is_named_in_the_error():
    with closed_port() as url:
        async with HttpEngine(url, model="m", tries=2) as engine:
            with pytest.raises(EngineError, match=rf"cannot reach {url}/v1: .*\(tried 2 times\)") as asked:
                await ask(engine)
            with pytest.raises(EngineError, match=f"cannot reach {url}/v1") as checked:
                await engine.check()
    assert asked.value.lasting == checked.value.lasting == "unreachable"


# Backoff and deadlines.


def backed_off(url: str, *, tries: int, seconds: float) -> tuple[float, str]:
    """How long an engine retries an unreachable address, in virtual time, and its error message."""

    async def work() -> tuple[float, str]:
        async with HttpEngine(url, model="m", tries=tries) as engine:
            started = anyio.current_time()
            with anyio.move_on_after(seconds), pytest.raises(EngineError) as caught:
                await ask(engine)
            return anyio.current_time() - started, str(caught.value)

    return in_virtual_time(work)


def test_waits_double_up_to_a_limit_and_are_random():
    with closed_port() as url:
        ends = [backed_off(url, tries=9, seconds=1e6) for _ in range(5)]
    most = 0.5 + 1 + 2 + 4 + 8 + 16 + 20 + 20
    assert all(most / 2 <= virtual <= most for virtual, _ in ends)
    assert len({virtual for virtual, _ in ends}) == 5
    assert all("tried 9 times" in message for _, message in ends)


def test_an_engine_fails_early_when_the_next_attempt_would_miss_the_deadline():
    with closed_port() as url:
        virtual, message = backed_off(url, tries=50, seconds=10)
    assert virtual < 10
    assert re.search(r"cannot reach .* \(the next attempt in \d+\.\d s would miss the deadline\)", message)


@pytest.mark.anyio
@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("kind", ["seconds", "date"])
async def test_a_requested_wait_that_would_miss_the_deadline_is_an_error(kind: str, status: int):
    after = "3600" if kind == "seconds" else http_date(HOUR)
    async with meeting(busy(after, status=status)) as (server, engine):
        with anyio.fail_after(60), pytest.raises(EngineError, match=r"too many.*miss the deadline") as caught:
            await ask(engine)
    wait = float(re.findall(r"in ([\d.]+) s", str(caught.value))[0])
    assert 3000 <= wait <= 3601  # what the server asked for, not the time to the deadline
    assert len(server.requests) == 1


@pytest.mark.anyio
async def test_clients_with_the_same_requested_wait_retry_at_different_times():
    waits: set[str] = set()

    async def once(engine: HttpEngine) -> None:
        with pytest.raises(EngineError) as caught:
            await ask(engine)
        waits.update(re.findall(r"in (3600\.\d) s", str(caught.value)))

    async with meeting(busy("3600")) as (_, engine), anyio.create_task_group() as group:
        for _ in range(20):
            group.start_soon(once, engine)
    assert len(waits) > 1


@pytest.mark.anyio
async def test_a_slow_stream_does_not_time_out():
    words = [step for word in ("one", "two", "three", "four", "five") for step in (0.5, chat(f"{word} "))]
    async with meeting(stream(*words, chat("", finish="stop"), usage(5)), stall_s=2.0, tries=1) as (_, engine):
        completion = await ask(engine)
    assert completion.text == "one two three four five "


# Errors that are not retried.


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("status", "body", "key", "message"),
    [
        (400, {"error": {"message": "context too long"}}, None, "answered 400: context too long"),
        (400, {"detail": [{"msg": "bad field"}]}, None, "answered 400: .*bad field"),
        (401, {"error": {"message": "no key"}}, None, r"answered 401: an API key is needed \(no key\)"),
        (401, {"error": {"message": "bad key"}}, KEY, r"answered 401: the API key was rejected \(bad key\)"),
        (403, "forbidden", KEY, r"answered 403: the API key was rejected \(forbidden\)"),
        (413, "", None, "answered 413: no reason given"),
        (422, {"message": "unknown field"}, None, "answered 422: unknown field"),
        (301, "", None, "answered 301"),
        (400, "[" * 100_000, None, "answered 400: "),
        (400, "1" * 5000, None, "answered 400: 1111"),
    ],
)
async def test_a_permanent_error_is_not_retried(status: int, body: object, key: str | None, message: str):
    async with meeting(whole(body, status=status), tries=3, api_key=key) as (server, engine):
        with pytest.raises(EngineError, match=message) as caught:
            await ask(engine)
    assert not isinstance(caught.value, EngineBusy)
    assert caught.value.lasting == ("rejected" if status in (401, 403) else None)
    assert len(server.requests) == 1


@pytest.mark.anyio
async def test_an_unknown_model_is_an_error_that_lists_the_offered_ones():
    missing = whole({"error": {"message": "The model `m` does not exist", "code": "model_not_found"}}, status=404)
    async with meeting(missing, models=["qwen", "smollm2"], tries=3) as (server, engine):
        with pytest.raises(EngineError, match="has no model 'm'; it serves qwen, smollm2"):
            await ask(engine)
    assert len(server.requests) == 1


@pytest.mark.anyio
@pytest.mark.parametrize("models", [["m"], ["m", "n"]])
async def test_a_404_for_an_offered_model_does_not_blame_the_model(models: list[str]):
    async with meeting(whole({"detail": "Not Found"}, status=404), models=models, tries=3) as (server, engine):
        with pytest.raises(EngineError, match="answered 404: Not Found") as caught:
            await ask(engine)
    assert "has no model" not in str(caught.value)
    assert len(server.requests) == 1


@pytest.mark.anyio
async def test_a_404_from_a_server_without_a_model_list_is_reported_unchanged():
    missing = whole("nothing here", status=404)
    async with meeting(missing, listing=missing) as (_, engine):
        with pytest.raises(EngineError, match="answered 404: nothing here"):
            await ask(engine)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("listing", "message"),
    [
        (whole("<html>router login</html>"), "does not answer like an OpenAI-compatible server"),
        (whole({"models": []}), "does not answer like an OpenAI-compatible server"),
        (whole({"data": ["m"]}), "does not answer like an OpenAI-compatible server"),
        (whole("", status=401), "answered 401: an API key is needed"),
        (whole("", status=500), "answered 500"),
        (breaks(RESET), "the connection to .* broke"),
        (breaks(HANG), "timed out"),
    ],
)
async def test_a_check_fails_with_the_reason(listing: Answer, message: str):
    async with meeting(says("x"), listing=listing, stall_s=stall_s(listing)) as (server, engine):
        with pytest.raises(EngineError, match=message):
            await engine.check()
    assert len(server.asked) == 1


@pytest.mark.anyio
async def test_a_check_passes_when_the_model_is_offered_or_no_models_are_listed():
    for models in (["other", "m"], []):
        async with meeting(says("x"), models=models) as (server, engine):
            await engine.check()
        assert [request.path for request in server.asked] == ["/v1/models"]


@pytest.mark.parametrize("url", ["", "localhost:8000", "ftp://host/v1", "http://", "http://host:port/v1"])
def test_an_invalid_address_is_refused_at_once(url: str):
    with pytest.raises(ConfigError, match="base_url"):
        HttpEngine(url, model="m")


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("http://host:1", "http://host:1/v1"),
        ("http://host:1/", "http://host:1/v1"),
        ("http://host:1/v1/", "http://host:1/v1"),
        ("https://host/api/openai", "https://host/api/openai"),
    ],
)
def test_v1_is_appended_to_an_address_without_a_path(given: str, used: str):
    assert HttpEngine(given, model="m").base_url == used


# The API key.


@pytest.mark.anyio
async def test_the_api_key_is_sent_and_never_appears_in_an_error():
    leaks = f"invalid key {KEY}"
    faults = [
        *(whole({"error": {"message": leaks}}, status=status) for status in (400, 401, 403, 404, 429, 500)),
        *(whole(leaks), whole({"choices": leaks}), stream(error_object(leaks)), stream(leaks)),
        *(stream(chat("a"), error_object(leaks)), breaks(RESET)),
    ]
    for fault in faults:
        listing = whole(leaks, status=401)
        async with meeting(fault, listing=listing, api_key=KEY, tries=1) as (server, engine):
            for call in (ask, HttpEngine.check):
                with pytest.raises(EngineError) as caught:
                    await call(engine)
                assert KEY not in str(caught.value)
        assert {request.headers["authorization"] for request in server.requests + server.asked} == {f"Bearer {KEY}"}


@pytest.mark.anyio
@pytest.mark.parametrize("key", [f"{KEY}\n", f"{KEY}\r\nX-Other: 1", f"{KEY}é", f"\x00{KEY}"])
async def test_an_api_key_that_is_not_a_valid_header_is_refused_without_showing_it(key: str):
    async with serve(says("hello")) as server:
        with pytest.raises(ConfigError, match=r"(?i)key") as caught:
            async with HttpEngine(server.url, model="m", api_key=key, tries=1) as engine:
                await ask(engine)
    assert KEY not in str(caught.value)
    assert not server.requests


# Streams that break after the first tokens.

BREAKS = {
    "reset": (RESET,),
    "closed": (CLOSED,),
    "ended without a reason": (b"0\r\n\r\n", CLOSED),
    "silence": (HANG,),
    "invalid JSON": ('{"choi',),
    "JSON of another shape": ({"choices": 3},),
    "an error object": (error_object(),),
}


@pytest.mark.anyio
@pytest.mark.parametrize("fault", BREAKS)
async def test_a_stream_that_breaks_in_the_middle_is_not_retried_silently(fault: str):
    meter = Meter()
    broken = stream(chat("one"), chat(" two"), lambda: meter.tokens == 2, *BREAKS[fault])
    async with meeting(broken, tries=3, stall_s=stall_s(broken)) as (server, engine):
        with pytest.raises(EngineInterrupted, match="after 2 tokens"):
            await ask(engine, meter=meter)
    assert (meter.tokens, len(server.requests)) == (2, 1)


@pytest.mark.anyio
async def test_tokens_are_counted_by_their_ids():
    meter = Meter()
    broken = stream(vllm("one two", [1, 2]), vllm("", [3]), lambda: meter.tokens == 3, RESET)
    async with meeting(broken, tokenizer=TokenRenderer(WordTokenizer())) as (_, engine):
        with pytest.raises(EngineInterrupted, match="after 3 tokens"):
            await engine.sample(Prompt(messages=(), ids=[1]), max_tokens=9, meter=meter)
    assert meter.tokens == 3


@pytest.mark.anyio
@pytest.mark.parametrize("key", ["reasoning_content", "reasoning"])
async def test_thoughts_that_a_server_sends_separately_are_counted(key: str):
    thoughts = [{"choices": [{"delta": {key: text}}]} for text in ("so", " then")]
    meter = Meter()
    async with meeting(stream(*thoughts, lambda: meter.tokens == 2, RESET), tries=2) as (_, engine):
        with pytest.raises(EngineInterrupted, match="after 2 tokens"):
            await ask(engine, meter=meter)
    assert meter.tokens == 2


@pytest.mark.anyio
@pytest.mark.parametrize("fault", BREAKS)
async def test_a_tree_pays_for_a_broken_stream_and_retries(fault: str):
    runs: list[TreeRun] = []
    received = (chat("half"), chat(" an"), chat(" answer"))
    broken = stream(*received, lambda: runs[0].tree.root.meter.tokens == 3, *BREAKS[fault])
    async with meeting([broken, says("Answer: forty two")], stall_s=stall_s(broken)) as (server, engine):
        runs.append(TreeRun("How many?", TreeOptions(engine=engine, budget=Budget(tokens=100))))
        tree = await runs[0].run()
    assert tree.answer == "forty two"
    assert (tree.usage.tokens, tree.usage.calls) == (3 + 3, 2)
    first, second = (body["max_tokens"] for body in server.bodies)
    assert second == first - 3  # the second call has less by what the first one spent


@pytest.mark.anyio
async def test_a_tree_whose_streams_always_break_ends_with_an_error_and_its_usage():
    broken = stream(chat("a"), chat(" b"), CLOSED)
    async with meeting(broken) as (server, engine):
        with pytest.raises(EngineError, match=r"^[^,]+, after 2 tokens \(tried 3 times\)$") as caught:
            await ramet.run("How many?", engine=engine, budget=Budget(tokens=100))
    tree = caught.value.tree
    assert tree is not None
    assert (tree.root.stop, tree.usage.tokens, len(server.requests)) == (Stop.ERROR, 6, 3)


# Requests and responses.


@pytest.mark.anyio
async def test_without_a_tokenizer_messages_are_sent_and_text_is_returned():
    async with meeting(says("to be or", tokens=5), api_key=KEY, extra={"top_p": 0.9}) as (server, engine):
        completion = await ask(engine, max_tokens=20, stop=["</x>"], temperature=0.3, seed=7)
    request = server.requests[0]
    assert (request.path, request.headers["x-session-id"]) == ("/v1/chat/completions", "tree/0")
    assert request.body == {
        "model": "m",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello?"}],
        "max_tokens": 20,
        "temperature": 0.3,
        "stop": ["</x>"],
        "seed": 7,
        "top_p": 0.9,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert completion == Completion(text="to be or", num_tokens=5, finish="stop", prompt_tokens=7, cached_tokens=3)


@pytest.mark.anyio
@pytest.mark.parametrize("shape", [vllm, llama])
async def test_with_a_tokenizer_ids_are_sent_and_ids_with_log_probs_are_returned(shape: Any):
    events = [shape("to", [11]), shape(" be", [12]), shape("", [2]), shape("", [], finish="stop"), usage(3)]
    async with meeting(stream(*events), tokenizer=some_words()) as (server, engine):
        completion = await engine.sample(Prompt(messages=HELLO.messages, ids=[5, 6, 7]), max_tokens=20)
    request = server.requests[0]
    assert request.path == "/v1/completions"
    assert (request.body["prompt"], request.body["return_token_ids"]) == ([5, 6, 7], True)
    assert not {"messages", "seed", "stop"} & set(request.body)
    assert "authorization" not in request.headers
    assert (completion.text, completion.token_ids, completion.num_tokens) == ("to be", (11, 12, 2), 3)
    assert completion.logprobs == (-0.5, -0.5, -0.5)


@pytest.mark.anyio
@pytest.mark.parametrize("shape", [vllm, llama])
async def test_a_tree_records_exactly_the_ids_that_were_sent_and_received(shape: Any):
    tokenizer = WordTokenizer()
    renderer = TokenRenderer(tokenizer)

    def reply(text: str) -> Answer:
        ids = [*tokenizer.encode(text), renderer.end_of_turn or 0]
        events = [shape(tokenizer.words[i] if i != renderer.end_of_turn else "", [i]) for i in ids]
        return stream(*events, shape("", [], finish="stop"), usage(len(ids)))

    call = {"name": "delegate", "arguments": {"goals": ["Count."]}}
    turns = [reply(f"<tool_call>{json.dumps(call)}</tool_call>"), reply("Answer: 3"), reply("Answer: three")]
    async with meeting(turns, tokenizer=renderer) as (server, engine):
        tree = await ramet.run("How many?", engine=engine)
    assert tree.answer == "three"
    for node in tree.nodes:
        its_own = [r for r in server.requests if r.headers["x-session-id"] == f"{tree.id}/{node.index}"]
        given_last = max(i for i, piece in enumerate(node.pieces) if not piece.sampled)
        before = [token for piece in node.pieces[: given_last + 1] for token in piece.token_ids]
        assert its_own[-1].body["prompt"] == before
        assert sum(node.mask) == node.usage.tokens
        assert all(len(piece.logprobs) == len(piece.token_ids) for piece in node.pieces if piece.sampled)


@pytest.mark.anyio
async def test_a_server_that_takes_ids_and_returns_none_is_an_error():
    events = [{"choices": [{"text": "hello", "finish_reason": "stop"}]}, usage(1)]
    async with meeting(stream(*events), tokenizer=TokenRenderer(WordTokenizer()), tries=3) as (server, engine):
        with pytest.raises(EngineError, match="takes token ids but returns none: run without a tokenizer") as caught:
            await ramet.run("How many?", engine=engine)
    assert caught.value.tree is not None
    assert len(server.requests) == 1


@pytest.mark.anyio
async def test_a_server_that_omits_some_ids_is_an_error():
    """llama.cpp does this for characters of several tokens: the ids are then not what was sampled."""
    events = [llama("😀", [218]), llama("x", [104]), llama("", [], finish="stop"), usage(4)]
    async with meeting(stream(*events), tokenizer=TokenRenderer(WordTokenizer())) as (_, engine):
        with pytest.raises(EngineError, match="ids"):
            await engine.sample(Prompt(messages=(), ids=[1]), max_tokens=9)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("finish", "max_tokens", "charged"), [("stop", 50, len("né, oui ")), ("stop", 4, 4), ("length", 50, 50)]
)
async def test_without_reported_usage_the_upper_bound_is_charged(finish: str, max_tokens: int, charged: int):
    async with meeting(stream(chat("né,"), chat(" oui"), chat("", finish=finish))) as (_, engine):
        completion = await ask(engine, max_tokens=max_tokens)
    assert (completion.num_tokens, completion.prompt_tokens) == (charged, None)


@pytest.mark.anyio
@pytest.mark.parametrize(
    "choice", [{"message": {"role": "assistant", "content": "hello"}}, {"text": "hello"}], ids=["chat", "completion"]
)
async def test_a_server_that_does_not_stream_works(choice: dict[str, Any]):
    body = {"choices": [choice | {"index": 0, "finish_reason": "length"}], "usage": usage(2)["usage"]}
    async with meeting(whole(body)) as (_, engine):
        completion = await ask(engine)
    assert (completion.text, completion.num_tokens, completion.finish) == ("hello", 2, "length")


@pytest.mark.anyio
@pytest.mark.parametrize(
    "text", ["a\u2028b", "a\u2029b", "a\x85b", "a\x0bb\x0cc", "a\x1cb\x1db\x1e", "zwei\n\r\nlines"]
)
async def test_unusual_line_separators_do_not_break_a_stream(text: str):
    async with meeting(stream(chat(text, finish="stop"), usage(3)), tries=1) as (_, engine):
        assert (await ask(engine)).text == text


@pytest.mark.anyio
async def test_comments_pings_and_unknown_fields_are_ignored():
    ping = b"7\r\n: ping\n\r\n"
    odd = {"choices": [], "prompt_filter_results": []}
    role = {"choices": [{"delta": {"role": "assistant", "content": None}}], "system_fingerprint": "x"}
    events = (ping, odd, role, chat("ye"), ping, chat("s"), chat("", finish="stop"), ping, usage(1))
    async with meeting(stream(*events), tries=1) as (_, engine):
        assert (await ask(engine)).text == "yes"


@pytest.mark.anyio
async def test_a_finished_response_without_done_is_accepted():
    async with meeting(stream(chat("hello", finish="stop"), usage(1), done=False), tries=1) as (_, engine):
        assert (await ask(engine)).text == "hello"


@pytest.mark.anyio
@pytest.mark.parametrize("fault", [RESET, CLOSED, b"not a chunk", error_object()], ids=str)
@pytest.mark.parametrize("end", [[], ["[DONE]"]], ids=str)
async def test_a_stream_that_breaks_after_the_end_of_the_answer_loses_nothing(end: list[str], fault: Any):
    meter = Meter()
    events = (chat("hel"), chat("lo", finish="stop"), usage(2), *end)
    broken = stream(*events, lambda: meter.tokens == 2, fault, CLOSED, done=False)
    async with meeting(broken, tries=1) as (server, engine):
        completion = await ask(engine, meter=meter)
    assert (completion.text, len(server.requests)) == ("hello", 1)


# Trees on a faulty server.


def by_goal(**answers: Answer) -> Script:
    """The root delegates each name to a clone, which gets that response; then it answers with all results."""
    call = json.dumps({"name": "delegate", "arguments": {"goals": list(answers)}})

    def script(request: Received) -> Answer:
        if request.goal in answers:
            return answers[request.goal]
        results = [message["content"] for message in request.body["messages"][3:]]
        return says(f"Answer: {' '.join(results)}") if results else says(f"<tool_call>{call}</tool_call>")

    return script


@pytest.mark.anyio
async def test_the_error_of_a_clone_is_reported_to_its_parent_and_its_siblings_continue():
    script = by_goal(first=says("Answer: one"), second=whole("oops", status=400), third=says("Answer: three"))
    async with meeting(script) as (server, engine):
        tree = await ramet.run("Add up.", engine=engine)
    assert [node.stop for node in tree.nodes] == [Stop.ANSWERED, Stop.ANSWERED, Stop.ERROR, Stop.ANSWERED]
    assert all(text in (tree.answer or "") for text in ("one", "answered 400: oops", "three"))
    assert len(server.requests) == 5


@pytest.mark.anyio
@pytest.mark.parametrize("session_id", ["node", "tree"])
async def test_every_request_names_its_node_and_what_shares_its_prefix(session_id: Literal["node", "tree"]):
    """Routers read X-Session-ID. By default the turns of one node stay together, with `tree` all nodes of a tree."""
    async with meeting(by_goal(first=says("Answer: 1"), second=says("Answer: 2")), session_id=session_id) as (
        server,
        engine,
    ):
        tree = await ramet.run("Add up.", engine=engine)
    ids = sorted(request.headers["x-request-id"] for request in server.requests)
    sessions = sorted(request.headers["x-session-id"] for request in server.requests)
    nodes = [f"{tree.id}/{index}" for index in (0, 0, 1, 2)]
    assert ids == sorted(map(request_id, nodes))
    assert sessions == (nodes if session_id == "node" else [tree.id] * 4)


@pytest.mark.anyio
async def test_ids_of_requests_are_uuids_because_llama_cpp_python_refuses_others():
    async with meeting(says("hello")) as (server, engine):
        await engine.sample(HELLO, max_tokens=5)
    sent = server.requests[0].headers["x-request-id"]
    assert str(uuid.UUID(sent)) == sent


@pytest.mark.anyio
async def test_a_prompt_of_no_node_has_no_id_and_no_session():
    async with meeting(says("hello")) as (server, engine):
        await engine.sample(replace(HELLO, node_id=""), max_tokens=5)
    assert not {"x-request-id", "x-session-id"} & set(server.requests[0].headers)


def test_only_a_node_or_a_tree_can_be_a_session():
    with pytest.raises(ConfigError, match=r"session_id is node or tree; got 'user'"):
        HttpEngine("http://127.0.0.1:1", model="m", session_id="user")  # pyright: ignore[reportArgumentType]


@pytest.mark.anyio
async def test_an_error_that_cannot_be_encoded_is_cleaned_for_the_parent():
    script = by_goal(first=whole('{"error": "half a pair: \\ud83d"}', status=400))
    async with meeting(script) as (_, engine):
        tree = await ramet.run("Add up.", engine=engine)
    assert "half a pair" in (tree.answer or "")
    assert (tree.nodes[1].error or "").encode()


@pytest.mark.anyio
@pytest.mark.parametrize(("generated", "prompt"), [(-5, 7), (0, 7), (3, -7), (10**30, 7)])
async def test_impossible_usage_never_makes_a_tree_cheaper(generated: int, prompt: int):
    prices = Prices(prompt=1.0, generated=2.0)
    used = {"completion_tokens": generated, "prompt_tokens": prompt, "prompt_tokens_details": {"cached_tokens": -1}}
    answer = stream(chat("Answer: x", finish="stop"), {"choices": [], "usage": used})
    async with meeting(answer, tries=1) as (_, engine):
        with suppress(EngineError):
            tree = await ramet.run("Add up.", engine=engine, budget=Budget(tokens=100, money=1.0, prices=prices))
            assert tree.usage.tokens > 0
            assert tree.usage.cost > 0


# Concurrency.


@pytest.mark.anyio
async def test_a_requested_wait_of_an_hour_is_an_error_even_without_a_deadline():
    async with meeting(busy("3600")) as (server, engine):
        with anyio.CancelScope(shield=True), pytest.raises(EngineError, match=r"asks to wait 36\d\d s"):
            await ask(engine)
    assert len(server.requests) == 1


@pytest.mark.anyio
async def test_requests_in_flight_never_exceed_the_concurrency():
    box: list[FaultyServer] = []
    slow = stream(lambda: box[0].most_running >= 3, 0.02, chat("x", finish="stop"), usage(1))
    async with meeting(slow, concurrency=3) as (server, engine):
        box.append(server)
        async with anyio.create_task_group() as group:
            for _ in range(12):
                group.start_soon(ask, engine)
    assert (len(server.requests), server.most_running) == (12, 3)


@pytest.mark.anyio
async def test_a_request_that_waits_for_a_retry_takes_no_slot():
    turns = [busy("20"), says("hello")]
    async with meeting(turns, concurrency=1) as (server, engine), anyio.create_task_group() as group:
        group.start_soon(ask, engine)
        await until(lambda: len(server.requests) == 1 and not server.running)
        assert (await ask(engine)).text == "hello"
        group.cancel_scope.cancel()


# Cancellation reaches the server.


@pytest.mark.anyio
@pytest.mark.parametrize("answer", [breaks(HANG), stream(chat("one"), HANG)], ids=["before", "in mid-stream"])
async def test_a_cancelled_request_ends_on_the_server(answer: Answer):
    async with meeting(answer) as (server, engine):
        async with anyio.create_task_group() as group:
            group.start_soon(ask, engine)
            await until(lambda: server.running == 1)
            assert not server.requests[0].disconnected
            group.cancel_scope.cancel()
        await until(lambda: server.requests[0].disconnected)
        assert server.running == 0


@pytest.mark.anyio
async def test_an_engine_works_after_a_cancelled_request():
    async with meeting([stream(chat("one"), HANG), says("hello")], concurrency=1) as (server, engine):
        meter = Meter()
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: ask(engine, meter=meter))
            await until(lambda: meter.tokens == 1)
            group.cancel_scope.cancel()
        assert (await ask(engine)).text == "hello"
        await until(lambda: server.requests[0].disconnected)


@pytest.mark.anyio
async def test_cancelling_a_tree_ends_every_request_of_every_clone():
    hanging = stream(chat("one"), chat(" two"), HANG)
    async with meeting(by_goal(first=hanging, second=breaks(HANG), third=hanging, fourth=hanging)) as (server, engine):
        run = TreeRun("Add up.", TreeOptions(engine=engine))
        async with anyio.create_task_group() as group:
            group.start_soon(run.run)
            await until(lambda: server.running == 4 and sum(node.meter.tokens for node in run.tree.nodes) == 6)
            group.cancel_scope.cancel()
        await until(lambda: all(request.disconnected for request in server.requests[1:]))
    assert server.running == 0
    assert {node.stop for node in run.tree.nodes} == {Stop.CANCELLED}
    usage = run.tree.usage
    assert usage.tokens == run.tree.root.turns[0].tokens + 6
    assert usage.lost_tokens > 0
    assert usage.tokens + usage.lost_tokens <= run.budget.tokens


@pytest.mark.anyio
async def test_a_clone_past_its_deadline_ends_on_the_server_and_its_siblings_keep_their_answers():
    hanging = stream(chat("one"), HANG)
    async with meeting(by_goal(first=hanging, second=says("Answer: two"))) as (server, engine):
        tree = await ramet.run("Add up.", engine=engine, budget=Budget(seconds=5))
        await until(lambda: not server.running)
    assert {request.goal for request in server.requests if request.disconnected} >= {"first"}
    assert "second" not in {request.goal for request in server.requests if request.disconnected}
    assert [node.stop for node in tree.nodes] == [Stop.DEADLINE, Stop.DEADLINE, Stop.ANSWERED]


@pytest.mark.anyio
@pytest.mark.parametrize("shape", [chat, vllm, llama])
async def test_what_a_cancelled_call_had_received_is_in_its_meter(shape: Any):
    renderer = None if shape is chat else some_words()
    events = [chat("to"), chat(" be")] if shape is chat else [shape("to", [11]), shape(" be", [12])]
    prompt = HELLO if shape is chat else Prompt(messages=HELLO.messages, ids=[5])
    meter = Meter()
    hanging = stream(*events, HANG)
    async with meeting(hanging, tokenizer=renderer) as (_, engine), anyio.create_task_group() as group:
        group.start_soon(lambda: engine.sample(prompt, max_tokens=9, meter=meter))
        await until(lambda: meter.tokens == 2)
        group.cancel_scope.cancel()
    assert meter.partial is not None
    received = meter.partial()
    assert (received.text, received.num_tokens) == ("to be" if shape is chat else " w11 w12", 2)  # the ids decide
    assert received.token_ids == (() if shape is chat else (11, 12))
    assert received.logprobs == (() if shape is chat else (-0.5, -0.5))


@pytest.mark.anyio
async def test_ids_of_another_tokenizer_are_not_kept():
    meter = Meter()
    hanging = stream(vllm("to", [11]), vllm("?", [10**6]), HANG)
    async with meeting(hanging, tokenizer=some_words()) as (_, engine), anyio.create_task_group() as group:
        group.start_soon(lambda: engine.sample(Prompt(messages=(), ids=[5]), max_tokens=9, meter=meter))
        await until(lambda: meter.tokens == 2)
        group.cancel_scope.cancel()
    assert meter.partial is not None
    assert meter.partial() == Completion(text="", num_tokens=2, finish="length")


@pytest.mark.anyio
async def test_the_text_that_was_streamed_is_in_a_cancelled_tree_without_the_api_key():
    hanging = stream(chat("one"), chat(f" {KEY}"), HANG)
    async with meeting(hanging, api_key=KEY) as (_, engine):
        run = TreeRun("Add up.", TreeOptions(engine=engine))
        async with anyio.create_task_group() as group:
            group.start_soon(run.run)
            await until(lambda: run.tree.root.meter.tokens == 2)
            group.cancel_scope.cancel()
    assert [(turn.finish, turn.tokens) for turn in run.tree.root.turns] == [("cut", 2)]
    assert run.tree.root.pieces[-1].text == "one ***"


# One engine, several event loops.


def test_an_engine_can_be_used_in_several_event_loops_in_turn():
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(serve(says("hello"))) as server:
        engine = HttpEngine(server.url, model="m")

        async def once() -> str:
            async with engine:
                return (await ask(engine)).text

        assert [anyio.run(once) for _ in range(2)] == ["hello", "hello"]
    assert len(server.requests) == 2
