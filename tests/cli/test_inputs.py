"""`ramet run` with texts, functions, MCP servers, run directories and many questions, as commands."""

from __future__ import annotations

import io
import json
import subprocess
import tomllib
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest

import ramet
from ramet.config import load
from ramet.errors import ConfigError
from ramet.evaluate import resolve_eval_config
from ramet.inputs.settings import RunConfig
from ramet.recipes import recipe_file
from ramet.store.checkpoints import best_folder, checkpoint_path
from ramet.tasks.question import resolve_run
from ramet.tasks.questions import AnswerFile, Asked, read_questions
from ramet.terminal.training import run_command
from ramet.train.settings import TrainConfig
from tests.cli.test_main import Server, call, complaint, printed, server, serving
from tests.fork_server import command, environment, installed

__all__ = ["server"]  # the fixture


def to(server: Server) -> list[str]:
    return ["--base-url", server.url, "--model", "tiny"]


def asked(server: Server) -> str:
    """All messages of the last request."""
    return "\n".join(message["content"] for message in server.bodies[-1]["messages"])


def test_texts_of_files_and_standard_input_are_there_under_their_names(tmp_path: Path, server: Server) -> None:
    for folder in "xy":
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.md").write_text(f"text {folder}")
    (tmp_path / "rules.txt").write_text("Be brief.\n")
    words = ["run", "What changed?", "-", "--context", "x/a.md", "--context", "y/a.md", "--system", "rules.txt"]
    done = subprocess.run(
        command(*words, *to(server)), cwd=tmp_path, env=environment(), input="piped", capture_output=True, text=True
    )
    assert done.returncode == 0
    assert done.stderr.startswith("ramet: no node has read the texts: the root sees their names")
    assert "- x/a.md\n- y/a.md\n- stdin" in asked(server)
    assert "Be brief." in asked(server)
    (tree,) = ramet.read_trees(tmp_path / "runs" / "what-changed")
    assert tree.task.context == {"x/a.md": "text x", "y/a.md": "text y", "stdin": "piped"}
    config = tomllib.loads((tmp_path / "runs" / "what-changed" / "config.toml").read_text())
    assert (config["context"], config["instructions"]) == (["x/a.md", "y/a.md", "-"], "Be brief.")


@pytest.mark.parametrize("dialect", ["tools", "python"])
def test_nothing_is_said_of_unread_texts_where_the_root_can_read(tmp_path: Path, server: Server, dialect: str) -> None:
    (tmp_path / "a.md").write_text("Three ships.")
    depth = ["--depth", "0"] if dialect == "tools" else []
    printed(tmp_path, "run", "How many?", "--context", "a.md", "--dialect", dialect, *depth, *to(server))  # no error


def test_a_question_can_come_from_standard_input() -> None:
    plan = resolve_run(flags={"question": "-", "engine.model": "m"}, stdin=io.BytesIO(b"Why?\n"))
    assert plan.task.question == "Why?"


