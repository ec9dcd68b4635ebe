"""Tools of MCP servers, with real server processes: over standard input and output, and over HTTP."""

from __future__ import annotations

import inspect
import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import ramet
from ramet.agent.functions import Failed, call_async
from ramet.errors import ConfigError, EngineError
from ramet.inputs.mcp import MAX_TOOLS, McpServer, mcp
from ramet.inputs.open import as_stored, servers_of
from ramet.inputs.settings import RunConfig
from ramet.inputs.tools import MAX_ABOUT, MAX_NAME, MAX_SCHEMA, bounded_schema, signature_of
from ramet.interfaces import World
from tests.inputs import servers


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> str:
    return servers.write(tmp_path_factory.mktemp("mcp"), "real.py", servers.REAL)


@pytest.fixture(scope="module")
def address(command: str) -> Iterator[str]:
    """A server on loopback."""
    environment = {**os.environ, **servers.environment()}
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url, number = f"http://127.0.0.1:{listener.getsockname()[1]}/mcp", listener.fileno()
        words = [*command.split(), str(number)]
        process = subprocess.Popen(words, env=environment, pass_fds=[number], stderr=subprocess.DEVNULL)
    with process:
        anyio.run(answering, url, process)
        yield url
        process.kill()


async def answering(url: str, process: subprocess.Popen[bytes]) -> None:
    async with httpx.AsyncClient() as client:
        while process.poll() is None:
            try:
                await client.get(url, timeout=5)
            except httpx.TransportError:
                await anyio.sleep(0.05)
            else:
                return
    raise AssertionError("the server ended")


def server(address: str, **more: Any) -> McpServer:
    return McpServer(address=address, env=servers.environment(), **more)


async def said(world: World, name: str, *args: Any, **kwargs: Any) -> str:
    """What a model reads after a call."""
    result = await call_async(world.functions[name], args, kwargs)
    return result.text if isinstance(result, Failed) else result


async def check_tools(world: World) -> None:
    weather = world.functions["weather"]
    assert (weather.__name__, weather.__doc__) == ("weather", "The weather of a city.")
    assert list(inspect.signature(weather).parameters) == ["city", "days"]
    assert weather.schema["properties"]["days"]["type"] == "integer"
    assert weather.schema["required"] == ["city"]
    assert await said(world, "weather", "Oslo") == "Oslo: sun for 1 days"
    assert await said(world, "weather", city="Oslo", days=3) == "Oslo: sun for 3 days"
    assert await said(world, "add_all", [1, 2, 3]) == "6"
    assert (await said(world, "fail")).startswith("error: Error executing tool fail")
    assert "validation error" in await said(world, "weather", city="Oslo", days="many")


def test_tools_of_a_process_are_functions_and_one_that_dies_is_text(command: str) -> None:
    async def run() -> None:
        async with mcp(server(command, call_s=60), context={"a": "text"}) as world:
            assert dict(world.context) == {"a": "text"}
            assert list(world.functions) == ["weather", "add_all", "fail", "hang", "die"]
            await check_tools(world)
            ended = f"error: ConnectionError: the MCP server {Path(sys.executable).name} "
            assert (await said(world, "die")).startswith(ended)
            assert (await said(world, "weather", "Oslo")).endswith("real.py has ended")

    anyio.run(run)


def test_tools_of_a_server_on_the_network_are_functions_and_one_that_hangs_is_text(address: str) -> None:
    async def run() -> None:
        async with mcp(McpServer(address=address, call_s=0.2)) as quick:
            assert await said(quick, "hang") == "error: TimeoutError: no result within 0.2 seconds"
        async with mcp(McpServer(address=address, call_s=60), address) as world:
            assert list(world.functions)[5:] == ["weather_2", "add_all_2", "fail_2", "hang_2", "die_2"]
            await check_tools(world)

    anyio.run(run)


def test_an_error_of_the_block_is_raised_as_it_is(address: str) -> None:
    async def run() -> None:
        async with mcp(address):
            raise EngineError("the engine failed")

    with pytest.raises(EngineError, match="the engine failed"):
        anyio.run(run)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("no-such-program --key secret", "the MCP server no-such-program cannot be used: No such file or directory"),
        (
            f"{sys.executable} -c 'raise SystemExit(\"no licence\")'",
            "it ended before it answered: is it an MCP server? (no licence)",
        ),
        ("http://127.0.0.1:9/mcp?key=secret", "the MCP server http://127.0.0.1:9/mcp cannot be used"),
        ("'unclosed", "is not a command: No closing quotation"),
        (" ", "--mcp is a command or a URL; got nothing"),
    ],
)
def test_a_server_that_cannot_be_used_is_one_line_without_its_arguments(line: str, why: str) -> None:
    async def run() -> None:
        async with mcp(line):
            raise AssertionError("unreachable")

    with pytest.raises(ConfigError) as error:
        anyio.run(run)
    assert why in str(error.value)
    assert "secret" not in str(error.value)


