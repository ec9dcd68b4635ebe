"""API keys: kept out of everything that is shown or stored, whatever a server sends back.

A server knows the key and may repeat it: in an error, in the list of its models, in the text of an answer; as it is,
with escapes, across lines, or in base64, hexadecimal or decimal digits. So a text is searched as it reads without
escapes and spaces, and what is found there is replaced in the text itself.
"""

from __future__ import annotations

import re
import sys
from array import array
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from html.entities import html5
from string import ascii_lowercase, ascii_uppercase
from typing import TypeVar

from ramet.errors import EngineError
from ramet.types import Completion, ToolCall

SHOWN = "***"  # in place of a key
SECRET_LENGTH = 12  # a shorter key, like EMPTY, is a placeholder: it is not removed from what the model writes
SHORTEST_START = 6  # characters: a text that ends with so many of a key may be a key in the making
ROUNDS = 5  # escapes of escapes that are undone

# Escapes of HTML (by number and by name), Rust, JSON, Python, URLs, quoted-printable and C; and backslashes.
ESCAPE = re.compile(
    r"&\#[xX](?P<html>[0-9a-fA-F]{1,6});?|&\#(?P<decimal>\d{1,7});?|&(?P<name>[a-zA-Z]{2,24});"
    r"|\\\\*u\{(?P<braces>[0-9a-fA-F]{1,6})\}|\\\\*u(?P<json>[0-9a-fA-F]{4})|\\\\*x(?P<python>[0-9a-fA-F]{2})"
    r"|%(?P<url>[0-9a-fA-F]{2})|=(?P<mail>[0-9a-fA-F]{2})|\\\\*(?P<octal>[01][0-7]{2})|\\\\*[nrt]|\\\\*"
)
BASES = {"decimal": 10, "octal": 8}  # others: 16
SPACES = re.compile(r"[\s\u00ad\u200b-\u200f\u2060\ufeff]+")
UNFINISHED = re.compile(r"(?:&\#?\w{0,24}|\\+(?:u\{?|x)?[0-9a-fA-F]{0,4}|[%=][0-9a-fA-F]?)\Z")
NOT_HEX = re.compile(r"0[xX]|[^0-9a-fA-F]+")
LOWER = str.maketrans(ascii_uppercase, ascii_lowercase)  # one character for one, unlike str.lower

E = TypeVar("E", bound=EngineError)


class Secret:
    """One API key, or none."""

    def __init__(self, key: str | None) -> None:
        self._key = key or ""

    @property
    def is_placeholder(self) -> bool:
        return len(self._key) < SECRET_LENGTH

    def hide(self, text: str) -> str:
        """The text without the key, in whatever way it is written."""
        return self._hidden(text, also_start=False)

    def hide_start(self, text: str) -> str:
        """The text without the key, and without the beginning of one at its end: the rest may have been cut off."""
        return self._hidden(text, also_start=True)

    def clean(self, completion: Completion) -> Completion:
        """What a model wrote, without the key. Raises if the key is in token ids, from which it could be read."""
        if not self._key or self.is_placeholder:
            return completion
        text, thoughts = self.hide_start(completion.text), self.hide_start(completion.thoughts)
        calls = tuple(self._clean_call(call) for call in completion.calls)
        if (text, thoughts, calls) == (completion.text, completion.thoughts, completion.calls):
            return completion
        if completion.token_ids:
            raise EngineError("the server sent the API key back in what the model wrote: the answer is dropped")
        return replace(completion, text=text, thoughts=thoughts, calls=calls)

    def scrub(self, error: E) -> E:
        """The error without the key in its message."""
        error.args = tuple(self.hide(arg) if isinstance(arg, str) else arg for arg in error.args)
        return error

    def _clean_call(self, call: ToolCall) -> ToolCall:
        return ToolCall(
            id=self.hide_start(call.id), name=self.hide_start(call.name), arguments=self.hide_start(call.arguments)
        )

    def _hidden(self, text: str, *, also_start: bool) -> str:
        if not self._key:
            return text
        if self.is_placeholder:
            return text.replace(self._key, SHOWN)
        cut = UNFINISHED.search(text, max(0, len(text) - 40)) if also_start else None
        whole = text[: cut.start()] if cut else text
        spans = [match.span() for match in self._numbers.finditer(whole)]
        for pattern, forms in ((ESCAPE, self._forms), (NOT_HEX, [self._key.encode().hex()])):
            if any(_places(_letters(whole, pattern), forms, also_start=also_start)):  # without their places: fast
                reading = _reading(whole, pattern)
                found = _places(reading.letters, forms, also_start=also_start)
                spans += [(reading.starts[first], reading.ends[last]) for first, last in found]
        return _without(text, [(begin, len(text) if end == len(whole) else end) for begin, end in spans])

    @cached_property
    def _forms(self) -> list[str]:
        """The key as it reads without escapes, and what every base64 of it has in common."""
        cores = [core for shift in range(3) for core in _base64(self._key, shift)]
        plain = [self._key, self._key.replace("\\", ""), _letters(self._key, ESCAPE)]
        return list(dict.fromkeys(form.translate(LOWER) for form in [*plain, *cores]))

    @cached_property
    def _numbers(self) -> re.Pattern[str]:
        """The key as a list of numbers, as languages print bytes."""
        return re.compile(r"(?<!\d)" + r"[^\d]{1,3}".join(str(code) for code in self._key.encode()) + r"(?!\d)")


