"""Text of models and servers never moves the cursor, changes colours or hides itself."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

import ramet
from ramet.agent.options import TreeOptions
from ramet.terminal.console import make_console
from ramet.types import NOT_PRINTED, printable

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
