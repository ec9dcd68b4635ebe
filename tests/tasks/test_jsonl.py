"""Questions from your own file, and a taskset of your own."""

from __future__ import annotations

import functools
import gzip
import hashlib
import inspect
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet import Budget, Node, Task, Verdict
from ramet.agent.dialects import DIALECTS
from ramet.agent.options import TreeOptions
from ramet.engine.scripted import ScriptedEngine
from ramet.errors import ConfigError
from ramet.interfaces import TaskWorld, World
from ramet.tasks.check import exact_match
from ramet.tasks.dice import Dice, in_eval
from ramet.tasks.jsonl import JsonLines, groups_of, in_share, same_words
from ramet.tasks.judge import Judge
from ramet.tasks.oracle import Direct, script
from ramet.tasks.play import demonstrate, play
from ramet.tasks.registry import load_taskset, split_tasks
from ramet.tasks.validate import validate
from ramet.train.metrics import tree_metrics
from ramet.types import Tree


def write(folder: Path, *rows: Mapping[str, Any], name: str = "mine.jsonl") -> Path:
    text = "".join(json.dumps(row) + "\n" for row in rows)
    file = folder / name
    file.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return file


def row(question: str = "Who?", answer: str = "Ada", **more: Any) -> dict[str, Any]:
    return {"question": question, "answer": answer, **more}


def root(answer: str | None) -> Node:
    return Node(index=0, parent=None, depth=0, path=(), goal="", grant=100, answer=answer)


def score(taskset: JsonLines, answer: str | None, index: int = 0) -> float:
    task = taskset.task("all", index)
    found = taskset.verdict(task, taskset.world(task), root(answer))
    assert found is not None
    assert found.how == "exact"
    return found.score


@pytest.mark.parametrize("size", ["NaN", "Infinity", "-Infinity", "1e400", "1" + 400 * "0", "true", '"5"', "null"])
def test_a_size_that_is_no_finite_number_is_unknown(size: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text(
        f'{{"question": "2+2?", "answer": "4", "size": {size}}}\n{{"question": "Who?", "answer": "Ada", "size": 3}}'
    )
    taskset = JsonLines(file=file)
    assert [taskset.size_of(task) for task in split_tasks(taskset, "all")] == [None, 3]
    assert taskset.sizes("all") == (3, 3)
    engine = ScriptedEngine(lambda _: "Answer: 4")
    tree = anyio.run(functools.partial(play, taskset, taskset.task("all", 0), TreeOptions(engine=engine)))
    assert tree_metrics([tree], taskset)["trees_by_size"] == {}


def length_share(answer: str, fields: Mapping[str, Any]) -> float:
    """A custom check."""
    return min(1.0, len(answer) / fields["length"])


def same_and_context(answer: str, fields: Mapping[str, Any]) -> bool:
    return answer == fields["answer"] and fields["context"] == {"t": "x"} and fields["question"] == "Who?"


def too_much(answer: str, fields: Mapping[str, Any]) -> float:
    return 1.5


# Files.


def test_a_row_becomes_a_task(tmp_path: Path) -> None:
    rows = [
        row(
            context=[{"title": "Ada", "text": "Born 1815.", "supporting": True}], aliases=["Lovelace"], id="q-1", more=5
        ),
        row("What?", "That", context={"A": "1", "B": "2"}, id=7),
        row("Where?", "There"),
    ]
    taskset = JsonLines(file=write(tmp_path, *rows))
    first, second, third = (taskset.task("all", index) for index in range(3))
    assert first == Task(
        id="q-1",
        question="Who?",
        context={"Ada": "Born 1815."},
        reference={"answer": "Ada", "aliases": ["Lovelace"], "id": "q-1", "more": 5},
    )
    assert (second.id, dict(second.context)) == ("7", {"A": "1", "B": "2"})
    assert (third.id, dict(third.context)) == ("jsonl:all/2", {})


def test_a_gzipped_file_is_read_the_same(tmp_path: Path) -> None:
    rows = [row(f"Question {i}?", str(i)) for i in range(5)]
    plain = load_taskset("jsonl", file=str(write(tmp_path, *rows)))
    packed = load_taskset("jsonl", file=write(tmp_path, *rows, name="mine.jsonl.gz"))
    assert [plain.task("all", i) for i in range(5)] == [packed.task("all", i) for i in range(5)]


def test_lone_surrogates_are_replaced(tmp_path: Path) -> None:
    task = JsonLines(file=write(tmp_path, row("Who \ud800?", context={"\udfff": "\ud801"}, id="\ud802"))).task("all", 0)
    assert (task.id, task.question, dict(task.context)) == ("\ufffd", "Who \ufffd?", {"\ufffd": "\ufffd"})


@pytest.mark.parametrize(
    ("bad", "check", "complaint"),
    [
        ({"question": "q"}, "exact", "field 'answer' is missing; str is wanted"),
        ({"question": "q", "answer": 5}, "number", "field 'answer' is int; str is wanted"),
        (row(context="text"), "exact", "field 'context' must be a list of {title, text} or an object of texts"),
        (row(aliases="Ada"), "exact", "field 'aliases' must be a list of texts"),
        (row(aliases=[1]), "f1", "field 'aliases' must be a list of texts"),
        (row(id=[1]), "exact", "field 'id' is list; str is wanted"),
        (row(id="first"), "exact", "field 'id' repeats 'first'"),
        (row(question="  "), "exact", "field 'question' is empty"),
        (row(answer=""), "exact", "field 'answer' is empty"),
        (row(answer="many"), "number", "field 'answer' has no number: 'many'"),
        (row(answer="(Ada"), "regex", "field 'answer' is not a valid pattern: missing ), unterminated subpattern"),
    ],
)
@pytest.mark.parametrize("name", ["mine.jsonl", "mine.jsonl.gz"])
def test_a_bad_row_names_file_line_and_field(
    tmp_path: Path, name: str, bad: dict[str, Any], check: str, complaint: str
) -> None:
    file = tmp_path / name
    text = json.dumps(row(answer="12", id="first")) + "\n\n   \n" + json.dumps(bad) + "\n"
    file.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    with pytest.raises(ConfigError) as caught:
        JsonLines(file=file, check=check).size("all")
    assert str(caught.value).startswith(f"{file}, line 4: {complaint}")


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="give its path as taskset"):
        JsonLines().size("train")
    with pytest.raises(ConfigError, match=r"the file .*none\.jsonl does not exist"):
        JsonLines(file=tmp_path / "none.jsonl").task("train", 0)
    with pytest.raises(ConfigError, match="is not a regular file"):
        JsonLines(file=tmp_path).task("train", 0)


