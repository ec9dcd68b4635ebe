"""Write an oracle's moves in a dialect, so that demonstrations are ordinary trees, run by the real runtime.

The oracle never sees a dialect. Its moves become tool calls, a code cell or lines with a sign, and the results are
parsed into its view.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from ramet.agent.dialects import make_dialect, terse, terse_calls
from ramet.engine.scripted import Reply, Script
from ramet.errors import ConfigError
from ramet.interfaces import Ask, Do, Move, Oracle, View
from ramet.tasks.returned import checked_move
from ramet.tasks.slips import slip_python, slip_terse, slip_tools
from ramet.types import Message, Prompt

LABEL = re.compile(r"^(?:clone \d+\.(\d+)|([a-z_]\w*)): ", re.MULTILINE)
BLOCK = re.compile(r"<tool_response>\n(.*?)\n</tool_response>", re.DOTALL)
CELL = re.compile(r"\[cell \d+\]\n(\[.*?\])$", re.DOTALL | re.MULTILINE)


@runtime_checkable
class WritesMoves(Protocol):
    """A dialect of your own in which oracles can demonstrate: how a move is written, and how results are parsed."""

    def write_move(self, move: Move) -> str: ...
    def read_results(self, message: Message) -> tuple[str, ...]:
        """One text per function call, then one per clone."""
        ...


def script(oracle: Oracle, dialect: str, *, solo: Oracle | None = None, levels: int | None = None) -> Script:
    """The oracle as a model for `ScriptedEngine`. `solo` moves at depth `levels`, where clones are refused.

    Where the budget cut a move off, the results that the oracle expects are missing. If it raises then, the node has
    nothing more to write, and the demonstration fails.
    """
    write, parse = forms_of(dialect)

    def reply(prompt: Prompt) -> Reply:
        history = tuple(parse(message) for message in prompt.messages[2:] if message.role == "user")
        mover = solo if solo is not None and prompt.depth == levels else oracle
        opening = next((message.content for message in prompt.messages if message.role == "user"), "")
        view = View(
            goal=prompt.goal,
            depth=prompt.depth,
            history=history,
            keys=prompt.keys,
            tokens=prompt.tokens,
            opening=opening,
        )
        try:
            move = checked_move(mover.move(view), mover)
        except Exception:
            if not prompt.closing and all(history):
                raise
            return Reply(text="", taught=False)
        return Reply(text=write(move), taught=not move.mistake)

    return reply


def forms_of(dialect: str) -> tuple[Callable[[Move], str], Callable[[Message], tuple[str, ...]]]:
    """How a move is written in a dialect, and how results are parsed."""
    forms = {
        "tools": (write_tools, parse_tools),
        "python": (write_python, parse_python),
        "terse": (write_terse, parse_terse),
        "tools-returns": (write_tools, parse_tools),
    }
    if dialect in forms:
        return forms[dialect]
    own = make_dialect(dialect)
    if not isinstance(own, WritesMoves):
        raise ConfigError(
            f"oracles cannot write {dialect!r}: it has no write_move and read_results; accepted: {', '.join(forms)}"
        )
    return own.write_move, own.read_results


def write_tools(move: Move) -> str:
    parts = [move.thought] if move.thought else []
    if move.slip:
        return "\n".join([*parts, *slip_tools(move)])
    if move.answer is not None:
        return "\n".join([*parts, f"Answer: {move.answer}"])
    for do in move.does:
        parts.append(_call(do.name, dict(do.arguments)))
    for context, asks in _by_context(move.asks):
        arguments: dict[str, object] = {"goals": [ask.goal for ask in asks]}
        if context:
            arguments["context"] = list(context)
        if any(ask.tokens for ask in asks):
            arguments["tokens"] = [ask.tokens for ask in asks]
        parts.append(_call("delegate", arguments))
    return "\n".join(parts)


def _call(name: str, arguments: dict[str, object]) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}</tool_call>"


def _by_context(asks: Sequence[Ask]) -> list[tuple[tuple[str, ...], list[Ask]]]:
    """Group consecutive asks with the same texts into one call."""
    groups: list[tuple[tuple[str, ...], list[Ask]]] = []
    for ask in asks:
        if groups and groups[-1][0] == ask.context:
            groups[-1][1].append(ask)
        else:
            groups.append((ask.context, [ask]))
    return groups


def parse_tools(message: Message) -> tuple[str, ...]:
    block = BLOCK.search(message.content)
    if block is None:
        return ()
    body = block.group(1)
    starts = _starts(body)
    pieces = [body[a:b].rstrip("\n") for a, b in zip(starts, [*starts[1:], len(body)], strict=True)]
    return tuple(piece.partition(": ")[2] for piece in pieces)


def _starts(body: str) -> list[int]:
    """Where results begin. Clones come last and are numbered: other lines like `alice: 3` belong to their answers."""
    starts: list[int] = []
    clones = 0
    for label in LABEL.finditer(body):
        number, name = label.groups()
        if number is not None and int(number) == clones + 1:
            clones += 1
        elif number is not None or (clones and name != "delegate"):  # a call too many is refused after the clones
            continue
        starts.append(label.start())
    return starts


def write_python(move: Move) -> str:
    parts = [move.thought] if move.thought else []
    if move.slip:
        return "\n".join([*parts, "<python>", *slip_python(move), "</python>"])
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
    context = f", context={list(ask.context)!r}" if ask.context else ""
    tokens = f", tokens={ask.tokens}" if ask.tokens else ""
    return f"delegate({ask.goal!r}{context}{tokens})"


def parse_python(message: Message) -> tuple[str, ...]:
    cell = CELL.search(message.content)
    if cell is None:
        return ()
    values: list[object] = json.loads(cell.group(1))
    return tuple(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for value in values)


def write_terse(move: Move) -> str:
    parts = [move.thought] if move.thought else []
    if move.slip:
        return "\n".join([*parts, *slip_terse(move)])
    if move.answer is not None:
        return "\n".join([*parts, terse.write(terse.ANSWER, move.answer)])
    parts += [terse.write(terse_calls.CALL, terse_calls.write_call(do.name, do.arguments)) for do in move.does]
    return "\n".join([*parts, *(terse.write(terse.ASK, _terse_ask(ask)) for ask in move.asks)])


def _terse_ask(ask: Ask) -> str:
    tokens = [f"{terse.TOKENS}{ask.tokens}"] if ask.tokens else []
    return " ".join([ask.goal, *(f"@{key}" for key in ask.context), *tokens])


def parse_terse(message: Message) -> tuple[str, ...]:
    results: list[str] = []
    for line in message.content.split("\n"):
        if line.startswith(f"{terse.RESULT} "):
            refused = line[2:] in (terse.REFUSED, terse.SAME, f"{terse.REFUSED} {terse.TOKENS}")
            results.append(f"refused: {line[2:]}" if refused else line[2:])
        elif line.startswith(f"{terse.MORE} ") and results:
            results[-1] += "\n" + line[2:]
    return tuple(results)


class Direct:
    """An oracle for tasks that cannot be split: it answers, whether it may delegate or not.

    Giving the whole task to a clone would only teach a model to pass its goal on.
    """

    def __init__(self, answer: str, *, thought: str = "") -> None:
        self.answer = answer
        self.thought = thought

    def move(self, view: View) -> Move:
        del view
        return Move(thought=self.thought, answer=self.answer)
