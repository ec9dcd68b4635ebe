"""For very small models: a sign at the start of a line says what the line is.

    > goal        start a clone; texts follow by key, then the tokens it asks for: `> goal @key @key #300`
    $ name a, 3   call a function of the world; the last argument is the rest of the line
    = answer      the node's answer; the last such line counts
    < text        the value of a call, or a clone's answer, with `?` after it when a limit ended the clone; `?` alone
                  when there is no answer, `no` when the clone was refused, `same` when that was because of its goal:
                  the node's or an ancestor's one, `no #` when it was because of the tokens it asked for: no whole
                  number from 1 up, or too few; `no` and a signature for a call that cannot be made
    | more        continues the line above
    !             answer now

Every other line is working; in a world without functions, `$` lines are too. A turn that calls or starts clones does
not answer: an answer in it is ignored. Functions are called before clones start, in the order of their lines.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ramet.agent.dialects.terse_calls import CALL, call_line, check_functions
from ramet.agent.wording import after_thoughts, cut, shorten
from ramet.interfaces import CutAnswer, Host, HostFunction, Outcome, Remaining, Report, Request, Result
from ramet.types import Stop, clean

ASK, ANSWER, RESULT, MORE, CLOSE = ">", "=", "<", "|", "!"
ALONE = "."  # the system prompt of a node that may not delegate
REFUSED, SAME, UNKNOWN, CUT_OFF = "no", "same", "?", ".."
NOTE = "note"
NOT_A_SIGN = "<=>"  # after a sign: `>=`, `=>`, `==` are working
KEY = re.compile(r"(?:^|\s)@(?=\S)")
TOKENS = "#"
ASKED = re.compile(r"\s#([-+]?\d\S*)$")  # the last word, if it looks like a number; `#tag` is part of the goal


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedTurn:
    """The calls, the goals and the answer of a turn."""

    calls: tuple[str, ...] = ()
    goals: tuple[str, ...] = ()
    answer: str | None = None


def read(text: str, *, functions: bool = False) -> ParsedTurn:
    """Parse a turn. Only with `functions` are there calls.

    Example:
        read("3+4=7\\n= 7")  # ParsedTurn(answer="7")
        read("> Compute 1+2\\n> Compute 3+4")  # ParsedTurn(goals=("Compute 1+2", "Compute 3+4"))
    """
    contents = [(sign, "\n".join(lines).strip()) for sign, lines in _by_sign(text, functions=functions)]
    calls, goals = (tuple(content for sign, content in contents if sign == wanted) for wanted in (CALL, ASK))
    answers = [content for sign, content in contents if sign == ANSWER and content]
    return ParsedTurn(calls=calls, goals=goals, answer=answers[-1] if answers else None)


def _by_sign(text: str, *, functions: bool) -> list[tuple[str, list[str]]]:
    """The lines of a turn with their signs, each with those that continue it; working has no sign."""
    signs = (ASK, ANSWER, CALL) if functions else (ASK, ANSWER)
    signed: list[tuple[str, list[str]]] = []
    for line in clean(after_thoughts(text)).split("\n"):
        if line[:1] == MORE and signed and signed[-1][0]:
            signed[-1][1].append(_content(line))
        elif line[:1] in signs and (len(line) == 1 or line[1] not in NOT_A_SIGN):
            signed.append((line[0], [_content(line)]))
        else:
            signed.append(("", [line]))
    return signed


def _content(line: str) -> str:
    return line[1:].removeprefix(" ")


def write(sign: str, text: str) -> str:
    """A text of one or more lines after a sign.

    Example:
        write(">", "one\\ntwo")  # "> one\\n| two"
    """
    return f"{sign} " + text.replace("\n", f"\n{MORE} ")


def split_tokens(text: str) -> tuple[str, int | str | None]:
    """A goal or key, and the tokens that are asked for after it. A wrong number stays a text, which is refused.

    Example:
        split_tokens("Compute 1+2 #300")  # ("Compute 1+2", 300)
        split_tokens("Compute 1+2 #3k")   # ("Compute 1+2", "3k")
        split_tokens("Compute 1+2")       # ("Compute 1+2", None)
    """
    found = ASKED.search(text)
    if found is None:
        return text, None
    number = found.group(1)
    return text[: found.start()].rstrip(), int(number) if re.fullmatch(r"[0-9]{1,12}", number) else number


def final_answer(text: str, *, functions: bool = False) -> str | None:
    """The answer in a closing turn: its answer line, or else the last line that is neither a goal nor a call."""
    working = [lines[0].strip() for sign, lines in _by_sign(text, functions=functions) if not sign]
    return read(text).answer or next((line for line in reversed(working) if line), None)


class TerseDialect:
    """The `terse` dialect, for very small models: the first character of a line is its type, and prompts are empty."""

    name = "terse"
    stop = ()

    def system(self, *, functions: Mapping[str, HostFunction], may_delegate: bool, child: bool) -> str:
        """Empty, or one sign for a node that cannot delegate. Functions are learnt from demonstrations."""
        del child
        check_functions(functions)
        return "" if may_delegate else ALONE

    def opening(self, host: Host, *, missing: Sequence[str]) -> str:
        keys = [" ".join(key.split()) for key in host.context]
        parts = [host.node.goal]
        if not host.reads_texts:  # the root sees keys only: it delegates the reading
            parts += [f"@{key}" for key in keys]
        else:
            parts += [f"@{key}\n{text}" for key, text in zip(keys, host.context.values(), strict=True)]
        return "\n".join([*parts, *(_unknown(key) for key in missing)])

    def results(self, results: Sequence[Result]) -> str:
        return "\n".join(result.text if result.label == NOTE else write(RESULT, result.text) for result in results)

    def remaining(self, remaining: Remaining) -> str:
        """Tokens, then clones if it may delegate, then seconds: `#600 12 30s`."""
        clones = [str(remaining.clones)] if remaining.levels > 0 else []
        seconds = [f"{remaining.seconds:.0f}s"] if remaining.seconds is not None else []
        return " ".join([f"#{remaining.tokens}", *clones, *seconds])

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
        complete = text if whole else text.rpartition("\n")[0]  # an incomplete last line is dropped
        turn = read(complete, functions=bool(self.host.functions))
        if turn.calls or turn.goals:
            return await self._carry_out(turn, whole=whole)
        if turn.answer is not None and whole:
            return Outcome(done=True, answer=turn.answer)
        return Outcome(results=[Result(NOTE, UNKNOWN if whole else CUT_OFF)], faults=1)

    async def close(self, text: str) -> Outcome:
        return Outcome(done=True, answer=final_answer(text, functions=bool(self.host.functions)))

    def answer_in_cut(self, text: str) -> CutAnswer | None:
        answer = final_answer(text, functions=bool(self.host.functions))
        return None if answer is None else CutAnswer(text=answer, marked=read(text).answer is not None)

    async def _carry_out(self, turn: ParsedTurn, *, whole: bool) -> Outcome:
        """Call functions, then run clones. Each line is a call, and those beyond the limit are refused."""
        most = self.host.budget.max_calls
        calls = turn.calls[:most]
        goals = turn.goals[: None if most is None else most - len(calls)]
        excess = len(turn.calls) + len(turn.goals) - len(calls) - len(goals)
        called, failed = await self._call(calls)
        cloned, refused = await self._delegate(goals)
        results = [*called, *cloned, *[Result("clone", REFUSED)] * excess]
        if not whole:
            results.append(Result(NOTE, CUT_OFF))
        faults = failed + refused + excess + (turn.answer is not None) + (not whole)
        action = (turn.calls, turn.goals) if turn.calls else turn.goals
        return Outcome(results=results, action=action, faults=faults)

    async def _call(self, lines: Sequence[str]) -> tuple[list[Result], int]:
        """The results of calls, and how many failed."""
        done = [await call_line(line, self.host.functions) for line in lines]
        limit = self.host.budget.max_result_chars
        results = [shorten([Result("call", cut(text, self.host.output_bytes))], limit)[0] for text, _ in done]
        return results, sum(failed for _, failed in done)

    async def _delegate(self, goals: Sequence[str]) -> tuple[list[Result], int]:
        """The results of clones, and how many were refused."""
        if not goals:
            return [], 0
        requests, limit = [self._request(goal) for goal in goals], self.host.budget.max_result_chars
        reports = await self.host.run_all(requests)
        results = [
            shorten([Result("clone", self._result_text(report, request))], limit)[0]
            for report, request in zip(reports, requests, strict=True)
        ]
        return results, sum(report.stop is None for report in reports)

    def _request(self, line: str) -> Request:
        """Parse `goal @key @key #tokens`. A key of the node may itself end like a number of tokens."""
        if not self.host.context:  # without texts, an `@` is part of the goal
            goal, tokens = split_tokens(line)
            return Request(goal=goal, tokens=tokens)
        goal, *keys = KEY.split(line)
        keys, tokens = [key.strip() for key in keys], None
        if not keys:
            goal, tokens = split_tokens(goal)
        elif keys[-1] not in self.host.context:
            keys[-1], tokens = split_tokens(keys[-1])
        return Request(goal=goal, context=keys, tokens=tokens)

    def _result_text(self, report: Report, request: Request) -> str:
        if report.stop is None and report.refused in ("malformed", "tokens") and request.tokens is not None:
            return f"{REFUSED} {TOKENS}"
        if report.stop is None:
            return SAME if report.refused == "same_goal" else REFUSED
        limited = "" if report.stop is Stop.ANSWERED else UNKNOWN
        answer = cut(report.answer, self.host.result_bytes) + limited if report.answer is not None else UNKNOWN
        return " ".join([answer, *map(_unknown, report.missing)])


def _unknown(key: str) -> str:
    """The mark for a key that does not exist."""
    return f"@{' '.join(key.split())}{UNKNOWN}"