# Training and evaluation.


def test_the_hash_of_a_question_decides_its_split() -> None:
    first = int(hashlib.sha256(b"Who is older?").hexdigest()[:16], 16) / 2**64
    assert not in_share("Who is older?", first - 1e-9)
    assert in_share("Who is older?", first + 1e-9)
    assert in_share("  Who is\nolder? ", first + 1e-9)  # spaces do not matter


@given(st.text(), st.floats(0, 1))
def test_a_larger_share_contains_a_smaller_one(question: str, share: float) -> None:
    assert in_share(question, 1.0)
    assert not in_share(question, 0.0)
    if in_share(question, share / 2):
        assert in_share(question, share)


def test_the_share_is_about_the_requested_one_and_the_splits_make_up_the_file(tmp_path: Path) -> None:
    file = write(tmp_path, *[row(f"Question {i}?", str(i)) for i in range(2000)])
    for share in (0.0, 0.2, 0.5, 1.0):
        taskset = JsonLines(file=file, eval_share=share)
        train, held, every = (taskset.size(split) for split in ("train", "eval", "all"))
        assert train is not None
        assert held is not None
        assert every == train + held == 2000
        assert abs(held - 2000 * share) < 60


def test_copies_of_a_question_are_in_the_same_split(tmp_path: Path) -> None:
    rows = [row(f"Question {i % 50}?", f"answer {i}") for i in range(200)]
    taskset = JsonLines(file=write(tmp_path, *rows), eval_share=0.5)
    sides = [{taskset.task(split, i).question for i in range(taskset.size(split) or 0)} for split in ("train", "eval")]
    assert len(sides[0]) + len(sides[1]) == 50
    assert not sides[0] & sides[1]


def test_tasks_are_the_same_on_every_machine(tmp_path: Path) -> None:
    taskset = JsonLines(file=write(tmp_path, *[row(f"Question {i}?", str(i)) for i in range(40)]))
    sides = [[taskset.task(split, i) for i in range(taskset.size(split) or 0)] for split in ("train", "eval")]
    made = [[(task.id, task.question, task.reference) for task in side] for side in sides]
    assert hashlib.sha256(repr(made).encode()).hexdigest()[:16] == "bb58c520bc2813df"


# Checks.


