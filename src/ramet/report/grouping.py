"""Group runs into sections: runs that answered the same tasks are compared, split by split."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from ramet.evaluate.items import size_buckets
from ramet.evaluate.record import Record
from ramet.evaluate.tables import Section, make_section
from ramet.report.format import join_words
from ramet.report.read import Run, read_questions

BUCKET, SIZE = "bucket", "problem size"
Questions = dict[Path, Mapping[str, tuple[str, str]]]  # by run and task: the question, and its reference and texts


def group_runs(runs: Sequence[Run]) -> list[Section]:
    """A section for each group of runs that share tasks, split by split."""
    groups: list[list[tuple[str, Run]]] = []
    known: Questions = {}
    for piece in (piece for run in runs for piece in _by_split(run)):
        near = [group for group in groups if any(_comparable(piece[1], other, known) for _, other in group)]
        groups = [group for group in groups if group not in near]
        groups.append([*(member for group in near for member in group), piece])
    sections: list[Section] = []
    for number, group in enumerate(groups, 1):
        split, records = group[0][0], {run.name: run.records for _, run in group}
        sections.append(make_section(_by_size(records, split), title=split, number=number))
    return sections


def make_overviews(runs: Sequence[Run]) -> list[Section]:
    """Runs with several splits, one bucket per split. Nothing is averaged over splits."""
    groups: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        if run.records and len(_splits(run)) > 1:
            groups.setdefault(_splits(run), []).append(run)
    sections = [(splits, make_section({run.name: run.records for run in group})) for splits, group in groups.items()]
    return [
        replace(section, buckets=tuple(sorted(section.buckets, key=lambda bucket: splits.index(bucket.name))))
        for splits, section in sections
    ]


def _splits(run: Run) -> tuple[str, ...]:
    """The splits of an evaluation, in the order of its settings. A taskset of a file is named by its records."""
    tasks = run.config.get("tasks")
    named = tuple(map(str, cast(list[object], tasks))) if isinstance(tasks, list) else ()
    found = dict.fromkeys(record.bucket for record in run.records)
    return named if len(named) < 2 or found.keys() <= set(named) else tuple(found)


def _by_split(run: Run) -> list[tuple[str, Run]]:
    """The records of each split separately. With several splits, the bucket of a record is its split."""
    splits = _splits(run)
    if len(splits) < 2:
        return [(splits[0] if splits else "", run)] if run.records else []
    parts = [(split, tuple(record for record in run.records if record.bucket == split)) for split in splits]
    return [(split, replace(run, records=records)) for split, records in parts if records]


def _by_size(records_by_run: Mapping[str, Sequence[Record]], split: str) -> Mapping[str, Sequence[Record]]:
    """The records of a split by the sizes of their tasks.

    In an evaluation of several splits their buckets are the splits. Beside one of this split alone, or by itself, only
    sizes tell its records apart. A size is beyond training if it is for one of the runs.
    """
    records = [record for own in records_by_run.values() for record in own]
    if all(record.bucket != split for record in records) or any(record.size is None for record in records):
        return records_by_run
    beyond = {record.size for record in records if record.beyond}
    sizes = sorted({record.size for record in records if record.size is not None})
    labels = dict(zip(sizes, size_buckets([(size, size in beyond) for size in sizes]), strict=True))
    return {
        run: [record if record.size is None else replace(record, bucket=labels[record.size]) for record in own]
        for run, own in records_by_run.items()
    }


def not_compared(runs: Sequence[Run], sections: Sequence[Section]) -> list[str]:
    """A sentence for each pair of runs whose tasks have the same names and differ: which settings made them."""
    together = [set(section.runs) for section in sections]
    lines: list[str] = []
    for first, second in itertools.combinations([run for run in runs if run.records], 2):
        apart = not any({first.name, second.name} <= group for group in together)
        if apart and _shared(first, second) and (changed := join_words(list(_other_options(first, second)))):
            lines.append(f"{first.name} and {second.name} are not compared, their tasks differ: {changed}.")
    return lines


def _comparable(first: Run, second: Run, known: Questions) -> bool:
    """Whether two runs share tasks: the same ids, made with the same options or, as stored trees show, equal."""
    shared = _shared(first, second)
    if not shared or _options(first) == _options(second):
        return bool(shared)
    for run in (first, second):
        if run.path not in known:
            known[run.path] = read_questions(run)
    ours, theirs = known[first.path], known[second.path]
    return all(task in ours and ours[task] == theirs.get(task) for task in shared)


def _shared(first: Run, second: Run) -> set[str]:
    return {record.task for record in first.records} & {record.task for record in second.records}


def _options(run: Run) -> dict[str, Any]:
    """The options of its taskset. In files of older versions they may be missing."""
    options = run.config.get("taskset")
    return cast(dict[str, Any], options) if isinstance(options, dict) else {}


def _other_options(first: Run, second: Run) -> Iterator[str]:
    ours, theirs = _options(first), _options(second)
    for name in sorted(ours.keys() | theirs.keys()):
        if ours.get(name) != theirs.get(name):
            sides = [
                f"{side[name]} in {run.name}" if name in side else f"not set in {run.name}"
                for run, side in ((first, ours), (second, theirs))
            ]
            yield f"taskset.{name} is {', '.join(sides)}"


def bucket_word(section: Section) -> str:
    """What the buckets are: sizes, if all of them have one."""
    return BUCKET if any(bucket.size is None for bucket in section.buckets) else SIZE
