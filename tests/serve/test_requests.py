"""What a request may hold, and how what it may not hold is refused."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.budget import Budget
from ramet.serve import chat, responses
from ramet.serve.budgets import LIMITS, lowest, split_model
from ramet.serve.common import sse
from ramet.serve.conversation import Said, read_conversation
from ramet.serve.errors import RequestError
from ramet.serve.fields import Fields, parse_body
from ramet.serve.schema import read_schema
from ramet.types import ToolCall

USER = {"role": "user", "content": "hello"}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
IMAGE = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}


def read_chat(**body: Any) -> Any:
    fields = Fields({"model": "m", "messages": [USER], **body})
    return chat.read(fields, served=("m",), remembered=lambda _: None)


def read_response(**body: Any) -> Any:
    fields = Fields({"model": "m", "input": "hello", **body})
    return responses.read(fields, served=("m",), remembered=lambda _: None)


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({"messages": None}, "messages", "messages is missing"),
        ({"messages": "hi"}, "messages", "messages must be an array of objects; got 'hi'"),
        ({"messages": []}, "messages", "messages contains no user message"),
        ({"messages": [7]}, "messages[0]", "messages[0] must be an object; got 7"),
        (
            {"messages": [{"role": "bot"}]},
            "messages[0].role",
            'messages[0].role must be one of "system", "developer", ',
        ),
        ({"messages": [{"role": "user", "content": " "}]}, "messages[0]", "messages[0] is empty"),
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages[0].content[0]", "only text is supported"),
        ({"messages": [{"role": "user", "content": {"a": 1}}]}, "messages[0].content", "not an object"),
        (
            {"messages": [USER, {"role": "assistant", "content": "x"}]},
            "messages[1]",
            "must have role user or tool; got assistant",
        ),
        (
            {"messages": [USER, {"role": "tool", "tool_call_id": "no", "content": ""}]},
            "messages[1]",
            "does not precede it",
        ),
        ({"messages": [USER, {"role": "assistant", "tool_calls": [CALL]}, USER]}, "messages", "have no result: c1"),
        ({"model": 3}, "model", "model must be a string; got 3"),
        ({"model": "m:tokens"}, "model", "'tokens' is not a limit"),
        ({"model": "m:tokns=3"}, "model", "did you mean tokens?"),
        ({"model": "m:tokens=many"}, "model", "tokens in the model name must be a number; got 'many'"),
        ({"ramet": {"budget": {"prices": {}}}}, "ramet.budget.prices", "unknown limit 'prices'"),
        ({"ramet": {"budjet": {}}}, "ramet.budjet", "ramet accepts budget and context"),
        ({"ramet": {"context": {"a": 1}}}, "ramet.context.a", "ramet.context.a must be a string; got 1"),
        ({"max_tokens": 0}, "max_tokens", "max_tokens must be an integer of at least 1; got 0"),
        ({"max_tokens": "9"}, "max_tokens", "max_tokens must be an integer of at least 1; got '9'"),
        ({"n": 2}, "n", "the only accepted value is 1"),
        ({"logprobs": True}, "logprobs", "logprobs is not supported"),
        ({"top_p": 0.5}, "top_p", "set by the server; the only accepted value is 1"),
        ({"logit_bias": {"5": 1}}, "logit_bias", "not supported"),
        ({"modalities": ["text", "audio"]}, "modalities", 'accepted value is ["text"]'),
        ({"audio": {"voice": "x"}}, "audio", "only text is supported"),
        ({"functions": []}, "functions", "use tools"),
        ({"temperature": 3}, "temperature", "temperature must be a number from 0 to 2; got 3"),
        ({"temperature": float("nan")}, "temperature", "temperature must be a number from 0 to 2; got NaN"),
        ({"stream": "yes"}, "stream", "stream must be true or false; got 'yes'"),
        ({"stop": [1]}, "stop", "stop must be a string or an array of up to 4 strings"),
        ({"seed": 1.5}, "seed", "seed must be an integer"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "other kinds of tools are not supported"),
        ({"tools": [{"type": "function"}]}, "tools[0].function", "an object with a name"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name", "letters, digits"),
        ({"tools": [{"type": "function", "function": {"name": "delegate"}}]}, "tools[0].function.name", "other than"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}] * 2}, "tools", "same name"),
        ({"tool_choice": "required"}, "tool_choice", "there are no tools"),
        ({"tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice", "got 'g'"),
        ({"response_format": {"type": "xml"}}, "response_format.type", 'one of "text", "json_object", "json_schema"'),
        ({"response_format": {"type": "json_schema"}}, "response_format", "json_schema.schema is missing"),
    ],
)
def test_what_a_chat_request_may_not_hold_is_a_400_that_names_the_field(body: Any, param: str, message: str):
    with pytest.raises(RequestError) as refused:
        read_chat(**body)
    assert (refused.value.status, refused.value.param) == (400, param)
    assert message in str(refused.value)


def test_a_text_with_the_key_of_earlier_messages_is_a_400_if_there_are_some():
    context: Any = {"ramet": {"context": {"conversation": "x"}}}
    said = [USER, {"role": "assistant", "content": "hi"}, USER]
    for read, messages in ((read_chat, {"messages": said}), (read_response, {"input": said})):
        with pytest.raises(RequestError, match="earlier messages have this key") as refused:
            read(**context, **messages)
        assert refused.value.param == "ramet.context.conversation"
        assert read(**context).context == {"conversation": "x"}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": [], "instructions": "be brief"}, "input"),
        ({"input": [{"type": "message", "role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]"),
        ({"input": [{"type": "computer_call"}]}, "input[0].type"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"conversation": "c"}, "conversation"),
        ({"text": {"format": {"type": "json_schema", "schema": {"pattern": "a"}}}}, "text.format.schema"),
        ({"tools": [{"type": "mcp"}]}, "tools[0].type"),
    ],
)
def test_what_a_response_may_not_hold_is_a_400_that_names_the_field(body: Any, param: str):
    with pytest.raises(RequestError) as refused:
        read_response(**body)
    assert (refused.value.status, refused.value.param) == (400, param)


def test_fields_that_change_nothing_are_accepted():
    ask = read_chat(
        n=1,
        user="someone",
        store=True,
        metadata={"a": "b"},
        service_tier="auto",
        made_up=[1],
        top_p=1,
        presence_penalty=0.0,
        logprobs=False,
        modalities=["text"],
        max_tokens=7.0,
    )
    assert dict(ask.limits)["max_tokens"] == {"tokens": 7}
    assert read_response(truncation="auto", reasoning={"effort": "low"}, store=False, include=[]).stream is False


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"\xff\xfe", "not valid JSON"),
        (b"[1]", "the body must be a JSON object; got an array"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a": ' + b"[" * 300 + b"]" * 300 + b"}", "nested too deeply"),
        (b'{"a": NaN}', "NaN is not a JSON number"),
        (b'{"a": -1e999}', "-1e999 is too large a number"),
        (b'{"a": ' + b"9" * 5000 + b"}", "not valid JSON"),
    ],
)
def test_a_body_that_is_no_json_object_is_a_400(body: bytes, message: str):
    with pytest.raises(RequestError, match=message):
        parse_body(body)


def test_lone_surrogates_are_replaced_in_every_text_of_a_body():
    body = parse_body(rb'{"\ud800": {"a": ["\udfff", "\ud83d\ude00"]}}')
    assert body.values == {"\ufffd": {"a": ["\ufffd", "\N{GRINNING FACE}"]}}


def test_the_name_of_a_model_may_have_colons_of_its_own():
    assert split_model("qwen3:4b", ["qwen3:4b", "qwen3"]) == ("qwen3:4b", {})
    assert split_model("qwen3:4b:tokens=5,seconds=1.5", ["qwen3:4b"]) == ("qwen3:4b", {"tokens": 5, "seconds": 1.5})


NUMBERS = st.integers(min_value=-5, max_value=10_000) | st.floats(min_value=0.5, max_value=100.0)


@given(
    st.dictionaries(st.sampled_from([name for name in LIMITS if name != "money"]), NUMBERS),
    st.dictionaries(st.sampled_from([name for name in LIMITS if name != "money"]), NUMBERS),
)
def test_no_limit_of_a_request_raises_the_budget(one: dict[str, Any], two: dict[str, Any]):
    server = Budget(tokens=900, nodes=7, depth=2, seconds=20.0, path_tokens=400)
    try:
        budget = lowest(server, ("model", one), ("ramet.budget", two))
    except RequestError:
        return  # a number that is no limit at all
    for name in LIMITS:
        own, found = getattr(server, name), getattr(budget, name)
        assert own is None or found <= own
        for asked in (one, two):
            assert name not in asked or found <= asked[name]


@pytest.mark.parametrize("limits", [{"tokens": "5"}, {"tokens": True}, {"tokens": [1]}, {"seconds": -1}])
def test_a_limit_that_is_no_number_is_a_400(limits: Any):
    with pytest.raises(RequestError, match=next(iter(limits))):
        lowest(Budget(seconds=5.0), ("ramet.budget", limits))


def test_calls_before_the_question_are_history_and_calls_after_it_are_work():
    def turn(number: int) -> list[Said]:
        call = ToolCall(id=f"c{number}", name="f", arguments='{"x": 1}')
        return [
            Said(role="assistant", text="let me see", calls=(call,)),
            Said(role="tool", text=f"result {number}", call_id=f"c{number}"),
        ]

    messages = [Said(role="user", text="first"), *turn(1), Said(role="assistant", text="done")]
    messages += [Said(role="user", text="second"), *turn(2)]
    found = read_conversation(messages)
    call_text = '<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>'
    assert found.question == "second"
    assert found.history == (
        f"user: first\n\nassistant: let me see\n{call_text}\n\ntool f: result 1\n\nassistant: done"
    )
    assert found.work == f"let me see\n{call_text}\n\n<tool_response>\nf: result 2\n</tool_response>"
    kept = read_conversation(messages, remembered=lambda call_id: f"all before {call_id}")
    assert kept.work == "all before c2\n\n<tool_response>\nf: result 2\n</tool_response>"


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 2},
        "age": {"type": "integer", "minimum": 0, "exclusiveMaximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
        "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
    },
    "required": ["name"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"name": "Ada", "age": 36.0, "tags": ["a"], "next": {"name": "Alan", "next": null}}', None),
        ("{name}", "it is not valid JSON"),
        ('{"name": NaN}', "it is not valid JSON (NaN is not a JSON number)"),
        ("[]", "$ is not of type object"),
        ("{}", "$.name is missing"),
        ('{"name": "A"}', "$.name has 1 characters"),
        ('{"name": "Ada", "age": 36.5}', "$.age is not of type integer"),
        ('{"name": "Ada", "age": true}', "$.age is not of type integer"),
        ('{"name": "Ada", "age": -1}', "$.age is -1, and its minimum is 0"),
        ('{"name": "Ada", "age": 150}', "$.age is 150, and its exclusiveMaximum is 150"),
        ('{"name": "Ada", "tags": ["c"]}', "$.tags[0] is not one of 'a', 'b'"),
        ('{"name": "Ada", "tags": ["a", "a", "a"]}', "$.tags has 3 items"),
        ('{"name": "Ada", "next": {"age": 3}}', "$.next matches 0 schemas of anyOf"),
        ('{"name": "Ada", "more": 1}', "$.more is not allowed"),
    ],
)
def test_a_schema_tells_why_a_text_does_not_match(text: str, problem: str | None):
    found = read_schema(SCHEMA, "schema").problem(text)
    assert found == problem if problem is None else found is not None and found.startswith(problem)


@pytest.mark.parametrize(
    ("step", "multiples", "others"),
    [
        (2, ["0", "-4", "6.0", "1e308", "1" + "0" * 400], ["1", "2.5", "1e999", "true", "2e-1"]),
        (0.1, ["0.3", "0.7", "1.1", "3", "1e22", "-2.2"], ["0.35", "0.10000001", "1e-5"]),
        (1e-300, ["1e-300", "1"], ["1.5e-300", "1e-301"]),
    ],
)
def test_multiples_are_those_of_the_numbers_as_they_are_written(step: float, multiples: list[str], others: list[str]):
    schema = read_schema({"type": "number", "multipleOf": step}, "schema")
    assert [text for text in multiples if schema.problem(text) is not None] == []
    assert [text for text in others if schema.problem(text) is None] == []
    assert schema.problem(others[0]) == f"$ is {others[0]}, and its multipleOf is {step}"
    assert read_schema({"multipleOf": 2}, "schema").problem('"a text"') is None


@pytest.mark.parametrize(
    "schema",
    [
        {"multipleOf": 0},
        {"multipleOf": "2"},
        {"multipleOf": True},
        {"multipleOf": float("inf")},
        {"pattern": "(a+)+$"},
        {"type": "text"},
        {"properties": []},
        {"items": 3},
        {"$ref": "#/$defs/none"},
        {"$ref": "https://example.org"},
        {"properties": {"a": {"$ref": "#/properties/b/default"}, "b": {"default": {"type": "nonsense"}}}},
        {"anyOf": []},
        {"required": [1]},
        {"minimum": "x"},
    ],
)
def test_a_schema_that_cannot_be_checked_is_a_400(schema: Any):
    with pytest.raises(RequestError) as refused:
        read_schema(schema, "schema")
    assert refused.value.status == 400


def test_a_schema_that_refers_to_itself_forever_is_checked_in_bounded_time():
    twice: Any = {"anyOf": [{"$ref": "#"}, {"$ref": "#"}], "type": "string"}
    assert read_schema(twice, "schema").problem('"x"') is not None
    deep: Any = {}
    for _ in range(500):
        deep = {"items": deep}
    with pytest.raises(RequestError, match="nested too deeply"):
        read_schema(deep, "schema")


def test_an_event_is_one_line_also_for_clients_that_split_text_where_python_does():
    said = "one\u2028two\u2029three\x85four\nfive"
    lines = list(httpx.Response(200, content=sse({"said": said})).iter_lines())
    assert lines[1:] == [""]
    assert json.loads(lines[0].removeprefix("data: ")) == {"said": said}


def test_all_events_of_a_response_have_the_time_at_which_it_was_created():
    stream = responses.Stream(read_response(), "t")
    stream.created = 7
    events = [*stream.opening(), *stream.failed(RequestError(502, "gone"))]
    found = [json.loads(event.decode().partition("data: ")[2]) for event in events]
    assert [event["response"]["created_at"] for event in found if "response" in event] == [7, 7, 7]
