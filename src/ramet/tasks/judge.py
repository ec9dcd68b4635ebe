"""A verdict by a model: the same one, or another."""

from __future__ import annotations

import json
from typing import cast

import json_repair

from ramet.agent.wording import after_thoughts, cut
from ramet.interfaces import Engine
from ramet.types import Message, Node, Prompt, Tree, Verdict

SYSTEM = """You grade how well an agent did one task. Judge only from what is shown.
Fail an agent that only passed its whole task on, gave up, or made its answer up.
Reply with one line of JSON: {"reason": "one sentence", "score": a number from 0 (failed) to 1 (done)}"""


class Judge:
    """Asks an engine for a verdict, twice at most.

    Example:
        Judge(HttpEngine("http://127.0.0.1:8000/v1", model="bigger-model"))
    """

    def __init__(self, engine: Engine, *, max_tokens: int = 256, show_bytes: int = 6000) -> None:
        self.engine = engine
        self.max_tokens = max_tokens
        self.show_bytes = show_bytes
        self.tokens = 0  # what judging has generated so far: no tree's budget pays for it

    async def verdict(self, node: Node, tree: Tree) -> Verdict | None:
        """None when two replies in a row cannot be read: never silently a zero."""
        for _ in range(2):
            verdict = read_verdict(await self._ask(self._question(node, tree)))
            if verdict is not None:
                return verdict
        return None

    def _question(self, node: Node, tree: Tree) -> str:
        parts = [f"Task:\n{node.goal}"]
        if node.parent is None and tree.task.reference is not None:
            parts.append(f"Right answer:\n{_answer(tree.task.reference)}")
        done = "\n".join(piece.text for piece in node.pieces[1:])
        parts.append(f"What the agent did:\n{cut(done, self.show_bytes)}")
        parts.append(f"Its answer:\n{node.answer if node.answer is not None else '(none)'}")
        return "\n\n".join(parts)

    async def _ask(self, question: str) -> str:
        messages = (Message("system", SYSTEM), Message("user", question))
        renderer = self.engine.renderer
        ids = renderer.open(SYSTEM, question).token_ids if renderer.exact else None
        prompt = Prompt(messages=messages, ids=ids, node_id="judge", goal=question)
        completion = await self.engine.sample(prompt, max_tokens=self.max_tokens, temperature=0.0)
        self.tokens += completion.num_tokens
        return completion.text


def _answer(reference: object) -> object:
    """What a judge may see of a reference: the answer, not everything that was hidden with it."""
    if isinstance(reference, dict):
        return cast(dict[str, object], reference).get("answer", "(unknown)")
    return reference


def read_verdict(text: str) -> Verdict | None:
    """The verdict in a reply, or None.

    Example:
        read_verdict('{"reason": "as asked", "score": 1}')  # Verdict(score=1.0, how='judge', reason='as asked')
    """
    text = after_thoughts(text)
    start, end = text.find("{"), text.rfind("}")
    if start < 0:
        return None
    try:
        loaded: object = json.loads(text[start : end + 1])
    except json.JSONDecodeError:
        loaded = cast(object, json_repair.loads(text[start:]))
    if not isinstance(loaded, dict):
        return None
    said = cast(dict[str, object], loaded)
    score = said.get("score", said.get("success"))
    if not isinstance(score, (int, float)) or not 0 <= score <= 1:
        return None
    return Verdict(score=float(score), how="judge", reason=str(said.get("reason", "")))