def _places(letters: str, forms: list[str], *, also_start: bool) -> Iterator[tuple[int, int]]:
    """The first and last letter of every form; `also_start`: and of the beginning of one at the end."""
    letters = letters.translate(LOWER)
    for form in forms:
        at = letters.find(form)
        while at >= 0:
            yield at, at + len(form) - 1
            at = letters.find(form, at + len(form))
    for form in forms if also_start else ():
        lengths = range(min(len(form) - 1, len(letters)), SHORTEST_START - 1, -1)
        length = next((length for length in lengths if letters.endswith(form[:length])), None)
        if length is not None:
            yield len(letters) - length, len(letters) - 1


def _letters(text: str, pattern: re.Pattern[str]) -> str:
    """A text as it reads without spaces, and with the pattern's matches replaced by what they mean."""
    text = "".join(text.split()) if text.isascii() else SPACES.sub("", text)
    for _ in range(ROUNDS):
        before, text = text, pattern.sub(_meaning, text)
        if len(text) == len(before):
            break
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The same with where in the text each letter begins and ends."""

    letters: str
    starts: array[int]
    ends: array[int]


def _reading(text: str, pattern: re.Pattern[str]) -> Reading:
    whole = Reading(letters=text, starts=array("q", range(len(text))), ends=array("q", range(1, len(text) + 1)))
    reading = _replaced(whole, SPACES)
    for _ in range(ROUNDS):
        before, reading = reading, _replaced(reading, pattern)
        if len(reading.letters) == len(before.letters):
            break
    return reading


def _replaced(reading: Reading, pattern: re.Pattern[str]) -> Reading:
    """A reading in which each match is the letter it stands for, or nothing."""
    parts: list[str] = []
    starts, ends = array("q"), array("q")
    done = 0
    for match in pattern.finditer(reading.letters):
        begin, end = match.span()
        letter = _meaning(match)
        parts += [reading.letters[done:begin], letter]
        starts += reading.starts[done:begin]
        ends += reading.ends[done:begin]
        if letter == match[0]:
            starts += reading.starts[begin:end]
            ends += reading.ends[begin:end]
        elif letter:
            starts.append(reading.starts[begin])
            ends.append(reading.ends[end - 1])
        done = end
    rest = slice(done, None)
    return Reading(
        letters="".join([*parts, reading.letters[rest]]),
        starts=starts + reading.starts[rest],
        ends=ends + reading.ends[rest],
    )


def _meaning(match: re.Match[str]) -> str:
    """The letter that an escape stands for: nothing for spaces and backslashes; what no key has stays as it is."""
    kind = match.lastgroup
    if kind is None:
        return ""
    if kind == "name":
        letter = html5.get(f"{match['name']};") or html5.get(f"{match['name'].lower()};", "")
    else:
        code = int(match[kind], BASES.get(kind, 16))
        letter = chr(code) if code <= sys.maxunicode else ""
    if SPACES.fullmatch(letter):
        return ""
    return letter if "!" <= letter <= "~" and len(letter) == 1 else match[0]


def _without(text: str, spans: list[tuple[int, int]]) -> str:
    parts: list[str] = []
    done = 0
    for begin, end in sorted(spans):
        if end <= done:
            continue
        parts += [text[done:begin], SHOWN] if begin >= done else []
        done = end
    return "".join([*parts, text[done:]])


def _base64(key: str, shift: int) -> tuple[str, str]:
    """What the base64 of any text that has the key `shift` bytes after a multiple of three has in common."""
    data = b"\0" * shift + key.encode()
    start, end = -(-8 * shift // 6), 8 * len(data) // 6
    core = b64encode(data).decode()[start:end]
    return core, core.replace("+", "-").replace("/", "_")
