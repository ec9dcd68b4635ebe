"""An oracle that makes mistakes in a share of its nodes, reads what comes of them, and mends them.

It wraps the oracle of any taskset. A mistaken turn carries no loss. The turns after it do: the same move in its right
form, a part asked for again, the work done alone, or a plain report that it could not be done and what is missing. The
wrapped oracle sees only results of right moves.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ramet.interfaces import Ask, Do, Move, Oracle, View
from ramet.tasks.dice import Dice
from ramet.types import Slip

Kind = Literal["slip", "own goal", "forget", "spoil", "many", "misdo", "misanswer"]
Results = tuple[str, ...]

AGAIN = " (second try)"  # after a goal that is asked for once more
STUBBORN = 0.3  # how often a clone that failed fails again when it is asked once more
SLIPS: tuple[Slip, ...] = ("name", "argument", "syntax")
COULD_NOT = "Could not"
REFUSED = re.compile(r"\[?refused: ")
NO_ANSWER = re.compile(r"\[?no answer|\(partial, |\?$|$")
ALONE = "I do it myself"
ANSWER_MARK = re.compile(r"(answers?)\s*:", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrong:
    """A wrong request in place of a right one, and the line with which the node corrects itself afterwards."""

    ask: Ask
    line: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """Whether a clone's answer can be used, and a line about it for the parent's thought."""

    ok: bool = True
    line: str = ""


def _nothing(*_: object) -> None:
    """No mistake of this kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """What a taskset adds to the mistakes that all nodes can make.

    spoil        a wrong request to a clone: a wrong part, the wrong texts
    many         more parts than one call may start, of which the wrapped oracle can put together the results
    misdo        a wrong call of a function, in place of a right one
    misanswer    a wrong answer of a clone, which its parent can notice; None: the clone gives up
    check        of a clone's answer that is not a report of failure
    settles      whether the answer to one request makes the others needless
    impossible   why a node cannot do what it was asked for; None if it can
    label        what a request is called in reports
    """

    verb: str  # of reports: "Could not {verb}: ..."
    works_alone: bool = True  # whether a root can finish without clones
    spoil: Callable[[Ask, Dice], Wrong | None] = _nothing
    many: Callable[[View], tuple[Ask, ...] | None] = _nothing
    misdo: Callable[[Do, Dice], Do | None] = _nothing
    misanswer: Callable[[View, str, Dice], str | None] = _nothing
    check: Callable[[Ask, str], Check] = lambda _ask, _told: Check()
    settles: Callable[[Ask, str], bool] = lambda _ask, _told: False
    impossible: Callable[[View], str | None] = _nothing
    label: Callable[[Ask], str] = lambda ask: ask.goal

    def report(self, reason: str) -> str:
        """What a node answers that failed. Dialects look for the answer after `answer:`, so that is left out."""
        return f"{COULD_NOT} {self.verb}: " + ANSWER_MARK.sub(r"\1", reason)


class Erring:
    """The wrapped oracle, making mistakes in the share `mistakes` of the nodes. `solo` moves without clones."""

    def __init__(
        self, oracle: Oracle, *, solo: Oracle, habits: Habits, mistakes: float, seed: Sequence[object]
    ) -> None:
        self.oracle = oracle
        self.solo = solo
        self.habits = habits
        self.mistakes = mistakes
        self.seed = tuple(seed)

    def move(self, view: View) -> Move:
        """The next move, found by going through all moves so far again."""
        moves = NodeWork(self, view).moves()
        move = next(moves)
        for results in view.history:
            move = moves.send(results)
        return move


