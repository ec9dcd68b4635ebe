"""The root of a served tree reads the client's messages, calls the client's tools and answers in the client's format.

`ServedDialect` wraps the dialect of the server, `ServedNative` one with native tool calling. Only the root differs;
clones are those of any other tree.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

from ramet.agent.dialects.native import NativeSession
from ramet.agent.dialects.tools import NO_TOOLS, OPEN, Call, ToolsDialect, parse_calls, split_calls
from ramet.agent.reading import off_loop
from ramet.agent.toolcalls import CallsTools, ReadsCalls, call_text
from ramet.agent.wording import after_thoughts
from ramet.errors import MalformedAction
from ramet.interfaces import CutAnswer, Dialect, Host, HostFunction, Outcome, ReadsCutTurns, Remaining, Result, Session
from ramet.serve.conversation import KEY, Conversation
from ramet.serve.errors import wrong
from ramet.serve.schema import Schema
from ramet.serve.tools import ToolUse
from ramet.types import Message, Stop, ToolCall

WITH_TOOLS = ("tools", "tools-returns", "native")  # dialects in which the root can call tools of a client
TOOLS_NOTE = (
    "Tools of the client. Call them like other tools, in a turn without delegate; your clones do not have them:"
)
ALONE = "refused, like every call of this turn: call tools of the client in a turn without other calls"
REQUIRED = "call one of the client's tools before you answer: {}"
FORMAT_NOTE = "Your final answer is JSON and nothing else. It matches this JSON Schema:"


def check_tools(dialect: Dialect, use: ToolUse) -> None:
    """Raise if the model cannot call a client's tools in this dialect."""
    if use.tools and not isinstance(dialect, ToolsDialect):
        raise wrong(
            "tools",
            f"tools are not supported with the dialect {dialect.name} of this server; they are with "
            f"--dialect {' or '.join(WITH_TOOLS)}",
            code="unsupported_parameter",
        )


class ServedDialect:
    """A dialect for one request. After the tree has ended, `calls` are what the client gets."""

    def __init__(self, inner: Dialect, conversation: Conversation, *, use: ToolUse, schema: Schema | None) -> None:
        self.name = inner.name
        self.stop = inner.stop
        self.conversation = conversation
        self.use = use
        self.schema = schema
        self.calls: list[ToolCall] = []
        self.content: str | None = None  # beside the calls
        self._inner = inner

    def problem(self, answer: str | None) -> str | None:
        """Why an answer does not match the schema of the request; None if it does, or there is no schema."""
        if self.schema is None or answer is None:
            return None
        return self.schema.problem(unfenced(answer))

    def system(self, *, functions: Mapping[str, HostFunction], may_delegate: bool, child: bool) -> str:
        own = self._inner.system(functions=functions, may_delegate=may_delegate, child=child)
        if child:
            return own
        parts = [own]
        if self.use.tools:
            parts = [own.replace(NO_TOOLS, "").rstrip(), "\n".join([TOOLS_NOTE, *self._listed()])]
        if self.schema is not None:
            parts.append(f"{FORMAT_NOTE}\n{json.dumps(self.schema.definition, ensure_ascii=False)}")
        return "\n\n".join(part for part in [*parts, self.conversation.system] if part)

    def _listed(self) -> Sequence[str]:
        return [tool.text for tool in self.use.tools]

    def opening(self, host: Host, *, missing: Sequence[str]) -> str:
        own = self._inner.opening(host, missing=missing)
        if host.node.parent is not None:
            return own
        history, work = host.context.get(KEY, ""), self.conversation.work
        before = f"The conversation so far:\n\n{history}\n\nThe user's new message:" if history not in own else ""
        after = f"Your work on it so far:\n\n{work}" if work else ""
        return "\n\n".join(part for part in (before, own, after) if part)

    def results(self, results: Sequence[Result]) -> str:
        return self._inner.results(results)

    def remaining(self, remaining: Remaining) -> str:
        return self._inner.remaining(remaining)

    def closing(self, why: Stop) -> str:
        return self._inner.closing(why)

    def session(self, host: Host) -> Session:
        session = self._inner.session(host)
        special = host.node.parent is None and (self.use.tools or self.schema is not None)
        if not special:
            return session
        return NativeRootSession(self, session) if isinstance(session, ReadsCalls) else RootSession(self, session)


class ServedNative(ServedDialect):
    """A dialect with native tool calling: the tools of the client are tools of the model's server, for the root."""

    def __init__(self, inner: CallsTools, conversation: Conversation, *, use: ToolUse, schema: Schema | None) -> None:
        super().__init__(cast(Dialect, inner), conversation, use=use, schema=schema)
        self._native = inner

    def tools(
        self, *, functions: Mapping[str, HostFunction], may_delegate: bool, child: bool
    ) -> Sequence[Mapping[str, Any]]:
        own = self._native.tools(functions=functions, may_delegate=may_delegate, child=child)
        of_client = () if child else self.use.tools
        return [*own, *({"type": "function", "function": tool.facts} for tool in of_client)]

    def messages(self, results: Sequence[Result], calls: Sequence[ToolCall], *, note: str) -> list[Message]:
        return self._native.messages(results, calls, note=note)

    def _listed(self) -> Sequence[str]:
        return [", ".join(self.use.names)]


