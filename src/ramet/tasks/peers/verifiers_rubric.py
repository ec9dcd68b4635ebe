"""Environments of verifiers 0.1, in the process of verifiers: a data set, a rubric, and what the model may do.

SingleTurnEnv              the answer is the completion
ToolEnv, StatefulToolEnv   its tools are functions of the world
other MultiTurnEnv         one function, `send`: a message to the environment, which returns its reply
EnvGroup                   the environment that each row names
"""

# verifiers is an extra.
# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportMissingTypeStubs=false, reportAttributeAccessIssue=false

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from functools import partial, wraps
from inspect import isawaitable, iscoroutinefunction
from typing import Any

from ramet.errors import ConfigError, ModelFault
from ramet.inputs.threads import Threads
from ramet.tasks.peers.rows import Tool, content_text, prompt_text

SEND: Tool = {
    "name": "send",
    "about": "Send a message to the environment of this task, and get its reply.",
    "schema": {"type": "object", "properties": {"message": {"type": "string"}}, "required": ["message"]},
}
OVER = "(The environment has ended: it takes no more messages.)"


class RubricRows:
    """An environment with a data set and a rubric."""

    def __init__(self, env: Any, place: str) -> None:
        self.env, self.threads = env, Threads()
        # Without an own data set for it, evaluation has the rows of training.
        self.data = {"train": _dataset(env, "dataset"), "eval": _dataset(env, "eval_dataset")}
        self.data = {split: rows for split, rows in self.data.items() if rows is not None}
        if not self.data:
            raise ConfigError(f"verifiers: {place} has no data set")

    def sizes(self) -> dict[str, int]:
        return {split: len(rows) for split, rows in self.data.items()}

    def row(self, split: str, index: int) -> tuple[str, str | None]:
        row = self.data[split][index]
        answer = row.get("answer")
        return prompt_text(row["prompt"]), str(answer) if answer not in (None, "") else None

    async def tools(self, split: str, index: int) -> list[Tool]:
        row = self._input(split, index)
        env = _env_of(self.env, row)
        if _is_tool_env(env):
            return [_tool(definition) for definition in _tool_definitions(env, row)]
        return [SEND] if _has_turns(env) else []

    def answers(self, answer: str) -> list[str]:
        ways = [answer, f"\\boxed{{{answer}}}"]
        field = getattr(getattr(self.env, "parser", None), "answer_field", None)  # of a parser of XML tags
        return [*ways, f"<{field}>{answer}</{field}>"] if field else ways

    def session(self, split: str, index: int) -> RubricSession:
        row = self._input(split, index)
        env = _env_of(self.env, row)
        if _is_tool_env(env):
            _run_in_threads(env.tool_map, self.threads)
        return RubricSession(env, row)

    def _input(self, split: str, index: int) -> dict[str, Any]:
        row = dict(self.data[split][index])
        row["info"] = json.loads(row["info"]) if isinstance(row.get("info"), str) else row.get("info") or {}
        return row


class RubricSession:
    """One rollout: the calls of all nodes of a tree, in the order in which they ended, then the answer.

    The rubric sees the conversation that it would have seen of one agent: a message with a tool call, the result of the
    tool, and so on; the answer of the root is the last message.
    """

    def __init__(self, env: Any, row: dict[str, Any]) -> None:
        self.env, self.row = env, row
        self.state: Any = _new_state(env, row)
        self.messages: list[Any] = list(self.state["prompt"]) if isinstance(self.state["prompt"], list) else []
        self.over = False

    async def start(self) -> None:
        if hasattr(self.env, "setup_state"):
            changed = self.env.setup_state(self.state)
            changed = await changed if isawaitable(changed) else changed
            self.state = self.state if changed is None else changed  # earlier versions return it

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        if _is_tool_env(self.env):
            return await self._call_tool(name, arguments)
        return await self._send(str(arguments["message"]))

    async def _call_tool(self, name: str, arguments: Mapping[str, Any]) -> str:
        call = {"id": f"call_{uuid.uuid4().hex[:12]}", "name": name, "arguments": json.dumps(dict(arguments))}
        said = _normalized([_calling(call)])
        found = _normalized(await self._response([*self.messages, *said]))
        self._record(said, found)
        return "\n".join(content_text(_field(message, "content")) for message in found)

    async def _send(self, text: str) -> str:
        if self.over:
            return OVER
        said = _normalized([{"role": "assistant", "content": text}])
        self._record(said, [])
        found: list[Any] = []
        self.over = await self._is_completed()
        if not self.over:
            found = _normalized(await self._response(self.messages))
            self.over = await self._is_completed()
        final = self.state.get("final_env_response")
        found = _normalized(final) if self.over and final is not None else found
        self.messages += found
        reply = "\n".join(content_text(_field(message, "content")) for message in found)
        return f"{reply}\n{OVER}".strip() if self.over else reply

    async def _response(self, messages: list[Any]) -> Any:
        """What the environment says to the last message. Earlier versions return the state with it."""
        found = await self.env.env_response(messages, self.state)
        if isinstance(found, tuple):
            found, self.state = found
        return found

    async def _is_completed(self) -> bool:
        return bool(await self.env.is_completed(self.state))

    def _record(self, said: list[Any], found: list[Any]) -> None:
        """Add a message of the model, and what came of it, to the conversation."""
        before = list(self.messages)
        self.messages += [*said, *found]
        step = {"prompt": before, "completion": said, "response": None, "tokens": None, "reward": None}
        rest = {"advantage": None, "is_truncated": False, "trajectory_id": self.state["trajectory_id"], "extras": {}}
        self.state["trajectory"].append({**step, **rest})

    async def reward(self, answer: str) -> float:
        if not self.over:
            self._record(_normalized([{"role": "assistant", "content": answer}]), [])
        prompt = self.state["prompt"]
        completion = self.messages[len(prompt) if isinstance(prompt, list) else 0 :]
        self.state.update(completion=completion, is_completed=True)
        await self.end()
        self.state["completion"] = completion
        await self.env.rubric.score_rollout(self.state)
        return float(self.state["reward"])

    async def end(self) -> None:
        """Let the environment free what belongs to this rollout."""
        if hasattr(self.env, "cleanup") and self.state["timing"]:
            await self.env.cleanup(self.state)


