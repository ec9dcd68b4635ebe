"""The questions that the page asks, by name. Each answer is plain data; what cannot be read is a `StoreError`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ramet.errors import StoreError
from ramet.view.catalog import Catalog
from ramet.view.compare import compared, whole_tree
from ramet.view.credit import CreditCache
from ramet.view.forks import Forks, Job, point_of
from ramet.view.index import Index
from ramet.view.payloads import run_card, run_page, tree_page
from ramet.view.texts import node_texts
from ramet.view.training import delegation, same_tasks

Query = Mapping[str, str]
MAX_HITS = 2000  # nodes that a search in a tree returns


class Api:
    """Answers questions about the runs of a catalog. A run is named by its id there, never by a path.

    Example:
        Api(Catalog([Path("runs")])).answer("tree", {"run": "nano", "tree": "000007-003-001"})
    """

    def __init__(self, catalog: Catalog, forks: Forks | None = None) -> None:
        self.catalog = catalog
        self.forks = forks
        self.since = time.time()  # runs that were created later are those of the command that shows this page
        self._indexes: dict[Path, Index] = {}
        self._credits = CreditCache()
        self._lock = threading.Lock()
        self.questions: dict[str, Callable[[Query], Any]] = {
            "runs": self.runs,
            "run": self.run,
            "trees": self.trees,
            "tree": self.tree,
            "node": self.node,
            "search": self.search,
            "credit": self.credit,
            "delegation": self.delegation,
            "compare": self.compare,
            "tasks": self.tasks,
            "job": self.job,
        }

    def answer(self, question: str, query: Query) -> Any:
        """The answer to a question; `StoreError` if there is no such question."""
        if question not in self.questions:
            raise StoreError(f"there is no question {question!r}")
        return self.questions[question](query)

    def path(self, query: Query, name: str = "run") -> Path:
        found = self.catalog.find(query.get(name, ""))
        if found is None:
            raise StoreError(f"no run {query.get(name, '')!r} is shown here")
        return found

    def index(self, path: Path) -> Index:
        """The table of a run, with what was written by now."""
        with self._lock:
            index = self._indexes.get(path)
            if index is None:
                index = self._indexes[path] = Index(path)
        index.refresh()
        return index

    def runs(self, query: Query) -> Any:
        del query
        cards = [run_card(name, path) for name, path in self.catalog.runs().items()]
        return {"runs": cards, "since": self.since}

    def run(self, query: Query) -> Any:
        path = self.path(query)
        page = run_page(query["run"], path, self.index(path))
        problem = "forks are off here" if self.forks is None else self.forks.problem(path)
        return page | {"fork": {"possible": problem is None, "why": problem}}

    def trees(self, query: Query) -> Any:
        return self.index(self.path(query)).page(
            query,
            sort=query.get("sort", ""),
            down=query.get("down") == "1",
            offset=_number(query.get("offset"), 0),
            limit=_number(query.get("limit"), 100),
        )

    def tree(self, query: Query) -> Any:
        path = self.path(query)
        problem = "forks are off here" if self.forks is None else self.forks.problem(path)
        page = tree_page(query["run"], self.index(path).tree(query.get("tree", "")))
        return page | {"fork": {"possible": problem is None, "why": problem}}

    def node(self, query: Query) -> Any:
        index, tokens = self.index(self.path(query)), query.get("tokens") == "1"
        return node_texts(index, query.get("tree", ""), _number(query.get("node"), 0), tokens=tokens)

    def close(self) -> None:
        """Close the tables. Nothing can be asked afterwards."""
        with self._lock:
            for index in self._indexes.values():
                index.close()
            self._indexes.clear()

    def search(self, query: Query) -> Any:
        """Nodes of a tree whose texts have these words, anywhere."""
        text = query.get("q", "").strip().lower()
        if not text:
            return {"nodes": []}
        index, tree = self.index(self.path(query)), query.get("tree", "")
        found = index.rows(
            "select node from read_parquet(?) where tree = ? and contains(lower(concat_ws(' ', goal, answer, error, "
            "verdict_reason, pieces::varchar)), ?) order by node limit ?",
            [index.file_of(tree), tree, text, MAX_HITS],
        )
        return {"nodes": [row["node"] for row in found]}

    def credit(self, query: Query) -> Any:
        return self._credits.of_tree(self.index(self.path(query)), query.get("tree", ""))

    def delegation(self, query: Query) -> Any:
        path = self.path(query)
        return delegation(path, self.index(path))

    def compare(self, query: Query) -> Any:
        sides = ("run", "tree"), ("run2", "tree2")
        trees = [whole_tree(self.index(self.path(query, run)), query.get(tree, "")) for run, tree in sides]
        return compared((query["run"], query["run2"]), (trees[0], trees[1]))

    def tasks(self, query: Query) -> Any:
        """The tasks that two parts of runs share: `part`, `step` and `method`; `part2`, `step2` and `method2`."""
        first, second = self.index(self.path(query)), self.index(self.path(query, "run2"))
        names = ("part", "step", "method")
        parts = [{name: query.get(name + end, "") for name in names} for end in ("", "2")]
        return same_tasks(first, second, (parts[0], parts[1]))

    def job(self, query: Query) -> Any:
        """How a fork is doing."""
        number: int = _number(query.get("job"), -1)
        jobs: list[Job] = [] if self.forks is None else self.forks.jobs
        if not 0 <= number < len(jobs):
            raise StoreError(f"there is no fork {number}")
        return jobs[number].facts()

    def fork(self, request: Mapping[str, Any]) -> Any:
        """Begin a fork; the answer has its number."""
        if self.forks is None:
            raise StoreError("forks are off here")
        names = {key: str(request.get(key, "")) for key in ("run", "tree")}
        path = self.path(names)
        tree = whole_tree(self.index(path), names["tree"])
        return {"job": self.forks.start(path, tree, point_of(request))}


def _number(text: str | None, default: Any) -> Any:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 10 else default
