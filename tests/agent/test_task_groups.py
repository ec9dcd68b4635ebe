"""An error of ramet is raised as itself, however many groups of tasks it passes through."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest

import ramet
from ramet.agent.options import TreeOptions
from ramet.agent.task_groups import task_group
from ramet.agent.tree import TreeRun
from ramet.errors import ConfigError, EngineError
from ramet.types import Prompt, State
from tests.agent.scripts import call, cell, delegate

BACKENDS = pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
LOOK = {"tools": call("look"), "python": cell("print(await look())"), "terse": "$ look"}
DELEGATE = {"tools": delegate("look it up"), "python": cell("await delegate('look it up')"), "terse": "> look it up"}


class Database:
    """A world with a function that cannot work, plain or async."""

    def __init__(self, *, is_async: bool) -> None:
        self.context: dict[str, str] = {}
        self.functions = {"look": self.look_later if is_async else self.look}

    def look(self) -> str:
        raise ConfigError("the database is missing")

    async def look_later(self) -> str:
        await anyio.lowlevel.checkpoint()
        return self.look()


@pytest.mark.anyio
@BACKENDS
@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])
@pytest.mark.parametrize("where", ["root", "clone"])
@pytest.mark.parametrize("dialect", LOOK)
async def test_a_config_error_of_a_function_is_the_same_in_the_root_and_in_a_clone(
    dialect: str, where: str, is_async: bool, anyio_backend: str
) -> None:
    def script(prompt: Prompt) -> str:
        return LOOK[dialect] if prompt.depth or where == "root" else DELEGATE[dialect]

    options = TreeOptions(engine=ramet.ScriptedEngine(script), world=Database(is_async=is_async), dialect=dialect)
    run = TreeRun("root", options)
    with pytest.raises(ConfigError, match=r"^the database is missing$"):
        await run.run()
    assert run.ledger.open == 0
    assert {node.state for node in run.tree.nodes} == {State.ENDED}


@pytest.mark.anyio
@BACKENDS
async def test_the_first_error_ends_the_other_tasks_and_keeps_its_cause(anyio_backend: str) -> None:
    ended: list[str] = []

    async def wait() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("waiting")
            raise EngineError("ended")

    async def fail() -> None:
        raise ConfigError("no such file") from OSError("not found")

    async def work() -> None:
        async with task_group() as outer:
            outer.start_soon(wait)
            async with task_group() as group:
                group.start_soon(wait)
                await anyio.lowlevel.checkpoint()
                group.start_soon(fail)

    with pytest.raises(ConfigError, match="no such file") as raised:
        await work()
    assert isinstance(raised.value.__cause__, OSError)
    assert ended == ["waiting", "waiting"]


@pytest.mark.anyio
@BACKENDS
async def test_an_error_that_is_not_ours_stays_in_a_group_with_those_beside_it(anyio_backend: str) -> None:
    async def fail(error: Exception) -> None:
        raise error

    async def work() -> None:
        async with task_group() as group:
            for error in (ConfigError("no such file"), ValueError("a bug")):
                group.start_soon(fail, error)

    with pytest.raises(ExceptionGroup) as raised:
        await work()
    assert sorted(map(str, raised.value.exceptions)) == ["a bug", "no such file"]
