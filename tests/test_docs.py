"""Every snippet of README.md and docs/ runs as it stands.

Python blocks of a page are run one after the other, as one script. Commands are run in this process, or by bash where
they need a shell. Two things are replaced: the address of the server, by one on loopback that answers everything, and,
where a command names only its model, the default address in the same way.

A comment before a block says what is done with it:

    <!-- not run: REASON -->   a block that needs a GPU, minutes, or files that only the reader has
    <!-- file: NAME -->        a block that is saved under this name, for later ones

Commands that are not run are read by the real command line, with their settings: a wrong option fails here. Blocks that
train or need a shell take seconds: `make docs-check` runs those.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import chdir
from dataclasses import dataclass
from functools import cache
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import typer

from ramet import Sandbox
from ramet.cli.main import app, main
from ramet.config import load, settings_of
from ramet.recipes import recipe_file
from ramet.train.settings import TrainConfig
from tests.cli.test_main import Handler, Server
from tests.fork_server import SOURCE

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMENT = re.compile(r"<!-- (not run|file): (.+?) -->")
COMMAND = re.compile(r"(ramet|make|pip|cat|python) ")
ADDRESS = "http://127.0.0.1:8000/v1"
FILES = {
    "a.md": "The ship left Oslo.",
    "b.md": "The ship left Rome.",
    "rules.txt": "Be brief.",
    "report.txt": "Three ships.",
    "questions.txt": "Who?\nWhy?\n",
}
# How many blocks are not run, by page: one more is a decision.
NOT_RUN = {
    "README.md": 5,
    "design.md": 1,
    "earlier-runs.md": 7,
    "evaluation.md": 3,
    "examples.md": 1,
    "formats.md": 2,
    "index.md": 1,
    "recipes.md": 1,
    "reliability.md": 1,
    "report.md": 1,
    "performance.md": 1,
    "plugins.md": 5,
    "results.md": 17,
    "running.md": 3,
    "scale-out.md": 4,
    "serve.md": 4,
    "suite.md": 2,
    "tasks.md": 3,
    "training.md": 15,
    "tutorial.md": 3,
    "view.md": 2,
}


@dataclass(frozen=True, slots=True)
class Block:
    """A snippet: Python, or commands."""

    page: str
    line: int
    kind: str  # python, shell, or toml and json for files
    text: str
    not_run: str = ""
    file: str = ""


def blocks(page: Path) -> Iterator[Block]:
    """The snippets of a page. Other blocks (drawings, output, formulas) are left out."""
    lines = [*page.read_text(encoding="utf-8").splitlines(), ""]
    comment: tuple[str, str] = ("", "")
    at = 0
    while at < len(lines):
        start, found = at, COMMENT.fullmatch(lines[at].strip())
        if found is not None:
            comment, at = (found[1], found[2]), at + 1
            continue
        if lines[at].startswith("```"):
            kind, at = lines[at][3:].strip(), at + 1
            while not lines[at].startswith("```"):
                at += 1
            text = "\n".join(lines[start + 1 : at])
        elif lines[at].startswith("    ") and (not start or not lines[start - 1].strip()):
            while lines[at].startswith("    ") or (
                not lines[at].strip() and lines[at + 1 : at + 2] and lines[at + 1].startswith("    ")
            ):
                at += 1
            text = "\n".join(line[4:] for line in lines[start:at])
            kind, at = "shell" if COMMAND.match(text) else "", at - 1
        else:
            comment, at = (comment if not lines[at].strip() else ("", "")), at + 1
            continue
        said = dict([comment])
        if kind in ("python", "shell", "bash", "sh") or "file" in said:
            name = kind if kind in ("python", "toml", "json") else "shell"
            yield Block(page.name, start + 1, name, text, said.get("not run", ""), said.get("file", ""))
        comment, at = ("", ""), at + 1


ALL = [block for page in PAGES for block in blocks(page)]


def where(block: Block) -> str:
    return f"{block.page}:{block.line}"


def commands(block: Block) -> list[list[str]]:
    """The words of every `ramet` command of a block."""
    text = block.text.replace("\\\n", " ")
    lines = [shlex.split(part, comments=True) for line in text.splitlines() for part in re.split(r" && |\| ", line)]
    return [words for words in lines if words[:1] == ["ramet"]]


def test_blocks_that_are_not_run_are_counted() -> None:
    counts: dict[str, int] = {}
    for block in ALL:
        if block.not_run:
            counts[block.page] = counts.get(block.page, 0) + 1
    assert counts == NOT_RUN


@cache
def command_line() -> Any:
    return typer.main.get_command(app)


@pytest.mark.parametrize("block", [block for block in ALL if block.kind == "shell"], ids=where)
def test_every_command_can_be_read_by_the_command_line(block: Block) -> None:
    for words in commands(block):
        command = command_line()
        context, rest = command.make_context("ramet", words[1:]), words[1:]
        while hasattr(command, "commands") and rest:
            name, command, rest = command.resolve_command(context, rest)
            context = command.make_context(name, list(rest), parent=context)
            rest = rest if hasattr(command, "commands") else []
        if words[1] in ("train", "warmstart") and context.params.get("resume") is None:
            check_train_settings(context.params)


def check_train_settings(params: dict[str, Any]) -> None:
    recipe, given = params.get("recipe"), [word for word in params.get("settings") or [] if "=" in word]
    recipe, given = (None, [recipe, *given]) if recipe is not None and "=" in recipe else (recipe, given)
    settings_of(given)
    file = None if recipe is None else Path(recipe) if recipe.endswith(".toml") else recipe_file(recipe)
    if file is None or file.is_file():  # else it is in a run directory of the reader
        load(TrainConfig, file=file, words=given)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as made:
        made.reply = "Answer: 42"
        thread = threading.Thread(target=ThreadingHTTPServer.serve_forever, args=(made, 0.01))
        thread.start()
        yield made
        made.shutdown()
        thread.join()


class AnyModel(Handler):
    """Offers the model of the documents."""

    def do_GET(self) -> None:
        self._send(200, {"data": [{"id": "my-model"}]})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where snippets run, with the files that they name and those that the pages define."""
    made = tmp_path_factory.mktemp("docs")
    for name, text in FILES.items():
        (made / name).write_text(text)
    for block in ALL:
        if block.file:
            (made / block.file).write_text(block.text)
    for name in ("bin", "runs"):  # pages that look at runs need a folder, in whichever order tests come
        (made / name).mkdir()
    shim = made / "bin" / "ramet"
    shim.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m ramet "$@"\n')
    shim.chmod(0o755)
    return made


