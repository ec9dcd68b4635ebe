# pyright: basic, reportMissingImports=false
"""The same scripted agent tree in four other frameworks, to compare overhead per agent node.

Every node above the last level takes two model turns (delegate to `fanout` children, then add
up their answers); a node of the last level takes one turn and answers "1". The model is a
script and takes no time, so only the framework is measured.
"""

import argparse
import asyncio
import contextlib
import importlib.metadata
import json
import operator
import pathlib
import re
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Annotated, Any, TypedDict
from unittest import mock

Run = Callable[[], str]
TASK = "sum the leaves"
# The most turns a node takes: a third would be a framework's retry after a failed child.
TURN_LIMIT = 2
# Printed with the results of a peer that is not measured exactly as shipped.
NOTES = {"rlms": {"note": "the REPL's chdir is disabled: it races between parallel children"}}


class Script:
    """The scripted model of one tree: decides every turn and counts the calls."""

    def __init__(self, fanout: int, depth: int) -> None:
        self.fanout, self.depth, self.calls = fanout, depth, 0
        inner = sum(fanout**level for level in range(depth))
        self.nodes = inner + fanout**depth
        self.expected_calls = self.nodes + inner
        self.lock = threading.Lock()

    def turn(self, level: int, replies: Iterable[Any] = ()) -> str | None:
        """Count one model turn and return its answer, or None to delegate."""
        with self.lock:  # some peers call the model from threads
            self.calls += 1
        if level == self.depth:
            return "1"
        received = [int(reply) for reply in replies]
        return str(sum(received)) if received else None

    def check(self, answer: str) -> None:
        """Raise if the run did not do the whole tree."""
        wanted = str(self.fanout**self.depth)
        if self.calls != self.expected_calls or answer != wanted:
            raise RuntimeError(
                f"unequal work: {self.calls} model calls (expected {self.expected_calls}), "
                f"root answer {answer[:80]!r} (expected {wanted!r})"
            )


def _rlms_code(script: Script, level: int, prompt: Any) -> str:
    """Return the code block a node of this level answers its prompt with."""
    answer = script.turn(level)
    if answer is None and any(message["role"] == "assistant" for message in prompt):
        # Read the REPL variable, as the framework intends: printed output may end up in a
        # sibling's buffer, because every REPL thread swaps the same sys.stdout.
        answer = "sum(map(int, replies))"
    if answer is None:
        tasks = f'["{TASK}"] * {script.fanout}'
        return f'```repl\nreplies = rlm_query_batched({tasks}, model="{level + 1}")\n```'
    return f'```repl\nanswer["content"] = str({answer})\nanswer["ready"] = True\n```'


def _rlms_client_class(script: Script) -> type:
    """Define the scripted client; the model name carries the level of the node."""
    from rlm.clients.base_lm import BaseLM
    from rlm.core.types import ModelUsageSummary, UsageSummary

    class ScriptedClient(BaseLM):
        # Abstract, but only used by bare model calls.
        acompletion: Any = None
        get_last_usage: Any = None

        def completion(self, prompt: Any) -> str:
            return _rlms_code(script, int(self.model_name), prompt)

        def get_usage_summary(self) -> UsageSummary:
            return UsageSummary({self.model_name: ModelUsageSummary(1, 0, 0)})

    return ScriptedClient


@contextlib.contextmanager
def _rlms_thread_safe() -> Iterator[None]:
    """Keep parallel REPLs from breaking each other, and this process, while a tree runs."""
    from rlm.environments.local_repl import LocalREPL

    streams = sys.stdout, sys.stderr
    # Each REPL changes the working directory of the whole process to its own folder and back,
    # so as shipped a parallel child sometimes runs in a folder that its sibling has removed,
    # and fails. Without this patch the peer could only be measured one child at a time.
    with mock.patch.object(LocalREPL, "_temp_cwd", contextlib.nullcontext):
        try:
            yield
        finally:
            sys.stdout, sys.stderr = streams  # the threads may leave them swapped


def _prepare_rlms(script: Script) -> Run:
    """Build the root RLM, which creates the child RLMs itself, each with its own REPL."""
    import rlm.core.rlm as core

    client_class = _rlms_client_class(script)
    root = core.RLM(
        backend_kwargs={"model_name": "0"},
        # One more than the tree: at the limit a child is a bare model call, not an agent.
        max_depth=script.depth + 1,
        max_iterations=TURN_LIMIT,
        max_concurrent_subcalls=script.fanout,
    )

    def run() -> str:
        scripted = mock.patch.object(core, "get_client", lambda _, given: client_class(**given))
        with _rlms_thread_safe(), scripted:
            return root.completion(TASK).response

    return run


