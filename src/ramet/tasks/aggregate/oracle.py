"""The oracle of `aggregate`, and the wording of its goals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from ramet.interfaces import Ask, Move, View
from ramet.tasks.aggregate.lines import (
    Line,
    bounds,
    find_spans,
    is_brief,
    keys_of,
    labels_of,
    lines_in,
    num_lines,
    topics_of,
    truth,
)
from ramet.tasks.aggregate.query import Counts, Query, add, count, decide, grade, hear, how, read_query, say
from ramet.tasks.aggregate.working import LINE_BY_LINE, begin_tally, scale_up, shown_lines, sums, tally
from ramet.tasks.dice import Dice
from ramet.tasks.erring import Check, Habits, Wrong
from ramet.tasks.numbers import last_number
from ramet.tasks.split import Split, chunks, deal_texts
from ramet.types import Task

Span = tuple[int, int]  # first and last line

TRANSCRIPT = "The given lines are turns of a transcript, each with its speaker label (several names when together)."
CLONE_LINES = 200  # the most lines for one clone, unless the taskset has another number
SHOWN_PAGES = 8  # a node that counts by itself lists the counts of at most so many pages


def among(topics: Sequence[str]) -> str:
    return (
        f"each belonging to exactly one of these topics: {_listed(topics)}. "
        "The topic is not shown and must be judged from the request itself."
    )


def _listed(topics: Sequence[str]) -> str:
    return ", ".join(f"'{topic}'" for topic in topics)


def brief_question(query: Query, topics: Sequence[str]) -> str:
    """The question alone; the topics are listed only if it does not name those it is about."""
    about = "" if query.topics else f"The topics are {_listed(topics)}. "
    return f"{about}{query.text[:1].upper()}{query.text[1:]}?"


def pages_per_clone(task: Task, clone_lines: int = CLONE_LINES) -> int:
    return max(1, clone_lines // bounds(next(iter(task.context)))[1])


class Counting:
    """Counts page by page, or delegates groups of neighbouring pages and adds up their counts.

    In the uniform style every node with several pages gives each half of them to a clone. With `line_by_line`, nodes
    write down every line they count and every sum, and count only the lines they were given.
    """

    def __init__(
        self,
        task: Task,
        *,
        delegate: bool,
        dice_seed: tuple[object, ...],
        uniform: bool = False,
        line_by_line: bool = False,
        clone_lines: int = CLONE_LINES,
    ) -> None:
        self.uniform = uniform
        self.line_by_line = line_by_line
        self.clone_lines = clone_lines
        self.task = task
        self.delegate = delegate
        self.dice_seed = dice_seed
        self.whole: Span = (1, num_lines(task))
        self.topics = topics_of(task)
        self.labels = labels_of(task)

    def can_answer(self) -> bool:
        """Whether the question can be parsed, and counting the lines gives the right answer."""
        query = read_query(self.task.question)
        if query is None or not query.fits(self.topics):
            return False
        counted = [self._count(query.part, span) for span in self._pages(self.whole)]
        return grade(*truth(self.task), self._tell(query, add(query.part, counted))) == 1.0

    def move(self, view: View) -> Move:
        query = read_query(view.goal)
        if query is None:
            raise AssertionError(f"no question in {view.goal!r}")
        spans = self._pages(self.whole if view.depth == 0 else find_spans(view.goal)[0])
        groups = self._groups(spans, view) if self._splits(spans, view) else []
        if groups and view.turn == 0:
            return Move(asks=tuple(self._ask(query.part, group) for group in groups))
        if self.line_by_line and query.part.kind in LINE_BY_LINE and not groups:
            return self._tallied(query, spans, view)
        try:
            counted = (
                [hear(query.part, answer) for answer in view.history[0]]
                if groups
                else [self._count(query.part, span) for span in spans]
            )
        except ValueError:  # a clone was refused, or did not get to its answer
            return Move(answer="Could not count: not every clone answered")
        total = add(query.part, counted)
        thought = [f"Together: {say(query.part, total)}"] if len(counted) > 1 else []
        if self.line_by_line and query.part.kind in LINE_BY_LINE:
            thought = sums(counted)
        elif not groups and len(spans) <= SHOWN_PAGES:
            each = zip(spans, counted, strict=True)
            thought = [f"{_name(span)}: {say(query.part, counts)}" for span, counts in each] + thought
        return Move(thought="\n".join(thought), answer=self._tell(query, total))

    def _tallied(self, query: Query, spans: Sequence[Span], view: View) -> Move:
        """Count every line that the node was given, page by page; if lines are missing, scale the count up."""
        shown, total, thought = shown_lines(view.opening), Counter[str](), begin_tally(query.part)
        seen = 0
        for key, (first, last) in zip(keys_of(self.task, spans[0][0], spans[-1][1]), spans, strict=True):
            start = bounds(key)[0]
            last = min(last, start - 1 + shown[key]) if key in shown else last
            lines = self._lines((first, last)) if first <= last else []
            thought += [_name((first, last))] if len(spans) > 1 and lines else []
            thought += tally(query.part, list(enumerate(lines, start=first - start + 1)), total)
            seen += len(lines)
        every = sum(last - first + 1 for first, last in spans)
        if 0 < seen < every:
            scaling, total = scale_up(total, seen=seen, lines=every)
            thought.append(scaling)
        return Move(thought="\n".join(thought), answer=self._tell(query, total))

    def _pages(self, span: Span) -> list[Span]:
        """The lines of a span, page by page."""
        first, last = span
        pages = [bounds(key) for key in keys_of(self.task, first, last)]
        return [(max(first, a), min(last, b)) for a, b in pages]

    def _splits(self, spans: Sequence[Span], view: View) -> bool:
        """Whether this node delegates: a root always, a clone with several pages at random or by the uniform rule."""
        if not self.delegate or spans[0][0] == spans[-1][1]:
            return False
        if self.uniform:
            return view.depth == 0 or len(spans) > 1
        if view.depth >= 2:
            return False
        return view.depth == 0 or (len(spans) > 1 and Dice("deeper", *self.dice_seed, view.goal).chance(0.3))

    def _groups(self, spans: Sequence[Span], view: View) -> list[Span]:
        """Neighbouring pages, cut at random places, never all pages in one group; of a single page, its halves."""
        if len(spans) == 1:
            first, last = spans[0]
            middle = (first + last) // 2
            return [(first, middle), (middle + 1, last)]
        if self.uniform:
            middle = len(spans) // 2
            return [(spans[0][0], spans[middle - 1][1]), (spans[middle][0], spans[-1][1])]
        dice = Dice("cut", *self.dice_seed, view.goal)
        most = min(pages_per_clone(self.task, self.clone_lines), len(spans) - 1)
        groups: list[Span] = []
        start = 0
        while start < len(spans):
            end = min(start + dice.between(1, most), len(spans))
            groups.append((spans[start][0], spans[end - 1][1]))
            start = end
        return groups

    def _ask(self, query: Query, span: Span) -> Ask:
        return ask_for(self.task, query, span)

    def _count(self, query: Query, span: Span) -> Counts:
        return count(query, self._lines(span))

    def _lines(self, span: Span) -> list[Line]:
        lines = lines_in(self.task, *span, self.labels)
        if lines is None:
            raise AssertionError(f"no {_name(span)}")
        return lines

    def _tell(self, query: Query, counts: Counts) -> str:
        answers = decide(query, counts, self.topics)
        return (", ".join(answers) or "none") if query.answers_with == "list" else answers[0]


def ask_for(task: Task, query: Query, span: Span) -> Ask:
    """Ask a clone this question about some lines."""
    topics = topics_of(task)
    if is_brief(task):
        return Ask(goal=f"{brief_question(query, topics)} ({_name(span)})", context=tuple(keys_of(task, *span)))
    about = f"The given lines are user requests, {among(topics)}" if topics else TRANSCRIPT
    goal = f"{about} In the given lines, {query.text}? {how(query)} ({_name(span)})"
    return Ask(goal=goal, context=tuple(keys_of(task, *span)))


def split_lines(task: Task, parts: int) -> Split:
    """Neighbouring pages in equal groups, or equal groups of lines if there are too few pages."""
    query = read_query(task.question)
    if query is None:
        return deal_texts(task, parts, cut=False)
    pages = [bounds(key) for key in task.context]
    units = pages if len(pages) >= parts else [(line, line) for line in range(1, num_lines(task) + 1)]
    groups = chunks([last - first + 1 for first, last in units], parts)
    spans = [(units[group[0]][0], units[group[-1]][1]) for group in groups]
    if len(spans) < 2:
        return Split()
    asks = tuple(ask_for(task, query.part, span) for span in spans)
    return Split(parts=asks, combine="The parts cover all lines.")


def _name(span: Span) -> str:
    return f"lines {span[0]}-{span[1]}"


# Its mistakes.


def counting_habits(task: Task) -> Habits:
    """A clone that gets the wrong pages reports which lines are missing; a count above the number of lines is noticed.

    A root that may delegate cannot read pages itself, so it reports lines that clones could not count.
    """

    def wrong_pages(ask: Ask, dice: Dice) -> Wrong | None:
        others = [key for key in task.context if key not in ask.context]
        if not others:
            return None
        wrong = replace(ask, context=(dice.pick(others),))
        return Wrong(ask=wrong, line=f"I passed on {wrong.context[0]} instead of {', '.join(ask.context)}")

    def missing_pages(view: View) -> str | None:
        spans = find_spans(view.goal)
        if view.keys is None or view.depth == 0 or not spans:
            return None
        missing = [key for key in keys_of(task, *spans[0]) if key not in view.keys]
        return f"I was not given {', '.join(missing)}" if missing else None

    def too_many(view: View, answer: str, dice: Dice) -> str | None:
        query, (first, last) = read_query(view.goal), find_spans(view.goal)[0]
        if query is None or query.kind != "count" or not answer.isdigit():
            return None
        return str(last - first + 1 + dice.between(1, 9))

    return Habits(
        verb="count",
        works_alone=False,
        spoil=wrong_pages,
        misanswer=too_many,
        check=_check_count,
        impossible=missing_pages,
        label=lambda ask: _name(find_spans(ask.goal)[0]),
    )


def _check_count(ask: Ask, told: str) -> Check:
    """A number of lines cannot be larger than the number of lines given."""
    query, (first, last) = read_query(ask.goal), find_spans(ask.goal)[0]
    number, most = last_number(told), last - first + 1
    if query is None or query.kind != "count" or number is None or number <= most:
        return Check()
    return Check(ok=False, line=f"{_name((first, last))} are {most} lines, so {number} cannot be right")
