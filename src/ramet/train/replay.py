"""Trees of another model, said again in this model's tokens.

A tree that came over HTTP holds the other model's ids, or none. Its words are played through the real runtime once
more, so that prompts, results and turns are exactly what this model would see.
"""

from __future__ import annotations

from dataclasses import replace

from ramet.agent.tree import TreeRun
from ramet.engine.scripted import ScriptedEngine
from ramet.errors import ConfigError, EngineError
from ramet.interfaces import Taskset
from ramet.tokens.render import TokenRenderer
from ramet.types import Node, Piece, Prompt, Stop, Tree

NO_LIMIT = 2**40  # tokens are counted otherwise here: what fitted there has to fit


def speaks(renderer: TokenRenderer, tree: Tree) -> bool:
    """Whether a tree was sampled in these tokens: its ids spell what was said."""
    return all(_spelled(renderer, node) for node in tree.nodes)


def _spelled(renderer: TokenRenderer, node: Node) -> bool:
    try:
        return all(_spells(renderer, piece) for piece in node.pieces)
    except (IndexError, OverflowError):  # an id this tokenizer does not have
        return False


def _spells(renderer: TokenRenderer, piece: Piece) -> bool:
    if piece.sampled:
        return renderer.decode(piece.token_ids) == piece.text
    # The end of a turn that the model wrote itself is in the text of what came next, but not in its ids.
    return bool(piece.token_ids) and piece.text.endswith(renderer.tokenizer.decode(piece.token_ids))


async def replay(tree: Tree, *, renderer: TokenRenderer, taskset: Taskset | None) -> Tree | None:
    """The same tree in the tokens of `renderer`; None when it cannot be had.

    Every node has to have answered by itself, for a node that was cut short was told so in words of that moment. A tree
    that does not come out with the same answers, because its world has changed say, is not shown.
    """
    said = {node.path: [piece.text for piece in node.pieces if piece.sampled] for node in tree.nodes}
    if any(node.stop is not Stop.ANSWERED for node in tree.nodes):
        return None

    def script(prompt: Prompt) -> str:
        node = run.tree.nodes[int(prompt.node_id.rpartition("/")[2])]
        turns = said.get(node.path, [])
        return turns[prompt.turn] if prompt.turn < len(turns) else ""

    loose = replace(tree.budget, tokens=NO_LIMIT, context=NO_LIMIT, node_tokens=None, seconds=None, money=None)
    try:
        run = TreeRun(
            tree.task,
            engine=ScriptedEngine(script, renderer=renderer),
            budget=loose,
            dialect=tree.dialect,
            world=None if taskset is None else taskset.world(tree.task),
        )
        again = await run.run()
    except (ConfigError, EngineError):
        return None
    if _answers(again) != _answers(tree):
        return None
    again.id = tree.id
    verdicts = {node.path: node.verdict for node in tree.nodes}
    for node in again.nodes:
        node.verdict = verdicts[node.path]
    return again


def _answers(tree: Tree) -> dict[tuple[int, ...], str | None]:
    return {node.path: node.answer for node in tree.nodes}
