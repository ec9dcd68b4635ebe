"""Word problems and contest problems from files: GSM8K, MATH, AIME, AMC, HMMT.

Numbers are compared as numbers. Formulas are compared by the `math-verify` package in a separate process: an answer
such as `9^{9^{9^9}}` can keep a computer algebra system busy forever.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from ramet.budget import Budget
from ramet.errors import ConfigError, MalformedAction
from ramet.interfaces import Oracle, TaskWorld, World
from ramet.tasks.erring import Habits
from ramet.tasks.expression import parse
from ramet.tasks.files import Row, TaskFile, task_file
from ramet.tasks.grader import Grader, Unfinished
from ramet.tasks.manner import make_manner
from ramet.tasks.numbers import boxed, plain_signs, same_number
from ramet.tasks.oracle import Direct
from ramet.tasks.registry import check_index
from ramet.types import Node, Task, Verdict

ALIASES = {"train": "gsm8k_train", "eval": "gsm8k_test"}
KINDS = ("number", "integer", "math")
LONGEST = 2000  # the last characters of an answer that are read
PROSE = re.compile(r"(?:^|\s)(?!(?:sin|cos|tan|log|ln|exp|sqrt)\b)[A-Za-z]{2,}(?=[\s.,:]|$)")
BOLD = re.compile(r"(?<![\w)*])\*\*(?=[^\s*])([^*\n]+)\*\*(?![\w(*])")
ROOT = re.compile(r"√[ ]?(\d+|[A-Za-z]|\([^()]*\))")
WORDS = {"pi": r"\pi ", "∞": r"\infty "}
WORD = re.compile(r"(?<![A-Za-z\\])pi(?![A-Za-z])|∞")
MIXED = re.compile(r"(?<![\d./^}])(\d{1,9}) (\d{1,9})/(\d{1,9})(?![\d/])")
REASON = re.compile(  # right after a number or a formula, to the end of its sentence, and nothing follows from it
    r"(?:(?<=[\d)}\]$%])|(?<=\b[a-z])),?[ ]+(?:because|since)\b"
    r"(?!.*\b(?:so|then|thus|hence|therefore|answer)\b)(?:[^$.]|\.\d)*\.?\s*\Z",
    re.IGNORECASE | re.DOTALL,
)
SECONDS = 5.0  # for one comparison
WRONG = "987654321"
HELPER = Grader(__name__, library="math_verify")


class Math:
    """Problems with one right answer. `data` is the folder with the files, which are named like the splits."""

    name = "math"
    about = "GSM8K, MATH, AIME, AMC and HMMT problems"
    grader = HELPER
    splits: Mapping[str, str] = {
        "train": "the same as gsm8k_train",
        "eval": "the same as gsm8k_test",
        "gsm8k_train": "school word problems, with worked solutions",
        "gsm8k_test": "school word problems, the whole test set",
        "math_train_l1to4": "MATH, training part, levels 1 to 4",
        "math_train_l5": "MATH, training part, level 5",
        "math500": "MATH, the 500 test problems that most papers report",
        "math_hard_test_l5": "MATH, test part, level 5, none of math500",
        "aime_1983_2023": "AIME until 2023; some of it is also in MATH",
        "aime_2024_2025": "AIME 2024 and 2025",
        "amc12_2022_2023": "AMC 12, with a number as the answer instead of a choice",
        "hmmt_2024_2025": "HMMT 2024 and February 2025",
    }

    def __init__(self, *, data: str | Path | None = None, mistakes: float = 0.0) -> None:
        self.data = data
        self.manner = make_manner(self.name, mistakes=mistakes)

    def size(self, split: str) -> int | None:
        return len(self._file(split))

    def task(self, split: str, index: int) -> Task:
        check_index(self, split, index)
        row = self._file(split)[index]
        return Task(
            id=f"{self.name}:{split}/{index}",
            question=row.fields["question"],
            reference=_reference(row),
        )

    def world(self, task: Task) -> World:
        return TaskWorld(task)

    def budget(self, task: Task) -> Budget:
        # A root that delegates writes the question again.
        size = len(task.question)
        return Budget(tokens=12_000 + size, nodes=16, depth=2, window=16_384 + 2 * size)

    def verdict(self, task: Task, world: World, node: Node) -> Verdict | None:
        del world
        if node.parent is None:
            return grade(node.answer, _known(task))
        value = computed(node.goal)
        return None if value is None else Verdict(score=same_number(node.answer, str(value)), how="exact")

    def same(self, task: Task, one: str, other: str) -> bool:
        """Whether `one` would be right if `other` were the reference."""
        return grade(one, {"answer": other, "verify": _known(task)["verify"]}).score == 1.0

    def source(self, split: str) -> str:
        """The data set of a split, to know what is beyond training."""
        return ALIASES.get(split, split).partition("_")[0].removesuffix("500")

    def oracle(self, task: Task, *, delegate: bool, seed: int) -> Oracle:
        del delegate
        known = _known(task)
        direct = Direct(known["answer"], thought=known["solution"])
        return self.manner.show(direct, solo=direct, habits=Habits(verb="solve it"), seed=(task.id, seed))

    def self_check(self, task: Task) -> tuple[float, float]:
        known = _known(task)
        right = grade(f"So it is \\boxed{{{_bare(known['answer'])}}}", known)
        return right.score, grade(WRONG, known).score

    def _file(self, split: str) -> TaskFile:
        return task_file(self.data, ALIASES.get(split, split), taskset=self.name)


def _reference(row: Row) -> dict[str, str]:
    """The answer to a problem, how it is compared, and a worked solution or an empty text."""
    kind = row.meta.get("verify", "math")
    if kind not in KINDS:
        raise ConfigError(f"{row.where}: field 'meta.verify' is {kind!r}; accepted: {', '.join(KINDS)}")
    return {"answer": row.fields["answer"], "verify": kind, "solution": str(row.meta.get("solution") or "")}


def _known(task: Task) -> dict[str, str]:
    return cast(dict[str, str], task.reference)


def computed(goal: str) -> int | None:
    """The value of a goal that is a plain expression, like `Compute 3*4+5`."""
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
        return Verdict(score=same_number(answer, known["answer"]), how="exact")
    given, wanted = _bare(answer[-LONGEST:]), _bare(known["answer"])
    if "".join(given.split()) == "".join(wanted.split()):
        return Verdict(score=1.0, how="exact")
    try:
        return Verdict(score=float(HELPER.call("equal", given, wanted, seconds=seconds)), how="exact")
    except Unfinished as fault:
        return Verdict(score=0.0, how="exact", reason=f"cannot be compared: {fault}")


def _bare(text: str) -> str:
    """The contents of the last box, or the whole text; without dollar signs around it, and with signs of ASCII and TeX.

    Example:
        _bare(r"So it is $\\boxed{\\frac{1}{2}}$.")  # r"\\frac{1}{2}"
    """
    inside = boxed(text)
    text = _in_tex(text if inside is None else inside).strip().removesuffix(".").strip()
    whole = text.startswith("$") and text.endswith("$") and "$" not in text.strip("$")
    return text.strip("$").strip() if whole else text


def _in_tex(text: str) -> str:
    r"""A text without marks of Markdown and reasons, with its signs in ASCII or TeX.

    Example:
        _in_tex("**√2**")  # r"\sqrt{2}"
        _in_tex("1 1/2")   # r"1\frac{1}{2}"
        _in_tex("2pi/3")   # r"2\pi /3"
    """
    text = BOLD.sub(r"\1", plain_signs(text)).replace("\\$", "")
    text = ROOT.sub(lambda found: f"\\sqrt{{{found[1].strip('()')}}}", text)
    text = REASON.sub("", MIXED.sub(r"\1\\frac{\2}{\3}", text))
    formula = WORD.sub(lambda found: WORDS[found[0]], text)
    return text if PROSE.search(formula) else formula


def equal(given: str, wanted: str) -> bool:
    """Whether two formulas are equal; runs in the grader. Formulas inside prose are between dollar signs."""
    import logging

    import math_verify  # pyright: ignore

    logging.disable()  # it warns about missing timeouts; the grader has its own

    def read(text: str) -> Any:
        # Its timeouts use signals, which need the main thread.
        return cast(Any, math_verify).parse(text, parsing_timeout=None)

    marked = "$" in given or "\\(" in given or "\\[" in given
    forms = [given] if marked else [f"${given}$"]
    if not marked and PROSE.search(given) and not set(given) & set("\\+*^_"):
        forms.append(given)  # a sentence with a number in it
    gold = read(f"${wanted}$")
    return any(cast(Any, math_verify).verify(gold, read(form), timeout_seconds=None) for form in forms)