def test_functions_of_a_file_are_in_the_prompt(tmp_path: Path, server: Server) -> None:
    (tmp_path / "tools.py").write_text('def search(query: str) -> str:\n    """Find pages."""\n    return query\n')
    printed(tmp_path, "run", "Find it", "--functions", "tools.py", *to(server))
    assert "search(query: str) -> str\n    Find pages." in asked(server)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (['context=["missing.md"]'], "cannot read missing.md"),
        (['functions=["missing.py"]'], "no such file: missing.py"),
        (['functions=["bad.py"]'], "NameError in bad.py, line 2: name 'nothing' is not defined"),
        (["dialect=foo"], "unknown dialect 'foo': accepted: auto, tools, native, python, terse, tools-returns"),
        (["temperature=9"], "temperature is a number from 0 to 2; got 9"),
        (["call_s=0"], "call_s is a number above 0; got 0"),
        (["question=codes:train/0", 'context=["a.md"]'], "context goes with a question in plain text: codes:train/0"),
    ],
)
def test_bad_input_is_one_line(tmp_path: Path, words: list[str], said: str) -> None:
    (tmp_path / "bad.py").write_text("\nx = nothing\n")
    with chdir(tmp_path), pytest.raises(ConfigError) as error:
        resolve_run(words=["question=q", "engine.model=tiny", *words], flags={})
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("question", "said"),
    [
        (
            "crft:hard/3",
            "no taskset 'crft' in crft:hard/3: did you mean craft? To ask it as a question, put a space in it",
        ),
        ("weather:today/1", "no taskset 'weather' in weather:today/1: ramet tasks lists all. To ask it"),
    ],
)
def test_a_misspelt_task_is_not_asked_as_a_question(question: str, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        resolve_run(flags={"question": question, "engine.model": "tiny"})
    assert said in str(error.value)


@pytest.mark.parametrize(
    "question", ["crft:hard/3 ?", "12:30/4", "ratio:3/4", "http://a/3", "Which:", "a/b:c", "and/or"]
)
def test_other_words_with_a_colon_or_a_slash_are_questions(question: str) -> None:
    assert resolve_run(flags={"question": question, "engine.model": "tiny"}).taskset is None


def test_a_file_that_is_not_there_is_exit_code_2(tmp_path: Path) -> None:
    assert "cannot read missing.md" in complaint(tmp_path, "run", "q", "--system", "missing.md", "--model", "m")


def test_no_answer_is_exit_code_1(tmp_path: Path, server: Server) -> None:
    server.reply = ""
    done = call(tmp_path, "run", "q", *to(server), "budget.turns=2")
    assert (done.returncode, done.stderr) == (1, "")
    assert "no answer" in done.stdout


# Models.


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("runs/typo", "there is no run directory and no model folder runs/typo: did you mean runs/tipo?"),
        ("./nowhere", "there is no run directory and no model folder ./nowhere"),
        ("/no/where", "there is no run directory and no model folder /no/where"),
        ("runs/tipo", "runs/tipo has no checkpoint yet"),
        ("runs/plain", "runs/plain was made by ramet run and holds no model"),
        ("runs", "runs is neither a run directory nor a model folder"),
    ],
)
def test_a_mistyped_path_is_never_sent_to_a_server(tmp_path: Path, model: str, said: str) -> None:
    ramet.RunDir.create(tmp_path / "runs", "tipo", kind="train")
    ramet.RunDir.create(tmp_path / "runs", "plain")
    with chdir(tmp_path):
        for resolve in (resolved, lambda *words: resolve_eval_config(["codes:train", *words])):
            with pytest.raises(ConfigError) as error:
                resolve(f"engine.model={model}")
            assert said in str(error.value)


def resolved(*words: str) -> RunConfig:
    return resolve_run(words=words, flags={"question": "q"}).config


def test_a_name_with_a_slash_is_a_name_on_a_server_unless_its_folder_is_here(tmp_path: Path) -> None:
    (tmp_path / "runs" / "x").mkdir(parents=True)
    at = "engine.base_url=http://127.0.0.1:9/v1"
    with chdir(tmp_path):
        for name in ("Qwen/Qwen3-4B", "tiny"):
            for more in ([], [at]):
                assert resolved(f"engine.model={name}", *more).engine.model == name
        assert resolved("engine.model=/models/llama", at).engine.model == "/models/llama"
        for name in ("runs/z", "../z"):
            with pytest.raises(ConfigError, match="there is no run directory and no model folder"):
                resolved(f"engine.model={name}", at)


def test_the_model_of_a_run_directory_is_run_as_it_was_trained(tmp_path: Path) -> None:
    """The command that `ramet train` prints at its end works as printed."""
    config = load(TrainConfig, file=recipe_file("nano"))
    run = ramet.RunDir.create(tmp_path / "runs", "nano", config=config, kind="train")
    for folder in (checkpoint_path(run.path, 90), checkpoint_path(best_folder(run.path), 60)):
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
    command = run_command(run).split()
    assert command[-4:] == ["run", "codes:train/0", "--model", str(run.path)]
    plan = resolve_run(flags={"question": command[-3], "engine.model": command[-1]})
    assert (plan.config.dialect, plan.config.budget.window) == ("terse", config.budget["window"])
    assert (plan.config.engine.kind, plan.config.engine.model) == ("local", str(checkpoint_path(run.path, 90)))
    for model in (run.path / "best", checkpoint_path(run.path, 90)):
        found = resolved(f"engine.model={model}", "dialect=tools")
        assert (found.dialect, found.budget.window) == ("tools", config.budget["window"])
        assert found.engine.model.startswith(str(model))


def test_the_window_of_a_model_that_has_none_in_its_settings_is_that_of_its_tasks(tmp_path: Path) -> None:
    run = ramet.RunDir.create(tmp_path, "train", config=TrainConfig(task="codes:train"), kind="train")
    checkpoint_path(run.path, 1).mkdir(parents=True)
    (checkpoint_path(run.path, 1) / "config.json").write_text("{}")
    taskset = ramet.load_taskset("codes")
    assert resolved(f"engine.model={run.path}").budget.window == taskset.budget(taskset.task("train", 0)).window


