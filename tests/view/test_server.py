"""The server of the viewer: what it answers, and what it does not."""

from __future__ import annotations

import json
import random
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pyarrow as pa
import pytest

from ramet.bench.view_runs import made_tree
from ramet.cli.view import viewing
from ramet.errors import ConfigError
from ramet.report.delegation import delegation_by_size
from ramet.report.read import read_run
from ramet.store import RunDir
from ramet.store.chunks import ChunkWriter
from ramet.store.seal import write_table
from ramet.types import Task
from ramet.view import Viewer, start
from ramet.view.app import host_name, static_files
from ramet.view.catalog import Catalog, read_text
from ramet.view.export import export
from ramet.view.index import Index
from ramet.view.payloads import METHODS, right_by_cell, run_card, run_page
from ramet.view.training import delegation, same_tasks
from tests.report.samples import codes_run
from tests.view.samples import HOSTILE
from tests.waiting import PATIENCE_S

OUTSIDE = ["..", "../..", "/etc", "orchard/../..", "orchard/trees", "%2e%2e", "..\\..", "orchard\0", "", "~", "C:\\"]


def ask(client: httpx.Client, question: str, **query: object) -> httpx.Response:
    return client.get(question, params={key: str(value) for key, value in query.items()})


def test_runs_are_listed_by_their_folders(client: httpx.Client) -> None:
    found = ask(client, "runs").json()["runs"]
    assert [(run["id"], run["kind"], run["steps"]) for run in found] == [
        ("begun", "train", 0),
        ("damaged", "run", 0),
        ("orchard", "run", 0),
        ("training", "train", 4),
    ]


def test_a_run_has_its_curves_its_parts_and_its_problems(client: httpx.Client) -> None:
    page = ask(client, "run", run="training").json()
    assert page["trees"] == 4 * 8 + 2 * 3
    assert page["series"]["values"]["success"] == [0.0, 0.25, 0.5, 0.75]
    assert page["series"]["values"]["stops/window"] == [0.1] * 4
    assert [(part["part"], part["step"], part["trees"]) for part in page["parts"]][:2] == [
        ("eval", 2, 3),
        ("eval", 4, 3),
    ]
    assert "000000-x.parquet" in ask(client, "run", run="damaged").json()["notes"][0]


def test_the_line_of_a_supervised_start_has_its_loss_and_no_number_of_the_oracle(tmp_path: Path) -> None:
    run = RunDir.create_at(tmp_path / "warm", kind="warmstart")
    for step, loss in enumerate((4.0, 1.0)):
        run.log({"step": step, "success": 1.0, "delegated": 0.5, "loss": loss})
    card = run_card("warm", run.path)
    assert card["last"] == {"loss": 1.0}
    assert card["course"] == [1.0, 0.25]


def test_the_list_of_runs_names_the_tasks_of_ones_own_without_their_folder(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, "own")
    reference = f"{tmp_path}/tasks/mine.py:Mine"
    (run.path / "config.toml").write_text(f'task = "{reference}:train"\n')
    assert run_card("own", run.path)["task"] == "mine.py:Mine:train"
    (run.path / "config.toml").write_text(f'tasks = ["{reference}:eval", "{reference}:hard", "codes:eval"]\n')
    assert run_card("own", run.path)["task"] == "mine.py:Mine:eval, mine.py:Mine:hard, codes:eval"


def test_trees_come_in_pages_sorted_and_filtered(client: httpx.Client) -> None:
    page = ask(client, "trees", run="training", part="step", sort="tokens", down=1, offset=5, limit=4).json()
    everything = ask(client, "trees", run="training", part="step", sort="tokens", down=1, limit=200).json()
    assert page["total"] == everything["total"] == 32
    assert page["rows"] == everything["rows"][5:9]
    assert sorted((row["tokens"] for row in everything["rows"]), reverse=True) == [
        r["tokens"] for r in everything["rows"]
    ]
    wrong = ask(client, "trees", run="training", wrong="root", limit=200).json()["rows"]
    right = ask(client, "trees", run="training", wrong="right", limit=200).json()["rows"]
    assert {row["score"] for row in wrong} == {0.0}
    assert len(wrong) + len(right) == 38
    step = ask(client, "trees", run="training", step=2, part="step").json()
    assert ask(client, "trees", run="training", step="\N{SUPERSCRIPT TWO}").status_code == 200  # no number
    assert {row["step"] for row in step["rows"]} == {2}


