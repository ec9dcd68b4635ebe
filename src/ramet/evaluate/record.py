"""One item, answered by one method under one budget: the row that tables, pictures and statistics are made of."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What an item cost with everything a method did for it, all its trees and all their nodes, and what came of it."""

    method: str  # single, vote@8, best@8, clones, clones/1
    budget: int | None  # generated tokens it was allowed; None: what the taskset declares
    task: str  # its id: records of two methods are compared item by item
    bucket: str  # part of the table it belongs to: a split, or a size
    size: float | None  # how big the problem is, where its taskset can tell
    beyond: bool  # outside what the model was trained on
    score: float
    answer: str | None
    generated: int
    prompt: int
    cached: int
    critical_path: int  # generated tokens on the longest chain of dependent work
    critical_path_prompts: int  # the same with the prompts read on the way
    peak_window: int
    nodes: int
    depth: int
    delegated: bool
    concurrent: float | None  # share of children that ran beside another; None without children
    seconds: float
    dollars: float | None  # None without a price table
    trees: tuple[str, ...]  # ids in the run directory