def _new_state(env: Any, row: dict[str, Any]) -> Any:
    """The state of a rollout, as `init_state` makes it; but no client, as ramet samples."""
    from verifiers import State

    state = State(input=row, task=row.get("task", "default"))
    prompt = row["prompt"]
    state.update(
        prompt=_normalized(prompt) if isinstance(prompt, list) else prompt,
        completion=[],
        trajectory=[],
        trajectory_id=uuid.uuid4().hex,
        tool_defs=_tool_definitions(env, row),
        client=None,
        model="ramet",
        sampling_args={},
        is_completed=False,
        is_truncated=False,
        error=None,
        final_env_response=None,
        timing=_timing(),
    )
    return state


def _timing() -> Any:
    try:
        from verifiers.types import RolloutTiming
    except ImportError:
        return {}
    try:
        return RolloutTiming()
    except TypeError:  # a table whose fields must be given
        return {}


def _normalized(messages: Any) -> list[Any]:
    """Messages as this version of verifiers has them: plain tables, or objects."""
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    try:
        from verifiers.utils.message_utils import normalize_messages
    except ImportError:
        return list(messages)
    return list(normalize_messages(list(messages)))


def _calling(call: dict[str, str]) -> dict[str, Any]:
    """A message with one tool call."""
    import verifiers.types

    if hasattr(verifiers.types, "ToolCall"):  # versions with messages of their own
        return {"role": "assistant", "content": "", "tool_calls": [call]}
    function = {"name": call["name"], "arguments": call["arguments"]}
    written = {"id": call["id"], "type": "function", "function": function}
    return {"role": "assistant", "content": "", "tool_calls": [written]}


def _field(message: Any, name: str) -> Any:
    return message.get(name) if isinstance(message, Mapping) else getattr(message, name, None)


def _is_tool_env(env: Any) -> bool:
    import verifiers

    kind = getattr(verifiers, "ToolEnv", None)
    return kind is not None and isinstance(env, kind)


def _has_turns(env: Any) -> bool:
    """Whether the environment answers the model itself, more than once."""
    import verifiers

    many, one = getattr(verifiers, "MultiTurnEnv", ()), getattr(verifiers, "SingleTurnEnv", ())
    return isinstance(env, many) and not isinstance(env, one)


def _env_of(env: Any, row: Mapping[str, Any]) -> Any:
    """The environment of a row: of a group, the one that the row names."""
    route = row["info"].get("env_id")
    for name in [route] if isinstance(route, str) else route or []:
        if not hasattr(env, "env_map"):
            break
        env = env.env_map[name]
    if hasattr(env, "env_map"):
        raise ConfigError(f"verifiers: a row names no environment of its group: {', '.join(env.env_map)}")
    return env


def _tool_definitions(env: Any, row: Mapping[str, Any]) -> list[Any]:
    own = row["info"].get("tool_defs")
    return list(own or getattr(env, "tool_defs", None) or getattr(env, "oai_tools", None) or [])


def _tool(definition: Any) -> Tool:
    """A tool by its name, description and JSON Schema, whichever way this version writes it."""
    plain = definition if isinstance(definition, Mapping) else definition.model_dump()
    plain = plain.get("function", plain)
    return {"name": plain["name"], "about": plain.get("description") or "", "schema": plain.get("parameters") or {}}


def _run_in_threads(tools: dict[str, Callable[..., Any]], threads: Threads) -> None:
    """Make plain functions among the tools async: in a thread, so that one that blocks holds up no other call."""
    for name, tool in tools.items():
        if not iscoroutinefunction(tool):
            tools[name] = _threaded(tool, threads)


def _threaded(tool: Callable[..., Any], threads: Threads) -> Callable[..., Any]:
    @wraps(tool)
    async def call(*args: Any, **kwargs: Any) -> Any:
        try:
            found = await threads.run(partial(tool, *args, **kwargs))
        except SystemExit as error:
            raise ModelFault(f"the tool called sys.exit({error.code!r})") from None
        return await found if isawaitable(found) else found

    return call


def _dataset(env: Any, name: str) -> Any:
    """A data set of an environment; None if it has none. It may be built when it is first asked for."""
    build = getattr(env, f"build_{name}", None)
    if build is not None:
        build()
    return getattr(env, name, None)