def test_a_search_finds_goals_of_clones(client: httpx.Client) -> None:
    assert [row["tree"] for row in ask(client, "trees", run="orchard", q="cellar").json()["rows"]] == ["orchard"]
    assert ask(client, "trees", run="orchard", q="no such words").json()["total"] == 0
    found = ask(client, "search", run="orchard", tree="orchard", q="there are 9").json()["nodes"]
    tree = ask(client, "tree", run="orchard", tree="orchard").json()
    assert [tree["nodes"][index]["goal"] for index in found] == ["count pears"]


def test_a_tree_has_every_node_its_turns_and_the_critical_path(client: httpx.Client) -> None:
    tree = ask(client, "tree", run="orchard", tree="orchard").json()
    assert [(node["depth"], node["stop"]) for node in tree["nodes"]] == [(0, "answered")] + [(1, "answered")] * 4 + [
        (2, "answered")
    ]
    refusals = [refusal for node in tree["nodes"] for turn in node["turns"] for refusal in turn["refusals"]]
    assert [(refusal["goal"], refusal["kind"]) for refusal in refusals] == [("plums in the attic", "nodes")]
    assert 0 in tree["critical"]
    assert tree["critical_tokens"] == tree["nodes"][0]["usage"]["critical_path_tokens"]


def test_texts_tell_what_was_given_from_what_was_sampled(client: httpx.Client) -> None:
    pieces = ask(client, "node", run="orchard", tree="orchard", node=0).json()["pieces"]
    assert [piece["sampled"] for piece in pieces] == [False, True, False, True]
    assert [piece["turn"] for piece in pieces] == [0, 0, 1, 1]
    assert pieces[0]["message"] == "How many fruits are there?"
    assert len(pieces[1]["logprobs"]) == pieces[1]["num_ids"]
    call = json.loads(pieces[1]["text"].partition("<tool_call>")[2].partition("</tool_call>")[0])
    assert call["arguments"]["goals"][3] == f"read {HOSTILE}"


def test_credit_is_that_of_the_rule_over_the_whole_step(client: httpx.Client, runs: Path) -> None:
    from ramet.credit import group_trees, load_rule
    from ramet.store.tree_files import read_file

    credits = load_rule("rao").credit(group_trees(read_file(runs / "training" / "trees" / "step-000002.parquet")))
    found = ask(client, "credit", run="training", tree="000002-001-003").json()
    assert found["rule"] == "rao"
    for node, credit in found["nodes"].items():
        assert credit["advantage"] == credits["000002-001-003", int(node)].advantage
        assert credit["weight"] == credits["000002-001-003", int(node)].weight
    assert "training steps" in ask(client, "credit", run="training", tree="eval-000002-000").json()["why"]


def test_delegation_over_time_counts_nodes_by_depth(client: httpx.Client) -> None:
    found = ask(client, "delegation", run="training").json()
    roots = [cell for cell in found["by_depth"] if cell["depth"] == 0]
    assert found["steps"] == [0, 1, 2, 3]
    assert [(cell["n"], cell["delegated"]) for cell in roots] == [(8, 6)] * 4  # trees of 1, 2, 3, 4, 5, 1, 2, 3 nodes


def test_delegation_by_size_of_a_taskset_of_ones_own_comes_from_the_metrics(tmp_path: Path) -> None:
    """Its file is not run: a run may come from elsewhere."""
    run = RunDir.create(tmp_path, "own")
    (tmp_path / "mine.py").write_text("from pathlib import Path\nPath(__file__).with_name('it-was-run').touch()")
    (run.path / "config.toml").write_text(f'task = "{tmp_path}/mine.py:Mine:train"\n')
    sizes = {"trees_by_size": {"17-32": 4, "2": 8, "3": 0}, "success_by_size": {"17-32": 0.25, "2": 0.5, "3": None}}
    for step, line in enumerate(
        [{"trees_by_size": ["broken"]}, {"delegated_by_size": {"17-32": 1, "2": 0.125}} | sizes]
    ):
        run.log({"step": step} | line)
        run.write([made_tree(f"00000{step}-000-000", random.Random(1), nodes=2)], name=f"step-00000{step}")
    with closing(Index(run.path)) as index:
        index.refresh()
        cells = delegation(run.path, index)["by_size"]
    assert [(cell["size"], cell["step"], cell["n"], cell["delegated"], cell["right_"]) for cell in cells] == [
        ("2", 1, 8, 1, 4),
        ("17 or more", 1, 4, 4, 1),
    ]
    assert not (tmp_path / "it-was-run").exists()


