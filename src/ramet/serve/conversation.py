"""The messages of a client as the root of a tree reads them.

The last message of the user is the task. What came before is the conversation, which the root reads in full and can
hand to clones by its key. What came after (calls of the client's tools and their results) is the root's work so far.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ramet.agent.toolcalls import call_text
from ramet.serve.errors import wrong
from ramet.types import ToolCall

KEY = "conversation"  # of the text that clones can be handed
Remembered = Callable[[str], str | None]  # by the id of a tool call: all that the root wrote and read until then


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """One message, whichever API it came from."""

    role: str  # system, user, assistant or tool
    text: str
    calls: tuple[ToolCall, ...] = ()
    call_id: str = ""  # of a tool message: the call it answers
    param: str = "messages"  # where it is in the request


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """What the root of a tree gets of a client's messages."""

    question: str
    system: str = ""
    history: str = ""  # messages before the question
    work: str = ""  # calls and results after it


def read_conversation(
    messages: Sequence[Said], *, param: str = "messages", remembered: Remembered = lambda _: None
) -> Conversation:
    """Sort messages into system prompt, history, question and work; a conversation that cannot go on is a 400.

    `param` is the field that has the messages.
    """
    system = "\n\n".join(said.text for said in messages if said.role == "system" and said.text)
    spoken = [said for said in messages if said.role != "system"]
    asked = max((place for place, said in enumerate(spoken) if said.role == "user"), default=None)
    if asked is None:
        raise wrong(param, f"{param} contains no user message")
    if not spoken[asked].text.strip():
        raise wrong(spoken[asked].param, f"{spoken[asked].param} is empty: the last user message is the task")
    if spoken[-1].role == "assistant":
        raise wrong(spoken[-1].param, "the last message must have role user or tool; got assistant")
    names = _check_calls(spoken, param)
    history = "\n\n".join(_line(said, names) for said in spoken[:asked])
    work = "\n\n".join(_work(said, names, remembered) for said in spoken[asked + 1 :])
    return Conversation(question=spoken[asked].text, system=system, history=history, work=work)


def _check_calls(spoken: Sequence[Said], param: str) -> dict[str, str]:
    """The name of every call by its id. Each call has one result, and each result its call."""
    names: dict[str, str] = {}
    waiting: set[str] = set()
    for said in spoken:
        if said.role == "tool":
            if said.call_id not in waiting:
                raise wrong(
                    said.param, f"{said.param} answers a tool call that does not precede it or was already answered"
                )
            waiting.remove(said.call_id)
        elif waiting:
            break
        names |= {call.id: call.name for call in said.calls}
        waiting |= {call.id for call in said.calls}
    if waiting:
        missing = ", ".join(sorted(waiting))[:200]
        raise wrong(param, f"these tool calls have no result: {missing}")
    return names


def _line(said: Said, names: dict[str, str]) -> str:
    role = f"tool {names[said.call_id]}" if said.role == "tool" else said.role
    return "\n".join([f"{role}: {said.text}".rstrip(), *map(call_text, said.calls)])


def _work(said: Said, names: dict[str, str], remembered: Remembered) -> str:
    if said.role == "tool":
        return f"<tool_response>\n{names[said.call_id]}: {said.text}\n</tool_response>"
    known = remembered(said.calls[0].id) if said.calls else None
    return "\n".join(filter(None, [said.text, *map(call_text, said.calls)])) if known is None else known
