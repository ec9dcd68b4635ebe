"""Tools of a client in the dialect `native`, and what the other dialects answer, with the `openai` package."""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import openai
import pytest

from ramet.engine.scripted import Reply, ScriptedEngine
from ramet.serve.dialect import ALONE
from ramet.serve.server import Served
from ramet.types import Prompt
from tests.serve.scripted import served

WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
OSLO = ("get_weather", {"city": "Oslo"})
PLACE = ("delegate", {"goals": ["the place"]})


def script(prompt: Prompt) -> Reply:
    """Ask a clone, then the client's tool, then answer with both; `both` calls them in one turn first."""
    word = prompt.goal.partition(" ")[0]
    if prompt.depth:
        return Reply(text=f"Answer: {prompt.goal} is found")
    if word not in ("weather", "both"):
        return Reply(text=f"Answer: you said {prompt.goal}")
    if "12 degrees" in prompt.last:
        return Reply(text="Answer: " + ("the place and " if "the place is found" in prompt.last else "") + "12 degrees")
    if prompt.turn == 0:
        return Reply(calls=[PLACE, OSLO] if word == "both" else [PLACE])
    return Reply(text="I will look.", calls=[OSLO])


@pytest.fixture(scope="module")
def engine() -> ScriptedEngine:
    return ScriptedEngine(script, token_ids=False)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, engine: ScriptedEngine) -> Generator[Served]:
    with served(tmp_path_factory.mktemp("runs"), engine=engine, dialect="native") as found:
        yield found


@pytest.fixture(scope="module")
def client(server: Served) -> Generator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url, api_key="none", max_retries=0) as found:
        yield found


def tool_names(prompt: Prompt) -> list[str]:
    return [tool["function"]["name"] for tool in prompt.tools]


def test_a_tool_is_called_after_a_clone_and_the_next_request_goes_on_with_its_result(
    client: openai.OpenAI, engine: ScriptedEngine
):
    engine.prompts.clear()
    messages: list[Any] = [{"role": "user", "content": "weather please"}]
    first = client.chat.completions.create(model="ramet", messages=messages, tools=[WEATHER])
    asked = first.choices[0]
    assert (asked.finish_reason, asked.message.content) == ("tool_calls", "I will look.")
    found: Any = (asked.message.tool_calls or [])[0]
    assert (found.function.name, json.loads(found.function.arguments)) == ("get_weather", {"city": "Oslo"})
    root, clone, again = engine.prompts
    assert (root.depth, clone.depth, again.depth) == (0, 1, 0)
    assert tool_names(root) == tool_names(again) == ["delegate", "get_weather"]
    assert tool_names(clone) == ["delegate"]  # clones never see tools of the client
    assert root.tools[1] == WEATHER
    messages += [asked.message, {"role": "tool", "tool_call_id": found.id, "content": "12 degrees"}]
    second = client.chat.completions.create(model="ramet", messages=messages, tools=[WEATHER])
    assert second.choices[0].message.content == "the place and 12 degrees"


def test_a_turn_that_also_calls_other_tools_is_refused_call_by_call(client: openai.OpenAI, engine: ScriptedEngine):
    engine.prompts.clear()
    response = client.chat.completions.create(
        model="ramet", messages=[{"role": "user", "content": "both at once"}], tools=[WEATHER]
    )
    assert response.choices[0].finish_reason == "tool_calls"
    results = [message.content for message in engine.prompts[1].messages if message.role == "tool"]
    assert results == [ALONE, ALONE]
    assert all(prompt.depth == 0 for prompt in engine.prompts)  # the clone was not started


def test_streams_and_responses_return_the_same_call(client: openai.OpenAI):
    with client.chat.completions.stream(
        model="ramet", messages=[{"role": "user", "content": "weather please"}], tools=[WEATHER]
    ) as stream:
        message = stream.get_final_completion().choices[0].message
    assert [json.loads(call.function.arguments) for call in message.tool_calls or []] == [{"city": "Oslo"}]
    function: Any = {"type": "function", **WEATHER["function"]}
    response = client.responses.create(model="ramet", input="weather please", tools=[function])
    calls: list[Any] = [item for item in response.output if item.type == "function_call"]
    assert [(call.name, json.loads(call.arguments)) for call in calls] == [("get_weather", {"city": "Oslo"})]


def test_a_tree_without_tools_of_the_client_is_that_of_any_other_run(client: openai.OpenAI, engine: ScriptedEngine):
    engine.prompts.clear()
    response = client.chat.completions.create(model="ramet", messages=[{"role": "user", "content": "hello"}])
    assert response.choices[0].message.content == "you said hello"
    assert tool_names(engine.prompts[0]) == ["delegate"]


def test_a_root_that_may_not_delegate_has_the_tools_of_the_client(client: openai.OpenAI, engine: ScriptedEngine):
    engine.prompts.clear()
    client.chat.completions.create(
        model="ramet:depth=0", messages=[{"role": "user", "content": "hello"}], tools=[WEATHER]
    )
    assert tool_names(engine.prompts[0]) == ["get_weather"]
    assert "There are no tools" not in engine.prompts[0].messages[0].content


@pytest.mark.parametrize("dialect", ["python", "terse"])
def test_a_dialect_without_tools_is_a_400_that_names_those_with_them(tmp_path: Path, dialect: str):
    with (
        served(tmp_path, dialect=dialect, engine=ScriptedEngine(lambda _: "Answer: 1")) as found,
        openai.OpenAI(base_url=found.url, api_key="none", max_retries=0) as client,
        pytest.raises(openai.BadRequestError, match=f"dialect {dialect}.*tools or tools-returns or native") as refused,
    ):
        client.chat.completions.create(model="ramet", messages=[{"role": "user", "content": "hi"}], tools=[WEATHER])
    assert refused.value.param == "tools"
