"""The examples run as they stand: without a model, and against a server."""

from __future__ import annotations

import importlib
import json
import re
import sys
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from ramet.config import load
from ramet.train.loop import check_plan
from ramet.train.preview import preview
from ramet.train.settings import TrainConfig
from tests.cli.test_main import Server

EXAMPLES = Path(__file__).parent.parent / "examples"
NAMES = {"arithmetic", "caves", "logs", "own_rule", "own_taskset", "research", "review"}


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Runs an example by name, with words of its command line."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    before = set(sys.modules)
    yield lambda name, *words: importlib.import_module(name).main([str(word) for word in words])
    for name in (NAMES | {"common"}) & (set(sys.modules) - before):
        del sys.modules[name]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as made:
        made.reply = "Answer: 42"
        thread = threading.Thread(target=ThreadingHTTPServer.serve_forever, args=(made, 0.01))
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def test_all_examples_are_run_here() -> None:
    assert {file.stem for file in EXAMPLES.glob("*.py")} == NAMES | {"common"}


def test_research_quotes_what_a_file_says(example: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "ships.txt").write_text("Whales sing.\n\nThe harbour of Bergen has three ships.")
    (tmp_path / "trains.txt").write_text("Trains run daily.\n\nThe harbour has no trains.")
    example(
        "research", "--question", "How many ships has the harbour?", tmp_path / "ships.txt", tmp_path / "trains.txt"
    )
    printed = capsys.readouterr().out
    assert "a scripted model answers" in printed
    assert "The harbour of Bergen has three ships. | The harbour has no trains." in printed


def test_caves_are_explored_by_the_oracle_with_function_calls(example: Any, capsys: pytest.CaptureFixture[str]) -> None:
    example("caves", "-n", "3")
    printed = capsys.readouterr().out
    assert "checked: 0 faults" in printed
    assert re.search(r"clones .* 3 +100% \[44, 100\]", printed)


def test_the_recipe_of_the_caves_can_be_trained() -> None:
    config = load(TrainConfig, file=EXAMPLES / "caves.toml")
    plan = check_plan(config)
    assert preview(plan.taskset, plan.split, config).notes[0].startswith("caves:train/0: its oracle ")


def test_review_finds_the_four_mistakes_of_its_sample(example: Any, capsys: pytest.CaptureFixture[str]) -> None:
    example("review")
    findings = capsys.readouterr().out.split("\n\n")[-1]
    assert [line.partition(":")[0] for line in findings.splitlines()] == ["add_item", "read_config", "mean"]
    assert findings.count(";") == 1


def test_logs_counts_what_a_plain_loop_counts(example: Any, capsys: pytest.CaptureFixture[str]) -> None:
    example("logs")
    log = importlib.import_module("logs").make_log()
    failed = [line.split("service=")[1].split()[0] for line in log.splitlines() if "status=503" in line]
    counts = json.loads(capsys.readouterr().out.split("\n\n")[-1])
    assert counts == {service: failed.count(service) for service in ("auth", "cart", "search")}


def test_own_taskset_is_sound_and_its_oracle_is_right(example: Any, capsys: pytest.CaptureFixture[str]) -> None:
    example("own_taskset", "-n", 2)
    printed = capsys.readouterr().out
    assert "checked: 0 faults" in printed
    assert printed.count("100% [34, 100]") == 2


def test_own_rule_trains(example: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    example("own_rule", "--steps", 1, "--runs", tmp_path)
    assert "step 0, reward" in capsys.readouterr().out


def test_arithmetic_trains_and_measures(example: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    example("arithmetic", "--warm", 1, "--steps", 1, "--runs", tmp_path)
    printed = capsys.readouterr().out
    assert "clones − single" in printed
    assert f"--model {tmp_path}" in printed


@pytest.mark.parametrize("name", ["research", "review", "logs", "own_taskset"])
def test_examples_run_against_a_server(
    example: Any, server: Server, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    example(name, "--base-url", server.url, "--model", "tiny", *(["-n", 1] if name == "own_taskset" else []))
    printed = capsys.readouterr().out
    assert "scripted" not in printed
    assert "42" in printed or "0%" in printed
