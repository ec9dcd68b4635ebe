"""An MCP server as a process: one JSON message per line on its standard input and output, each of bounded size.

The client of the package `mcp` reads lines of any length; here a longer one ends the connection.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
from anyio.abc import ByteReceiveStream, Process

MAX_LINE = 16 * 2**20  # bytes of one message
EXIT_S = 2.0  # time to end after its input was closed, and again after it was asked to terminate
GONE = (anyio.ClosedResourceError, anyio.BrokenResourceError, anyio.EndOfStream, OSError)


@asynccontextmanager
async def stdio_transport(
    words: Sequence[str], *, env: Mapping[str, str], errors: Any
) -> AsyncGenerator[tuple[Any, Any]]:
    """Start the process; two streams of messages, from it and to it. It is stopped at the end, whatever happens."""
    from mcp.client.stdio import get_default_environment

    process = await anyio.open_process(
        list(words), stderr=errors, env={**get_default_environment(), **env}, start_new_session=True
    )
    send_read, read = anyio.create_memory_object_stream[Any](0)
    write, receive_write = anyio.create_memory_object_stream[Any](0)
    async with anyio.create_task_group() as group:
        group.start_soon(_read_messages, process, send_read)
        group.start_soon(_write_messages, process, receive_write, send_read)
        try:
            yield read, write
        finally:
            with anyio.CancelScope(shield=True):
                await _stop(process)
                for stream in (read, write, send_read, receive_write):
                    await stream.aclose()
            group.cancel_scope.cancel()


async def _read_messages(process: Process, messages: Any) -> None:
    """Pass every line on as a message. The end of the output, or a line that is too long, ends the stream."""
    import mcp_types
    from mcp.shared.message import SessionMessage

    if process.stdout is None:
        raise AssertionError("the process has pipes")
    async with messages:
        with suppress(*GONE):
            async for line in lines(process.stdout):
                try:
                    message = mcp_types.jsonrpc_message_adapter.validate_json(line, by_name=False)
                except ValueError as error:  # servers print all sorts of things; the client ignores them
                    await messages.send(error)
                else:
                    await messages.send(SessionMessage(message))


async def lines(stream: ByteReceiveStream) -> AsyncGenerator[bytes]:
    """The lines of a stream, of at most 16 MB each."""
    parts: list[bytes] = []
    size = 0
    async for chunk in stream:
        *ended, rest = chunk.split(b"\n")
        for end in ended:
            yield b"".join([*parts, end])
            parts, size = [], 0
        parts.append(rest)
        size += len(rest)
        if size > MAX_LINE:
            return


async def _write_messages(process: Process, messages: Any, answers: Any) -> None:
    """Write every message as a line. When the process does not read any more, the stream of answers ends."""
    if process.stdin is None:
        raise AssertionError("the process has pipes")
    async with messages:
        try:
            async for message in messages:
                text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                await process.stdin.send(text.encode() + b"\n")
        except GONE:
            await answers.aclose()


async def _stop(process: Process) -> None:
    """Close its input, wait, terminate, wait, kill: with all processes that it started."""
    if process.stdin is not None:
        with suppress(*GONE):
            await process.stdin.aclose()
    for stop in (None, "SIGTERM", "SIGKILL"):
        if stop is not None:
            _signal_group(process, stop)
        with anyio.move_on_after(EXIT_S):
            await process.wait()
            break
    _signal_group(process, "SIGKILL")  # what it started and left behind
    with suppress(*GONE):
        await process.aclose()


def _signal_group(process: Process, name: str) -> None:
    import os
    import signal

    with suppress(ProcessLookupError, PermissionError, AttributeError):
        os.killpg(process.pid, getattr(signal, name))
