"""Environments of verifiers: `verifiers:NAME`, an installed environment, or `verifiers:my_env.py`.

An environment with a data set and a rubric (`load_environment`, verifiers 0.1) and a taskset whose tasks have rewards
(`verifiers.v1`, from 0.2 on) both become a taskset; the verdict on the root is the reward of the answer. Tools are
functions of the world. A task that needs a container is refused.
"""

# verifiers is an extra.
# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportMissingTypeStubs=false, reportAttributeAccessIssue=false

from __future__ import annotations

import importlib
import importlib.util
import json
import logging
import uuid
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from ramet import plugins
from ramet.errors import ConfigError, ModelFault
from ramet.tasks.grader import Grader
from ramet.tasks.peers.rows import Rows, Session
from ramet.tasks.peers.sessions import Sessions
from ramet.tasks.peers.taskset import CALL_S, SCORING_S, PeerTasks
from ramet.tasks.peers.verifiers_rubric import RubricRows
from ramet.tasks.peers.verifiers_tasks import TasksetRows

HELPER = Grader(__name__, library="verifiers", extra="verifiers")
SESSIONS = Sessions(__name__, library="verifiers", extra="verifiers")


def VerifiersTasks(
    place: str,
    *,
    args: Mapping[str, Any] | None = None,
    max_score: float = 1.0,
    seconds: float = SCORING_S,
    call_s: float = CALL_S,
) -> PeerTasks:
    """The rows of one environment. `args` are the arguments of its `load_environment`, or its taskset's config.

    `seconds` is the time limit of a score, `call_s` that of a tool call.
    """
    if place.endswith(plugins.SUFFIX):
        place = str(Path(place).expanduser().resolve())
    made = PeerTasks(
        "verifiers",
        place,
        about="rows of a verifiers environment, with its rubric",
        helper=HELPER,
        args=args or {},
        max_score=max_score,
        seconds=seconds,
        sessions=SESSIONS,
        call_s=call_s,
    )
    made.name = plugins.shortened(made.name)
    return made


# In the process of verifiers.


def splits(place: str, args: str) -> dict[str, int]:
    return _load(place, args).sizes()


def row(place: str, args: str, split: str, index: int) -> dict[str, Any]:
    """The question, a right answer, written as the rubric wants it, and the tools."""
    import anyio

    rows = _load(place, args)
    question, answer = rows.row(split, index)
    if answer is not None:
        answer = rows.answers(answer)[_form(place, args, split)]
    return {"question": question, "context": {}, "answer": answer, "tools": anyio.run(rows.tools, split, index)}


@lru_cache(maxsize=32)
def _form(place: str, args: str, split: str) -> int:
    """The way of writing an answer that gets the best reward, tried on the first row."""
    rows = _load(place, args)
    _, answer = rows.row(split, 0)
    ways = rows.answers(answer or "")
    rewards = [score(place, args, split, 0, text)["score"] or 0.0 for text in ways]
    return rewards.index(max(rewards))


def score(place: str, args: str, split: str, index: int, answer: str) -> dict[str, Any]:
    """The reward of an answer without any call."""
    import anyio

    async def rewarded() -> dict[str, Any]:
        session = _load(place, args).session(split, index)
        await session.start()
        return await _score(session, answer)

    return anyio.run(rewarded)


async def _score(session: Session, answer: str) -> dict[str, Any]:
    """The reward of an answer. What a reward function raised is the reason: verifiers logs it and goes on."""
    complaints = _Complaints()
    root = logging.getLogger("verifiers")
    root.addHandler(complaints)
    try:
        reward = await session.reward(answer)
    finally:
        root.removeHandler(complaints)
    return {"score": reward, "reason": complaints.first[:500]}


async def open_session(place: str, args: str, split: str, index: int) -> str:
    """Begin a rollout; its id, which no other session has, in this process or another one."""
    session = _load(place, args).session(split, index)
    await session.start()
    name = uuid.uuid4().hex
    _sessions()[name] = session
    return name


async def call_tool(session: str, name: str, arguments: dict[str, Any]) -> str:
    return await _find(session).call(name, arguments)


async def score_session(name: str, answer: str) -> dict[str, Any]:
    """The reward of an answer, given all calls of the session, which ends."""
    session = _find(name)
    del _sessions()[name]
    return await _score(session, answer)


async def close_session(name: str) -> None:
    """End a session, if it has not ended."""
    session = _sessions().pop(name, None)
    if session is not None:
        await session.end()


@cache
def _sessions() -> dict[str, Session]:
    """All open sessions of this process, by id."""
    return {}


def _find(name: str) -> Session:
    if name not in _sessions():
        raise ModelFault("the process of the environment was started again: what was done before is lost")
    return _sessions()[name]


class _Complaints(logging.Handler):
    """Keeps the first error that is logged."""

    first = ""

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.ERROR and not self.first:
            self.first = record.getMessage()


@lru_cache(maxsize=8)
def _load(place: str, args: str) -> Rows:
    given = json.loads(args)
    module = _module(place)
    load: Callable[..., Any] | None = getattr(module, "load_environment", None)
    if load is not None:
        return RubricRows(load(**given), place)
    if importlib.util.find_spec("verifiers.v1") is not None:
        return TasksetRows(module, place, given)
    raise ConfigError(f"verifiers: {place} has no load_environment")


def _module(place: str) -> Any:
    if place.endswith(plugins.SUFFIX):
        return plugins.import_file(place)
    name = place.rsplit("/", 1)[-1].partition("@")[0].replace("-", "_").lower()  # as verifiers finds them
    for candidate in (name, f"verifiers.v1.tasksets.{name}"):
        try:
            return importlib.import_module(candidate)
        except ModuleNotFoundError as error:
            if error.name is None or not candidate.startswith(error.name):
                raise
    raise ConfigError(f"verifiers: no environment {place!r} is installed: pip install it, or name a file, my_env.py")
