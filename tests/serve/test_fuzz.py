"""Whatever a client sends, it gets an answer or an error in OpenAI's format, and the server goes on."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from anyio.from_thread import start_blocking_portal
from hypothesis import given, settings
from hypothesis import strategies as st

from ramet import Budget, HttpEngine
from ramet.serve.responses import ECHOED
from ramet.serve.server import Served
from ramet.serve.settings import ServeConfig
from tests.serve.scripted import opened, served, until_idle

WORDS = st.sampled_from(
    (
        *(
            "ramet",
            "user",
            "assistant",
            "tool",
            "system",
            "text",
            "function",
            "auto",
            "required",
            "json_schema",
            "f",
            "c1",
        ),
        *("ramet:tokens=9", "ramet:depth=0,turns=1", "message", "function_call", "function_call_output", "input_text"),
    )
)
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(min_value=-3, max_value=2**70)
    | st.floats()
    | WORDS
    | st.text(alphabet=st.characters(), max_size=20)
)
KEYS = st.sampled_from(
    (
        *(
            "role",
            "content",
            "type",
            "text",
            "name",
            "arguments",
            "function",
            "id",
            "tool_calls",
            "tool_call_id",
            "call_id",
        ),
        *("parameters", "schema", "json_schema", "properties", "items", "anyOf", "$ref", "budget", "context", "tokens"),
    )
)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=5), max_leaves=12
)
FIELDS = st.sampled_from(
    (
        *(
            "messages",
            "input",
            "instructions",
            "model",
            "stream",
            "stop",
            "n",
            "tools",
            "tool_choice",
            "response_format",
        ),
        *(
            "text",
            "max_tokens",
            "max_output_tokens",
            "temperature",
            "seed",
            "ramet",
            "stream_options",
            "logprobs",
            "top_p",
        ),
    )
)
MESSAGES = st.lists(
    st.fixed_dictionaries({"role": WORDS, "content": VALUES}, optional={"tool_calls": VALUES, "tool_call_id": WORDS}),
    max_size=4,
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[Served]:
    with served(tmp_path_factory.mktemp("runs"), max_body_bytes=100_000) as found:
        yield found


@pytest.fixture(scope="module")
def client(server: Served) -> Generator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=60.0, headers={"content-type": "application/json"}) as found:
        yield found


def check(response: httpx.Response) -> None:
    assert response.status_code == 200 or 400 <= response.status_code < 500, response.text
    if response.status_code == 200:
        assert response.headers["x-ramet-tree"]
    else:
        assert isinstance(response.json()["error"]["message"], str)


@settings(max_examples=60)
@given(path=st.sampled_from(["/chat/completions", "/responses"]), fields=st.dictionaries(FIELDS, VALUES), said=MESSAGES)
def test_no_fields_of_any_type_break_the_server(client: httpx.Client, path: str, fields: Any, said: Any):
    base = {"model": "ramet", "messages": said or [{"role": "user", "content": "hi"}], "input": said or "hi"}
    text = json.dumps(base | fields).encode(errors="surrogatepass")
    check(client.post(path, content=text))


@settings(max_examples=30)
@given(st.binary(max_size=300) | st.text(alphabet='{}[]":,\\u0d8 emsagon', max_size=300).map(str.encode))
def test_no_bytes_break_the_server(client: httpx.Client, text: bytes):
    response = client.post("/chat/completions", content=text)
    assert response.status_code == 400
    check(response)


def nested(depth: int) -> Any:
    found: Any = 1
    for _ in range(depth):
        found = [found]
    return found


EXTREMES = [10**400, -(10**400), 2**63, 1e308, float("inf"), float("nan"), 0, -1, True, "\ud800", "", nested(180)]
BOTH = ("stream", "temperature", "seed", "top_p", "top_k", "metadata", "instructions", "top_logprobs", "text")
NAMES = (
    *BOTH,
    "n",
    "max_tokens",
    "max_output_tokens",
    "frequency_penalty",
    "logprobs",
    "stop",
    "parallel_tool_calls",
)
LIMITS = ("tokens", "nodes", "depth", "seconds", "money", "window", "turns", "path_tokens", "root_tokens")
PATHS = ["/chat/completions", "/responses"]


def answered(client: httpx.Client, path: str, goal: str, body: Any) -> None:
    """A response without an error of the server, complete also if it is a stream."""
    base = {"model": "ramet", "messages": [{"role": "user", "content": goal}], "input": goal}
    response = client.post(path, content=json.dumps(base | body))
    check(response)
    if response.headers["content-type"].startswith("text/event-stream"):
        assert "[DONE]" in response.text or '"type":"response.' in response.text.splitlines()[-2]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", [*NAMES, *(f"ramet.budget.{name}" for name in LIMITS)])
def test_no_extreme_value_of_a_field_breaks_the_server(client: httpx.Client, path: str, name: str):
    for number, value in enumerate([*EXTREMES, *({"a": value} for value in EXTREMES)]):
        limit = name.removeprefix("ramet.budget.")
        field = {name: value} if limit == name else {"ramet": {"budget": {limit: value}}}
        answered(client, path, "hello", {"stream": number % 2 == 0, **field})
        if name in ECHOED:
            answered(client, path, "hello", {"stream": True, **field})


ODD = st.fixed_dictionaries(
    {"type": st.sampled_from(["integer", "nonsense"]) | st.sampled_from(EXTREMES)}
) | st.sampled_from(EXTREMES)
SCHEMAS = st.fixed_dictionaries(
    {
        "type": st.just("object"),
        "properties": st.fixed_dictionaries(
            {
                "a": st.sampled_from(["default", "examples", "const", "enum", "items"]).map(
                    lambda key: {"$ref": f"#/properties/b/{key}"}
                ),
                "b": st.dictionaries(st.sampled_from(["default", "examples", "const", "description"]), ODD),
            }
        ),
    }
)


@settings(max_examples=60)
@given(path=st.sampled_from(PATHS), schema=SCHEMAS, stream=st.booleans())
def test_no_schema_breaks_the_server_when_an_answer_is_checked(
    client: httpx.Client, path: str, schema: Any, stream: bool
):
    whole = {"type": "json_schema", "name": "x", "schema": schema}
    body = {"text": {"format": whole}, "response_format": {"type": "json_schema", "json_schema": whole}}
    answered(client, path, 'json {"a": 1}', {"stream": stream, **body})


@asynccontextmanager
async def opened_native(url: str, runs: Path) -> AsyncGenerator[Served]:
    config = ServeConfig(name="native", dialect="native", budget=Budget(depth=0))
    async with HttpEngine(url, model="scripted") as engine, opened(config, engine, runs) as found:
        yield found


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory, server: Served) -> Generator[httpx.Client]:
    """Tools of the client are sent to another server."""
    native = opened_native(server.url, tmp_path_factory.mktemp("native"))
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(native) as found,
        httpx.Client(base_url=found.url, timeout=60.0, headers={"content-type": "application/json"}) as client,
    ):
        yield client


@settings(max_examples=20)
@given(path=st.sampled_from(PATHS), odd=st.sampled_from(EXTREMES), stream=st.booleans())
def test_no_parameters_of_a_tool_break_the_dialect_native(native: httpx.Client, path: str, odd: Any, stream: bool):
    function = {"name": "f", "parameters": {"type": "object", "description": odd, str(odd)[:9]: 1}}
    whole = {"type": "function", "function": function, **function}
    answered(native, path, "hello", {"stream": stream, "tools": [whole]})


def test_the_server_is_whole_after_all_of_that(client: httpx.Client, server: Served):
    response = client.post("/chat/completions", json={"model": "ramet", "messages": [{"role": "user", "content": "x"}]})
    assert response.json()["choices"][0]["message"]["content"] == "you said x"
    until_idle(server)
