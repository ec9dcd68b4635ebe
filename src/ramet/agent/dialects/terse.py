"""For very small models: one sign at the beginning of a line says what the line is, and nothing else is said.

    > goal        a clone, with texts by key behind it: `> goal @key @key`
    = answer      the node's answer; the last such line counts
    < text        what a clone answered; `?` behind it when a limit ended the clone, alone when it said nothing,
                  `no` when it was refused
    | more        the line above goes on
    !             answer now

Every other line is working-out. A turn that asks for clones does not answer: what it gives as an answer is ignored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ramet.agent.wording import after_thoughts, cut
from ramet.errors import ConfigError
from ramet.interfaces import Host, HostFunction, Left, Outcome, Report, Request, Result
from ramet.types import Stop

ASK, ANSWER, TOLD, MORE, CLOSE = ">", "=", "<", "|", "!"
ALONE = "."  # the system prompt of a node that may not delegate
REFUSED, NOTHING, CUT_OFF = "no", "?", ".."
NOTE = "note"
NOT_A_SIGN = "<=>"  # behind a sign: `>=`, `=>`, `==` are working-out
KEY = re.compile(r"(?:^|\s)@(?=\S)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What a turn says beside its working-out."""

    goals: tuple[str, ...] = ()
    answer: str | None = None


def read(text: str) -> Said:
    """The goals and the answer in a turn.

    Example:
        read("3+4=7\\n= 7")  # Said(answer="7")
        read("> Compute 1+2\\n> Compute 3+4")  # Said(goals=("Compute 1+2", "Compute 3+4"))
    """
    signed: list[tuple[str, list[str]]] = []
    for line in after_thoughts(text).split("\n"):
        if line[:1] == MORE and signed and signed[-1][0]:
            signed[-1][1].append(_content(line))
        elif line[:1] in (ASK, ANSWER) and (len(line) == 1 or line[1] not in NOT_A_SIGN):
            signed.append((line[0], [_content(line)]))
        else:
            signed.append(("", [line]))
    found = [(sign, "\n".join(lines).strip()) for sign, lines in signed]
    answers = [content for sign, content in found if sign == ANSWER and content]
    return Said(goals=tuple(content for sign, content in found if sign == ASK), answer=answers[-1] if answers else None)


def _content(line: str) -> str:
    return line[1:].removeprefix(" ")


def write(sign: str, text: str) -> str:
    """A text behind a sign, on as many lines as it has.

    Example:
        write(">", "one\\ntwo")  # "> one\\n| two"
    """
    return f"{sign} " + text.replace("\n", f"\n{MORE} ")


def last_word(text: str) -> str | None:
    """The answer of a node that was told to answer: its answer line, or the last line that is not a goal."""
    answer = read(text).answer
    lines = [line.strip() for line in after_thoughts(text).split("\n") if line[:1] not in (ASK, ANSWER)]
    return answer or next((line for line in reversed(lines) if line), None)


class TerseDialect:
    """The `terse` dialect."""

    name = "terse"
    stop = ()

    def system(self, *, functions: Mapping[str, HostFunction], may_delegate: bool, child: bool) -> str:
        """Nothing, or one sign where a node has to do it alone."""
        del child
        if functions:
            raise ConfigError(f"terse has no functions, and this world has {', '.join(functions)}: use tools or python")
        return "" if may_delegate else ALONE

    def opening(self, host: Host, *, missing: Sequence[str]) -> str:
        keys = [" ".join(key.split()) for key in host.context]
        parts = [host.node.goal]
        if not host.reads_texts:  # the root sees keys only: reading is what it delegates
            parts += [f"@{key}" for key in keys]
        else:
            parts += [f"@{key}\n{text}" for key, text in zip(keys, host.context.values(), strict=True)]
        return "\n".join([*parts, *(_unknown(key) for key in missing)])

    def results(self, results: Sequence[Result]) -> str:
        return "\n".join(result.text if result.label == NOTE else write(TOLD, result.text) for result in results)

    def left(self, left: Left) -> str:
        """Tokens, then clones where it may have any, then seconds: `#600 12 30s`."""
        clones = [str(left.clones)] if left.levels > 0 else []
        seconds = [f"{left.seconds:.0f}s"] if left.seconds is not None else []
        return " ".join([f"#{left.tokens}", *clones, *seconds])

    def closing(self, why: Stop) -> str:
        del why
        return CLOSE

    def session(self, host: Host) -> TerseSession:
        return TerseSession(host)


class TerseSession:
    """One node's lines."""

    def __init__(self, host: Host) -> None:
        self.host = host

    async def act(self, text: str, *, finish: Literal["stop", "length"]) -> Outcome:
        whole = finish == "stop"
        said = read(text if whole else text.rpartition("\n")[0])  # a line that was cut off is not what was meant
        if said.goals:
            return await self._delegate(said, whole=whole)
        if said.answer is not None and whole:
            return Outcome(done=True, answer=said.answer)
        return Outcome(results=[Result(NOTE, NOTHING if whole else CUT_OFF)], faults=1)

    async def close(self, text: str) -> Outcome:
        return Outcome(done=True, answer=last_word(text))

    async def _delegate(self, said: Said, *, whole: bool) -> Outcome:
        reports = await self.host.run_all([self._request(goal) for goal in said.goals])
        results = [Result("clone", self._told(report)) for report in reports]
        faults = sum(report.stop is None for report in reports) + (said.answer is not None)
        if not whole:
            results.append(Result(NOTE, CUT_OFF))
        return Outcome(results=results, faults=faults + (not whole))

    def _request(self, goal: str) -> Request:
        if not self.host.context:
            return Request(goal=goal)  # an `@` is just a sign where there is nothing to hand over
        goal, *keys = KEY.split(goal)
        return Request(goal=goal, context=[key.strip() for key in keys])

    def _told(self, report: Report) -> str:
        if report.stop is None:
            return REFUSED
        limited = "" if report.stop is Stop.ANSWERED else NOTHING
        answer = cut(report.answer, self.host.result_bytes) + limited if report.answer is not None else NOTHING
        return " ".join([answer, *map(_unknown, report.missing)])


def _unknown(key: str) -> str:
    """How a key is called that does not exist."""
    return f"@{' '.join(key.split())}{NOTHING}"