@pytest.mark.parametrize(
    ("check", "fields", "answer", "points"),
    [
        ("exact", row(), "The ADA.", 1.0),
        ("exact", row(aliases=["Lovelace"]), "lovelace", 1.0),
        ("exact", row(), "Ada Lovelace", 0.0),
        ("exact", row(), None, 0.0),
        ("exact", row(answer="A"), "a", 1.0),
        ("exact", row(answer="A"), "the", 0.0),
        ("exact", row(answer="-5"), "5", 0.0),
        ("exact", row(answer="-5"), "-5.0", 1.0),
        ("exact", row(answer="1,000"), "1000.", 1.0),
        ("number", row(answer="7"), "so 7.0", 1.0),
        ("number", row(answer="7", aliases=["8"]), "8", 1.0),
        ("number", row(answer="7"), "7 of 9", 0.0),
        ("number", row(answer="7"), None, 0.0),
        ("f1", row(answer="red house"), "red", 2 / 3),
        ("f1", row(answer="red house", aliases=["sea"]), "the sea", 1.0),
        ("f1", row(answer="the"), None, 0.0),
        ("regex", row(answer=r"\b18\d\d\b"), "in 1815, I think", 1.0),  # matches anywhere
        ("regex", row(answer=r"^18\d\d$"), "in 1815", 0.0),
        ("regex", row(answer=r"ada"), "Ada", 0.0),
        ("regex", row(answer=r"(?i)ada"), "Ada", 1.0),
        ("regex", row(answer=r""".*"""), None, 0.0),
        (f"{__name__}:length_share", row(length=8), "four", 0.5),
        (f"{__name__}:length_share", row(length=8), None, 0.0),
        (f"{__name__}:same_and_context", row(context={"t": "x"}), "Ada", 1.0),
        (f"{__name__}:same_and_context", row(context={"t": "x"}), "ada", 0.0),
    ],
)
def test_how_an_answer_is_checked(
    tmp_path: Path, check: str, fields: dict[str, Any], answer: str | None, points: float
) -> None:
    assert score(JsonLines(file=write(tmp_path, fields), check=check), answer) == pytest.approx(points)


@given(st.text(), st.text(min_size=1))
def test_any_two_texts_can_be_compared_and_each_equals_itself(answer: str, wanted: str) -> None:
    assert same_words(answer, wanted) in (0.0, 1.0)
    assert same_words(wanted, wanted) == 1.0


