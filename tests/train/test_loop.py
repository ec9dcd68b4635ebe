"""Whole runs of a tiny model: what they leave behind, and that a killed one ends with the same bits."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from subprocess import PIPE
from typing import Any

import anyio
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import ramet
from ramet.config import load
from ramet.errors import ConfigError, OutputClosed, StoreError, TrainError
from ramet.store import RunDir, query
from ramet.store.checkpoints import STATE, checkpoint_path, latest, list_checkpoints, newest_model
from ramet.train.loop import resume, train
from ramet.train.phase import OpenBackend, open_local
from ramet.train.rows import Row
from ramet.train.settings import TrainConfig, resolve_model_path
from tests.train import small
from tests.train.separate import SeparateBackend

FORKS = """
import gc, os, sys
gc.disable()  # there is next to nothing to collect while modules are imported
import torch
import transformers.models.llama.modeling_llama
import anyio._backends._asyncio, pyarrow.parquet
import ramet.train.local.backend
torch.set_num_threads(1)
from ramet.train.loop import resume
gc.freeze()
gc.enable()
for path in sys.stdin:
    child = os.fork()
    if not child:
        resume(path.strip(), on_start=lambda run: print(os.getpid(), flush=True))
        os._exit(0)
    os.waitpid(child, 0)
    print("ended", flush=True)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small.folder(tmp_path_factory.mktemp("loop"))


@pytest.fixture(params=["local", "separate"])
def backend(request: pytest.FixtureRequest) -> OpenBackend:
    """Every implementation of the seam passes the same tests."""
    return {"local": open_local, "separate": SeparateBackend}[request.param]


