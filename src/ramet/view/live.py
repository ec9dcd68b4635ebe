"""Follow a run that is being written: its live file, its tree files and its metrics."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import anyio

from ramet.agent.live import LIVE, MAX_BYTES, WATCHED
from ramet.store import RunDir
from ramet.view.catalog import is_inside
from ramet.view.texts import message_of

POLL_S = 0.2
TOUCH_S = 2.0  # between two signs to the run that a viewer is there
RECENT_S = 90.0  # a run without trees that was created within this time counts as being written


class Tail:
    """Reads what was added to the live file of a run since the last call."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self._id: str | None = None  # of the file: it is rewritten now and then
        self._offset = 0

    def read(self) -> list[dict[str, Any]]:
        """New lines. A rewritten file is read from its beginning; a file that went away gives `{"kind": "gone"}`."""
        path = self.run / LIVE
        try:
            if not is_inside(path, self.run):
                raise FileNotFoundError
            with path.open("rb") as file:
                first = _parse(file.readline(200))
                name = None if first is None else str(first.get("id"))
                self._offset = self._offset if name == self._id else 0
                self._id = name
                file.seek(self._offset)
                data = file.read(2 * MAX_BYTES)
        except OSError:
            was, self._id, self._offset = self._id, None, 0
            return [] if was is None else [{"kind": "gone"}]
        whole, _, _ = data.rpartition(b"\n")
        self._offset += len(whole) + bool(whole)
        return [line for raw in whole.split(b"\n") if (line := _parse(raw)) is not None]


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        found: object = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return cast(dict[str, Any], found) if isinstance(found, dict) else None


def is_live(run: Path) -> bool:
    """Whether a process writes to this run, as far as can be seen from outside."""
    return (run / LIVE).exists() or _is_locked(run) or _is_new(run)


def _is_locked(run: Path) -> bool:
    """Whether a process holds the lock on `.lock`. The lock is looked up, not tried: that could stop a run."""
    with suppress(OSError):
        inode = (run / ".lock").stat().st_ino
        locks = Path("/proc/locks").read_text(encoding="ascii", errors="replace")
        return any(f":{inode} " in line for line in locks.splitlines())
    return False


def _is_new(run: Path) -> bool:
    """Whether it was created a moment ago and has no tree and no step yet."""
    with suppress(OSError):
        metrics = run / "metrics.jsonl"
        has_steps = metrics.is_file() and metrics.stat().st_size > 0
        return (
            not has_steps and not RunDir(run).files() and time.time() - (run / "meta.json").stat().st_mtime < RECENT_S
        )
    return False


def touch(run: Path) -> None:
    """Tell the run that a viewer is there. On a disk that cannot be written, nothing streams; the rest works."""
    with suppress(OSError):
        (run / WATCHED).touch()


def revision(run: Path) -> str:
    """Changes whenever trees or metrics were added."""
    files = RunDir(run).files()
    with suppress(OSError):
        return f"{len(files)}.{(run / 'metrics.jsonl').stat().st_size}.{(run / 'trees').stat().st_mtime_ns}"
    return f"{len(files)}"


async def events(
    run: Path, tree: str | None, *, clock: Callable[[], float] = time.monotonic
) -> AsyncGenerator[dict[str, Any]]:
    """What happens in a run, for a page: lines of its live file (of one tree, or of all without texts), revisions."""
    tail, seen, touched = Tail(run), "", -TOUCH_S
    while True:
        if clock() - touched >= TOUCH_S:
            touched = clock()
            await anyio.to_thread.run_sync(touch, run)
        for line in await anyio.to_thread.run_sync(tail.read):
            wanted = _for_page(line, tree)
            if wanted is not None:
                yield wanted
        now = await anyio.to_thread.run_sync(revision, run)
        if now != seen:
            seen = now
            yield {"kind": "changed", "revision": now, "live": is_live(run)}
        await anyio.sleep(POLL_S)


def _for_page(line: dict[str, Any], tree: str | None) -> dict[str, Any] | None:
    """What a page needs of a line: all of it for the tree that it shows, a summary for the page of a run.

    None if it is of another tree, or damaged.
    """
    try:
        return _summary(line) if tree is None else _of_tree(line, tree)
    except (KeyError, TypeError):
        return None


def _of_tree(line: dict[str, Any], tree: str) -> dict[str, Any] | None:
    if line.get("tree") not in (tree, None):
        return None
    for piece in line.get("pieces", ()):
        piece["message"] = piece["text"] if piece["sampled"] else message_of(piece["text"])
    return line


def _summary(line: dict[str, Any]) -> dict[str, Any]:
    if line.get("kind") == "words":
        return {key: line[key] for key in ("kind", "tree", "index", "in_flight")}
    if line.get("kind") != "node":
        return line
    node = line["node"]
    kept = {name: node[name] for name in ("index", "parent", "state", "in_flight", "stop")}
    return {
        "kind": "node",
        "tree": line["tree"],
        "now": line["now"],
        "node": kept | {"tokens": node["usage"]["tokens"]},
    }
