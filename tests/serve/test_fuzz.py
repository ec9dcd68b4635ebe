"""Whatever a client sends, it gets an answer or an error in OpenAI's format, and the server goes on."""

from __future__ import annotations

import json
from collections.abc import Generator
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramet.serve.server import Served
from tests.serve.scripted import served, until_idle

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


def test_the_server_is_whole_after_all_of_that(client: httpx.Client, server: Served):
    response = client.post("/chat/completions", json={"model": "ramet", "messages": [{"role": "user", "content": "x"}]})
    assert response.json()["choices"][0]["message"]["content"] == "you said x"
    until_idle(server)
