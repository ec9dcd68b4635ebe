"""The oracle of `aggregate`, and the wording of its goals."""

from __future__ import annotations

from collections.abc import Sequence

from ramet.interfaces import Ask, Move, View
from ramet.tasks.aggregate.lines import bounds, find_spans, keys_of, labels_of, lines_in, num_lines, topics_of, truth
from ramet.tasks.aggregate.query import Counts, Query, add, count, decide, grade, hear, how, read_query, say
from ramet.tasks.dice import Dice
from ramet.types import Task

Span = tuple[int, int]  # first and last line

TRANSCRIPT = "The given lines are turns of a transcript, each with its speaker label (several names when together)."
CLONE_LINES = 200  # the most lines for one clone
SHOWN_PAGES = 8  # a node that counts by itself lists the counts of at most so many pages


def among(topics: Sequence[str]) -> str:
    listed = ", ".join(f"'{topic}'" for topic in topics)
    return (
        f"each belonging to exactly one of these topics: {listed}. "
        "The topic is not shown and must be judged from the request itself."
    )


def pages_per_clone(task: Task) -> int:
    return max(1, CLONE_LINES // bounds(next(iter(task.context)))[1])


class Counting:
    """Counts page by page, or delegates groups of neighbouring pages and adds up their counts."""

    def __init__(self, task: Task, *, delegate: bool, dice_seed: tuple[object, ...]) -> None:
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
        counted = (
            [hear(query.part, answer) for answer in view.history[0]]
            if groups
            else [self._count(query.part, span) for span in spans]
        )
        total = add(query.part, counted)
        thought = [f"Together: {say(query.part, total)}"] if len(counted) > 1 else []
        if not groups and len(spans) <= SHOWN_PAGES:
            each = zip(spans, counted, strict=True)
            thought = [f"{_name(span)}: {say(query.part, counts)}" for span, counts in each] + thought
        return Move(thought="\n".join(thought), answer=self._tell(query, total))

    def _pages(self, span: Span) -> list[Span]:
        """The lines of a span, page by page."""
        first, last = span
        pages = [bounds(key) for key in keys_of(self.task, first, last)]
        return [(max(first, a), min(last, b)) for a, b in pages]

    def _splits(self, spans: Sequence[Span], view: View) -> bool:
        """Whether this node delegates: a root always, a clone with several pages at random."""
        if not self.delegate or view.depth >= 2 or spans[0][0] == spans[-1][1]:
            return False
        return view.depth == 0 or (len(spans) > 1 and Dice("deeper", *self.dice_seed, view.goal).chance(0.3))

    def _groups(self, spans: Sequence[Span], view: View) -> list[Span]:
        """Neighbouring pages, cut at random places, never all pages in one group; of a single page, its halves."""
        if len(spans) == 1:
            first, last = spans[0]
            middle = (first + last) // 2
            return [(first, middle), (middle + 1, last)]
        dice = Dice("cut", *self.dice_seed, view.goal)
        most = min(pages_per_clone(self.task), len(spans) - 1)
        groups: list[Span] = []
        start = 0
        while start < len(spans):
            end = min(start + dice.between(1, most), len(spans))
            groups.append((spans[start][0], spans[end - 1][1]))
            start = end
        return groups

    def _ask(self, query: Query, span: Span) -> Ask:
        about = f"The given lines are user requests, {among(self.topics)}" if self.topics else TRANSCRIPT
        goal = f"{about} In the given lines, {query.text}? {how(query)} ({_name(span)})"
        return Ask(goal=goal, context=tuple(keys_of(self.task, *span)))

    def _count(self, query: Query, span: Span) -> Counts:
        lines = lines_in(self.task, *span, self.labels)
        if lines is None:
            raise AssertionError(f"no {_name(span)}")
        return count(query, lines)

    def _tell(self, query: Query, counts: Counts) -> str:
        answers = decide(query, counts, self.topics)
        return (", ".join(answers) or "none") if query.answers_with == "list" else answers[0]


def _name(span: Span) -> str:
    return f"lines {span[0]}-{span[1]}"
