"""The overhead of the runtime per node, measured with a scripted model that takes no time.

Each framework runs in its own process, so that memory and imports do not mix.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

import ramet
from ramet.agent.dialects import make_dialect
from ramet.agent.dialects.python import PythonDialect
from ramet.agent.tree import run
from ramet.budget import Budget
from ramet.engine.scripted import Reply, Script, ScriptedEngine
from ramet.errors import ConfigError, RametError
from ramet.interfaces import Dialect
from ramet.types import Prompt

if TYPE_CHECKING:
    from rich.console import Console

Facts = dict[str, Any]
PEERS = ("langgraph", "openai-agents", "smolagents", "rlms")
TIMEOUT_S = 300
VARIANTS = {"ramet": "tools", "ramet (python cells)": "python"}


def count_nodes(fanout: int, depth: int) -> int:
    return sum(fanout**level for level in range(depth + 1))


def tools_script(fanout: int, depth: int) -> Script:
    """Inner nodes delegate, then add up the answers; leaves answer 1."""
    calls = [_delegation(goals) for goals in _goals(fanout, depth)]

    def script(prompt: Prompt) -> str:
        if prompt.depth == depth:
            return "Answer: 1"
        if prompt.turn == 0:
            return calls[prompt.depth]
        lines = prompt.last.splitlines()[1:-1]
        return f"Answer: {sum(int(line.rpartition(': ')[2]) for line in lines)}"

    return script


def python_script(fanout: int, depth: int) -> Script:
    """The same as code: one cell delegates, the next finishes with the sum."""
    children = [", ".join(f"delegate({goal!r})" for goal in goals) for goals in _goals(fanout, depth)]
    cells = [f"<python>import asyncio\nparts = await asyncio.gather({calls})</python>" for calls in children]

    def script(prompt: Prompt) -> str:
        if prompt.depth == depth:
            return "<python>finish(1)</python>"
        return cells[prompt.depth] if prompt.turn == 0 else "<python>finish(sum(parts))</python>"

    return script


def _goals(fanout: int, depth: int) -> list[list[str]]:
    """The goals of the children of a node, by its depth. A node may not delegate its own goal, so levels differ."""
    return [[f"{level}.{place}" for place in range(fanout)] for level in range(1, depth + 1)]


def _delegation(goals: list[str]) -> str:
    return f"<tool_call>{json.dumps({'name': 'delegate', 'arguments': {'goals': goals}})}</tool_call>"


async def measure(dialect_name: str, *, fanout: int, depth: int, repeat: int) -> Facts:
    """The fastest of `repeat` runs. Raises if a tree did not run completely."""
    nodes = count_nodes(fanout, depth)
    make = python_script if dialect_name == "python" else tools_script
    async with AsyncExitStack() as stack:
        dialect = make_dialect(dialect_name)
        if isinstance(dialect, PythonDialect):  # keep the worker processes, as a program that runs many trees does
            await stack.enter_async_context(dialect)
        best, cpu, peak = await _best(dialect, make, fanout=fanout, depth=depth, repeat=repeat)
    return {
        "version": ramet.__version__,
        "nodes": nodes,
        "seconds": best,
        "us_per_node": best / nodes * 1e6,
        "cpu_us_per_node": cpu / nodes * 1e6,
        "peak_mb": peak,
        "parallel": True,
    }


async def _best(
    dialect: Dialect, make: Callable[[int, int], Script], *, fanout: int, depth: int, repeat: int
) -> tuple[float, float, float]:
    await _once(dialect, make(2, 1), fanout=2, depth=1)
    before = _peak_mb()
    best, cpu = float("inf"), float("inf")
    for _ in range(repeat):
        gc.collect()
        wall_start, cpu_start = time.perf_counter(), time.process_time()
        await _once(dialect, make(fanout, depth), fanout=fanout, depth=depth)
        best, cpu = min(best, time.perf_counter() - wall_start), min(cpu, time.process_time() - cpu_start)
    return best, cpu, _peak_mb() - before


async def _once(dialect: Dialect, script: Script, *, fanout: int, depth: int) -> None:
    nodes = count_nodes(fanout, depth)
    budget = Budget(tokens=1000 * nodes, nodes=nodes, depth=depth, children=max(8, fanout), reserve=8)
    engine = ScriptedEngine(script)
    tree = await run("0", engine=engine, budget=budget, dialect=dialect)
    calls = nodes + count_nodes(fanout, depth - 1)
    if tree.answer != str(fanout**depth) or len(engine.prompts) != calls or len(tree.nodes) != nodes:
        raise AssertionError(f"the tree did not run: {tree.answer} of {fanout**depth}, {len(engine.prompts)} calls")


async def hold_open(num_nodes: int) -> Facts:
    """A root whose children are all in flight at the same time."""
    (goals,) = _goals(num_nodes - 1, 1)
    call = _delegation(goals)

    def script(prompt: Prompt) -> Reply:
        if prompt.depth:
            return Reply(text="Answer: 1", seconds=1.0)
        return Reply(text=call if prompt.turn == 0 else "Answer: done")

    engine = ScriptedEngine(script)
    budget = Budget(
        tokens=1000 * num_nodes,
        nodes=num_nodes,
        depth=1,
        children=num_nodes,
        reserve=8,
        window=100 * num_nodes + 100_000,
    )
    before, started = _peak_mb(), time.process_time()
    tree = await run("0", engine=engine, budget=budget)
    if engine.most_running != num_nodes - 1 or tree.answer != "done":
        raise AssertionError(f"only {engine.most_running} of {num_nodes - 1} children were open at once")
    spent = time.process_time() - started
    return {"open_nodes": num_nodes, "cpu_us_per_node": spent / num_nodes * 1e6, "peak_mb": _peak_mb() - before}


def _peak_mb() -> float:
    """Peak memory of this process. `getrusage` would include the process that started it."""
    status = Path("/proc/self/status")
    if status.exists():
        return int(status.read_text().partition("VmHWM:")[2].split()[0]) / 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20


def bench(*, fanout: int, depth: int, open_nodes: int, repeat: int, python: Path | None, as_json: bool) -> None:
    """Measure ramet and the installed peers; print one table."""
    from rich.console import Console

    console = Console(stderr=as_json)
    size = ["--fanout", str(fanout), "--depth", str(depth), "--repeat", str(repeat)]
    ramet_command = [sys.executable, "-m", "ramet.bench.runtime"]
    peer_command = [str(python or sys.executable), str(Path(__file__).with_name("peers.py"))]
    commands = {name: [*ramet_command, "--dialect", dialect, *size] for name, dialect in VARIANTS.items()}
    commands |= {name: [*peer_command, name, *size] for name in PEERS}
    results: list[Facts] = []
    with console.status("measuring") as status:
        for name, command in commands.items():
            status.update(f"measuring {name}: {count_nodes(fanout, depth):,} nodes")
            results.append(_measure_in_process(command) | {"name": name})
            if name in VARIANTS and "error" in results[-1]:
                raise RametError(f"{name} could not be measured: {results[-1]['error']}")
        status.update(f"holding {open_nodes:,} nodes open")
        opened = _measure_in_process([*ramet_command, "--open", str(open_nodes)]) if open_nodes else None
    if as_json:
        facts = {"fanout": fanout, "depth": depth, "results": results, "open": opened}
        sys.stdout.write(json.dumps(facts, indent=1) + "\n")
    else:
        _print_results(console, results, opened)


def _print_results(console: Console, results: list[Facts], opened: Facts | None) -> None:
    from rich.table import Table

    measured, failed = [row for row in results if "error" not in row], [row for row in results if "error" in row]
    base = results[0]["us_per_node"]
    columns = ("framework", "version", "µs per node", "CPU µs", "times ramet", "peak MB")
    table = Table(*columns, title=_title(results))
    for row in measured:
        table.add_row(
            row["name"],
            row.get("version", ""),
            f"{row['us_per_node']:,.0f}",
            f"{row['cpu_us_per_node']:,.0f}",
            f"{row['us_per_node'] / base:.1f}",
            f"{row['peak_mb']:.1f}",
        )
    console.print(table)
    for row in results:
        if "note" in row:
            console.print(f"{row['name']}: {row['note']}", style="dim")
    for error in dict.fromkeys(row["error"] for row in failed):
        names = ", ".join(row["name"] for row in failed if row["error"] == error)
        console.print(f"{names}: {error}", style="dim")
    if opened:
        console.print(
            f"{opened['open_nodes']:,} nodes open at once: {opened['cpu_us_per_node']:.0f} CPU µs per node, "
            f"{opened['peak_mb']:.0f} MB more at the peak"
        )


def _title(results: list[Facts]) -> str:
    return f"one scripted tree of {results[0]['nodes']:,} nodes, the model takes no time"


def _measure_in_process(command: list[str]) -> Facts:
    """Run one measurement in its own process. Its last line of output is JSON, also after an error."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return {"error": f"took more than {TIMEOUT_S} s"}
    except OSError as error:
        raise ConfigError(f"cannot start {command[0]}: {error.strerror}") from None
    lines = done.stdout.strip().splitlines()
    if not lines:
        return {"error": (done.stderr.strip().splitlines() or ["no output"])[-1][:200]}
    return json.loads(lines[-1])


def main() -> None:
    """Print one measurement as JSON; `bench` starts this in a separate process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--dialect", default="tools")
    for name, default in (("--fanout", 4), ("--depth", 4), ("--repeat", 5), ("--open", 0)):
        parser.add_argument(name, type=int, default=default)
    options = parser.parse_args()

    async def work() -> Facts:
        if options.open:
            return await hold_open(options.open)
        return await measure(options.dialect, fanout=options.fanout, depth=options.depth, repeat=options.repeat)

    sys.stdout.write(json.dumps(anyio.run(work)) + "\n")


if __name__ == "__main__":
    main()
