"""The oracle of `aggregate`, and the wording of its goals."""

from __future__ import annotations

from collections.abc import Sequence

from ramet.interfaces import Ask, Move, View
from ramet.tasks.aggregate.lines import bounds, find_spans, keys_of, labels_of, page_lines, topics_of, truth
from ramet.tasks.aggregate.query import Counts, Query, add, count, decide, grade, hear, how, read_query, say
from ramet.tasks.dice import Dice
from ramet.types import Task

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
        self.keys = list(task.context)
        self.topics = topics_of(task)
        self.labels = labels_of(task)

    def can_answer(self) -> bool:
        """Whether the question can be parsed, and counting the lines gives the right answer."""
        query = read_query(self.task.question)
        if query is None or not query.fits(self.topics):
            return False
        counted = [self._count(query.part, key) for key in self.keys]
        return grade(*truth(self.task), self._tell(query, add(query.part, counted))) == 1.0

    def move(self, view: View) -> Move:
        query = read_query(view.goal)
        if query is None:
            raise AssertionError(f"no question in {view.goal!r}")
        keys = self.keys if view.depth == 0 else keys_of(self.task, *find_spans(view.goal)[0])
        groups = self._groups(keys, view) if self._splits(keys, view) else []
        if groups and view.turn == 0:
            return Move(asks=tuple(Ask(goal=self._goal(query.part, group), context=tuple(group)) for group in groups))
        counted = (
            [hear(query.part, answer) for answer in view.history[0]]
            if groups
            else [self._count(query.part, key) for key in keys]
        )
        total = add(query.part, counted)
        thought = [f"Together: {say(query.part, total)}"] if len(counted) > 1 else []
        if not groups and len(keys) <= SHOWN_PAGES:
            thought = [f"{key}: {say(query.part, counts)}" for key, counts in zip(keys, counted, strict=True)] + thought
        return Move(thought="\n".join(thought), answer=self._tell(query, total))

    def _splits(self, keys: Sequence[str], view: View) -> bool:
        """Whether this node delegates: a root always, a clone at random."""
        if not self.delegate or view.depth >= 2:
            return False
        return view.depth == 0 or (len(keys) > 1 and Dice("deeper", *self.dice_seed, view.goal).chance(0.3))

    def _groups(self, keys: Sequence[str], view: View) -> list[list[str]]:
        """Groups of neighbouring pages, cut at random places, never all pages in one group."""
        dice = Dice("cut", *self.dice_seed, view.goal)
        most = min(pages_per_clone(self.task), max(1, len(keys) - 1))
        groups: list[list[str]] = []
        start = 0
        while start < len(keys):
            size = dice.between(1, most)
            groups.append(list(keys[start : start + size]))
            start += size
        return groups

    def _goal(self, query: Query, keys: Sequence[str]) -> str:
        lines = f"lines {bounds(keys[0])[0]}-{bounds(keys[-1])[1]}"
        about = f"The given lines are user requests, {among(self.topics)}" if self.topics else TRANSCRIPT
        return f"{about} In the given lines, {query.text}? {how(query)} ({lines})"

    def _count(self, query: Query, key: str) -> Counts:
        return count(query, page_lines(self.task, key, self.labels))

    def _tell(self, query: Query, counts: Counts) -> str:
        answers = decide(query, counts, self.topics)
        return (", ".join(answers) or "none") if query.answers_with == "list" else answers[0]
