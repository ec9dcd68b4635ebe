"""The page: its numbers match the records, its links work, and it loads nothing."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import unquote

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ramet.config import to_toml
from ramet.errors import ConfigError
from ramet.report.endings import ending_lines
from ramet.report.grouping import group_runs, make_overviews
from ramet.report.headline import headline
from ramet.report.page import make_report, save_report, write_report
from ramet.report.read import read_runs
from ramet.train.settings import TrainConfig
from ramet.types import Stop
from tests.report.page_parser import Page
from tests.report.samples import record, records, run_dir, step, tree

NASTY = "<script>alert('x')</script> & \"quotes\" $a_b$ \x00 </pre>"


def small(parent: Path, name: str = "small", *, clones: str = "1111111111") -> Path:
    """Ten items: single gets three of them right, clones as given; all trees are stored."""
    items = records("single", 500, "1110000000") + records(
        "clones", 500, clones, nodes=3, depth=1, delegated=True, concurrent=1.0, generated=400, critical_path=150
    )
    trees = [tree(one.trees[0], score=one.score, split=one.delegated) for one in items]
    return run_dir(
        parent, name, records=items, trees=trees, command="ramet eval sums:eval", seed=7, model_sha256="ab12"
    )


def page_of(*runs: Path, into: Path) -> Page:
    return Page(write_report(runs, into).read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Written:
    """The report of the run `small`."""

    run: Path
    into: Path
    html: str

    @property
    def page(self) -> Page:
        return Page(self.html)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    parent = tmp_path_factory.mktemp("page")
    run, into = small(parent), parent / "report"
    return Written(run=run, into=into, html=write_report([run], into).read_text(encoding="utf-8"))


def test_the_numbers_match_the_records(written: Written) -> None:
    page = written.page
    row = page.row("Methods under", "single", "500")
    # 3 of 10: Wilson's interval, worked out by hand, is 0.1078 to 0.6032.
    assert row[2] == "30% [11, 60]"
    row = page.row("Methods under", "clones", "500")
    # 10 of 10: 0.7225 to 1. Means of the records: 400 generated, 150 on the critical path, all delegated, 3 nodes,
    # 1 level, all clones in parallel, 300 prompt, 200 peak, 1 second.
    assert row[2:] == [
        "100% [72, 100]",
        "tokens, path",
        "400",
        "150",
        "100%",
        "3.0",
        "1.0",
        "100%",
        "300",
        "200",
        "1.0",
    ]
    assert "10 items each" in page.table("Methods under").caption
    row = page.row("Methods compared", "clones", "single", "500")
    assert row[3:5] == ["10", "7"]
    assert row[5].startswith("+70 [")
    assert row[6] == "better"


def test_the_trees_of_wrong_answers_are_counted_by_how_they_ended(tmp_path: Path) -> None:
    items = records("single", 500, "1110000000") + records("clones", 500, "1111111110") + records("vote@3", 500, "1111")
    trees = [tree(one.trees[0], score=one.score) for one in items]
    for place, stop in ((3, Stop.WINDOW), (4, Stop.WINDOW), (5, Stop.BUDGET), (6, None), (9, Stop.TURNS)):
        trees[place].root.stop = stop
    trees[19].root.stop = Stop.WINDOW
    trees[0].root.stop = Stop.DEADLINE  # its answer is right
    page = page_of(run_dir(tmp_path, "ended", records=items, trees=trees), into=tmp_path / "report")
    assert page.table("How the trees of wrong").rows[0][2:] == ["trees", "window", "answered", "budget", "turns"]
    # One of the seven wrong trees of single has not ended.
    assert page.row("How the trees of wrong", "single", "500")[2:] == ["6", "2", "2", "1", "1"]
    assert page.row("How the trees of wrong", "clones", "500")[2:] == ["1", "1", "0", "0", "0"]
    assert not [row for row in page.table("How the trees of wrong").rows if row[0] == "vote@3"]
    read = read_runs([tmp_path / "ended"])
    (section,) = group_runs(read)
    assert ending_lines(section, {read[0].name: read[0]}) == [
        "single, 6 trees: window 2, answered 2, budget 1, turns 1",
        "clones, 1 tree: window 1",
    ]


def headlines(*runs: Path) -> list[str]:
    return [line for section in group_runs(read_runs(runs)) for line in headline(section)]


def test_the_headline_names_the_better_method_or_that_it_cannot_tell(tmp_path: Path) -> None:
    lines = headlines(small(tmp_path))
    assert len(lines) == 1
    assert lines[0].startswith("Clones beat single by 70 points [")
    assert lines[0].endswith("] at 500 tokens.")
    lines = headlines(small(tmp_path, "other", clones="1110100000"))
    # One item of ten differs: mean 0.1, variance 0.1, so (1.96 + 0.84)² · 0.1 / 0.01 = 78.5 items.
    assert lines == ["Clones and single differ on only 1 of 10 items at 500 tokens (79 or more items would be needed)."]
    lines = headlines(small(tmp_path, "worse", clones="0000000000"))
    assert lines[0].startswith("Clones and single differ on only 3 of 10 items at 500 tokens (")


def test_the_headline_covers_all_budgets(tmp_path: Path) -> None:
    items = [one for budget in (100, 200, 400) for one in records("single", budget, "0" * 20)]
    for budget, right in ((100, 20), (200, 10), (400, 1)):
        items += records("clones", budget, "1" * right + "0" * (20 - right))
    lines = headlines(run_dir(tmp_path, "many", records=items))
    assert lines[0].startswith("Clones beat single by 100 points [100, 100] at 100 tokens and 50 points [")
    # One of twenty: mean 0.05, variance 0.05; 7.849 · 0.05 / 0.0025 = 157.
    assert lines[0].endswith(
        "] at 200 tokens; they differ on only 1 of 20 items at 400 tokens (157 or more items would be needed)."
    )


def test_the_headline_names_a_worse_method(tmp_path: Path) -> None:
    items = records("single", 500, "1" * 20) + records("clones", 500, "0" * 15 + "1" * 5)
    report = make_report([run_dir(tmp_path, "worse", records=items)])
    assert report.headline[0].startswith("Clones trail single by 75 points [")
    page = Page(report.html)
    assert page.row("Methods compared", "clones", "single", "500")[6] == "worse"


def test_every_number_links_to_its_trees(written: Written) -> None:
    run, page = written.run, written.page
    inside = [link[1:] for link in page.links if link.startswith("#")]
    assert len(inside) > 20
    assert set(map(unquote, inside)) <= set(page.ids)
    assert len(set(page.ids)) == len(page.ids)
    for number in range(10):
        for method in ("single", "clones"):
            assert f"ramet show {run} --tree {method}-500-{number:03d}" in page.codes
    behind = page.table("problem size small: 10 items, 30%")
    assert behind.rows[1][:7] == ["sums:eval/0", "1", "4", "", "100", "100", "1"]
    apart = page.table("clones against single at 500 tokens: 7 items differ")
    assert [row[:3] for row in apart.rows[1:]] == [[f"sums:eval/{number}", "1", "0"] for number in range(3, 10)]


def test_linked_files_exist(written: Written) -> None:
    into, page = written.into, written.page
    outside = [link for link in page.links if not link.startswith("#")]
    assert sorted(outside) == ["records.csv", "records.parquet"]
    assert all((into / link).is_file() for link in outside)
    rows = pq.read_table(into / "records.parquet").to_pylist()
    assert [row["score"] for row in rows] == [1.0] * 3 + [0.0] * 7 + [1.0] * 10
    with (into / "records.csv").open(encoding="utf-8", newline="") as source:
        lines = list(csv.DictReader(source))
    assert [line["trees"] for line in lines[:2]] == ["single-500-000", "single-500-001"]
    assert {line["run"] for line in lines} == {"small"}


def test_the_page_loads_nothing(tmp_path: Path) -> None:
    runs = [small(tmp_path), run_dir(tmp_path, "trained", kind="train", metrics=[step(0), step(1)])]
    html = make_report(runs).html
    assert "http://" not in html
    assert "https://" not in html
    assert "@import" not in html
    assert Page(html).loads == ["data:,"]


def test_model_output_stays_text(tmp_path: Path) -> None:
    items = [record("clones", 500, 0, 1.0, answer=NASTY, task=NASTY, bucket=NASTY, trees=("t",), delegated=True)]
    items.append(record("clones", 500, 1, 1.0, bucket="other", size=3.0, trees=()))
    run = run_dir(tmp_path, "nasty", records=items, trees=[tree("t", question=NASTY, answer=NASTY, split=True)])
    page = page_of(run, into=tmp_path / "report")
    assert page.scripts == 1
    assert page.handlers == []
    assert "<script>alert('x')</script> & \"quotes\" $a_b$" in page.text
    assert "\x00" not in page.text


def test_the_same_runs_give_the_same_bytes(tmp_path: Path) -> None:
    runs = [small(tmp_path), small(tmp_path, "again", clones="1111100000")]
    report = make_report(runs)
    pages = [save_report(report, tmp_path / "one", png=True), write_report(runs, tmp_path / "two", png=True)]
    for file in sorted(pages[0].parent.iterdir()):
        assert file.read_bytes() == (pages[1].parent / file.name).read_bytes(), file.name
    assert len(list(pages[0].parent.glob("*.png"))) == len(report.pictures)


def test_two_runs_are_compared_item_by_item(tmp_path: Path) -> None:
    before, after = small(tmp_path, "before", clones="1" + "0" * 9), small(tmp_path, "after", clones="0" + "1" * 9)
    report = make_report([before, after])
    # One item lost, nine gained: 8 of 10 in total.
    assert report.headline[0].startswith("With clones, after beats before by 80 points [")
    page = Page(report.html)
    row = page.row("after against before", "clones", "500")
    assert row[2:4] == ["10", "10"]
    assert row[4].startswith("+80 [")
    assert page.row("after against before", "single", "500")[5] == "no item differs"
    assert page.row("Runs", "directory")[1:] == [
        str(before),
        str(after),
    ]


def test_clones_of_one_run_are_compared_with_the_single_agent_of_another(tmp_path: Path) -> None:
    clones = run_dir(tmp_path, "clones", records=records("clones", 500, "1111111110", delegated=True))
    alone = run_dir(tmp_path, "alone", records=records("single", 500, "0000000011"))
    report = make_report([clones, alone])
    # Eight items won, one lost, one right in both: 7 of 10 in total.
    assert report.headline[0].startswith("Clones beat single (alone) by 70 points [")
    page = Page(report.html)
    row = page.row("Methods of different runs", "clones", "single, alone")
    assert row[2:5] == ["500", "10", "9"]
    assert row[5].startswith("+70 [")
    assert "clones − single, alone, 500 (n=10, 9 differ)" in page.text


def test_a_run_that_has_both_methods_is_not_compared_with_the_single_agent_of_another(tmp_path: Path) -> None:
    alone = run_dir(tmp_path, "alone", records=records("single", 500, "0000000011"))
    report = make_report([small(tmp_path), alone])
    assert not report.sections[0].control_comparisons
    assert {(one.cell[0], one.other[0]) for one in report.sections[0].comparisons} == {
        ("small", "small"),  # clones against single
        ("alone", "small"),  # single against single
    }


def test_a_series_whose_run_is_called_like_its_method_is_named_once(tmp_path: Path) -> None:
    runs = [run_dir(tmp_path, name, records=records("clones", 500, "1100", delegated=True)) for name in ("clones", "b")]
    section = make_report(runs).sections[0]
    assert [section.label(run, "clones") for run in section.runs] == ["clones", "clones, b"]


def test_a_legend_of_methods_and_runs_has_both_if_a_run_is_called_like_a_method(tmp_path: Path) -> None:
    items = [one for method in ("single", "vote@3", "clones") for one in records(method, 500, "1100")]
    text = Page(make_report([run_dir(tmp_path, name, records=items) for name in ("clones", "b", "c")]).html).text
    assert "run clones" in text
    assert "run b" not in text


def test_runs_of_other_tasks_are_not_compared(tmp_path: Path) -> None:
    other = [record("clones", 500, number, 1.0, task=f"maths:eval/{number}") for number in range(3)]
    report = make_report([small(tmp_path), run_dir(tmp_path, "maths", records=other)])
    assert [len(one.runs) for one in report.sections] == [1, 1]
    assert "there is no other method to compare it with" in report.headline[1]


def test_tasks_made_with_other_options_are_not_compared(tmp_path: Path) -> None:
    runs = [small(tmp_path, name) for name in ("short", "long")]
    for run, number in zip(runs, (3, 9), strict=True):
        (run / "config.toml").write_text(f"[taskset]\noperators = {number}\n")
    report = make_report(runs)
    assert [len(one.runs) for one in report.sections] == [1, 1]
    assert Page(report.html).row("Settings that differ", "taskset.operators")[1:] == ["3", "9"]
    reason = "short and long are not compared, their tasks differ: taskset.operators is 3 in short, 9 in long."
    assert reason in report.headline


@pytest.mark.parametrize(("question", "groups"), [("2 + 2", [2]), ("2 + 3", [1, 1])])
def test_tasks_made_with_other_options_are_compared_if_stored_trees_have_the_same_questions(
    tmp_path: Path, question: str, groups: list[int]
) -> None:
    runs: list[Path] = []
    for name, asked in (("a", "2 + 2"), ("b", question)):
        items = records("clones", 500, "1")
        runs.append(run_dir(tmp_path, name, records=items, trees=[tree(items[0].trees[0], question=asked)]))
    (runs[1] / "config.toml").write_text("[taskset]\npart = [2, 8]\n")
    report = make_report(runs)
    assert [len(one.runs) for one in report.sections] == groups
    reason = "a and b are not compared, their tasks differ: taskset.part is not set in a, [2, 8] in b."
    assert (reason in report.headline) == (len(groups) == 2)


def test_splits_have_separate_tables_and_are_never_averaged(tmp_path: Path) -> None:
    items = records("single", None, "11", bucket="sums:eval") + records("clones", None, "10", bucket="sums:eval")
    for method, scores in (("single", "0000"), ("clones", "0001")):
        items += [
            record(method, None, number, float(sign), bucket="sums:long", task=f"sums:long/{number}", beyond=True)
            for number, sign in enumerate(scores)
        ]
    run = run_dir(tmp_path, "both", records=items)
    (run / "config.toml").write_text('tasks = ["sums:long", "sums:eval"]\n')
    report = make_report([run])
    assert [one.title for one in report.sections] == ["sums:long", "sums:eval"]
    assert [[len(cell.records) for cell in one.cells] for one in report.sections] == [[4, 4], [2, 2]]
    page = Page(report.html)
    assert page.table("Accuracy by split").rows[0][2:] == ["sums:longbeyond training", "sums:eval"]
    assert page.row("Accuracy by split", "clones", "task's own")[2:] == ["25% [5, 70]", "50% [9, 91]"]
    assert "is not finished" not in page.text
    assert report.headline[1].startswith("sums:eval: clones and single differ on")
    links = {link[1:] for link in page.links if link.startswith("#")}
    assert set(map(unquote, links)) <= set(page.ids)


def test_buckets_beyond_training_come_last_and_are_marked(tmp_path: Path) -> None:
    items = [
        record("clones", 500, number, 1.0, bucket=name, size=size, beyond=beyond, delegated=True, depth=1)
        for number, (name, size, beyond) in enumerate([("huge", 9.0, True), ("big", 5.0, False), ("tiny", 1.0, False)])
    ]
    report = make_report([run_dir(tmp_path, "sizes", records=items)])
    page = Page(report.html)
    assert page.table("Accuracy by problem size").rows[0] == ["method", "budget", "tiny", "big", "hugebeyond training"]
    drawn = {picture.name: picture for picture in report.pictures}
    assert "beyond training" in drawn["buckets"].svg
    assert "beyond training" in drawn["delegation"].svg


def test_differences_beyond_training_have_their_own_column(tmp_path: Path) -> None:
    items = [
        record(method, 500, number, float(method == "clones" and number >= 10), beyond=number >= 10)
        for method in ("single", "clones")
        for number in range(20)
    ]
    page = Page(make_report([run_dir(tmp_path, "sizes", records=items)]).html)
    row = page.row("Methods compared", "clones", "single", "500")
    assert row[5].startswith("+50 [")
    assert row[7:] == ["0 [0, 0]", "+100 [+100, +100]"]
    assert any(item.startswith("Beyond training, clones beat single by 100 points") for item in page.items)


def test_an_oracle_is_marked_everywhere_on_the_page(tmp_path: Path) -> None:
    items = records("single", 500, "10101010") + records("best@4", 500, "11111111") + records("clones", 500, "11110000")
    report = make_report([run_dir(tmp_path, "oracle", records=items)])
    page = Page(report.html)
    for place in (place for place in range(len(page.text)) if page.text.startswith("best@4", place)):
        shown = page.text[place : place + 40]
        assert shown.startswith(("best@4 (oracle)", "best@4-")), shown  # the latter: a tree id in a command
    assert not any(cell.front for cell in report.sections[0].cells if cell.oracle)
    assert "best@k is an oracle" in page.text
    assert not any("best@4" in line for line in report.headline)


def test_provenance_is_on_the_page(written: Written) -> None:
    page = written.page
    assert page.row("Runs", "command")[1] == "ramet eval sums:eval"
    assert page.row("Runs", "seed")[1] == "7"
    assert page.row("Runs", "model hash (SHA-256)")[1] == "ab12"
    assert page.row("Runs", "created")[1] == "2026-01-02T03:04:05+00:00"


def test_the_headline_of_a_training_run_counts_a_third_of_its_steps_at_each_end_but_ten_at_most(tmp_path: Path) -> None:
    successes = [1.0, 0.0, *[0.25] * 6, 0.5, 0.0, *[0.5] * 11, *[0.75] * 10]  # 12 of 40 and 30 of 40 trees
    metrics = [step(number, success=success, trees=4) for number, success in enumerate(successes)]

    def headline(steps: int) -> str:
        return make_report([run_dir(tmp_path, f"run{steps}", kind="train", metrics=metrics[:steps])]).headline[0]

    told = "from 30% [18, 45] success in the first 10 steps to 75% [60, 86] in the last 10 of 31"
    assert headline(31) == f"run31: {told}, each step on new tasks."
    told = "from 50% [22, 78] success in the first 2 steps to 25% [7, 59] in the last 2 of 6"
    assert headline(6) == f"run6: {told}, each step on new tasks."
    assert headline(5) == "run5: from 100% [51, 100] to 25% [5, 70] success in 5 steps, each step on new tasks."


def test_the_headline_compares_equal_sizes_of_tasks_if_early_steps_had_smaller_ones(tmp_path: Path) -> None:
    small_first = {"trees_by_size": {"2": 6, "4": 2}, "success_by_size": {"2": 1.0, "4": 0.5}}  # 7 of 8
    large_last = {"trees_by_size": {"2": 2, "4": 6}, "success_by_size": {"2": 1.0, "4": 5 / 6}}  # 7 of 8
    told = "from 88% [53, 98] to 88% [53, 98] success in 3 steps, each step on new tasks."

    def headline(*sizes: Mapping[str, Mapping[str, float]]) -> tuple[str, ...]:
        metrics = [{**step(number, success=0.875, trees=8), **own} for number, own in enumerate(sizes)]
        name = f"run{len(list(tmp_path.iterdir()))}"
        return tuple(
            line.removeprefix(f"{name}: ")
            for line in make_report([run_dir(tmp_path, name, kind="train", metrics=metrics)]).headline
        )

    # Eight trees of each size: (8 * 1 + 8 * 1/2) / 16 before, (8 * 1 + 8 * 5/6) / 16 after.
    equal = " At equal sizes of tasks: 75% in the first 1, 92% in the last 1 steps."
    assert headline(small_first, small_first, large_last) == (told + equal,)
    assert headline(small_first, large_last, small_first) == (told,)
    assert headline({}, {}, {}) == (told,)


def test_a_training_run_shows_its_first_and_last_steps(tmp_path: Path) -> None:
    metrics = [step(number, success=number / 20, reward=0.5, tokens=40 + number) for number in range(12)]
    metrics[5] |= {"eval_success": 0.25, "eval_delegated": 1.0, "eval_tokens": 55.0}
    metrics[11] |= {"eval_success": 0.75, "eval_delegated": 0.5, "eval_tokens": 66.0, "eval_trees": 4}
    stored = [tree(f"{number:06d}-000-000", split=True) for number in (0, 11)] + [tree("eval-000012-000")]
    run = run_dir(tmp_path, "trained", kind="train", metrics=metrics, trees=stored)
    (run / "config.toml").write_text(to_toml(TrainConfig()))
    report = make_report([run])
    assert report.headline == ("trained: from 25% to 75% [30, 95] success on held-out tasks in 12 steps.",)
    page = Page(report.html)
    # The mean of 2/20 to 11/20 is 0.325; that of 42 to 51 tokens is 46.5.
    caption = "trained: from the first step to the last"
    assert page.row(caption, "success of the root")[1:] == ["0%", "55%", "33%"]
    assert page.row(caption, "tokens per tree")[1:] == ["40", "51", "46"]
    assert page.row(caption, "held-out: success of the root")[1:] == ["25%", "75%", "50%"]
    assert f"ramet show {run} --tree 000011-" in page.codes
    assert f"ramet show {run} --tree eval-000012-" in page.codes
    assert {unquote(link[1:]) for link in page.links} <= set(page.ids)
    names = [picture.name for picture in report.pictures]
    assert names == [f"trained-{what}" for what in ("reward", "success", "delegated", "tokens", "timeline")]


def test_a_warm_start_shows_its_loss_and_not_the_success_of_its_demonstrations(tmp_path: Path) -> None:
    metrics = [step(number, success=1.0, loss=4.0 / (number + 1)) for number in range(4)]
    report = make_report([run_dir(tmp_path, "shown", kind="warmstart", metrics=metrics)])
    assert report.headline == ("shown: loss from 4 to 1 in 4 steps.",)
    assert [picture.name for picture in report.pictures] == ["shown-loss"]
    page = Page(report.html)
    assert page.row("shown: from the first step", "loss")[1:] == ["4", "1"]
    assert "success" not in page.text
    assert "No trees of these steps are stored" in page.text


def test_a_training_run_with_a_warm_start_shows_both(tmp_path: Path) -> None:
    run = run_dir(tmp_path, "whole", kind="train", metrics=[step(0), step(1)])
    run_dir(run, "warm", kind="warmstart", metrics=[step(number, loss=1.0) for number in range(3)])
    report = make_report([run])
    names = [picture.name for picture in report.pictures]
    assert names[:2] == ["whole-warm-loss", "whole-reward"]
    assert "It started with 3 steps on demonstrations." in report.html


def test_a_training_run_that_ended_in_its_warm_start_shows_that(tmp_path: Path) -> None:
    run = run_dir(tmp_path, "whole", kind="train")
    run_dir(run, "warm", kind="warmstart", metrics=[step(number, loss=2.0 - number) for number in range(2)])
    report = make_report([run])
    assert report.headline == ("whole/warm: loss from 2 to 1 in 2 steps.",)
    assert "Warm start: whole/warm" in report.html


def test_several_training_runs_share_their_plots(tmp_path: Path) -> None:
    runs = [run_dir(tmp_path, name, kind="train", metrics=[step(0), step(1)]) for name in ("one", "two")]
    report = make_report(runs)
    assert [picture.name for picture in report.pictures][:3] == ["runs-success", "runs-delegated", "runs-tokens"]
    assert all(name in report.pictures[0].svg for name in ("one", "two"))


def test_a_run_that_is_only_trees_shows_them(tmp_path: Path) -> None:
    run = run_dir(tmp_path, "asked", kind="run", trees=[tree("abc", question="How many?", split=True)])
    report = make_report([run])
    page = Page(report.html)
    assert report.headline == ("asked: 1 tree.",)
    assert page.row("asked: trees", "How many?")[1:7] == ["1", "4", "65", "45", "3", "1"]
    assert "65 of 4,000 tokens · 45 on the critical path" in page.text
    assert [picture.name for picture in report.pictures] == ["asked-timeline"]


def test_the_error_for_an_empty_run_is_one_line(tmp_path: Path) -> None:
    run = run_dir(tmp_path, "empty", kind="run")
    with pytest.raises(ConfigError, match=r"nothing to show yet: .*empty: no tree is finished yet"):
        write_report([run], tmp_path / "report")
    assert not (tmp_path / "report").exists()


def test_unexpected_metrics_are_ignored(tmp_path: Path) -> None:
    odd = [
        {"step": "x", "success": None, "success_by_depth": 3, "loss": "nan"},
        {"other": [1]},
        {"step": 2, "reward": True},
    ]
    report = make_report([run_dir(tmp_path, "odd", kind="train", metrics=odd)])
    assert report.headline == ("odd: 3 steps.",)
    Page(report.html)


def test_only_a_part_of_a_very_large_tree_is_drawn(tmp_path: Path) -> None:
    grown = tree("big", split=True)
    grown.nodes += [replace(grown.nodes[2], index=index) for index in range(3, 300)]
    run = run_dir(tmp_path, "big", kind="run", trees=[grown])
    report = make_report([run])
    assert "… and 180 more nodes" in Page(report.html).text
    assert "Only the first 40 of 300 nodes are shown." in report.pictures[0].caption


@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    scores=st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.0]), st.sampled_from([0.0, 1.0])), min_size=1, max_size=12),
    budgets=st.sampled_from([(None,), (500,), (100, 500), (100, None)]),
    text=st.text(max_size=20),
)
def test_any_records_make_a_valid_page(
    tmp_path_factory: pytest.TempPathFactory,
    scores: list[tuple[float, float]],
    budgets: tuple[int | None, ...],
    text: str,
) -> None:
    items = [
        record(
            method, budget, number, pair[place], answer=text.encode(errors="replace").decode(), bucket=f"{number % 3}"
        )
        for place, method in enumerate(("single", "clones"))
        for budget in budgets
        for number, pair in enumerate(scores)
    ]
    page = Page(make_report([run_dir(tmp_path_factory.mktemp("any"), "any", records=items)]).html)
    assert {unquote(link[1:]) for link in page.links if link.startswith("#")} <= set(page.ids)
    assert len(set(page.ids)) == len(page.ids)
    right, number = sum(first >= 1 for first, _ in scores), len(scores)
    rounded = (200 * right + number) // (2 * number)  # half up
    shown = [row for row in page.table("Methods under").rows if row[0] == "single"]
    assert len(shown) == len(budgets)
    assert all(row[2].startswith(f"{rounded}% [") for row in shown)


def test_splits_of_a_taskset_in_a_file_are_named_by_their_records(tmp_path: Path) -> None:
    scored = [*records("single", 100, "10", bucket="mine:eval"), *records("single", 100, "11", bucket="mine:long")]
    run = run_dir(tmp_path, "own", records=scored)
    (run / "config.toml").write_text('tasks = ["mine.py:Mine", "mine.py:Mine:long"]\n')
    (overview,) = make_overviews(read_runs([run]))
    assert [bucket.name for bucket in overview.buckets] == ["mine:eval", "mine:long"]
    assert len(group_runs(read_runs([run]))) >= 1


def test_an_evaluation_of_several_splits_beside_one_of_a_single_split_is_compared_by_size(tmp_path: Path) -> None:
    both = [
        *(record("clones", 100, number, 1.0, bucket="sums:eval", size=4.0 + number) for number in range(2)),
        record("clones", 100, 9, 1.0, bucket="sums:long", size=9.0, task="sums:long/9"),
    ]
    after = run_dir(tmp_path, "after", records=both)
    (after / "config.toml").write_text('tasks = ["sums:eval", "sums:long"]\n')
    one = [
        record("clones", 100, number, 0.0, bucket=str(4 + number), size=4.0 + number, beyond=number == 1)
        for number in range(2)
    ]
    before = run_dir(tmp_path, "before", records=one)
    (before / "config.toml").write_text('tasks = ["sums:eval"]\n')
    section = next(each for each in group_runs(read_runs([before, after])) if each.title == "sums:eval")
    assert [(bucket.name, bucket.beyond) for bucket in section.buckets] == [("4", False), ("5", True)]
    assert {(cell.run, cell.items) for cell in section.cells} == {("before", 2), ("after", 2)}
    (overview,) = make_overviews(read_runs([before, after]))
    assert [bucket.name for bucket in overview.buckets] == ["sums:eval", "sums:long"]
    html = make_report([before, after]).html
    assert "the shaded area is beyond the training of some runs." in html
    captions = [html.index(f"{run}: accuracy by problem size") for run in ("before", "after")]
    marked = [html[at : html.index("</table>", at)].count("beyond training") for at in captions]
    assert marked == [1, 0]
