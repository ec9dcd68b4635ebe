"""With `update.in_turns` no token is sampled while the learner computes; otherwise both go on at the same time."""

# pyright: standard

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from torch import Tensor

from ramet.bench.learner import make_rows
from ramet.engine.local import LocalEngine
from ramet.train.local.backend import LocalBackend, open_backend
from ramet.train.local.forward import row_logprobs
from ramet.train.local.process_backend import open_backend as open_process
from ramet.train.loop import train
from ramet.train.loss import Loss
from ramet.train.rows import Row
from ramet.types import Meter, Prompt
from tests.train import small
from tests.waiting import until


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small.folder(tmp_path_factory.mktemp("turns"))


async def sample_on(engine: LocalEngine, meter: Meter) -> None:
    """One request after the other, until it is cancelled."""
    while True:
        await engine.sample(Prompt(messages=(), ids=(5, 6, 7)), max_tokens=500, stop_tokens=(), meter=meter)


async def beside_requests(engine: LocalEngine, work: Callable[[], Any]) -> None:
    """Do the work while tokens are sampled, and see that they are sampled afterwards, too."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sample_on, engine, meter := Meter())
        await anyio.to_thread.run_sync(until, lambda: meter.tokens > 0)
        await work()
        before = engine.stats.generated_tokens
        await anyio.to_thread.run_sync(until, lambda: engine.stats.generated_tokens > before)
        tasks.cancel_scope.cancel()


def rows_of(number: int) -> list[Row]:
    return make_rows(prompt=60, answer=40, group=2, num_groups=number, vocabulary=500)


def test_no_token_is_sampled_while_a_gradient_is_computed(folder: Path) -> None:
    words = ("overlap=1", "update.in_turns=true", "update.micro_batch_tokens=200")
    with closing(open_backend(small.config(folder, *words))) as backend:
        steps = steps_during(backend, rows_of(12))
    assert len(steps) > 5
    assert len(set(steps)) == 1


def test_otherwise_tokens_are_sampled_meanwhile(folder: Path) -> None:
    words = ("overlap=1", "update.micro_batch_tokens=200")
    with closing(open_backend(small.config(folder, *words))) as backend:
        until(lambda: len(set(steps_during(backend, rows_of(12)))) > 1)  # again, if the machine is busy


def steps_during(backend: LocalBackend, rows: Sequence[Row]) -> list[int]:
    """Steps of the engine so far, at every micro-batch of a gradient: the KL term calls the reference in each."""
    steps: list[int] = []

    def reference(batch: Sequence[Row], temperature: float) -> Tensor:
        steps.append(backend.engine.stats.steps)
        return row_logprobs(backend.learner.policy, batch, temperature=temperature).logprobs

    async def gradient() -> None:
        await backend.forward_backward(rows, loss=Loss(kind="plain", kl=0.1), temperature=1.0)

    backend.reference = reference
    anyio.run(beside_requests, backend.engine, gradient)
    return steps


def test_the_engine_rests_while_a_learner_in_another_process_computes(folder: Path) -> None:
    with closing(open_process(small.config(folder, "update.process=true", "update.in_turns=true"))) as backend:
        steps: list[int] = []
        call = backend.learner.call

        def counting(method: str, **given: Any) -> Any:
            steps.append(backend.engine.stats.steps)
            answer = call(method, **given)
            steps.append(backend.engine.stats.steps)
            return answer

        async def gradient() -> None:
            await backend.forward_backward(rows_of(12), loss=Loss(kind="plain"), temperature=1.0)
            await backend.logprobs(rows_of(2), temperature=1.0)

        backend.learner.call = counting  # type: ignore[method-assign]
        anyio.run(beside_requests, backend.engine, gradient)
    assert len(steps) == 4
    assert steps[0] == steps[1]
    assert steps[2] == steps[3]


def test_a_run_that_collects_ahead_learns_in_turns(tmp_path: Path, folder: Path) -> None:
    run = train(small.config(folder, "overlap=1", "update.in_turns=true", "steps=3"), runs=tmp_path)
    assert [record["step"] for record in run.metrics()] == [0, 1, 2]
    assert any(record.get("grad_norm") for record in run.metrics())
