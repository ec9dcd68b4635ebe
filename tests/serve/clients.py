"""LangChain, LiteLLM and inspect_ai against a running server, as their users call them.

They are large and need different versions of the `openai` package, so they have environments of their own. `make
test-clients` makes them and runs this file there, against a server in ramet's own environment (`run_clients.py`).
"""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

URL = os.environ.get("RAMET_SERVE_URL", "http://127.0.0.1:8100/v1")
JOINED = "the left and the right"
SCHEMA = {
    "title": "place",
    "description": "A place.",
    "type": "object",
    "properties": {"city": {"type": "string"}, "degrees": {"type": "integer"}},
    "required": ["city", "degrees"],
    "additionalProperties": False,
}


def get_weather(city: str) -> str:
    """The weather of a city.

    Args:
        city: Its name.
    """
    return f"12 degrees in {city}"


class TestLangChain:
    @pytest.fixture
    def model(self) -> Any:
        from langchain_openai import ChatOpenAI

        return ChatOpenAI(base_url=URL, api_key="none", model="ramet:tokens=1500", max_retries=0)

    def test_it_answers_with_the_usage_of_the_tree(self, model: Any):
        message = model.invoke([("system", "Be brief."), ("human", "split this")])
        assert message.content == JOINED
        assert message.usage_metadata["output_tokens"] > 30
        assert message.response_metadata["token_usage"]["ramet"]["nodes"] == 3

    def test_it_streams_the_answer(self, model: Any):
        assert "".join(chunk.content for chunk in model.stream("split this")) == JOINED

    def test_it_calls_tools_and_goes_on_with_their_results(self, model: Any):
        from langchain_core.messages import HumanMessage
        from langchain_core.tools import tool

        weather = tool(get_weather)
        bound = model.bind_tools([weather])
        messages: list[Any] = [HumanMessage("weather please")]
        asked = bound.invoke(messages)
        assert [(call["name"], call["args"]) for call in asked.tool_calls] == [("get_weather", {"city": "Oslo"})]
        messages += [asked, *(weather.invoke(call) for call in asked.tool_calls)]
        assert bound.invoke(messages).content == "the place and 12 degrees"

    def test_structured_output_is_checked(self, model: Any):
        found = model.with_structured_output(SCHEMA).invoke('json {"city": "Oslo", "degrees": 12}')
        assert found == {"city": "Oslo", "degrees": 12}

    def test_it_speaks_the_responses_api(self):
        from langchain_openai import ChatOpenAI

        model = ChatOpenAI(base_url=URL, api_key="none", model="ramet", use_responses_api=True)
        assert model.invoke("split this").text == JOINED

    @pytest.mark.anyio
    async def test_many_at_once(self, model: Any):
        answers = await model.abatch([f"number {number}" for number in range(20)])
        assert [answer.content for answer in answers] == [f"you said number {number}" for number in range(20)]


class TestLiteLLM:
    def ask(self, text: str, **more: Any) -> Any:
        import litellm

        messages = [{"role": "user", "content": text}]
        return litellm.completion(
            model="openai/ramet", api_base=URL, api_key="none", messages=messages, num_retries=0, **more
        )

    def test_it_answers_with_the_usage_of_the_tree(self):
        response = self.ask("split this", extra_body={"ramet": {"budget": {"nodes": 4}}})
        assert response.choices[0].message.content == JOINED
        assert response.usage.completion_tokens > 30

    def test_it_streams_progress_as_reasoning_and_then_the_answer(self):
        chunks = list(self.ask("split this", stream=True))
        reasoning = "".join(getattr(chunk.choices[0].delta, "reasoning_content", None) or "" for chunk in chunks)
        assert reasoning.startswith("clone 1: the left")
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == JOINED

    def test_it_calls_tools(self):
        parameters = {"type": "object", "properties": {"city": {"type": "string"}}}
        function = {"name": "get_weather", "description": "The weather.", "parameters": parameters}
        response = self.ask("weather alone", tools=[{"type": "function", "function": function}])
        call = response.choices[0].message.tool_calls[0]
        assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Oslo"})

    def test_errors_are_its_own(self):
        import litellm

        with pytest.raises(litellm.BadRequestError, match="n is not supported"):
            self.ask("hello", n=2)
        with pytest.raises(litellm.exceptions.BadGatewayError, match="the model is gone"):
            self.ask("fail")


class TestInspect:
    @pytest.fixture(autouse=True)
    def elsewhere(self, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("RAMET_BASE_URL", URL)
        monkeypatch.setenv("RAMET_API_KEY", "none")

    def test_an_evaluation_scores_trees(self):
        from inspect_ai import Task, eval
        from inspect_ai.dataset import Sample
        from inspect_ai.scorer import includes
        from inspect_ai.solver import generate, system_message

        samples = [Sample(input="split this", target="the left"), Sample(input="hello", target="no such answer")]
        task = Task(dataset=samples, solver=[system_message("Be brief."), generate()], scorer=includes())
        (log,) = eval(task, model="openai-api/ramet/ramet", display="none", log_dir="logs")
        assert log.status == "success"
        assert log.results is not None
        assert log.results.scores[0].metrics["accuracy"].value == 0.5

    def test_its_tools_are_called(self):
        from inspect_ai import Task, eval
        from inspect_ai.dataset import Sample
        from inspect_ai.scorer import includes
        from inspect_ai.solver import generate, use_tools
        from inspect_ai.tool import tool

        @tool(name="get_weather")
        def weather() -> Any:
            async def execute(city: str) -> str:
                """The weather of a city.

                Args:
                    city: Its name.
                """
                return get_weather(city)

            return execute

        sample = Sample(input="weather please", target="the place and 12 degrees")
        task = Task(dataset=[sample], solver=[use_tools(weather()), generate()], scorer=includes())
        (log,) = eval(task, model="openai-api/ramet/ramet", display="none", log_dir="logs")
        assert log.results is not None
        assert log.results.scores[0].metrics["accuracy"].value == 1.0
