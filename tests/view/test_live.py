"""A run that is being written, as a file and as events."""

from __future__ import annotations

import json
from contextlib import aclosing
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from ramet.agent import live
from ramet.agent.live import LiveLog
from ramet.agent.options import TreeOptions
from ramet.agent.tree import TreeRun
from ramet.engine.scripted import Reply, ScriptedEngine
from ramet.store import RunDir
from ramet.types import Completion, Meter, Prompt, State, Tree
from ramet.view import Viewer, start
from ramet.view.live import Tail, events, is_live, touch
from tests.view.samples import BUDGET, RunningTree, script
from tests.waiting import PATIENCE_S


def follow(viewer: Viewer, run: str, tree: str, until: str) -> list[dict[str, Any]]:
    """The events of a tree, up to the first line that contains `until`."""
    found: list[dict[str, Any]] = []
    with httpx.stream("GET", viewer.url + "api/live", params={"run": run, "tree": tree}, timeout=PATIENCE_S) as lines:
        for line in lines.iter_lines():
            if line.startswith("data: "):
                found.append(json.loads(line[6:]))
                if until in line:
                    return found
    raise AssertionError("the stream ended")


def test_nodes_and_words_arrive_while_the_tree_runs_and_the_file_is_gone_afterwards(tmp_path: Path) -> None:
    running = RunningTree(tmp_path / "running")
    try:
        with start([tmp_path]) as viewer:
            running.engine.words = 2
            events = follow(viewer, "running", running.id, until="Four parts")
            assert [event["kind"] for event in events if event["kind"] in ("begin", "node")][:2] == ["begin", "node"]
            assert is_live(running.run.path)
            last = events[-1]
            assert (last["stream"], last["stream_at"], last["in_flight"]) == ("Four parts", 0, 2)
            running.engine.words = 3
            following = follow(viewer, "running", running.id, until='"stream_at":10')[-1]
            assert following["stream"] == "."
            running.end()
            assert not (running.run.path / live.LIVE).exists()
            asked = {"run": "running", "tree": running.id}
            stored = httpx.get(viewer.url + "api/tree", params=asked, timeout=PATIENCE_S).json()
            assert len(stored["nodes"]) == 6
    finally:
        running.end()


def record(folder: Path, *, slow: float) -> tuple[Tree, list[dict[str, Any]]]:
    """A tree that a viewer follows from its beginning, and all lines of its live file."""
    lines: list[dict[str, Any]] = []

    class Kept(LiveLog):
        def _write(self, new: list[dict[str, Any]], *, mode: str) -> None:
            super()._write(new, mode=mode)
            lines.extend(json.loads(json.dumps(new)))

    def paced(prompt: Prompt) -> Reply:
        return Reply(text=script(prompt), seconds=slow)

    touch(folder)
    options = TreeOptions(engine=ScriptedEngine(paced), budget=BUDGET, watcher=Kept(folder), name="stored-name")
    return anyio.run(TreeRun("How many fruits are there?", options).run), lines


def test_the_lines_rebuild_the_tree(tmp_path: Path) -> None:
    tree, lines = record(tmp_path, slow=0.3)
    assert lines[0]["kind"] == "start"
    assert lines[-1] == {"kind": "end", "tree": "stored-name"}
    texts: dict[int, list[str]] = {}
    newest: dict[int, dict[str, Any]] = {}
    for line in lines:
        if line["kind"] == "node":
            index = line["node"]["index"]
            own = texts.setdefault(index, [])
            assert line["first_piece"] == len(own)
            own += [piece["text"] for piece in line["pieces"]]
            newest[index] = line["node"]
    assert texts == {node.index: [piece.text for piece in node.pieces] for node in tree.nodes}
    assert [newest[node.index]["usage"]["tokens"] for node in tree.nodes] == [node.usage.tokens for node in tree.nodes]


@pytest.mark.parametrize(
    ("attempts", "shown"),
    [
        ([["one two", "one two three"]], ["one two", "one two three"]),
        ([["one two three"], ["six"]], ["one two three", "six"]),  # it broke, and the node asks again
        ([["so \ufffd\ufffd", "so \N{DESERT ISLAND}"]], ["so ", "so \N{DESERT ISLAND}"]),  # a character of two tokens
    ],
)
def test_the_words_of_a_call_are_those_received_so_far(attempts: list[list[str]], shown: list[str]) -> None:
    run = TreeRun("How many?", TreeOptions(engine=ScriptedEngine(script)))
    followed, node, stream = live.Followed(run), run.tree.root, ""
    seen: list[str] = []
    for texts in attempts:
        node.usage.calls += 1
        node.state, node.meter = State.SAMPLING, Meter()
        for text in texts:
            node.meter.tokens += 1
            done = Completion(text=text, num_tokens=node.meter.tokens, finish="length")
            node.meter.partial = lambda done=done: done
            line = list(followed.lines())[-1]
            stream = stream[: line["stream_at"]] + line["stream"]  # as in live.js
            seen.append(stream)
    assert seen == shown


