"""Text of models and servers never moves the cursor, changes colours or hides itself."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.text import Text

import ramet
from ramet.agent.options import TreeOptions
from ramet.terminal.console import make_console, out
from ramet.terminal.listing import print_runs
from ramet.terminal.live import table as live_table
from ramet.terminal.trees import print_query, show_node, show_trees
from ramet.types import NOT_PRINTED, Piece, Refusal, State, Stop, Turn, Verdict, printable

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
def test_no_command_prints_control_characters(run: Path, words: list[str]):
    command = [sys.executable, "-m", "ramet", *(word.format(run=run) for word in words)]
    done = subprocess.run(command, capture_output=True, check=False)
    for text in (done.stdout.decode(), done.stderr.decode()):
        assert not NOT_PRINTED.search(text)
    if "--json" in words:
        assert "owned" in json.dumps(json.loads(done.stdout))


STRANGE = st.text(st.sampled_from(HOSTILE + "ab <>[/red]\n\t\u2066\ud800"), max_size=30)


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
