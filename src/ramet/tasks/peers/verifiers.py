"""Environments of verifiers: `verifiers:NAME`, an installed environment, or `verifiers:my_env.py`.

An environment with a data set and a rubric (`load_environment`, verifiers 0.1) and a taskset whose tasks have rewards
(`verifiers.v1`, from 0.2 on) both become a taskset; the verdict on the root is the reward of the answer. Tools, several
turns and sandboxes are not taken over: an environment that needs them is refused.
"""

# verifiers is an extra.
# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportMissingTypeStubs=false, reportAttributeAccessIssue=false

from __future__ import annotations

import importlib
import importlib.util
import json
import logging
from collections.abc import Callable, Mapping
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from ramet import plugins
from ramet.errors import ConfigError
from ramet.tasks.grader import Grader
from ramet.tasks.peers.taskset import SCORING_S, PeerTasks

HELPER = Grader(__name__, library="verifiers", extra="verifiers")
MOST_ROWS = 100_000  # of a taskset that never ends


def VerifiersTasks(
    place: str, *, args: Mapping[str, Any] | None = None, max_score: float = 1.0, seconds: float = SCORING_S
) -> PeerTasks:
    """The rows of one environment. `args` are the arguments of its `load_environment`, or its taskset's config."""
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
    )
    made.name = plugins.shortened(made.name)
    return made


# In the process of verifiers.


class Rows(Protocol):
    """An environment, whichever interface it has."""

    def sizes(self) -> dict[str, int]: ...
    def row(self, split: str, index: int) -> tuple[str, str | None]:
        """The question, and the reference answer."""
        ...

    def answers(self, answer: str) -> list[str]:
        """Ways to write an answer, for one of which the rubric gives a reward."""
        ...

    async def reward(self, split: str, index: int, answer: str) -> float: ...


def splits(place: str, args: str) -> dict[str, int]:
    return _load(place, args).sizes()


def row(place: str, args: str, split: str, index: int) -> dict[str, Any]:
    """The question and a right answer, written as the rubric wants it."""
    question, answer = _load(place, args).row(split, index)
    if answer is not None:
        answer = _load(place, args).answers(answer)[_form(place, args, split)]
    return {"question": question, "context": {}, "answer": answer}


@lru_cache(maxsize=32)
def _form(place: str, args: str, split: str) -> int:
    """The way of writing an answer that gets the best reward, tried on the first row."""
    rows = _load(place, args)
    _, answer = rows.row(split, 0)
    ways = rows.answers(answer or "")
    rewards = [score(place, args, split, 0, text)["score"] or 0.0 for text in ways]
    return rewards.index(max(rewards))


def score(place: str, args: str, split: str, index: int, answer: str) -> dict[str, Any]:
    """The reward of an answer. What a reward function raised is the reason: verifiers logs it and goes on."""
    import anyio

    complaints = _Complaints()
    root = logging.getLogger("verifiers")
    root.addHandler(complaints)
    try:
        reward = anyio.run(_load(place, args).reward, split, index, answer)
    finally:
        root.removeHandler(complaints)
    return {"score": reward, "reason": complaints.first[:500]}


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


class RubricRows:
    """An environment with a data set and a rubric."""

    def __init__(self, env: Any, place: str) -> None:
        import verifiers

        many_turns = getattr(verifiers, "MultiTurnEnv", ())
        one_turn = getattr(verifiers, "SingleTurnEnv", ())
        if isinstance(env, many_turns) and not isinstance(env, one_turn):
            kind = type(env).__name__
            raise ConfigError(f"verifiers: {place} is a {kind}: only environments of a single turn can be taken over")
        self.env = env
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
        return _text(row["prompt"]), str(answer) if answer not in (None, "") else None

    def answers(self, answer: str) -> list[str]:
        ways = [answer, f"\\boxed{{{answer}}}"]
        field = getattr(getattr(self.env, "parser", None), "answer_field", None)  # of a parser of XML tags
        return [*ways, f"<{field}>{answer}</{field}>"] if field else ways

    async def reward(self, split: str, index: int, answer: str) -> float:
        from verifiers import State

        row = dict(self.data[split][index])
        row["info"] = json.loads(row["info"]) if isinstance(row.get("info"), str) else row.get("info") or {}
        state = State(input=row, task=row.get("task", "default"))
        said = [{"role": "assistant", "content": answer}]
        try:
            from verifiers.utils.message_utils import normalize_messages

            state["prompt"], said = normalize_messages(row["prompt"]), normalize_messages(said)
        except ImportError:  # an earlier version, whose messages are plain tables
            state["prompt"] = row["prompt"]
        state.update(completion=said, trajectory=[], is_completed=True, is_truncated=False, timing={}, model="ramet")
        await self.env.rubric.score_rollout(state)
        return float(state["reward"])


def _dataset(env: Any, name: str) -> Any:
    """A data set of an environment; None if it has none. It may be built when it is first asked for."""
    build = getattr(env, f"build_{name}", None)
    if build is not None:
        build()
    return getattr(env, name, None)


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
        self.tasks = list(islice(iter(found[0](config_type(**config))), MOST_ROWS))

    def sizes(self) -> dict[str, int]:
        return {"all": len(self.tasks)}

    def row(self, split: str, index: int) -> tuple[str, str | None]:
        del split
        task = self.tasks[index]
        if task.NEEDS_CONTAINER or type(task).toolsets(task.config):
            raise ConfigError(
                f"verifiers: the tasks of {self.place} need tools or a container, which ramet does not start"
            )
        data = task.data
        question = "\n\n".join(filter(None, [data.system_prompt, data.prompt_text]))
        answer = getattr(data, "answer", None)
        return question, None if answer is None else str(answer)

    def answers(self, answer: str) -> list[str]:
        return [answer, f"\\boxed{{{answer}}}"]

    async def reward(self, split: str, index: int, answer: str) -> float:
        from verifiers.v1 import AgentConfig, AgentInfo, AssistantMessage, MessageNode, Trace, TraceTask, UserMessage

        task = self.tasks[index]
        asked, said = UserMessage(content=task.data.prompt_text), AssistantMessage(content=answer)
        trace = Trace(
            task=TraceTask(type=type(task).__name__, data=task.data),
            agent=AgentInfo(config=AgentConfig()),
            nodes=[MessageNode(message=asked), MessageNode(message=said, parent=0, sampled=True)],
            root_reply=answer,
            is_completed=True,
            ok=True,
        )
        await task.score(trace)
        if not any(reward is not None for reward in trace.rewards.values()):
            raise ConfigError(f"verifiers: {self.place} has no reward that can be computed from the answer alone")
        return float(trace.reward)


def _text(prompt: Any) -> str:
    """A prompt as one text. A system prompt comes first; examples before the question keep their roles."""
    if isinstance(prompt, str):
        return prompt
    said = [(message["role"], _content(message["content"])) for message in prompt]
    if [role for role, _ in said] in (["user"], ["system", "user"]):
        return "\n\n".join(text for _, text in said)
    return "\n\n".join(f"{role}: {text}" for role, text in said)


def _content(content: Any) -> str:
    return content if isinstance(content, str) else "\n".join(part.get("text", "") for part in content)
