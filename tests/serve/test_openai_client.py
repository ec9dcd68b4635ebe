"""The `openai` package against a running server, as its users call it."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import anyio
import openai
import pytest
from pydantic import BaseModel

from ramet.serve.server import Served
from ramet.store import read_trees
from ramet.types import Tree
from tests.serve.scripted import served

WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
JOINED = "the left and the right"


class Place(BaseModel):
    city: str
    degrees: int


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[Served]:
    with served(tmp_path_factory.mktemp("runs")) as found:
        yield found


@pytest.fixture(scope="module")
def client(server: Served) -> Generator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url, api_key="none", max_retries=0) as found:
        yield found


def ask(client: openai.OpenAI, *messages: Any, **more: Any) -> Any:
    said = [{"role": "user", "content": message} if isinstance(message, str) else message for message in messages]
    return client.chat.completions.create(model="scripted", messages=said, **more)


def tree_of(response: Any, server: Served) -> Tree:
    tree_id = response.usage.model_extra["ramet"]["tree"]
    return next(tree for tree in read_trees(server.run) if tree.id == tree_id)


def test_an_answer_is_that_of_a_tree_with_the_usage_of_all_its_nodes(client: openai.OpenAI, server: Served):
    raw = client.chat.completions.with_raw_response.create(
        model="scripted", messages=[{"role": "user", "content": "split this"}]
    )
    response = raw.parse()
    tree = next(tree for tree in read_trees(server.run) if tree.id == raw.headers["x-ramet-tree"])
    assert response.choices[0].message.content == JOINED
    assert response.choices[0].finish_reason == "stop"
    used, details = response.usage, response.usage.model_extra["ramet"]  # type: ignore[union-attr]
    assert used is not None
    assert (used.completion_tokens, used.prompt_tokens) == (tree.usage.tokens, tree.usage.prompt_tokens)
    assert used.completion_tokens_details.reasoning_tokens == tree.usage.tokens - tree.root.turns[-1].tokens
    assert (details["nodes"], details["depth"], details["calls"]) == (3, 1, 4)
    assert details["critical_path_tokens"] == tree.usage.critical_path_tokens < tree.usage.tokens
    assert tree.answer == JOINED


@pytest.mark.parametrize(
    ("model", "more", "limits"),
    [
        ("scripted", {}, (2000, 8, 2)),
        ("ramet", {}, (2000, 8, 2)),
        ("scripted:tokens=500,depth=1", {}, (500, 8, 1)),
        ("scripted:tokens=90000,nodes=99", {}, (2000, 8, 2)),
        ("scripted:tokens=900", {"max_tokens": 700}, (700, 8, 2)),
        ("scripted", {"max_completion_tokens": 300, "extra_body": {"ramet": {"budget": {"nodes": 3}}}}, (300, 3, 2)),
    ],
)
def test_the_lowest_limit_holds(client: openai.OpenAI, model: str, more: Any, limits: tuple[int, int, int]):
    response = client.chat.completions.create(model=model, messages=[{"role": "user", "content": "hello"}], **more)
    budget = response.usage.model_extra["ramet"]["budget"]  # type: ignore[union-attr]
    assert (budget["tokens"], budget["nodes"], budget["depth"]) == limits


def test_a_tree_that_is_ended_by_its_budget_never_exceeds_it(client: openai.OpenAI):
    for tokens in (1, 8, 40, 200):
        response = ask(client, "loop", max_tokens=tokens)
        used, details = response.usage, response.usage.model_extra["ramet"]
        assert used.completion_tokens + details["lost_tokens"] <= tokens
        assert response.choices[0].finish_reason == "length"


def test_a_stream_has_progress_as_reasoning_then_the_answer_then_usage(client: openai.OpenAI):
    chunks = list(ask(client, "split this", stream=True, stream_options={"include_usage": True}))
    deltas = [chunk.choices[0].delta for chunk in chunks[:-1]]
    progress = "".join((delta.model_extra or {}).get("reasoning_content", "") for delta in deltas)
    assert progress.splitlines()[:2] == ["clone 1: the left", "clone 2: the right"]
    assert sorted(line.partition(" (")[0] for line in progress.splitlines()[2:]) == [
        "clone 1 answered",
        "clone 2 answered",
    ]
    assert "".join(delta.content or "" for delta in deltas) == JOINED
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage.model_extra["ramet"]["nodes"] == 3


def test_a_long_answer_comes_in_many_deltas_that_are_its_text(client: openai.OpenAI):
    words = " ".join(f"word{i}" for i in range(100)) + "\nünï" + "x" * 200
    chunks = list(ask(client, words, stream=True))
    parts = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices[0].delta.content]
    assert "".join(parts) == f"you said {words}"
    assert len(parts) > 10


@pytest.mark.anyio
async def test_the_async_client_gets_answers_and_streams_at_the_same_time(server: Served):
    answers: dict[int, str] = {}

    async with openai.AsyncOpenAI(base_url=server.url, api_key="none") as client:

        async def one(number: int) -> None:
            message: Any = [{"role": "user", "content": f"number {number}"}]
            if number % 2:
                stream = await client.chat.completions.create(model="ramet", messages=message, stream=True)
                answers[number] = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
            else:
                response = await client.chat.completions.create(model="ramet", messages=message)
                answers[number] = response.choices[0].message.content or ""

        async with anyio.create_task_group() as group:
            for number in range(12):
                group.start_soon(one, number)
    assert answers == {number: f"you said number {number}" for number in range(12)}


def test_the_root_reads_system_prompt_and_history_and_clones_do_not(client: openai.OpenAI, server: Served):
    response = ask(
        client,
        {"role": "system", "content": "Answer like a sailor."},
        "Who was first?",
        {"role": "assistant", "content": "Ada."},
        {"role": "user", "content": [{"type": "text", "text": "and "}, {"type": "text", "text": "why?"}]},
    )
    assert response.choices[0].message.content == "you said and why?"
    read = tree_of(response, server).root.pieces[0].text
    assert "Answer like a sailor." in read
    assert "The conversation so far:\n\nuser: Who was first?\n\nassistant: Ada.\n\nThe user's new message:" in read
    split = ask(client, {"role": "system", "content": "Answer like a sailor."}, "split this")
    assert ["sailor" in node.pieces[0].text for node in tree_of(split, server).nodes] == [True, False, False]


def test_texts_by_key_are_listed_to_the_root_and_stay_out_of_its_window(client: openai.OpenAI, server: Served):
    response = ask(client, "hello", extra_body={"ramet": {"context": {"report": "a long text"}}})
    read = tree_of(response, server).root.pieces[0].text
    assert "- report" in read
    assert "a long text" not in read


def test_a_tool_of_the_client_is_called_and_the_next_request_goes_on_with_its_result(client: openai.OpenAI):
    messages: list[Any] = [{"role": "user", "content": "weather please"}]
    first = client.chat.completions.create(model="scripted", messages=messages, tools=[WEATHER])
    asked = first.choices[0]
    assert (asked.finish_reason, asked.message.content) == ("tool_calls", "I will look.")
    assert asked.message.tool_calls is not None
    found: Any = asked.message.tool_calls[0]
    assert (found.function.name, found.function.arguments) == ("get_weather", '{"city": "Oslo"}')
    messages += [asked.message, {"role": "tool", "tool_call_id": found.id, "content": "12 degrees"}]
    second = client.chat.completions.create(model="scripted", messages=messages, tools=[WEATHER])
    # The clone's answer was in no message of the client: the server kept the root's work.
    assert second.choices[0].message.content == "the place and 12 degrees"


def test_a_conversation_with_tool_calls_of_another_server_goes_on_too(client: openai.OpenAI):
    function = {"name": "get_weather", "arguments": '{"city": "Oslo"}'}
    response = ask(
        client,
        "weather please",
        {"role": "assistant", "tool_calls": [{"id": "call_1", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": "call_1", "content": "12 degrees"},
    )
    assert response.choices[0].message.content == "12 degrees"


def test_a_streamed_tool_call_is_one_that_the_client_can_run(client: openai.OpenAI):
    with client.chat.completions.stream(
        model="scripted", messages=[{"role": "user", "content": "weather alone"}], tools=[WEATHER]
    ) as stream:
        message = stream.get_final_completion().choices[0].message
    assert [call.function.arguments for call in message.tool_calls or []] == ['{"city": "Oslo"}']


def test_a_required_tool_is_asked_for_until_the_budget_ends(client: openai.OpenAI):
    response = ask(client, "hello", tools=[WEATHER], tool_choice="required")
    assert response.choices[0].finish_reason == "length"
    assert response.usage.model_extra["ramet"]["calls"] > 1


def test_a_schema_is_checked_and_an_answer_that_never_matches_is_a_refusal(client: openai.OpenAI):
    right = 'json ```json\n{"city": "Oslo", "degrees": 12}\n```'
    parsed = client.chat.completions.parse(
        model="scripted", messages=[{"role": "user", "content": right}], response_format=Place
    )
    assert parsed.choices[0].message.parsed == Place(city="Oslo", degrees=12)
    wrong = ask(
        client,
        'json {"city": "Oslo"}',
        response_format={"type": "json_schema", "json_schema": {"name": "p", "schema": Place.model_json_schema()}},
    )
    assert wrong.choices[0].message.content is None
    assert "$.degrees is missing" in wrong.choices[0].message.refusal


def test_an_answer_ends_before_a_stop_sequence(client: openai.OpenAI):
    assert ask(client, "one STOP two", stop=["STOP", "three"]).choices[0].message.content == "you said one "


def test_responses_answer_stream_and_call_tools(client: openai.OpenAI):
    whole = client.responses.create(model="scripted", input="split this", instructions="Be brief.")
    assert (whole.output_text, whole.status) == (JOINED, "completed")
    assert whole.usage is not None
    assert whole.usage.model_extra is not None
    assert whole.usage.model_extra["ramet"]["nodes"] == 3
    with client.responses.stream(model="scripted:tokens=1000", input="split this") as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert final.output_text == JOINED
    assert [item.type for item in final.output] == ["reasoning", "message"]
    outputs = [[(item.type, getattr(item, "summary", None)) for item in found.output] for found in (whole, final)]
    assert outputs[0] == outputs[1]
    assert [event.sequence_number for event in events] == sorted(event.sequence_number for event in events)
    tool: Any = {"type": "function", **WEATHER["function"]}
    history: list[Any] = [{"role": "user", "content": "weather please"}]
    asked = client.responses.create(model="scripted", input=history, tools=[tool])
    found: Any = next(item for item in asked.output if item.type == "function_call")
    history += [*asked.output, {"type": "function_call_output", "call_id": found.call_id, "output": "12 degrees"}]
    assert client.responses.create(model="scripted", input=history, tools=[tool]).output_text == (
        "the place and 12 degrees"
    )
    parsed = client.responses.parse(model="ramet", input='json {"city": "Rome", "degrees": 30}', text_format=Place)
    assert parsed.output_parsed == Place(city="Rome", degrees=30)


def test_a_response_that_its_budget_ended_is_incomplete(client: openai.OpenAI):
    response = client.responses.create(model="scripted", input="loop", max_output_tokens=60)
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")  # type: ignore[union-attr]


def test_a_failing_engine_is_an_error_in_the_format_of_the_client(client: openai.OpenAI):
    with pytest.raises(openai.InternalServerError, match="the model is gone") as failed:
        ask(client, "fail")
    assert failed.value.status_code == 502
    assert failed.value.response.headers["x-should-retry"] == "false"
    assert failed.value.body["code"] == "engine_error"  # type: ignore[index]


def test_an_engine_that_fails_in_the_middle_of_a_stream_is_an_error_there(client: openai.OpenAI):
    stream = ask(client, "late", stream=True)
    opening, progress = next(stream), next(stream)
    assert opening.choices[0].delta.role == "assistant"
    assert progress.choices[0].delta.model_extra["reasoning_content"] == "clone 1: the left\n"
    with pytest.raises(openai.APIError, match="the model is gone"):
        list(stream)
    with pytest.raises(openai.APIError, match="the model is gone"):
        list(client.responses.create(model="ramet", input="late", stream=True))


def test_models_are_listed_under_their_names(client: openai.OpenAI):
    assert [model.id for model in client.models.list()] == ["scripted", "ramet"]
    assert client.models.retrieve("scripted").owned_by == "ramet"
    with pytest.raises(openai.NotFoundError, match="accepted: scripted, ramet"):
        client.chat.completions.create(model="gpt-4", messages=[{"role": "user", "content": "hi"}])


def test_trees_are_found_by_their_ids(client: openai.OpenAI, server: Served):
    tree_id = ask(client, "split this").usage.model_extra["ramet"]["tree"]
    tree: Any = client.get(f"/trees/{tree_id}", cast_to=object)
    assert (tree["id"], tree["answer"], len(tree["nodes"])) == (tree_id, JOINED, 3)
    with pytest.raises(openai.NotFoundError):
        client.get("/trees/000000000000", cast_to=object)


def test_every_tree_is_stored_once(client: openai.OpenAI, server: Served):
    asked = [ask(client, "split this").usage.model_extra["ramet"]["tree"] for _ in range(6)]
    stored = [tree.id for tree in read_trees(Path(server.run))]
    assert [stored.count(tree_id) for tree_id in asked] == [1] * 6
    assert len(stored) == len(set(stored))
