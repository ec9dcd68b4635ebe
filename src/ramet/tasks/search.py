"""Questions over a corpus that can only be searched and read, in the shape of DeepDive.

No pages are passed to clones: every node calls `search` and `read`. The corpus is one large invented world, or all
paragraphs of a file of 2Wiki, MuSiQue or HotpotQA.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from heapq import nsmallest
from importlib import import_module
from pathlib import Path
from typing import Any

from ramet.budget import Budget
from ramet.errors import ConfigError
from ramet.interfaces import Ask, Do, HostFunction, Move, Oracle, View, World
from ramet.tasks.dice import Dice
from ramet.tasks.erring import Habits
from ramet.tasks.files import TaskFile, read_lines, task_file
from ramet.tasks.manner import make_manner
from ramet.tasks.multihop.fiction import Fiction, invent
from ramet.tasks.multihop.plans import Plan, Planner, planner, reference_of
from ramet.tasks.multihop.taskset import (
    COMPARES,
    REQUIRED,
    ROWS,
    Multihop,
    compose,
    grade,
    hops_of,
    same_question,
)
from ramet.tasks.registry import check_index
from ramet.tasks.sources import named_source
from ramet.types import Node, Task, Verdict

WORD = re.compile(r"\w+")
FOUND = 5  # most titles that a search returns
HELP = "Find out what is known about {} that helps to answer: {}"


class Search:
    """Questions over a corpus. `hops` and `pages` are for invented worlds; `long` has up to twice as many of both.

    All tasks of a split share one corpus; train, eval and long each have their own.
    """

    name = "search"
    about = "answer by searching and reading a corpus"
    size_unit = "hops"
    splits: Mapping[str, str] = {
        "train": "an invented world, unlimited questions",
        "eval": "another world, no question of train",
        "long": "out of distribution: a larger world, more hops than in training, up to twice as many",
        **{split: f"all paragraphs of {split}.jsonl.gz" for split in ROWS},
    }

    def __init__(
        self,
        *,
        data: str | Path | None = None,
        hops: Sequence[int] | int = (2, 3),
        pages: int = 300,
        metric: str = "em",
        seed: int = 0,
        style: str = "cuts",
        mistakes: float = 0.0,
        ask_tokens: bool = False,
    ) -> None:
        # The same questions with pages as context: options, rows, verdicts and sizes are shared.
        self.multihop = Multihop(data=data, hops=hops, pages=pages, metric=metric, seed=seed)
        self.data = data
        self.hops = self.multihop.hops
        self.pages = pages
        self.metric = metric
        self.seed = seed
        self.manner = make_manner(self.name, style=style, mistakes=mistakes, ask_tokens=ask_tokens)

    def size(self, split: str) -> int | None:
        return len(self._file(split)) if split in ROWS else None

    def task(self, split: str, index: int) -> Task:
        check_index(self, split, index)
        name = f"{self.name}:{split}/{index}"
        if split in ROWS:
            row = self.multihop.task(split, index)
            return Task(id=name, question=row.question, reference=row.reference)
        dice = Dice(self.name, self.seed, split, index)
        hops, compare = dice.between(*hops_of(split, self.hops)), dice.chance(COMPARES)
        fiction = self._corpus(split).fiction
        composed = fiction and compose(fiction, dice, split, hops=hops, compare=compare, tries=20_000)
        if composed is None:
            raise ConfigError(f"{self.pages} pages are too few for questions of {hops} hops")
        return Task(id=name, question=composed[0], reference=composed[1])

    def _file(self, split: str) -> TaskFile:
        return task_file(self.data, split, taskset=self.name, required=REQUIRED)

    def _corpus(self, split: str) -> Corpus:
        if split in ROWS:
            return row_corpus(self._file(split).path)
        return invented_corpus(self.seed, split, 2 * self.pages if split == "long" else self.pages)

    def _corpus_of(self, task: Task) -> Corpus:
        return self._corpus(task.id.partition(":")[2].partition("/")[0])

    def world(self, task: Task) -> World:
        return Library(self._corpus_of(task))

    def budget(self, task: Task) -> Budget:
        hops: int = reference_of(task)["hops"]
        invented = self._corpus_of(task).fiction is not None
        return Budget(
            tokens=2000 + 900 * hops,
            nodes=8 + 4 * hops,
            depth=3,
            turns=8 + 3 * hops,
            window=8192 if invented else 16384,
            output_bytes=8192 if invented else 32768,
            reserve=64,
        )

    def verdict(self, task: Task, world: World, node: Node) -> Verdict | None:
        del world
        return grade(task, node, self._corpus_of(task).fiction, metric=self.metric)

    def same(self, task: Task, one: str, other: str) -> bool:
        return self.multihop.same(task, one, other)

    def same_goal(self, task: Task, goal: str, other: str) -> bool:
        return same_question(self._corpus_of(task).fiction, goal, other)

    def size_of(self, task: Task) -> float | None:
        """The number of hops."""
        return self.multihop.size_of(task)

    def sizes(self, split: str) -> tuple[float, float] | None:
        return self.multihop.sizes(split)

    def source(self, split: str) -> str:
        """The data set of a split, to know what is beyond training."""
        return named_source(split)

    def oracle(self, task: Task, *, delegate: bool, seed: int) -> Oracle:
        corpus, place, uniform = self._corpus_of(task), (task.id, seed), self.manner.is_uniform(task.id, seed)
        plans = planner(task, corpus.fiction, corpus.pages, seed=seed, help_goal=HELP, uniform=uniform)
        oracle, solo = (
            Searcher(plans, corpus, delegate=choice, dice_seed=place, uniform=uniform) for choice in (delegate, False)
        )
        return self.manner.show(oracle, solo=solo, habits=HABITS, seed=place)

    def self_check(self, task: Task) -> tuple[float, float]:
        return self.multihop.self_check(task)


# The corpus.


class Corpus:
    """Pages by title, with a search index; for an invented world also its facts."""

    def __init__(self, pages: Mapping[str, str], fiction: Fiction | None = None) -> None:
        self.pages = pages
        self.fiction = fiction
        self._titles = list(pages)
        self._loose = {_squeeze(title): title for title in reversed(self._titles)}
        self._index: Any = None

    def index(self) -> None:
        """Build the index once. The title of a page counts twice."""
        if self._index is None:
            self._index = _bm25().BM25(method="lucene")
            texts = [_words(f"{title} {title} {text}") for title, text in self.pages.items()]
            self._index.index(texts, show_progress=False)

    def best(self, query: str, number: int = FOUND) -> list[str]:
        """Titles of the pages that match best; ties are sorted by title."""
        self.index()
        known = [word for word in _words(query) if word in self._index.vocab_dict]
        scores: list[float] = self._index.get_scores(known).tolist() if known else []
        # Rounded, because machines differ in the last digit.
        fitting = ((-round(score, 4), title) for score, title in zip(scores, self._titles, strict=False) if score > 0)
        return [title for _, title in nsmallest(number, fitting)]

    def find(self, title: str) -> str | None:
        """The exact title of a page, ignoring case and spaces."""
        return title if title in self.pages else self._loose.get(_squeeze(title))


def _bm25() -> Any:
    try:
        return import_module("bm25s")
    except ImportError:
        raise ConfigError("search needs bm25s: pip install 'ramet[tasks]'") from None


def _words(text: str) -> list[str]:
    return WORD.findall(text.lower())


def _squeeze(title: str) -> str:
    return "".join(title.split()).casefold()


@lru_cache(maxsize=8)
def invented_corpus(seed: int, split: str, pages: int) -> Corpus:
    facts, texts = invent(Dice("corpus", seed, split), pages)
    return Corpus(texts, Fiction(facts))


@lru_cache(maxsize=8)
def row_corpus(file: Path) -> Corpus:
    """All paragraphs of a file, joined by title, without repeats."""
    texts: dict[str, dict[str, None]] = {}
    for row in read_lines(file, REQUIRED):
        for entry in row["context"]:
            texts.setdefault(entry["title"], {})[" ".join(entry["text"].split())] = None
    return Corpus({title: " ".join(paragraphs) for title, paragraphs in texts.items()})


class Library:
    """A corpus as a world: nodes can search and read it."""

    def __init__(self, corpus: Corpus) -> None:
        corpus.index()  # a missing package is reported before a tree starts
        self.corpus = corpus
        self.order_matters = False  # calls can be repeated in any order: they only look something up
        self.context: Mapping[str, str] = {}
        self.functions: Mapping[str, HostFunction] = {"search": self.search, "read": self.read}

    def search(self, query: str) -> list[str]:
        """Titles of the pages that fit the words of the query best, five at most."""
        return self.corpus.best(str(query))

    def read(self, page: str) -> str:
        """The text of the page with this title."""
        title = self.corpus.find(str(page))
        if title is not None:
            return self.corpus.pages[title]
        near = self.corpus.best(str(page), 3)
        return f"There is no page of this title. {'Near are: ' + '; '.join(near) if near else 'Use search.'}"


# The oracle.


class Searcher:
    """Searches and reads page by page, or delegates hop by hop; in the uniform style each half of the hops."""

    def __init__(
        self,
        plans: Planner,
        corpus: Corpus,
        *,
        delegate: bool,
        dice_seed: tuple[object, ...],
        uniform: bool = False,
    ) -> None:
        self.uniform = uniform
        self.plans = plans
        self.corpus = corpus
        self.delegate = delegate
        self.dice_seed = dice_seed

    def move(self, view: View) -> Move:
        plan = self.plans(view.goal)
        if not self.delegate or not plan.delegates(view, *self.dice_seed, uniform=self.uniform):
            return self._alone(plan, view)
        if view.turn < len(plan.rounds):
            return Move(asks=tuple(Ask(goal=part.goal) for part in plan.rounds[view.turn]))
        return Move(thought=plan.conclusion, answer=plan.answer)

    def _alone(self, plan: Plan, view: View) -> Move:
        """Search for pages, then read them, until all are read."""
        number, reads = divmod(view.turn, 2)
        if number >= len(plan.reading):
            return Move(thought=plan.thought, answer=plan.answer)
        titles = plan.reading[number]
        if reads:
            return Move(does=tuple(Do(name="read", arguments={"page": title}) for title in titles))
        return Move(does=tuple(Do(name="search", arguments={"query": self._query(title, view)}) for title in titles))

    def _query(self, title: str, view: View) -> str:
        """The title, the question or both: the first, in random order, that finds the page."""
        words = Dice("query", *self.dice_seed, view.goal, title).shuffled([title, view.goal])
        tries = [*words, f"{title} {title} {view.goal}"]
        return next((query for query in tries if title in self.corpus.best(query)), title)


# Its mistakes.


def _wrong_words(do: Do, dice: Dice) -> Do | None:
    """Words that are on no page."""
    del dice
    return Do(name=do.name, arguments={"query": "the answer"}) if do.name == "search" else None


HABITS = Habits(verb="find out", misdo=_wrong_words)
