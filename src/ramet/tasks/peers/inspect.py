"""Tasks of inspect_ai: `inspect:file.py@task`, or a task of an installed package, `inspect:inspect_evals/gsm8k`.

The question is the input of a sample, with its choices; the verdict on the root is that of the task's scorer. The
task's own solver is not used. A sample that needs a sandbox is refused.
"""

# inspect_ai is an extra.
# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportMissingTypeStubs=false

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from ramet import plugins
from ramet.errors import ConfigError, did_you_mean
from ramet.tasks.grader import Grader
from ramet.tasks.peers.taskset import SCORING_S, PeerTasks

HELPER = Grader(__name__, library="inspect_ai", extra="inspect")
SPLIT = "eval"
CHOOSE = "Choose one of:\n{}\nAnswer with the letter only."


def InspectTasks(
    place: str,
    *,
    args: Mapping[str, Any] | None = None,
    scorer: str = "",
    model: str = "",
    max_score: float = 1.0,
    seconds: float = SCORING_S,
) -> PeerTasks:
    """The tasks of one inspect_ai task.

    `args` are the arguments of the task's function; `scorer` is the scorer that counts, by default its first; `model`
    is the model of scorers that ask one, like `openai/gpt-5`.
    """
    file, at, name = place.rpartition("@")
    if at:
        place = f"{Path(file).expanduser().resolve()}@{name}"
    elif place.endswith(".py"):
        place = str(Path(place).expanduser().resolve())
    made = PeerTasks(
        "inspect",
        place,
        about="samples of inspect_ai, with the task's scorer",
        helper=HELPER,
        args={"args": dict(args or {}), "scorer": scorer, "model": model},
        max_score=max_score,
        seconds=seconds,
    )
    made.name = plugins.shortened(made.name)
    return made


# In the process of inspect_ai.


def splits(place: str, args: str) -> dict[str, int]:
    return {SPLIT: len(_load(place, args).dataset)}


def row(place: str, args: str, split: str, index: int) -> dict[str, Any]:
    """The question of a sample, and a right answer if the sample has one."""
    sample = _load(place, args).dataset[index]
    if sample.sandbox or sample.setup or sample.files:
        raise ConfigError(f"inspect: sample {index} of {Path(place).name} needs a sandbox, which ramet does not start")
    question = question_of(sample.input, sample.choices or ())
    target = sample.target if isinstance(sample.target, str) else next(iter(sample.target), "")
    return {"question": question, "context": {}, "answer": target or None}


def question_of(given: Any, choices: Sequence[str]) -> str:
    """The input of a sample as text, with its choices by letter."""
    question = given if isinstance(given, str) else _written(given)
    lines = "\n".join(f"{_letter(number)}) {choice}" for number, choice in enumerate(choices))
    return f"{question}\n\n{CHOOSE.format(lines)}" if choices else question


def score(place: str, args: str, split: str, index: int, answer: str) -> dict[str, Any]:
    """The score of an answer by the task's scorer."""
    import anyio
    from inspect_ai.model import ChatMessageAssistant, ModelName, ModelOutput
    from inspect_ai.scorer import Target, value_to_float
    from inspect_ai.solver import TaskState

    task, settings = _load(place, args), json.loads(args)
    sample = task.dataset[index]
    scorer, target = _scorer(task, settings["scorer"]), Target(sample.target)
    state = TaskState(
        model=ModelName("ramet/tree"),
        sample_id=index if sample.id is None else sample.id,
        epoch=1,
        input=sample.input,
        messages=[*_messages(sample), ChatMessageAssistant(content=answer)],
        target=target,
        choices=sample.choices,
        output=ModelOutput.from_content(model="ramet/tree", content=answer),
        metadata=dict(sample.metadata or {}),
        completed=True,
    )
    mark_choices(state, answer)
    found = anyio.run(scorer, state, target)
    if found is None:
        return {"score": None, "reason": "the scorer gave no score"}
    value = next(iter(found.value.values())) if isinstance(found.value, dict) else found.value
    return {"score": float(value_to_float()(value)), "reason": (found.explanation or "")[:500]}


