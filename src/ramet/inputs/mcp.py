"""Tools of MCP servers as functions of a world: each has the name, the description and the JSON Schema of its tool.

A server is a command (`npx some-server`, spoken to over its standard input and output) or an address
(`http://...`, streamable HTTP). Needs the package `mcp`: pip install 'ramet[mcp]'.

What a server lists is bounded and made harmless: names become identifiers, descriptions and schemas are cut. A server
that dies or does not answer is text for the node that called it.
"""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

import anyio
from anyio.abc import TaskGroup, TaskStatus

from ramet.agent.wording import cut
from ramet.errors import ConfigError
from ramet.inputs.functions import within
from ramet.inputs.tools import Listed, as_function, result_text
from ramet.inputs.world import InputWorld, RepeatableWorld, repeatable
from ramet.interfaces import HostFunction, World

if TYPE_CHECKING:
    from mcp import Client

MAX_TOOLS = 128  # of one server
MAX_PAGES = 32  # of its list of tools
RUNNERS = ("python", "node", "npx", "uvx", "uv", "deno", "bun")  # programs named together with what they run
MAX_STDERR = 300  # bytes of a server's own last words, in an error


@dataclass(frozen=True, slots=True, kw_only=True)
class McpServer:
    """A server and how it is reached.

    Example:
        McpServer(address="npx -y some-server", env={"SOME_TOKEN": token})
    """

    address: str  # a command, or a URL
    call_s: float = 30.0  # time limit of a call
    start_s: float = 60.0  # time limit for starting it and reading its list of tools
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)  # for a command: more variables
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)  # for a URL

    @property
    def is_url(self) -> bool:
        return self.address.startswith(("http://", "https://"))

    @property
    def name(self) -> str:
        """The server without parts that may be secret: the host and the path, or the program and what it runs.

        Example:
            McpServer(address="env TOKEN=x python -u server.py --key y").name  # "python server.py"
            McpServer(address="http://user:x@host:81/mcp?key=y").name          # "http://host:81/mcp"
        """
        if self.is_url:
            parts = urlsplit(self.address)
            return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        words = [word for word in self.words if word != "env" and "=" not in word and not word.startswith("-")]
        program = Path(words[0]).name if words else "env"
        return (
            " ".join([program, *(Path(word).name for word in words[1:2])]) if program.startswith(RUNNERS) else program
        )

    @property
    def words(self) -> list[str]:
        try:
            words = shlex.split(self.address)
        except ValueError as error:
            raise ConfigError(f"--mcp {self.address!r} is not a command: {error}") from None
        if not words:
            raise ConfigError("--mcp is a command or a URL; got nothing")
        return words


@asynccontextmanager
async def mcp(
    *servers: McpServer | str, context: Mapping[str, str] | None = None, call_s: float = 30.0
) -> AsyncGenerator[World]:
    """A world with every tool of these servers, and the texts of `context`. The servers are stopped after the block.

    Example:
        async with ramet.mcp("python server.py", call_s=10) as world:
            tree = await ramet.run("What is the weather in Oslo?", engine=engine, world=world)
    """
    check_mcp()
    failed: Exception | None = None
    async with anyio.create_task_group() as group:
        functions: dict[str, HostFunction] = {}
        try:
            for one in servers:
                server = McpServer(address=one, call_s=call_s) if isinstance(one, str) else one
                for function in await _start(server, group, taken=[*functions]):
                    functions[function.__name__] = function
            yield repeatable(dict(context or {}), functions, [*map(_declared, functions.values())])
        except Exception as error:  # noqa: BLE001  raised below: a task group would wrap it in a group
            failed = error
        group.cancel_scope.cancel()
    if failed is not None:
        raise failed


def _declared(function: HostFunction) -> World:
    """A world of one tool, which declares that it can be called again if the server says that it only reads."""
    context, functions = dict[str, str](), {function.__name__: function}
    return RepeatableWorld(context, functions, False) if function.read_only else InputWorld(context, functions)  # pyright: ignore[reportFunctionMemberAccess, reportUnknownMemberType]


def check_mcp() -> None:
    """Raise `ConfigError` if the package is missing."""
    if find_spec("mcp") is None:
        raise ConfigError("MCP servers need one more package: pip install 'ramet[mcp]'")


