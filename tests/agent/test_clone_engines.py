"""Clones with an engine of their own: another renderer, another window, a model in this process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

import ramet
from ramet import Budget, Completion, Prompt, ScriptedEngine, Stop
from ramet.engine.open import open_clone_engine
from ramet.engine.settings import EngineConfig
from tests.agent.scripts import delegate


@dataclass
class Narrow:
    """An engine whose model has a small window, and that fails when a prompt does not fit, as a local one does."""

    inner: ScriptedEngine
    window: int
    sizes: list[int] = field(default_factory=list[int])

    @property
    def renderer(self) -> Any:
        return self.inner.renderer

    async def sample(self, prompt: Prompt, *, max_tokens: int, **how: Any) -> Completion:
        assert prompt.ids is not None
        self.sizes.append(len(prompt.ids) + max_tokens)
        if self.sizes[-1] > self.window:
            raise ramet.EngineError("does not fit")
        return await self.inner.sample(prompt, max_tokens=max_tokens, **how)


@pytest.mark.anyio
async def test_a_clone_stays_within_the_window_of_its_own_model():
    """Each turn of a clone adds 40 tokens. At 500 tokens it is asked for its answer, the root has 100,000."""
    call = '<tool_call>{"name": "nothing", "arguments": {}}</tool_call> ' + "w " * 20
    clones = Narrow(ScriptedEngine(lambda prompt: "Answer: enough" if prompt.closing else call), window=500)
    root = ScriptedEngine(lambda prompt: "Answer: done" if prompt.turn else delegate("a part"))
    budget = Budget(tokens=5000, window=100_000, reserve=20, turns=50)
    tree = await ramet.run("root", engine=root, clone_engine=clones, budget=budget)
    assert (tree.nodes[1].answer, tree.nodes[1].stop) == ("enough", Stop.WINDOW)
    assert len(clones.sizes) > 2
    assert max(clones.sizes) <= 500
    assert tree.answer == "done"


@pytest.mark.anyio
async def test_a_goal_that_does_not_fit_the_window_of_the_clones_is_refused():
    clones = Narrow(ScriptedEngine(lambda _: "Answer: never asked"), window=60)
    root = ScriptedEngine(lambda prompt: "Answer: done" if prompt.turn else delegate("a part"))
    tree = await ramet.run("root", engine=root, clone_engine=clones, budget=Budget(tokens=5000, window=100_000))
    assert (len(tree.nodes), clones.sizes) == (1, [])
    read = "".join(piece.text for piece in tree.root.pieces if not piece.sampled)
    assert "a window holds 60: hand over less" in read


@pytest.mark.anyio
async def test_clones_of_a_root_on_a_server_are_sampled_by_a_model_in_this_process():
    """The root is text from a server without token ids, its clones are the nano model, with ids and log-probs."""
    server, local = EngineConfig(base_url="http://host/v1", model="m"), EngineConfig(kind="local", model="nano")
    clones = open_clone_engine(server, local)
    assert clones is not None
    root = ScriptedEngine(lambda prompt: "= done" if prompt.turn else "> 1 2 3\n> 4 5 6", token_ids=False)
    budget = Budget(tokens=200, window=100_000, reserve=4, depth=1)
    with clones:  # pyright: ignore[reportGeneralTypeIssues, reportUnknownMemberType]
        tree = await ramet.run("root", engine=root, clone_engine=clones, dialect="terse", budget=budget, seed=0)
    assert tree.answer == "done"
    assert [node.parent for node in tree.nodes] == [None, 0, 0]
    for clone in tree.nodes[1:]:
        assert clone.stop is not Stop.ERROR, clone.error
        said = [piece for piece in clone.pieces if piece.sampled]
        assert said
        assert all(len(piece.token_ids) == len(piece.logprobs) > 0 for piece in said)
    assert not tree.root.pieces[1].token_ids
    assert tree.usage.tokens + tree.usage.lost_tokens <= 200
