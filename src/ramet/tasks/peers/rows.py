"""What an environment of verifiers is asked, whichever version of verifiers it was written for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypedDict, cast


class Tool(TypedDict):
    """A tool as the model sees it."""

    name: str
    about: str
    schema: dict[str, Any]


class Session(Protocol):
    """One rollout: calls that may change its state, and then an answer."""

    async def start(self) -> None: ...
    async def call(self, name: str, arguments: Mapping[str, Any]) -> str: ...
    async def reward(self, answer: str) -> float:
        """The reward, given all calls. Ends the session."""
        ...

    async def end(self) -> None: ...


class Rows(Protocol):
    """The rows of an environment."""

    def sizes(self) -> dict[str, int]: ...
    def row(self, split: str, index: int) -> tuple[str, str | None]:
        """The question, and the reference answer."""
        ...

    async def tools(self, split: str, index: int) -> list[Tool]: ...
    def answers(self, answer: str) -> list[str]:
        """Ways to write an answer, for one of which the rubric gives a reward."""
        ...

    def session(self, split: str, index: int) -> Session: ...


def prompt_text(prompt: Any) -> str:
    """A prompt as one text. A system prompt comes first; examples before the question keep their roles."""
    if isinstance(prompt, str):
        return prompt
    said = [(message["role"], content_text(message["content"])) for message in prompt]
    if [role for role, _ in said] in (["user"], ["system", "user"]):
        return "\n\n".join(text for _, text in said)
    return "\n\n".join(f"{role}: {text}" for role, text in said)


def content_text(content: Any) -> str:
    """The text of a message's content, which may have several parts."""
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(filter(None, (_part_text(part) for part in content)))


def _part_text(part: Any) -> str:
    found: object = getattr(part, "text", None)
    if isinstance(part, Mapping):
        found = cast(Mapping[str, object], part).get("text")
    return found if isinstance(found, str) else ""
