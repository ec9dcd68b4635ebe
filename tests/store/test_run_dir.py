"""Run directories: what is written is read back, even after a crash."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ramet
from ramet.config import load
from ramet.demo.tour import delegate
from ramet.inputs.settings import RunConfig
from ramet.store.parquet import SCHEMA, arrow_schema, trees_to_table
from ramet.store.run_dir import slug
from ramet.store.seal import write_table
from ramet.store.sql import query
from ramet.types import Piece, Refusal, State, Turn
from tests.conftest import in_virtual_time

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    ["", "\n\n", "naïve 你好 🌱", "a\0b"]
)
BROKEN = st.text(st.sampled_from("aé\n🌱") | st.characters(categories=["Cs"]), max_size=6)  # with lone surrogates
COUNTS = st.integers(0, 2**40)
SECONDS = st.floats(0, 1e6)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
)


@st.composite
def pieces(draw: st.DrawFn) -> Piece:
    ids = tuple(draw(st.lists(st.integers(0, 200_000), max_size=4)))
    sure = st.lists(st.floats(max_value=0, width=32), min_size=len(ids), max_size=len(ids)).map(tuple)
    return Piece(
        sampled=draw(st.booleans()),
        text=draw(TEXTS),
        token_ids=ids,
        logprobs=draw(sure | st.just(())),
        policy_version=draw(st.none() | st.integers(0, 9)),
        taught=draw(st.booleans()),
    )


def turns() -> st.SearchStrategy[Turn]:
    return st.builds(
        Turn,
        tokens=COUNTS,
        finish=st.sampled_from(["stop", "length"]),
        started_s=SECONDS,
        sampled_s=SECONDS,
        closing=st.none() | st.sampled_from(ramet.Stop),
        children=st.lists(st.integers(0, 99), max_size=3),
        refusals=st.lists(
            st.builds(Refusal, goal=TEXTS, reason=TEXTS, kind=st.sampled_from(["", "same_goal", "tokens"])), max_size=2
        ),
        repairs=st.integers(0, 9),
        faults=st.integers(0, 9),
    )


@st.composite
def trees(draw: st.DrawFn) -> ramet.Tree:
    nodes: list[ramet.Node] = []
    for index in range(draw(st.integers(1, 4))):
        parent = draw(st.sampled_from(nodes)) if nodes else None
        node = ramet.Node(
            index=index,
            parent=None if parent is None else parent.index,
            depth=0 if parent is None else parent.depth + 1,
            path=() if parent is None else (*parent.path, index),
            goal=draw(TEXTS),
            grant=draw(COUNTS),
            state=State.ENDED,
            stop=draw(st.sampled_from(ramet.Stop)),
            answer=draw(st.none() | TEXTS),
            value=draw(VALUES),
            error=draw(st.none() | TEXTS),
            pieces=draw(st.lists(pieces(), max_size=4)),
            turns=draw(st.lists(turns(), max_size=3)),
            usage=draw(st.builds(ramet.Usage, **dict.fromkeys(ramet.Usage.__dataclass_fields__, COUNTS))),
            verdict=draw(
                st.none()
                | st.builds(
                    ramet.Verdict,
                    score=st.floats(0, 1),
                    how=st.sampled_from(["exact", "judge", "root"]),
                    reason=TEXTS,
                )
            ),
            started_s=draw(SECONDS),
            ended_s=draw(SECONDS),
        )
        nodes.append(node)
    price = st.floats(0.001, 100)
    prices = draw(st.builds(ramet.Prices, prompt=price, cached=st.none() | price, generated=price))
    limits = st.integers(32, 10**6)
    return ramet.Tree(
        id=draw(st.uuids()).hex[:12],
        task=ramet.Task(
            question=draw(TEXTS),
            id=draw(TEXTS),
            context=draw(st.dictionaries(TEXTS, TEXTS, max_size=2)),
            reference=draw(VALUES),
        ),
        budget=draw(
            st.builds(
                ramet.Budget,
                **dict.fromkeys(["tokens", "nodes", "depth", "children", "turns", "window"], limits),
                **dict.fromkeys(["node_tokens", "path_tokens", "reserve"], st.none() | limits),
                **dict.fromkeys(["seconds", "money"], st.none() | st.floats(0.001, 1e6)),
                prices=st.just(prices),
            )
        ),
        dialect=draw(TEXTS),
        nodes=nodes,
        seconds=draw(SECONDS),
    )


def chain(size: int, **changes: object) -> ramet.Tree:
    """A tree of `size` nodes, five children each."""
    nodes: list[ramet.Node] = []
    for i in range(size):
        parent = nodes[(i - 1) // 5] if i else None
        nodes.append(
            ramet.Node(
                index=i,
                parent=parent and parent.index,
                depth=parent.depth + 1 if parent else 0,
                path=(*parent.path, (i - 1) % 5) if parent else (),
                goal=f"goal {i}",
                grant=100,
                state=State.ENDED,
                stop=ramet.Stop.ANSWERED,
                answer=f"answer {i}",
                pieces=[Piece(sampled=True, text="ok then", token_ids=(i, i + 1), logprobs=(-0.5, -0.25))],
                usage=ramet.Usage(tokens=2, calls=1, cost=5 * 10**9),
                ended_s=1.0,
            )
        )
    for name, value in changes.items():
        setattr(nodes[0], name, value)
    task = ramet.Task(question="Why?", id="why-1", context={"Ada": "Born 1815."}, reference=["b", 1])
    return ramet.Tree(id=f"t{size}", task=task, budget=ramet.Budget(), dialect="tools", nodes=nodes, seconds=1.5)


def stored(*trees: ramet.Tree) -> list[ramet.Tree]:
    """The trees, written and read back."""
    with tempfile.TemporaryDirectory() as parent:
        run = ramet.RunDir.create(parent, "there and back")
        run.write(trees)
        return list(ramet.read_trees(run.path))


# Writing and reading.


@settings(max_examples=40)
@given(trees())
def test_a_tree_reads_back_equal_in_every_field(tree: ramet.Tree) -> None:
    assert stored(tree) == [tree]


@pytest.mark.parametrize("token_ids", [True, False])
def test_a_tree_that_really_ran_reads_back_equal_with_ids_and_without(token_ids: bool) -> None:
    def script(prompt: ramet.Prompt) -> ramet.Reply:
        if prompt.depth == 0 and prompt.turn == 0:
            return ramet.Reply(text=delegate(["one", "two", "too small"], [200, None, 1]), seconds=1)
        if prompt.goal == "two":
            return ramet.Reply(text="", fault="the server is gone")
        return ramet.Reply(text=f"Answer: {prompt.goal}\n✓", seconds=2)

    async def run() -> ramet.Tree:
        engine = ramet.ScriptedEngine(script, token_ids=token_ids)
        task = ramet.Task(question="Both?", context={"a": "text"}, reference={"yes": [1, None]})
        return await ramet.run(task, engine=engine, budget=ramet.Budget(tokens=2000, seconds=60))

    tree = in_virtual_time(run)
    assert [node.stop for node in tree.nodes] == ["answered", "answered", "error"]
    assert len(tree.root.turns[0].refusals) == 1
    assert bool(tree.root.token_ids) == token_ids
    assert stored(tree) == [tree]


def test_a_tree_of_two_thousand_nodes_reads_back_equal() -> None:
    tree = chain(2000)
    assert stored(tree) == [tree]


def test_a_run_without_anything_to_resume_or_read_can_be_removed(tmp_path: Path) -> None:
    run = ramet.RunDir.create(tmp_path, "run", kind="train")
    ramet.RunDir.create(run.path, "warm", kind="warmstart")
    (run.path / "failed.json").write_text("[]")
    assert not run.remove_if_empty()
    assert run.remove_if_empty(ignoring=["failed.json"])
    assert not run.path.exists()


@pytest.mark.parametrize("written", ["metrics.jsonl", "trees/000000.parquet", "warm/checkpoints/step-000001/x.json"])
def test_a_run_with_something_in_it_is_not_removed(tmp_path: Path, written: str) -> None:
    run = ramet.RunDir.create(tmp_path, "run", kind="train")
    file = run.path / written
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("{}")
    assert not run.remove_if_empty()
    assert file.is_file()


def test_several_trees_and_several_writes_keep_their_order(tmp_path: Path) -> None:
    run = ramet.RunDir.create(tmp_path, "many")
    run.write([chain(1), chain(2)])
    run.write([chain(3)])
    assert list(ramet.read_trees(run)) == [chain(1), chain(2), chain(3)]


@settings(max_examples=40)
@given(BROKEN)
def test_lone_surrogates_of_a_model_become_replacement_characters(text: str) -> None:
    whole = re.sub("[\ud800-\udfff]", "\N{REPLACEMENT CHARACTER}", text)
    refusals = [Refusal(goal=text, reason=text)]
    turn = Turn(tokens=1, finish="stop", started_s=0.0, sampled_s=0.0, refusals=refusals)
    said = [Piece(sampled=True, text=text)]
    (tree,) = stored(chain(1, goal=text, answer=text, error=text, value=text, pieces=said, turns=[turn]))
    root = tree.root
    told = root.turns[0].refusals[0]
    assert [root.goal, root.answer, root.error, root.value, root.pieces[0].text, told.goal, told.reason] == [whole] * 7


@settings(max_examples=20)
@given(BROKEN)
def test_lone_surrogates_in_a_task_do_not_lose_the_tree(text: str) -> None:
    whole = re.sub("[\ud800-\udfff]", "\N{REPLACEMENT CHARACTER}", text)
    tree = chain(2)
    tree.task = ramet.Task(question=text, id=text, context={"key": text}, reference=text)
    (found,) = stored(tree)
    assert found.task == ramet.Task(question=whole, id=whole, context={"key": whole}, reference=whole)
    assert found.nodes == tree.nodes


@pytest.mark.parametrize("value", [{(1, 2): 3}, {1, 2}, object(), float("inf"), b"bytes", 10**400])
def test_a_value_that_is_not_json_does_not_lose_the_tree(value: object) -> None:
    tree = chain(2, value=value)
    (found,) = stored(tree)
    assert found.answer == tree.answer
    assert found.root.value is not None


# SQL.


def test_sql_has_a_row_per_node_and_a_row_per_tree(tmp_path: Path) -> None:
    run = ramet.RunDir.create(tmp_path, "sql")
    verdict = ramet.Verdict(score=0.5, how="judge")
    run.write([chain(7, verdict=verdict), chain(1)])
    by_tree = "select tree, count(*) as n, max(depth) as depth, sum(tokens) as tokens from nodes group by 1 order by 1"
    assert query(run, by_tree) == (["tree", "n", "depth", "tokens"], [("t1", 1, 0, 2), ("t7", 7, 2, 14)])
    names, rows = query(
        run.path,
        "select tree, question, task_id, answer, stop, score, nodes, depth, tokens, dollars, seconds from trees",
    )
    assert names[:3] == ["tree", "question", "task_id"]
    assert sorted(rows) == [
        ("t1", "Why?", "why-1", "answer 0", "answered", None, 1, 0, 2, 0.005, 1.5),
        ("t7", "Why?", "why-1", "answer 0", "answered", 0.5, 7, 2, 14, 0.035, 1.5),
    ]


def test_an_empty_run_has_no_trees_and_answers_sql(tmp_path: Path) -> None:
    run = ramet.RunDir.create(tmp_path, "empty")
    assert list(ramet.read_trees(run)) == []
    assert query(run, "select count(*) as n from nodes") == (["n"], [(0,)])
    assert query(run, "select tree, answer, tokens from trees") == (["tree", "answer", "tokens"], [])


def test_sql_reads_metrics(tmp_path: Path) -> None:
    run = ramet.RunDir.create(tmp_path, "metrics")
    (run.path / "metrics.jsonl").write_text('{"step": 1, "loss": 0.5}\n{"step": 2, "loss": 0.25}\n')
    assert query(run, "select sum(step), min(loss) from metrics")[1] == [(3, 0.25)]


def test_metrics_that_are_not_finite_are_written_as_null(tmp_path: Path) -> None:
    run = ramet.RunDir.create(tmp_path, "odd")
    run.log({"step": 0, "loss": math.nan, "by_depth": [0.5, math.inf], "by_size": {"2": -math.inf, "4": 1.0}})
    assert run.metrics() == [{"step": 0, "loss": None, "by_depth": [0.5, None], "by_size": {"2": None, "4": 1.0}}]
    assert query(run, "select step, loss from metrics")[1] == [(0, None)]


SEPARATORS = "one\u2028two\u2029three\x85four\x0bfive\x0csix\x1cseven"  # of lines, for Python and not for JSON


def test_metrics_with_any_separator_of_lines_are_read_and_kept(tmp_path: Path) -> None:
    run = ramet.RunDir.create(tmp_path, "plain")
    logged = [{"step": 0, "stopped": SEPARATORS}, {"step": 1}]
    for record in logged:
        run.log(record)
    assert run.metrics() == logged
    run.rewind(1)
    assert run.metrics() == logged[:1]


def test_a_line_of_metrics_that_cannot_be_read_is_named_unless_it_is_the_last(tmp_path: Path) -> None:
    run = ramet.RunDir.create(tmp_path, "damaged")
    file = run.path / "metrics.jsonl"
    for last in ('{"st', "7\n", "\0\0\0"):
        file.write_text(f'{{"step": 0}}\n\n{{"step": 1}}\n{last}')
        assert [record["step"] for record in run.metrics()] == [0, 1]
    file.write_text('{"step": 0}\n{"st\n{"step": 2}\n{"st')
    with pytest.raises(ramet.StoreError, match=r"cannot read .*metrics\.jsonl: line 2 is not a JSON object\Z"):
        run.metrics()
    with pytest.raises(ramet.StoreError, match="line 2 is not"):
        run.rewind(1)
    assert file.read_text().count("\n") == 3
    problems: list[str] = []
    assert [record["step"] for record in run.metrics(on_problem=problems.append)] == [0, 2]
    assert [problem.partition(", ")[2] for problem in problems] == [
        "line 2: not a JSON object",
        "line 4: not a JSON object",
    ]


@pytest.mark.parametrize("metrics", [None, '{"step": 1}\n{"step": 2'])
def test_missing_or_truncated_metrics_do_not_hide_the_trees(tmp_path: Path, metrics: str | None) -> None:
    run = ramet.RunDir.create(tmp_path, "killed")
    run.write([chain(3)])
    (run.path / "metrics.jsonl").unlink()
    if metrics is not None:
        (run.path / "metrics.jsonl").write_text(metrics)
    assert query(run, "select count(*) from nodes")[1] == [(3,)]


@pytest.mark.parametrize(
    "sql", ["selec 1", "select '\udcc3", "select\nnothing\nfrom nodes", "select * from nowhere", "select 'a'::int", ""]
)
def test_invalid_sql_is_an_error_of_one_line(tmp_path: Path, sql: str) -> None:
    with pytest.raises(ramet.StoreError, match=r"^SQL: .+\Z") as caught:
        query(ramet.RunDir.create(tmp_path, "sql"), sql)
    assert "\n" not in str(caught.value)


def test_brackets_and_stars_in_a_path_are_plain_characters(tmp_path: Path) -> None:
    run = ramet.RunDir.create(tmp_path / "[a-c] * ?", "run")
    run.write([chain(2)])
    (run.path / "metrics.jsonl").write_text('{"step": 1}\n')
    assert query(run, "select (select count(*) from nodes), (select max(step) from metrics)")[1] == [(2, 1)]


# Errors in reading.


def test_a_path_that_is_not_a_run_is_a_clear_error(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for path in (tmp_path, tmp_path / "nothing", file):
        for read in (
            ramet.RunDir.open,
            lambda path: list(ramet.read_trees(path)),
            lambda path: query(path, "select 1"),
        ):
            with pytest.raises(ramet.StoreError, match=re.escape(str(path))):
                read(path)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", "\xff", "null"])
def test_a_damaged_meta_file_is_named(tmp_path: Path, text: str) -> None:
    run = ramet.RunDir.create(tmp_path, "damaged")
    (run.path / "meta.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ramet.StoreError, match=r"cannot read .*meta\.json: .+"):
        ramet.RunDir.open(run.path)


def test_an_unknown_schema_in_the_meta_file_is_a_clear_error(tmp_path: Path) -> None:
    run = ramet.RunDir.create(tmp_path, "future")
    meta = run.path / "meta.json"
    meta.write_text(json.dumps(json.loads(meta.read_text()) | {"schema": SCHEMA + 1}))
    with pytest.raises(
        ramet.StoreError, match=rf"meta\.json has schema {SCHEMA + 1}; this version .* reads schema {SCHEMA}"
    ):
        ramet.RunDir.open(run.path)


@pytest.mark.parametrize("found", [str(SCHEMA + 1), None])
def test_an_unknown_schema_in_a_tree_file_is_a_clear_error(tmp_path: Path, found: str | None) -> None:
    run = ramet.RunDir.create(tmp_path, "future")
    file = run.write([chain(1)])
    metadata = None if found is None else {"ramet.schema": found}
    write_table(file, pq.read_table(file).replace_schema_metadata(metadata))
    message = rf"{re.escape(str(file))} has schema {(found or 'none')}; this version of ramet reads schema {SCHEMA}"
    with pytest.raises(ramet.StoreError, match=message):
        list(ramet.read_trees(run))
    with pytest.raises(ramet.StoreError, match=message):
        query(run, "select 1")


def zeroed(data: bytes) -> bytes:
    """Every page of a Parquet file damaged, its footer intact."""
    footer = int.from_bytes(data[-8:-4], "little") + 8
    return data[:4] + bytes(len(data) - footer - 4) + data[-footer:]


@pytest.mark.parametrize(
    "damage",
    [lambda data: b"", lambda data: data[: len(data) // 2], lambda data: b"not parquet at all", zeroed],
    ids=["empty", "cut", "foreign", "zeroed"],
)
def test_a_damaged_tree_file_is_named(tmp_path: Path, damage: object) -> None:
    run = ramet.RunDir.create(tmp_path, "damaged")
    file = run.write([chain(50)])
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(ramet.StoreError, match=rf"^cannot read {re.escape(str(file))}: .+\Z"):  # one line
        list(ramet.read_trees(run))
    with pytest.raises(ramet.StoreError, match=r"^.+\Z"):
        query(run, "select * from nodes")


def test_a_foreign_parquet_file_is_named(tmp_path: Path) -> None:
    run = ramet.RunDir.create(tmp_path, "foreign")
    pq.write_table(pa.table({"tree": ["a"]}), run.path / "trees" / "foreign.parquet")
    with pytest.raises(ramet.StoreError, match=r"foreign\.parquet: it is not a file of trees of this version"):
        list(ramet.read_trees(run))


# Errors in writing.


def test_a_file_in_place_of_the_parent_directory_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "runs").touch()
    with pytest.raises(ramet.StoreError, match=rf"^cannot write to {re.escape(str(tmp_path))}/runs: Not a directory$"):
        ramet.RunDir.create(tmp_path / "runs", "name")
    assert list(tmp_path.iterdir()) == [tmp_path / "runs"]


def test_writing_to_a_removed_run_directory_names_the_file(tmp_path: Path) -> None:
    run = ramet.RunDir.create(tmp_path, "gone")
    (run.path / "trees").rmdir()
    with pytest.raises(ramet.StoreError, match=r"^cannot write .*/gone/trees/.*\.parquet: No such file or directory$"):
        run.write([chain(1)])
    assert not (run.path / "trees").exists()


def test_a_config_that_cannot_be_encoded_leaves_nothing_behind(tmp_path: Path) -> None:
    with suppress(ramet.RametError):
        ramet.RunDir.create(tmp_path, "name", config=RunConfig(question="caf\udce9"))
    assert [path.name for path in tmp_path.iterdir()] in ([], ["name"])


# Names and files.


def test_a_run_directory_has_its_config_and_its_origin(tmp_path: Path) -> None:
    config = RunConfig(question='Why?\t"é"', budget=ramet.Budget(tokens=77, prices=ramet.Prices(prompt=0.5)))
    run = ramet.RunDir.create(tmp_path / "new" / "runs", "Why?", config=config, kind="test")
    assert load(RunConfig, file=run.path / "config.toml") == config
    meta = json.loads((run.path / "meta.json").read_text())
    assert (meta["schema"], meta["kind"], meta["ramet"]) == (SCHEMA, "test", ramet.__version__)
    assert {path.name for path in run.path.iterdir()} == {"config.toml", "meta.json", "metrics.jsonl", "trees"}


def test_a_name_that_is_taken_gets_a_number(tmp_path: Path) -> None:
    names = [ramet.RunDir.create(tmp_path, "Same name").path.name for _ in range(3)]
    assert names == ["same-name", "same-name-2", "same-name-3"]


def test_runs_created_in_parallel_never_share_a_directory(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        runs = list(pool.map(lambda _: ramet.RunDir.create(tmp_path, "race"), range(40)))
    assert sorted(tmp_path.iterdir()) == sorted(run.path for run in runs)
    assert len({run.path for run in runs}) == 40


@pytest.mark.parametrize(
    ("question", "name"),
    [
        ("What is 2 + 2?", "what-is-2-2"),
        ("", "run"),
        ("???", "run"),
        ("Что это?", "run"),
        ("../../etc/passwd", "etc-passwd"),
        ("a\nb\0c", "a-b-c"),
        ("word " * 40, "word-word-word-word-word-word-word-word"),
    ],
)
def test_a_question_becomes_a_directory_name(question: str, name: str) -> None:
    assert slug(question) == name


@given(st.text())
def test_any_question_becomes_a_plain_directory_name(question: str) -> None:
    assert re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?", slug(question))


def test_temporary_files_are_ignored(tmp_path: Path) -> None:
    run = ramet.RunDir.create(tmp_path, "leftover")
    file = run.write([chain(2)])
    (run.path / "trees" / "000001-cut.parquet.tmp").write_bytes(file.read_bytes()[:100])
    assert list(ramet.read_trees(run)) == [chain(2)]
    assert query(run, "select count(*) from nodes")[1] == [(2,)]


# Killed at any line.

WRITER = """
import os, sys
import ramet, ramet.store.atomic, ramet.store.run_dir

