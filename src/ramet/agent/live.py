"""What running trees do, written to a file of their run while a viewer asks for it.

    RUN/.watched     touched every second or two by a viewer that shows the run
    RUN/live.jsonl   one JSON object per line: a tree began, a node changed, words arrived, a tree ended

Without a viewer the cost is one `stat` of `.watched` per second. When a viewer comes, the file begins with the state of
all followed trees; from then on it has what changed. It is rewritten when it has grown to `MAX_BYTES`, and removed when
no viewer is left or no tree runs. Text of a call in progress is sent as it arrives, each part once.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sniffio

from ramet.store.facts import node_facts
from ramet.types import Node, State, clean

if TYPE_CHECKING:
    from ramet.agent.tree import TreeRun

WATCHED, LIVE = ".watched", "live.jsonl"
TICK_S = 0.2  # between two writes while a viewer is there
IDLE_S = 1.0  # between two looks for a viewer
PATIENCE_S = 6.0  # a viewer that was silent for longer is gone
MAX_BYTES = 16 * 2**20
MAX_TREES = 24  # followed at the same time; others that run beside them are only counted
MAX_STREAM = 20_000  # characters of one call in progress
HALF = "\N{REPLACEMENT CHARACTER}"  # part of a character

Line = dict[str, Any]


@dataclass(slots=True)
class Sent:
    """What the file already has of a node."""

    change: tuple[object, ...] = ()
    tokens: int = 0  # of the call in progress
    pieces: int = 0
    calls: int = 0
    stream: int = 0  # characters of the call in progress


@dataclass(slots=True)
class Followed:
    """A running tree, and what the file has of it."""

    run: TreeRun
    began: bool = False
    nodes: list[Sent] = field(default_factory=list[Sent])
    working: set[int] = field(default_factory=set[int])  # nodes that may still change

    @property
    def name(self) -> str:
        return self.run.options.name or self.run.tree.id

    def lines(self) -> Iterator[Line]:
        """What happened since the last call."""
        tree = self.run.tree
        if not self.began:
            self.began = True
            yield {
                "kind": "begin",
                "tree": self.name,
                "question": clean(tree.task.question),
                "task_id": clean(tree.task.id),
                "budget": asdict(tree.budget),
                "dialect": tree.dialect,
            }
        for index in range(len(self.nodes), len(tree.nodes)):
            self.nodes.append(Sent())
            self.working.add(index)
        for index in sorted(self.working):
            line = self._changes(tree.nodes[index], self.nodes[index])
            if line is not None:
                yield line

    def _changes(self, node: Node, sent: Sent) -> Line | None:
        """The node as it is now and the texts that are new; None if nothing changed."""
        change = (node.state, len(node.turns), len(node.pieces), node.usage.calls, node.ended_s)
        only_words = change == sent.change
        if only_words and node.meter.tokens == sent.tokens:
            return None
        if len(node.pieces) > sent.pieces or node.usage.calls > sent.calls:  # the latter: a call that is made again
            sent.stream = 0
        text = _streamed(node)
        line: Line = {"kind": "words" if only_words else "node", "tree": self.name, "now": round(self.run.now(), 3)}
        line |= {"index": node.index, "in_flight": node.meter.tokens}
        line |= {"stream": text[sent.stream :], "stream_at": sent.stream}
        if not only_words:
            line["node"] = node_facts(node) | {"path": node.path, "state": node.state, "in_flight": node.meter.tokens}
            line["pieces"] = [{"sampled": p.sampled, "text": clean(p.text)} for p in node.pieces[sent.pieces :]]
            line["first_piece"] = sent.pieces
        sent.change, sent.tokens = change, node.meter.tokens
        sent.pieces, sent.calls = len(node.pieces), node.usage.calls
        sent.stream = max(sent.stream, len(text))
        if node.state is State.ENDED:
            self.working.discard(node.index)
        return line


def _streamed(node: Node) -> str:
    """The text of the call in progress so far, without a character at its end of which a part may be missing."""
    if node.state is not State.SAMPLING or node.meter.partial is None or not node.meter.tokens:
        return ""
    return clean(node.meter.partial().text).rstrip(HALF)[:MAX_STREAM]


class LiveLog:
    """Follows the trees of one run directory. Only under asyncio; under trio nothing is written.

    Example:
        log = LiveLog(run_dir.path)
        await TreeRun(task, TreeOptions(engine=engine, watcher=log)).run()
    """

    def __init__(self, folder: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.folder = folder
        self.bytes = 0  # of the file
        self._clock = clock
        self._trees: dict[str, Followed] = {}
        self._others = 0  # trees that run and are not followed
        self._timer: asyncio.TimerHandle | None = None
        self._watching = False
        self._seen: tuple[int, float] = (0, -1.0)  # mtime of `.watched`, and when it was first seen
        self._looked = -IDLE_S
        self._broken = False  # the file cannot be written: never mind

    def started(self, run: TreeRun) -> None:
        if len(self._trees) >= MAX_TREES:
            self._others += 1
            return
        self._trees[run.tree.id] = Followed(run)
        if self._timer is None and not self._broken and sniffio.current_async_library() == "asyncio":
            self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def ended(self, run: TreeRun) -> None:
        followed = self._trees.pop(run.tree.id, None)
        if followed is None:
            self._others -= 1
        elif self._watching:
            self._append([*followed.lines(), {"kind": "end", "tree": followed.name}])
        if not self._trees:
            self._stop()

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        was, self._watching = self._watching, self._is_watched()
        if self._watching and (not was or self.bytes > MAX_BYTES):
            self._begin()
        elif was and not self._watching:
            self._remove()
        if self._watching:
            self._append([line for followed in self._trees.values() for line in followed.lines()])
        if self._broken:
            self._timer = None
            return
        self._timer = loop.call_later(TICK_S if self._watching else IDLE_S, self._tick)

    def _is_watched(self) -> bool:
        """Whether a viewer touched its file lately. Its clock need not be ours: only that the time changes counts."""
        now = self._clock()
        if now - self._looked < IDLE_S:
            return self._watching
        self._looked = now
        try:
            touched = os.stat(self.folder / WATCHED).st_mtime_ns
        except OSError:
            return False
        if touched != self._seen[0]:
            first = self._seen[0] == 0 and time.time() - touched / 1e9 > PATIENCE_S  # left by a viewer that is gone
            self._seen = (touched, self._clock() - (PATIENCE_S if first else 0.0))
        return now - self._seen[1] < PATIENCE_S

    def _begin(self) -> None:
        """A new file with the state of all followed trees."""
        self.bytes = 0
        for followed in self._trees.values():
            followed.began = False
            followed.nodes.clear()
            followed.working.clear()
        self._write([{"kind": "start", "id": uuid.uuid4().hex, "others": self._others}], mode="wb")

    def _append(self, lines: list[Line]) -> None:
        if lines:
            self._write(lines, mode="ab")

    def _write(self, lines: list[Line], *, mode: str) -> None:
        data = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode(errors="replace")
        try:
            with open(self.folder / LIVE, mode) as file:
                file.write(data)
        except OSError:  # a full or read-only disk must not end the run
            self._broken, self._watching = True, False
        self.bytes += len(data)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if self._watching:
            self._watching = False
            self._remove()

    def _remove(self) -> None:
        with suppress(OSError):
            (self.folder / LIVE).unlink()