def served_dialect(inner: Dialect, conversation: Conversation, *, use: ToolUse, schema: Schema | None) -> ServedDialect:
    """The dialect of a server for one request. A 400 if the model cannot call tools in it and the request has some."""
    check_tools(inner, use)
    if isinstance(inner, CallsTools):
        return ServedNative(inner, conversation, use=use, schema=schema)
    return ServedDialect(inner, conversation, use=use, schema=schema)


class RootSession:
    """The root's side: a call of a client's tool ends the tree, and an answer is checked against the schema."""

    def __init__(self, dialect: ServedDialect, inner: Session) -> None:
        self._dialect = dialect
        self._inner = inner

    async def act(self, text: str, *, finish: Literal["stop", "length"]) -> Outcome:
        called = await self._called(text, finish=finish)
        if called is not None:
            return called
        return self._checked(await self._inner.act(text, finish=finish))

    def _checked(self, outcome: Outcome) -> Outcome:
        """The outcome of a turn; an answer that the client does not want becomes a note to the model."""
        if not outcome.done:
            return outcome
        if self._dialect.use.choice == "required" and self._dialect.use.tools:
            return _note(REQUIRED.format(", ".join(self._dialect.use.names)))
        problem = self._dialect.problem(outcome.answer)
        return outcome if problem is None else _note(f"this is not the JSON asked for: {problem}; answer again")

    async def close(self, text: str) -> Outcome:
        called = await self._called(text, finish="stop")
        if called is not None and called.done:
            return called
        return await self._inner.close(text)

    def answer_in_cut(self, text: str) -> CutAnswer | None:
        """With a schema, an answer that matches it is better than one that does not."""
        found = self._inner.answer_in_cut(text) if isinstance(self._inner, ReadsCutTurns) else None
        if found is None or self._dialect.schema is None:
            return found
        return CutAnswer(text=found.text, marked=self._dialect.problem(found.text) is None)

    async def _called(self, text: str, *, finish: Literal["stop", "length"]) -> Outcome | None:
        """The end of the tree, if the turn calls tools of the client; None if it calls none."""
        use = self._dialect.use
        if not use.tools or OPEN not in text:
            return None
        found = await off_loop(lambda repairs: parse_calls(text, finish=finish, repairs=repairs))
        content = split_calls(after_thoughts(text))[1]
        return self._of_client(found, content=content, written=after_thoughts(text))

    def _of_client(self, found: Sequence[Call | MalformedAction], *, content: str, written: str) -> Outcome | None:
        """The end of the tree if all calls of a turn are of the client's tools; refusals if only some are."""
        use = self._dialect.use
        calls = [call for call in found if isinstance(call, Call) and call.name in use.names]
        if not calls:
            return None
        if len(calls) < len(found):
            return Outcome(results=[_refused(call, number) for number, call in enumerate(found)], faults=1)
        calls = calls if use.parallel else calls[:1]
        self._dialect.calls = [
            ToolCall(id="", name=call.name, arguments=json.dumps(call.arguments, ensure_ascii=False)) for call in calls
        ]
        self._dialect.content = content.strip() or None
        return Outcome(done=True, answer=written.strip(), repairs=sum(call.repaired for call in calls))


class NativeRootSession(RootSession):
    """The root's side where the model's server returns calls apart from the text."""

    async def act_on(self, text: str, calls: Sequence[ToolCall], *, finish: Literal["stop", "length"]) -> Outcome:
        inner = self._inner
        if isinstance(inner, NativeSession) and self._dialect.use.tools:
            content = after_thoughts(text)
            written = "".join([content, *map(call_text, calls)])
            called = self._of_client(await inner.read(calls, finish=finish), content=content, written=written)
            if called is not None:
                return called
        return self._checked(await cast(ReadsCalls, inner).act_on(text, calls, finish=finish))


def _refused(call: Call | MalformedAction, number: int) -> Result:
    return Result(call.name if isinstance(call, Call) else "tool_call", ALONE, number)


def unfenced(answer: str) -> str:
    """An answer without the Markdown fence that models put around JSON.

    Example:
        unfenced('```json\\n{"a": 1}\\n```')  # '{"a": 1}'
    """
    text = answer.strip()
    if text.startswith("```") and text.endswith("```") and "\n" in text:
        return text.partition("\n")[2].removesuffix("```").strip()
    return text


def _note(text: str) -> Outcome:
    return Outcome(results=[Result("note", text)], faults=1)
