"""Worlds that are notified of nodes."""

from __future__ import annotations

from typing import Any

import pytest

import ramet
from ramet.agent.options import TreeOptions
from ramet.agent.tree import TreeRun
from ramet.types import Node, Prompt
from tests.agent.scripts import delegate
from tests.conftest import in_virtual_time


class Watching:
    """A world that is notified of nodes, and fails at one of them."""

    def __init__(self, event: str, depth: int) -> None:
        self.context: dict[str, str] = {}
        self.functions: dict[str, Any] = {}
        self._fails = (event, depth)

    def spawned(self, node: Node) -> None:
        self._fail("spawned", node)

    def ended(self, node: Node) -> None:
        self._fail("ended", node)

    def _fail(self, event: str, node: Node) -> None:
        if (event, node.depth) == self._fails:
            raise KeyError("no such item")


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("event", ["spawned", "ended"])
def test_what_a_world_raises_when_it_is_notified_is_one_error_that_names_it(event: str, depth: int):
    def script(prompt: Prompt) -> str:
        return "Answer: 1" if prompt.depth or prompt.turn else delegate("a part", "another part")

    options = TreeOptions(engine=ramet.ScriptedEngine(script), world=Watching(event, depth))
    said = rf"Watching\.{event} raised KeyError in test_observers\.py, line \d+: 'no such item'"
    with pytest.raises(ramet.ConfigError, match=f"^{said}$") as raised:
        in_virtual_time(lambda: TreeRun("q", options).run())
    assert isinstance(raised.value.__cause__, KeyError)
