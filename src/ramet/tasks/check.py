"""Is this answer right? The rules that several tasksets share. Values are parsed, never evaluated."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

NUMBER = re.compile(r"-?(?:\d[\d,]*(?:\.\d+)?|\.\d+)")
ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalise(text: str) -> str:
    """Lower case, without articles, punctuation and double spaces."""
    bare = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    return " ".join(ARTICLES.sub(" ", bare).split()) or text.lower().strip()


def exact_match(answer: str | None, accepted: Sequence[str]) -> float:
    """1 when it equals one of the accepted answers after normalising; numbers are compared as numbers."""
    if answer is None:
        return 0.0
    return float(any(_same(answer, one) for one in accepted))


def _same(answer: str, accepted: str) -> bool:
    if NUMBER.fullmatch(accepted.strip()):
        return bool(NUMBER.fullmatch(answer.strip())) and bool(same_number(answer, accepted))
    return normalise(answer) == normalise(accepted)


def f1(answer: str | None, accepted: Sequence[str]) -> float:
    """Overlap of words with the best of the accepted answers.

    Example:
        f1("the red house", ["red house"])  # 1.0
        f1("red", ["red house"])            # 0.6666666666666666
    """
    if answer is None:
        return 0.0
    return max((_f1(normalise(answer).split(), normalise(one).split()) for one in accepted), default=0.0)


def _f1(said: Sequence[str], wanted: Sequence[str]) -> float:
    if not said or not wanted:
        return float(list(said) == list(wanted))
    common = sum((Counter(said) & Counter(wanted)).values())
    return 2 * common / (len(said) + len(wanted))


def last_number(text: str | None) -> str | None:
    """The last number in a text, without thousands separators.

    Example:
        last_number("12 eggs, so $1,240.50.")  # "1240.50"
    """
    found = NUMBER.findall((text or "").replace("\N{MINUS SIGN}", "-"))
    return found[-1].replace(",", "").rstrip(".") if found else None


def same_number(answer: str | None, wanted: str) -> float:
    """1 when the last number of the answer is the wanted one."""
    from decimal import Decimal

    said, right = last_number(answer), last_number(wanted)
    return float(said is not None and right is not None and Decimal(said) == Decimal(right))
