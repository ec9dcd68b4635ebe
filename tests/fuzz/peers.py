# pyright: basic, reportMissingImports=false
"""The same hostile outputs of a model in ramet and in other frameworks, one process for each.

    python -m tests.fuzz.peers --python PYTHON     of an environment with rlms, smolagents and openai-agents

A scripted model writes one hostile output and then answers. What counts is what becomes of the program around it: it
gets the answer, it gets an exception, it is still running after 90 seconds, it has ended, or model code got at the
host. Every program may use 4 GiB. All frameworks run as they come: rlms with its local REPL, which its documentation
calls not isolated, and smolagents with its local executor, which its documentation calls no security boundary.
"""

# ruff: noqa: T201

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

MEMORY = 4 * 2**30
SECONDS = 90
MUCH_MB = 500  # more than any of these programs takes by itself
ANSWER = "forty-two"

# Code, for frameworks whose models write Python. `{file}` is a path on the host; `{out}` takes the value out.
CELLS = {
    "loops forever": "while True:\n    pass",
    "ends the process": "import os\nos._exit(3)",
    "writes a file on the host": "open({file!r}, 'w').write('x')",
    "4 GB text": "x = 'a' * 4_000_000_000",
    "a list of 10^9 shared items": "x = [1]\nfor i in range(9):\n    x = [x] * 10\n{out}(str(x))",
    "prints 100 MB": "for i in range(100):\n    print('x' * 1_000_000)",
    "endless recursion": "def f(n):\n    return f(n + 1) + 1\nf(0)",
    "10^10^7": "x = 10 ** 10_000_000\nprint(x)",
    "raises SystemExit": "raise SystemExit(1)",
    "half a character": "print('\\ud800')",
}
# Arguments of the tool `look`, as JSON text, for frameworks whose models write tool calls.
CALLS = {
    "arguments are not JSON": '{"query": ',
    "arguments are a list": "[1, 2]",
    "a number where a text belongs": '{"query": 5}',
    "no arguments": "{}",
    "an unknown argument": '{"question": "x"}',
    "half a character": '{"query": "\\ud800"}',
    "5,000 digits": '{"query": ' + "9" * 5000 + "}",
    "nested 2,000 deep": '{"query": ' + "[" * 2000 + "]" * 2000 + "}",
    "makes the tool raise": '{"query": "boom"}',
    "a tool that does not exist": "UNKNOWN",
}


def look(query: str) -> str:
    """Look something up.

    Args:
        query: what to look up
    """
    if "boom" in query:
        raise RuntimeError("the shelf fell over")
    return query.upper()


# Each runs in a process of its own and returns what the caller of the framework gets.


def ramet_python(cell: str) -> Any:
    return _ramet("python", f"```python\n{cell}\n```", f"```python\nfinish({ANSWER!r})\n```")


def ramet_tools(arguments: str) -> Any:
    name = "nothing" if arguments == "UNKNOWN" else "look"
    given = "{}" if arguments == "UNKNOWN" else arguments
    call = f'<tool_call>{{"name": "{name}", "arguments": {given}}}</tool_call>'
    return _ramet("tools", call, f"Answer: {ANSWER}")


def _ramet(dialect: str, hostile: str, answer: str) -> Any:
    import anyio

    import ramet

    class Shelf:
        context: dict[str, str] = {}  # noqa: RUF012
        functions = {"look": look}  # noqa: RUF012

    said = [hostile]
    engine = ramet.ScriptedEngine(lambda _: said.pop() if said else answer)
    budget = ramet.Budget(tokens=200_000, nodes=4, depth=1)
    tree = anyio.run(lambda: ramet.run("q", engine=engine, budget=budget, dialect=dialect, world=Shelf()))
    return tree.root.answer


def rlms(cell: str) -> Any:
    from unittest import mock

    import rlm.core.rlm as core
    from rlm.clients.base_lm import BaseLM
    from rlm.core.types import ModelUsageSummary, UsageSummary

    said = [f"```repl\n{cell}\n```"]
    final = f'```repl\nanswer["content"] = {ANSWER!r}\nanswer["ready"] = True\n```'

    class Client(BaseLM):
        acompletion: Any = None
        get_last_usage: Any = None

        def completion(self, prompt: Any) -> str:
            return said.pop() if said else final

        def get_usage_summary(self) -> UsageSummary:
            return UsageSummary({"m": ModelUsageSummary(1, 0, 0)})

    root = core.RLM(backend_kwargs={"model_name": "m"}, max_depth=1, max_iterations=4)
    with mock.patch.object(core, "get_client", lambda _, given: Client(**given)):
        return root.completion("q").response