async def _start(server: McpServer, group: TaskGroup, *, taken: Sequence[str]) -> list[HostFunction]:
    """Start one server; its tools as functions. Their names avoid those that are `taken`."""
    from mcp.shared.exceptions import MCPError

    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors:
        try:
            with anyio.fail_after(server.start_s):
                client, listed = await group.start(_connect, server, errors)
        except TimeoutError:
            raise ConfigError(
                f"the MCP server {server.name} did not answer within {server.start_s:g} seconds"
            ) from None
        except (OSError, ValueError, MCPError, ExceptionGroup) as error:
            raise ConfigError(_cannot_start(server, error, errors)) from None
    if not listed:
        raise ConfigError(f"the MCP server {server.name} has no tools")
    functions: list[HostFunction] = []
    for tool in listed:
        names = [*taken, *(function.__name__ for function in functions)]
        functions.append(as_function(tool, partial(_call, client, server, tool.name), taken=names))
    return functions


async def _connect(server: McpServer, errors: Any, *, task_status: TaskStatus[tuple[Client, list[Listed]]]) -> None:
    """Keep the connection open until this task is cancelled. One that breaks later ends quietly: calls report it."""
    from mcp import Client
    from mcp.shared.exceptions import MCPError

    started = False
    try:
        async with Client(_transport(server, errors), cache=None) as client:
            listed = await _list_tools(client)
            started = True
            task_status.started((client, listed))
            await anyio.sleep_forever()
    except (OSError, ValueError, MCPError, ExceptionGroup):
        if not started:
            raise


def _transport(server: McpServer, errors: Any) -> Any:
    """How the client reaches the server. A command gets few variables of this process, and those of `env`."""
    if server.is_url:
        from mcp.client.streamable_http import streamable_http_client
        from mcp.shared._httpx_utils import create_mcp_http_client

        return streamable_http_client(
            server.address, http_client=create_mcp_http_client(headers=dict(server.headers)) if server.headers else None
        )
    from ramet.inputs.stdio import stdio_transport

    return stdio_transport(server.words, env=dict(server.env), errors=errors)


async def _list_tools(client: Client) -> list[Listed]:
    """The tools of a server, as far as they are allowed to go on."""
    listed: list[Listed] = []
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        listed += [
            Listed(
                name=tool.name,
                about=tool.description or "",
                schema=tool.input_schema,
                read_only=bool(tool.annotations and tool.annotations.read_only_hint),
            )
            for tool in page.tools
        ]
        cursor = page.next_cursor
        if cursor is None or len(listed) >= MAX_TOOLS:
            break
    return listed[:MAX_TOOLS]


async def _call(client: Client, server: McpServer, tool: str, arguments: Mapping[str, Any]) -> str:
    """The text of a tool's result. Its errors, a dead server and one that hangs are exceptions with a clear message."""
    from mcp.shared.exceptions import MCPError
    from mcp_types import CONNECTION_CLOSED

    try:
        result = await within(server.call_s, partial(client.call_tool, tool, dict(arguments)))
    except MCPError as error:
        if error.code == CONNECTION_CLOSED:
            raise ConnectionError(f"the MCP server {server.name} has ended") from None
        raise ValueError(f"the MCP server {server.name} answered with an error: {error.message}") from None
    except (anyio.ClosedResourceError, anyio.BrokenResourceError, anyio.EndOfStream):
        raise ConnectionError(f"the MCP server {server.name} has ended") from None
    text = result_text(result.content, result.structured_content)
    if result.is_error:
        raise ValueError(text or "the tool failed without a message")
    return text


def _cannot_start(server: McpServer, error: BaseException, errors: Any) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = cast(BaseExceptionGroup[BaseException], error).exceptions[0]
    why = getattr(error, "message", None) or getattr(error, "strerror", None) or str(error) or type(error).__name__
    if why == "Connection closed":  # said by the package mcp, also of a process that ended
        why = "it ended before it answered: is it an MCP server?"
    said = _last_line(errors)
    return f"the MCP server {server.name} cannot be used: {cut(str(why), MAX_STDERR)}" + (f" ({said})" if said else "")


def _last_line(errors: Any) -> str:
    """What a command wrote last to its standard error."""
    size = errors.seek(0, 2)
    errors.seek(max(0, size - 4 * MAX_STDERR))
    lines = [line.strip() for line in errors.read().splitlines() if line.strip()]
    return cut(lines[-1], MAX_STDERR) if lines else ""
