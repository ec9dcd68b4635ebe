"""Native tool calls over HTTP: streams assembled, requests written, parameters that servers refuse, presets."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ramet
from ramet import Budget, ConfigError, EngineError, HttpEngine, Message, Meter, Prompt, TextRenderer
from ramet.engine.calls import MAX_CALLS, wire_message
from ramet.engine.open import clone_config, open_engine
from ramet.engine.probing import choose_dialect
from ramet.engine.providers import PROVIDERS, find_provider, key_of
from ramet.engine.settings import EngineConfig
from ramet.engine.wire import Event, StreamedCompletion
from ramet.types import Completion, ToolCall
from tests.engine.faulty import Answer, FaultyServer, Received, says, serve, stream, usage, whole

TOOL = {"type": "function", "function": {"name": "delegate", "parameters": {"type": "object", "properties": {}}}}


def delta(**fields: Any) -> dict[str, Any]:
    finish = fields.pop("finish", None)
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}


def part(index: int | None, arguments: Any = None, *, name: str | None = None, id: str | None = None) -> dict[str, Any]:
    return {"index": index, "id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def assembled(*events: Mapping[str, Any], max_tokens: int = 1000) -> Completion:
    collected = StreamedCompletion(Meter(), max_tokens=max_tokens)
    for event in events:
        collected.add(Event.model_validate_json(json.dumps(event)))
    return collected.completion(renderer=TextRenderer())


def called(completion: Completion) -> list[tuple[str, str]]:
    return [(call.name, call.arguments) for call in completion.calls]


# Streams.


@given(
    arguments=st.lists(st.text(max_size=30), min_size=1, max_size=4),
    cuts=st.lists(st.integers(1, 9), min_size=1, max_size=5),
)
def test_calls_do_not_depend_on_how_the_server_splits_them(arguments: list[str], cuts: list[int]):
    """As OpenAI and vLLM stream them: name and id first, then pieces of the arguments by index."""
    events: list[Mapping[str, Any]] = []
    for index, text in enumerate(arguments):
        events.append(delta(tool_calls=[part(index, "", name=f"f{index}", id=f"id{index}")]))
        size = cuts[index % len(cuts)]
        events += [delta(tool_calls=[part(index, text[at : at + size])]) for at in range(0, len(text), size)]
    completion = assembled(*events, delta(finish="tool_calls"))
    whole_calls = [part(i, text, name=f"f{i}", id=f"id{i}") for i, text in enumerate(arguments)]
    at_once = assembled({"choices": [{"message": {"tool_calls": whole_calls}, "finish_reason": "tool_calls"}]})
    assert completion.calls == at_once.calls
    assert called(completion) == [(f"f{i}", ramet.types.clean(text)) for i, text in enumerate(arguments)]
    assert completion.finish == "stop"


@pytest.mark.parametrize(
    "parts",
    [
        [part(0, "{}", name="f", id="a"), part(0, "{}", name="g", id="b")],  # all with the index 0
        [part(None, "{}", name="f", id="a"), part(None, "{}", name="g", id="b")],  # without an index
        [part(0, "{}", name="f"), part(0, "{}", name="g")],  # without ids
        [part(None, {}, name="f"), part(None, {}, name="g")],  # without either
        [part(0, "{", name="f"), part(0, "}", name="f"), part(0, "{", name="g"), part(0, "}", name="g")],
        [part(0, {}, name="f"), part(1, {}, name="g")],  # arguments as objects, no ids
        [part(0, "{}", name="f", id="a"), part(1, "{}", name="g", id="a")],  # one id for both
    ],
)
def test_two_calls_are_told_apart_and_have_ids_of_their_own(parts: list[dict[str, Any]]):
    completion = assembled(*(delta(tool_calls=[one]) for one in parts))
    assert called(completion) == [("f", "{}"), ("g", "{}")]
    assert len({call.id for call in completion.calls}) == 2


def test_no_more_calls_are_kept_than_a_turn_may_have():
    parts = [part(index, "", name="f", id=str(index)) for index in range(2 * MAX_CALLS)]
    assert len(assembled(*(delta(tool_calls=[one]) for one in parts)).calls) == MAX_CALLS


def test_null_fields_and_content_in_parts_are_read():
    events = [
        {"choices": None, "usage": None, "error": None},
        {"choices": [{"delta": None, "finish_reason": None}]},
        delta(content=None, reasoning_content=None, tool_calls=None, role="assistant"),
        delta(content=[{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]),
        delta(content="", finish=""),
    ]
    assert assembled(*events).text == "one two"


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_reasoning_is_kept_and_counted(name: str):
    completion = assembled(delta(**{name: "Hm. "}), delta(**{name: "Yes."}), delta(content="4", finish="stop"))
    assert (completion.thoughts, completion.text) == ("Hm. Yes.", "4")
    assert completion.num_tokens >= 3


ENDLESS = [delta(tool_calls=[part(0, "x" * 9)]), delta(reasoning="word "), delta(content=" ")]


@pytest.mark.parametrize("endless", ENDLESS)
def test_whatever_a_server_streams_without_end_is_cut_at_the_limit(endless: Mapping[str, Any]):
    collected = StreamedCompletion(Meter(), max_tokens=20)
    number = 0
    while not collected.is_over:
        collected.add(Event.model_validate(endless))
        number += 1
    completion = collected.completion(renderer=TextRenderer())
    assert number == 21
    assert (completion.num_tokens, completion.finish) == (20, "length")
    assert sum(len(call.arguments) for call in completion.calls) <= 20 * 9


def test_ids_of_a_prompt_of_messages_are_kept_with_those_of_the_turn():
    """As vLLM streams with return_token_ids: prompt_token_ids in the first event, token_ids in each choice."""
    probs = {"content": [{"token": "a", "logprob": -0.5, "top_logprobs": []}]}
    first = {"choices": [{"delta": {"role": "assistant", "content": ""}}], "prompt_token_ids": [1, 2, 3]}
    more = {"choices": [{"delta": {"content": "a"}, "token_ids": [7], "logprobs": probs, "finish_reason": "stop"}]}
    completion = assembled(first, more)
    assert (completion.prompt_ids, completion.token_ids, completion.logprobs) == ((1, 2, 3), (7,), (-0.5,))


# Requests.


def test_calls_and_results_are_written_as_servers_take_them():
    call = ToolCall(id="c1", name="f", arguments='{"a": 1}')
    assert wire_message(Message("assistant", "", (call,))) == {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}],
    }
    assert wire_message(Message("tool", "2", call_id="c1")) == {"role": "tool", "content": "2", "tool_call_id": "c1"}


@pytest.mark.parametrize("broken", ['{"a": 1', "", "[1]", "null"])
def test_arguments_that_servers_could_not_parse_are_not_sent_back(broken: str):
    sent = wire_message(Message("assistant", "x", (ToolCall(id="c", name="f", arguments=broken),)))
    assert sent["tool_calls"][0]["function"]["arguments"] == "{}"


@asynccontextmanager
async def connected(script: Any, **settings: Any) -> AsyncIterator[tuple[FaultyServer, HttpEngine]]:
    listing = settings.pop("listing", None)
    models: Sequence[str] = settings.pop("models", ("m",))
    async with (
        serve(script, listing=listing, models=models) as server,
        HttpEngine(server.url, **{"model": "m", "tries": 1} | settings) as engine,
    ):
        yield server, engine


def prompt(**fields: Any) -> Prompt:
    return Prompt(messages=[Message("system", "s"), Message("user", "q")], ids=None, **fields)


def calls(*goals: str) -> Answer:
    made = part(0, json.dumps({"goals": goals}), name="delegate", id="call_x")
    return stream(delta(tool_calls=[made]), delta(finish="tool_calls"), usage(9))


@pytest.mark.anyio
async def test_a_tree_runs_on_native_calls_over_http():
    def script(request: Received) -> Answer:
        messages = request.body["messages"]
        if request.goal != "root":
            return says(f"Answer: {request.goal.upper()}")
        return says("Answer: " + messages[-1]["content"]) if messages[-1]["role"] == "tool" else calls("a", "b")

    async with connected(script) as (server, engine):
        tree = await ramet.run("root", engine=engine, dialect="native")
    assert tree.answer == "clone 1.1: A\nclone 1.2: B"
    assert [body["tools"][0]["function"]["name"] for body in server.bodies] == ["delegate"] * 4
    assert server.bodies[-1]["messages"][2]["tool_calls"][0]["id"] == "call_x"
    assert server.bodies[-1]["messages"][3]["tool_call_id"] == "call_x"


@pytest.mark.anyio
async def test_the_call_for_the_answer_forbids_tools():
    async with connected([calls("a"), says("Answer: x"), says("Answer: 1")]) as (server, engine):
        tree = await ramet.run("root", engine=engine, dialect="native", budget=Budget(turns=2))
    assert tree.answer == "1"
    assert [body["tool_choice"] for body in server.bodies] == ["auto", "auto", "none"]


# Parameters that a server refuses.

UNSUPPORTED = {
    "max_tokens": {
        "message": "Unsupported parameter: 'max_tokens' is not supported with this model. "
        "Use 'max_completion_tokens' instead.",
        "param": "max_tokens",
        "code": "unsupported_parameter",
    },
    "temperature": {
        "message": "Unsupported value: 'temperature' does not support 0.7 with this model. Only the default (1) value "
        "is supported.",
        "param": "temperature",
    },
    "seed": {"message": "Unrecognized request argument supplied: seed"},
    "stream_options": {"message": "unknown field stream_options"},
}


def picky(request: Received) -> Answer:
    """As hosted APIs answer (the texts of OpenAI's errors as users report them): one refusal at a time."""
    for name, error in UNSUPPORTED.items():
        if name in request.body:
            return whole({"error": error}, status=400)
    return says("fine")


@pytest.mark.anyio
async def test_parameters_that_a_server_refuses_are_renamed_or_left_out_after_one_try(
    caplog: pytest.LogCaptureFixture,
):
    async with connected(picky) as (server, engine):
        for _ in range(2):
            assert (await engine.sample(prompt(), max_tokens=9, temperature=0.7, seed=1)).text == "fine"
    assert len(server.requests) == 4 + 1 + 1  # learnt with the first call
    assert server.bodies[-1]["max_completion_tokens"] == 9
    assert not set(UNSUPPORTED) & set(server.bodies[-1])
    assert engine.notes == [
        f"{server.url} does not accept max_tokens: max_completion_tokens is sent instead",
        f"{server.url} does not accept temperature: it is left out",
        f"{server.url} does not accept seed: it is left out",
        f"{server.url} does not accept stream_options: it is left out",
    ]
    assert [record.getMessage() for record in caplog.records if record.name.startswith("ramet.")] == engine.notes


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, {"message": "max_tokens is too large: 5000. This model supports at most 4096."}),
        (400, {"message": "Unsupported parameter: 'model'", "param": "model"}),
        (400, {"message": "the temperature of the room"}),
        (403, UNSUPPORTED["seed"]),
    ],
)
async def test_other_errors_change_no_parameter(status: int, error: Mapping[str, str]):
    async with connected(whole({"error": error}, status=status)) as (server, engine):
        with pytest.raises(EngineError):
            await engine.sample(prompt(), max_tokens=9, seed=1)
    assert len(server.requests) == 1
    assert engine.notes == []


