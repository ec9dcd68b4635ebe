"""Trees of another model, replayed in this model's tokens.

A tree that came over HTTP holds the other model's ids, or none. Its text is run through the real runtime again, so that
prompts, results and turns are exactly what this model would see.
"""

from __future__ import annotations

from dataclasses import replace

from ramet.agent.options import TreeOptions
from ramet.agent.tree import TreeRun
from ramet.budget import Budget
from ramet.engine.scripted import Reply, ScriptedEngine
from ramet.errors import ConfigError, EngineError
from ramet.interfaces import Taskset
from ramet.tasks.play import options_for_task
from ramet.tokens.render import TokenRenderer
from ramet.types import Node, Piece, Prompt, Stop, Tree

NO_LIMIT = 2**40  # this tokenizer counts differently: what fitted there has to fit here


def uses_tokens_of(renderer: TokenRenderer, tree: Tree) -> bool:
    """Whether a tree was sampled in these tokens: its ids decode to its text."""
    return all(_spelled(renderer, node) for node in tree.nodes)


def _spelled(renderer: TokenRenderer, node: Node) -> bool:
    try:
        return all(_spells(renderer, piece) for piece in node.pieces)
    except (IndexError, OverflowError):  # an id this tokenizer does not have
        return False


def _spells(renderer: TokenRenderer, piece: Piece) -> bool:
    if piece.sampled:
        return renderer.decode(piece.token_ids) == piece.text
    # The end-of-turn token that the model wrote itself is in the text of the next piece, but not in its ids.
    return bool(piece.token_ids) and piece.text.endswith(renderer.tokenizer.decode(piece.token_ids))


async def replay(
    tree: Tree,
    *,
    renderer: TokenRenderer,
    taskset: Taskset | None,
    instructions: str = "",
    delegate_instructions: str = "",
) -> Tree | None:
    """The same tree in the tokens of `renderer`; None when it cannot be replayed.

    Every node must have answered by itself: the prompts of a node that hit a limit depend on the moment. A tree that
    ends with other answers, for example because its world has changed, is dropped.
    """
    turns = {node.path: [piece for piece in node.pieces if piece.sampled] for node in tree.nodes}
    if any(node.stop is not Stop.ANSWERED for node in tree.nodes):
        return None

    def script(prompt: Prompt) -> Reply:
        node = run.tree.nodes[int(prompt.node_id.rpartition("/")[2])]
        own = turns.get(node.path, [])
        if prompt.turn >= len(own):
            return Reply(text="")
        return Reply(text=own[prompt.turn].text, taught=own[prompt.turn].taught)

    refused = _refused_kinds(tree)
    options = TreeOptions(
        engine=ScriptedEngine(script, renderer=renderer),
        budget=_without_limits(tree.budget),
        dialect=tree.dialect,
        allow_same_goal="same_goal" not in refused,
        allow_impossible="impossible" not in refused,
        instructions=instructions,
        delegate_instructions=delegate_instructions,
    )
    try:
        options = options if taskset is None else options_for_task(taskset, tree.task, options)
        run = TreeRun(tree.task, options)
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


def _without_limits(budget: Budget) -> Budget:
    """The budget without limits that depend on tokens or time, which differ in another model's tokens."""
    no_caps = dict.fromkeys(("node_tokens", "root_tokens", "clone_tokens", "path_tokens", "seconds", "money"))
    return replace(budget, tokens=NO_LIMIT, window=NO_LIMIT, **no_caps)


def _answers(tree: Tree) -> dict[tuple[int, ...], str | None]:
    return {node.path: node.answer for node in tree.nodes}


def _refused_kinds(tree: Tree) -> set[str]:
    return {refusal.kind for node in tree.nodes for turn in node.turns for refusal in turn.refusals}
