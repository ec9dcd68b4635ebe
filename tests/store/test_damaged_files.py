"""Any byte of a run directory may change: the trees are read, or one line names the file."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ramet
from ramet.agent.options import TreeOptions
from ramet.store.lock import exclusive_lock
from ramet.store.sql import query
from ramet.store.tree_files import read_file

CALL = '<tool_call>{"name": "delegate", "arguments": {"goals": ["north", "south"]}}</tool_call>'


def tree(seed: int = 0) -> ramet.Tree:
    engine = ramet.ScriptedEngine(
        lambda prompt: CALL if len(prompt.messages) == 2 and "two" in str(prompt) else "Answer: 1"
    )
    run = ramet.TreeRun(ramet.Task(question="two halves?"), TreeOptions(engine=engine, seed=seed))
    anyio.run(run.run)
    return run.tree


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with two files of trees and two lines of metrics."""
    run = ramet.RunDir.create(tmp_path_factory.mktemp("runs"), "good")
    run.write([tree(0)], name="a")
    run.write([tree(1)], name="b")
    run.log({"step": 0, "success": 0.5})
    run.log({"step": 1, "success": 1.0})
    return run.path


@pytest.fixture
def run(good: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(good, tmp_path / "run"))


def damaged(data: bytes, rng: random.Random) -> bytes:
    """Bytes changed, cut off, repeated or added."""
    place = rng.randrange(len(data))
    match rng.randrange(4):
        case 0:
            return data[:place] + bytes([data[place] ^ (1 << rng.randrange(8))]) + data[place + 1 :]
        case 1:
            return data[:place]
        case 2:
            return data[:place] + rng.randbytes(rng.randrange(1, 9)) + data[place + 8 :]
        case _:
            return data[:place] + data[max(0, place - 40) :]


def complaint(read: Callable[[], object]) -> str | None:
    """The error of a reader; None if it can read. Any other exception fails the test."""
    try:
        read()
    except ramet.StoreError as error:
        return str(error)
    return None


def test_the_files_are_readable_before_they_are_damaged(good: Path):
    assert complaint(lambda: list(read_file(good / "trees" / "a.parquet"))) is None


@given(st.integers(0, 2**32))
@settings(max_examples=400, deadline=None)
def test_a_damaged_file_of_trees_is_read_or_named(good: Path, seed: int):
    rng = random.Random(seed)
    file = good.parent / f"damaged-{seed}.parquet"
    file.write_bytes(damaged((good / "trees" / "a.parquet").read_bytes(), rng))
    message = complaint(lambda: [str(found) for found in read_file(file)])
    file.unlink()
    assert message is None or (file.name in message and "\n" not in message)


@given(st.integers(0, 2**32))
@settings(max_examples=150, deadline=None)
def test_a_damaged_meta_or_metrics_file_is_read_or_named(good: Path, seed: int):
    rng = random.Random(seed)
    name = rng.choice(["meta.json", "metrics.jsonl"])
    whole = (good / name).read_bytes()
    (good / name).write_bytes(damaged(whole, rng))
    message = complaint(lambda: [ramet.RunDir.open(good).kind, ramet.RunDir(good).metrics()])
    (good / name).write_bytes(whole)
    assert message is None or "good" in message


def test_one_bad_file_does_not_hide_the_others(run: Path):
    (run / "trees" / "a.parquet").write_bytes(b"PAR1 nonsense PAR1")
    problems: list[str] = []
    assert len(list(ramet.read_trees(run, on_problem=problems.append))) == 1
    names, rows = query(run, "select count(*) from trees", on_problem=problems.append)
    assert (len(names), rows) == (1, [(1,)])
    assert len(problems) == 2
    assert all("a.parquet" in problem for problem in problems)


def test_without_a_place_for_problems_the_bad_file_is_an_error_after_all_other_trees(run: Path):
    (run / "trees" / "a.parquet").write_bytes(b"PAR1 nonsense PAR1")
    found: list[ramet.Tree] = []
    with pytest.raises(ramet.StoreError, match=r"a\.parquet"):
        found.extend(ramet.read_trees(run))
    with pytest.raises(ramet.StoreError, match=r"a\.parquet"):
        query(run, "select 1")


def test_the_command_line_shows_the_good_trees_and_names_the_bad_file(run: Path):
    (run / "trees" / "a.parquet").write_bytes(b"PAR1 nonsense PAR1")
    shown = subprocess.run(
        [sys.executable, "-m", "ramet", "show", str(run)], capture_output=True, text=True, check=True
    )
    assert "two halves?" in shown.stdout
    assert shown.stderr.startswith("ramet: cannot read ")
    assert "a.parquet" in shown.stderr


@pytest.mark.parametrize("text", ["blake2:" + "0" * 32, "blake2:" + "a" * 32])
def test_a_text_that_looks_like_the_checksum_of_its_file_is_stored_as_any_other(tmp_path: Path, text: str):
    written = tree()
    written.root.answer = written.root.goal = text
    run = ramet.RunDir.create(tmp_path, "lookalike")
    run.write([written])
    assert [read.answer for read in ramet.read_trees(run)] == [text]


def test_a_node_in_the_wrong_place_is_named(run: Path):
    broken = tree()
    broken.nodes[2].index = 7
    path = ramet.RunDir.open(run).write([broken], name="c")
    with pytest.raises(ramet.StoreError, match="node 2 is not where it belongs"):
        list(read_file(path))


# SQL.


@pytest.mark.parametrize(
    "sql",
    [
        "copy (select 1) to '{other}'",
        "copy nodes to '{inside}'",
        "attach '{other}' as x",
        "install httpfs",
        "load httpfs",
        "set enable_external_access = true",
        "create table t as select 1",
        "drop view nodes",
        "pragma database_list",
        "select 1; select 2",
        "export database '{folder}'",
    ],
)
def test_sql_changes_nothing(run: Path, tmp_path: Path, sql: str):
    places = {"other": tmp_path / "other", "inside": run / "trees" / "a.parquet", "folder": tmp_path / "folder"}
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ramet.StoreError, match=r"^SQL: "):
        query(run, sql.format(**places))
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "sql",
    [
        "select * from read_text('{secret}')",
        "select * from read_csv('{secret}')",
        "select * from read_blob('{secret}')",
        "select * from '{secret}'",
        "select * from glob('{folder}/*')",
        "select * from read_csv('http://127.0.0.1:9/x')",
        "select getenv('HOME')",
    ],
)
def test_sql_reads_nothing_outside_the_run(run: Path, tmp_path: Path, sql: str):
    secret = tmp_path / "secret.csv"
    secret.write_text("a\nhidden\n")
    with pytest.raises(ramet.StoreError, match=r"^SQL: "):
        query(run, sql.format(secret=secret, folder=tmp_path))


def test_sql_still_reads_the_run(run: Path):
    assert query(run, "select count(*), sum(tokens) > 0 from nodes")[1] == [(6, True)]
    assert query(run, "select max(success) from metrics")[1] == [(1.0,)]
    assert query(run, "with t as (select * from trees) select count(*) from t;")[1] == [(2,)]


# One writer.


def test_a_second_writer_is_refused_in_one_line(run: Path):
    with (
        exclusive_lock(run),
        pytest.raises(ramet.StoreError, match="another process is writing to"),
        exclusive_lock(run),
    ):
        pass
    with exclusive_lock(run):  # free again
        pass