@pytest.mark.anyio
async def test_a_server_that_refuses_both_names_of_the_limit_is_an_error():
    both = {"error": {"message": "unknown parameters: max_tokens, max_completion_tokens"}}
    async with connected(whole(both, status=422)) as (server, engine):
        with pytest.raises(EngineError, match="unknown parameters"):
            await engine.sample(prompt(), max_tokens=9)
    assert len(server.requests) == 2


# Models.


@pytest.mark.anyio
@pytest.mark.parametrize("status", [404, 405, 501])
async def test_a_server_without_a_list_of_models_is_a_note(status: int):
    async with connected(says("x"), listing=whole("no", status=status)) as (_, engine):
        await engine.check()
        assert "does not list its models" in engine.notes[0]
        engine.model = ""
        with pytest.raises(EngineError, match="which model"):
            await engine.check()


@pytest.mark.anyio
async def test_a_model_that_is_not_listed_is_a_note_and_is_asked_for():
    async with connected(says("x"), models=["a", "b"], model="gpt-5:free") as (server, engine):
        await engine.check()
        assert "'gpt-5:free' is requested, although it is not among the models" in engine.notes[0]
        await engine.sample(prompt(), max_tokens=9)
    assert server.bodies[0]["model"] == "gpt-5:free"


@pytest.mark.anyio
async def test_the_only_model_of_a_server_needs_no_name():
    async with connected(says("x"), models=["only"], model="") as (server, engine):
        await engine.sample(prompt(), max_tokens=9)
    assert server.bodies[0]["model"] == "only"
    async with connected(says("x"), models=["a", "b"], model="") as (_, engine):
        with pytest.raises(EngineError, match=r"which model\? .* serves a, b"):
            await engine.sample(prompt(), max_tokens=9)


