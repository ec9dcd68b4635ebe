"""Servers that cannot be run here: their responses in the shape in which others recorded or documented them.

Fields, their order and their odd values are those of the source that each test names; the text is ours.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

import ramet
from ramet import Budget, EngineError, Message, Meter, Prompt
from ramet.engine.probing import choose_dialect
from ramet.errors import EngineInterrupted
from tests.engine.faulty import CLOSED, Answer, Received, breaks, whole
from tests.engine.test_hostile_servers import words
from tests.engine.test_native_calls import connected

pytestmark = pytest.mark.anyio

KEY = "sk-recorded-0123456789"
ASKED = Prompt(messages=[Message("system", "s"), Message("user", "q")], ids=None)
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nConnection: close\r\n\r\n"


def sent(*lines: str | Mapping[str, Any], end: str = "\n\n") -> Answer:
    """A body line by line: a mapping is an event, a string is written as it is."""
    texts = [line if isinstance(line, str) else f"data: {json.dumps(line)}" for line in lines]
    return breaks(HEAD + "".join(text + end for text in texts).encode(), CLOSED)


# OpenRouter. Comments, the last event with usage, errors in the stream: openrouter.ai/docs, "Streaming" and "Errors and
# debugging". `reasoning` and `reasoning_details`: its "Reasoning tokens"; braintrust-sdk-javascript issue 1883.


def openrouter(delta: Mapping[str, Any], *, finish: str | None = None, **more: Any) -> dict[str, Any]:
    choice = {
        "index": 0,
        "delta": dict(delta),
        "finish_reason": finish,
        "native_finish_reason": finish,
        "logprobs": None,
    }
    return {
        "id": "gen-1",
        "provider": "Example",
        "model": "example/model",
        "object": "chat.completion.chunk",
        "created": 1,
        "choices": [choice],
        **more,
    }


OPENROUTER_USAGE = {
    "prompt_tokens": 20,
    "completion_tokens": 11,
    "total_tokens": 31,
    "cost": 0.00021,
    "is_byok": False,
    "prompt_tokens_details": {"cached_tokens": 8, "cache_write_tokens": 0},
    "cost_details": {"upstream_inference_cost": None},
    "completion_tokens_details": {"reasoning_tokens": 6},
}
THOUGHT = {"type": "reasoning.text", "text": "Two ", "format": "unknown", "index": 0}


async def test_openrouter_comments_are_skipped_and_reasoning_and_usage_are_read():
    body = sent(
        ": OPENROUTER PROCESSING",
        ": OPENROUTER PROCESSING",
        openrouter({"role": "assistant", "content": "", "reasoning": "Two ", "reasoning_details": [THOUGHT]}),
        openrouter({"role": "assistant", "content": "", "reasoning": "and two."}),
        openrouter({"role": "assistant", "content": "Answer: 4"}),
        openrouter({"role": "assistant", "content": ""}, finish="stop"),
        openrouter({"role": "assistant", "content": ""}, usage=OPENROUTER_USAGE),
        "data: [DONE]",
        end="\r\n\r\n",
    )
    async with connected(body, provider="openrouter", api_key=KEY) as (server, engine):
        completion = await engine.sample(ASKED, max_tokens=50)
    assert (completion.thoughts, completion.text, completion.finish) == ("Two and two.", "Answer: 4", "stop")
    assert (completion.num_tokens, completion.prompt_tokens, completion.cached_tokens) == (11, 20, 8)
    assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"


async def test_openrouter_errors_in_the_stream_leave_what_came_before_them():
    """With status 200: an event that has an error beside a choice whose finish reason is `error`."""
    failed = openrouter({"content": ""}, finish="error", error={"code": 502, "message": "Provider disconnected"})
    meter = Meter()
    async with connected(sent(openrouter({"content": "one two"}), failed), provider="openrouter") as (_, engine):
        with pytest.raises(EngineInterrupted, match=r"reported an error: .*Provider disconnected.*, after 1 token$"):
            await engine.sample(ASKED, max_tokens=50, meter=meter)
    assert meter.partial is not None
    assert meter.partial().text == "one two"


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (402, {"code": 402, "message": "Insufficient credits", "metadata": {"remedy_hint": "add credits"}}),
        (403, {"code": 403, "message": "Input flagged", "metadata": {"reasons": ["x"], "flagged_input": "..."}}),
        (401, {"message": "User not found.", "code": 401}),
    ],
)
async def test_openrouter_errors_are_one_line(status: int, error: Mapping[str, Any]):
    async with connected(whole({"error": error}, status=status), provider="openrouter", api_key=KEY) as (_, engine):
        with pytest.raises(EngineError, match=rf"answered {status}: .*{error['message'][:8]}") as raised:
            await engine.sample(ASKED, max_tokens=50)
    assert "\n" not in str(raised.value)


# SGLang. A captured stream of two parallel calls, with nulls, `matched_stop` and no usage: the tests of SglangProvider
# in a public PHP client (September 2026). Whole responses with `metadata` and `reasoning_tokens`: published probes of a
# hosted SGLang. Errors: sglang's entrypoints/openai/protocol.py, ErrorResponse.


def sglang(delta: Mapping[str, Any], *, finish: str | None = None, stop: Any = None, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": dict(delta), "logprobs": None, "finish_reason": finish, "matched_stop": stop}
    return {"id": "669d", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice], **more}


def sglang_call(index: int, arguments: str, *, name: str | None = None, id: str | None = None) -> dict[str, Any]:
    call = {"id": id, "index": index, "type": "function", "function": {"name": name, "arguments": arguments}}
    return sglang({"role": None, "content": None, "reasoning_content": None, "tool_calls": [call]}, usage=None)


def sglang_turn(request: Received) -> Answer:
    if request.goal != "root":
        metadata = {"weight_version": "default"}
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": f"Answer: {request.goal}", "tool_calls": None},
        }
        used = {"prompt_tokens": 9, "total_tokens": 12, "completion_tokens": 3, "reasoning_tokens": 0}
        done = choice | {"logprobs": None, "finish_reason": "stop", "matched_stop": 163586}
        return whole({"id": "e3", "object": "chat.completion", "choices": [done], "usage": used, "metadata": metadata})
    if request.body["messages"][-1]["role"] == "tool":
        return sent(sglang({"content": "Answer: both"}), sglang({"content": None}, finish="stop", stop="\n\n"))
    return sent(
        sglang({"reasoning_content": None, "role": "assistant", "content": ""}),
        sglang({"reasoning_content": "Two parts."}),
        sglang({"role": None, "content": "I ask two clones.\n\n", "reasoning_content": None, "tool_calls": None}),
        sglang_call(0, "", name="delegate", id="call_36"),
        sglang_call(0, "{"),
        sglang_call(0, '"goals": ["a"]}'),
        sglang_call(1, "", name="delegate", id="call_3a"),
        sglang_call(1, "{"),
        sglang_call(1, '"goals": ["b"]}'),
        sglang({"reasoning_content": None}, finish="tool_calls", stop=1),
        "data: [DONE]",
        end="\n",
    )


async def test_sglang_parallel_calls_make_a_tree():
    listing = whole({"object": "list", "data": [{"id": "m", "object": "model", "owned_by": "sglang", "root": "m"}]})
    async with connected(sglang_turn, listing=listing) as (server, engine):
        await engine.check()
        tree = await ramet.run("root", engine=engine, dialect="native", budget=Budget(tokens=4000))
    assert engine.provider.name == "sglang"
    assert [node.answer for node in tree.nodes] == ["both", "a", "b"]
    assert tree.root.pieces[1].text.startswith("<think>\nTwo parts.\n</think>\nI ask two clones.")
    results = server.bodies[-1]["messages"][3:]
    assert [(one["tool_call_id"], one["content"]) for one in results] == [
        ("call_36", "clone 1.1: a"),
        ("call_3a", "clone 1.2: b"),
    ]


async def test_sglang_returns_the_ids_of_a_prompt_of_ids():
    """`return_token_ids` of its /completions: ids and those of the prompt in the choice, offsets that say nothing."""
    renderer = words(9)

    def chunk(ids: list[int], finish: str | None = None, **more: Any) -> dict[str, Any]:
        probs = {"text_offset": [-1], "token_logprobs": [-0.5] * len(ids), "tokens": ["x"], "top_logprobs": []}
        choice = {
            "index": 0,
            "text": renderer.decode(ids),
            "logprobs": probs,
            "finish_reason": finish,
            "token_ids": ids,
        }
        return {"object": "text_completion", "choices": [choice | {"matched_stop": None} | more], "usage": None}

    body = sent(chunk([2], prompt_token_ids=[1, 1]), chunk([3, 4]), chunk([], "length"), "data: [DONE]")
    async with connected(body, provider="sglang", tokenizer=renderer) as (server, engine):
        completion = await engine.sample(Prompt(messages=(), ids=[1, 1]), max_tokens=3)
    assert (completion.token_ids, completion.logprobs, completion.finish) == ((2, 3, 4), (-0.5,) * 3, "length")
    assert server.bodies[0]["return_token_ids"] is True


async def test_a_request_that_sglang_aborts_is_sent_again():
    aborted = sent(sglang({"content": None}, finish="abort"), "data: [DONE]")
    async with connected([aborted, sent(sglang({"content": "Answer: 4"}, finish="stop"))], tries=2) as (server, engine):
        assert (await engine.sample(ASKED, max_tokens=50)).text == "Answer: 4"
    assert len(server.requests) == 2


async def test_sglang_errors_have_no_inner_object():
    error = {"object": "error", "message": "context too long", "type": "BadRequestError", "param": None, "code": 400}
    async with connected(whole(error, status=400), provider="sglang") as (_, engine):
        with pytest.raises(EngineError, match="answered 400: context too long"):
            await engine.sample(ASKED, max_tokens=50)


# Ollama. `reasoning`, a whole call in one event, usage at the end: streams that clients of Ollama 0.40 recorded. An
# empty response with the year 1 as its date: published logs of a game.


def ollama(delta: Mapping[str, Any], *, finish: str | None = None, **more: Any) -> dict[str, Any]:
    choices = [{"index": 0, "delta": {"role": "assistant", **delta}, "finish_reason": finish}]
    return {"id": "chatcmpl-1", "model": "m", "system_fingerprint": "fp_ollama", "choices": choices, **more}


def ollama_turn(request: Received) -> Answer:
    call = {"id": "call_m", "index": 0, "type": "function", "function": {"name": "ready", "arguments": "{}"}}
    used = {"prompt_tokens": 12, "completion_tokens": 5, "total_tokens": 17}
    if not request.body.get("tools"):
        return sent(ollama({"content": "Answer: yes"}, finish="stop"), "data: [DONE]")
    return sent(
        ollama({"content": "", "reasoning": "Okay"}),
        ollama({"content": "", "tool_calls": [call]}),
        ollama({"content": ""}, finish="tool_calls"),
        ollama({}) | {"choices": [], "usage": used},
        "data: [DONE]",
    )


async def test_ollama_is_recognised_and_its_call_is_read():
    listing = whole({"object": "list", "data": [{"id": "m", "object": "model", "created": 1, "owned_by": "library"}]})
    async with connected(ollama_turn, listing=listing) as (_, engine):
        await engine.check()
        assert engine.provider.name == "ollama"
        assert await choose_dialect("auto", [engine]) == "native"


async def test_an_empty_response_of_ollama_is_asked_for_again():
    choice = {"index": 0, "message": {"role": "", "content": ""}, "finish_reason": None}
    used = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    empty = whole({"created": -62135596800, "model": "", "choices": [choice], "usage": used})
    async with connected([empty, sent(ollama({"content": "Answer: 4"}, finish="stop"))], tries=2) as (server, engine):
        assert (await engine.sample(ASKED, max_tokens=50)).text == "Answer: 4"
    assert len(server.requests) == 2


# OpenAI. `refusal` instead of content, padding in `obfuscation`, usage null in every event but the last: its API
# reference, "The chat completion chunk object".


async def test_openai_refusals_are_the_text_of_the_turn():
    def chunk(delta: Mapping[str, Any], finish: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": dict(delta), "logprobs": None, "finish_reason": finish}
        return {"id": "c", "service_tier": "default", "choices": [choice], "usage": None, "obfuscation": "aB3"}

    body = sent(
        chunk({"role": "assistant", "content": None, "refusal": None}),
        chunk({"refusal": "I cannot "}),
        chunk({"refusal": "do that."}),
        chunk({}, "stop"),
        {"id": "c", "choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 6}, "obfuscation": ""},
        "data: [DONE]",
    )
    async with connected(body, provider="openai", api_key=KEY) as (server, engine):
        completion = await engine.sample(ASKED, max_tokens=50)
    assert (completion.text, completion.num_tokens) == ("I cannot do that.", 6)
    assert server.bodies[0]["max_completion_tokens"] == 50


# Anthropic. Events with names, `ping`, and errors with a type: its documents "Streaming messages" and "Errors". What
# its OpenAI-compatible endpoint ignores: "OpenAI SDK compatibility".


async def test_anthropic_pings_are_skipped_and_overload_is_retried():
    overloaded = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}, "request_id": "r"}
    good = sent(
        'event: ping\ndata: {"type": "ping"}',
        ollama({"content": "Answer: 4"}),
        ollama({}, finish="stop"),
        "data: [DONE]",
    )
    in_the_stream = sent(f"event: error\ndata: {json.dumps(overloaded)}")
    answers = [whole(overloaded, status=529, headers={"Retry-After": "0"}), in_the_stream, good]
    async with connected(answers, provider="anthropic", api_key=KEY, tries=3) as (server, engine):
        completion = await engine.sample(ASKED, max_tokens=50, seed=3)
    assert (completion.text, len(server.requests)) == ("Answer: 4", 3)
    assert "seed" not in server.bodies[0]
