"""One item, answered by one method under one budget: the row behind all tables, plots and statistics."""

from __future__ import annotations

from dataclasses import dataclass

from ramet.types import is_right


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The score and the cost of one item, over all trees of the method and all their nodes."""

    method: str  # single, vote@8, best@8, split@4, chain, clones, clones/1
    budget: int | None  # generated tokens allowed; None: what the task declares
    task: str  # task id: methods are compared item by item
    bucket: str  # a split, or a range of sizes
    size: float | None  # problem size, if the taskset has sizes
    beyond: bool  # outside the training range of the model
    score: float
    answer: str | None
    generated: int
    prompt: int
    cached: int
    critical_path: int  # generated tokens on the longest chain of dependent work
    critical_path_prompts: int  # the same, plus uncached prompt tokens on the way
    peak_window: int
    nodes: int
    depth: int
    delegated: bool
    concurrent: float | None  # share of children that ran in parallel with a sibling; None without children
    seconds: float
    dollars: float | None  # None without a price table
    trees: tuple[str, ...]  # ids in the run directory

    @property
    def is_right(self) -> bool:
        return is_right(self.score)
