"""Problems from files: numbers compared as numbers, formulas as formulas, and no answer hangs the grader."""

from __future__ import annotations

import functools
import gzip
import hashlib
import json
import threading
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.agent.options import TreeOptions
from ramet.engine.scripted import ScriptedEngine
from ramet.errors import ConfigError
from ramet.tasks.math import Math, computed, grade
from ramet.tasks.numbers import boxed
from ramet.tasks.oracle import script
from ramet.tasks.play import play
from ramet.tasks.registry import load_taskset
from ramet.tasks.validate import validate
from ramet.types import Node, Prompt, Verdict

SOLUTION = "Half of 48 is 24.\nSo 48 and 24 are 72 clips."
ROWS: dict[str, list[dict[str, Any]]] = {
    "gsm8k_train": [
        {"question": "A clerk sold 48 clips in April and half as many in May. How many?", "answer": "72"},
        {"question": "A shop owes 5 euros more than it has. What is its balance?", "answer": "-5"},
        {"question": "How much are 3 pens at $0.50?", "answer": "1.50"},
    ],
    "gsm8k_test": [{"question": "A car costs $1,000 and a wheel $80. Together?", "answer": "1080"}],
    "aime_2024_2025": [{"question": "Find the remainder of $2^{10}$ modulo $1000$.", "answer": "024"}],
    "math500": [
        {"question": "What is $7 \\div 2$?", "answer": "\\frac{7}{2}"},
        {"question": "Who ran fastest?", "answer": "\\text{Evelyn}"},
        {"question": "Where is $f$ defined?", "answer": "[0,\\infty)"},
        {"question": "Give the point.", "answer": "\\left( 3, \\frac{\\pi}{2} \\right)"},
    ],
    "hmmt_2024_2025": [{"question": "Find the length.", "answer": "$14+4 \\sqrt{37}$."}],
}
KINDS = {"gsm8k_train": "number", "gsm8k_test": "number", "aime_2024_2025": "integer"}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for name, rows in ROWS.items():
        meta = {"dataset": name, "verify": KINDS.get(name, "math"), "solution": SOLUTION if "gsm8k" in name else None}
        lines = [json.dumps({"id": f"{name}-{i}", **row, "meta": meta}) for i, row in enumerate(rows)]
        (tmp_path / f"{name}.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    return tmp_path


def root(answer: str | None) -> Node:
    return Node(index=0, parent=None, depth=0, path=(), goal="", grant=100, answer=answer)


def child(goal: str, answer: str | None) -> Node:
    return Node(index=1, parent=0, depth=1, path=(0,), goal=goal, grant=100, answer=answer)


def known(answer: str, verify: str = "math") -> dict[str, str]:
    return {"answer": answer, "verify": verify, "solution": ""}


# Files.


def test_splits_are_named_after_files_and_train_and_eval_are_two_of_them(data: Path) -> None:
    taskset = Math(data=data)
    assert {split: taskset.size(split) for split in ROWS} == {split: len(rows) for split, rows in ROWS.items()}
    for index in range(3):
        assert taskset.task("train", index).question == taskset.task("gsm8k_train", index).question
    assert taskset.task("eval", 0).question == taskset.task("gsm8k_test", 0).question
    assert set(ROWS) < set(taskset.splits)
    assert all(taskset.splits.values())


def test_a_task_is_its_row(data: Path) -> None:
    task = Math(data=data).task("train", 0)
    assert task.id == "math:train/0"
    assert task.question == ROWS["gsm8k_train"][0]["question"]
    assert dict(task.context) == {}
    assert task.reference == {"answer": "72", "verify": "number", "solution": SOLUTION}


def test_tasks_are_the_same_on_every_machine(data: Path) -> None:
    taskset = load_taskset("math", data=str(data))
    made = [
        (task.id, task.question, task.reference)
        for split, rows in ROWS.items()
        for task in (taskset.task(split, index) for index in range(len(rows)))
    ]
    assert hashlib.sha256(repr(made).encode()).hexdigest()[:16] == "48dd7e8ec1a9a215"


def test_without_data_every_split_names_the_flag() -> None:
    taskset = Math()
    for split in taskset.splits:
        with pytest.raises(ConfigError, match="from a data folder: give --data PATH"):
            taskset.task(split, 0)


def test_a_missing_file_split_or_index_is_named(data: Path) -> None:
    taskset = Math(data=data)
    with pytest.raises(ConfigError, match=r"has no math_train_l5\.jsonl\.gz"):
        taskset.size("math_train_l5")
    with pytest.raises(ConfigError, match="did you mean math500"):
        taskset.task("math50", 0)
    with pytest.raises(ConfigError, match="has tasks 0 to 2, not 3"):
        taskset.task("train", 3)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('{"question": "q"}', "line 1: field 'answer' is missing"),
        ('{"question": "q", "answer": "a", "meta": 5}', "row 1: field 'meta' is int; dict is wanted"),
        ('{"question": "q", "answer": "a", "meta": {"verify": "vibes"}}', "row 1: field 'meta.verify' is 'vibes'"),
    ],
)
def test_a_bad_row_names_file_place_and_field(tmp_path: Path, line: str, complaint: str) -> None:
    (tmp_path / "math500.jsonl").write_text(line + "\n")
    with pytest.raises(ConfigError) as caught:
        Math(data=tmp_path).task("math500", 0)
    assert str(caught.value).startswith(f"{tmp_path / 'math500.jsonl'}, {complaint}")


