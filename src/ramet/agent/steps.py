"""What a node reads before each turn: results, what it may still spend, and the call to answer.

Every ordinary step leaves room for the node's answer. Results that do not fit are shortened, all to the same length.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ramet.agent.toolcalls import messages_text
from ramet.agent.wording import cut, num_bytes
from ramet.interfaces import Result
from ramet.types import Message, Piece, Stop, clean

if TYPE_CHECKING:
    from ramet.agent.node import NodeRun

SHORTEST_RESULT = 64  # bytes; results are not cut below this to make room for another ordinary turn


@dataclass(slots=True, kw_only=True)
class Step:
    """A turn about to be taken: the messages that open it, and how many tokens may be sampled."""

    messages: list[Message]
    piece: Piece | None  # the messages as rendered; None when there is nothing to say
    size: int  # of the window, messages included
    closing: Stop | None  # the limit that makes this the last turn
    cap: int = 0
    only: bool = False  # the budget allows one turn in all


class Steps:
    """Plans the turns of one node. `results` go into the next message."""

    def __init__(self, node_run: NodeRun) -> None:
        self.node_run = node_run
        self.results: list[Result] = []

    def next(self) -> Step | Stop:
        """The next ordinary turn, or the limit that leaves room for the answer only."""
        limits, transcript = self.node_run.limits, self.node_run.transcript
        budget = self.node_run.tree_run.budget
        turns, allowed = len(self.node_run.node.turns), budget.turns
        if allowed == 1 and not turns:
            return self._only()
        if turns >= allowed - 1:
            return Stop.TURNS
        if budget.repeats is not None and self.node_run.repeats.count >= budget.repeats:
            return Stop.REPEATS
        step = self._step(None)
        cap, why = limits.cap(step.size, closing=False)
        if cap < limits.reserve and why is Stop.WINDOW and self.results:
            # Shorter results may leave room for an ordinary turn.
            room = limits.room(transcript.size, closing=False)
            step = self._fitting(room, closing=None, floor=SHORTEST_RESULT) or step
            cap, why = limits.cap(step.size, closing=False)
        step.cap = cap
        return step if cap >= limits.reserve else why

    def last(self, why: Stop) -> Step:
        """The closing turn. Results are shortened or dropped as far as the answer needs room."""
        limits, node = self.node_run.limits, self.node_run.node
        room = limits.room(self.node_run.transcript.size, closing=True)
        step = self._fitting(room, closing=why, floor=0)
        if step is None:
            self.results = [Result("note", f"{len(self.results)} results do not fit here")]
            step = self._fitting(room, closing=why, floor=0)
        if step is None:
            self.results = []
            self.node_run.transcript.write_out_calls()
            step = self._step(why)
        cap, _ = limits.cap(step.size, closing=True)
        step.cap = int(min(cap, self.node_run.tokens_in_time))
        if sum(turn.finish != "cut" for turn in node.turns) >= self.node_run.tree_run.budget.turns:
            step.cap = 0
        return step

    def _only(self) -> Step:
        """The turn of a node that has one in all: its text is the answer, without a call to answer."""
        step = self._step(None)
        step.only = True
        step.cap, _ = self.node_run.limits.cap(step.size, closing=True)
        return step

    def _step(self, closing: Stop | None) -> Step:
        """The results, what is left to spend, and the call to answer: one message, or more with native calls."""
        transcript = self.node_run.transcript
        messages = self._messages(closing)
        if not messages:
            return Step(messages=[], piece=None, size=transcript.size, closing=closing)
        piece = transcript.render(messages_text(messages))
        size = transcript.size + transcript.renderer.size(piece)
        return Step(messages=messages, piece=piece, size=size, closing=closing)

    def _messages(self, closing: Stop | None) -> list[Message]:
        tree_run, calls = self.node_run.tree_run, self.node_run.transcript.calls
        dialect, notes = tree_run.dialect, list[str]()
        if tree_run.options.show_budget and (self.results or closing):
            notes.append(tree_run.remaining(self.node_run))
        if closing is not None:
            notes.append(dialect.closing(closing))
        override = self._override()
        if tree_run.native is not None:
            messages = tree_run.native.messages(
                self.results, calls, note="\n\n".join(notes if override is None else [override])
            )
            return [replace(message, content=clean(message.content)) for message in messages]
        parts = [dialect.results(self.results), *notes] if self.results else notes
        parts = parts if override is None else [override]
        return [Message("user", clean("\n\n".join(parts)))] if parts else []

    def _override(self) -> str | None:
        """The message that a fork puts before this turn."""
        node, override = self.node_run.node, self.node_run.tree_run.options.message_override
        if override is None or not override.turn or not override.at(node.path, len(node.turns)):
            return None
        return override.text

    def _fitting(self, room: int, *, closing: Stop | None, floor: int) -> Step | None:
        """The step with all results cut to the largest common length that fits; None when `floor` does not fit."""
        whole, most = self.results, self.node_run.transcript.size + room

        def shortened(limit: int) -> Step:
            self.results = [replace(result, text=cut(result.text, limit)) for result in whole]
            return self._step(closing)

        step = self._step(closing)
        if step.size <= most:
            return step
        low, high = floor, max((num_bytes(result.text) for result in whole), default=0)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if shortened(middle).size <= most else (low, middle - 1)
        step = shortened(low)
        if step.size <= most:
            return step
        self.results = whole
        return None
