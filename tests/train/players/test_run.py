"""A whole run whose trees are played by another process, on a real engine."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from ramet.engine.local import LocalEngine
from ramet.errors import EngineError, RametError
from ramet.store import read_trees
from ramet.tokens.huggingface import load_renderer
from ramet.train.loop import resume, train
from ramet.types import Completion, Meter, Prompt
from tests.train import small


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small.folder(tmp_path_factory.mktemp("players"))


def test_a_run_with_players_learns_evaluates_and_is_resumed(tmp_path: Path, folder: Path) -> None:
    words = ["collect.processes=1", "steps=2", "overlap=1", "loss.kind=cispo", "eval.every=2", "eval.num_tasks=2"]
    run = train(small.config(folder, *words), runs=tmp_path)
    resume(run.path, steps=3)
    records = run.metrics()
    assert [record["step"] for record in records] == [0, 1, 2]
    assert "eval_success" in records[1]
    assert sum(record["engine_tokens"] for record in records) > 0
    trees = list(read_trees(run.path))
    played = [tree for tree in trees if not tree.id.startswith("eval-")]
    assert len(played) == 3 * 2 * 6
    assert all(turn.tokens > 0 for tree in played for node in tree.nodes for turn in node.turns)


def test_submitted_calls_bring_what_sampled_ones_do_and_can_be_cancelled(folder: Path) -> None:
    async def both() -> None:
        with LocalEngine(str(folder), renderer=load_renderer(folder), device="cpu", cache_tokens=2048) as engine:
            prompt = Prompt(messages=(), ids=(5, 6, 7, 8))
            sampled = await engine.sample(prompt, max_tokens=12, seed=3, stop_tokens=())
            ended, results = anyio.Event(), list[Completion | RametError]()

            def on_end(result: Completion | RametError) -> None:
                results.append(result)
                ended.set()

            def submit(max_tokens: int, meter: Meter) -> object:
                return engine.submit(
                    prompt, max_tokens=max_tokens, stop=(), temperature=1.0, seed=3, meter=meter, on_end=on_end
                )

            submit(12, Meter())
            await ended.wait()
            (result,) = results
            assert isinstance(result, Completion)
            same = min(len(result.token_ids), len(sampled.token_ids))
            assert result.token_ids[:same] == sampled.token_ids[:same]
            assert result.logprobs[:same] == pytest.approx(sampled.logprobs[:same], abs=1e-5)
            assert result.text == ""
            meter = Meter()
            cancel = submit(600, meter)
            assert callable(cancel)
            cancel()
            assert meter.partial is not None
            assert meter.partial().num_tokens == meter.tokens
            await engine.sample(prompt, max_tokens=2, seed=4)
            assert len(results) == 1
            with pytest.raises(EngineError, match="non-empty prompt"):
                submit(0, Meter())

    anyio.run(both)
