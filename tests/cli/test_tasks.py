"""`ramet tasks`, and tasks in `ramet run`."""

from __future__ import annotations

import gzip
import json
import tomllib
from pathlib import Path

import pytest

from ramet.tasks.registry import TASKSETS
from tests.cli.test_main import Server, call, complaint, printed, server

__all__ = ["server"]  # the fixture


def test_every_taskset_is_listed_on_one_line(tmp_path: Path) -> None:
    lines = printed(tmp_path, "tasks", COLUMNS="80").splitlines()
    for name, line in zip(TASKSETS, lines, strict=False):
        assert line.split()[0] == name
        assert len(line.split()) > 3
    facts = json.loads(printed(tmp_path, "tasks", "--json"))
    assert [fact["name"] for fact in facts] == list(TASKSETS)


def test_samples_are_shown_with_the_tree_of_their_oracle(tmp_path: Path) -> None:
    shown = printed(tmp_path, "tasks", "show", "craft:hard", "-n", "2")
    assert shown.startswith("craft: ")
    assert "\n  craft:extreme " in shown  # the other splits
    assert "craft:hard/0" in shown
    assert "craft:hard/1" in shown
    assert "functions: craft, get_info, view_inventory" in shown
    assert "answered, scored 1" in shown


def test_samples_as_json_have_the_reference_and_the_nodes(tmp_path: Path) -> None:
    (sample,) = json.loads(printed(tmp_path, "tasks", "show", "arithmetic", "-n", "1", "--start", "1", "--json"))
    assert sample["id"] == "arithmetic:train/1"
    assert sample["answer"] == str(sample["reference"])
    assert all(node["verdict"]["score"] == 1 for node in sample["nodes"])


def test_options_of_a_taskset_are_words(tmp_path: Path) -> None:
    shown = printed(
        tmp_path,
        "tasks",
        "show",
        "arithmetic",
        "taskset.operators=1",
        "taskset.digits=1",
        "taskset.symbols=+",
        "-n",
        "1",
    )
    assert "Compute " in shown
    question = next(line for line in shown.splitlines() if line.startswith("Compute "))
    assert len(question) == len("Compute 1+2")


def test_a_taskset_can_be_checked(tmp_path: Path) -> None:
    said = printed(tmp_path, "tasks", "check", "arithmetic", "--split", "eval", "-n", "2")
    assert said == "arithmetic:eval  2 tasks, 12 trees (6 delegating): no faults\n"


def test_a_check_that_read_no_split_has_not_passed(tmp_path: Path) -> None:
    done = call(tmp_path, "tasks", "check", "jsonl", "taskset.file=nowhere.jsonl")
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.count("not checked: jsonl: the file nowhere.jsonl does not exist") == 3


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["tasks", "show", "crafft"], "did you mean craft?"),
        (["tasks", "show", "craft", "--split", "hardd"], "did you mean hard?"),
        (["tasks", "show", "craft:hardd"], "did you mean hard?"),
        (["tasks", "check", "craft:hard", "--split", "easy"], "two splits are given, 'hard' in 'craft:hard'"),
        (["tasks", "show", "craft", "--split", "hard", "--start", "999"], "has tasks 0 to 135, not 999"),
        (["tasks", "show", "arithmetic", "taskset.oprators=3"], "did you mean operators?"),
        (["tasks", "show", "arithmetic", "digits=3"], "unknown setting 'digits': did you mean taskset.digits?"),
        (["tasks", "check", "arithmetic", "options.digits=3"], "did you mean taskset.digits?"),
        (["tasks", "show", "arithmetic", "taskset.operators=x"], "operators must be a whole number or a range"),
        (["tasks", "show", "arithmetic", "--dialect", "rust"], "tools, native, python, terse"),
        (["tasks", "show", "math"], "give --data PATH"),
        (["tasks", "show", "math", "--data", "nowhere"], "the data folder nowhere does not exist"),
        (["tasks", "show", "jsonl"], "file"),
        (["run", "craft:hard/x", "--model", "m"], "write NAME:SPLIT/INDEX"),
        (["run", "craft:hrad/1", "--model", "m"], "did you mean hard?"),
        (["run", "arithmetic:train/1", "taskset.digitz=3", "--model", "m"], "did you mean digits?"),
        (["run", "arithmetic:train/1", "task.digits=3", "--model", "m"], "did you mean taskset.digits?"),
    ],
)
def test_every_mistake_is_one_line_that_names_what_is_accepted(tmp_path: Path, words: list[str], named: str) -> None:
    assert named in complaint(tmp_path, *words)