def _agents_output(script: Script, answer: str | None) -> list[Any]:
    """Return the output items of one turn: parallel tool calls, or the answer."""
    from openai.types import responses

    if answer is not None:
        text = responses.ResponseOutputText(text=answer, type="output_text", annotations=[])
        given: Any = {"id": "m", "role": "assistant", "status": "completed", "type": "message"}
        return [responses.ResponseOutputMessage(content=[text], **given)]
    given = {"name": "child", "arguments": json.dumps({"input": TASK}), "type": "function_call"}
    calls = [f"call_{script.calls}_{number}" for number in range(script.fanout)]
    return [responses.ResponseFunctionToolCall(call_id=call, **given) for call in calls]


def _agents_model(script: Script, level: int) -> Any:
    """Make the scripted model of one level."""
    from agents import Model, ModelResponse, Usage

    class ScriptedModel(Model):
        stream_response: Any = None  # abstract, but nothing here streams

        async def get_response(self, *_: Any, input: Any, **__: Any) -> Any:
            items = input if isinstance(input, list) else []
            replies = [i["output"] for i in items if i.get("type") == "function_call_output"]
            answer = script.turn(level, replies)
            return ModelResponse(_agents_output(script, answer), Usage(), None)

    return ScriptedModel()


def _prepare_openai_agents(script: Script) -> Run:
    """Build one agent per level with the next as a tool (agents hold no run state)."""
    from agents import Agent, AgentsException, RunConfig, Runner, set_tracing_disabled

    set_tracing_disabled(True)
    tools: list[Any] = []
    agent: Any = None
    for level in range(script.depth, -1, -1):
        agent = Agent(name=f"level {level}", model=_agents_model(script, level), tools=tools)
        # Errors are raised, not passed to the model: a failed child must end the run.
        tools = [agent.as_tool("child", "Sums the leaves.", failure_error_function=None)]

    def run() -> str:
        config = RunConfig(tracing_disabled=True)
        try:
            return asyncio.run(Runner.run(agent, TASK, run_config=config)).final_output
        except AgentsException as error:
            raise RuntimeError(str(error)) from error

    return run


class _NodeState(TypedDict):
    """The state of one langgraph node."""

    task: str
    replies: Annotated[list[str], operator.add]
    answer: str | None


def _langgraph_level(script: Script, level: int, child: Any) -> Any:
    """Compile the graph of one level: model -> children -> model -> end."""
    from langgraph.graph import END, START, StateGraph

    async def model(state: _NodeState) -> dict[str, Any]:
        return {"answer": script.turn(level, state["replies"])}

    # The cheapest idiomatic form: a node function that invokes the child's compiled graph.
    # Send and ToolNode do the same with a task, and with message objects, per child on top.
    async def children(state: _NodeState) -> dict[str, Any]:
        given = {"task": state["task"], "replies": []}
        results = await asyncio.gather(*(child.ainvoke(given) for _ in range(script.fanout)))
        return {"replies": [result["answer"] for result in results]}

    def route(state: _NodeState) -> str:
        return "children" if state["answer"] is None else END

    graph = StateGraph(_NodeState).add_node("model", model).add_node("children", children)
    graph.add_edge(START, "model").add_edge("children", "model")
    return graph.add_conditional_edges("model", route, ["children", END]).compile()


def _prepare_langgraph(script: Script) -> Run:
    """Compile one graph per level (compiled graphs hold no run state)."""
    graph: Any = None
    for level in range(script.depth, -1, -1):
        graph = _langgraph_level(script, level, graph)
    return lambda: asyncio.run(graph.ainvoke({"task": TASK, "replies": []}))["answer"]


def _smolagents_replies(messages: Iterable[Any]) -> list[str]:
    """Read the children's answers from the tool responses: the lines that are a number."""
    responses = [message for message in messages if message.role == "tool-response"]
    texts = [part["text"] for message in responses for part in message.content]
    return [line for text in texts for line in re.findall(r"^\d+$", text, re.MULTILINE)]


