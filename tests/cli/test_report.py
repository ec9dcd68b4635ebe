"""`ramet report` in another process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ramet.report.facts import parse_named_run
from tests.cli.test_main import complaint, printed
from tests.fork_server import environment, installed
from tests.report.samples import records, run_dir, tree


def two(parent: Path) -> None:
    for name, scores in (("one", "0000000000"), ("two", "1111111111")):
        run_dir(parent, name, records=records("single", 500, "0" * 10) + records("clones", 500, scores))


def test_it_prints_the_headline_a_table_and_the_path_of_the_page(tmp_path: Path) -> None:
    two(tmp_path)
    output = printed(tmp_path, "report", "before=one", "after=two", "--png").splitlines()
    assert output[0] == "With clones, after beats before by 100 points [100, 100] at 500 tokens."
    assert any(line.split()[:4] == ["after", "clones", "500", "100%"] for line in output)
    assert output[-1] == "report-one-two/index.html  (open it in a browser)"
    assert (tmp_path / "report-one-two" / "index.html").is_file()
    assert (tmp_path / "report-one-two" / "accuracy-tokens.png").read_bytes().startswith(b"\x89PNG")


def test_the_page_of_one_run_is_inside_it(tmp_path: Path) -> None:
    run_dir(tmp_path, "asked", kind="run", trees=[tree("abc", split=True)])
    output = printed(tmp_path, "report", "asked", start=installed).splitlines()
    assert output == ["asked: 1 tree.", "", "asked/report/index.html  (open it in a browser)"]


def test_json_has_the_same_facts(tmp_path: Path) -> None:
    two(tmp_path)
    facts = json.loads(printed(tmp_path, "report", "one", "two", "--into", "page", "--json"))
    assert facts["page"] == "page/index.html"
    assert [cell["accuracy"]["value"] for cell in facts["cells"]] == [0.0, 0.0, 0.0, 1.0]
    verdicts = [(one["cell"][0], one["against"][0], one["verdict"]) for one in facts["differences"] if one["value"]]
    assert verdicts == [("two", "two", "better"), ("two", "one", "better")]
    html = (tmp_path / "page" / "index.html").read_text(encoding="utf-8")
    assert facts["pictures"]
    assert all(f'id="{name}' in html for name in facts["pictures"])
    assert not list((tmp_path / "page").glob("*.png"))


@pytest.mark.parametrize(
    ("words", "output"),
    [
        (["nowhere"], "nowhere is not a run directory: it does not exist"),
        (["here"], "here is not a run directory: it has none of meta.json, config.toml"),
        (["=here"], "'=here': write NAME=RUN"),
        (["one", "one"], "a run is named twice"),
        (["x=one", "x=two"], "two runs have the same name: x, x"),
        (["empty"], "nothing to show yet: empty: no tree is finished yet"),
        (["one", "--into", "one/meta.json"], "--into one/meta.json is a file: give a folder"),
        ([], "Missing argument"),
    ],
)
def test_an_error_is_one_line(tmp_path: Path, words: list[str], output: str) -> None:
    two(tmp_path)
    (tmp_path / "here").mkdir()
    run_dir(tmp_path, "empty", kind="run")
    assert output in complaint(tmp_path, "report", *words)


def test_without_matplotlib_the_error_names_what_to_install(tmp_path: Path) -> None:
    two(tmp_path)
    code = "import sys; sys.modules['matplotlib'] = None; sys.argv = ['ramet', 'report', 'one']\n"
    code += "import ramet.cli.main; ramet.cli.main.main()"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr == "ramet: plots need matplotlib: pip install 'ramet[report]'\n"


def test_a_directory_whose_name_contains_an_equals_sign_is_taken_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "a=b"
    path.mkdir()
    assert parse_named_run(str(path)) == (None, path)
    assert parse_named_run("after=runs/x") == ("after", Path("runs/x"))
    assert parse_named_run("runs/lr=3/x") == (None, Path("runs/lr=3/x"))
