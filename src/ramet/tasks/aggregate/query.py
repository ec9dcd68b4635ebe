"""Questions over lines: parsed from text, answered by counting, split into smaller ones, and graded.

Some answers add up: a count, or a count per name. Others, like "which is the most common", follow from such counts. So
each question has a part that can be asked of any lines, and whose answers are added up afterwards.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise

from ramet.tasks.aggregate.lines import Kind, Line
from ramet.tasks.numbers import last_number

Counts = Counter[str]  # by name; a plain count has no name
WHERE = re.compile(r"^in the given lines, ", re.IGNORECASE)
TOPIC = r"'([^']+)'"
MONTH = r"(?: dated in month (\d\d) of (\d{4}))?"
NAME = r"((?-i:[A-Z][A-Z .]*))"  # capitals only, so that no words of a sentence match
REPLY = rf"how many turns labelled {NAME} alone come directly after a turn labelled {NAME} alone"
FORMS = {
    # Over requests.
    "count": rf"how many (?:of the )?requests(?: by user (\d+))?{MONTH}(?: belong to the topic {TOPIC})?",
    "most": r"which topic is the most common",
    "least": r"which topic is the least common",
    "compare": rf"is the topic {TOPIC} more common than, less common than, or of the same frequency as {TOPIC}",
    "top_user": rf"which user has the most requests of the topic {TOPIC}",
    "more_user": rf"which of the users (\d+) and (\d+) has more requests of the topic {TOPIC}",
    "users": rf"which users have requests{MONTH} of the topic {TOPIC}",
    "each_topic": r"how many requests belong to each topic",
    "each_user": rf"how many requests of the topic {TOPIC} does each user have",
    # Over turns of a transcript.
    "turns": rf"how many turns carry {NAME} in their speaker label",
    "marks": rf"how many turns with {NAME} in the speaker label contain a question mark",
    "word": r"in how many turns does the exact word '(.+?)' occur at least once in what is said(?: \(.*\))?",
    "most_turns": rf"(?:leaving {NAME} aside, )?which speaker name is in the most speaker labels",
    "compare_turns": rf"does {NAME} have more turns than, fewer turns than, or as many turns as {NAME}",
    "reply": REPLY,
    "each_speaker": r"how many turns carry each name in their speaker label",
    "edges": rf"{REPLY}, is the first turn labelled \1 alone, and is the last turn labelled \2 alone",
}
READ = {kind: re.compile(form, re.IGNORECASE) for kind, form in FORMS.items()}
PARTS = {
    "most": "each_topic",
    "least": "each_topic",
    "compare": "each_topic",
    "top_user": "each_user",
    "more_user": "each_user",
    "most_turns": "each_speaker",
    "compare_turns": "each_speaker",
    "reply": "edges",
}
HOW = {
    "most": "Answer with the topic name.",
    "least": "Answer with the topic name.",
    "compare": "Answer with one of: more common than, less common than, same frequency as.",
    "top_user": "Answer with the user id.",
    "more_user": "Answer with the user id.",
    "users": "Answer with the user ids, separated by commas, or none.",
    "each_topic": "Answer on one line, like: cooking: 3, travel: 1.",
    "each_user": "Answer on one line, like: 10456: 3, 60267: 1.",
    "each_speaker": "Answer on one line, like: ADA: 3, BOB: 1.",
    "edges": "Answer on one line, like: 2, yes, no.",
}
NUMBERS = ("count", "turns", "marks", "word", "reply")
LISTS = ("users", "each_topic", "each_user", "each_speaker")
COMPARED = re.compile(
    r"(?:of )?(?:the )?((?:more|less) common|same frequency|(?:more|fewer) turns|as many turns)(?: than| as)?"
)
BETWEEN = re.compile(r"[,;\n]|(?<=\d) and ")
MARKER = re.compile(r"^\s*(?:[-•]|\d{1,3}[.)]|and)\s+")  # before an item of a list
COLON = re.compile(r"[*`'\"]*\s*:\s*")  # after a name
FIRST, LAST = "first", "last"
FAR = 10_000  # a number that is further off scores 0


@dataclass(frozen=True, slots=True)
class Query:
    """A question: its kind, the names in it (empty where one is left out), and its text."""

    kind: str
    names: tuple[str, ...] = ()
    text: str = field(default="", compare=False)

    @property
    def answers_with(self) -> Kind:
        return "number" if self.kind in NUMBERS else "list" if self.kind in LISTS else "label"

    @property
    def part(self) -> Query:
        """The question for some of the lines: itself, if its answers add up."""
        kind = PARTS.get(self.kind, self.kind)
        if kind == self.kind:
            return self
        if kind == "each_user":
            topic = self.names[-1]
            return Query(kind, (topic,), f"how many requests of the topic '{topic}' does each user have")
        if self.kind == "reply":
            after, before = self.names
            more = f"is the first turn labelled {after} alone, and is the last turn labelled {before} alone"
            return Query(kind, self.names, f"{self.text}, {more}")
        return Query(kind, (), FORMS[kind])

    @property
    def topics(self) -> list[str]:
        """The topics in the question."""
        if self.kind in ("compare", "top_user", "each_user"):
            return list(self.names)
        return [name for name in self.names[-1:] if name] if self.kind in ("count", "more_user", "users") else []

    def fits(self, topics: Sequence[str]) -> bool:
        """Whether lines with these topics can answer it."""
        by_topic = self.kind in ("most", "least", "each_topic") or bool(self.topics)
        return not by_topic or (bool(topics) and all(name in topics for name in self.topics))


def read_query(text: str) -> Query | None:
    """The only question in a text; None if there is none, or more than one.

    Example:
        read_query("Read them. In the given lines, which topic is the most common? (lines 1-50)").kind  # "most"
    """
    questions = [sentence.strip() for sentence in re.findall(r"([^.?!]*)\?", text[:4000])]
    if len(questions) != 1:
        return None
    sentence = WHERE.sub("", questions[0])
    for kind, form in READ.items():
        match = form.fullmatch(sentence)
        if match:
            return Query(kind, tuple(name or "" for name in match.groups()), sentence[:1].lower() + sentence[1:])
    return None


# Counting.


def count(query: Query, lines: Sequence[Line]) -> Counts:
    """Count over lines, for a question whose answers add up."""
    names = query.names
    if query.kind == "each_topic":
        return Counter(line.topic for line in lines)
    if query.kind == "each_user":
        return Counter(line.user for line in lines if line.topic == names[0])
    if query.kind == "each_speaker":
        return Counter(name for line in lines for name in line.speakers)
    if query.kind == "users":
        month = f"{names[1]}-{names[0]}"
        return Counter(line.user for line in lines if line.topic == names[2] and (not names[0] or line.month == month))
    if query.kind == "edges":
        return _edges(names, lines)
    return Counter({"": sum(_counts(query, line) for line in lines)})


def _counts(query: Query, line: Line) -> bool:
    names = query.names
    if query.kind == "turns":
        return names[0] in line.speakers
    if query.kind == "marks":
        return names[0] in line.speakers and "?" in line.speech
    if query.kind == "word":
        return re.search(rf"(?<!\w){re.escape(names[0])}(?!\w)", line.speech, re.IGNORECASE) is not None
    user, month, year, topic = names
    right = (not user or line.user == user) and (not topic or line.topic == topic)
    return right and (not month or line.month == f"{year}-{month}")


def _edges(names: Sequence[str], lines: Sequence[Line]) -> Counts:
    after, before = ([line.speakers == [name] for line in lines] for name in names)
    total = sum(a and b for a, b in zip(after[1:], before, strict=False))
    return Counter({"": total, FIRST: int(after[0]), LAST: int(before[-1])})


def add(query: Query, parts: Sequence[Counts]) -> Counts:
    """The counts of all parts together, in the order of their lines."""
    total: Counts = Counter()
    for part in parts:
        total += part
    if query.kind == "edges":  # a reply may span two parts
        total[""] += sum(a[LAST] and b[FIRST] for a, b in pairwise(parts))
        total[FIRST], total[LAST] = parts[0][FIRST], parts[-1][LAST]
    return total


def decide(query: Query, counts: Counts, topics: Sequence[str]) -> list[str]:
    """The right answers, several for a tie; for a list, its items."""
    kind, names = query.kind, query.names
    if kind in ("most", "least"):
        best = (max if kind == "most" else min)(counts[topic] for topic in topics)
        return [topic for topic in topics if counts[topic] == best]
    if kind in ("compare", "compare_turns"):
        words = ("more common than", "less common than", "same frequency as")
        words = words if kind == "compare" else ("more turns than", "fewer turns than", "as many turns as")
        a, b = (counts[name] for name in names)
        return [words[0] if a > b else words[1] if a < b else words[2]]
    if kind in ("top_user", "more_user", "most_turns"):
        among = list(names[:2]) if kind == "more_user" else sorted(set(counts) - {*names})
        best = max((counts[name] for name in among), default=0)
        return [name for name in among if counts[name] == best] or ["none"]
    return items(query, counts) if query.answers_with == "list" else [say(query, counts)]


# Wording.


def how(query: Query) -> str:
    return HOW.get(query.kind, "Answer with one number." if query.answers_with == "number" else "Answer briefly.")


def items(query: Query, counts: Counts) -> list[str]:
    """The entries of a list, sorted by name, without those that do not occur."""
    names = sorted(name for name, number in counts.items() if number)
    return names if query.kind == "users" else [f"{name}: {counts[name]}" for name in names]


def say(query: Query, counts: Counts) -> str:
    """Counts as the text of an answer."""
    if query.answers_with == "list":
        return ", ".join(items(query, counts)) or "none"
    if query.kind == "edges":
        first, last = ("yes" if counts[edge] else "no" for edge in (FIRST, LAST))
        return f"{counts['']}, {first}, {last}"
    return str(counts[""])


def hear(query: Query, answer: str) -> Counts:
    """The counts in an answer that was worded by `say`."""
    if query.answers_with == "list":
        entries = answer.split(", ") if answer != "none" else []
        pairs = [entry.rpartition(": ") if query.kind != "users" else (entry, "", "1") for entry in entries]
        return Counter({name: int(number) for name, _, number in pairs})
    if query.kind == "edges":
        number, first, last = answer.split(", ")
        return Counter({"": int(number), FIRST: int(first == "yes"), LAST: int(last == "yes")})
    return Counter({"": int(answer)})


def grade(kind: Kind, accepted: Sequence[str], answer: str | None) -> float:
    """A number scores 0.75 to the power of its error; a label 1 if it is the same; a list the F1 of its items.

    Example:
        grade("number", ["7"], "There are 9.")      # 0.5625
        grade("list", ["10456", "60267"], "60267")  # 0.6666666666666666
    """
    if answer is None:
        return 0.0
    if kind == "number":
        number = last_number(answer)
        return 0.0 if number is None else 0.75 ** float(min(abs(number - Fraction(accepted[0])), FAR))
    if kind == "label":
        return float(_label(answer) in map(_label, accepted))
    given, right = _occurring(_entries(answer)), _occurring(accepted)
    if not right:
        return float(not given and plain(answer) != "")
    return 2 * len(given & right) / (len(given) + len(right))


def same_answer(kind: Kind, one: str, other: str) -> bool:
    """Whether two answers name the same number, the same label, or the same items in any order.

    Example:
        same_answer("number", "There are 7.", "7")         # True
        same_answer("list", "60267, 10456", "10456;60267") # True
    """
    if kind == "number":
        first, second = last_number(one), last_number(other)
        return first is not None and first == second
    if kind == "label":
        return _label(one) == _label(other)
    return _occurring(_entries(one)) == _occurring(_entries(other))


def _label(text: str) -> str:
    """A plain label; of a comparison without its last word, and `of the same frequency` is the same as without `of`."""
    match = COMPARED.fullmatch(plain(text))
    return plain(text) if match is None else match[1]


def _entries(answer: str) -> list[str]:
    """The items of a list, on one line or one per line, without what marks them as items."""
    return [COLON.sub(": ", MARKER.sub("", entry)) for entry in BETWEEN.split(answer)]


def plain(text: str) -> str:
    """Lower case, without quotes, brackets, a final full stop, or repeated spaces."""
    return " ".join(text.lower().split()).strip(" '\"`*.[](){}")


def _occurring(entries: Sequence[str]) -> set[str]:
    """Entries other than empty ones, `none` and counts of 0."""
    items = {plain(entry) for entry in entries}
    return {entry for entry in items if entry not in ("", "none") and not entry.endswith(": 0")}
