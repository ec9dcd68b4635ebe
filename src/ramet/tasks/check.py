"""Checks of answers that several tasksets share. Values are parsed, never evaluated as code."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from unicodedata import category, normalize

from ramet.tasks.numbers import only_number, plain_signs

ASCII_MARKS = str.maketrans("", "", string.punctuation)
MARKS = "\u2212\u00b4\u02bc"  # minus sign and apostrophes, which Unicode does not count as punctuation
MINUS = re.compile(r"(?<![\w)])-(?=[$£€]?\.?\d)")
INSIDE = re.compile(r"(?<=\d)[^\w\s,](?=\d)|(?<=\d),(?=\d)(?!\d{3}(?!\d))")  # not the comma of 1,000
ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalise(text: str) -> str:
    """Lower case, without articles, punctuation and repeated spaces; a text of only articles keeps them.

    Example:
        normalise("The “Red” House.")  # "red house"
        normalise("(A)")               # "a"
    """
    words = text.lower().translate(ASCII_MARKS)
    if not words.isascii():
        kept = "".join(letter for letter in normalize("NFC", words) if not _is_mark(letter))
        words = normalize("NFC", kept)
    return " ".join(ARTICLES.sub(" ", words).split()) or " ".join(words.split()) or text.lower().strip()


def _is_mark(letter: str) -> bool:
    return letter in MARKS or category(letter).startswith("P")


def exact_match(answer: str | None, accepted: Sequence[str]) -> float:
    """1 if the answer equals an accepted one after normalising; numbers are compared as numbers."""
    if answer is None:
        return 0.0
    return float(any(_same(answer, text) for text in accepted))


def _same(answer: str, accepted: str) -> bool:
    number = only_number(accepted)
    if number is not None:
        return only_number(answer) == number
    return normalise(answer) == normalise(accepted) and _marks(answer) == _marks(accepted)


def _marks(text: str) -> tuple[int, int]:
    """The minus signs and the marks inside numbers, which normalising drops: -5% is not 5%, 3.5 km are not 35 km."""
    text = plain_signs(text)
    return len(MINUS.findall(text)), len(INSIDE.findall(text))


def f1(answer: str | None, accepted: Sequence[str]) -> float:
    """The largest word overlap (F1) with an accepted answer.

    Example:
        f1("the red house", ["red house"])  # 1.0
        f1("red", ["red house"])            # 0.6666666666666666
    """
    if answer is None:
        return 0.0
    return max((_f1(normalise(answer).split(), normalise(text).split()) for text in accepted), default=0.0)


def _f1(answer: Sequence[str], accepted: Sequence[str]) -> float:
    if not answer or not accepted:
        return float(list(answer) == list(accepted))
    common = sum((Counter(answer) & Counter(accepted)).values())
    return 2 * common / (len(answer) + len(accepted))