# Presets.


def test_a_preset_is_found_by_its_name_or_its_address():
    assert find_provider("ollama", "http://x").base_url == "http://127.0.0.1:11434/v1"
    assert find_provider("", "https://api.openai.com/v1").name == "openai"
    assert find_provider("", "https://openrouter.ai/api/v1").name == "openrouter"
    assert find_provider("", "https://api.openai.com.evil.example/v1").name == ""
    with pytest.raises(ConfigError, match="did you mean openai"):
        find_provider("opnai", "")


def test_a_key_goes_to_the_server_it_was_made_for():
    environment = {"OPENAI_API_KEY": "sk-openai", "ANTHROPIC_API_KEY": "sk-ant"}.get
    assert key_of(PROVIDERS["anthropic"], None, environment=environment) == "sk-ant"
    assert key_of(PROVIDERS["openrouter"], None, environment=environment) is None
    assert key_of(PROVIDERS["openai"], None, environment=environment) == "sk-openai"
    assert key_of(PROVIDERS["openai"], "given", environment=environment) == "given"


@pytest.mark.anyio
async def test_a_preset_gives_address_limit_and_headers():
    engine = open_engine(EngineConfig(provider="openai", model="m"), api_key="k")
    assert isinstance(engine, HttpEngine)
    assert engine.base_url == "https://api.openai.com/v1"
    async with connected(says("x"), provider="anthropic", api_key="sk-ant-0123456789") as (server, engine):
        await engine.sample(prompt(), max_tokens=9, seed=4)
    assert server.requests[0].headers["x-api-key"] == "sk-ant-0123456789"
    assert server.requests[0].headers["authorization"] == "Bearer sk-ant-0123456789"
    assert "seed" not in server.bodies[0]
    async with connected(says("x"), provider="openai") as (server, engine):
        await engine.sample(prompt(), max_tokens=9)
    assert server.bodies[0]["max_completion_tokens"] == 9


