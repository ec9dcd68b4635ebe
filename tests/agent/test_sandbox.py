"""Cells cannot reach the host, cannot exceed their limits, and cannot see each other."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import pytest

import ramet
from ramet.agent.sandbox import CellState, Interpreter, Sandbox
from ramet.types import Prompt
from tests.agent.scripts import cell, gather

pytestmark = pytest.mark.anyio


def kill_workers() -> None:
    """Kill every sandbox worker of this process, as the system does when memory is short."""
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            pid, _, rest = status.read_text().partition(" ")
            name, _, numbers = rest.rpartition(")")
            if "monty" in name and int(numbers.split()[1]) == os.getpid():
                os.kill(int(pid), signal.SIGKILL)


async def run_limited(interpreter: Interpreter, code: str, *, seconds: float) -> CellState:
    """Run one cell with a time limit of its own; cells before and after it keep the sandbox's."""
    limits = interpreter.sandbox.limits
    usual = limits["max_feed_duration_secs"]
    limits["max_feed_duration_secs"] = seconds
    state = await interpreter.start(code)
    limits["max_feed_duration_secs"] = usual
    return state


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("open('/etc/passwd').read()", "PermissionError"),
        ("open('/tmp/x', 'w').write('x')", "PermissionError"),
        ("from pathlib import Path\nPath('/etc').iterdir()", "Error"),
        ("import os\nprint(os.environ)", "not supported"),
        ("import os\nprint(os.getenv('HOME'))", "Error"),
        ("import os\nos.system('id')", "Error"),
        ("import socket", "ModuleNotFoundError"),
        ("import subprocess", "ModuleNotFoundError"),
        ("import urllib.request", "ModuleNotFoundError"),
        ("import ramet", "ModuleNotFoundError"),
        ("__import__('os')", "NameError"),
        ("().__class__.__bases__[0].__subclasses__()", "Error"),
        ("input()", "NameError"),
        ("def f(n): return f(n + 1)\nf(0)", "RecursionError"),
        ("x = [0] * 10**9", "MemoryError"),
        ("x = []\nwhile True: x.append('y' * 10**6)", "MemoryError"),
        ("2 ** 10**9", "MemoryError"),
        ("while True: pass", "TimeoutError"),
        ("try:\n    while True: pass\nexcept BaseException: pass\nwhile True: pass", "TimeoutError"),
        ("'(' * 10 + eval('(' * 100000)", "Error"),
    ],
)
async def test_a_forbidden_action_becomes_error_text(code: str, error: str):
    async with Sandbox(workers=1, seconds=60, memory_mb=32) as sandbox:
        interpreter = sandbox.interpreter({}, output_bytes=2000)
        await interpreter.start("pass")
        state = await run_limited(interpreter, code, seconds=0.2 if error == "TimeoutError" else 60)
        assert error in (state.error or "")
        after = await interpreter.start("print('alive')")
        assert (after.error, interpreter.printed.text) == (None, "alive\n")


async def test_megabytes_of_output_are_cut_and_counted():
    async with Sandbox(workers=1) as sandbox:
        interpreter = sandbox.interpreter({}, output_bytes=1000)
        state = await interpreter.start("for i in range(3000): print('x' * 999)")
        assert state.error is None
        assert len(interpreter.printed.text) < 1100
        assert "3,000,000 characters in all" in interpreter.printed.text


async def test_non_ascii_passes_both_ways():
    async with Sandbox(workers=1) as sandbox:
        interpreter = sandbox.interpreter({"finish": lambda value: value}, inputs={"context": "åß∂ 漢字 🌱"})
        state = await interpreter.start("print(context[-1])\nfinish(context + 'é')")
        assert (interpreter.printed.text, state.value) == ("🌱\n", "åß∂ 漢字 🌱é")


async def test_a_crashed_worker_becomes_text_and_the_next_cell_has_the_state_from_before():
    async with Sandbox(workers=1) as sandbox:
        interpreter = sandbox.interpreter({"crash": kill_workers})
        await interpreter.start("x = 1")
        state = await interpreter.start("x = 2\ncrash()\nx = 3")
        assert "the cell's process died" in (state.error or "")
        await interpreter.start("print(x)")
        assert interpreter.printed.text == "1\n"


async def test_a_cell_stopped_by_its_limits_keeps_the_variables_of_earlier_cells():
    async with Sandbox(workers=1, seconds=60) as sandbox:
        interpreter = sandbox.interpreter({})
        await interpreter.start("x = 1")
        state = await run_limited(interpreter, "x = 2\nwhile True: pass", seconds=0.2)
        assert "variables of this cell are lost" in (state.error or "")
        await interpreter.start("print(x)")
        assert interpreter.printed.text == "1\n"


async def test_a_cell_that_raises_keeps_what_it_assigned():
    async with Sandbox(workers=1) as sandbox:
        interpreter = sandbox.interpreter({})
        await interpreter.start("x = 1\nraise ValueError('stop')")
        await interpreter.start("print(x)")
        assert interpreter.printed.text == "1\n"


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_64_parallel_children_see_only_their_own_output_and_variables(anyio_backend: str):
    """Each prints tagged lines, assigns the same names, waits, and reads them back."""

    def script(prompt: Prompt) -> str:
        if prompt.depth == 0:
            return cell(gather([str(i) for i in range(64)]), "finish(parts)")
        tag = prompt.goal
        if prompt.turn == 0:
            return cell(
                f"mine = ['{tag}'] * 20", "for line in mine: print('line', line)", "import time", "time.sleep(0.01)"
            )
        return cell("finish([len(mine), mine[0], mine[-1]])")

    engine = ramet.ScriptedEngine(script)
    budget = ramet.Budget(tokens=200_000, nodes=65, depth=1, children=64, reserve=20)
    async with Sandbox(workers=4, seconds=60) as sandbox:
        tree = await ramet.run("root", engine=engine, budget=budget, dialect=ramet.PythonDialect(sandbox))
    assert tree.root.value == [[20, str(i), str(i)] for i in range(64)]
    for child in tree.nodes[1:]:
        shown = child.pieces[2].text.split("[cell 1]\n")[1].split("<|im_end|>")[0]
        assert shown.splitlines() == [f"line {child.goal}"] * 20


async def test_cells_stopped_by_their_limits_do_not_affect_those_of_siblings():
    def script(prompt: Prompt) -> str:
        if prompt.depth == 0:
            return cell(gather(["spin", "ok", "bomb", "ok"]), "finish(parts)")
        if prompt.goal == "ok":
            return cell("finish('fine')")
        endless = {"spin": "while True: pass", "bomb": "x = [0] * 10**9"}
        return cell(endless[prompt.goal] if prompt.turn == 0 else "finish('recovered')")

    engine = ramet.ScriptedEngine(script)
    async with Sandbox(workers=2, seconds=0.3) as sandbox:
        tree = await ramet.run(
            "root", engine=engine, budget=ramet.Budget(depth=1), dialect=ramet.PythonDialect(sandbox)
        )
    assert tree.root.value == ["recovered", "fine", "recovered", "fine"]


async def test_a_cell_that_calls_functions_endlessly_is_stopped():
    async with Sandbox(workers=1, calls=50) as sandbox:
        interpreter = sandbox.interpreter({"ping": lambda: 1})
        state = await interpreter.start("while True: ping()")
        assert state.error is not None