def test_a_row_without_a_kind_is_compared_as_a_formula(tmp_path: Path) -> None:
    (tmp_path / "math500.jsonl").write_text('{"question": "q", "answer": "\\\\frac12"}\n')
    taskset = Math(data=tmp_path)
    task = taskset.task("math500", 0)
    assert taskset.verdict(task, taskset.world(task), root("0.5")) == Verdict(score=1.0, how="exact")


# Comparing.


@pytest.mark.parametrize(
    ("answer", "wanted", "score"),
    [
        ("72", "72", 1.0),
        ("She sold 72 clips.", "72", 1.0),
        ("$1,080.00", "1080", 1.0),
        ("\\boxed{24}", "024", 1.0),
        ("72 clips in 2 months", "72", 0.0),  # the last number counts
        ("\N{MINUS SIGN}5", "-5", 1.0),
        ("\N{MINUS SIGN}5", "5", 0.0),
        ("seventy-two", "72", 0.0),
        ("$\\boxed{73}$ after 12 steps", "73", 1.0),  # but a box counts first
        ("The answer is \\boxed{5/2}", "2", 0.0),
        (None, "72", 0.0),
    ],
)
@pytest.mark.parametrize("verify", ["number", "integer"])
def test_the_last_number_is_compared(answer: str | None, wanted: str, score: float, verify: str) -> None:
    assert grade(answer, known(wanted, verify)).score == score


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        ("\\frac{7}{2}", "\\frac{7}{2}"),
        ("3.5", "\\frac{7}{2}"),
        ("7/2", "\\frac{7}{2}"),
        ("$\\dfrac72$", "\\frac{7}{2}"),
        ("So it is $\\boxed{\\frac{7}{2}}$.", "\\frac{7}{2}"),
        ("First \\boxed{3}, no: \\boxed{7/2}", "\\frac{7}{2}"),  # the last box counts
        ("The answer is $x = \\frac{7}{2}$.", "\\frac{7}{2}"),
        ("I think it is 3.5.", "\\frac{7}{2}"),
        ("Evelyn", "\\text{Evelyn}"),
        ("(x+1)^2", "x^2+2x+1"),
        ("-q + p", "p - q"),
        ("$\\sqrt{117}$", "3\\sqrt{13}"),
        ("6, 10, 12", "12, 10, 6"),
        ("90 degrees", "90^\\circ"),
        ("2 euros", "2 \\text{ euros}"),
        ("(3, \\pi/2)", "\\left( 3, \\frac{\\pi}{2} \\right)"),
        ("4\\sqrt{37} + 14", "$14+4 \\sqrt{37}$."),
        ("\N{MINUS SIGN}5", "-5"),
        ("**42**", "42"),
        ("The answer is **42**.", "42"),
        ("So x is 42, because 6*7.", "42"),
        ("x is 5, since 2.5*2 is 5", "5"),
        ("There are 10 in all. Because 3 are red, 7 are blue", "7"),  # here the answer follows the reason
        ("\nSince 2+2=4, the answer is 4", "4"),
        ("It is 3 because it is odd. The height is 8", "8"),
        ("We get a = 3, and b = 4 because b > a, so c = 5", "5"),
        ("So, because of symmetry, it is 9", "9"),
        ("2√3", "\\sqrt{12}"),
        ("√(x+1)", "\\sqrt{x+1}"),
        ("½", "\\frac12"),
        ("2pi/3", "\\frac{2\\pi}{3}"),
        ("pi r^2", "\\pi r^2"),
        ("(-∞, 2) ∪ (3, ∞)", "(-\\infty,2)\\cup(3,\\infty)"),
        ("So it is 10 and pi cancels", "10"),  # a sentence is read as before
        ("x²+1", "x^2+1"),
        ("1 1/2", "\\frac32"),
        ("-1 1/2", "-\\frac32"),
        ("\\$18.90", "18.90"),
        ("\\boxed{7", "7"),  # cut off
        ("\\boxed{5} or \\boxed{6}", "5, 6"),
        ("\\boxed{6}, that is \\boxed{6}", "6"),
        ("2^50", "1125899906842624"),
        ("\\begin{bmatrix} 1 \\\\ 2 \\end{bmatrix}", "\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}"),
    ],
)
def test_equal_formulas_are_right(answer: str, wanted: str) -> None:
    assert grade(answer, known(wanted)) == Verdict(score=1.0, how="exact")


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        ("\\boxed{3}", "\\frac{7}{2}"),
        ("7/2 or \\boxed{3}", "\\frac{7}{2}"),
        ("\\frac{14}{3}", "3"),
        ("Alice", "\\text{Evelyn}"),
        ("q - p", "p - q"),
        ("8n^2 + 4n + 1", "1"),  # a number in a formula is not an answer by itself
        ("2k", "2"),
        ("\\boxed{5} or \\boxed{6}", "6"),
        ("$\\boxed{5}$, $\\boxed{6}$, and $\\boxed{7}$", "7"),
        ("√2", "2"),
        ("(1,\\ 234)", "1234"),
        ("sin x - 1", "1"),
        ("The value is x + 1", "1"),
        ("(0,\\infty)", "[0,\\infty)"),
        ("12, 10", "12, 10, 6"),
        ("(12, 2)", "(2, 12)"),
        ("\N{MINUS SIGN}5", "5"),
        ("3.14", "\\pi"),
        ("pi/3", "\\frac{\\pi}{2}"),
        ("-∞", "\\infty"),
        ("\\boxed{", "5"),
        ("", "5"),
        ("} { $ \\frac", "5"),
        ("\ud800", "5"),
    ],
)
def test_different_formulas_are_wrong(answer: str, wanted: str) -> None:
    assert grade(answer, known(wanted)).score == 0.0