def tree(name):
    node = ramet.Node(index=0, parent=None, depth=0, path=(), goal=os.urandom(200_000).hex(), grant=1)
    return ramet.Tree(id=name, task=ramet.Task(question="Why?"), budget=ramet.Budget(), nodes=[node])

def write(parent, trees):
    run = ramet.RunDir.create(parent, "run", config=ramet.Budget())
    print("created", flush=True)
    for number in range(trees):
        run.write([tree(f"tree {number}")])
        print("written", flush=True)
"""
# Forks a writer for every line of the store that it runs, and kills it there.
KILLED_AT_EVERY_LINE = (
    WRITER
    + """
import itertools, signal
import pyarrow.parquet

STORE = {ramet.store.atomic.__file__, ramet.store.run_dir.__file__}

def killed_at(moment):
    lines = itertools.count(1)
    def trace(frame, event, _):
        if frame.f_code.co_filename in STORE:
            if event == "line" and next(lines) == moment:
                os.kill(os.getpid(), signal.SIGKILL)
            return trace
    return trace

sys.stdout = open(os.devnull, "w")
for moment in itertools.count(1):
    pid = os.fork()
    if not pid:
        sys.settrace(killed_at(moment))
        write(os.path.join(sys.argv[1], f"{moment:04d}"), 2)
        os._exit(0)
    if not os.WIFSIGNALED(os.waitpid(pid, 0)[1]):
        break
