"""Runs drawn outputs through real trees, and checks what must hold for every one of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ramet
from ramet.agent.dialects import make_dialect
from ramet.agent.dialects.python import PythonDialect
from ramet.agent.options import TreeOptions
from ramet.agent.sandbox import Sandbox
from ramet.agent.tree import TreeRun
from ramet.engine.scripted import ScriptedEngine
from ramet.engine.settings import JudgeConfig
from ramet.store.parquet import trees_to_table
from ramet.tasks.judge import Judge
from ramet.types import Prompt, Task, Tree

RESULT_BYTES, OUTPUT_BYTES = 300, 500
BUDGET = ramet.Budget(
    tokens=60_000, nodes=5, depth=2, turns=4, window=50_000, result_bytes=RESULT_BYTES, output_bytes=OUTPUT_BYTES
)
ANSWERS = {"tools": "Answer: 1", "tools-returns": "Answer: 1", "terse": "= 1", "python": "Answer: 1"}
TEXTS = {"Ada": "Born 1815. é漢", "Alan": "Born 1912."}


class OddError(Exception):
    """An exception whose message cannot be made."""

    def __str__(self) -> str:
        raise RuntimeError("no message")


def search(query: str) -> str:
    """Find pages."""
    return query.lower()


def add(a: int, b: int = 1) -> int:
    """Add."""
    return a + b


def fail() -> None:
    """Raise."""
    raise OddError


def echo(key: object) -> object:
    """The same."""
    return key


async def look(key: str) -> str:
    """Find a page."""
    return TEXTS[key]


class World:
    """Functions that make no attempt to check their arguments."""

    functions: Mapping[str, Callable[..., Any]] = {
        "search": search,
        "add": add,
        "fail": fail,
        "echo": echo,
        "look": look,
    }
    context: Mapping[str, str] = TEXTS


class Bare:
    """Texts and no functions, for `terse`."""

    functions: Mapping[str, Callable[..., Any]] = {}
    context: Mapping[str, str] = TEXTS


class Harness:
    """Plays outputs; `tried` counts them by dialect, `ends` counts how nodes ended."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.tried: Counter[str] = Counter()
        self.ends: Counter[str] = Counter()

    async def play(self, dialect: str, outputs: Sequence[str], *, token_ids: bool = True) -> None:
        """Run trees whose nodes write the outputs in turn, until all are used, and check each."""
        left = list(reversed(outputs))

        def reply(prompt: Prompt) -> str:
            del prompt
            self.tried[dialect] += bool(left)
            return left.pop() if left else ANSWERS[dialect]

        while left:
            check(await self._run(dialect, ScriptedEngine(reply, token_ids=token_ids)))

    async def run(self, dialect: str, outputs: Sequence[str]) -> Tree:
        """Run one tree whose nodes write the outputs in turn, then answers. It is not checked."""
        left = list(reversed(outputs))
        return await self._run(dialect, ScriptedEngine(lambda _: left.pop() if left else ANSWERS[dialect]))

    async def _run(self, dialect: str, engine: ScriptedEngine) -> Tree:
        options = TreeOptions(
            engine=engine,
            budget=BUDGET,
            dialect=PythonDialect(self.sandbox) if dialect == "python" else make_dialect(dialect),
            world=Bare() if dialect == "terse" else World(),
        )
        tree = await TreeRun(Task(question="Who is older?", context=TEXTS), options).run()
        self.ends.update(str(node.stop) for node in tree.nodes)
        return tree

    async def judge(self, outputs: Sequence[str], tree: Tree) -> None:
        """Ask judges that write one output each about a tree."""
        for output in outputs:
            judge = Judge(ScriptedEngine(lambda _, output=output: output), JudgeConfig(tries=1, max_tokens=50_000))
            verdict = await judge.verdict(tree.root, tree)
            assert verdict is None or 0 <= verdict.score <= 1
            self.tried["judge"] += 1
            self.ends["verdict" if verdict is not None else "no verdict"] += 1


def check(tree: Tree) -> None:
    """What must hold for every tree, whatever its model wrote."""
    usage = tree.usage
    assert usage.tokens + usage.lost_tokens <= BUDGET.tokens
    assert len(tree.nodes) <= BUDGET.nodes
    str(tree).encode()
    trees_to_table([tree])  # it can be stored
    for node in tree.nodes:
        assert node.stop is not None
        for text in (node.goal, node.answer or "", node.error or "", *(piece.text for piece in node.pieces)):
            text.encode()
        for message in node.messages:
            message.content.encode()
        for turn in node.turns:
            for refusal in turn.refusals:
                assert len(refusal.goal.encode()) <= 200
                assert len(refusal.reason.encode()) <= 1000
