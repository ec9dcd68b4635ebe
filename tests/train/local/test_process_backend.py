"""A learner in a process of its own does what the one in this process does, bit for bit, and its end ends no data."""

# pyright: standard

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
import torch

from ramet.bench.learner import make_rows
from ramet.errors import ConfigError, TrainError
from ramet.train.local.process_backend import ProcessBackend, beside_engine, open_backend
from ramet.train.local.shared_weights import share
from ramet.train.loop import resume, train
from ramet.train.loss import Loss
from tests.train import small
from tests.train.test_loop import bits, numbers

SEVERAL = ("update.mini_batches=2", "loss.kl=0.01", "eval.every=2", "eval.num_tasks=2")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small.folder(tmp_path_factory.mktemp("process"))


def test_a_run_whose_learner_was_killed_is_resumed_and_has_the_bits_of_a_run_in_one_process(
    tmp_path: Path, folder: Path
) -> None:
    opened: list[ProcessBackend] = []

    def opening(config: Any) -> ProcessBackend:
        opened.append(open_backend(config))
        return opened[-1]

    def kill(record: dict[str, Any]) -> None:
        if record["step"] == 2:
            os.kill(opened[-1].learner.process.pid, signal.SIGKILL)

    config = small.config(folder, *SEVERAL, "update.process=true")
    with pytest.raises(
        TrainError, match=r"^the process that learns has ended \(SIGKILL; the machine may have run out of memory\)"
    ):
        train(config, runs=tmp_path / "killed", open_backend=opening, on_step=kill)
    (path,) = (tmp_path / "killed").iterdir()
    resumed = resume(path)
    whole = train(small.config(folder, *SEVERAL), runs=tmp_path / "whole")
    assert bits(resumed) == bits(whole)
    assert numbers(resumed) == numbers(whole)


def test_the_engine_has_the_adapters_of_the_learner_after_the_last_update_of_a_step(folder: Path) -> None:
    torch.set_num_threads(2)
    backend = open_backend(small.config(folder, "update.process=true", "update.lora_rank=4"))
    assert torch.get_num_threads() == 1  # as in a run in one process: the model is very small
    rows = make_rows(prompt=8, answer=8, group=2, num_groups=2, vocabulary=500)
    before = {name: one.clone() for name, one in backend._sampled.items()}

    def changed() -> bool:
        return any(not torch.equal(before[name], one) for name, one in backend._sampled.items())

    async def update(*, last: bool, learning_rate: float = 0.01) -> None:
        await backend.forward_backward(rows, loss=Loss(kind="plain"), temperature=1.0)
        await backend.optim_step(learning_rate=learning_rate, last=last)

    try:
        anyio.run(partial(update, last=False))
        assert backend.version == -1
        assert not changed()
        anyio.run(partial(update, last=True))
        assert backend.version == backend.engine.policy_version == 1
        assert changed()
        assert all(torch.equal(one, backend._learnt[name]) for name, one in backend._sampled.items())
        assert all("lora" in name for name in backend._learnt)
        next(iter(backend._learnt.values())).fill_(torch.inf)  # read by the learner too
        with pytest.raises(TrainError, match="Nothing was changed"):
            anyio.run(partial(update, last=True))
        assert backend.version == 1
        backend.learner._connection.close()
        assert backend.learner.process.wait() == 0  # it ends by itself, however long that takes
    finally:
        backend.close()
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
    assert threads == 2


def test_shared_weights_are_read_in_place_and_leave_no_file() -> None:
    layers = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Linear(5, 2).to(torch.bfloat16))
    parameters = dict(layers.named_parameters())
    given = {name: one.detach().clone() for name, one in parameters.items()}
    shared = share(parameters)
    opened = shared.open()
    assert all(torch.equal(opened[name], one) and opened[name].dtype == one.dtype for name, one in given.items())
    with torch.no_grad():
        parameters["0.weight"].add_(1)
    assert torch.equal(opened["0.weight"], given["0.weight"] + 1)
    assert not Path(shared.file).exists()


def test_a_model_that_cannot_be_loaded_is_one_line(folder: Path) -> None:
    with pytest.raises(ConfigError, match="no model"):
        open_backend(small.config(folder / "missing", "update.process=true"))
    with pytest.raises(ConfigError, match=r"update\.device .* add update\.process=true"):
        small.config(folder, "update.device=cuda:1")
    with pytest.raises(ConfigError, match=r"update\.device_share is for a learner in its own process"):
        small.config(folder, "update.device_share=0.5")


def test_with_mps_the_engine_goes_first_and_some_multiprocessors_can_be_left_to_it(folder: Path) -> None:
    whole = small.config(folder, "update.process=true")
    assert beside_engine(whole) == {"CUDA_MPS_CLIENT_PRIORITY": "1"}
    share = small.config(folder, "update.process=true", "update.device_share=0.4")
    assert beside_engine(share) == {
        "CUDA_MPS_CLIENT_PRIORITY": "1",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "40",
    }