"""
)


def readable_trees(parent: Path) -> int | None:
    """The number of trees of the run in `parent`; None if there is no run."""
    runs = [path for path in parent.glob("*") if not path.name.startswith(".")]
    if not runs:
        return None
    (run,) = (ramet.RunDir.open(path) for path in runs)
    trees = list(ramet.read_trees(run))
    assert [tree.id for tree in trees] == [f"tree {number}" for number in range(len(trees))]
    assert query(run, "select count(*) from trees")[1] == [(len(trees),)]
    return len(trees)


def test_a_writer_killed_at_any_line_leaves_a_readable_directory(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", KILLED_AT_EVERY_LINE, tmp_path], check=True)
    found = [readable_trees(parent) for parent in sorted(tmp_path.iterdir())]
    assert set(found) == {None, 0, 1, 2}
    assert [count for count in found if count is None] == found[: found.index(0)]  # complete or absent
    assert sorted(found[found.index(0) :]) == found[found.index(0) :]


@pytest.mark.parametrize("steps", [0, 1, 2, 5, 9])  # the test above has every line
def test_a_killed_writer_leaves_a_readable_directory(tmp_path: Path, steps: int) -> None:
    command = [sys.executable, "-c", WRITER + "print('ready', flush=True)\nwrite(sys.argv[1], 1000)", tmp_path]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        said = [writer.stdout.readline() for _ in range(1 + steps)]
        writer.kill()
    found = readable_trees(tmp_path)
    if b"created\n" in said:
        assert found is not None
        assert found >= said.count(b"written\n")


def test_tokens_are_stored_as_one_list_per_node_with_no_log_prob_where_none_was_recorded() -> None:
    nodes = [
        ramet.Node(index=0, parent=None, depth=0, path=(), goal="g", grant=9),
        ramet.Node(index=1, parent=0, depth=1, path=(0,), goal="h", grant=4),
        ramet.Node(index=2, parent=0, depth=1, path=(1,), goal="i", grant=4),
    ]
    nodes[0].pieces += [
        Piece(sampled=False, text="ab", token_ids=(5, 6)),
        Piece(sampled=True, text="c", token_ids=(7,), logprobs=(-0.5,)),
        Piece(sampled=False, text="d", token_ids=(8,)),
    ]
    nodes[2].pieces += [Piece(sampled=False, text="", token_ids=()), Piece(sampled=True, text="e", token_ids=(9, 10))]
    tree = ramet.Tree(id="t", task=ramet.Task(question="q"), budget=ramet.Budget(), nodes=nodes)
    table = trees_to_table([tree])
    assert table.schema.equals(arrow_schema(), check_metadata=True)
    assert table["token_ids"].to_pylist() == [[5, 6, 7, 8], [], [9, 10]]
    assert table["mask"].to_pylist() == [[False, False, True, False], [], [True, True]]
    assert table["logprobs"].to_pylist() == [[None, None, -0.5, None], [], [None, None]]
    assert trees_to_table([]).num_rows == 0
