"""Questions that need several pages: unlimited invented worlds, and rows of 2Wiki, MuSiQue and HotpotQA.

The root sees the question and the titles of the pages; texts are passed to clones by title. Sub-questions about an
invented world, and those of MuSiQue's decompositions, are checked exactly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ramet.budget import Budget
from ramet.errors import ConfigError, did_you_mean
from ramet.interfaces import Ask, Move, Oracle, TaskWorld, View, World
from ramet.tasks.check import exact_match, f1
from ramet.tasks.dice import Dice, in_eval
from ramet.tasks.erring import Habits, Wrong
from ramet.tasks.files import WITH_META, TaskFile, read_context, task_file
from ramet.tasks.manner import make_manner
from ramet.tasks.multihop.fiction import FEWEST_PAGES, GRAMMARS, MOST_PAGES, Comparison, Fiction, ask, draw, invent
from ramet.tasks.multihop.findable import is_findable
from ramet.tasks.multihop.plans import Part, Planner, Reference, planner, reference_of, row_accepts, row_reference
from ramet.tasks.registry import check_index, observed_sizes, parse_range, split_tasks
from ramet.tasks.sources import named_source
from ramet.types import Node, Task, Verdict

REQUIRED = (*WITH_META, ("context", list))
ROWS = tuple(f"{name}_{part}" for name in ("2wiki", "musique", "hotpotqa") for part in ("train", "eval"))
METRICS = ("em", "f1", "judge")  # judge: no exact verdicts at all
COMPARES = 0.3  # share of invented questions that are comparisons


class Multihop:
    """Questions over pages.

    `hops`, `pages`, `relations` and `comparisons` are for invented worlds; `long` has up to twice as many hops and
    pages. `extra_pages` are for rows: so many pages of other rows of the file are mixed with those of the question.
    With `findable`, a split has only the rows whose pages can be found by their titles. `one_hop` is for demonstrations
    in invented worlds: every clone follows one hop.
    """

    name = "multihop"
    about = "answer from several pages, passed to clones by title"
    size_unit = "hops"
    splits: Mapping[str, str] = {
        "train": "invented worlds, unlimited",
        "eval": "invented worlds, never in train",
        "long": "out of distribution: more hops than in training, up to twice as many, and twice the pages",
        **{split: f"needs {split}.jsonl.gz" for split in ROWS},
    }

    def __init__(
        self,
        *,
        data: str | Path | None = None,
        hops: Sequence[int] | int = (2, 3),
        pages: int = 16,
        extra_pages: int = 0,
        metric: str = "em",
        seed: int = 0,
        style: str = "cuts",
        mistakes: float = 0.0,
        ask_tokens: bool = False,
        relations: str = "few",
        comparisons: float = COMPARES,
        one_hop: bool = False,
        findable: bool = False,
    ) -> None:
        if metric not in METRICS:
            raise ConfigError(f"metric must be one of {', '.join(METRICS)}; got {metric!r}")
        fewest, most = parse_range(pages, name="pages", least=FEWEST_PAGES)
        if fewest != most or 2 * most > MOST_PAGES:
            raise ConfigError(f"pages must be one whole number up to {MOST_PAGES // 2}; got {pages!r}")
        if relations not in GRAMMARS:
            raise ConfigError(f"{self.name} has no relations {relations!r}: {did_you_mean(relations, list(GRAMMARS))}")
        if isinstance(comparisons, bool) or not 0 <= comparisons <= 1:
            raise ConfigError(f"{self.name}: comparisons is a share from 0 to 1; got {comparisons!r}")
        self.relations = relations
        self.comparisons = comparisons
        self.one_hop, self.findable = (
            check_flag(value, name=name) for name, value in (("one_hop", one_hop), ("findable", findable))
        )
        self._found: dict[str, Sequence[int]] = {}  # by split, the rows that are findable
        self.data = data
        self.hops = parse_range(hops, name="hops", least=2)
        self.pages = pages
        self.extra_pages = check_extra(extra_pages)
        self.metric = metric
        self.seed = seed
        self.manner = make_manner(self.name, style=style, mistakes=mistakes, ask_tokens=ask_tokens)

    def size(self, split: str) -> int | None:
        return len(self._places(split)) if split in ROWS else None

    def task(self, split: str, index: int) -> Task:
        check_index(self, split, index)
        return self._row(split, index) if split in ROWS else self._invented(split, index)

    def _file(self, split: str) -> TaskFile:
        return task_file(self.data, split, taskset=self.name, required=REQUIRED)

    def _places(self, split: str) -> Sequence[int]:
        """The rows of a split, by their places in its file."""
        file = self._file(split)
        if not self.findable:
            return range(len(file))
        if split not in self._found:
            rows = [(place, file[place]) for place in range(len(file))]
            self._found[split] = [
                place
                for place, row in rows
                if is_findable(row.fields["question"], row_reference(row.fields, row.where))
            ]
        return self._found[split]

    def _row(self, split: str, index: int) -> Task:
        file, place = self._file(split), self._places(split)[index]
        row = file[place]
        return Task(
            id=f"{self.name}:{split}/{index}",
            question=row.fields["question"],
            context=with_pages_of_others(file, place, self.extra_pages, Dice("extra pages", self.seed, split, place)),
            reference=row_reference(row.fields, row.where),
        )

    def _invented(self, split: str, index: int) -> Task:
        dice = Dice(self.name, self.seed, split, index)
        hops, compare = dice.between(*hops_of(split, self.hops)), dice.chance(self.comparisons)
        grammar = GRAMMARS[self.relations]
        for _ in range(1000):
            facts, pages = invent(dice, 2 * self.pages if split == "long" else self.pages, grammar)
            composed = compose(Fiction(facts, grammar), dice, split, hops=hops, compare=compare, tries=100)
            if composed is not None:
                question, reference = composed
                reference["facts"] = facts
                if self.relations != "few":
                    reference["relations"] = self.relations
                return Task(id=f"{self.name}:{split}/{index}", question=question, context=pages, reference=reference)
        raise ConfigError(f"{self.pages} pages are too few for questions of {hops} hops")

    def world(self, task: Task) -> World:
        return TaskWorld(task)

    def budget(self, task: Task) -> Budget:
        reference = reference_of(task)
        hops: int = reference["hops"]
        return Budget(
            tokens=1500 + 600 * hops,
            nodes=8 + 4 * hops,
            depth=3,
            turns=6 + 2 * hops,
            window=8192 if "facts" in reference else 16384,
            reserve=64,
        )

    def verdict(self, task: Task, world: World, node: Node) -> Verdict | None:
        del world
        return grade(task, node, _fiction(task), metric=self.metric)

    def same(self, task: Task, one: str, other: str) -> bool:
        del task
        return same_answer(one, other)

    def same_goal(self, task: Task, goal: str, other: str) -> bool:
        """Whether both goals ask the same about an invented world, however they are worded."""
        return same_question(_fiction(task), goal, other)

    def size_of(self, task: Task) -> float | None:
        """The number of hops."""
        return reference_of(task)["hops"]

    def sizes(self, split: str) -> tuple[float, float] | None:
        return observed_sizes(self, split_tasks(self, split)) if split in ROWS else hops_of(split, self.hops)

    def source(self, split: str) -> str:
        """The data set of a split, to know what is beyond training."""
        return named_source(split)

    def oracle(self, task: Task, *, delegate: bool, seed: int) -> Oracle:
        place, uniform, titles = (task.id, seed), self.manner.is_uniform(task.id, seed), list(task.context)
        plans = planner(task, _fiction(task), task.context, seed=seed, uniform=uniform, one_hop=self.one_hop)
        oracle, solo = (
            Reader(plans, titles, delegate=choice, dice_seed=place, uniform=uniform) for choice in (delegate, False)
        )
        return self.manner.show(oracle, solo=solo, habits=reading_habits(plans, titles), seed=place)

    def self_check(self, task: Task) -> tuple[float, float]:
        accepted = accepted_of(task)
        return marks(accepted[0], accepted, self.metric).score, marks("nobody knows", accepted, self.metric).score


def check_flag(value: bool, *, name: str) -> bool:
    if not isinstance(value, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"multihop: {name} is true or false; got {value!r}")
    return value


def check_extra(number: int) -> int:
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"extra_pages is a whole number, 0 or more; got {number!r}")
    return number


def with_pages_of_others(file: TaskFile, index: int, number: int, dice: Dice) -> dict[str, str]:
    """The pages of a row, mixed with so many pages of other rows in random order. None replaces a page of the row."""
    own = read_context(file[index].fields, file[index].where)
    pages = dict(own)
    for other in dice.shuffled([place for place in range(len(file)) if place != index]) if number else []:
        pages = read_context(file[other].fields, file[other].where) | pages
        if len(pages) >= len(own) + number:
            break
    others = [title for title in pages if title not in own]
    if len(others) < number:
        raise ConfigError(f"{file.path} has {len(others)} pages of other rows; extra_pages is {number}")
    chosen = [*own, *others[:number]]
    return {title: pages[title] for title in (dice.shuffled(chosen) if number else chosen)}


def same_answer(one: str, other: str) -> bool:
    """Whether either answer would be right if the other were the reference."""
    return bool(exact_match(one, [other]) or exact_match(other, [one]))


def same_question(fiction: Fiction | None, goal: str, other: str) -> bool:
    """Whether two goals are the same question about an invented world; in a comparison, in any order."""
    query, another = (None if fiction is None else fiction.understand(text) for text in (goal, other))
    if isinstance(query, Comparison) and isinstance(another, Comparison):
        return query.later == another.later and {*query.sides} == {*another.sides}
    return query is not None and query == another


def accepted_of(task: Task) -> tuple[str, ...]:
    """The answer and its aliases."""
    reference = reference_of(task)
    return (reference["answer"], *reference["aliases"])


def _fiction(task: Task) -> Fiction | None:
    reference = reference_of(task)
    facts = reference.get("facts")
    return None if facts is None else Fiction(facts, GRAMMARS[reference.get("relations", "few")])


def hops_of(split: str, hops: tuple[int, int]) -> tuple[int, int]:
    return (hops[1] + 1, 2 * hops[1]) if split == "long" else hops


def compose(
    fiction: Fiction, dice: Dice, split: str, *, hops: int, compare: bool, tries: int
) -> tuple[str, Reference] | None:
    """A question for this split and its reference; None if no draw gives one."""
    for _ in range(tries):
        query = draw(fiction, dice, hops, compare=compare)
        question = "" if query is None else ask(query, dice, fiction.grammar)
        if question and (split == "long" or in_eval(question) == (split == "eval")):
            answer, *aliases = fiction.accepted(query)
            return question, {"answer": answer, "aliases": aliases, "hops": hops}
    return None


# Verdicts.


def grade(task: Task, node: Node, fiction: Fiction | None, *, metric: str) -> Verdict | None:
    """The root by the metric; a clone by exact match, if its goal is a question with a known answer.

    With `metric="judge"` there is no exact verdict on any node.
    """
    if metric == "judge":
        return None
    if node.parent is None:
        return marks(node.answer, accepted_of(task), metric)
    if fiction is not None:
        accepted = fiction.accepted(fiction.understand(node.goal))
    else:
        accepted = row_accepts(node.goal, task.question, reference_of(task))
    return marks(node.answer, accepted, "em") if accepted else None


def marks(answer: str | None, accepted: Sequence[str], metric: str) -> Verdict:
    overlap = f1(answer, accepted)
    score = overlap if metric == "f1" else exact_match(answer, accepted)
    return Verdict(score=score, how="exact", reason=f"F1 {overlap:.2f}")


# The oracle.


class Reader:
    """Answers directly, or delegates the reading hop by hop; in the uniform style each half of the hops to a clone."""

    def __init__(
        self,
        plans: Planner,
        titles: Sequence[str],
        *,
        delegate: bool,
        dice_seed: tuple[object, ...],
        uniform: bool = False,
    ) -> None:
        self.uniform = uniform
        self.plans = plans
        self.titles = titles
        self.delegate = delegate
        self.dice_seed = dice_seed

    def move(self, view: View) -> Move:
        plan = self.plans(view.goal)
        if not self.delegate or not plan.delegates(view, *self.dice_seed, uniform=self.uniform):
            return Move(thought=plan.thought, answer=plan.answer)
        if view.turn < len(plan.rounds):
            return Move(thought=plan.thought_of(view.turn), asks=self._asks(plan.rounds[view.turn], view))
        return Move(thought=plan.conclusion, answer=plan.answer)

    def _asks(self, parts: Sequence[Part], view: View) -> tuple[Ask, ...]:
        """Each part with its pages; at random also with a few others, or every part with the pages of all parts."""
        if self.uniform:
            return tuple(Ask(goal=part.goal, context=tuple(dict.fromkeys(part.pages))) for part in parts)
        dice = Dice("pages", *self.dice_seed, view.goal, view.turn)
        shared = len(parts) > 1 and dice.chance(0.3)
        if shared:
            pages = self._passed([page for part in parts for page in part.pages], view.depth, dice)
            return tuple(Ask(goal=part.goal, context=pages) for part in parts)
        return tuple(Ask(goal=part.goal, context=self._passed(part.pages, view.depth, dice)) for part in parts)

    def _passed(self, pages: Sequence[str], depth: int, dice: Dice) -> tuple[str, ...]:
        """The pages to pass on. A clone has only the pages it was given, so it adds no others."""
        more = [title for title in self.titles if title not in pages] if depth == 0 else []
        return (*dict.fromkeys(pages), *dice.sample(more, dice.between(0, 3)))


# Its mistakes.


def reading_habits(plans: Planner, titles: Sequence[str]) -> Habits:
    """A clone that gets the wrong pages reports which are missing; its parent then passes them on.

    A root that may delegate cannot read pages itself, so it reports a part that clones could not do.
    """

    def wrong_pages(ask: Ask, dice: Dice) -> Wrong | None:
        needed = plans(ask.goal).pages
        others = [title for title in titles if title not in needed]
        if not others:
            return None
        wrong = replace(ask, context=(dice.pick(others),))
        return Wrong(ask=wrong, line=f"It needs another text: {needed[0]}")

    def missing_pages(view: View) -> str | None:
        if view.keys is None or view.depth == 0:
            return None
        # The first one only: later ones are named in the pages before them.
        missing = next((page for page in plans(view.goal).pages if page not in view.keys), None)
        return None if missing is None else f"I was not given {missing}"

    return Habits(verb="find out", works_alone=False, spoil=wrong_pages, impossible=missing_pages)