def test_trees_of_a_server_are_listed_from_the_newest(tmp_path: Path) -> None:
    run, names = RunDir.create(tmp_path, "server", kind="serve"), ["5f", "c1", "02", "e8", "7a"]
    writer = ChunkWriter(run, trees=3)
    for name in names:
        writer.add([made_tree(name, random.Random(0), nodes=2)])
    with closing(Index(run.path)) as index:
        index.refresh()
        listed = index.page({}, sort="", down=False, offset=0, limit=10)["rows"]
    assert [row["tree"] for row in listed] == names[::-1]


def test_the_page_has_the_sizes_and_counts_of_the_report(tmp_path: Path) -> None:
    run = codes_run(tmp_path, {"1" * (12 - free) + "?" * free: (free, free % 3) for free in range(1, 11)})
    with closing(Index(run)) as index:
        index.refresh()
        cells = delegation(run, index)["by_size"]
    found = delegation_by_size(read_run(run))
    assert found is not None
    assert len(found.rows) == 8
    assert [(cell["size"], cell["step"], cell["n"], cell["delegated"], cell["right_"]) for cell in cells] == [
        (row.label, step, counts.trees, counts.delegated, counts.right)
        for row in found.rows
        for step, counts in sorted(row.by_step.items())
    ]


def test_two_checkpoints_are_compared_task_by_task(client: httpx.Client) -> None:
    asked = {"run": "training", "part": "eval", "step": 2, "run2": "training", "part2": "eval", "step2": 4}
    found = ask(client, "tasks", **asked).json()
    assert len(found["rows"]) == 3
    assert {(row["first"]["nodes"], row["second"]["nodes"]) for row in found["rows"]} == {(2, 4)}
    pair = ask(
        client, "compare", run="training", tree="eval-000002-000", run2="training", tree2="eval-000004-000"
    ).json()
    assert [len(tree["nodes"]) for tree in pair["trees"]] == [2, 4]
    assert pair["marks"][1].count("only") == 2


def test_an_evaluation_is_listed_filtered_and_compared_by_its_methods(tmp_path: Path) -> None:
    run = RunDir.create_at(tmp_path / "eval", kind="eval")
    trees = [made_tree("x", random.Random(1), nodes=size) for size in (1, 1, 3)]
    ids = ("clones.own.made:eval/0.0", "clones.500.made:eval/0.0", "single.own.made:eval/0.0")
    for tree, name in zip(trees, ids, strict=True):
        tree.id, tree.task = name, Task(question="count", id="made:eval/0")
    run.write(trees, name="chunk-000000")
    scores = {"method": ["clones", "clones", "single"], "score": [1.0, 0.5, 1.0], "budget": [None] * 3}
    scores["task"] = ["made:eval/0", "made:eval/1", "made:eval/0"]
    write_table(run.path / "records.parquet", pa.table(scores))
    assert right_by_cell(run.path) == [
        {"name": "clones", "items": 2, "right": 0.5},
        {"name": "single", "items": 1, "right": 1.0},
    ]
    index = Index(run.path)
    index.refresh()
    assert [row["method"] for row in index.rows(METHODS)] == ["clones.500", "clones.own", "single.own"]
    assert index.page({"method": "clones.own"}, sort="", down=False, offset=0, limit=9)["total"] == 1
    (row,) = same_tasks(index, index, ({"method": "clones.500"}, {"method": "single.own"}))["rows"]
    assert [row[side]["nodes"] for side in ("first", "second")] == [1, 3]
    assert [row[side]["tree"] for side in ("first", "second")] == [ids[1], ids[2]]
    index.close()


