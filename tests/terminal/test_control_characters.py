"""Text of models and servers never moves the cursor, changes colours or hides itself."""

from __future__ import annotations

import io
import json
import random
import sys
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.text import Text

import ramet
from ramet.agent.options import TreeOptions
from ramet.cli.main import main
from ramet.cli.view import view
from ramet.serve.server import print_line
from ramet.terminal.console import make_console, out
from ramet.terminal.forks import drawn
from ramet.terminal.listing import print_runs
from ramet.terminal.live import table as live_table
from ramet.terminal.query import print_query
from ramet.terminal.trees import show_node, show_trees
from ramet.types import NOT_PRINTED, Piece, Refusal, State, Stop, Turn, Verdict, printable
from tests.cli.test_main import Server, serving

ALPHABET = "\x1b]0;\x07[2J\x9b31m\u202e\r\b\x7fab <>[/red]\n\t\u2066"
HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202egnp.exe\r\b"


@given(st.text(st.characters() | st.sampled_from(HOSTILE)))
def test_a_printable_text_has_no_control_characters_but_tabs_and_newlines(text: str):
    assert not NOT_PRINTED.search(printable(text))
    assert printable(printable(text)) == printable(text)


@pytest.mark.parametrize("text", ["plain", "tab\tand\nnewline", "é ü 漢字 😀", "\u200d joins"])
def test_ordinary_text_is_unchanged(text: str):
    assert printable(text) == text


