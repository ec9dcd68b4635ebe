"""Checkpoints: exact, loadable by others, whole or not there."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from ramet.engine.local import LocalEngine
from ramet.errors import StoreError
from ramet.store.checkpoints import STATE, latest
from ramet.train.local.checkpoint import load_state, save
from ramet.train.local.learner import Learner, apply_gradients, make_learner, state_dict
from ramet.train.local.policy import Lora, prepare
from ramet.train.settings import UpdateConfig
from tests.train import small


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small.folder(tmp_path_factory.mktemp("checkpoint"))


def learner_of(folder: Path, *, dtype: torch.dtype = torch.float32, lora: Lora | None = None) -> Learner:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    return make_learner(prepare(model, lora=lora), UpdateConfig())


def taught(learner: Learner, *, seed: int = 0) -> None:
    torch.manual_seed(seed)
    for master in learner.masters:
        master.grad = torch.randn_like(master)
    apply_gradients(learner, learning_rate=1e-3)


def same(left: Learner, right: Learner) -> bool:
    one, other = state_dict(left), state_dict(right)
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """No file may grow beyond this: writing fails in the middle, as on a disk that is full."""
    before, ignored = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("lora", [None, Lora(rank=2, alpha=4)], ids=["whole model", "lora"])
def test_what_was_saved_goes_on_as_if_nothing_had_happened(
    tmp_path: Path, folder: Path, dtype: torch.dtype, lora: Lora | None
) -> None:
    learner = learner_of(folder, dtype=dtype, lora=lora)
    taught(learner)
    saved = save(learner, tmp_path, step=7, tokenizer=folder, keep=2)
    again = learner_of(folder, dtype=dtype, lora=lora)
    assert not same(learner, again)
    assert load_state(again, saved) == 7
    assert same(learner, again)
    for one in (learner, again):
        taught(one, seed=1)
    assert same(learner, again)
    rounded = learner.policy.core.state_dict()
    assert all(torch.equal(value, rounded[name]) for name, value in again.policy.core.state_dict().items())


@pytest.mark.parametrize("lora", [None, Lora(rank=2, alpha=4)], ids=["whole model", "lora"])
@pytest.mark.parametrize("engine", [False, True], ids=["as loaded", "laid out by an engine"])
def test_transformers_loads_a_checkpoint_that_says_the_same(
    tmp_path: Path, folder: Path, lora: Lora | None, engine: bool
) -> None:
    learner = learner_of(folder, lora=lora)
    if engine:
        LocalEngine(learner.policy.core, cache_tokens=4096).close()
        learner = make_learner(learner.policy, UpdateConfig())
    taught(learner)
    taught(learner)
    saved = save(learner, tmp_path, step=1, tokenizer=folder, keep=1)
    loaded, found = AutoModelForCausalLM.from_pretrained(saved, output_loading_info=True)
    assert not any(found.values())
    ids = torch.arange(2, 40)[None]
    with torch.no_grad():
        plain = loaded(ids).logits
        ours = learner.policy.model(ids, use_cache=False, logits_to_keep=torch.arange(38)).logits
        untaught = AutoModelForCausalLM.from_pretrained(folder)(ids).logits
    assert float((plain - ours).abs().max()) < 1e-4
    assert float((plain - untaught).abs().max()) > 1e-2


def test_a_checkpoint_is_a_model_to_run(tmp_path: Path, folder: Path) -> None:
    saved = save(learner_of(folder), tmp_path, step=1, tokenizer=folder, keep=1)
    with LocalEngine(saved, device="cpu", cache_tokens=4096) as engine:
        assert engine.renderer.exact


def test_only_the_last_ones_are_kept(tmp_path: Path, folder: Path) -> None:
    learner = learner_of(folder)
    for number in (5, 10, 15, 20):
        save(learner, tmp_path, step=number, tokenizer=folder, keep=2)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-000015", "step-000020"]
    assert latest(tmp_path) == tmp_path / "checkpoints" / "step-000020"


def test_half_a_checkpoint_is_never_taken_for_one(tmp_path: Path, folder: Path) -> None:
    learner = learner_of(folder)
    assert latest(tmp_path) is None
    whole = save(learner, tmp_path, step=1, tokenizer=folder, keep=1)
    half = whole.with_name(".step-000002.1234.tmp")  # what a killed process leaves
    half.mkdir()
    (half / STATE).write_bytes(b"\x00")
    assert latest(tmp_path) == whole
    save(learner, tmp_path, step=2, tokenizer=folder, keep=1)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-000002"]


def test_a_damaged_state_is_one_line_that_says_what_there_is_without_it(tmp_path: Path, folder: Path) -> None:
    learner = learner_of(folder)
    for number, otherwise in ((5, "its beginning"), (10, "step-000005")):
        saved = save(learner, tmp_path, step=number, tokenizer=folder, keep=2)
        whole = (saved / STATE).read_bytes()
        (saved / STATE).write_bytes(whole[: len(whole) // 2])
        with pytest.raises(StoreError, match=f"^cannot read .*; without this folder the run resumes from {otherwise}$"):
            load_state(learner_of(folder), saved)


@pytest.mark.parametrize("size", [100, 50_000, 200_000], ids=["config", "weights", "optimiser"])
def test_a_full_disk_is_told_and_the_last_checkpoint_stays(tmp_path: Path, folder: Path, size: int) -> None:
    learner = learner_of(folder)
    taught(learner)
    whole = save(learner, tmp_path, step=1, tokenizer=folder, keep=1)
    taught(learner)
    with (
        room_for(size),
        pytest.raises(StoreError, match=r"^cannot save .*step-000002: .*; the last one is .*step-000001$"),
    ):
        save(learner, tmp_path, step=2, tokenizer=folder, keep=1)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-000001"]
    assert load_state(learner_of(folder), whole) == 1
    assert latest(save(learner, tmp_path, step=2, tokenizer=folder, keep=1).parents[1]) != whole


def test_a_state_of_another_model_is_refused(tmp_path: Path, folder: Path) -> None:
    saved = save(learner_of(folder), tmp_path, step=1, tokenizer=folder, keep=1)
    (saved / STATE).write_bytes(b"no tensors")
    with pytest.raises(StoreError, match="cannot read"):
        load_state(learner_of(folder), saved)