# Many questions.


def test_questions_of_a_file_are_answered_once_and_resumed(tmp_path: Path, server: Server) -> None:
    (tmp_path / "q.txt").write_text("One?\n\nTwo?\n")
    command = ["run", "--questions", "q.txt", *to(server), "seed=3", "dialect=tools", "--json"]
    rows = [json.loads(line) for line in printed(tmp_path, *command).splitlines()]
    assert {(row["id"], row["question"], row["answer"]) for row in rows} == {
        ("1", "One?", "forty-two"),
        ("3", "Two?", "forty-two"),
    }
    assert len(server.bodies) == 2
    (run,) = (tmp_path / "runs").iterdir()
    file = run / "answers.jsonl"
    assert sorted(map(json.dumps, rows)) == sorted(file.read_text().splitlines())
    file.write_text(file.read_text() + '{"id": "part of a li')
    (tmp_path / "q.txt").write_text("One?\n\nTwo, changed?\nThree?\n")
    assert printed(tmp_path, *command).count("\n") == 2
    assert len(server.bodies) == 4
    assert len(list(ramet.read_trees(run))) == 4
    assert "questions were done before" in printed(tmp_path, *command[:-1])


def test_a_question_with_a_separator_of_lines_is_answered_once(tmp_path: Path) -> None:
    asked = Asked(id="1", question="One?\u2028Or\x85two?", context={})
    answers = AnswerFile(ramet.RunDir.create(tmp_path, "questions"))
    answers.add(asked, None)
    assert [row["question"] for row in answers.answers()] == [asked.question]
    assert answers.missing([asked]) == []


def test_rows_have_texts_and_ids_and_a_question_without_an_answer_is_exit_code_1(
    tmp_path: Path, server: Server
) -> None:
    rows = [{"id": "a", "question": "Who?", "context": {"page": "x" * 90_000}}, {"id": "b", "question": "Why?"}]
    (tmp_path / "q.jsonl").write_text("\n".join(map(json.dumps, rows)))
    printed(tmp_path, "run", "--questions", "q.jsonl", *to(server), "budget.depth=0")
    assert any("[page]" in body["messages"][-1]["content"] for body in server.bodies)
    server.reply = ""
    done = call(tmp_path, "run", "--questions", "q.jsonl", *to(server), "budget.turns=2")
    assert done.returncode == 1
    assert "2 of 2 questions, 2 without an answer: runs/questions-q-" in done.stdout


def by_id(run: Path) -> dict[str, Any]:
    """The answers of a run, or "failed" for an error."""
    rows = [json.loads(line) for line in (run / "answers.jsonl").read_text().splitlines()]
    assert len({row["id"] for row in rows}) == len(rows)
    return {row["id"]: "failed" if "error" in row else row["answer"] for row in rows}


