"""`ramet bench view`: how long the viewer takes with many trees and with a large one, and what following costs.

Everything is measured through the real server, as a page does it; the drawing of a large tree is measured in chromium
where playwright is installed.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx

from ramet.agent.live import MAX_TREES, LiveLog
from ramet.agent.options import TreeOptions
from ramet.agent.tree import TreeRun
from ramet.bench.view_runs import tree_name, write_large, write_many
from ramet.budget import Budget
from ramet.engine.scripted import Reply, ScriptedEngine
from ramet.store import RunDir
from ramet.types import Prompt
from ramet.view import start
from ramet.view.live import touch


def bench(*, trees: int, nodes: int, repeat: int, as_json: bool) -> None:
    """Measure and print. Times are the best of `repeat` passes."""
    folder = Path(tempfile.mkdtemp(prefix="ramet-view-"))
    try:
        numbers = _measure(folder, trees=trees, nodes=nodes, repeat=repeat)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    lines = [json.dumps(numbers)] if as_json else [f"{name:<46} {value}" for name, value in numbers.items()]
    print("\n".join(lines))  # noqa: T201


def _measure(folder: Path, *, trees: int, nodes: int, repeat: int) -> dict[str, Any]:
    write_many(folder / "many", trees)
    write_large(folder / "large", nodes)
    numbers: dict[str, Any] = {"trees": trees, "nodes of the large tree": nodes}
    numbers |= _requests(folder, trees=trees, repeat=repeat)
    numbers |= _in_browser(folder)
    numbers |= following(folder, repeat=repeat)
    return numbers


def _requests(folder: Path, *, trees: int, repeat: int) -> dict[str, Any]:
    """What the page asks for. The first request makes the table, so it is measured on a new server."""

    def open_run() -> None:
        with start([folder]) as viewer, httpx.Client(base_url=viewer.url + "api/", timeout=120) as client:
            _get(client, "run", {"run": "many"})
            _get(client, "trees", {"run": "many", "limit": 100})

    opened = best_of(repeat, open_run)
    with start([folder]) as viewer, httpx.Client(base_url=viewer.url + "api/", timeout=120) as client:
        asked: dict[str, tuple[str, dict[str, Any]]] = {
            "scroll to the middle": ("trees", {"run": "many", "offset": trees // 2, "limit": 100}),
            "sort by tokens": ("trees", {"run": "many", "sort": "tokens", "down": 1, "limit": 100}),
            "only wrong ones": ("trees", {"run": "many", "wrong": "root", "limit": 100}),
            "search goals": ("trees", {"run": "many", "q": "river 17", "limit": 100}),
            "one tree": ("tree", {"run": "many", "tree": tree_name(trees // 2)}),
            "one node": ("node", {"run": "many", "tree": tree_name(trees // 2), "node": 0}),
            "the large tree": ("tree", {"run": "large", "tree": "large"}),
        }
        client.get("run", params={"run": "many"})
        times = {
            name: shown(best_of(repeat, partial(_get, client, question, query)))
            for name, (question, query) in asked.items()
        }
    return {"open a run": shown(opened)} | times


def _get(client: httpx.Client, question: str, query: dict[str, Any]) -> None:
    client.get(question, params=query).raise_for_status()


def best_of(repeat: int, work: Callable[[], object]) -> tuple[float, float]:
    """The shortest time that the work took, in seconds, and the least time of the processor.

    The second hardly depends on what else the machine does.
    """
    walls: list[float] = []
    cpus: list[float] = []
    for _ in range(repeat):
        began, used = time.perf_counter(), time.process_time()
        work()
        walls.append(time.perf_counter() - began)
        cpus.append(time.process_time() - used)
    return min(walls), min(cpus)


def shown(times: tuple[float, float]) -> str:
    return f"{times[0]:.2f} s, processor {times[1]:.2f} s"


def _in_browser(folder: Path) -> dict[str, Any]:
    """From the answer of the server until each drawing of the large tree is on the screen.

    The time of the processor is that of the page's thread in all, loading included.
    """
    browser = shutil.which("chromium")
    if importlib.util.find_spec("playwright") is None or browser is None:
        return {"drawing in a browser": "left out: needs playwright and chromium"}
    from playwright.sync_api import sync_playwright  # pyright: ignore[reportMissingImports, reportUnknownVariableType]

    found: dict[str, Any] = {}
    with start([folder]) as viewer, sync_playwright() as play:  # pyright: ignore[reportUnknownVariableType]
        window: Any = play.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        for view in ("tree", "timeline", "budget"):
            page = window.new_page(viewport={"width": 1440, "height": 900})
            metrics = page.context.new_cdp_session(page)
            metrics.send("Performance.enable", {"timeDomain": "threadTicks"})
            page.goto(f"{viewer.url}#/run/large/tree/large?view={view}")
            page.wait_for_selector(".stage [data-node]", timeout=60_000)
            wall = float(page.evaluate(DRAWN))
            used = {one["name"]: one["value"] for one in metrics.send("Performance.getMetrics")["metrics"]}
            found[f"draw the large tree: {view}"] = shown((wall, float(used["TaskDuration"])))
            page.close()
        window.close()
    return found


DRAWN = """() => {
  const read = performance.getEntriesByType("resource").filter((one) => one.name.includes("api/tree?")).pop().responseEnd;
  return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done((performance.now() - read) / 1000))));
}"""  # noqa: E501


def following(folder: Path, *, repeat: int) -> dict[str, Any]:
    """What the live file costs 744 nodes that stream at once, without and with a viewer: of one processor core."""
    run = RunDir.create_at(folder / "live", kind="run")
    plain = best_of(repeat, partial(_play, None))
    unseen = best_of(repeat, partial(_play, LiveLog(run.path)))
    touch(run.path)
    seen = best_of(repeat, partial(_play, LiveLog(run.path), run.path))
    return {
        "live file without a viewer, share of a core": round(max(0.0, unseen[1] - plain[1]) / unseen[0], 4),
        "run that a viewer follows, share of a core": round(max(0.0, seen[1] - plain[1]) / seen[0], 4),
    }


def _play(log: LiveLog | None, touched: Path | None = None) -> None:
    """Trees of 31 nodes, as many at once as are followed, whose words appear over a second in every call."""
    if touched is not None:
        touch(touched)

    async def work() -> None:
        async with anyio.create_task_group() as group:
            for _ in range(MAX_TREES):
                options = TreeOptions(engine=ScriptedEngine(_script), budget=BUDGET, watcher=log)
                group.start_soon(TreeRun("root", options).run)

    anyio.run(work)


BUDGET = Budget(tokens=10**6, nodes=200, depth=3)


def _script(prompt: Prompt) -> Reply:
    if prompt.depth < 2 and prompt.turn == 0:
        goals = json.dumps([f"{prompt.goal}.{place}" for place in range(5)])
        call = f'<tool_call>{{"name": "delegate", "arguments": {{"goals": {goals}}}}}</tool_call>'
        return Reply(text=call, seconds=1.0)
    return Reply(text="working on it " * 20 + "Answer: done", seconds=1.0)
