"""Replies for scripted models."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def delegate(*goals: Any, **more: Any) -> str:
    return call("delegate", goals=list(goals), **more)


def cell(*lines: str) -> str:
    return "\n".join(["<python>", *lines, "</python>"])


def words(number: int, word: str = "word") -> str:
    """A text of `number` tokens for the scripted engine."""
    return " ".join([word] * number)


def gather(goals: Sequence[str]) -> str:
    children = ", ".join(f"delegate({goal!r})" for goal in goals)
    return f"import asyncio\nparts = await asyncio.gather({children})"