class NodeWork:
    """One node: the mistake it makes, if any, and how it goes on."""

    def __init__(self, erring: Erring, view: View) -> None:
        self.oracle, self.solo, self.habits = erring.oracle, erring.solo, erring.habits
        self.view = replace(view, goal=view.goal.removesuffix(AGAIN), history=())
        self.dice = Dice("mistake", *erring.seed, self.view.goal, view.depth)
        self.problem = self.habits.impossible(self.view)
        self.notes: list[str] = []  # lines for the next thought
        self.reason = ""  # of a failure
        self.kind: Kind | None = None
        self.wrong: dict[int, Wrong] = {}  # by place of the right request in the first move
        self.slip: Slip = ""
        if self.problem is None and self.dice.chance(erring.mistakes):
            self._draw(again=view.goal.endswith(AGAIN))

    def moves(self) -> Generator[Move, Results, None]:
        """All moves. An answer ends the node."""
        if self.kind == "misanswer":
            yield from self._misanswer()
        oracle, results = self.oracle, list[Results]()
        while self.problem is None:
            move = oracle.move(replace(self.view, history=tuple(results)))
            if move.answer is not None:
                yield from self._answer(move)
            told = yield from self._act(move)
            if told is not None:
                results.append(told)
            elif oracle is not self.solo and self._can_do_alone:
                oracle, results = self.solo, list[Results]()
                self.notes.append(f"{ALONE}.")
            else:
                self.problem = self.reason
        while True:
            yield Move(answer=self.habits.report(self.problem))

    # The mistake.

    def _draw(self, *, again: bool) -> None:
        """One of the mistakes that the node can make with its first move."""
        first = self.oracle.move(self.view)
        kinds: list[Kind] = ["slip", "own goal"]
        if first.answer is None:
            kinds += self._kinds_of_acting(first)
        if self.view.depth > 0:
            kinds.append("misanswer")
        self.kind = self.dice.pick(kinds)
        self.slip = self.dice.pick(SLIPS)
        stubborn = self.dice.chance(STUBBORN)
        if again and not (self.kind == "misanswer" and stubborn):
            self.kind = None

    def _kinds_of_acting(self, first: Move) -> list[Kind]:
        kinds: list[Kind] = []
        if len(first.asks) > 1:
            kinds.append("forget")
        if first.asks:
            place = self.dice.below(len(first.asks))
            wrong = self.habits.spoil(first.asks[place], self.dice)
            if wrong is not None:
                self.wrong[place] = wrong
                kinds.append("spoil")
        if first.asks and self.habits.many(self.view) is not None:
            kinds.append("many")
        if first.does and self.habits.misdo(first.does[0], Dice("misdo", self.view.goal)) is not None:
            kinds.append("misdo")
        return kinds

    def _answer(self, move: Move) -> Generator[Move, Results, None]:
        """Answer, after the mistake if it is still to come. Never returns."""
        kind, self.kind = self.kind, None
        if kind == "own goal":
            yield self._own_goal()
        if kind == "slip":
            yield replace(move, slip=self.slip, mistake=True)
            move = replace(move, thought="")
        move = self._with_notes(move)
        while True:
            yield move

    def _misanswer(self) -> Generator[Move, Results, None]:
        """Answer at once, without working it out. Never returns."""
        right = self.solo.move(self.view).answer
        wrong = None if right is None else self.habits.misanswer(self.view, right, self.dice)
        while True:
            yield Move(answer=wrong or self.habits.report("I lost track"), mistake=True)

    def _own_goal(self) -> Move:
        return Move(asks=(Ask(goal=self.view.goal),), mistake=True)

    def _act(self, move: Move) -> Generator[Move, Results, Results | None]:
        """Carry out a move, after the mistake if it is still to come. None: clones failed for good."""
        kind, self.kind = self.kind, None
        move = self._with_notes(move)
        told: dict[int, str] = {}
        if kind == "own goal":
            yield self._own_goal()
        elif kind == "slip":
            yield replace(move, slip=self.slip, mistake=True)
            move = replace(move, thought="")
        elif kind == "misdo":
            wrong = self.habits.misdo(move.does[0], Dice("misdo", self.view.goal))
            yield replace(move, does=(wrong or move.does[0],), mistake=True)
            move = replace(move, thought="")
        elif kind in ("forget", "spoil"):
            told = yield from self._ask_wrongly(move, kind)
            move = replace(move, thought="\n".join(self._corrections(move, kind, told)))
        elif kind == "many":
            move = replace(move, asks=self.habits.many(self.view) or move.asks)
            results = yield replace(move, mistake=True)
            told = {i: text for i, text in enumerate(results) if not REFUSED.match(text)}
            move = replace(move, thought=f"Not started: {len(move.asks) - len(told)} of {len(move.asks)}")
        return (yield from self._carry_out(move, told))

    def _ask_wrongly(self, move: Move, kind: Kind) -> Generator[Move, Results, dict[int, str]]:
        """Forget one request or get one wrong; returns the results of the right ones by place."""
        place = next(iter(self.wrong)) if kind == "spoil" else self.dice.below(len(move.asks))
        asks = list(enumerate(move.asks))
        right = [(i, ask) for i, ask in asks if i != place]
        said = [self.wrong[i].ask if i == place else ask for i, ask in (asks if kind == "spoil" else right)]
        results = yield replace(move, asks=tuple(said), mistake=True)
        told = dict(zip((i for i, _ in (asks if kind == "spoil" else right)), results, strict=False))
        if kind == "spoil" and not self.habits.settles(move.asks[place], told.get(place, "")):
            told.pop(place, None)
        return told

    def _corrections(self, move: Move, kind: Kind, told: Mapping[int, str]) -> list[str]:
        """How the node notices that a part is wrong or was left out."""
        if kind == "spoil":
            return [wrong.line for wrong in self.wrong.values()]
        return [f"Not asked yet: {self.habits.label(ask)}" for i, ask in enumerate(move.asks) if i not in told]

    # Right moves, and what goes wrong with them.

    def _with_notes(self, move: Move) -> Move:
        thought = "\n".join([*self.notes, move.thought] if move.thought else self.notes)
        self.notes = []
        return replace(move, thought=thought)

    def _carry_out(self, move: Move, told: Mapping[int, str]) -> Generator[Move, Results, Results | None]:
        """Call the functions, ask for the parts not told yet, and once more for those that failed."""
        if self._is_settled(move.asks, told):
            return tuple(told.get(i, "") for i in range(len(move.asks)))
        todo = [i for i in range(len(move.asks)) if i not in told]
        results: Results = ()
        if todo or move.does:
            results = yield replace(move, asks=tuple(move.asks[i] for i in todo))
        if not move.asks:
            return results
        done, told = results[: len(move.does)], {**told, **dict(zip(todo, results[len(move.does) :], strict=False))}
        failed = {} if self._is_settled(move.asks, told) else self._failures(move.asks, told)
        if failed and not any(REFUSED.match(told.get(i, "")) for i in failed):
            thought = "\n".join([*self.notes, *(line for line in failed.values() if line)])
            again = [replace(move.asks[i], goal=move.asks[i].goal + AGAIN) for i in failed]
            self.notes = []
            results = yield Move(thought=thought, asks=tuple(again))
            told = {**told, **dict(zip(failed, results, strict=False))}
            failed = self._failures(move.asks, told, among=tuple(failed))
        if failed:
            labels = "; ".join(self.habits.label(move.asks[i]) for i in failed)
            self.reason = f"no clone could do this: {labels}"
            own = self._do_alone({i: move.asks[i] for i in failed})
            if own is None:
                return None
            told = {**told, **own}
        return (*done, *(told.get(i, "") for i in range(len(move.asks))))

    def _is_settled(self, asks: Sequence[Ask], told: Mapping[int, str]) -> bool:
        return any(self.habits.settles(asks[i], text) for i, text in told.items())

    @property
    def _can_do_alone(self) -> bool:
        return self.habits.works_alone or self.view.depth > 0

    def _do_alone(self, asks: Mapping[int, Ask]) -> dict[int, str] | None:
        """Do parts in the next thought; None if that takes more than a thought, or texts that the node cannot read."""
        if not self._can_do_alone:
            return None
        moves = {
            i: self.solo.move(replace(self.view, goal=ask.goal, depth=self.view.depth + 1)) for i, ask in asks.items()
        }
        own = {i: move.answer for i, move in moves.items() if move.answer is not None}
        if len(own) < len(asks):
            return None
        for i, move in moves.items():
            lines = (f"{ALONE}: {self.habits.label(asks[i])}", move.thought)
            self.notes += [line for line in lines if line]
        return own

    def _failures(
        self, asks: Sequence[Ask], told: Mapping[int, str], *, among: Sequence[int] | None = None
    ) -> dict[int, str]:
        """Places of requests without a usable answer, with a line for a thought. Checks that pass are noted."""
        failed: dict[int, str] = {}
        for i in range(len(asks)) if among is None else among:
            text = told.get(i, "")
            if text.startswith(COULD_NOT) or REFUSED.match(text) or NO_ANSWER.match(text):
                failed[i] = f"No result for: {self.habits.label(asks[i])}"
                continue
            check = self.habits.check(asks[i], text)
            if not check.ok:
                failed[i] = check.line
            elif check.line:
                self.notes.append(check.line)
        return failed