class Filtering(Server):
    """A server that refuses prompts with a certain word."""

    def __init__(self) -> None:
        self.refused = "forbidden"
        super().__init__()

    @property
    def status(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        last = self.bodies[-1]["messages"][-1]["content"] if self.bodies else ""
        return 400 if self.refused and self.refused in last else 200

    @status.setter
    def status(self, value: int) -> None:
        del value


@pytest.fixture
def filtering() -> Iterator[Filtering]:
    with serving(Filtering()) as server:
        yield server


def test_a_question_that_the_server_refuses_fails_alone_and_is_tried_again(
    tmp_path: Path, filtering: Filtering
) -> None:
    (tmp_path / "q.txt").write_text("One?\nforbidden?\nThree?\n")
    command = ["run", "--questions", "q.txt", *to(filtering), "dialect=tools", "concurrency=1"]
    done = call(tmp_path, *command)
    assert (done.returncode, done.stderr) == (1, "")
    assert "question 2 failed: " in done.stdout
    assert "answered 400" in done.stdout
    assert "3 of 3 questions, 1 failed (the same command tries them again)" in done.stdout
    (run,) = (tmp_path / "runs").iterdir()
    assert by_id(run) == {"1": "forty-two", "2": "failed", "3": "forty-two"}
    (tmp_path / "q.txt").write_text("One?\nforbidden?\nThree?\nFour?\n")
    assert call(tmp_path, *command).returncode == 1
    asked = [body["messages"][-1]["content"] for body in filtering.bodies[3:]]
    assert ["Four?" in asked[0], "forbidden?" in asked[1], len(asked)] == [True, True, 2]  # new questions come first
    filtering.refused = ""
    printed(tmp_path, *command)
    assert by_id(run) == dict.fromkeys("1234", "forty-two")


@pytest.mark.parametrize(("status", "calls"), [(401, 1), (403, 1), (400, 5)])
def test_questions_end_early_where_the_rest_would_fail_too(
    tmp_path: Path, server: Server, status: int, calls: int
) -> None:
    server.status = status
    (tmp_path / "q.txt").write_text("".join(f"Number {number}?\n" for number in range(9)))
    done = call(tmp_path, "run", "--questions", "q.txt", *to(server), "dialect=tools", "concurrency=1")
    assert (done.returncode, len(server.bodies)) == (2, calls)
    assert f"ramet: question {calls}: {server.url} answered {status}" in done.stderr
    assert "run the same command again to resume" in done.stderr


MIXED = r"""
Where is it?
{"question": "Who?", "answer": "hidden one", "context": {"page": "open text", "empty": ""}}
{"id": "c", "question": " When? ", "context": [{"title": "t", "text": "one"}, {"title": "t", "text": "two"}]}

{"question": "Why?", "answer": "hidden two", "parts": [{"question": "hidden three", "answer": "x", "context": []}]}
{"id": 7, "question": "How?", "context": null, "parts": []}
  [not an object]
""".lstrip("\n")


def test_lines_and_rows_with_and_without_ids_texts_answers_and_parts_can_be_mixed(tmp_path: Path) -> None:
    (tmp_path / "q").write_text(MIXED)
    asked = read_questions(str(tmp_path / "q"))
    assert [(one.id, one.question, dict(one.context)) for one in asked] == [
        ("1", "Where is it?", {}),
        ("2", "Who?", {"page": "open text", "empty": ""}),
        ("c", "When?", {"t": "one\ntwo"}),
        ("5", "Why?", {}),
        ("7", "How?", {}),
        ("line 7", "[not an object]", {}),  # a row has the id 7
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no questions"),
        ('{"question": 5}', "q, line 1: an object with a field 'question' is wanted"),
        ('{"question": "a"}\n{', "q, line 2: not valid JSON"),
        ('{"question": "a", "id": 1}\n{"question": "b", "id": "1"}', "q, line 2: the id '1' is used twice"),
        ("codes:train/0", "q, line 1: codes:train/0 is a task of a taskset"),
        ("Why?\ncods:train/0", "q, line 2: no taskset 'cods' in cods:train/0: did you mean codes?"),
    ],
)
def test_a_file_of_questions_with_a_mistake_is_one_line(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "q").write_text(text)
    with chdir(tmp_path), pytest.raises(ConfigError) as error:
        read_questions("q")
    assert said in str(error.value)


# The list of runs.


def test_runs_are_listed_with_what_they_hold(tmp_path: Path) -> None:
    assert "no runs yet" in printed(tmp_path, "ls", start=installed)
    printed(tmp_path, "tour", "--pace", "0")
    run = ramet.RunDir.create(tmp_path / "runs", "learner", kind="train")
    (run.path / "config.toml").write_text('task = "codes:train"\nsteps = 90\n')
    run.log({"step": 0, "success": 0.25})
    (tmp_path / "runs" / "broken").mkdir()
    (tmp_path / "runs" / "broken" / "meta.json").write_text("{")
    (tmp_path / "runs" / "folder").mkdir()
    text = printed(tmp_path, "ls")
    lines = {line.split()[0]: " ".join(line.split()) for line in text.splitlines()}
    assert "train codes:train 1 of 90 steps 25%" in lines["runs/learner"]
    assert "1 tree" in lines["runs/tour"]
    assert "cannot read" in lines["runs/broken"]
    assert "runs/folder" not in text
    facts = {Path(fact["path"]).name: fact for fact in json.loads(printed(tmp_path, "ls", "--json"))}
    assert (facts["learner"]["steps"], facts["learner"]["success"], facts["tour"]["trees"]) == (1, 0.25, 1)
    assert facts["tour"]["size"] > 1000
    assert "there is no folder nowhere" in call(tmp_path, "ls", "nowhere").stderr


def test_the_command_alone_prints_its_help(tmp_path: Path) -> None:
    assert "Usage:" in printed(tmp_path)
    assert "<bool>" not in printed(tmp_path, "run", "--help")
