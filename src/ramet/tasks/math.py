"""Word problems and contest problems from files: GSM8K, MATH, AIME, AMC, HMMT.

Numbers are compared as numbers. Formulas are compared by the `math-verify` package, in a process of its own: what a
model writes, `9^{9^{9^9}}` say, can keep a computer algebra system busy for ever.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from ramet.agent.tree import TaskWorld
from ramet.budget import Budget
from ramet.errors import ConfigError, MalformedAction
from ramet.interfaces import World
from ramet.tasks.check import same_number
from ramet.tasks.expression import parse
from ramet.tasks.files import Fields, data_file, read_lines
from ramet.tasks.grader import Grader, Unfinished
from ramet.tasks.oracle import Relay
from ramet.tasks.registry import check_index
from ramet.types import Node, Task, Verdict

ALIASES = {"train": "gsm8k_train", "eval": "gsm8k_test"}
KINDS = ("number", "integer", "math")
BOXED, LONGEST = "\\boxed{", 2000  # characters of an answer that are looked at, from its end
PROSE = re.compile(r"(?:^|\s)(?!(?:sin|cos|tan|log|ln|exp|sqrt)\b)[A-Za-z]{2,}(?=[\s.,:]|$)")
SECONDS = 5.0  # for one comparison
WRONG = "987654321"
HELPER = Grader(__name__, library="math_verify")


class Math:
    """Problems with one right answer. `data` is the folder with the files that the splits are named after."""

    name = "math"
    about = "GSM8K, MATH, AIME, AMC and HMMT problems"
    splits: Mapping[str, str] = {
        "train": "the same as gsm8k_train",
        "eval": "the same as gsm8k_test",
        "gsm8k_train": "school word problems, with worked solutions",
        "gsm8k_test": "school word problems, the whole test set",
        "math_train_l1to4": "MATH, training part, levels 1 to 4",
        "math_train_l5": "MATH, training part, level 5",
        "math500": "MATH, the 500 test problems most papers report on",
        "math_hard_test_l5": "MATH, test part, level 5, none of math500",
        "aime_1983_2023": "AIME until 2023; some of it is in MATH too",
        "aime_2024_2025": "AIME 2024 and 2025",
        "amc12_2022_2023": "AMC 12, asked for a number instead of a choice",
        "hmmt_2024_2025": "HMMT 2024 and February 2025",
    }

    def __init__(self, *, data: str | Path | None = None) -> None:
        self.data = data

    def size(self, split: str) -> int | None:
        return len(self._rows(split)[1])

    def task(self, split: str, index: int) -> Task:
        check_index(self, split, index)
        file, rows = self._rows(split)
        row = rows[index]
        return Task(
            id=f"{self.name}:{split}/{index}",
            question=row["question"],
            reference=_reference(row, f"{file}, row {index + 1}"),
        )

    def world(self, task: Task) -> World:
        return TaskWorld(task)

    def budget(self, task: Task) -> Budget:
        # A root that delegates writes the question once more.
        size = len(task.question)
        return Budget(tokens=12_000 + size, nodes=16, depth=2, window=16_384 + 2 * size)

    def verdict(self, task: Task, world: World, node: Node) -> Verdict | None:
        del world
        if node.parent is None:
            return grade(node.answer, _known(task))
        value = computed(node.goal)
        return None if value is None else Verdict(score=same_number(node.answer, str(value)), how="exact")

    def same(self, task: Task, one: str, other: str) -> bool:
        """Whether one would be right if the other were the reference."""
        return grade(one, {"answer": other, "verify": _known(task)["verify"]}).score == 1.0

    def oracle(self, task: Task, *, delegate: bool, seed: int) -> Relay:
        del seed
        known = _known(task)
        return Relay(task.question, known["answer"], delegate=delegate, thought=known["solution"])

    def self_check(self, task: Task) -> tuple[float, float]:
        known = _known(task)
        right = grade(f"So it is \\boxed{{{_bare(known['answer'])}}}", known)
        return right.score, grade(WRONG, known).score

    def _rows(self, split: str) -> tuple[Path, tuple[Fields, ...]]:
        file = data_file(self.data, ALIASES.get(split, split), taskset=self.name)
        return file, read_lines(file)


def _reference(row: Fields, where: str) -> dict[str, str]:
    """What is known of a problem: its answer, how that is compared, and a worked solution or an empty text."""
    found: object = row.get("meta") or {}
    if not isinstance(found, dict):
        raise ConfigError(f"{where}: field 'meta' is {type(found).__name__}; an object is wanted")
    meta = cast(dict[str, Any], found)
    kind = meta.get("verify", "math")
    if kind not in KINDS:
        raise ConfigError(f"{where}: field 'meta.verify' is {kind!r}; accepted are {', '.join(KINDS)}")
    return {"answer": row["answer"], "verify": kind, "solution": str(meta.get("solution") or "")}


def _known(task: Task) -> dict[str, str]:
    return cast(dict[str, str], task.reference)


def computed(goal: str) -> int | None:
    """The value a goal asks for when it is a bare expression, like `Compute 3*4+5`."""
    if not goal.startswith("Compute"):
        return None
    try:
        return parse(goal.removeprefix("Compute").strip(" \n:.=?")).value()
    except MalformedAction:
        return None


# Comparing.


def grade(answer: str | None, known: Mapping[str, str], *, seconds: float = SECONDS) -> Verdict:
    """The verdict on an answer to the whole problem."""
    if answer is None:
        return Verdict(score=0.0, how="exact", reason="no answer")
    if known["verify"] != "math":
        return Verdict(score=same_number(_plain(answer), known["answer"]), how="exact")
    said, wanted = _bare(answer[-LONGEST:]), _bare(known["answer"])
    if "".join(said.split()) == "".join(wanted.split()):
        return Verdict(score=1.0, how="exact")
    try:
        return Verdict(score=float(HELPER.call("equal", said, wanted, seconds=seconds)), how="exact")
    except Unfinished as fault:
        return Verdict(score=0.0, how="exact", reason=f"cannot be compared: {fault}")


def _bare(text: str) -> str:
    """What is inside the last box, or all of it; without dollar signs around it, and with plain minus signs.

    Example:
        _bare(r"So it is $\\boxed{\\frac{1}{2}}$.")  # r"\\frac{1}{2}"
    """
    inside = boxed(text)
    text = _plain(text if inside is None else inside).strip().removesuffix(".").strip()
    whole = text.startswith("$") and text.endswith("$") and "$" not in text.strip("$")
    return text.strip("$").strip() if whole else text


def _plain(text: str) -> str:
    return text.replace("\N{MINUS SIGN}", "-")


def boxed(text: str) -> str | None:
    r"""What the last \boxed{} holds, or None."""
    start = text.rfind(BOXED)
    if start < 0:
        return None
    start += len(BOXED)
    depth = 1
    for at in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return text[start:at]
    return None


def equal(said: str, wanted: str) -> bool:
    """Whether two formulas mean the same; runs in the grader. Formulas inside prose stand between dollar signs."""
    import logging

    import math_verify  # pyright: ignore

    logging.disable()  # it warns that nobody stops it: the grader's owner does

    def read(text: str) -> Any:
        # Its own time limits use signals, which only a main thread has.
        return cast(Any, math_verify).parse(text, parsing_timeout=None)

    marked = "$" in said or "\\(" in said or "\\[" in said
    forms = [said] if marked else [f"${said}$"]
    if not marked and PROSE.search(said) and not set(said) & set("\\+*^_"):
        forms.append(said)  # a sentence with a number in it
    gold = read(f"${wanted}$")
    return any(cast(Any, math_verify).verify(gold, read(form), timeout_seconds=None) for form in forms)
