"""The world of a question with MCP servers: they run as long as its tree does."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from ramet.errors import ConfigError
from ramet.inputs.mcp import McpServer, check_mcp, mcp
from ramet.inputs.settings import RunConfig
from ramet.inputs.world import InputWorld, join_worlds
from ramet.interfaces import World
from ramet.plugins import anchored

MCP_KEY = "RAMET_MCP_API_KEY"  # environment variable: the bearer token of MCP servers behind URLs, never stored


@asynccontextmanager
async def open_world(
    config: RunConfig, context: Mapping[str, str], world: World | None
) -> AsyncGenerator[World | None]:
    """The world with the tools of the configured MCP servers; without any, the world as it is."""
    if not config.mcp:
        yield world
        return
    async with mcp(*servers_of(config, os.environ)) as tools:
        yield join_worlds({"the question": world or InputWorld(context, {}), "an MCP server": tools})


def servers_of(config: RunConfig, environment: Mapping[str, str]) -> list[McpServer]:
    """The servers of the settings, each with the variables or the key that it may have."""
    check_mcp()
    missing = [name for name in config.mcp_env if name not in environment]
    if missing:
        raise ConfigError(f"mcp_env: the environment variable {missing[0]} is not set")
    env = {name: environment[name] for name in config.mcp_env}
    key = environment.get(MCP_KEY)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    servers = [McpServer(address=address, call_s=config.call_s) for address in config.mcp]
    return [replace(server, headers=headers) if server.is_url else replace(server, env=env) for server in servers]


def as_stored(config: RunConfig) -> RunConfig:
    """The settings as a run directory keeps them: files can be found from any folder, and nothing is secret.

    MCP servers are kept by name, without arguments, which may be keys.
    """
    return replace(
        config,
        question=anchored(config.question, Path.cwd()),
        functions=tuple(str(Path(file).expanduser().absolute()) for file in config.functions),
        mcp=tuple(McpServer(address=address).name for address in config.mcp),
    )
