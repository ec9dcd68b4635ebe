"""Questions over a corpus that is reached only by searching and reading, DeepDive in shape.

No page is handed over: the root and its clones call `search` and `read`. The corpus is one big invented world, or all
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
from ramet.interfaces import HostFunction, World
from ramet.tasks.dice import Dice
from ramet.tasks.files import data_file, read_lines
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
)
from ramet.tasks.oracle import Ask, Do, Move, View
from ramet.tasks.registry import check_index
from ramet.types import Node, Task, Verdict

WORD = re.compile(r"\w+")
FOUND = 5  # titles a search returns
HELP = "Find out what is known about {} that helps to answer: {}"


class Search:
    """Questions over a corpus. `hops` and `pages` are those of invented worlds; `long` has up to twice as many of both.

    All tasks of a split share one corpus; train, eval and long each have their own.
    """

    name = "search"
    about = "answer by searching and reading a corpus"
    splits: Mapping[str, str] = {
        "train": "an invented world, questions without end",
        "eval": "another world, and no question of train",
        "long": "out of distribution: a larger world, more hops than any trained on, up to twice as many",
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
    ) -> None:
        self.handed = Multihop(data=data, hops=hops, pages=pages, metric=metric, seed=seed)  # the same, pages in hand
        self.data = data
        self.hops = self.handed.hops
        self.pages = pages
        self.metric = metric
        self.seed = seed

    def size(self, split: str) -> int | None:
        return len(read_lines(self._file(split), REQUIRED)) if split in ROWS else None

    def task(self, split: str, index: int) -> Task:
        check_index(self, split, index)
        name = f"{self.name}:{split}/{index}"
        if split in ROWS:
            row = self.handed.task(split, index)
            return Task(id=name, question=row.question, reference=row.reference)
        dice = Dice(self.name, self.seed, split, index)
        hops, compare = dice.between(*hops_of(split, self.hops)), dice.chance(COMPARES)
        fiction = self._corpus(split).fiction
        found = fiction and compose(fiction, dice, split, hops=hops, compare=compare, tries=20_000)
        if found is None:
            raise ConfigError(f"{self.pages} pages are too few for questions of {hops} hops")
        return Task(id=name, question=found[0], reference=found[1])

    def _file(self, split: str) -> Path:
        return data_file(self.data, split, taskset=self.name)

    def _corpus(self, split: str) -> Corpus:
        if split in ROWS:
            return row_corpus(self._file(split))
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
        return self.handed.same(task, one, other)

    def size_of(self, task: Task) -> float | None:
        """Hops."""
        return self.handed.size_of(task)

    def sizes(self, split: str) -> tuple[float, float] | None:
        return self.handed.sizes(split)

    def oracle(self, task: Task, *, delegate: bool, seed: int) -> Searcher:
        corpus = self._corpus_of(task)
        plans = planner(task, corpus.fiction, corpus.pages, seed=seed, help_goal=HELP)
        return Searcher(plans, corpus, delegate=delegate, dice_seed=(task.id, seed))

    def self_check(self, task: Task) -> tuple[float, float]:
        return self.handed.self_check(task)


# The corpus.


class Corpus:
    """Pages by title, with an index over them; of an invented world also what is true in it."""

    def __init__(self, pages: Mapping[str, str], fiction: Fiction | None = None) -> None:
        self.pages = pages
        self.fiction = fiction
        self._titles = list(pages)
        self._loose = {_squeeze(title): title for title in reversed(self._titles)}
        self._index: Any = None

    def index(self) -> None:
        """Build the index, once. A page's title counts twice."""
        if self._index is None:
            self._index = _bm25().BM25(method="lucene")
            texts = [_words(f"{title} {title} {text}") for title, text in self.pages.items()]
            self._index.index(texts, show_progress=False)

    def best(self, query: str, number: int = FOUND) -> list[str]:
        """Titles of the pages that fit best; equals in order of title."""
        self.index()
        known = [word for word in _words(query) if word in self._index.vocab_dict]
        scores: list[float] = self._index.get_scores(known).tolist() if known else []
        # Rounded: machines differ in the last digit.
        fitting = ((-round(score, 4), title) for score, title in zip(scores, self._titles, strict=False) if score > 0)
        return [title for _, title in nsmallest(number, fitting)]

    def find(self, title: str) -> str | None:
        """The title as it is written, without regard to case and spaces."""
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
    """Every paragraph of a file, those of one title together, each once."""
    texts: dict[str, dict[str, None]] = {}
    for row in read_lines(file, REQUIRED):
        for entry in row["context"]:
            texts.setdefault(entry["title"], {})[" ".join(entry["text"].split())] = None
    return Corpus({title: " ".join(paragraphs) for title, paragraphs in texts.items()})


class Library:
    """A corpus as nodes see it."""

    def __init__(self, corpus: Corpus) -> None:
        corpus.index()  # what is missing for it is said before a tree begins
        self.corpus = corpus
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
    """Searches and reads page by page, or has clones find out hop by hop."""

    def __init__(self, plans: Planner, corpus: Corpus, *, delegate: bool, dice_seed: tuple[object, ...]) -> None:
        self.plans = plans
        self.corpus = corpus
        self.delegate = delegate
        self.dice_seed = dice_seed

    def move(self, view: View) -> Move:
        plan = self.plans(view.goal)
        if not self.delegate or not plan.delegates(view, *self.dice_seed):
            return self._alone(plan, view)
        if view.turn < len(plan.rounds):
            return Move(asks=tuple(Ask(goal=part.goal) for part in plan.rounds[view.turn]))
        return Move(thought=plan.conclusion, answer=plan.answer)

    def _alone(self, plan: Plan, view: View) -> Move:
        """Search for a page, then read it, until all are read."""
        number, reads = divmod(view.turn, 2)
        if number >= len(plan.reading):
            return Move(thought=plan.thought, answer=plan.answer)
        titles = plan.reading[number]
        if reads:
            return Move(does=tuple(Do(name="read", arguments={"page": title}) for title in titles))
        return Move(does=tuple(Do(name="search", arguments={"query": self._query(title, view)}) for title in titles))

    def _query(self, title: str, view: View) -> str:
        """The title, the question or both: the first of them, in some order, that finds the page."""
        words = Dice("query", *self.dice_seed, view.goal, title).shuffled([title, view.goal])
        tries = [*words, f"{title} {title} {view.goal}"]
        return next((query for query in tries if title in self.corpus.best(query)), title)
