"""The moving picture of a tree."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import anyio
import pytest
from typer.testing import CliRunner

import ramet
from ramet.cli.main import app
from ramet.report.moving import PLAYS, moving_tree, tokens_at
from ramet.report.timeline import node_bars
from ramet.types import Prompt

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "</text><script>alert(1)</script>\x1b[31m"


def script(prompt: Prompt) -> ramet.Reply:
    if prompt.depth == 0 and prompt.turn == 0:
        goals = '["Count the ships in Oslo", "Count the ships in Rome"]'
        call = f'<tool_call>{{"name": "delegate", "arguments": {{"goals": {goals}}}}}</tool_call>'
        return ramet.Reply(text=call, seconds=0.02)
    return ramet.Reply(text="Answer: 3", seconds=0.02)


def grow(question: str) -> ramet.Tree:
    budget = ramet.Budget(tokens=2000, nodes=5, depth=2)
    return anyio.run(lambda: ramet.run(question, engine=ramet.ScriptedEngine(script), budget=budget))


@pytest.fixture(scope="module")
def tree() -> ramet.Tree:
    return grow(f"How many ships? {HOSTILE}")


def texts(svg: str) -> list[str]:
    return ["".join(found.itertext()).replace("\N{NO-BREAK SPACE}", " ") for found in parse(svg).iter(f"{SVG}text")]


def parse(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg)


def test_every_node_has_a_row_without_the_words_that_all_clones_begin_with(tree: ramet.Tree) -> None:
    found = texts(moving_tree(tree))
    assert "1  ├─ Oslo" in found
    assert "2  └─ Rome" in found
    assert sum(" tok" in text and "tokens" not in text for text in found) == 3


def test_text_of_a_model_never_becomes_markup(tree: ramet.Tree) -> None:
    svg = moving_tree(tree)
    assert not list(parse(svg).iter(f"{SVG}script"))
    assert "\x1b" not in svg


def test_the_totals_appear_when_the_tree_is_complete(tree: ramet.Tree) -> None:
    svg = moving_tree(tree)
    last = list(parse(svg).iter(f"{SVG}text"))[-1]
    assert f"{tree.usage.tokens:,} of 2,000 tokens" in "".join(last.itertext())
    name = last.get("style", "").partition(":")[2]
    assert f"@keyframes {name}{{0%,{100 * PLAYS / 12:.2f}%{{opacity:0}}" in svg


def test_no_more_nodes_sample_than_have_started(tree: ramet.Tree) -> None:
    counts = re.findall(r"(\d+) of (\d+) nodes sampling", moving_tree(tree))
    assert counts
    assert all(int(working) <= int(started) for working, started in counts)


def test_every_animation_has_its_key_frames_once(tree: ramet.Tree) -> None:
    svg = moving_tree(tree)
    named = re.findall(r"animation-name:(k\d+)", svg)
    assert sorted(named) == sorted(re.findall(r"@keyframes (k\d+)", svg))
    assert len(named) == len(set(named))


def test_tokens_at_a_time_count_a_turn_by_the_part_of_it_that_has_passed(tree: ramet.Tree) -> None:
    bars, _ = node_bars(tree)
    first = tree.root.turns[0]
    half = (first.started_s + first.sampled_s) / 2
    assert tokens_at(tree, bars, half) == first.tokens // 2
    assert tokens_at(tree, bars, tree.seconds) == tree.usage.tokens


def test_show_writes_the_picture_of_a_tree(tree: ramet.Tree, tmp_path: Path) -> None:
    run = ramet.RunDir.create(tmp_path, "ships")
    run.write([tree])
    done = CliRunner().invoke(app, ["show", str(run.path), "--svg", str(tmp_path / "tree.svg")])
    assert (done.exit_code, "3 nodes" in done.output) == (0, True)
    assert (tmp_path / "tree.svg").read_text().startswith("<svg ")
