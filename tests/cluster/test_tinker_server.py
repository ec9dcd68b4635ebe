"""Training on a real server of the Tinker API: SkyRL 0.3.0 on JAX, from its wheels, with a tiny Qwen3.

`make test-cluster` makes the environment and runs this; the fixtures start the server.
"""

from __future__ import annotations

import json
import math
import os
import signal
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from ramet.config import load
from ramet.engine.settings import EngineConfig
from ramet.engine.tinker.calls import Calls
from ramet.engine.tinker.remote import RemoteEngine
from ramet.engine.tinker.sdk import open_service
from ramet.errors import ConfigError, EngineError
from ramet.models.adapter import folder_logprobs, read_adapter, read_archive
from ramet.models.folders import load_model
from ramet.store import RunDir, read_trees
from ramet.store.checkpoints import latest
from ramet.tokens.huggingface import load_renderer
from ramet.train import resume, train
from ramet.train.local.gradients import forward_backward
from ramet.train.local.policy import Lora, prepare
from ramet.train.loss import Loss
from ramet.train.rows import Row
from ramet.train.settings import TrainConfig, UpdateConfig
from ramet.train.tinker.backend import Origin, TinkerBackend
from ramet.train.tinker.probe import Capabilities
from ramet.train.tinker.skyrl import Server
from ramet.types import Message, Prompt
from tests.cluster.conftest import skyrl, tiny_qwen3