def _smolagents_model(script: Script, level: int) -> Any:
    """Make the scripted model of one level."""
    from smolagents import models

    def call(name: str, arguments: dict[str, str]) -> Any:
        function = models.ChatMessageToolCallFunction(arguments, name)
        return models.ChatMessageToolCall(function, name, "function")

    class ScriptedModel(models.Model):
        def generate(self, messages: list[Any], *_: Any, **__: Any) -> Any:
            answer = script.turn(level, _smolagents_replies(messages))
            names = [f"child_{level + 1}_{number}" for number in range(script.fanout)]
            calls = [call(name, {"task": TASK}) for name in names]
            if answer is not None:
                calls = [call("final_answer", {"answer": answer})]
            return models.ChatMessage(models.MessageRole.ASSISTANT, "", calls)

    return ScriptedModel()


def _prepare_smolagents(script: Script) -> Run:
    """Build one agent per node: an agent keeps its run's memory, so siblings cannot share one."""
    from smolagents import LogLevel, ToolCallingAgent

    models = [_smolagents_model(script, level) for level in range(script.depth + 1)]
    # Parsed once and shared, as in a program that builds many agents.
    templates = ToolCallingAgent([], models[0]).prompt_templates

    def build(level: int, number: int) -> Any:
        below = range(script.fanout if level < script.depth else 0)
        return ToolCallingAgent(
            tools=[],
            model=models[level],
            prompt_templates=templates,
            managed_agents=[build(level + 1, child) for child in below],
            max_steps=TURN_LIMIT,
            verbosity_level=LogLevel.OFF,
            name=f"child_{level}_{number}",
            description="Sums the leaves.",
        )

    root = build(0, 0)
    return lambda: str(root.run(TASK))


PREPARE: dict[str, Callable[[Script], Run]] = {
    "rlms": _prepare_rlms,
    "openai-agents": _prepare_openai_agents,
    "langgraph": _prepare_langgraph,
    "smolagents": _prepare_smolagents,
}


def _run_checked(script: Script, run: Run) -> tuple[float, float]:
    """Run a prepared tree once, check that all work was done; return its wall and CPU time."""
    script.calls = 0
    wall, cpu = time.perf_counter(), time.process_time()
    answer = run()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    script.check(answer)
    return wall, cpu


def _run_tree(name: str, fanout: int, depth: int) -> None:
    """Build one tree and run it once."""
    script = Script(fanout, depth)
    _run_checked(script, PREPARE[name](script))


PEERS: dict[str, Callable[[int, int], None]] = {n: partial(_run_tree, n) for n in PREPARE}


def _peak_mb() -> float:
    """Return the peak memory of this process in MiB; `getrusage` would include its parent's."""
    status = pathlib.Path("/proc/self/status")
    if status.exists():
        return int(status.read_text().partition("VmHWM:")[2].split()[0]) / 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20


def measure(name: str, fanout: int, depth: int, repeat: int) -> dict[str, Any]:
    """Measure one peer after a small warm-up and return its line of results."""
    PEERS[name](2, 1)
    # Before building, so that frameworks with one agent object per node are charged for it.
    before = _peak_mb()
    script, started = Script(fanout, depth), time.perf_counter()
    run = PREPARE[name](script)
    built = time.perf_counter() - started
    seconds, cpu_seconds = min(_run_checked(script, run) for _ in range(repeat))
    return {
        "name": name,
        "version": importlib.metadata.version(name),
        "nodes": script.nodes,
        "model_calls": script.calls,
        "seconds": round(seconds, 6),
        "us_per_node": round(seconds / script.nodes * 1e6, 1),
        "cpu_us_per_node": round(cpu_seconds / script.nodes * 1e6, 1),
        "build_seconds": round(built, 6),
        "peak_mb": round(_peak_mb() - before, 2),
        # All four run the children of a node in parallel: two with asyncio, two with threads.
        "parallel": True,
    } | NOTES.get(name, {})


def main() -> int:
    """Print one JSON line; exit 3: the peer is not installed, 4: it cannot do this size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=PEERS)
    for option, default in (("--fanout", 4), ("--depth", 3), ("--repeat", 3)):
        parser.add_argument(option, type=int, default=default)
    args = parser.parse_args()
    if args.fanout < 1 or args.depth < 0 or args.repeat < 1:
        parser.error("fanout and repeat must be at least 1, depth at least 0")
    try:
        code, line = 0, measure(args.name, args.fanout, args.depth, args.repeat)
    except ImportError:
        code, line = 3, {"name": args.name, "error": "not installed"}
    except (RuntimeError, OSError, MemoryError) as error:
        code, line = 4, {"name": args.name, "error": f"{type(error).__name__}: {error}"}
    sys.stdout.write(json.dumps(line) + "\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