def _scorer(task: Any, wanted: str) -> Any:
    """The task's scorer of this name, or its first."""
    from inspect_ai.util import registry_info

    known = {registry_info(scorer).name.rpartition("/")[2]: scorer for scorer in task.scorer or ()}
    if not known:
        raise ConfigError("inspect: this task has no scorer")
    if wanted and wanted not in known:
        raise ConfigError(f"inspect: no scorer {wanted!r}: {did_you_mean(wanted, known)}")
    return known[wanted or next(iter(known))]


def _messages(sample: Any) -> list[Any]:
    from inspect_ai.model import ChatMessageUser

    return [ChatMessageUser(content=sample.input)] if isinstance(sample.input, str) else list(sample.input)


def mark_choices(state: Any, answer: str) -> None:
    """Mark the choice that an answer names, for the scorer `choice`."""
    if not len(state.choices):
        return
    chosen = chosen_letter(answer, len(state.choices))
    for number in range(len(state.choices)):
        state.choices.mark_choice(number, _letter(number) == chosen)


def chosen_letter(answer: str, num_choices: int) -> str | None:
    """The letter that an answer is, names after "answer" or begins with, or the last one that stands by itself.

    Example:
        chosen_letter("b)", 4)                               # "B"
        chosen_letter("I think that the answer is (B).", 4)  # "B"
        chosen_letter("B. A whale is no fish.", 4)           # "B"
        chosen_letter("no idea", 4)                          # None
    """
    letters = "".join(map(_letter, range(num_choices)))
    whole = re.fullmatch(rf"(?i)\W*(?:(?:the )?(?:final )?answer\W*(?:is\W*)?)?([{letters}])\W*", answer)
    if whole is not None:
        return whole[1].upper()
    named = re.findall(rf"(?i:answer)\W*(?:is\W*)?([{letters}])\b", answer)
    marked = re.findall(rf"(?<!\w)([{letters}])(?:\*\*)?[).:]", answer)  # as choices are listed
    if not named and len(set(marked)) == 1 and re.match(rf"\W*{marked[0]}(?:\*\*)?[).:]", answer):
        return marked[0]
    found = named or re.findall(rf"(?<![\w'])([{letters}])(?![\w'])", answer)
    return found[-1] if found else None


def _letter(number: int) -> str:
    return chr(ord("A") + number)


def _written(messages: Any) -> str:
    """A conversation as one text: a single message as it is, several with their roles."""
    if len(messages) == 1:
        return messages[0].text
    return "\n\n".join(f"{message.role}: {message.text}" for message in messages)


@lru_cache(maxsize=8)
def _load(place: str, args: str) -> Any:
    """The task, made once."""
    settings = json.loads(args)
    if settings["model"]:
        os.environ["INSPECT_EVAL_MODEL"] = settings["model"]
    file, _, name = place.partition("@") if ".py" in place else ("", "", place)
    return _from_file(Path(file), name, settings["args"]) if file else _from_package(name, settings["args"])


def _from_file(file: Path, name: str, args: Mapping[str, Any]) -> Any:
    if file.parent.is_dir():
        os.chdir(file.parent)  # data files of a task are named relative to it
    module = plugins.import_file(file)
    known = {key: value for key, value in vars(module).items() if _is_task(value)}
    if not name and len(known) == 1:
        name = next(iter(known))
    if name not in known:
        raise ConfigError(f"{file.name} has no task {name!r}: {did_you_mean(name, known)}")
    return known[name](**args)


def _is_task(value: object) -> bool:
    info = getattr(value, "__registry_info__", None)
    return getattr(info, "type", None) == "task"


def _from_package(name: str, args: Mapping[str, Any]) -> Any:
    from inspect_ai.util import registry_create

    try:
        return registry_create("task", name, **args)
    except (LookupError, ValueError) as error:
        raise ConfigError(f"inspect has no task {name!r} ({error}): write file.py@task, or package/task") from None