def test_a_console_prints_its_own_colours_and_no_others():
    sink = io.StringIO()
    console = make_console(file=sink, force_terminal=True, color_system="standard")
    console.print(Text(HOSTILE, style="red"))
    console.print(HOSTILE)
    assert sink.getvalue().count("\x1b[31m") == 1
    assert "\x1b]0" not in sink.getvalue()
    assert "\x9b" not in sink.getvalue()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run whose question and answer are hostile."""
    engine = ramet.ScriptedEngine(lambda prompt: f"Answer: {HOSTILE}")
    tree_run = ramet.TreeRun(ramet.Task(question=f"What? {HOSTILE}"), TreeOptions(engine=engine))
    anyio.run(tree_run.run)
    assert not NOT_PRINTED.search(str(tree_run.tree))
    made = ramet.RunDir.create(tmp_path, "run")
    made.write([tree_run.tree])
    return made.path


@pytest.mark.parametrize(
    "words",
    [
        ["show", "{run}"],
        ["show", "{run}", "--node", "0"],
        ["show", "{run}", "--json"],
        ["sql", "{run}", "select goal, answer from nodes"],
        ["sql", "{run}", "select goal, answer from nodes", "--json"],
        ["sql", "{run}", "select \x1b[2J from nodes"],
        ["show", "{run}/\x1b[2J"],
        ["train", "\x1b[2J"],
    ],
)
def test_no_command_prints_control_characters(
    run: Path, words: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(sys, "argv", ["ramet", *(word.format(run=run) for word in words)])
    with pytest.raises(SystemExit):
        main()
    done = capfd.readouterr()
    assert done.out + done.err
    assert not NOT_PRINTED.search(done.out + done.err)
    if "--json" in words:
        assert "owned" in json.dumps(json.loads(done.out))


class HostileServer(Server):
    """A server whose model asks for clones with hostile goals and answers hostile texts, each time others."""

    def __init__(self) -> None:
        super().__init__()
        self.dice = random.Random(7)

    @property
    def reply(self) -> str:
        texts = ["".join(self.dice.choices(ALPHABET, k=20)) for _ in range(3)]
        call = {"name": "delegate", "arguments": {"goals": texts[:2]}}
        asks = len(self.bodies) % 3 == 1
        return (
            f"{HOSTILE}{texts[2]}<tool_call>{json.dumps(call)}</tool_call>" if asks else f"Answer: {HOSTILE}{texts[0]}"
        )

    @reply.setter
    def reply(self, text: str) -> None:
        del text


@pytest.fixture(scope="module")
def server() -> Iterator[HostileServer]:
    with serving(HostileServer()) as server:
        yield server


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (200, ["run", f"What? {HOSTILE}", "--tokens", "4000"]),
        (200, ["run", f"What? {HOSTILE}", "--json"]),
        (200, ["run", "--questions", "questions.txt"]),
        (200, ["run", "--questions", "questions.txt", "--json"]),
        (400, ["run", "What?"]),
        (400, ["eval", "arithmetic:eval", "-n", "1", "--methods", "single", "--budgets", "4000"]),
    ],
)
def test_nothing_that_a_server_sends_reaches_the_terminal_as_control_characters(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    server: HostileServer,
    status: int,
    words: list[str],
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "questions.txt").write_text(f"What? {HOSTILE}\x7f\nWhy?\n", encoding="utf-8")
    server.status = status
    where = ["--base-url", server.url, "--model", "tiny", "--dialect", "tools"]
    monkeypatch.setattr(sys, "argv", ["ramet", *words, *where])
    with pytest.raises(SystemExit):
        main()
    printed = capfd.readouterr()
    assert "owned" in printed.out + printed.err
    assert not NOT_PRINTED.search(printed.out + printed.err)


def test_a_fork_a_server_and_an_export_print_no_control_characters(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    run = hostile_run(tmp_path, [HOSTILE, f"{HOSTILE} 1", f"{HOSTILE} 2", f"{HOSTILE} 3", f"{HOSTILE} 4", HOSTILE])
    tree = next(iter(ramet.read_trees(run)))
    for line in drawn(tree, tree, ((), 0)):
        out.print(line)
    print_line(HOSTILE)
    view([run], tree=["t"], export=tmp_path / f"{HOSTILE.replace('/', '')}.html")
    printed = capfd.readouterr()
    assert printed.out.count("owned") == 3  # two nodes, one file
    assert "owned" in printed.err
    assert not NOT_PRINTED.search(printed.out + printed.err)


STRANGE = st.text(st.sampled_from(ALPHABET + "\ud800"), max_size=30)


def hostile_run(folder: Path, texts: list[str]) -> Path:
    """A run in which every text that a model or a server writes is one of these: goals, answers, errors, reasons."""
    root = ramet.Node(index=0, parent=None, depth=0, path=(), goal=texts[0], grant=100, stop=Stop.ANSWERED)
    root.answer, root.error = texts[1], texts[2]
    refusal = Refusal(goal=texts[3], reason=texts[4], kind="tokens")
    root.turns = [Turn(tokens=1, finish="stop", started_s=0.0, sampled_s=1.0, children=[1], refusals=[refusal])]
    root.pieces = [Piece(sampled=True, text=texts[5])]
    root.verdict = Verdict(score=0.0, how="judge", reason=texts[0])
    clone = ramet.Node(index=1, parent=0, depth=1, path=(0,), goal=texts[1], grant=10, stop=Stop.ERROR)
    clone.error, clone.state, root.state = texts[5], State.ENDED, State.ENDED
    task = ramet.Task(question=texts[2], id="t")
    grown = ramet.Tree(id="t", task=task, budget=ramet.Budget(), dialect="tools", nodes=[root, clone], seconds=1.0)
    run = ramet.RunDir.create(folder, texts[0] or "run")
    run.write([grown])
    return run.path


@settings(max_examples=12, deadline=None)
@given(st.lists(STRANGE, min_size=6, max_size=6))
def test_whatever_models_write_no_command_lets_control_characters_through(texts: list[str]):
    with tempfile.TemporaryDirectory() as name, out.capture() as printed, redirect_stdout(io.StringIO()) as direct:
        run = hostile_run(Path(name), texts)
        show_trees(run, tree_id=None, as_json=False)
        show_trees(run, tree_id="t", as_json=True)
        for index in (0, 1):
            show_node(run, index, tree_id=None, as_json=False)
        print_query(run, "select goal, answer, error from nodes")
        print_query(run, "select * from nodes", as_json=True)
        print_runs(run.parent, as_json=False)
        print_runs(run.parent, as_json=True)
        out.print(live_table(next(iter(ramet.read_trees(run))), width=60, words=True))
    assert "judge" in printed.get() + direct.getvalue()
    assert not NOT_PRINTED.search(printed.get() + direct.getvalue())