def test_no_answer_scores_zero_with_a_reason() -> None:
    assert grade(None, known("5")) == Verdict(score=0.0, how="exact", reason="no answer")


def test_an_answer_that_takes_too_long_to_compare_scores_zero() -> None:
    verdict = grade("9^{9^{9^9}}", known("5"), seconds=1)
    assert verdict == Verdict(score=0.0, how="exact", reason="cannot be compared: it took more than 1 s")
    assert grade("10/2", known("5")).score == 1.0  # the next one is compared as usual


def test_only_the_end_of_a_long_answer_is_read() -> None:
    assert grade("(" * 100_000 + " so \\boxed{10/2}", known("5")).score == 1.0


def test_formulas_are_compared_in_any_thread() -> None:
    verdicts: list[Verdict] = []
    thread = threading.Thread(target=lambda: verdicts.append(grade("10/2", known("5"))))
    thread.start()
    thread.join()
    assert verdicts == [Verdict(score=1.0, how="exact")]


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        ("\\boxed{5}", "5"),
        ("a \\boxed{\\frac{1}{2}} b", "\\frac{1}{2}"),
        ("\\boxed{1} \\boxed{2}", "2"),
        ("\\boxed{}", ""),
        ("\\boxed{1", "1"),
        ("\\boxed{1} or \\boxed{2}", "1, 2"),
        ("$\\boxed{1}$, $\\boxed{2}$ and $\\boxed{1}$", "2, 1"),
        ("\\boxed{1}. No: \\boxed{2}", "2"),
        ("\\boxed{\\boxed{3}}", "3"),
        ("boxed 5", None),
    ],
)
def test_the_contents_of_the_last_box(text: str, inside: str | None) -> None:
    assert boxed(text) == inside


