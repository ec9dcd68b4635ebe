"""Tasksets of `verifiers.v1` (verifiers 0.2 and later), in the process of verifiers: tasks with rewards and toolsets.

The tools of toolsets are functions of the world. They are called in this process, not over HTTP as verifiers does for
agents in other processes; the state that they share with the rewards is that of one session.
"""

# verifiers is an extra.
# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportMissingTypeStubs=false, reportAttributeAccessIssue=false
# pyright: reportPrivateUsage=false

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from itertools import islice
from typing import Any

from ramet.errors import ConfigError, ModelFault
from ramet.inputs.tools import result_text
from ramet.tasks.peers.rows import Tool

MOST_ROWS = 100_000  # of a taskset that never ends


class TasksetRows:
    """A taskset of `verifiers.v1`, whose tasks have rewards."""

    def __init__(self, module: Any, place: str, config: Mapping[str, Any]) -> None:
        from verifiers.v1 import Taskset
        from verifiers.v1.configs.taskset import TasksetConfig
        from verifiers.v1.utils.generic import concrete_type

        found = [value for value in vars(module).values() if isinstance(value, type) and issubclass(value, Taskset)]
        found = [kind for kind in found if kind is not Taskset and kind.__module__ == module.__name__]
        if len(found) != 1:
            raise ConfigError(f"verifiers: {place} has {len(found)} tasksets, and no load_environment: it needs one")
        config_type = concrete_type(found[0], TasksetConfig, origin=Taskset) or TasksetConfig
        self.place = place
        self.taskset = found[0](config_type(**config))
        self.tasks = list(islice(iter(self.taskset), MOST_ROWS))

    def sizes(self) -> dict[str, int]:
        return {"all": len(self.tasks)}

    def row(self, split: str, index: int) -> tuple[str, str | None]:
        del split
        task = self.tasks[index]
        if task.NEEDS_CONTAINER:
            raise ConfigError(f"verifiers: the tasks of {self.place} need a container, which ramet does not start")
        data = task.data
        question = "\n\n".join(filter(None, [data.system_prompt, data.prompt_text]))
        answer = getattr(data, "answer", None)
        return question, None if answer is None else str(answer)

    async def tools(self, split: str, index: int) -> list[Tool]:
        return await self.session(split, index).tools()

    def answers(self, answer: str) -> list[str]:
        return [answer, f"\\boxed{{{answer}}}"]

    def session(self, split: str, index: int) -> TasksetSession:
        del split
        task = self.tasks[index]
        shared = type(self.taskset).toolsets(self.taskset.config)
        return TasksetSession(task, [*type(task).toolsets(task.config), *shared], self.place)


class TasksetSession:
    """One rollout of a task: its toolsets with their state, and the messages of its trace."""

    def __init__(self, task: Any, toolsets: list[Any], place: str) -> None:
        from verifiers.v1 import AgentConfig, AgentInfo, MessageNode, Trace, TraceTask, UserMessage
        from verifiers.v1.state import state_cls

        self.task, self.toolsets, self.place = task, toolsets, place
        self.trace = Trace(
            task=TraceTask(type=type(task).__name__, data=task.data),
            agent=AgentInfo(config=AgentConfig()),
            nodes=[MessageNode(message=UserMessage(content=task.data.prompt_text))],
            state=state_cls(type(task))(),
        )
        self._servers: dict[str, tuple[Any, str]] = {}  # by the name that the model uses: the server, and its name

    async def start(self) -> None:
        for toolset in self.toolsets:
            await toolset.setup()
            await toolset.setup_task(self.task.data)
        await self.tools()
        try:
            await self.task.setup(self.trace, None)
        except AttributeError as error:
            raise ModelFault(f"the task's setup needs a runtime, which ramet does not start ({error})") from None

    async def tools(self) -> list[Tool]:
        """The tools of all toolsets, with the name of their toolset before them as verifiers has it."""
        from mcp.server.mcpserver import MCPServer

        found: list[Tool] = []
        for toolset in self.toolsets:
            _share_state(toolset, self.trace)
            server = MCPServer(toolset.server_name or type(toolset).__name__)
            toolset.register(server)
            prefix = f"{toolset.server_name}_" if toolset.server_name else ""
            for tool in await server.list_tools():
                name = f"{prefix}{tool.name}"
                self._servers[name] = server, tool.name
                found.append({"name": name, "about": tool.description or "", "schema": dict(tool.input_schema)})
        return found

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        from verifiers.v1 import AssistantMessage, ToolMessage
        from verifiers.v1.types import ToolCall

        server, own_name = self._servers[name]
        call = ToolCall(id=f"call_{uuid.uuid4().hex[:12]}", name=name, arguments=json.dumps(dict(arguments)))
        text = await _result(server, own_name, arguments)
        self._add(AssistantMessage(content="", tool_calls=[call]), sampled=True)
        self._add(ToolMessage(tool_call_id=call.id, content=text, name=name))
        return text

    def _add(self, message: Any, *, sampled: bool = False) -> None:
        from verifiers.v1 import MessageNode

        self.trace.nodes.append(MessageNode(message=message, parent=len(self.trace.nodes) - 1, sampled=sampled))

    async def reward(self, answer: str) -> float:
        from verifiers.v1 import AssistantMessage

        trace = self.trace
        self._add(AssistantMessage(content=answer), sampled=True)
        trace.root_reply, trace.is_completed, trace.ok = answer, True, True
        await self.task.score(trace)
        await self.end()
        if not any(reward is not None for reward in trace.rewards.values()):
            raise ConfigError(f"verifiers: {self.place} has no reward that can be computed without a runtime")
        return float(trace.reward)

    async def end(self) -> None:
        for toolset in self.toolsets:
            await toolset._exit_stack.aclose()


def _share_state(toolset: Any, trace: Any) -> None:
    """Give the tools the state of this trace. Over HTTP they would fetch it before each call and send it back."""

    async def pull() -> Any:
        return trace.state

    async def push(before: bytes) -> None:
        del before

    toolset._pull_state, toolset._push_state = pull, push


async def _result(server: Any, name: str, arguments: Mapping[str, Any]) -> str:
    """The text of a tool's result, or of its error."""
    from mcp.server.mcpserver.exceptions import ToolError

    try:
        found = await server.call_tool(name, dict(arguments))
    except ToolError as error:
        return f"error: {error}"
    content = getattr(found, "content", found)
    return result_text(content, getattr(found, "structured_content", None))