def at(server: Server, text: str) -> str:
    """The text with the address of a server that is there."""
    server.RequestHandlerClass = AnyModel
    text = text.replace(ADDRESS, server.url)
    return re.sub(r"--model my-model(?! *\\?\n? *--base-url)", f"--model my-model --base-url {server.url}", text)


def slow(is_slow: bool) -> list[pytest.MarkDecorator]:
    return [pytest.mark.slow_docs] if is_slow else []


TRAINING = {"plugins.md"}  # pages whose Python trains a model
PYTHON_PAGES = sorted({block.page for block in ALL if block.kind == "python" and not block.not_run and not block.file})


@pytest.mark.parametrize("page", [pytest.param(page, marks=slow(page in TRAINING)) for page in PYTHON_PAGES])
def test_python_snippets_of_a_page_run_as_one_script(
    page: str, folder: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(folder))
    names: dict[str, Any] = {"__name__": "__snippet__"}
    for block in ALL:
        if block.page == page and block.kind == "python" and not block.not_run and not block.file:
            with chdir(folder):
                exec(compile(at(server, block.text), where(block), "exec"), names)


def plain_commands(text: str) -> list[list[str]] | None:
    """The words of a block of `ramet` commands that need no shell; None if they do: a pipe, another program."""
    lines = [line for line in text.replace("\\\n", " ").splitlines() if line.strip()]
    tokens = [token for line in lines for token in shlex.shlex(line, posix=True, punctuation_chars=True)]
    needs_shell = "$" in text or any(set(token) <= set("();<>|&") for token in tokens if token)
    words = [shlex.split(line, comments=True) for line in lines]
    return None if needs_shell or any(each[:1] != ["ramet"] for each in words) else words


COMMANDS = [block for block in ALL if block.kind == "shell" and not block.not_run]


@pytest.mark.parametrize(
    "block",
    [pytest.param(block, marks=slow(plain_commands(block.text) is None), id=where(block)) for block in COMMANDS],
)
def test_commands_run(
    block: Block, folder: Path, server: Server, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plain commands run in this process, which is faster than starting one for each."""
    words = plain_commands(at(server, block.text))
    if words is None:
        return run_in_shell(block, folder, server)
    monkeypatch.chdir(folder)
    for each in words:
        monkeypatch.setattr(sys, "argv", each)
        with pytest.raises(SystemExit) as ended:
            main()
        assert (each, ended.value.code, errors(capfd.readouterr().err)) == (each, 0, [])
    return None


def test_no_block_that_is_run_installs_anything() -> None:
    assert [where(block) for block in COMMANDS if re.search(r"\b(pip|apt-get|npm) install\b", block.text)] == []


def run_in_shell(block: Block, folder: Path, server: Server) -> None:
    environment = {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "LANG": "C.UTF-8", "PYTHONPATH": SOURCE}
    script = f"set -eo pipefail\n{at(server, block.text)}\n"
    done = subprocess.run(["bash", "-c", script], cwd=folder, env=environment, capture_output=True, text=True)
    assert (done.returncode, errors(done.stderr)) == (0, [])


def errors(printed: str) -> list[str]:
    """The lines on standard error, but for the note that follows from a server that never delegates."""
    return [line for line in printed.splitlines() if not line.startswith("ramet: no node has read the texts")]


def test_the_answers_of_the_documented_questions_are_json_lines(
    folder: Path, server: Server, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    block = next(block for block in COMMANDS if "--questions" in block.text)
    test_commands_run(block, folder, server, capfd, monkeypatch)
    (file,) = folder.glob("runs/questions-*/answers.jsonl")
    assert [json.loads(line)["answer"] for line in file.read_text().splitlines()] == ["42", "42"]


def test_the_security_page_has_the_default_limits_of_a_cell() -> None:
    limits = {name: each.default for name, each in inspect.signature(Sandbox).parameters.items()}
    promised = "Defaults: {seconds:g} s, {memory_mb} MiB, recursion of {recursion} levels, {calls:,} calls and waits"
    assert promised.format(**limits) in " ".join((ROOT / "docs" / "security.md").read_text().split())


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=lambda page: page.name)
def test_the_line_below_the_head_of_a_table_stands_alone(page: Path) -> None:
    assert [
        line for line in page.read_text().splitlines() if "|---" in line and not re.fullmatch(r" *[|:-]+", line)
    ] == []
