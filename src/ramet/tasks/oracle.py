"""An oracle's moves as words of a dialect: demonstrations are trees like any other, run by the real runtime.

The oracle never sees a dialect. Its moves become tool calls, a code cell or lines with a sign, and what comes back is
read into its view.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ramet.agent.dialects import terse
from ramet.engine.scripted import Script
from ramet.errors import ConfigError
from ramet.types import Message, Prompt

LABEL = re.compile(r"^(?:clone \d+\.\d+|[a-z_]\w*): ", re.MULTILINE)
BLOCK = re.compile(r"<tool_response>\n(.*?)\n</tool_response>", re.DOTALL)
CELL = re.compile(r"\[cell \d+\]\n(\[.*?\])$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What an oracle sees of its node: the goal, and what came back from each of its moves so far."""

    goal: str
    depth: int
    history: tuple[tuple[str, ...], ...] = ()  # per move, a text per function call and per clone, in that order

    @property
    def turn(self) -> int:
        return len(self.history)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """Part of a move: give a clone this goal, with the texts of these keys."""

    goal: str
    context: tuple[str, ...] = ()
    tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Do:
    """Part of a move: call a function of the world."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One turn: functions to call and clones to ask, all at once; or an answer. `thought` is said before."""

    thought: str = ""
    does: tuple[Do, ...] = ()
    asks: tuple[Ask, ...] = ()
    answer: str | None = None


class Oracle(Protocol):
    """A policy that knows the answers. It moves; a dialect turns its moves into words."""

    def move(self, view: View) -> Move: ...


def script(oracle: Oracle, dialect: str, *, alone: Oracle | None = None, levels: int | None = None) -> Script:
    """The oracle as a model for `ScriptedEngine`. `alone` moves at the lowest of `levels`, where clones are refused."""
    voices = {
        "tools": (tools_words, tools_results),
        "python": (python_words, python_results),
        "terse": (terse_words, terse_results),
    }
    if dialect not in voices:
        raise ConfigError(f"oracles speak {', '.join(voices)}, not {dialect}")
    say, hear = voices[dialect]

    def speak(prompt: Prompt) -> str:
        history = tuple(hear(message) for message in prompt.messages[2:] if message.role == "user")
        who = alone if alone is not None and prompt.depth == levels else oracle
        return say(who.move(View(goal=prompt.goal, depth=prompt.depth, history=history)))

    return speak


def tools_words(move: Move) -> str:
    parts = [move.thought] if move.thought else []
    if move.answer is not None:
        return "\n".join([*parts, f"Answer: {move.answer}"])
    for do in move.does:
        parts.append(_call(do.name, dict(do.arguments)))
    for context, asks in _alike(move.asks):
        arguments: dict[str, object] = {"goals": [ask.goal for ask in asks]}
        if context:
            arguments["context"] = list(context)
        if any(ask.tokens for ask in asks):
            arguments["tokens"] = [ask.tokens for ask in asks]
        parts.append(_call("delegate", arguments))
    return "\n".join(parts)


def _call(name: str, arguments: dict[str, object]) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}</tool_call>"


def _alike(asks: Sequence[Ask]) -> list[tuple[tuple[str, ...], list[Ask]]]:
    """Neighbours that share their texts go into one call."""
    groups: list[tuple[tuple[str, ...], list[Ask]]] = []
    for ask in asks:
        if groups and groups[-1][0] == ask.context:
            groups[-1][1].append(ask)
        else:
            groups.append((ask.context, [ask]))
    return groups


def tools_results(message: Message) -> tuple[str, ...]:
    found = BLOCK.search(message.content)
    if found is None:
        return ()
    body = found.group(1)
    starts = [match.start() for match in LABEL.finditer(body)]
    pieces = [body[a:b].rstrip("\n") for a, b in zip(starts, [*starts[1:], len(body)], strict=True)]
    return tuple(piece.partition(": ")[2] for piece in pieces)


def python_words(move: Move) -> str:
    parts = [move.thought] if move.thought else []
    if move.answer is not None:
        return "\n".join([*parts, "<python>", f"finish({move.answer!r})", "</python>"])
    calls = [_python_do(do) for do in move.does]
    asks = [_python_ask(ask) for ask in move.asks]
    lines = ["import asyncio, json"] if asks else ["import json"]
    if calls:
        lines.append(f"parts = [{', '.join(calls)}]")
    if asks:
        lines.append(f"parts {'+=' if calls else '='} await asyncio.gather({', '.join(asks)})")
    return "\n".join([*parts, "<python>", *lines, "print(json.dumps(parts))", "</python>"])


def _python_do(do: Do) -> str:
    return f"{do.name}({', '.join(f'{name}={value!r}' for name, value in do.arguments.items())})"


def _python_ask(ask: Ask) -> str:
    more = f", context={list(ask.context)!r}" if ask.context else ""
    return f"delegate({ask.goal!r}{more}{f', tokens={ask.tokens}' if ask.tokens else ''})"


def python_results(message: Message) -> tuple[str, ...]:
    found = CELL.search(message.content)
    if found is None:
        return ()
    values: list[object] = json.loads(found.group(1))
    return tuple(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for value in values)


def terse_words(move: Move) -> str:
    """How many tokens a clone is given cannot be said in this dialect, and is left out."""
    if move.does:
        raise ConfigError(f"terse has no functions, and this oracle calls {move.does[0].name}")
    parts = [move.thought] if move.thought else []
    if move.answer is not None:
        return "\n".join([*parts, terse.write(terse.ANSWER, move.answer)])
    asks = [" ".join([ask.goal, *(f"@{key}" for key in ask.context)]) for ask in move.asks]
    return "\n".join([*parts, *(terse.write(terse.ASK, ask) for ask in asks)])


def terse_results(message: Message) -> tuple[str, ...]:
    results: list[str] = []
    for line in message.content.split("\n"):
        if line.startswith(f"{terse.TOLD} "):
            results.append(line[2:])
        elif line.startswith(f"{terse.MORE} ") and results:
            results[-1] += "\n" + line[2:]
    return tuple(results)


class Relay:
    """An oracle for tasks whose parts nobody can name: it answers, or has one clone answer and passes that on."""

    def __init__(self, question: str, answer: str, *, delegate: bool, thought: str = "") -> None:
        self.question = question
        self.answer = answer
        self.delegate = delegate
        self.thought = thought

    def move(self, view: View) -> Move:
        if self.delegate and view.depth == 0:
            if view.turn == 0:
                return Move(asks=(Ask(goal=f"Solve this and answer briefly. {self.question}"),))
            return Move(answer=view.history[0][0])
        return Move(thought=self.thought, answer=self.answer)