def test_a_check_can_be_imported_from_a_file(tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text("def near(answer, row):\n    return abs(int(answer) - int(row['answer'])) < 3\n")
    taskset = JsonLines(file=write(tmp_path, row(answer="10")), check=f"{own}:near")
    assert (score(taskset, "12"), score(taskset, "13")) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("check", "complaint"),
    [
        ("exakt", "jsonl has no check 'exakt': did you mean exact"),
        ("vibes", "jsonl has no check 'vibes': accepted: exact, number, f1, regex, judge, module:function"),
        ("no_such_module:check", "cannot import the check no_such_module:check: No module named"),
        (f"{__name__}:no_such_function", "has no function 'no_such_function'"),
        (f"{__name__}:__doc__", "has no function '__doc__'"),
        (":check", "cannot import the check :check"),
        ("nowhere/own.py:check", "cannot import the check nowhere/own.py:check: "),
    ],
)
def test_an_unknown_check_is_refused(check: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        JsonLines(file="never-read.jsonl", check=check)
    assert complaint in str(caught.value)


def test_a_score_out_of_range_is_an_error(tmp_path: Path) -> None:
    taskset = JsonLines(file=write(tmp_path, row(id="q-1")), check=f"{__name__}:too_much")
    with pytest.raises(ConfigError, match=r"too_much on q-1 returned 1\.5; expected a bool or a number from 0 to 1"):
        score(taskset, "x")


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_a_share_out_of_range_is_an_error(share: float) -> None:
    with pytest.raises(ConfigError, match="eval_share must be a number from 0 to 1"):
        JsonLines(eval_share=share)


def test_with_a_judge_the_taskset_gives_no_verdict(tmp_path: Path) -> None:
    taskset = JsonLines(file=write(tmp_path, row()), check="judge")
    task = taskset.task("all", 0)
    assert taskset.verdict(task, taskset.world(task), root("Ada")) is None
    judge = Judge(ScriptedEngine(lambda prompt: '{"reason": "close", "score": 0.5}'))
    engine = ScriptedEngine(lambda prompt: "Answer: Ada Byron")
    tree = anyio.run(functools.partial(play, taskset, task, TreeOptions(engine=engine, judge=judge)))
    verdict = tree.root.verdict
    assert verdict is not None
    assert (verdict.score, verdict.how, verdict.reason) == (0.5, "judge", "close")


def test_a_clone_has_no_verdict(tmp_path: Path) -> None:
    taskset = JsonLines(file=write(tmp_path, row()))
    task = taskset.task("all", 0)
    clone = Node(index=1, parent=0, depth=1, path=(0,), goal="Who?", grant=100, answer="Ada")
    assert taskset.verdict(task, taskset.world(task), clone) is None


# Demonstrations.

MANY = [
    row("Who wrote the first program?", "Ada", context={"Ada": "She wrote it.", "Alan": "Born 1912."}),
    row("How are\nyou?", "name: fine\nage: none of it\n  \N{GRINNING FACE}", aliases=["fine"]),
    row("Say it at length.", "word " * 2000 + "end"),
    row("Which of many?", "12", context={f"Text {i}": "some words of it. " * 300 for i in range(40)}),
    row("Long? " * 1500, "12", context={f"A title that goes on, {i}": "x" for i in range(500)}),
]


SHOWN = [name for name in DIALECTS if name not in ("tools-returns", "native")]  # as `dialects_for` has it


@pytest.mark.parametrize("check", ["exact", "f1", "regex", "number", f"{__name__}:same_answer"])
def test_the_oracle_is_right_alone_and_delegating_in_every_dialect(tmp_path: Path, check: str) -> None:
    rows = MANY if check != "number" else MANY[3:]
    taskset = JsonLines(file=write(tmp_path, *rows), check=check)
    report = anyio.run(functools.partial(validate, taskset, "all", num_tasks=9))
    assert report.faults == []
    assert report.tasks == len(rows)
    assert report.delegating == len(SHOWN) * sum("context" in one for one in rows)


def same_answer(answer: str, fields: Mapping[str, Any]) -> bool:
    return answer.strip() == fields["answer"].strip()


def test_the_first_alias_that_matches_is_the_example_for_a_pattern(tmp_path: Path) -> None:
    rows = [row(answer=r"^18\d\d$", aliases=["no", "1815"]), row(answer=r"^18\d\d$")]
    taskset = JsonLines(file=write(tmp_path, *rows), check="regex")
    assert taskset.oracle(taskset.task("all", 0), delegate=False, seed=0).answer == "1815"
    with pytest.raises(ConfigError, match="jsonl:all/1 has no alias that matches"):
        taskset.oracle(taskset.task("all", 1), delegate=False, seed=0)


def test_texts_are_shared_out_among_clones() -> None:
    assert groups_of({}) == []
    assert groups_of({"A": "one"}) == [("A",)]
    assert groups_of({"A": "one two", "B": ""}) == [("A", "B")]  # one text has all the words
    assert groups_of(dict.fromkeys("ABCD", "word")) == [("A", "B"), ("C", "D")]
    assert groups_of({"a": "one", "b": "two", "c": "three"}) == [("a",), ("b",), ("c",)]


def test_a_clone_gets_at_most_a_quarter_of_a_window_of_words_and_there_are_at_most_eight() -> None:
    long = {f"{i}": "word " * 1000 for i in range(9)}
    assert groups_of(long) == [("0", "1", "2", "3"), ("4", "5", "6", "7"), ("8",)]
    assert groups_of({"A": "word " * 5000, "B": "word"}) == [("B",)]  # A does not fit
    assert groups_of({f"{i}": "word " * 4096 for i in range(10)}) == [(f"{i}",) for i in range(8)]


def test_clones_quote_from_their_texts_and_the_root_answers(tmp_path: Path) -> None:
    texts = {"Ada": "Born 1815. Ada wrote the first program.", "Alan": "Born 1912. He ran."}
    taskset = JsonLines(file=write(tmp_path, row("Who wrote the first program?", "Ada", context=texts)))
    task = taskset.task("all", 0)
    tree = anyio.run(functools.partial(demonstrate, taskset, task))
    assert [(node.goal, node.answer) for node in tree.nodes] == [
        ("Who wrote the first program?", "Ada"),
        (
            "Quote from your texts (part 1 of 2) what helps to answer: Who wrote the first program?",
            "Ada wrote the first program.",
        ),
        ("Quote from your texts (part 2 of 2) what helps to answer: Who wrote the first program?", "Born 1912."),
    ]
    assert "1912" not in tree.nodes[1].pieces[0].text


@pytest.mark.parametrize("dialect", ["tools", "python"])
def test_no_prompt_contains_the_reference(tmp_path: Path, dialect: str) -> None:
    hidden = row("Who?", "Grace", aliases=["Hopper"], note="secret", id="q-1")
    hidden["context"] = [{"title": "Navy", "text": "She was an admiral.", "supporting": True}]
    taskset = JsonLines(file=write(tmp_path, hidden))
    task = taskset.task("all", 0)
    engine = ScriptedEngine(script(taskset.oracle(task, delegate=True, seed=0), dialect))
    tree = anyio.run(functools.partial(play, taskset, task, TreeOptions(engine=engine, dialect=dialect)))
    assert tree.nodes[1].verdict == Verdict(score=1.0, how="root", reason="this goal has no exact check")
    openings = [prompt for prompt in engine.prompts if prompt.turn == 0]
    assert len(openings) == 2
    for prompt in openings:
        text = "\n".join(message.content for message in prompt.messages)
        assert not [word for word in ("Grace", "Hopper", "secret", "q-1", "supporting") if word in text]
        assert "Navy" in text


# A taskset of your own.


class Backwards:
    """Words to write in reverse order."""

    name, about = "backwards", "say words in reverse order"
    splits: Mapping[str, str] = {"train": "unlimited", "eval": "never in train"}

    def size(self, split: str) -> int | None:
        return None

    def task(self, split: str, index: int) -> Task:
        dice, words = Dice(self.name, split, index), ""
        while not words or in_eval(words) != (split == "eval"):
            words = " ".join(dice.sample(["red", "oak", "sun", "ice", "fox", "jam", "sea", "elm"], dice.between(3, 6)))
        return Task(id=f"{self.name}:{split}/{index}", question=f"Say in reverse order: {words}")

    def world(self, task: Task) -> World:
        return TaskWorld(task)

    def budget(self, task: Task) -> Budget:
        return Budget(tokens=1000, nodes=4, depth=2)

    def verdict(self, task: Task, world: World, node: Node) -> Verdict | None:
        return Verdict(score=exact_match(node.answer, [backwards(node.goal)]), how="exact")

    def oracle(self, task: Task, *, delegate: bool, seed: int) -> Direct:
        return Direct(backwards(task.question))

    def self_check(self, task: Task) -> tuple[float, float]:
        right = backwards(task.question)
        return exact_match(right, [right]), exact_match("something else", [right])


def backwards(goal: str) -> str:
    return " ".join(reversed(goal.rpartition(": ")[2].split()))


@pytest.mark.parametrize("split", ["train", "eval"])
def test_a_taskset_of_your_own_in_thirty_lines(split: str) -> None:
    source = inspect.getsource(Backwards) + inspect.getsource(backwards)
    assert sum(bool(line.strip()) for line in source.splitlines()) <= 30
    report = anyio.run(functools.partial(validate, Backwards(), split, num_tasks=20))
    assert (report.faults, report.delegating) == ([], 0)


def raises(answer: str, fields: Mapping[str, Any]) -> bool:
    """A custom check with a mistake in it."""
    return fields["no such field"] == int(answer)


def no_arguments() -> bool:
    return True


def test_a_custom_check_that_raises_is_a_score_of_zero_with_the_reason(tmp_path: Path) -> None:
    taskset = JsonLines(file=write(tmp_path, row()), check=f"{__name__}:raises")
    task = taskset.task("all", 0)
    node = Node(index=0, parent=None, depth=0, path=(), goal="q", grant=1, answer="5")
    verdict = taskset.verdict(task, taskset.world(task), node)
    assert verdict is not None
    line = inspect.getsourcelines(raises)[1] + 2
    reason = f"cannot be checked: KeyError in test_jsonl.py, line {line}: 'no such field'"
    assert verdict == Verdict(score=0.0, how="exact", reason=reason)


def test_a_custom_check_that_raises_is_a_fault_of_the_task(tmp_path: Path) -> None:
    taskset = JsonLines(file=write(tmp_path, row()), check=f"{__name__}:raises")
    (fault,) = anyio.run(functools.partial(validate, taskset, "all")).faults
    assert fault.startswith("jsonl:all/0: KeyError in test_jsonl.py, line ")


@pytest.mark.parametrize("check", ["os:getcwd", f"{__name__}:no_arguments"])
def test_a_custom_check_takes_the_answer_and_the_row(check: str) -> None:
    with pytest.raises(ConfigError, match=f"the check {check} must take two arguments, the answer and the row"):
        JsonLines(file="never-read.jsonl", check=check)


def test_a_pattern_that_never_ends_is_stopped_off_the_event_loop(tmp_path: Path) -> None:
    taskset = JsonLines(file=write(tmp_path, row(answer="(a+)+$", aliases=["a"])), check="regex")
    taskset.seconds = 0.2
    assert taskset.grader is not None

    async def run() -> Tree:
        engine = ScriptedEngine(lambda _: "Answer: " + "a" * 60 + "b")
        return await play(taskset, taskset.task("all", 0), TreeOptions(engine=engine))

    verdict = anyio.run(run).root.verdict
    assert verdict is not None
    assert (verdict.score, verdict.reason) == (0.0, "cannot be checked: it took more than 0.2 s")


def test_a_custom_check_that_never_ends_is_stopped_off_the_event_loop(tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text("def loops(answer, row):\n    while answer == 'slow':\n        pass\n    return True\n")
    taskset = JsonLines(file=write(tmp_path, row()), check=f"{own}:loops", check_seconds=0.2)
    ticks = 0

    async def run(answer: str) -> Verdict | None:
        engine = ScriptedEngine(lambda _: f"Answer: {answer}")
        return (await play(taskset, taskset.task("all", 0), TreeOptions(engine=engine))).root.verdict

    async def count() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await anyio.lowlevel.checkpoint()

    async def both() -> list[Verdict | None]:
        async with anyio.create_task_group() as group:
            group.start_soon(count)
            verdicts = [await run("slow"), await run("fast")]
            group.cancel_scope.cancel()
        return verdicts

    late = Verdict(score=0.0, how="exact", reason="cannot be checked: it took more than 0.2 s")
    assert anyio.run(both) == [late, Verdict(score=1.0, how="exact")]
    assert ticks > 10  # 0.2 s in slices of 5 ms, and the start of the process


@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
def test_the_seconds_of_a_check_are_above_zero(seconds: float) -> None:
    with pytest.raises(ConfigError, match="check_seconds must be a number above 0"):
        JsonLines(file="never-read.jsonl", check_seconds=seconds)


PARTS = [
    {"question": "When was Rome founded?", "answer": "753", "context": ["Rome"]},
    {"question": "When was Oslo founded?", "answer": "the year 1048"},
]


def test_rows_with_parts_show_how_to_delegate_them_and_grade_clones_by_them(tmp_path: Path) -> None:
    row = {"question": "How many years?", "answer": "1801", "context": {"Rome": "Since 753 BC."}, "parts": PARTS}
    file = tmp_path / "mine.jsonl"
    file.write_text(json.dumps(row), encoding="utf-8")
    taskset = load_taskset("jsonl", file=str(file), check="number")
    task = taskset.task("all", 0)
    assert "1048" not in task.question + "".join(task.context.values())
    tree = anyio.run(lambda: demonstrate(taskset, task))
    assert [(node.goal, node.answer) for node in tree.nodes] == [
        ("How many years?", "1801"),
        ("When was Rome founded?", "753"),
        ("When was Oslo founded?", "the year 1048"),
    ]
    assert [node.verdict and (node.verdict.score, node.verdict.how) for node in tree.nodes] == [(1.0, "exact")] * 3
    wrong = replace(tree.nodes[1], answer="754")
    assert taskset.verdict(task, taskset.world(task), wrong) == Verdict(score=0.0, how="exact")
    other = replace(tree.nodes[1], goal="What is Rome?")
    assert taskset.verdict(task, taskset.world(task), other) is None
    alone = anyio.run(lambda: demonstrate(taskset, task, delegate=False))
    assert len(alone.nodes) == 1


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ("no", "must be a list of at most 8 objects"),
        ([{"question": "x?"}], "must be a list of at most 8 objects"),
        ([{"question": "x?", "answer": "1", "context": ["Paris"]}], "names the text 'Paris', which the row does not"),
        ([{"question": " How  many years?", "answer": "1"}], "repeats the question"),
    ],
)
def test_parts_that_make_no_sense_are_one_line(tmp_path: Path, parts: object, said: str) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text(json.dumps({"question": "How many years?", "answer": "3", "parts": parts}), encoding="utf-8")
    with pytest.raises(ConfigError, match=said):
        load_taskset("jsonl", file=str(file)).task("all", 0)
