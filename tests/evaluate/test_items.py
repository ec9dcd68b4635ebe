"""The tasks of an evaluation: selection, buckets by size, and which are beyond training."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.errors import ConfigError
from ramet.evaluate.items import Trained, load_tasksets, select_items, size_buckets
from ramet.interfaces import HasSizes
from ramet.tasks.arithmetic import Arithmetic
from ramet.tasks.registry import TASKSETS, load_taskset
from ramet.train.levels import find_levels
from ramet.train.settings import CurriculumConfig
from ramet.types import Task


def test_the_first_tasks_of_every_split_or_all_it_has() -> None:
    items = select_items(load_tasksets(["arithmetic:eval", "craft:hard"], {}), num_tasks=140)
    assert [item.task.id for item in items[:2]] == ["arithmetic:eval/0", "arithmetic:eval/1"]
    assert sum(item.bucket == "arithmetic:eval" for item in items) == 140
    assert sum(item.bucket == "craft:hard" for item in items) == 136


def test_with_one_split_buckets_are_sizes() -> None:
    items = select_items(load_tasksets(["arithmetic:eval"], {"operators": [2, 4]}), num_tasks=30)
    assert {(item.bucket, item.size) for item in items} == {("2", 2), ("3", 3), ("4", 4)}


def test_tasks_that_no_training_range_covers_are_beyond() -> None:
    tasksets = load_tasksets(["arithmetic:eval"], {"operators": [2, 6]})
    trained = [Trained("arithmetic", 2, 3), Trained("arithmetic", 5, 5), Trained("craft", 1, 9)]
    items = select_items(tasksets, num_tasks=60, trained=trained)
    assert {(item.bucket, item.beyond) for item in items} == {
        ("2", False),
        ("3", False),
        ("4", True),
        ("5", False),
        ("6", True),
    }
    assert not any(item.beyond for item in select_items(tasksets, num_tasks=10))


def test_another_taskset_than_the_trained_one_is_beyond_training() -> None:
    items = select_items(load_tasksets(["craft:easy"], {}), num_tasks=3, trained=[Trained("arithmetic", 1, 99)])
    assert all(item.beyond for item in items)
    items = select_items(load_tasksets(["craft:easy"], {}), num_tasks=3, trained=[Trained(None, 1, 99)])
    assert not any(item.beyond for item in items)


@given(st.lists(st.integers(0, 40), min_size=1, max_size=60), st.integers(0, 40), st.integers(2, 9))
def test_buckets_are_few_ordered_and_never_mix_trained_sizes(sizes: list[int], edge: int, most: int) -> None:
    given_ = [(float(size), size > edge) for size in sizes]
    parts = size_buckets(given_, most=most)
    assert len(set(parts)) <= most
    sides: dict[str, set[bool]] = {}
    spans: dict[str, list[float]] = {}
    for (size, beyond), part in zip(given_, parts, strict=True):
        sides.setdefault(part, set()).add(beyond)
        spans.setdefault(part, []).append(size)
    assert all(len(found) == 1 for found in sides.values())
    ordered = sorted((min(span), max(span)) for span in spans.values())
    assert all(before[1] < after[0] for before, after in pairwise(ordered))
    for part, span in spans.items():
        ends = {f"{min(span):g}", f"{max(span):g}"}
        assert set(part.split("-")) == ends


def test_an_option_goes_to_the_tasksets_that_have_it() -> None:
    (_, arithmetic, _), (_, craft, _) = load_tasksets(["arithmetic:eval", "craft:easy"], {"digits": 2})
    assert getattr(arithmetic, "digits", None) == (2, 2)
    assert not hasattr(craft, "digits")


@pytest.mark.parametrize(
    ("specs", "options", "words"),
    [
        ([], {}, "which tasks"),
        (["craft"], {}, "craft needs a split: craft:train, "),
        (["craft:hard/3"], {}, "write NAME:SPLIT"),
        (["craft:hrd"], {}, "did you mean hard"),
        (["crft:hard"], {}, "did you mean craft"),
        (["craft:hard", "craft:hard"], {}, "named twice"),
        (["craft:hard"], {"digits": 3}, "craft has no option 'digits'"),
    ],
)
def test_tasks_that_do_not_exist_are_refused(specs: list[str], options: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load_tasksets(specs, options)


def test_two_tasks_with_the_same_id_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text("".join(json.dumps({"question": f"q{i}", "answer": "a", "id": f"i{i}"}) + "\n" for i in range(9)))
    with pytest.raises(ConfigError, match="two tasks have the id 'i"):
        select_items(load_tasksets(["jsonl:all", "jsonl:train"], {"file": str(file)}), num_tasks=9)


@pytest.mark.parametrize(
    "name", ["arithmetic", "craft", "multihop", "search", "aggregate", "countdown", "number_search"]
)
def test_the_size_range_of_a_split_covers_its_tasks(name: str) -> None:
    assert name in TASKSETS
    taskset = load_taskset(name)
    assert isinstance(taskset, HasSizes)
    for split in taskset.splits if name == "craft" else ("train", "eval", "long"):
        found = [taskset.size_of(taskset.task(split, index)) for index in range(12)]
        least, most = taskset.sizes(split) or (1, 0)
        assert all(size is not None and least <= size <= most for size in found), split


def type_and_length(size: Any) -> str:
    return f"{type(size).__name__}-{len(str(size))}"


@pytest.mark.parametrize("size", [math.nan, math.inf, -math.inf, 10**400, "3"], ids=type_and_length)
def test_a_size_of_a_plug_in_that_is_no_finite_number_is_unknown(size: Any) -> None:
    class Sized(Arithmetic):
        def size_of(self, task: Task) -> float | None:
            return {"0": size, "1": 2.0}.get(task.id.rpartition("/")[2], 3.0)

    taskset = Sized()
    items = select_items([("arithmetic:eval", taskset, "eval")], num_tasks=2)
    assert [(item.size, item.bucket) for item in items] == [(None, "arithmetic:eval"), (2.0, "arithmetic:eval")]
    levels = find_levels(taskset, "eval", CurriculumConfig(sizes=(2, 3)))
    assert [[belongs(index) for index in range(3)] for level in levels if (belongs := level.belongs) is not None] == [
        [False, True, False],
        [False, False, True],
    ]
