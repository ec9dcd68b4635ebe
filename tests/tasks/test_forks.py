"""Worlds of tasksets are rebuilt by calling their functions again: a fork of an oracle's tree ends like the tree."""

from __future__ import annotations

import anyio
import pytest

from ramet.agent.fork import ForkRun
from ramet.agent.options import TreeOptions
from ramet.agent.recording import ForkPoint, Replayable
from ramet.engine.scripted import ScriptedEngine, WordTokenizer
from ramet.interfaces import Taskset
from ramet.tasks.play import demonstrate, goal_comparison, grade
from ramet.tasks.registry import load_taskset
from ramet.tokens.render import TokenRenderer
from ramet.types import Prompt, Tree, Verdict


async def fork_at(taskset: Taskset, tree: Tree, turn: int, renderer: TokenRenderer) -> Tree:
    """A fork of the root that continues as recorded."""
    texts = {node.path: [piece.text for piece in node.pieces if piece.sampled] for node in tree.nodes}

    def script(prompt: Prompt) -> str:
        node = run.tree.nodes[int(prompt.node_id.rpartition("/")[2])]
        return texts[node.path][prompt.turn]

    options = TreeOptions(
        engine=ScriptedEngine(script, renderer=renderer),
        world=taskset.world(tree.task),
        same_goal=goal_comparison(taskset, tree.task),
    )
    run = ForkRun(tree, ForkPoint(node=0, turn=turn), options)
    forked = await run.run()
    await grade(forked, taskset, run.tree_run.world)
    return forked


def verdicts(tree: Tree) -> dict[tuple[int, ...], tuple[str | None, Verdict | None]]:
    return {node.path: (node.answer, node.verdict) for node in tree.nodes}


@pytest.mark.parametrize(
    ("name", "split", "dialect"),
    [
        ("codes", "train", "terse"),
        ("arithmetic", "train", "python"),
        ("craft", "train", "tools"),
        ("number_search", "train", "tools"),
        ("multihop", "train", "tools"),
    ],
)
def test_a_fork_of_the_oracles_tree_ends_like_the_tree(name: str, split: str, dialect: str) -> None:
    taskset, renderer = load_taskset(name), TokenRenderer(WordTokenizer())

    async def work() -> int:
        nodes = 0
        for index in range(3):
            tree = await demonstrate(taskset, taskset.task(split, index), dialect=dialect, renderer=renderer)
            nodes += len(tree.nodes)
            for turn in range(len(tree.root.turns)):
                assert verdicts(await fork_at(taskset, tree, turn, renderer)) == verdicts(tree)
        return nodes

    assert anyio.run(work) > 3  # there are clones to repeat


@pytest.mark.parametrize(("name", "matters"), [("craft", True), ("number_search", True)])
def test_a_world_with_functions_declares_whether_the_order_of_calls_matters(name: str, matters: bool) -> None:
    taskset = load_taskset(name)
    world = taskset.world(taskset.task("train", 0))
    assert isinstance(world, Replayable)
    assert world.order_matters is matters