def test_the_list_of_runs_averages_an_evaluation_over_neither_splits_nor_budgets(tmp_path: Path) -> None:
    run = RunDir.create_at(tmp_path / "eval", kind="eval")
    records = {"task": ["craft:easy/0", "craft:easy/1", "craft:hard/0"], "score": [1.0, 1.0, 0.0]}
    records |= {"method": ["clones"] * 3, "budget": [500, 4000, 500]}
    write_table(run.path / "records.parquet", pa.table(records))
    assert [(cell["name"], cell["items"], cell["right"]) for cell in run_card("eval", run.path)["cells"]] == [
        ("clones, craft:easy, 500 tokens", 1, 1.0),
        ("clones, craft:easy, 4,000 tokens", 1, 1.0),
        ("clones, craft:hard, 500 tokens", 1, 0.0),
    ]


def test_tasks_that_changed_as_much_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    run = RunDir.create_at(tmp_path / "run", kind="eval")
    trees = [made_tree(f"clones.own.made:eval/{place}.0", random.Random(1), nodes=1) for place in (10, 9, 2)]
    for tree in trees:
        tree.task = Task(question="count", id=tree.id[len("clones.own.") : -2])
    run.write(trees, name="chunk-000000")
    index = Index(run.path)
    index.refresh()
    rows = same_tasks(index, index, ({"method": "clones.own"}, {"method": "clones.own"}))["rows"]
    assert [row["task_id"] for row in rows] == ["made:eval/2", "made:eval/9", "made:eval/10"]
    index.close()


def test_only_trees_of_a_training_say_why_they_have_no_credit(client: httpx.Client) -> None:
    assert ask(client, "credit", run="orchard", tree="orchard").json() == {"nodes": {}, "why": ""}


def test_damaged_records_do_not_hide_the_trees_of_a_run(tmp_path: Path) -> None:
    run = RunDir.create_at(tmp_path / "eval", kind="eval")
    run.write([made_tree("x", random.Random(1), nodes=2)], name="chunk-000000")
    (run.path / "records.parquet").write_bytes(b"PAR1 no more")
    with closing(Index(run.path)) as index:
        page = run_page("eval", run.path, index)
    assert (page["trees"], page["evaluation"]) == (1, [])
    assert "cannot read" in page["notes"][0]


def test_all_tasks_that_two_runs_share_are_compared(tmp_path: Path) -> None:
    run = RunDir.create_at(tmp_path / "eval", kind="eval")
    trees = [made_tree(f"t{number}", random.Random(number), nodes=1) for number in range(2100)]
    for number, tree in enumerate(trees):
        tree.task = Task(question="count", id=f"made:eval/{number}")
    run.write(trees, name="chunk-000000")
    with closing(Index(run.path)) as index:
        index.refresh()
        assert len(same_tasks(index, index, ({}, {}))["rows"]) == 2100


def test_a_page_can_be_exported_whatever_the_command_line_was(tmp_path: Path) -> None:
    run = RunDir.create_at(tmp_path / "run", kind="run", facts={"command": "ramet run \udcff"})
    run.write([made_tree("x", random.Random(1), nodes=1)])
    page = export([run.path], [])
    assert "ramet run \N{REPLACEMENT CHARACTER}" in page
    page.encode()