@pytest.fixture(scope="module")
def plain_run(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Callable[[OpenBackend], RunDir]:
    """A run of the plain settings from beginning to end, made once for each backend and only read."""

    @cache
    def run(backend: OpenBackend) -> RunDir:
        return train(small.config(folder), runs=tmp_path_factory.mktemp("plain"), open_backend=backend)

    return run


def bits(run: RunDir) -> dict[str, bytes]:
    """Weights and optimiser at the end of a run."""
    newest = latest(run.path)
    assert newest is not None
    return {name: value.numpy().tobytes() for name, value in load_file(newest / STATE).items()}


def numbers(run: RunDir) -> list[dict[str, Any]]:
    """What was logged, apart from how long it took."""
    return [{name: one for name, one in record.items() if not name.endswith("_s")} for record in run.metrics()]


def copy_of(run: RunDir, parent: Path) -> RunDir:
    return RunDir.open(shutil.copytree(run.path, parent / run.path.name))


class Stopped(Exception):
    """Ends a run in the middle."""


def test_a_run_leaves_metrics_trees_and_a_model_behind(tmp_path: Path, folder: Path, backend: OpenBackend) -> None:
    told: list[dict[str, Any]] = []
    run = train(
        small.config(folder, "eval.every=2", "eval.num_tasks=3"),
        runs=tmp_path,
        on_step=told.append,
        open_backend=backend,
    )
    assert [record["step"] for record in told] == [0, 1, 2, 3]
    assert run.metrics() == told
    assert ["eval_score" in record for record in told] == [False, True, False, True]
    trees = list(ramet.read_trees(run))
    assert len(trees) == len({tree.id for tree in trees}) == 4 * 2 * 6 + 2 * 3
    assert query(run, "select count(*) from metrics where stops.answered >= 0 and refusals.same_goal >= 0")[1] == [(4,)]
    assert query(run, "select count(*) from metrics where nodes_by_verdict.exact[1] = 12")[1] == [(4,)]
    assert query(run, "select count(*) from metrics where logprob_gap < 1e-4 or flat = 2")[1] == [(4,)]
    newest = latest(run.path)
    assert newest is not None
    AutoModelForCausalLM.from_pretrained(newest)


def test_the_same_seed_gives_the_same_bits_and_another_one_does_not(
    tmp_path: Path, folder: Path, backend: OpenBackend, plain_run: Callable[[OpenBackend], RunDir]
) -> None:
    first, second = plain_run(backend), train(small.config(folder), runs=tmp_path, open_backend=backend)
    assert bits(first) == bits(second)
    assert numbers(first) == numbers(second)
    assert bits(train(small.config(folder, "seed=1"), runs=tmp_path, open_backend=backend)) != bits(first)


@pytest.mark.parametrize("loss", ["cispo", "ppo"])
def test_both_backends_play_the_same_trees_and_take_the_same_steps(tmp_path: Path, folder: Path, loss: str) -> None:
    """Folding weights and denominators into the advantages of tokens is exact, so only rounding differs."""
    config = small.config(folder, f"loss.kind={loss}")
    local, separate = (
        train(config, runs=tmp_path / name, open_backend=opener).metrics()
        for name, opener in (("local", open_local), ("separate", SeparateBackend))
    )
    exact = ("trees", "score", "nodes", "tokens", "reward", "flat", "num_trained", "clip_fraction")
    for one, other in zip(local, separate, strict=True):
        assert {name: one[name] for name in exact} == {name: other[name] for name in exact}
        assert one["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-4)
        assert one["loss"] == pytest.approx(other["loss"], abs=1e-5)


@pytest.mark.parametrize("aggregation", ["token", "node", "tree"])
def test_a_backend_of_its_own_leaves_rows_without_credit_out_and_takes_the_same_step(
    folder: Path, aggregation: str
) -> None:
    """It adds up one row after the other, so that nothing is rounded in another way: the bits are the same."""
    rows = [
        Row(
            token_ids=(5, 6, 7 + place, 8),
            mask=(False, False, True, True),
            logprobs=(0.0, 0.0, -1.0, -2.0),
            advantage=advantage,
            tree_id="ab"[place % 2],
            node=place,
        )
        for place, advantage in enumerate([0.5, 0.0, -0.25, 0.0, 0.0])
    ]
    found = []
    for skips in ("false", "true"):
        config = small.config(folder, f"update.skip_zero_credit={skips}", f"loss.aggregation={aggregation}")
        with closing(SeparateBackend(config)) as made:
            stats = anyio.run(partial(made.forward_backward, rows, loss=config.loss, temperature=1.0))
            grown = [one.grad.clone() for one in made.learner.policy.core.parameters() if one.grad is not None]
            found.append((stats, grown))
    (every, whole), (some, part) = found
    assert (every.num_skipped, some.num_skipped, some.num_batches) == (0, 3, 2)
    assert (some.loss, some.num_trained) == (every.loss, every.num_trained)
    assert whole
    assert all(torch.equal(one, other) for one, other in zip(whole, part, strict=True))


@pytest.mark.parametrize("skips", ["false", "true"])
def test_both_backends_agree_whether_rows_without_credit_are_computed_or_not(
    tmp_path: Path, folder: Path, skips: str
) -> None:
    config = small.config(folder, "steps=3", f"update.skip_zero_credit={skips}")
    local, separate = (
        train(config, runs=tmp_path / name, open_backend=opener).metrics()
        for name, opener in (("local", open_local), ("separate", SeparateBackend))
    )
    for one, other in zip(local, separate, strict=True):
        assert (one["num_skipped"], one["num_trained"]) == (other["num_skipped"], other["num_trained"])
        assert one["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-4)
    assert (sum(record["num_skipped"] for record in local) > 0) == (skips == "true")


def test_a_backend_that_cannot_sample_while_it_trains_refuses_overlap(tmp_path: Path, folder: Path) -> None:
    class Alternating(SeparateBackend):
        supports_overlap = False

    with pytest.raises(ConfigError, match=r"overlap=1 does not work here: .*; add overlap=0"):
        train(small.config(folder, "overlap=1"), runs=tmp_path, open_backend=Alternating)


@pytest.mark.parametrize(
    "words",
    [
        ["update.lora_rank=2", "loss.kind=ppo"],
        ["loss.kl=0.1", "rule=broadcast", "update.schedule=cosine", "update.warmup_steps=1"],
        [
            "rule=selfcest",
            "update.packed=false",
            "update.gradient_checkpointing=true",
            "eval.every=1",
            "eval.num_tasks=2",
        ],
        ["refill=2", "group_size=2"],
        ["curriculum.sizes=[1, 2]", "taskset.operators=[1, 2]", "tasks_per_step=3", "refill=1", "group_size=2"],
    ],
    ids=["lora", "kl", "padded", "refill", "curriculum"],
)
def test_a_run_that_stopped_anywhere_goes_on_to_the_same_bits(tmp_path: Path, folder: Path, words: list[str]) -> None:
    config = small.config(folder, *words, "steps=3")
    whole = train(config, runs=tmp_path / "whole")

    def stop(record: dict[str, Any]) -> None:
        if record["step"] == 2:
            raise Stopped

    with pytest.raises(Stopped):
        train(config, runs=tmp_path / "stopped", on_step=stop)
    again = resume(tmp_path / "stopped" / "train")
    assert bits(again) == bits(whole)
    assert numbers(again) == numbers(whole)


def test_killed_at_ten_random_moments_it_ends_with_the_bits_of_a_run_that_was_not(tmp_path: Path, folder: Path) -> None:
    config = small.config(folder, "steps=8", "save_every=2", "eval.every=4", "eval.num_tasks=2")
    whole = train(config, runs=tmp_path / "whole")
    run = RunDir.create(tmp_path / "killed", "train", config=config, kind="train")
    dice = random.Random(5)
    # One process has everything loaded; each attempt is a copy of it.
    with subprocess.Popen([sys.executable, "-c", FORKS], stdin=PIPE, stdout=PIPE, text=True) as copies:
        assert copies.stdin is not None
        assert copies.stdout is not None
        kills = 0
        while (kills < 10 or not run.metrics()) and len(run.metrics()) < 8:  # however slow or fast the machine is
            copies.stdin.write(f"{run.path}\n")
            copies.stdin.flush()
            child = int(copies.stdout.readline())
            time.sleep(dice.uniform(0.0, 0.1 + 0.05 * kills))  # collecting, learning, logging, saving
            with suppress(ProcessLookupError):  # it has ended: the machine is fast
                os.kill(child, signal.SIGKILL)
            assert copies.stdout.readline() == "ended\n"
            kills += 1
        copies.stdin.close()
    again = resume(run.path)
    assert bits(again) == bits(whole)
    assert numbers(again) == numbers(whole)
    assert [tree.id for tree in ramet.read_trees(again)] == [tree.id for tree in ramet.read_trees(whole)]


def test_a_finished_run_that_is_resumed_stays_as_it_is(
    tmp_path: Path, backend: OpenBackend, plain_run: Callable[[OpenBackend], RunDir]
) -> None:
    run = copy_of(plain_run(backend), tmp_path)
    before, logged = bits(run), run.metrics()
    assert bits(resume(run.path, open_backend=backend)) == before
    assert run.metrics() == logged


def test_half_a_line_of_metrics_is_dropped(tmp_path: Path, plain_run: Callable[[OpenBackend], RunDir]) -> None:
    run = copy_of(plain_run(open_local), tmp_path)
    logged = run.metrics()
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "sco')
    resume(run.path)
    assert run.metrics() == logged


def test_a_run_whose_metrics_were_not_finite_goes_on(
    tmp_path: Path, plain_run: Callable[[OpenBackend], RunDir]
) -> None:
    run = copy_of(plain_run(open_local), tmp_path)
    logged = [{name: None if isinstance(one, float) else one for name, one in each.items()} for each in run.metrics()]
    (run.path / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in logged))
    assert resume(run.path, steps=5).metrics()[:-1] == logged


def test_a_run_that_stops_for_a_reason_keeps_what_it_learnt(tmp_path: Path, folder: Path, backend: OpenBackend) -> None:
    config = small.config(folder, "save_every=100")
    with pytest.raises(TrainError, match="sampler and learner disagree"):
        train(replace(config, max_logprob_gap=1e-12), runs=tmp_path, open_backend=backend)
    run = RunDir.open(tmp_path / "train")
    assert len(list(ramet.read_trees(run))) == 12 * (1 + len(run.metrics()))


def test_a_run_whose_output_is_closed_is_saved_where_it_was(tmp_path: Path, folder: Path) -> None:
    def report(record: dict[str, Any]) -> None:
        if record["step"] == 1:
            raise OutputClosed("standard output was closed")

    with pytest.raises(OutputClosed):
        train(small.config(folder, "save_every=100"), runs=tmp_path, on_step=report)
    assert [path.name for path in list_checkpoints(tmp_path / "train")] == ["step-000002"]


def test_an_interrupted_run_is_saved_where_it_was(
    tmp_path: Path, folder: Path, backend: OpenBackend, plain_run: Callable[[OpenBackend], RunDir]
) -> None:
    def interrupt(record: dict[str, Any]) -> None:
        if record["step"] == 1:
            os.kill(os.getpid(), signal.SIGINT)

    config = small.config(folder, "save_every=100")
    with pytest.raises(KeyboardInterrupt):
        train(config, runs=tmp_path, on_step=interrupt, open_backend=backend)
    assert [path.name for path in list_checkpoints(tmp_path / "train")] == ["step-000002"]
    assert bits(resume(tmp_path / "train", open_backend=backend)) == bits(plain_run(backend))


@pytest.mark.parametrize(
    ("words", "error", "said"),
    [
        (["group_size=1"], ConfigError, "group_size=1: rao compares the trees of one task; give group_size=2 or more"),
        (["task=arithmetic:trian"], ConfigError, "arithmetic has no split 'trian': did you mean train?"),
        (["rule=roa"], ConfigError, "unknown credit rule 'roa': did you mean rao?"),
        (["credit.bonsu=1"], ConfigError, "unknown setting 'credit.bonsu': did you mean credit.bonus?"),
        (["dialect=tool"], ConfigError, "unknown dialect 'tool'"),
        (["model=nowhere"], ConfigError, "no model at 'nowhere'"),
        (["taskset.digit=1"], ConfigError, "arithmetic has no option 'digit'"),
        (["eval.every=1", "eval.task=arithmetic:none"], ConfigError, "arithmetic has no split 'none'"),
    ],
)
def test_what_cannot_begin_is_told_before_anything_is_written(
    tmp_path: Path, folder: Path, words: list[str], error: type[Exception], said: str
) -> None:
    with pytest.raises(error) as caught:
        train(small.config(folder, *words), runs=tmp_path / "runs")
    assert said in str(caught.value)
    assert not (tmp_path / "runs").exists()


def test_a_run_that_has_settings_without_effect_from_before_they_were_refused_goes_on(
    tmp_path: Path, folder: Path
) -> None:
    config = small.config(folder, "loss.divisor=7.0", "loss.kl_gradient=plain", "loss.dual_clip=3.0", "steps=1")
    run = RunDir.create(tmp_path, "old", config=config, kind="train")
    assert len(resume(run.path).metrics()) == 1


def test_a_rule_without_a_baseline_takes_a_group_of_one(tmp_path: Path, folder: Path) -> None:
    run = train(
        small.config(folder, "group_size=1", "steps=1", "tasks_per_step=8", "credit.baseline=none"), runs=tmp_path
    )
    assert run.metrics()[0]["groups"] == 8


def test_a_run_that_has_lost_its_settings_is_not_resumed_with_others(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, "lost", config=TrainConfig(), kind="train")
    (run.path / "config.toml").write_text("")
    with pytest.raises(
        StoreError, match=r"^cannot read \S+/config.toml: settings of the run are missing, such as steps$"
    ):
        resume(run.path)


def test_a_run_without_its_folder_of_trees_is_resumed(
    tmp_path: Path, backend: OpenBackend, plain_run: Callable[[OpenBackend], RunDir]
) -> None:
    whole = plain_run(backend)
    run = copy_of(whole, tmp_path)
    shutil.rmtree(run.path / "trees")
    shutil.rmtree(run.path / "checkpoints" / "step-000004")
    assert bits(resume(run.path, open_backend=backend)) == bits(whole)


def test_what_is_no_run_cannot_be_resumed(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is not a run directory"):
        resume(tmp_path)


def test_a_run_with_a_supervised_start_begins_where_that_ended_and_goes_on_from_anywhere(
    tmp_path: Path, folder: Path, backend: OpenBackend
) -> None:
    warm = {
        "steps": 3,
        "trees_per_step": 2,
        "save_every": 1,
        "update": {"learning_rate": 0.01},
        "budget": {"tokens": 900, "turns": 9},
    }
    config = small.config(folder, "steps=3", warm=warm | {"taskset": {"operators": 2}})
    told: list[dict[str, Any]] = []
    whole = train(config, runs=tmp_path / "whole", on_step=told.append, open_backend=backend)
    assert [(record.get("part"), record["step"]) for record in told] == [("warm", step) for step in range(3)] + [
        (None, step) for step in range(3)
    ]
    assert told[0]["loss"] > told[2]["loss"]
    assert RunDir.open(whole.path / "warm").kind == "warmstart"
    plain = train(
        small.config(whole.path / "warm", "steps=3"), runs=tmp_path / "plain", open_backend=backend
    )  # a run stands for its last checkpoint
    assert bits(plain) == bits(whole)
    for last in (1, 4):  # in the supervised start, and after it
        stops = iter(range(last + 1))

        def stop(record: dict[str, Any], stops: Any = stops) -> None:
            if next(stops, None) is None:
                raise Stopped

        with pytest.raises(Stopped):
            train(config, runs=tmp_path / str(last), on_step=stop, open_backend=backend)
        again = resume(tmp_path / str(last) / "train", open_backend=backend)
        assert bits(again) == bits(whole)
        assert numbers(again) == numbers(whole)


def test_a_run_of_no_steps_is_a_supervised_start_and_goes_on_to_the_same_bits(
    tmp_path: Path, folder: Path, backend: OpenBackend
) -> None:
    warm = {"steps": 2, "trees_per_step": 2, "save_every": 1, "budget": {"tokens": 900, "turns": 9}}
    whole = train(small.config(folder, "steps=2", warm=warm), runs=tmp_path / "whole", open_backend=backend)
    told: list[dict[str, Any]] = []

    def stop(record: dict[str, Any]) -> None:
        raise Stopped

    with pytest.raises(Stopped):
        train(small.config(folder, "steps=0", warm=warm), runs=tmp_path, on_step=stop, open_backend=backend)
    start = resume(tmp_path / "train", on_step=told.append, open_backend=backend)
    assert [(record["part"], record["step"]) for record in told] == [("warm", 0), ("warm", 1)]
    assert start.metrics() == []
    assert newest_model(start.path) == checkpoint_path(start.path / "warm", 2)
    assert resolve_model_path(str(start.path)) == str(newest_model(start.path))
    resume(start.path, on_step=told.append, open_backend=backend)  # nothing is left to do
    assert len(told) == 2
    assert bits(resume(start.path, steps=2, open_backend=backend)) == bits(whole)


def test_a_run_of_no_steps_without_a_supervised_start_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^steps=0 leaves nothing to do: this run has no supervised start"):
        load(TrainConfig, words=["steps=0"])


def test_a_run_that_has_no_time_left_stops_saved_after_its_step(
    tmp_path: Path, folder: Path, backend: OpenBackend, plain_run: Callable[[OpenBackend], RunDir]
) -> None:
    config = small.config(folder, "save_every=100")
    run = train(replace(config, minutes=1e-9), runs=tmp_path, open_backend=backend)
    assert len(run.metrics()) == 1
    for _ in range(3):
        resume(run.path, open_backend=backend)  # as long again, each time
    assert bits(run) == bits(plain_run(backend))
