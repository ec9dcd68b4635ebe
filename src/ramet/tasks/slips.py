"""Mistakes of form, as small models make them: a wrong name of a function, a wrong argument, wrong syntax.

None of them has an effect other than an error message, so the same move can follow in its right form.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from ramet.agent.dialects.terse_calls import write_call
from ramet.interfaces import Ask, Do, Move

WRONG_NAMES = {"delegate": "ask_clone", "guess": "guess_number", "search": "web_search", "read": "open_page"}
WRONG_ARGUMENTS = {"goals": "tasks", "goal": "task", "context": "texts", "n": "number", "query": "q", "page": "title"}


def slip_tools(move: Move) -> list[str]:
    """The calls of a move, or a call in place of its answer, with the mistake."""
    calls: list[tuple[str, Mapping[str, object]]] = [(do.name, do.arguments) for do in move.does]
    if move.answer is not None:
        calls = [("answer", {"answer": move.answer})]  # there is no such function
    elif any(ask.context for ask in move.asks):
        calls += [("delegate", {"goals": [ask.goal], "context": [*ask.context]}) for ask in move.asks]
    elif move.asks:
        calls.append(("delegate", {"goals": [ask.goal for ask in move.asks]}))
    return [f"<tool_call>{_wrong_call(name, arguments, move)}</tool_call>" for name, arguments in calls]


def _wrong_call(name: str, arguments: Mapping[str, object], move: Move) -> str:
    if move.slip == "syntax":
        return f"{name}({', '.join(json.dumps(value, ensure_ascii=False) for value in arguments.values())})"
    if move.slip == "name":
        name = _wrong_name(name)
    else:
        arguments = {_wrong_argument(key): value for key, value in arguments.items()}
    return json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)


def _wrong_name(name: str) -> str:
    return WRONG_NAMES.get(name, f"{name}_it")


def _wrong_argument(key: str) -> str:
    return WRONG_ARGUMENTS.get(key, f"{key}_value")


def slip_python(move: Move) -> list[str]:
    """The lines of a cell with the mistake; one in place of an answer does not end the node."""
    if move.answer is not None:
        forms = {"name": "answer({!r})", "argument": "print({!r})", "syntax": "return {!r}"}
        return [forms[move.slip].format(move.answer)]
    calls = [_python_call(do, move) for do in move.does]
    asks = [_python_call(_delegate(ask), move) for ask in move.asks]
    lines = ["import asyncio, json"] if asks else ["import json"]
    lines += [f"parts = [{', '.join(calls)}]"] if calls else []
    lines += [f"parts = await asyncio.gather({', '.join(asks)})"] if asks else []
    if move.slip == "syntax":
        lines[-1] = lines[-1][:-1]  # without its last bracket
    return [*lines, "print(json.dumps(parts))"]


def _delegate(ask: Ask) -> Do:
    texts = {"context": [*ask.context]} if ask.context else {}
    return Do(name="delegate", arguments={"goal": ask.goal, **texts})


def _python_call(do: Do, move: Move) -> str:
    name = _wrong_name(do.name) if move.slip == "name" else do.name
    wrong = move.slip == "argument"
    given = [f"{_wrong_argument(key) if wrong else key}={value!r}" for key, value in do.arguments.items()]
    return f"{name}({', '.join(given)})"


def slip_terse(move: Move) -> Sequence[str]:
    """Calls, goals or the answer without their sign: the dialect has no other form to get wrong."""
    if move.answer is not None:
        return [move.answer]
    calls = [write_call(do.name, do.arguments) for do in move.does]
    return [*calls, *(" ".join([ask.goal, *(f"@{key}" for key in ask.context)]) for ask in move.asks)]
