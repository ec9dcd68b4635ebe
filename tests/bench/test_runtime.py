"""The benchmark of the runtime: its trees run completely, and no number is printed where one did not."""

from __future__ import annotations

from pathlib import Path

import pytest

from ramet.bench.runtime import bench, hold_open, measure
from ramet.errors import RametError


@pytest.mark.anyio
@pytest.mark.parametrize("dialect", ["tools", "python"])
async def test_every_node_of_the_scripted_tree_runs(dialect: str) -> None:
    facts = await measure(dialect, fanout=3, depth=3, repeat=1)
    assert facts["nodes"] == 1 + 3 + 9 + 27
    assert facts["us_per_node"] > 0


@pytest.mark.anyio
async def test_all_children_are_open_at_once() -> None:
    assert (await hold_open(20))["open_nodes"] == 20


def test_frameworks_that_are_not_installed_are_named_below_the_table(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho \'{"error": "not installed"}\'\n')
    python.chmod(0o755)
    bench(fanout=2, depth=2, open_nodes=0, repeat=1, python=python, as_json=False)
    printed = capsys.readouterr().out
    assert "one scripted tree of 7 nodes" in printed
    assert "langgraph, openai-agents, smolagents, rlms: not installed" in printed


def test_no_number_is_printed_if_the_tree_did_not_run(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RametError, match="ramet could not be measured: "):
        bench(fanout=0, depth=1, open_nodes=0, repeat=1, python=None, as_json=False)
    assert capsys.readouterr().out == ""