def test_a_resumed_run_is_opened_itself_and_a_folder_at_its_next_run(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder, end in ((runs / "training", "#/run/training"), (runs, "#/newest")):
        with viewing(True, folder, stay=False):
            assert capsys.readouterr().err.strip().endswith(end)


def test_a_tree_is_the_same_as_itself(client: httpx.Client) -> None:
    pair = ask(client, "compare", run="orchard", tree="orchard", run2="orchard", tree2="orchard").json()
    assert pair["first"] is None
    assert set(pair["marks"][0]) == {"same"}


@pytest.mark.parametrize("name", OUTSIDE)
def test_no_path_outside_the_given_runs_can_be_named(client: httpx.Client, name: str) -> None:
    for question in ("run", "trees", "tree", "node", "live"):
        found = ask(client, question, run=name, tree=name, node=0)
        assert found.status_code == 404
        assert "no run" in found.json()["error"]
    assert ask(client, "tree", run="orchard", tree=name).status_code == 404
    assert ask(client, "tree", run="orchard", tree=f"orchard' or '{name}'='").status_code == 404


@pytest.mark.parametrize("name", ["../index.html", "..%2f..%2fapp.py", "%2e%2e/app.py", "app.py", "static/app.js"])
def test_only_files_of_the_page_are_served(viewer: Viewer, name: str) -> None:
    found = httpx.get(viewer.url + name, follow_redirects=False, timeout=PATIENCE_S)
    assert found.status_code in (307, 403, 404)
    assert "import" not in found.text


def test_every_answer_forbids_foreign_code(viewer: Viewer) -> None:
    for name in ("", "app.js", "api/runs", "api/run?run=nothing", "nothing"):
        headers = httpx.get(viewer.url + name, timeout=PATIENCE_S).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"


def test_without_the_token_nothing_is_answered(viewer: Viewer) -> None:
    origin = f"http://127.0.0.1:{viewer.port}"
    for path in (
        "/",
        "/api/runs",
        "/x/",
        "/x/api/runs",
        f"/{viewer.token[:-1]}/api/runs",
        "/%00/api/runs",
        "/é/api/runs",
    ):
        assert httpx.get(origin + path, follow_redirects=True, timeout=PATIENCE_S).status_code in (403, 404)
    assert httpx.post(f"{origin}/x/api/fork", json={}, timeout=PATIENCE_S).status_code == 403


def test_another_host_name_is_refused_whatever_the_port(viewer: Viewer) -> None:
    for host, status in (("evil.example", 421), ("127.0.0.1.evil.example", 421), ("localhost:99", 200), ("", 421)):
        assert httpx.get(viewer.url, headers={"Host": host}, timeout=PATIENCE_S).status_code == status
    assert host_name("[::1]:80") == "[::1]"
    assert host_name("LOCALHOST:1") == "localhost"


def test_the_address_is_on_this_machine_and_its_token_is_long(viewer: Viewer) -> None:
    assert urlsplit(viewer.url).hostname == "127.0.0.1"
    assert len(viewer.token) >= 24


def test_links_that_lead_out_of_a_run_are_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "config.toml").write_text("key = 1", encoding="utf-8")
    (secret / "meta.json").write_text("{}", encoding="utf-8")
    run = tmp_path / "runs" / "one"
    run.mkdir(parents=True)
    (run / "meta.json").write_text("{}", encoding="utf-8")
    (run / "config.toml").symlink_to(secret / "config.toml")
    (tmp_path / "runs" / "two").symlink_to(secret)
    assert list(Catalog([tmp_path / "runs"]).runs()) == ["one"]
    assert read_text(run, "config.toml") == ""


def test_runs_inside_runs_have_the_name_of_both(tmp_path: Path) -> None:
    for name in ("a", "a/warm", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "meta.json").write_text("{}", encoding="utf-8")
    assert list(Catalog([tmp_path]).runs()) == ["a", "a/warm", "b"]
    assert list(Catalog([tmp_path / "a"]).runs()) == ["a", "a/warm"]
    assert Catalog([tmp_path]).folder_for(tmp_path / "a" / "warm") == tmp_path


def test_a_missing_folder_and_a_taken_port_are_one_line(tmp_path: Path, viewer: Viewer) -> None:
    with pytest.raises(ConfigError, match="not there"):
        start([tmp_path / "nothing"])
    with pytest.raises(ConfigError, match=f"port {viewer.port} cannot be used"):
        start([tmp_path], port=viewer.port)


def test_new_and_replaced_files_show_up(tmp_path: Path) -> None:
    import random

    run = RunDir.create_at(tmp_path / "run", kind="train")
    index = Index(run.path)
    index.refresh()
    assert index.rows("select count(*) as n from trees")[0]["n"] == 0
    for trees in (["a", "b"], ["c"]):
        run.write([made_tree(name, random.Random(0), nodes=2) for name in trees], name="step-000003")
        index.refresh()
        assert [row["tree"] for row in index.rows("select tree from trees order by 1")] == trees
    assert index.rows("select part, step from trees") == [{"part": "step", "step": 3}]
    next(iter(run.files())).unlink()
    index.refresh()
    assert index.rows("select file from trees") == []
    index.close()


def test_the_page_builds_no_markup_from_text() -> None:
    for name, data in static_files().items():
        if name.endswith(".js"):
            for word in (
                b"innerHTML",
                b"outerHTML",
                b"insertAdjacentHTML",
                b"document.write",
                b"eval(",
                b"new Function",
            ):
                assert word not in data, name
        assert b"http://" not in data.replace(b"http://www.w3.org/2000/svg", b""), name
        assert b"https://" not in data, name
