"""`ramet report` as people meet it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ramet.cli.report_commands import run_of
from tests.report.made import records, run_dir, tree
from tests.cli.test_main import complaint, environment, printed


def two(parent: Path) -> None:
    for name, scores in (("one", "0000000000"), ("two", "1111111111")):
        run_dir(parent, name, records=records("single", 500, "0" * 10) + records("clones", 500, scores))


def test_it_says_the_headline_a_table_and_where_the_page_is(tmp_path: Path) -> None:
    two(tmp_path)
    said = printed(tmp_path, "report", "before=one", "after=two").splitlines()
    assert said[0] == "With clones, after beats before by 100 points [100, 100] at 500 tokens."
    assert any(line.split()[:5] == ["after", "clones", "500", "100", "%"] for line in said)
    assert said[-1] == "report-one-two/index.html  (open it in a browser)"
    assert (tmp_path / "report-one-two" / "index.html").is_file()
    assert (tmp_path / "report-one-two" / "accuracy-tokens.png").read_bytes().startswith(b"\x89PNG")


def test_one_run_has_its_page_inside(tmp_path: Path) -> None:
    run_dir(tmp_path, "asked", kind="run", trees=[tree("abc", split=True)])
    said = printed(tmp_path, "report", "asked").splitlines()
    assert said == ["asked: 1 tree.", "", "asked/report/index.html  (open it in a browser)"]


def test_machines_get_the_same_facts(tmp_path: Path) -> None:
    two(tmp_path)
    facts = json.loads(printed(tmp_path, "report", "one", "two", "--into", "page", "--json"))
    assert facts["page"] == "page/index.html"
    assert [cell["accuracy"]["value"] for cell in facts["cells"]] == [0.0, 0.0, 0.0, 1.0]
    told = [(one["cell"][0], one["against"][0], one["verdict"]) for one in facts["differences"] if one["value"]]
    assert told == [("two", "two", "better"), ("two", "one", "better")]
    assert all((tmp_path / "page" / name).is_file() for name in facts["pictures"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere"], "nowhere is not a run directory: it is not there"),
        (["here"], "here is not a run directory: it has none of meta.json, config.toml"),
        (["=here"], "'=here': write NAME=RUN"),
        (["one", "one"], "a run is named twice"),
        (["x=one", "x=two"], "two runs have the same name: x, x"),
        (["empty"], "nothing to show yet: empty: no tree has finished yet"),
        (["one", "--into", "one/meta.json"], "--into one/meta.json: there is a file of that name; give a folder"),
        ([], "Missing argument"),
    ],
)
def test_what_cannot_be_shown_is_one_line(tmp_path: Path, words: list[str], said: str) -> None:
    two(tmp_path)
    (tmp_path / "here").mkdir()
    run_dir(tmp_path, "empty", kind="run")
    assert said in complaint(tmp_path, "report", *words)


def test_without_matplotlib_it_says_what_to_install(tmp_path: Path) -> None:
    two(tmp_path)
    code = "import sys; sys.modules['matplotlib'] = None; sys.argv = ['ramet', 'report', 'one']\n"
    code += "import ramet.cli.main; ramet.cli.main.main()"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr == "ramet: pictures need matplotlib: pip install 'ramet[report]'\n"


def test_a_directory_with_a_sign_in_its_name_is_meant_as_it_stands(tmp_path: Path) -> None:
    path = tmp_path / "a=b"
    path.mkdir()
    assert run_of(str(path)) == (None, path)
    assert run_of("after=runs/x") == ("after", Path("runs/x"))
    assert run_of("runs/lr=3/x") == (None, Path("runs/lr=3/x"))
