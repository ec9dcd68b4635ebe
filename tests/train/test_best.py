"""The best model is kept, and a run that has failed stops: whole runs whose evaluation and success are given."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from ramet.errors import StoreError
from ramet.store import RunDir
from ramet.store.checkpoints import STATE, Best, best_folder, checkpoint_path, latest, read_best, write_best
from ramet.train.loop import check_plan, rl_phase, train
from ramet.train.phase import OpenBackend, Phase, ignore, open_local, reopen_run, run_phase
from ramet.train.settings import StopConfig, TrainConfig, resolve_model_path
from ramet.types import Tree, Verdict
from tests.train import small
from tests.train.separate import SeparateBackend


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small.folder(tmp_path_factory.mktemp("best"))


@pytest.fixture(params=["local", "separate"])
def backend(request: pytest.FixtureRequest) -> OpenBackend:
    return {"local": open_local, "separate": SeparateBackend}[request.param]


def run_with(
    config: TrainConfig, run: RunDir, changed: Callable[[Phase], Phase], *, backend: OpenBackend = open_local
) -> list[dict[str, Any]]:
    """Run the phase of RL, with a part of it replaced; returns all metrics of the run."""
    with closing(backend(config)) as opened:
        phase = changed(rl_phase(check_plan(config), run, opened))
        anyio.run(partial(run_phase, phase, opened, run, on_step=ignore))
    return run.metrics()


def resume_with(
    config: TrainConfig, run: RunDir, changed: Callable[[Phase], Phase], *, backend: OpenBackend = open_local
) -> list[dict[str, Any]]:
    with reopen_run(run.path, kind="train") as reopened:
        return run_with(config, reopened, changed, backend=backend)


def evaluated_as(*values: float | None) -> Callable[[Phase], Phase]:
    """Evaluations after steps 1, 2, ... have these results; None: no evaluation."""

    async def evaluate(step: int) -> dict[str, Any]:
        value = values[step - 1]
        return {} if value is None else {"eval_success": value}

    return lambda phase: replace(phase, evaluate=evaluate)


def succeeding(*values: float) -> Callable[[Phase], Phase]:
    """In the trees of each step, this share of the roots is right: the first ones of every group."""

    def changed(phase: Phase) -> Phase:
        async def collect(step: int) -> list[Tree]:
            trees = await phase.collect(step)
            for tree in trees:
                right = int(tree.id.rpartition("-")[2]) < values[step] * phase.config.group_size
                tree.root.verdict = Verdict(score=float(right), how="exact")
            return trees

        return replace(phase, collect=collect)

    return changed


def create(parent: Path, config: TrainConfig) -> RunDir:
    return RunDir.create(parent, "train", config=config, kind="train")


def kept_steps(run: RunDir) -> list[str]:
    return sorted(path.name for path in (best_folder(run.path) / "checkpoints").iterdir())


def weights(checkpoint: Path | None) -> dict[str, bytes]:
    assert checkpoint is not None
    return {name: one.numpy().tobytes() for name, one in load_file(checkpoint / "model.safetensors").items()}


def test_the_best_model_by_evaluation_is_kept_beside_the_newest(
    tmp_path: Path, folder: Path, backend: OpenBackend
) -> None:
    config = small.config(folder, "steps=5", "save_every=1", "keep_checkpoints=5")
    run = create(tmp_path, config)
    run_with(config, run, evaluated_as(0.2, 0.5, None, 0.5, 0.4), backend=backend)
    assert read_best(run.path) == Best(step=2, value=0.5)  # the first of equals
    assert json.loads((run.path / "best" / "best.json").read_text()) == {"step": 2, "value": 0.5}
    assert kept_steps(run) == ["step-000002"]
    best = latest(best_folder(run.path))
    assert weights(best) == weights(checkpoint_path(run.path, 2))
    assert weights(best) != weights(checkpoint_path(run.path, 5))
    assert latest(run.path) == checkpoint_path(run.path, 5)


def test_the_folder_of_the_best_model_is_a_model_to_train(tmp_path: Path, folder: Path) -> None:
    config = small.config(folder, "steps=1", "eval.every=1", "eval.num_tasks=2")
    run = train(config, runs=tmp_path)
    best = checkpoint_path(best_folder(run.path), 1)
    assert resolve_model_path(str(best_folder(run.path))) == str(best.resolve())
    AutoModelForCausalLM.from_pretrained(best)
    assert not (best / STATE).exists()  # half of the size, and a new run begins with a new optimiser
    again = train(small.config(best_folder(run.path), "steps=1"), runs=tmp_path)
    assert len(again.metrics()) == 1


def test_without_an_evaluation_or_the_setting_no_model_is_kept_as_the_best(tmp_path: Path, folder: Path) -> None:
    words = ["steps=1", "eval.every=1", "eval.num_tasks=2", "keep_best=false"]
    for given in ([words[0]], words):
        assert not best_folder(train(small.config(folder, *given), runs=tmp_path).path).exists()


def test_a_resumed_run_knows_its_best(tmp_path: Path, folder: Path, backend: OpenBackend) -> None:
    config = small.config(folder, "steps=4", "save_every=1")
    run = create(tmp_path, config)
    run_with(replace(config, steps=2), run, evaluated_as(0.2, 0.5), backend=backend)
    resume_with(config, run, evaluated_as(0.0, 0.0, 0.4, 0.3), backend=backend)
    assert len(run.metrics()) == 4
    assert read_best(run.path) == Best(step=2, value=0.5)
    assert kept_steps(run) == ["step-000002"]


def test_a_run_killed_before_its_best_was_recorded_repeats_that_step(tmp_path: Path, folder: Path) -> None:
    config = small.config(folder, "steps=3", "save_every=2")
    whole, killed = create(tmp_path / "whole", config), create(tmp_path / "killed", config)
    values = (0.1, 0.2, 0.9)
    run_with(config, whole, evaluated_as(*values))
    run_with(config, killed, evaluated_as(*values))
    write_best(killed.path, Best(step=2, value=0.2))  # as if it had been killed after the model of step 3 was saved
    (checkpoint_path(killed.path, 3) / STATE).unlink()
    for file in sorted(checkpoint_path(killed.path, 3).iterdir()):
        file.unlink()
    checkpoint_path(killed.path, 3).rmdir()
    resume_with(config, killed, evaluated_as(*values))
    assert read_best(killed.path) == read_best(whole.path) == Best(step=3, value=0.9)
    assert weights(latest(best_folder(killed.path))) == weights(latest(best_folder(whole.path)))


def test_a_best_that_cannot_be_read_names_its_file(tmp_path: Path) -> None:
    (tmp_path / "best").mkdir()
    (tmp_path / "best" / "best.json").write_text('{"step": 3}')
    with pytest.raises(StoreError, match=r"cannot read .*best\.json"):
        read_best(tmp_path)


def test_a_run_whose_success_collapses_stops_saved(tmp_path: Path, folder: Path, backend: OpenBackend) -> None:
    config = small.config(folder, "steps=9", "save_every=100")
    stop = StopConfig(window=2, fraction=0.5)
    run = create(tmp_path, config)
    # Means over two steps: 1/2, 7/12, 4/12, 1/12.
    changed = succeeding(*(sixths / 6 for sixths in (2, 4, 3, 1, 0, 0, 0, 0, 0)))
    metrics = run_with(config, run, lambda phase: replace(changed(phase), stop=stop), backend=backend)
    assert [record["success"] for record in metrics] == pytest.approx([2 / 6, 4 / 6, 3 / 6, 1 / 6, 0])
    assert metrics[-1]["stopped"] == "success fell to 8.3% over the last 2 steps, from 58.3% at its best"
    assert latest(run.path) == checkpoint_path(run.path, 5)


def without_signal(phase: Phase) -> Phase:
    return replace(succeeding(*([1.0] * 9))(phase), lesson=flat, stop=StopConfig(no_signal_steps=3))


def flat(trees: Sequence[Tree]) -> Any:
    from ramet.train.step import Lesson

    return Lesson(rows=(), metrics={"groups": 2, "flat": 2})


def test_a_run_without_signal_stops_saved_and_goes_as_far_again_when_it_is_resumed(
    tmp_path: Path, folder: Path
) -> None:
    config = small.config(folder, "steps=8", "save_every=100")
    run = create(tmp_path, config)
    lengths = []
    for _ in range(3):
        lengths.append(len(resume_with(config, run, without_signal)))
        assert latest(run.path) == checkpoint_path(run.path, lengths[-1])
    assert lengths == [3, 6, 8]
    said = ["stopped" in record for record in run.metrics()]
    assert said == [False, False, True, False, False, True, False, False]


def test_a_run_killed_on_the_way_stops_where_one_that_was_not_killed_does(tmp_path: Path, folder: Path) -> None:
    config = small.config(folder, "steps=8", "save_every=1")
    run = create(tmp_path, config)
    run_with(replace(config, steps=2), run, without_signal)
    assert len(resume_with(config, run, without_signal)) == 3