def test_a_followed_tree_is_the_tree_that_runs_unseen(tmp_path: Path) -> None:
    followed, _ = record(tmp_path, slow=0.0)
    unseen = anyio.run(
        TreeRun("How many fruits are there?", TreeOptions(engine=ScriptedEngine(script), budget=BUDGET)).run
    )
    assert [(n.pieces, n.usage, n.stop) for n in followed.nodes] == [(n.pieces, n.usage, n.stop) for n in unseen.nodes]


def test_without_a_viewer_nothing_is_written(tmp_path: Path) -> None:
    options = TreeOptions(engine=ScriptedEngine(script), budget=BUDGET, watcher=LiveLog(tmp_path))
    anyio.run(TreeRun("How many fruits are there?", options).run)
    assert list(tmp_path.iterdir()) == []


def test_a_viewer_that_went_away_long_ago_does_not_count(tmp_path: Path) -> None:
    import os

    touch(tmp_path)
    os.utime(tmp_path / live.WATCHED, (1, 1))
    clock = [100.0]
    log = LiveLog(tmp_path, clock=lambda: clock[0])
    assert not log._is_watched()
    touch(tmp_path)
    clock[0] += live.IDLE_S
    assert log._is_watched()
    clock[0] += live.PATIENCE_S + live.IDLE_S
    assert not log._is_watched()


def test_a_run_does_not_end_because_its_live_file_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / live.LIVE).mkdir()
    tree, _ = record(tmp_path, slow=0.3)
    assert tree.answer == "7"


def test_a_rewritten_file_is_read_from_its_beginning(tmp_path: Path) -> None:
    tail = Tail(tmp_path)
    file = tmp_path / live.LIVE
    file.write_text('{"kind": "start", "id": "one"}\n{"kind": "begin"}\n{"ki', encoding="utf-8")
    assert [line["kind"] for line in tail.read()] == ["start", "begin"]
    with file.open("a", encoding="utf-8") as more:
        more.write('nd": "node"}\n')
    assert tail.read() == [{"kind": "node"}]
    file.write_text('{"kind": "start", "id": "two"}\n' + '{"kind": "begin"}\n' * 5, encoding="utf-8")
    assert len(tail.read()) == 6
    file.unlink()
    assert tail.read() == [{"kind": "gone"}]
    assert tail.read() == []


def test_a_large_file_begins_again_with_the_state_of_its_trees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MAX_BYTES", 2000)
    tree, lines = record(tmp_path, slow=0.5)
    starts = [place for place, line in enumerate(lines) if line["kind"] == "start"]
    assert len(starts) > 1
    assert lines[starts[-1] + 1]["kind"] == "begin"
    assert lines[starts[-1] + 2]["first_piece"] == 0
    assert tree.answer == "7"


def test_a_run_with_steps_is_not_taken_for_a_new_one(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, "warm", kind="warmstart")
    assert is_live(run.path)
    run.log({"step": 0, "loss": 1.0})
    assert not is_live(run.path)


@pytest.mark.parametrize("tree", [None, "a"])
@pytest.mark.parametrize(
    "line",
    [
        {"kind": "words"},
        {"kind": "node"},
        {"kind": "node", "tree": "a", "node": 3, "pieces": [7]},
        {"kind": "node", "tree": "a", "node": {"index": 0}, "pieces": [{"sampled": False, "text": 7}]},
    ],
)
def test_a_damaged_line_of_a_live_file_is_left_out(tmp_path: Path, line: dict[str, Any], tree: str | None) -> None:
    lines = [{"kind": "start", "id": "1"}, line, {"kind": "end", "tree": "a"}]
    (tmp_path / live.LIVE).write_text("".join(json.dumps(one) + "\n" for one in lines), encoding="utf-8")

    async def first() -> list[str]:
        kinds: list[str] = []
        async with aclosing(events(tmp_path, tree)) as found:
            async for event in found:
                kinds.append(event["kind"])
                if "end" in kinds:
                    break
        return kinds

    assert [kind for kind in anyio.run(first) if kind in ("start", "end")] == ["start", "end"]
