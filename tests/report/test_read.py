"""Reading run directories: complete, incomplete, or not a run at all."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from ramet.errors import ConfigError
from ramet.report.page import make_report
from ramet.report.read import newest_trees, read_run, read_runs, read_trees, short_names
from ramet.view.payloads import read_metrics, run_card, series
from tests.report.page_parser import Page
from tests.report.samples import records, run_dir, step, tree


def test_a_complete_run_is_read(tmp_path: Path) -> None:
    items = records("single", 500, "10")
    path = run_dir(tmp_path, "whole", records=items, trees=[tree("single-500-000"), tree("single-500-001")])
    run = read_run(path)
    assert run.records == tuple(items)
    assert run.tree_ids == {"single-500-000", "single-500-001"}
    assert (run.kind, run.notes) == ("eval", ())
    assert list(read_trees(run, ["single-500-001", "unknown"])) == ["single-500-001"]
    assert newest_trees(run, 1) == ["single-500-001"]


def test_a_run_without_meta_and_config_can_be_read(tmp_path: Path) -> None:
    path = run_dir(tmp_path, "bare", records=records("single", 500, "10"))
    (path / "meta.json").write_text("{half")
    (path / "config.toml").unlink()
    run = read_run(path)
    assert run.kind == "eval"
    assert [note.partition(":")[0] for note in run.notes][:2] == [
        "meta.json cannot be read",
        "config.toml is missing",
    ]
    page = Page(make_report([path]).html)
    assert "One run is incomplete" in page.text
    assert any(item.startswith("meta.json cannot be read") for item in page.items)


def test_broken_files_are_left_out_and_noted(tmp_path: Path) -> None:
    path = run_dir(tmp_path, "broken", kind="train", trees=[tree("000001-000-000")], metrics=[step(0), step(1)])
    (path / "trees" / "zzz.parquet").write_bytes(b"PAR1 and nothing more")
    (path / "trees" / "step-000002.tmp").write_bytes(b"half")
    with (path / "metrics.jsonl").open("a") as sink:
        sink.write('{"step": 2, "succ')
    run = read_run(path)
    assert [one["step"] for one in run.metrics] == [0, 1]
    assert run.tree_ids == {"000001-000-000"}
    assert len(run.notes) == 2
    assert run.notes[0] == "metrics.jsonl: 1 of 3 lines cannot be read"
    assert run.notes[1].startswith("trees/zzz.parquet cannot be read: ")
    assert "success by depth" in make_report([path]).html.lower()


@pytest.mark.parametrize(("file", "text"), [("meta.json", "[" * 100_000), ("config.toml", "a = " + "[" * 100_000)])
def test_a_file_that_is_nested_too_deeply_is_left_out_and_noted(tmp_path: Path, file: str, text: str) -> None:
    path = run_dir(tmp_path, "deep", kind="train", metrics=[step(0)])
    (path / file).write_text(text, encoding="utf-8")
    (note,) = read_run(path).notes
    assert note.startswith(f"{file} cannot be read: ")


def test_a_line_of_metrics_that_cannot_be_read_hides_no_other_from_report_and_viewer(tmp_path: Path) -> None:
    path = run_dir(tmp_path, "damaged", kind="train", metrics=[step(0), step(1)])
    with (path / "metrics.jsonl").open("a") as sink:
        sink.write('{"step": 2, "succ\n' + json.dumps(step(3)) + "\n")
    run = read_run(path)
    assert [one["step"] for one in run.metrics] == [0, 1, 3]
    assert run.notes == ("metrics.jsonl: 1 of 4 lines cannot be read",)
    assert [one["step"] for one in read_metrics(path)] == [0, 1, 3]


def test_metrics_without_finite_numbers_are_gaps(tmp_path: Path) -> None:
    odd = dict.fromkeys(step(1), math.nan) | {"step": 1, "success_by_depth": [math.nan, 0.5], "loss": math.inf}
    path = run_dir(tmp_path, "odd", kind="train", metrics=[step(0), odd, step(2)])
    run = read_run(path)
    assert (len(run.metrics), run.notes) == (3, ())
    assert run.metrics[1]["reward"] is None
    assert "success by depth" in make_report([path]).html.lower()
    assert series(read_metrics(path))["values"]["success"] == [0.5, None, 0.5]
    assert run_card("odd", path)["course"] == [0.5, None, 0.5]


def test_without_readable_records_the_trees_are_shown(tmp_path: Path) -> None:
    path = run_dir(tmp_path, "cut", trees=[tree("abc")])
    (path / "records.parquet").write_bytes(b"PAR1")
    report = make_report([path])
    assert report.headline == ("cut: 1 tree.",)
    assert any(note.startswith("records.parquet cannot be read") for note in report.runs[0].notes)


def test_records_without_stored_trees_are_counted_and_noted(tmp_path: Path) -> None:
    path = run_dir(tmp_path, "lost", records=records("single", 500, "1100"), trees=[tree("single-500-000")])
    run = read_run(path)
    assert run.notes == ("3 of 4 items have trees that are not in trees/: their numbers are still counted",)
    assert Page(make_report([path]).html).row("Methods under", "single", "500")[2].startswith("50% [")


def test_an_unfinished_evaluation_is_marked(tmp_path: Path) -> None:
    path = run_dir(tmp_path, "half", records=records("single", 500, "1100") + records("clones", 500, "1"))
    page = Page(make_report([path]).html)
    assert "the evaluation is not finished, or was interrupted" in page.text
    assert page.row("Methods under", "clones", "500")[2] == "1"
    assert page.row("Methods compared", "clones", "single", "500")[3] == "1"


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda path: None, "it does not exist"),
        (lambda path: path.write_text("x"), "it is a file"),
        (lambda path: path.mkdir(), "it has none of meta.json"),
    ],
    ids=["nothing", "file", "empty"],
)
def test_a_path_that_is_not_a_run_is_refused(tmp_path: Path, make: object, reason: str) -> None:
    path = tmp_path / "x"
    make(path)  # type: ignore[operator]
    with pytest.raises(ConfigError, match=f"x is not a run directory: {reason}"):
        read_runs([path])


def test_runs_have_different_names(tmp_path: Path) -> None:
    assert short_names([Path("a/small"), Path("b/small")]) == ["a/small", "b/small"]
    assert short_names([Path("a/small"), Path("b/large")]) == ["small", "large"]
    paths = [run_dir(tmp_path / place, "small", kind="run", trees=[tree(place)]) for place in "ab"]
    assert [run.name for run in read_runs(paths)] == ["a/small", "b/small"]
    assert [run.name for run in read_runs(paths, names=["before", None])] == ["before", "b/small"]
    with pytest.raises(ConfigError, match="two runs have the same name"):
        read_runs(paths, names=["same", "same"])
    with pytest.raises(ConfigError, match="a run is named twice"):
        read_runs([paths[0], paths[0]])


def test_unknown_facts_in_meta_are_shown(tmp_path: Path) -> None:
    path = run_dir(tmp_path, "more", kind="run", trees=[tree("t")], hardware={"cpu": "fast", "cores": 2}, weather="wet")
    assert json.loads((path / "meta.json").read_text())["weather"] == "wet"
    page = Page(make_report([path]).html)
    assert page.row("Runs", "hardware")[1] == "cpu fast, cores 2"
    assert page.row("Runs", "weather")[1] == "wet"