def smolagents_code(cell: str) -> Any:
    from smolagents import CodeAgent, LogLevel, models

    said = [f"Thought\n<code>\n{cell}\n</code>"]

    class Scripted(models.Model):
        def generate(self, messages: list[Any], *_: Any, **__: Any) -> Any:
            text = said.pop() if said else f"<code>\nfinal_answer({ANSWER!r})\n</code>"
            return models.ChatMessage(models.MessageRole.ASSISTANT, text)

    return CodeAgent(tools=[], model=Scripted(), max_steps=4, verbosity_level=LogLevel.OFF).run("q")


def smolagents_tools(arguments: str) -> Any:
    from smolagents import LogLevel, ToolCallingAgent, models, tool

    said = [("nothing" if arguments == "UNKNOWN" else "look", "{}" if arguments == "UNKNOWN" else arguments)]

    class Scripted(models.Model):
        def generate(self, messages: list[Any], *_: Any, **__: Any) -> Any:
            name, given = said.pop() if said else ("final_answer", json.dumps({"answer": ANSWER}))
            function = models.ChatMessageToolCallFunction(given, name)
            call = models.ChatMessageToolCall(function, "c", "function")
            return models.ChatMessage(models.MessageRole.ASSISTANT, "", [call])

    agent = ToolCallingAgent(tools=[tool(look)], model=Scripted(), max_steps=4, verbosity_level=LogLevel.OFF)
    return agent.run("q")


def openai_agents(arguments: str) -> Any:
    import asyncio

    from agents import Agent, Model, ModelResponse, RunConfig, Runner, Usage, function_tool, set_tracing_disabled
    from openai.types import responses

    set_tracing_disabled(True)
    name, given = ("nothing", "{}") if arguments == "UNKNOWN" else ("look", arguments)
    call = responses.ResponseFunctionToolCall(name=name, arguments=given, type="function_call", call_id="c")
    text = responses.ResponseOutputText(text=ANSWER, type="output_text", annotations=[])
    fields: Any = {"id": "m", "role": "assistant", "status": "completed", "type": "message"}
    said: list[Any] = [call]

    class Scripted(Model):
        stream_response: Any = None

        async def get_response(self, *_: Any, **__: Any) -> Any:
            item = said.pop() if said else responses.ResponseOutputMessage(content=[text], **fields)
            return ModelResponse([item], Usage(), None)

    agent = Agent(name="root", model=Scripted(), tools=[function_tool(look)])
    return asyncio.run(Runner.run(agent, "q", run_config=RunConfig(tracing_disabled=True))).final_output


SYSTEMS: dict[str, tuple[Callable[[str], Any], str, dict[str, str]]] = {
    "ramet, python": (ramet_python, "finish", CELLS),
    "rlms": (rlms, "print", CELLS),
    "smolagents, code": (smolagents_code, "final_answer", CELLS),
    "ramet, tools": (ramet_tools, "", CALLS),
    "smolagents, tools": (smolagents_tools, "", CALLS),
    "openai-agents": (openai_agents, "", CALLS),
}


def attack(system: str, name: str, file: str) -> None:
    """In the process of one attack: print what the caller of the framework gets, as the last line."""
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    run, out, attacks = SYSTEMS[system]
    text = attacks[name].replace("{out}", out).replace("{file!r}", repr(file))
    try:
        answer = str(run(text))
    except Exception as error:  # noqa: BLE001  whatever a framework raises is the result
        answer = f"raises {type(error).__name__}"
    else:
        answer = "answers" if answer == ANSWER else f"answers {answer[:60]!r}"
    sys.stdout = sys.__stdout__  # some leave it replaced
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    answer += f", with {peak:,.0f} MB" if peak > MUCH_MB else ""
    print(f"\n::{json.dumps(answer)}", flush=True)


def outcome(python: str, system: str, name: str, folder: Path) -> str:
    """What became of the program around one hostile output."""
    file = folder / "written.txt"
    file.unlink(missing_ok=True)
    command = [python, "-m", "tests.fuzz.peers", "--attack", system, name, str(file)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(["src", "."])}
    try:
        done = subprocess.run(command, capture_output=True, timeout=SECONDS, env=env, check=False)
    except subprocess.TimeoutExpired:
        return f"still running after {SECONDS} s"
    said = done.stdout.decode(errors="replace")
    if file.exists():
        return "the file was written"
    if "\n::" not in said:
        return f"the process ended with {done.returncode}"
    return json.loads(said.rpartition("\n::")[2])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.peers", description="hostile outputs in other systems")
    parser.add_argument("--python", default=sys.executable, help="of an environment with the other systems")
    parser.add_argument("--attack", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.attack:
        attack(*given.attack)
        return
    with tempfile.TemporaryDirectory() as folder:
        for system, (_, _, attacks) in SYSTEMS.items():
            python = sys.executable if system.startswith("ramet") else given.python
            for name in attacks:
                print(f"{system:18} {name:32} {outcome(python, system, name, Path(folder))}", flush=True)


if __name__ == "__main__":
    main()