def test_a_server_that_does_not_answer_is_given_up_on_and_stopped() -> None:
    async def run() -> None:
        async with mcp(McpServer(address="sleep 3600", start_s=0.1)):
            raise AssertionError("unreachable")

    with pytest.raises(ConfigError, match=r"the MCP server sleep did not answer within 0\.1 seconds"):
        anyio.run(run)


@asynccontextmanager
async def hostile(folder: Path) -> AsyncIterator[World]:
    async with mcp(McpServer(address=servers.write(folder, "hostile.py", servers.HOSTILE), call_s=60)) as world:
        yield world


def test_hostile_names_descriptions_and_schemas_become_harmless(tmp_path: Path) -> None:
    async def run() -> None:
        async with hostile(tmp_path) as world:
            names = list(world.functions)
            assert len(names) == MAX_TOOLS
            assert names[:5] == ["delegate_2", "delegate_3", "import_2", "tool", "rm_rf"]
            assert all(name.isidentifier() and len(name) <= MAX_NAME + 8 for name in names)
            for function in world.functions.values():
                assert "\x1b" not in (function.__doc__ or "")
                assert len((function.__doc__ or "").encode()) <= MAX_ABOUT
                assert len(json.dumps(function.schema)) <= MAX_SCHEMA + 100
                assert len(str(inspect.signature(function))) < 8000
            assert str(inspect.signature(world.functions["import_2"])) == "(ok: 'int | None' = None, **arguments)"
            text = await said(world, "import_2", 5, **{"not a name": 1})
            assert text.endswith("[image/png, 3 bytes, not shown]") or len(text) == 10**6
            ended = await said(world, "flood")
            assert ended.endswith("hostile.py has ended")
            assert (await said(world, "odd")).endswith("has ended")

    anyio.run(run)


NAMES = st.sampled_from(["arguments", "more_arguments", "more_more_arguments", "city", "class", "not a name", ""])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.sampled_from(["string", "object"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["type", "default"]), inner),
    max_leaves=4,
)


@given(st.dictionaries(NAMES, JSON), JSON | st.lists(NAMES), st.booleans())
@example({"arguments": {}, "more_arguments": {}, "not a name": {}}, [], False)
def test_a_tool_of_any_schema_has_a_signature_that_takes_its_properties(
    properties: dict[str, Any], required: Any, more: bool
) -> None:
    schema = bounded_schema({"properties": properties, "required": required, "additionalProperties": more})
    signature_of(schema).bind(**dict.fromkeys(properties))


def test_tools_are_called_in_a_tree_under_its_budget(address: str) -> None:
    call = '<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>'

    def script(prompt: ramet.Prompt) -> ramet.Reply:
        return ramet.Reply(text=call if not prompt.turn else f"Answer: {prompt.last}")

    async def run() -> ramet.Tree:
        async with ramet.mcp(address) as world:
            return await ramet.run("Weather?", engine=ramet.ScriptedEngine(script), world=world)

    tree = anyio.run(run)
    assert "weather: Oslo: sun for 1 days" in (tree.answer or "")
    assert "\nweather(city: str, days: int = 1)\n    The weather of a city." in tree.root.pieces[0].text


def test_a_command_gets_the_variables_that_are_named_and_a_url_the_key() -> None:
    config = RunConfig(mcp=("server --token secret", "http://host/mcp?key=secret"), mcp_env=("TOKEN",))
    one, other = servers_of(config, {"TOKEN": "t", "OPENAI_API_KEY": "k", "RAMET_MCP_API_KEY": "m"})
    assert (dict(one.env), dict(one.headers)) == ({"TOKEN": "t"}, {})
    assert (dict(other.env), dict(other.headers)) == ({}, {"Authorization": "Bearer m"})
    assert as_stored(config).mcp == ("server", "http://host/mcp")
    with pytest.raises(ConfigError, match="the environment variable TOKEN is not set"):
        servers_of(config, {})