@given(st.text("ab{} ", max_size=8))
def test_a_box_is_found_with_any_contents(text: str) -> None:
    depths = [text[:i].count("{") - text[:i].count("}") for i in range(len(text) + 1)]
    if min(depths) >= 0 and depths[-1] == 0:
        assert boxed(f"so \\boxed{{{text}}} it is") == text


# Clones.


@pytest.mark.parametrize(
    ("goal", "value"),
    [
        ("Compute 3*4+5", 17),
        ("Compute 3*4+5.", 17),
        ("Compute: (2-7)*3 = ?", -15),
        ("Compute the sum 3+4 of the digits of 34", None),  # it asks for more than the expression
        ("Compute 3*2^2", None),
        ("Compute 12/4", None),
        ("Compute", None),
        ("What is 3*4+5?", None),
    ],
)
def test_only_a_plain_expression_can_be_checked(goal: str, value: int | None) -> None:
    assert computed(goal) == value


def test_the_verdict_on_a_clone_is_exact_for_an_expression_and_none_otherwise(data: Path) -> None:
    taskset = Math(data=data)
    task = taskset.task("train", 0)
    world = taskset.world(task)
    assert taskset.verdict(task, world, child("Compute 3*4+5", "It is 17")) == Verdict(score=1.0, how="exact")
    assert taskset.verdict(task, world, child("Compute 3*4+5", "18")) == Verdict(score=0.0, how="exact")
    assert taskset.verdict(task, world, child("Compute 3*4+5", None)) == Verdict(score=0.0, how="exact")
    assert taskset.verdict(task, world, child("How many in May?", "24")) is None


# Demonstrations.


@pytest.mark.parametrize("split", ROWS)
def test_the_oracle_is_right_in_every_dialect_and_passes_nothing_on(data: Path, split: str) -> None:
    report = anyio.run(functools.partial(validate, Math(data=data), split, num_tasks=4))
    assert report.faults == []
    assert report.tasks == len(ROWS[split])
    assert report.delegating == 0


@pytest.mark.parametrize("dialect", ["tools", "python"])
@pytest.mark.parametrize("delegate", [False, True])
def test_no_prompt_contains_the_answer_or_the_solution(data: Path, dialect: str, delegate: bool) -> None:
    taskset = Math(data=data)
    task = taskset.task("train", 0)
    engine = ScriptedEngine(script(taskset.oracle(task, delegate=delegate, seed=0), dialect))
    anyio.run(functools.partial(play, taskset, task, TreeOptions(engine=engine, dialect=dialect)))
    openings: list[Prompt] = [prompt for prompt in engine.prompts if prompt.turn == 0]
    assert len(openings) == 1
    for prompt in openings:
        text = "\n".join(message.content for message in prompt.messages)
        assert "72" not in text
        assert "Half of" not in text
        assert "verify" not in text


def test_long_problems_with_long_solutions_fit_their_budget(tmp_path: Path) -> None:
    row = {
        "question": "Draw $(0,0)--(1,1)$; " * 250,
        "answer": "5",
        "meta": {"verify": "integer", "solution": "So $\\frac{1}{2} x + y$ and\n" * 200},
    }
    (tmp_path / "aime_1983_2023.jsonl").write_text(json.dumps(row))
    report = anyio.run(functools.partial(validate, Math(data=tmp_path), "aime_1983_2023"))
    assert report.faults == []
