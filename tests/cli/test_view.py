"""`ramet view` and `--view` as a user calls them."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from ramet.cli.main import app
from ramet.errors import ConfigError, StoreError
from tests.view.samples import write_runs
from tests.waiting import PATIENCE_S


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_runs(tmp_path_factory.mktemp("runs"))


def test_the_address_is_printed_and_ctrl_c_ends_the_viewer(runs: Path) -> None:
    command = [sys.executable, "-m", "ramet", "view", str(runs / "orchard"), "--no-open"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        address = process.stderr.readline().strip()
        found = re.fullmatch(r"(http://127\.0\.0\.1:\d+/[\w-]{24}/)#/run/orchard", address)
        assert found is not None
        listed = httpx.get(found[1] + "api/runs", timeout=PATIENCE_S).json()["runs"]
        assert [run["id"] for run in listed] == ["orchard"]
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=PATIENCE_S) == 0


def test_chosen_trees_are_written_as_one_file(runs: Path, tmp_path: Path) -> None:
    file = tmp_path / "trees.html"
    asked = ["view", str(runs), "--tree", "orch", "--tree", "000001-000-00", "--export", str(file)]
    found = CliRunner().invoke(app, asked)
    assert isinstance(found.exception, StoreError)  # four trees begin with the second one
    asked[5] = "000001-000-002"
    assert CliRunner().invoke(app, asked).exit_code == 0
    text = file.read_text(encoding="utf-8")
    assert text.count("<script") == 2
    assert "connect-src" not in text
    assert "default-src 'none'" in text
    assert "How many fruits are there?" in text


def test_the_only_tree_needs_no_id(runs: Path, tmp_path: Path) -> None:
    file = tmp_path / "tree.html"
    found = CliRunner().invoke(app, ["view", str(runs / "orchard"), "--export", str(file)])
    assert re.fullmatch(rf"{re.escape(str(file))}: 1 tree, \d+\.\d MB\n", found.output)
    assert "How many fruits are there?" in file.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("asked", "kind", "words"),
    [
        (["nothing"], ConfigError, "not a folder with runs"),
        (["--export", "x.html"], ConfigError, "which trees"),
        (["--export", "x.html", "--tree", "zzz"], StoreError, "no run has a tree 'zzz'"),
    ],
)
def test_a_mistake_is_one_line(runs: Path, asked: list[str], kind: type[Exception], words: str) -> None:
    found = CliRunner().invoke(app, ["view", *([] if "nothing" in asked else [str(runs)]), *asked])
    assert isinstance(found.exception, kind)
    assert words in str(found.exception)