def test_a_malformed_row_names_file_line_and_field(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "gsm8k_train.jsonl.gz", "wt") as file:
        file.write('{"id": "a", "question": "1+1?", "answer": "2", "meta": {"verify": "number"}}\n{"question": "x"}\n')
    said = complaint(tmp_path, "tasks", "show", "math", "--split", "gsm8k_train", "--data", ".")
    assert "gsm8k_train.jsonl.gz, line 2: field 'answer' is missing" in said


def test_a_task_is_run_with_the_budget_of_its_taskset_and_graded(tmp_path: Path, server: Server) -> None:
    server.reply = "Answer: 12"
    words = ["arithmetic:eval/3", "--base-url", server.url, "--model", "tiny", "--json", "budget.window=20000"]
    facts = json.loads(
        printed(tmp_path, "run", *words, "--tokens", "700", "taskset.operators=[1,2]", "taskset.digits=1")
    )
    assert facts["verdict"]["how"] == "exact"
    assert 0 <= facts["verdict"]["score"] <= 1
    assert facts["question"].startswith("Compute ")
    assert facts["budget"]["tokens"] == 700  # from the command line
    assert facts["budget"]["reserve"] == 32  # from the taskset
    run = Path(facts["run"])
    config = tomllib.loads((tmp_path / run / "config.toml").read_text())
    assert config["taskset"] == {"operators": [1, 2], "digits": 1}
    rows = json.loads(printed(tmp_path, "sql", str(run), "select score, verdict from nodes", "--json"))
    assert rows == [{"score": facts["verdict"]["score"], "verdict": "exact"}]


def test_a_task_from_a_file_is_run_and_graded(tmp_path: Path, server: Server) -> None:
    (tmp_path / "mine.jsonl").write_text('{"question": "Capital of France?", "answer": "Paris"}\n')
    server.reply = "It is Paris.\nAnswer: Paris"
    words = ["jsonl:all/0", "taskset.file=mine.jsonl", "--base-url", server.url, "--model", "tiny", "--json"]
    facts = json.loads(printed(tmp_path, "run", *words))
    assert (facts["answer"], facts["verdict"]["score"]) == ("Paris", 1.0)


def test_a_judge_named_on_the_command_line_gives_the_verdict(tmp_path: Path, server: Server) -> None:
    (tmp_path / "mine.jsonl").write_text('{"question": "Capital of France?", "answer": "Paris"}\n')
    server.reply = '{"reason": "close enough", "score": 0.5}'
    words = ["jsonl:all/0", "taskset.file=mine.jsonl", "taskset.check=judge", "judge.model=tiny"]
    facts = json.loads(printed(tmp_path, "run", *words, "--base-url", server.url, "--model", "tiny", "--json"))
    judgement = facts["verdict"].pop("judgement")
    assert facts["verdict"] == {"score": 0.5, "how": "judge", "reason": "close enough"}
    assert judgement["reply"] == server.reply


def test_a_question_that_only_looks_like_a_task_is_a_question(tmp_path: Path, server: Server) -> None:
    done = call(tmp_path, "run", "math: what is it?", "--base-url", server.url, "--model", "tiny", "--json")
    assert json.loads(done.stdout)["question"] == "math: what is it?"
