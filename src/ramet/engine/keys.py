"""API keys: kept out of everything that is shown or stored, whatever a server sends back.

A server knows the key and may repeat it: in an error, in the list of its models, in the text of an answer; as it is,
with escapes of JSON, URLs or HTML, or as base64 or hexadecimal digits.
"""

from __future__ import annotations

import re
from base64 import b64encode
from dataclasses import replace
from functools import cached_property
from typing import TypeVar
from urllib.parse import quote

from ramet.errors import EngineError
from ramet.types import Completion, ToolCall

SHOWN = "***"  # in place of a key
SECRET_LENGTH = 12  # a shorter key, like EMPTY, is a placeholder: it is not removed from what the model writes
SHORTEST_START = 6  # characters: a text that ends with so many of a key may be a key in the making

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
        if not self._key:
            return text
        if self.is_placeholder:
            return text.replace(self._key, SHOWN)
        return self._pattern.sub(SHOWN, text)

    def hide_start(self, text: str) -> str:
        """The text without the key, and without the beginning of one at its end: the rest may have been cut off."""
        text = self.hide(text)
        if not self._key or self.is_placeholder:
            return text
        for form in self._forms:
            for length in range(min(len(form) - 1, len(text)), SHORTEST_START - 1, -1):
                if text.endswith(form[:length]):
                    return text[:-length] + SHOWN
        return text

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

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        """Matches the key with any of its characters escaped, and its base64 and hexadecimal forms."""
        plain = "".join(_escapes(letter) for letter in self._key)
        coded = [re.escape(form) for form in self._forms[2:]]
        return re.compile("|".join([plain, *sorted(coded, key=len, reverse=True)]), re.IGNORECASE)

    @cached_property
    def _forms(self) -> list[str]:
        """The key as it is, as in a URL, and in its coded forms."""
        cores = [core for shift in range(3) for core in _base64(self._key, shift)]
        return [self._key, quote(self._key, safe=""), *dict.fromkeys(cores), self._key.encode().hex()]


def _escapes(letter: str) -> str:
    """A pattern for one character, as it is or as JSON, Python, URLs or HTML escape it."""
    code = ord(letter)
    return (
        rf"\\*(?:{re.escape(letter)}|%(?:25)*{code:02x}|(?<=\\)u{code:04x}|(?<=\\)x{code:02x}"
        rf"|&\#0*{code};|&\#x0*{code:x};)"
    )


def _base64(key: str, shift: int) -> tuple[str, str]:
    """What the base64 of any text that has the key `shift` bytes after a multiple of three has in common."""
    data = b"\0" * shift + key.encode()
    start, end = -(-8 * shift // 6), 8 * len(data) // 6
    core = b64encode(data).decode()[start:end]
    return core, core.replace("+", "-").replace("/", "_")