RANK, DEADLINE_S, WINDOW = 8, 300.0, 512
JAX = Capabilities(
    server="SkyRL",
    sdk="tinker",
    models=(),
    reduction="row_mean",
    keeps_versions=False,
    clips_gradients=False,
    honours_betas=True,
    cispo_bounds=True,
)
CODES: dict[str, Any] = {
    "task": "codes:train",
    "dialect": "terse",
    "steps": 3,
    "tasks_per_step": 2,
    "group_size": 4,
    "credit": {"token_cost": 5},
    "budget": {"tokens": [16, 48], "nodes": 4, "depth": 1, "turns": 3, "reserve": 8, "window": 256},
    "update": {"learning_rate": 0.01},
    "save_every": 1,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a large output layer: an adapter below it can then make any token likely."""
    folder = tiny_qwen3(tmp_path_factory.mktemp("toy") / "model")
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"] *= 10
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Generator[Server]:
    with skyrl(model, tmp_path_factory.mktemp("server")) as server:
        yield server


def opened(url: str, model: Path, **more: Any) -> TinkerBackend:
    """A backend on a new adapter."""
    service = anyio.run(lambda: open_service(url, deadline_s=DEADLINE_S))
    return TinkerBackend(
        Calls(service, deadline_s=DEADLINE_S),
        JAX,
        Origin(base_model=str(model.resolve()), base=model, folder=model, rank=RANK, seed=3),
        renderer=load_renderer(model),
        window=WINDOW,
        update=UpdateConfig(),
        chunk=16,
        **more,
    )


def config(model: Path, url: str, *words: str) -> TrainConfig:
    tinker = ["backend.kind=tinker", f"backend.base_url={url}", f"backend.rank={RANK}", "backend.chunk=16"]
    tinker += ["backend.reduction=row_mean", f"backend.deadline_s={DEADLINE_S:g}"]
    return load(TrainConfig, base=CODES | {"model": str(model)}, words=[*tinker, *words])


def three_trees(backend: TinkerBackend) -> list[Row]:
    """Six rows of three trees, sampled by the server itself, with credit of both signs."""

    async def sample(number: int) -> Row:
        ids = tuple(range(5 + number, 12 + 2 * number))
        prompt = Prompt(messages=(Message(role="user", content="?"),), ids=ids)
        drawn = await backend.engine.sample(prompt, max_tokens=8, seed=number)
        size = len(drawn.token_ids)
        return Row(
            token_ids=ids + drawn.token_ids,
            mask=(False,) * len(ids) + (True,) * size,
            logprobs=(0.0,) * len(ids) + drawn.logprobs,
            advantage=(-1.0) ** number * (1 + number),
            weight=0.5 if number == 2 else 1.0,
            tree_id="abc"[number // 2],
            node=number % 2,
            versions=(drawn.policy_version,),
        )

    async def all_of_them() -> list[Row]:
        return [await sample(number) for number in range(6)]

    return anyio.run(all_of_them)


def test_tree_gradients_of_the_server_are_those_of_the_local_learner(server: Server, model: Path) -> None:
    """The server's optimiser reports its gradient norm; the local learner has the same adapter."""
    with closing(opened(server.url, model)) as backend:
        rows = three_trees(backend)

        async def learn(loss: Loss) -> tuple[float, float, float, bytes]:
            trainer = await backend._ready()  # pyright: ignore[reportPrivateUsage]
            adapter = await trainer.download(backend._name())  # pyright: ignore[reportPrivateUsage]
            stats = await backend.forward_backward(rows, loss=loss, temperature=1.0)
            norm = await backend.optim_step(learning_rate=0.0)
            return stats.loss, norm or 0.0, stats.logprob_gap or 0.0, adapter

        for kind, aggregation in (("cispo", "tree"), ("ppo", "node"), ("plain", "token"), ("cispo", "constant")):
            loss = Loss(kind=kind, aggregation=aggregation, divisor=7.0)  # pyright: ignore[reportArgumentType]
            value, norm, gap, adapter = anyio.run(learn, loss)
            wanted, wanted_norm = local_gradient(model, adapter, rows, loss)
            assert value == pytest.approx(wanted, rel=1e-4, abs=1e-5)
            assert norm == pytest.approx(wanted_norm, rel=1e-4)
            assert gap < 1e-4


def local_gradient(model: Path, archive: bytes, rows: Sequence[Row], loss: Loss) -> tuple[float, float]:
    """Loss and gradient norm of this machine's learner with the server's adapter."""
    adapter = read_adapter(read_archive(archive))
    policy = prepare(load_model(model, device="cpu"), packed=False, lora=Lora(rank=RANK, alpha=32.0))
    pairs = {name.removesuffix(".weight"): pair for name, pair in adapter.pairs.items()}
    with torch.no_grad():
        for name, parameter in policy.core.named_parameters():
            for number, part in enumerate((".lora_A.default.weight", ".lora_B.default.weight")):
                if name.endswith(part):
                    parameter.copy_(pairs[name.removesuffix(part)][number])
    stats = forward_backward(policy, rows, loss=loss, micro_batch_tokens=4096)
    norms = [float(one.grad.norm()) for one in policy.trained if one.grad is not None]
    return stats.loss, math.hypot(*norms)


def test_15_steps_of_a_toy_raise_its_reward(server: Server, model: Path) -> None:
    """Reward: the share of sampled tokens in a tenth of the vocabulary."""
    with closing(opened(server.url, model)) as backend:
        rewards = anyio.run(toy, backend, 15)
    assert rewards[0] < 0.25
    assert np.mean(rewards[-2:]) > 0.4


async def toy(backend: TinkerBackend, steps: int) -> list[float]:
    prompt = Prompt(messages=(Message(role="user", content="?"),), ids=(3, 1, 4, 1, 5))
    rewards: list[float] = []
    for step in range(steps):
        drawn: list[Any] = [None] * 32

        async def one(place: int, step: int = step, drawn: list[Any] = drawn) -> None:
            drawn[place] = await backend.engine.sample(prompt, max_tokens=16, seed=100 * step + place)

        async with anyio.create_task_group() as group:
            for place in range(32):
                group.start_soon(one, place)
        assert {each.policy_version for each in drawn} == {step}
        earned = [sum(token < 21 for token in each.token_ids) / len(each.token_ids) for each in drawn]
        mean = sum(earned) / len(earned)
        rewards.append(mean)
        rows = [
            Row(
                token_ids=(*prompt.ids, *each.token_ids),  # pyright: ignore[reportOptionalIterable]
                mask=(False,) * 5 + (True,) * len(each.token_ids),
                logprobs=(0.0,) * 5 + each.logprobs,
                advantage=reward - mean,
                tree_id=str(place),
                versions=(step,),
            )
            for place, (each, reward) in enumerate(zip(drawn, earned, strict=True))
        ]
        stats = await backend.forward_backward(rows, loss=Loss(), temperature=1.0)
        assert (stats.logprob_gap or 0.0) < 1e-4
        await backend.optim_step(learning_rate=1e-2)
        await backend.publish(step + 1)
    return rewards


def test_a_run_of_trees_is_resumed_after_the_server_was_killed(model: Path, tmp_path: Path) -> None:
    """Whole: three steps. Cut: two steps, the server killed, restarted with its folder, resumed.

    The same tokens, and weights that are equal up to rounding: which samples meet in a batch of the server depends on
    timing, and log-probs of another batch differ by about 1e-6, also without a restart.
    """
    with skyrl(model, tmp_path / "server") as server:
        whole = train(config(model, server.url), runs=tmp_path / "whole")
        check_run(whole)
        port = int(server.url.rpartition(":")[2])

        def kill(record: dict[str, Any]) -> None:
            if record["step"] == 1:
                os.killpg(server.process.pid, signal.SIGKILL)

        with pytest.raises(EngineError, match="nothing answers at") as caught:
            train(config(model, server.url), runs=tmp_path / "cut", on_step=kill)
        assert "\n" not in str(caught.value)
    cut = next((tmp_path / "cut").iterdir())
    with skyrl(model, tmp_path / "server", port=port):
        resumed = resume(cut)
        engine = RemoteEngine(
            EngineConfig(kind="tinker", base_url=server.url, model=state_of(resumed), tokenizer=str(model))
        )
        with engine:
            check_same_model(engine, resumed)
    assert tokens(resumed) == tokens(whole)
    one, other = merged(whole), merged(resumed)
    assert max(float((one[name] - other[name]).abs().max()) for name in one) < 1e-4
    for record, wanted in zip(resumed.metrics(), whole.metrics(), strict=True):
        assert record["loss"] == pytest.approx(wanted["loss"], abs=1e-5)


def tokens(run: RunDir) -> dict[str, list[Sequence[int]]]:
    return {tree.id: [node.token_ids for node in tree.nodes] for tree in read_trees(run.path)}


def test_a_saved_state_continues_with_the_same_bits(server: Server, model: Path) -> None:
    """The same rows after the same state, in an adapter of its own: the same gradient, the same weights."""
    with closing(opened(server.url, model)) as backend:
        rows = three_trees(backend)

        async def step() -> tuple[float | None, bytes]:
            trainer = await backend._ready()  # pyright: ignore[reportPrivateUsage]
            await backend.forward_backward(rows, loss=Loss(), temperature=1.0)
            norm = await backend.optim_step(learning_rate=0.01)
            return norm, await trainer.download(backend._name())  # pyright: ignore[reportPrivateUsage]

        async def continued() -> tuple[str, float | None, bytes]:
            await step()
            trainer = await backend._ready()  # pyright: ignore[reportPrivateUsage]
            state = await backend._save_state(trainer)  # pyright: ignore[reportPrivateUsage]
            return state, *await step()

        async def restored(state: str) -> tuple[float | None, bytes]:
            trainer = await backend.calls.service.load_state(state, optimizer=True)
            backend._trainer = trainer  # pyright: ignore[reportPrivateUsage]
            return await step()

        state, norm, archive = anyio.run(continued)
        again, other = anyio.run(restored, state)
    assert again == norm
    assert read_archive(other)["adapter_model.safetensors"] == read_archive(archive)["adapter_model.safetensors"]


def check_run(run: RunDir) -> None:
    records = run.metrics()
    assert len(records) == 3
    assert max(record["logprob_gap"] for record in records) < 1e-4
    assert all(record["grad_norm"] > 0 for record in records)
    trees = list(read_trees(run.path))
    assert all(tree.usage.tokens + tree.usage.lost_tokens <= tree.budget.tokens for tree in trees)
    pieces = [piece for tree in trees for node in tree.nodes for piece in node.pieces if piece.sampled]
    assert {piece.policy_version for piece in pieces} == {0, 1, 2}


def check_same_model(engine: RemoteEngine, run: RunDir) -> None:
    """The checkpoint on the server and the merged folder give the same log-probs."""
    prompt = Prompt(messages=(Message(role="user", content="?"),), ids=(3, 1, 4, 1, 5, 9))
    drawn = anyio.run(lambda: engine.sample(prompt, max_tokens=12, seed=1))
    checkpoint = latest(run.path)
    assert checkpoint is not None
    here = folder_logprobs(checkpoint, (3, 1, 4, 1, 5, 9, *drawn.token_ids), device="cpu")[5:]
    assert here == pytest.approx(drawn.logprobs, abs=1e-3)


def state_of(run: RunDir) -> str:
    checkpoint = latest(run.path)
    assert checkpoint is not None
    return json.loads((checkpoint / "tinker.json").read_text(encoding="utf-8"))["state"]


def merged(run: RunDir) -> dict[str, torch.Tensor]:
    checkpoint = latest(run.path)
    assert checkpoint is not None
    return load_file(checkpoint / "model.safetensors")


def test_the_probe_knows_the_server_and_overlap_is_refused(server: Server, model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="overlap=1 does not work here: the backend keeps no snapshot"):
        train(config(model, server.url, "overlap=1", "backend.reduction=auto"), runs=tmp_path)
    assert not list(tmp_path.iterdir())


def test_an_id_outside_the_vocabulary_never_reaches_the_server(server: Server, model: Path) -> None:
    with closing(opened(server.url, model, vocabulary=210)) as backend:
        prompt = Prompt(messages=(Message(role="user", content="?"),), ids=(3, 5000))
        with pytest.raises(EngineError, match="outside this model's vocabulary of 210"):
            anyio.run(lambda: backend.engine.sample(prompt, max_tokens=4))


def test_a_server_that_answers_500_without_end_is_one_line(server: Server, model: Path) -> None:
    """An id outside the vocabulary, sent past our own check: the server cannot write the answer as JSON."""
    backend = opened(server.url, model)

    async def ask() -> object:
        version = await backend._current()  # pyright: ignore[reportPrivateUsage]
        sample = partial(version.sampler.sample, (3, 5000), max_tokens=1, temperature=1.0, seed=0, stop_ids=())
        return await backend.calls.run("sample", sample)

    with closing(backend), pytest.raises(EngineError, match="has answered 500 to a request for 10 s") as caught:
        anyio.run(ask)
    assert "\n" not in str(caught.value)


def test_a_name_used_twice_is_one_line(server: Server, model: Path) -> None:
    """The client package would try again for five minutes."""
    backend = opened(server.url, model)

    async def save_twice() -> None:
        trainer = await backend._ready()  # pyright: ignore[reportPrivateUsage]
        for _ in range(2):
            await backend.calls.run("save_state", lambda: trainer.save_state("twice"))

    with closing(backend), pytest.raises(EngineError, match="has a checkpoint 'twice' already") as caught:
        anyio.run(save_twice)
    assert "\n" not in str(caught.value)


def test_a_wrong_address_is_one_line(model: Path, tmp_path: Path) -> None:
    settings = config(model, "http://127.0.0.1:9")
    with pytest.raises(EngineError, match=r"nothing answers at http://127.0.0.1:9"):
        train(replace(settings, steps=1), runs=tmp_path)
