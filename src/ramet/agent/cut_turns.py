"""The answer of a node whose call for it did not end by itself.

A closing call that ends by itself has the answer. One that is cut off, by the deadline or by its cap, is weighed
against what was there when it began: the turn that the deadline had cut, and the answers of the clones of the last
whole turn. A text that is marked as the answer (`Answer: ...`) is better than one that is not, thoughts are used only
if there is nothing else, and of two alike the longer one is better: two words of a closing call do not replace a page.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ramet.agent.wording import END_THINK, THINK, after_thoughts, is_thinking, turn_text
from ramet.interfaces import ReadsCutTurns, Session
from ramet.types import Node, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A text that could be the answer."""

    text: str
    marked: bool = False
    thoughts: bool = False

    @property
    def rank(self) -> tuple[bool, bool, int]:
        return not self.thoughts, self.marked, len(self.text)


def is_final(node: Node) -> bool:
    """Whether the answer of a node needs no comparison: its last turn was not cut off, or a type was checked."""
    if node.answer is None:
        return False
    last = node.turns[-1]
    cut_off = last.finish == "cut" or (last.closing is not None and last.finish == "length")
    return node.value is not None or not cut_off


def best_answer(node: Node, nodes: Sequence[Node], session: Session) -> str | None:
    """The best of what a node has to say when its time is up; the later of two that are equally good."""
    if not node.turns or is_final(node):
        return node.answer
    candidates = list(_candidates(node, nodes, session))
    return max(candidates, key=lambda found: found.rank).text if candidates else None


def _candidates(node: Node, nodes: Sequence[Node], session: Session) -> Iterator[Candidate]:
    """What could be the answer, the latest first, back to the last whole turn."""
    sampled = [turn_text(given.text, piece.text) for given, piece in pairwise(node.pieces) if piece.sampled]
    for turn, text in zip(reversed(node.turns), reversed(sampled), strict=False):
        found = _in_turn(turn, text, node.answer, session)
        if found is not None:
            yield found
        answers = [nodes[index].answer for index in turn.children]
        together = "\n".join(answer for answer in answers if answer)
        if together:
            yield Candidate(text=together)
        if turn.finish != "cut" and turn.closing is None:
            return


def _in_turn(turn: Turn, text: str, answer: str | None, session: Session) -> Candidate | None:
    """The answer in a turn that was cut off. The cell of a closing turn may have run: its answer is not in the text."""
    if turn.finish != "cut" and turn.closing is None:
        return None
    found = in_text(text, session)
    if turn.finish == "cut" or answer is None:
        return found
    return Candidate(text=answer, marked=found is None or found.marked, thoughts=found is not None and found.thoughts)


def in_text(text: str, session: Session) -> Candidate | None:
    """What a session reads in a text that was cut off, or else the thoughts in it."""
    said = "" if is_thinking(text) else after_thoughts(text)
    found = session.answer_in_cut(said) if said.strip() and isinstance(session, ReadsCutTurns) else None
    if found is not None:
        return Candidate(text=found.text, marked=found.marked)
    thoughts = text.partition(THINK)[2].partition(END_THINK)[0].strip() if text.lstrip().startswith(THINK) else ""
    return Candidate(text=thoughts, thoughts=True) if thoughts else None