@pytest.mark.anyio
async def test_a_server_is_recognised_by_its_list_of_models_and_vllm_is_asked_for_ids():
    listing = whole({"data": [{"id": "m", "owned_by": "vllm"}]})
    async with connected(says("x"), listing=listing) as (server, engine):
        await engine.check()
        await engine.sample(prompt(), max_tokens=9)
    assert engine.provider.name == "vllm"
    assert server.bodies[0]["return_token_ids"] is True


# The dialect `auto`.


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("answer", "dialect"),
    [
        (calls("x"), "native"),
        (says("I am ready."), "tools"),
        (whole({"error": {"message": "m does not support tools"}}, status=400), "tools"),  # Ollama
        (whole({"message": '"auto" tool choice requires --enable-auto-tool-choice'}, status=400), "tools"),  # vLLM
        (stream(delta(reasoning="Hm "), delta(finish="length")), "native"),
    ],
)
async def test_native_is_chosen_where_the_model_calls_tools(answer: Answer, dialect: str):
    async with connected(answer) as (server, engine):
        assert await choose_dialect("auto", [engine]) == dialect
        assert await choose_dialect("python", [engine]) == "python"
        assert await choose_dialect("auto", [ramet.ScriptedEngine(lambda _: "")]) == "tools"
    assert len(server.requests) == 1


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (calls("x"), ""),
        (says("I am ready."), "it answered in text"),
        (whole({"message": "needs --enable-auto-tool-choice"}, status=400), "needs --enable-auto-tool-choice"),
    ],
)
async def test_a_model_without_native_calls_is_one_line_with_the_reason(
    answer: Answer, reason: str, caplog: pytest.LogCaptureFixture
):
    async with connected(answer) as (_, engine):
        await choose_dialect("tools", [engine], explain=True)
        await choose_dialect("auto", [engine])
        await choose_dialect("auto", [engine], explain=True)
        lines = [record.getMessage() for record in caplog.records if record.name == "ramet.engine.probing"]
    assert len(lines) == bool(reason)
    for line in lines:
        assert line.startswith("m makes no native tool calls: ")
        assert line.endswith("; the dialect is tools")
        assert reason in line


@pytest.mark.anyio
async def test_a_provider_that_is_known_to_call_tools_is_not_asked():
    async with connected(says("x"), provider="openrouter") as (server, engine):
        assert await choose_dialect("auto", [engine]) == "native"
    assert server.requests == []


# Clones with a model of their own.


@pytest.mark.anyio
async def test_clones_can_have_another_model_with_its_own_prices():
    root = [calls("a"), says("Answer: done", tokens=2)]
    async with (
        connected(root) as (large, engine),
        connected(says("Answer: x", tokens=2), model="small") as (small, clones),
    ):
        prices = {"prices": ramet.Prices(generated=10.0), "clone_prices": ramet.Prices(generated=1.0)}
        budget = Budget(money=1.0, **prices)
        tree = await ramet.run("root", engine=engine, clone_engine=clones, dialect="native", budget=budget)
    assert tree.answer == "done"
    assert (len(large.requests), [body["model"] for body in small.bodies]) == (2, ["small"])
    assert tree.nodes[0].usage.cost == 10 * 11 * 10**6
    assert tree.nodes[1].usage.cost == 1 * 2 * 10**6


def test_the_server_of_clones_is_the_root_s_unless_they_have_their_own():
    engine = EngineConfig(base_url="http://a/v1", model="big", tokenizer="t")
    assert clone_config(engine, EngineConfig()) is None
    assert clone_config(engine, EngineConfig(model="small")) == EngineConfig(
        base_url="http://a/v1", model="small", tokenizer="t"
    )
    own = EngineConfig(base_url="http://b/v1", model="small")
    assert clone_config(engine, own) == own
    with pytest.raises(ConfigError, match=r"clone needs clone\.model"):
        clone_config(engine, EngineConfig(provider="vllm"))
