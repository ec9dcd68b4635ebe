"""Whole runs on a service of the Tinker API: the loop, versions, checkpoints, resuming, and what goes wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import anyio
import pytest
import torch
from safetensors.torch import load_file

from ramet.config import load
from ramet.engine.open import closing
from ramet.engine.settings import EngineConfig
from ramet.engine.tinker.remote import RemoteEngine
from ramet.engine.tinker.service import Service
from ramet.errors import ConfigError, EngineError, StoreError
from ramet.models.adapter import folder_logprobs
from ramet.models.folders import load_model
from ramet.store import RunDir, read_trees
from ramet.store.checkpoints import latest, list_checkpoints
from ramet.train import loop, resume, train
from ramet.train.backend import Backend
from ramet.train.phase import OpenBackend
from ramet.train.settings import TrainConfig, WarmConfig
from ramet.train.tinker.open import Known, open_backend
from ramet.train.tinker.probe import probe
from ramet.types import Message, Prompt
from tests.train import small
from tests.train.tinker.standin import FSDP, HOSTED, MODEL, SKYRL_JAX, Manners, StandIn

TINKER = ("backend.kind=tinker", "backend.base_url=http://stand-in", f"backend.base_model={MODEL}", "backend.rank=4")

SHORT = (
    *("steps=3", "save_every=1", "backend.reduction=sum", "backend.chunk=16"),
    *("dialect=terse", "group_size=4", "budget.tokens=[4,12]", "budget.reserve=2", "credit.token_cost=20"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small.folder(tmp_path_factory.mktemp("tinker"))


def service(folder: Path, manners: Manners = HOSTED, **more: Any) -> StandIn:
    return StandIn(load_model(folder, device="cpu"), manners, **more)


def opener(server: StandIn, said: list[str] | None = None, *, run: TrainConfig | None = None) -> OpenBackend:
    """Opens backends on the same server, as a real one outlives the process."""

    async def connect(base_url: str, deadline_s: float) -> Service:
        return server

    say, known = (said if said is not None else []).append, Known()

    def opened(config: TrainConfig | WarmConfig) -> Backend:
        return open_backend(config, connect=connect, say=say, check_every_s=0.05, known=known, run=run)

    return opened


def config(folder: Path, *words: str, **more: Any) -> TrainConfig:
    return small.config(folder, *TINKER, *SHORT, *words, **more)


def weights(run: RunDir) -> dict[str, torch.Tensor]:
    checkpoint = latest(run.path)
    assert checkpoint is not None
    return load_file(checkpoint / "model.safetensors")


def test_a_run_learns_publishes_and_writes_hugging_face_folders(folder: Path, tmp_path: Path) -> None:
    server = service(folder, SKYRL_JAX)
    said: list[str] = []
    run = train(config(folder, "backend.reduction=auto"), runs=tmp_path, open_backend=opener(server, said))
    records = run.metrics()
    assert [record["step"] for record in records] == [0, 1, 2]
    assert any(record.get("grad_norm", 0) > 0 for record in records)
    assert max(record["logprob_gap"] for record in records if record.get("logprob_gap") is not None) < 1e-5
    pieces = [piece for tree in read_trees(run.path) for node in tree.nodes for piece in node.pieces if piece.sampled]
    assert {piece.policy_version for piece in pieces} == {0, 1, 2}  # every token is stamped
    assert all(len(piece.logprobs) == len(piece.token_ids) for piece in pieces)
    checkpoint = latest(run.path)
    assert checkpoint is not None
    load_model(checkpoint, device="cpu")
    assert (checkpoint / "tokenizer.json").is_file()
    assert json.loads((checkpoint / "tinker.json").read_text())["base_model"] == MODEL
    assert len(list_checkpoints(run.path)) == 2
    assert said == ["stand-in does not clip gradients: update.max_grad_norm=1 is ignored"]
    assert server.closed
    assert server.trainers[0].unloaded  # that of the probe


def test_a_run_that_was_interrupted_ends_with_the_same_bits(folder: Path, tmp_path: Path) -> None:
    settings = config(folder, "save_every=2")
    whole = train(settings, runs=tmp_path / "whole", open_backend=opener(service(folder)))

    def stop(record: dict[str, Any]) -> None:
        if record["step"] == 1:
            raise KeyboardInterrupt

    server = service(folder)
    with pytest.raises(KeyboardInterrupt):
        train(settings, runs=tmp_path / "cut", open_backend=opener(server), on_step=stop)
    path = next((tmp_path / "cut").iterdir())
    resumed = resume(path, open_backend=opener(server))
    assert [record["loss"] for record in resumed.metrics() if "loss" in record] == [
        record["loss"] for record in whole.metrics() if "loss" in record
    ]
    one, other = weights(whole), weights(resumed)
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert any(not torch.equal(one[name], before) for name, before in load_file(folder / "model.safetensors").items())


def test_the_merged_model_has_the_log_probs_of_the_server(folder: Path, tmp_path: Path) -> None:
    server = service(folder)
    run = train(config(folder, "steps=2"), runs=tmp_path, open_backend=opener(server))
    checkpoint = latest(run.path)
    assert checkpoint is not None
    trainer = server.trainers[-1]
    ids = (5, 9, 2, 7, 300, 12)
    with torch.no_grad():
        logits = trainer.policy.core(torch.tensor([ids[:-1]])).logits[0].log_softmax(-1)
    there = logits.gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()
    assert folder_logprobs(checkpoint, ids, device="cpu") == pytest.approx(there, abs=1e-4)
    assert folder_logprobs(folder, ids, device="cpu") != pytest.approx(there, abs=1e-3)  # the adapter did change them


def test_a_base_model_that_is_not_the_servers_is_found_out_at_the_first_checkpoint(
    folder: Path, tmp_path: Path
) -> None:
    other = small.folder(tmp_path / "other", seed=1)
    with pytest.raises(StoreError, match="is not the model on the server"):
        train(config(other), runs=tmp_path, open_backend=opener(service(folder)))


def test_rl_begins_with_the_weights_that_the_supervised_start_left_on_the_server(folder: Path, tmp_path: Path) -> None:
    server = service(folder)
    settings = config(folder, "steps=1", warm={"steps": 1, "trees_per_step": 2, "budget": {"tokens": 200}})
    run = train(settings, runs=tmp_path, open_backend=opener(server))
    assert server.verbs.count("create") == 1
    assert server.verbs.count("load_state") == 1
    warm = latest(run.path / "warm")
    assert warm is not None
    saved = json.loads((warm / "tinker.json").read_text())
    assert json.loads((latest(run.path) / "tinker.json").read_text())["base"] == saved["base"] == str(folder.resolve())  # pyright: ignore[reportOptionalOperand]


@pytest.mark.parametrize("gone", [False, True])
def test_a_checkpoint_that_was_run_leaves_no_adapter_on_a_server_that_answers(folder: Path, gone: bool) -> None:
    server = service(folder)

    async def connect(base_url: str, deadline_s: float) -> Service:
        return server

    async def run() -> None:
        trainer = await server.create(base_model=MODEL, rank=4, seed=0)
        path = await trainer.save_state("first")
        settings = EngineConfig(kind="tinker", base_url="http://stand-in", model=path, tokenizer=str(folder))
        prompt = Prompt(messages=(Message(role="user", content="?"),), ids=(3, 1, 4))
        async with closing(RemoteEngine(settings, connect=connect)):
            pass  # not connected: nothing to free
        engine = RemoteEngine(settings, connect=connect)
        async with closing(engine):
            assert (await engine.sample(prompt, max_tokens=2, seed=0)).num_tokens > 0
            server.gone = gone
            if gone:
                with pytest.raises(EngineError, match="stand-in"):
                    await engine.sample(prompt, max_tokens=2, seed=0)

    anyio.run(run)
    assert [trainer.unloaded for trainer in server.trainers] == [False, not gone]
    assert server.closed


def test_a_supervised_start_and_rl_probe_the_server_once_and_print_what_it_ignores_once(
    folder: Path, tmp_path: Path
) -> None:
    server, said = service(folder, SKYRL_JAX), list[str]()
    warm = {"steps": 1, "trees_per_step": 2, "budget": {"tokens": 200}}
    settings = config(folder, "steps=1", "backend.reduction=auto", "update.max_grad_norm=0.2", warm=warm)
    known_before_training: list[list[str]] = []
    train(
        settings,
        runs=tmp_path,
        open_backend=opener(server, said, run=settings),
        on_start=lambda _: known_before_training.append(list(said)),
    )
    assert said == [
        "stand-in does not clip gradients: warm.update.max_grad_norm=1 is ignored",
        "stand-in does not clip gradients: update.max_grad_norm=0.2 is ignored",
    ]
    assert known_before_training == [said]
    assert server.verbs.count("create") == 2  # the adapter of the probe, and that of the run


def test_overlap_is_refused_without_snapshots_and_works_with_them(folder: Path, tmp_path: Path) -> None:
    words = ("overlap=1", "backend.reduction=auto", "steps=2")
    with pytest.raises(ConfigError, match=r"overlap=1 .* keeps no snapshot of published weights, .*; add overlap=0"):
        train(config(folder, *words), runs=tmp_path, open_backend=opener(service(folder, SKYRL_JAX)))
    assert not list(tmp_path.iterdir())
    run = train(config(folder, *words), runs=tmp_path, open_backend=opener(service(folder)))
    assert len(run.metrics()) == 2
    assert max(record["age_max"] for record in run.metrics()) == 1


def test_overlap_is_refused_before_the_supervised_start(folder: Path, tmp_path: Path) -> None:
    server = service(folder, SKYRL_JAX)
    warm = {"steps": 1, "trees_per_step": 2, "budget": {"tokens": 200}}
    with pytest.raises(ConfigError, match="add overlap=0"):
        train(config(folder, "overlap=1", warm=warm), runs=tmp_path, open_backend=opener(server))
    assert not list(tmp_path.iterdir())
    assert server.closed


def test_a_recipes_overlap_is_left_out_with_the_reason(folder: Path, tmp_path: Path) -> None:
    said: list[str] = []
    settings = config(folder, "overlap=1", "overlap_by=groups", "max_age=2", "steps=1")
    opened = opener(service(folder, SKYRL_JAX))
    run = loop.train(settings, runs=tmp_path, open_backend=opened, lower_overlap=said.append)
    assert len(said) == 1
    assert said[0].startswith("overlap=0 instead of the recipe's overlap=1: the backend keeps no snapshot")
    saved = load(TrainConfig, file=run.path / "config.toml")
    assert (saved.overlap, saved.overlap_by, saved.max_age) == (0, "steps", None)


@pytest.mark.parametrize(
    ("manners", "found"),
    [
        (HOSTED, ("sum", True, True, True, True)),
        (SKYRL_JAX, ("row_mean", False, False, True, True)),
        (FSDP, ("sum", False, False, False, False)),
    ],
)
def test_the_probe_finds_out_what_a_server_does(folder: Path, manners: Manners, found: tuple[Any, ...]) -> None:
    server = service(folder, manners)
    facts: dict[str, Any] = {}
    seen = anyio.run(lambda: probe(server, base_model=MODEL, deadline_s=60, on_fact=facts.__setitem__))
    assert facts.items() <= asdict(seen).items()
    assert len(facts) == len(found)
    known = (seen.reduction, seen.keeps_versions, seen.clips_gradients, seen.honours_betas, seen.cispo_bounds)
    assert known == found
    assert len(seen.notes) == known.count(False)
    assert server.trainers[0].unloaded


@pytest.mark.parametrize("manners", [Manners(norms=False), Manners(reduction="token_mean")])
def test_a_server_whose_reduction_cannot_be_found_out_has_to_be_described(folder: Path, manners: Manners) -> None:
    server = service(folder, manners)
    with pytest.raises(ConfigError, match=r"give backend\.reduction=sum or row_mean"):
        anyio.run(lambda: probe(server, base_model=MODEL, deadline_s=60))


def failing(verb: str, after: int, action: Callable[[StandIn], Any]) -> Callable[[StandIn], None]:
    """From the call of that number on, `verb` does something else."""

    def into(server: StandIn) -> None:
        def fault(name: str) -> Any:
            return action(server) if name == verb and server.verbs.count(verb) > after else None

        server.fault = fault

    return into


def dies(server: StandIn) -> None:
    server.gone = True


def fails(server: StandIn) -> None:
    raise EngineError("http://stand-in: Error retrieving result: Unknown error with status 500")


@pytest.fixture(scope="module")
def undisturbed(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    runs = tmp_path_factory.mktemp("undisturbed")
    return weights(train(config(folder, "steps=2"), runs=runs, open_backend=opener(service(folder))))


@pytest.mark.parametrize(
    ("verb", "action"),
    [
        ("forward_backward", dies),
        ("save_weights_for_sampler", dies),
        ("save_state", dies),
        ("optim_step", fails),
        ("forward_backward", fails),
    ],
)
def test_a_run_whose_server_fails_ends_with_one_line_and_resumes_with_the_same_bits(
    folder: Path,
    tmp_path: Path,
    undisturbed: dict[str, torch.Tensor],
    verb: str,
    action: Callable[[StandIn], Any],
) -> None:
    settings = config(folder, "steps=2")
    server = service(folder)
    failing(verb, 1, action)(server)
    with pytest.raises(EngineError, match="stand-in") as caught:
        train(settings, runs=tmp_path / "cut", open_backend=opener(server))
    assert "\n" not in str(caught.value)
    server.gone, server.fault = False, lambda verb: None
    resumed = resume(next((tmp_path / "cut").iterdir()), open_backend=opener(server))
    other = weights(resumed)
    assert all(torch.equal(undisturbed[name], other[name]) for name in other)


def test_a_call_without_an_answer_ends_at_its_deadline(folder: Path, tmp_path: Path) -> None:
    server = service(folder, fault=lambda verb: anyio.sleep_forever() if verb == "forward_backward" else None)
    with pytest.raises(EngineError, match=r"forward_backward: the server did not answer within 0.2 s"):
        train(config(folder, "backend.deadline_s=0.2"), runs=tmp_path, open_backend=opener(server))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("backend.base_url=",), "backend.kind=tinker needs backend.base_url"),
        (("temperature=0.7",), "temperature=0.7 does not work with backend.kind=tinker: .*; add temperature=1"),
        (("backend.rank=0",), "backend.rank is a whole number from 1 up; got 0"),
        (("backend.deadline_s=0",), "backend.deadline_s is a number above 0"),
        (("backend.kind=local",), "is for backend.kind=tinker, and this is local"),
        (("backend.reduction=mean",), "backend.reduction"),
    ],
)
def test_a_bad_setting_is_one_line(folder: Path, words: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config(folder, *words)


def test_a_model_that_the_server_does_not_have_is_named_with_those_it_has(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="stand-in has no model 'tinny': did you mean tiny"):
        train(config(folder, "backend.base_model=tinny"), runs=tmp_path, open_backend=opener(service(folder)))
    with pytest.raises(ConfigError, match=r"stand-in serves tiny, not .*: if that is the same model"):
        train(config(folder, "backend.base_model="), runs=tmp_path, open_backend=opener(service(folder)))
    named = service(folder, models=(str(folder),))
    train(config(folder, "backend.base_model=", "steps=1"), runs=tmp_path, open_backend=opener(named))


def test_settings_of_the_backend_are_part_of_the_run(folder: Path, tmp_path: Path) -> None:
    run = train(config(folder, "steps=1"), runs=tmp_path, open_backend=opener(service(folder)))
    assert load(TrainConfig, file=run.path / "config.toml").backend.rank == 4
