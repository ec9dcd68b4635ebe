"""Counting line by line, as demonstrations write it down: every line, the count so far, and sums of the parts.

A node that was given only the beginning of its pages counts the lines it was given and scales the count up.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from ramet.tasks.aggregate.lines import Line
from ramet.tasks.aggregate.query import Counts, Query, count

WORKINGS = ("pages", "lines")
LINE_BY_LINE = ("count", "turns", "marks", "word", "each_topic", "each_user", "each_speaker")
HEADER = re.compile(r"^(?:\[(?=.*\]$)|@)(lines \d+-\d+)\]?$\n?", re.MULTILINE)  # of a page; `@` in the terse dialect
CUT = re.compile(r" … \([\d,]+ bytes in all\)$", re.MULTILINE)


def shown_lines(opening: str) -> dict[str, int]:
    """By page that was cut, how many whole lines of it are in a node's first message.

    Example:
        shown_lines("Count.\\n\\n[lines 1-2]\\none\\ntwo\\n\\n[lines 3-4]\\nthree\\nfo … (10 bytes in all)")
        # {"lines 3-4": 1}
    """
    _, *parts = HEADER.split(opening)
    pages = zip(parts[::2], parts[1::2], strict=True)
    return {key: text.count("\n", 0, cut.start()) for key, text in pages if (cut := CUT.search(text))}


def begin_tally(query: Query) -> list[str]:
    """The topic that is counted, with a count of 0, so that every later count continues the one before it."""
    return [f"{query.topics[0]} 0"] if query.kind == "count" and query.topics else []


def tally(query: Query, numbered: Sequence[tuple[int, Line]], total: Counts) -> list[str]:
    """Each line with what it is and, if it counts, the count so far, which is added to `total`.

    What a line is: its topic in questions about a topic, its names in counts by name, otherwise yes or no.

    Example:
        Lines about cooking, music and music, in a count of music: "1 cooking", "2 music 1" and "3 music 2".
    """
    written: list[str] = []
    for number, line in numbered:
        names = [name for name, times in count(query, [line]).items() if times]
        total.update(names)
        topic = line.topic if query.topics else ""
        so_far = [f"{name or topic or 'yes'} {total[name]}" for name in names]
        written.append(f"{number} {', '.join(so_far) or topic or 'no'}")
    return written


def sums(parts: Sequence[Counts]) -> list[str]:
    """The counts of the parts, added one after the other, for every name.

    Example:
        sums([Counter({"": 3}), Counter({"": 5}), Counter({"": 2})])  # ["3 + 5 = 8, 8 + 2 = 10"]
    """
    names = sorted({name for part in parts for name in part})
    return [f"{name}: {_added(parts, name)}" if name else _added(parts, name) for name in names]


def _added(parts: Sequence[Counts], name: str) -> str:
    total, *others = (part[name] for part in parts)
    steps: list[str] = []
    for other in others:
        steps.append(f"{total} + {other} = {total + other}")
        total += other
    return ", ".join(steps) or str(total)


def scale_up(counts: Counts, *, seen: int, lines: int) -> tuple[str, Counts]:
    """The counts expected in all lines if the others are like those seen, rounded, and how that is worked out.

    Example:
        scale_up(Counter({"": 9}), seen=30, lines=120)  # ("9 in 30 of 120 lines: 9 * 120 / 30 = 36", Counter({"": 36}))
    """
    scaled = Counter({name: (2 * number * lines + seen) // (2 * seen) for name, number in counts.items()})
    how = [f"{name}: " * bool(name) + f"{counts[name]} * {lines} / {seen} = {scaled[name]}" for name in sorted(counts)]
    found = sum(counts.values())
    return f"{found} in {seen} of {lines} lines: {', '.join(how) or 0}", scaled
