"""JSON that a model wrote. Valid JSON is read at once; broken JSON is repaired within limits.

Repairing can take time that grows with the square of the text, so a turn has a limit on the characters that are
repaired, and more than a little of it is repaired in another thread. The limits count characters, not seconds: the same
text has the same result on every machine.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar, cast

import anyio.to_thread
import json_repair

from ramet.agent.values import MAX_DEPTH, tidy
from ramet.errors import MalformedAction

T = TypeVar("T")
REPAIRED = 16_384  # characters that are repaired in one turn
REPAIRS = 32  # texts that are repaired in one turn
QUICK = 800  # characters that are repaired on the event loop
# What parsers raise for text that they cannot parse: deep nesting, huge numbers, odd escapes.
FAILURES = (ValueError, RecursionError, LookupError, TypeError, AttributeError, ArithmeticError, MemoryError)


class NotQuick(Exception):
    """There is too much to repair for the event loop: it has to be done in another thread."""


@dataclass(slots=True)
class Repairs:
    """What may still be repaired. `quick`: raise `NotQuick` instead of repairing more than a little."""

    quick: bool = False
    characters: int = REPAIRED
    texts: int = REPAIRS

    def repair(self, text: str) -> object:
        """The value of JSON that is broken; raise `MalformedAction` if there is none."""
        self.texts -= 1
        self.characters -= len(text)
        if self.texts < 0 or self.characters < 0:
            raise MalformedAction("too long to be repaired")
        if _nesting(text) > MAX_DEPTH:
            raise MalformedAction(f"nested more than {MAX_DEPTH} levels deep")
        if self.quick and REPAIRED - self.characters > QUICK:
            raise NotQuick
        try:
            return tidy(cast(object, json_repair.loads(text)))
        except FAILURES as error:
            raise MalformedAction(_reason(error)) from None


def load(text: str) -> object:
    """The value of valid JSON; raise `MalformedAction` with the reason if it is not."""
    try:
        loaded = cast(object, json.loads(text))
    except FAILURES as error:
        raise MalformedAction(_reason(error)) from None
    return tidy(loaded)


async def off_loop(parse: Callable[[Repairs], T]) -> T:
    """Parse at once, or in another thread if much has to be repaired. A cancelled node does not wait for the thread."""
    try:
        return parse(Repairs(quick=True))
    except NotQuick:
        return await anyio.to_thread.run_sync(parse, Repairs(), abandon_on_cancel=True)


def _reason(error: BaseException) -> str:
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)[:200]


def _nesting(text: str) -> int:
    """The most brackets that are open at once, those inside of texts included."""
    depth = deepest = 0
    for letter in text:
        if letter in "{[(":
            depth += 1
            deepest = max(deepest, depth)
        elif letter in "}])":
            depth = max(0, depth - 1)
    return deepest
