"""Learning on a GPU: the packed kernel, the sampler beside it, whole runs. `pytest -m gpu`."""

# pyright: standard

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from ramet.bench.learner import make_rows
from ramet.config import load
from ramet.credit import group_trees, load_rule
from ramet.errors import TrainError
from ramet.models.nano import write_nano
from ramet.store import RunDir
from ramet.store.checkpoints import latest
from ramet.train.local.backend import LocalBackend, open_backend
from ramet.train.local.forward import row_logprobs
from ramet.train.local.gradients import forward_backward
from ramet.train.local.head import Targets, token_logprobs
from ramet.train.local.policy import Policy, prepare
from ramet.train.loop import resume, train
from ramet.train.loss import Loss
from ramet.train.metrics import Stats
from ramet.train.rows import Row, tree_rows
from ramet.train.settings import SamplerConfig, TrainConfig, UpdateConfig
from tests.engine.local.models import KINDS, VOCABULARY, make
from tests.train import small
from tests.train.test_step import trees_of, updated
from tests.train.tiny import gradients, row

DEVICE = "cuda"
CLOSE = 1e-4
# What torch and triton remark while they compile is not about us.
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:::torch", "ignore:::triton")]


# Packing.


def branching(seed: int, *, longest: int = 300, nodes: int = 10) -> list[Row]:
    """Rows that leave a common trunk at any place, over several blocks of the kernel."""
    dice = random.Random(seed)
    trunk = [dice.randrange(VOCABULARY) for _ in range(longest)]
    rows: list[Row] = []
    for node in range(nodes):
        own = [dice.randrange(VOCABULARY) for _ in range(dice.randrange(1, 60))]
        start = trunk[: dice.randrange(1, longest)]
        sampled = (0.0,) * len(start) + tuple(dice.uniform(-12, -3) for _ in own)
        known = {"logprobs": sampled, "advantage": dice.uniform(-1, 1), "versions": (0,)}
        rows.append(row(*start, *own, trained=len(own), node=node, **known))
    return rows


def step(policy: Policy, rows: Sequence[Row]) -> tuple[Stats, torch.Tensor]:
    """What one micro-batch comes to, and its gradient in one piece."""
    loss = Loss(kind="cispo", ceiling=2.0)
    stats = forward_backward(policy, rows, loss=loss, micro_batch_tokens=100_000, temperature=0.7, entropy=True)
    assert stats.num_batches == 1
    return stats, torch.cat([one.flatten() for one in gradients(policy).values()])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["single", "half"])
def test_log_probs_by_kernels_are_those_of_torch(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    head = torch.nn.Linear(64, 49152, bias=False, device=DEVICE, dtype=dtype)
    hidden = torch.randn(3000, 64, device=DEVICE, dtype=dtype, requires_grad=True)
    slots = torch.arange(3000, device=DEVICE).repeat_interleave(2)
    tokens = torch.randint(9, (6000,), device=DEVICE)  # some slots are asked twice for one token
    targets = Targets(slots=slots, tokens=tokens, counts=(2,) * 3000)
    credit = torch.randn(6000, device=DEVICE)
    gradients: list[tuple[torch.Tensor, ...]] = []
    values: list[torch.Tensor] = []
    for fused in (True, False):
        logprobs, entropies = token_logprobs(hidden, head, targets, temperature=0.7, entropy=True, fused=fused)
        assert entropies is not None
        values.append(torch.stack([logprobs.detach(), entropies]))
        gradients.append(torch.autograd.grad((logprobs * credit).sum(), [hidden, head.weight]))
    torch.testing.assert_close(*values, rtol=0, atol=CLOSE)
    for one, other in zip(*gradients, strict=True):
        assert float((one - other).norm()) <= (1e-5 if dtype is torch.float32 else 0.01) * float(other.norm())


def policy_of(kind: str = "llama", **how: Any) -> Policy:
    """Always the same weights in single precision."""
    return prepare(make(kind, device=DEVICE, max_position_embeddings=1024), **how)


@pytest.mark.parametrize("checkpointing", [False, True], ids=["layers kept", "layers computed again"])
@pytest.mark.parametrize("kind", list(KINDS))
def test_packed_and_padded_losses_and_gradients_agree(kind: str, checkpointing: bool) -> None:
    packing, padding = policy_of(kind, packed=True, checkpointing=checkpointing), policy_of(kind, packed=False)
    for seed, longest in enumerate((300, 40, 500)):  # one kernel for all lengths
        rows = branching(seed, longest=longest)
        packed, found = step(packing, rows)
        padded, expected = step(padding, rows)
        assert packed.num_read < padded.num_read
        assert packed.loss == pytest.approx(padded.loss, abs=CLOSE)
        assert packed.entropy == pytest.approx(padded.entropy, abs=CLOSE)
        assert packed.logprob_gap == pytest.approx(padded.logprob_gap, abs=CLOSE)
        assert float((found - expected).norm()) < CLOSE * float(expected.norm())


def test_compiled_layers_have_the_same_losses_and_gradients_for_all_lengths() -> None:
    compiled, plain = policy_of("qwen3", compiled=True), policy_of("qwen3")
    for seed, longest in enumerate((300, 40, 500)):
        rows = branching(seed, longest=longest)
        (fast, found), (slow, expected) = step(compiled, rows), step(plain, rows)
        assert fast.loss == pytest.approx(slow.loss, abs=CLOSE)
        assert float((found - expected).norm()) < CLOSE * float(expected.norm())


def test_prefixes_that_many_rows_share_have_the_same_losses_and_gradients() -> None:
    packing, padding = policy_of("qwen3", packed=True), policy_of("qwen3", packed=False)
    for nodes in (
        150,
        10,
        200,
    ):  # 36, 4 and 52 blocks: the gradient of the trunk has several items in the first and last
        rows = branching(nodes, nodes=nodes)
        (packed, found), (padded, expected) = step(packing, rows), step(padding, rows)
        assert packed.loss == pytest.approx(padded.loss, abs=CLOSE)
        assert float((found - expected).norm()) < CLOSE * float(expected.norm())


def test_a_packed_micro_batch_takes_less_memory_than_the_padded_one() -> None:
    rows = make_rows(prompt=512, answer=64, group=8, num_groups=1, vocabulary=VOCABULARY)

    def peak(policy: Policy) -> int:
        forward_backward(
            policy, rows, loss=Loss(kind="plain"), micro_batch_tokens=100_000
        )  # kernels are compiled, gradients there
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        forward_backward(policy, rows, loss=Loss(kind="plain"), micro_batch_tokens=100_000)
        return torch.cuda.max_memory_allocated() - before

    assert 0 < peak(policy_of(packed=True)) < peak(policy_of(packed=False))


# Sampler and learner.


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Heads of 16: kernels take no smaller ones."""
    return small.folder(tmp_path_factory.mktemp("cuda"), hidden_size=64)


@pytest.fixture
def backend(folder: Path) -> Iterator[LocalBackend]:
    sampler = SamplerConfig(device=DEVICE, dtype="float32", cache_tokens=16384)
    config = TrainConfig(model=str(folder), update=UpdateConfig(learning_rate=0.01), sampler=sampler)
    with closing(open_backend(config)) as made:
        yield made


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_ratios_of_a_whole_batch_are_one_at_the_version_that_sampled_it(
    backend: LocalBackend, folder: Path, temperature: float
) -> None:
    updated(backend, trees_of(backend, folder))  # weights that were trained, and a cache that was renewed
    trees = trees_of(backend, folder, temperature=temperature, step=1)
    assert {node.depth for tree in trees for node in tree.nodes} == {0, 1}
    credits = load_rule("rao").credit(group_trees(trees))
    rows = [row for tree in trees for row in tree_rows(tree, credits.of(tree))]
    assert {row.versions for row in rows} == {(1,)}
    sampled = [value for row in rows for at, value in enumerate(row.logprobs or ()) if row.mask[at]]
    with torch.no_grad():
        now = row_logprobs(backend.learner.policy, rows, temperature=temperature).logprobs.cpu()
    assert len(sampled) > 100
    assert float(((now - torch.tensor(sampled)).exp() - 1).abs().max()) < CLOSE
    facts = updated(backend, trees, temperature=temperature)
    assert facts["logprob_gap"] < CLOSE
    assert facts["clip_fraction"] == 0
    assert backend.engine.policy_version == 2


# Whole runs.


@pytest.fixture(scope="module")
def nano(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_nano(tmp_path_factory.mktemp("nano") / "model")


def config_of(model: Path) -> TrainConfig:
    """Three steps, after a supervised start that makes a right answer likely enough for something to be learnt."""
    words = {
        "model": str(model),
        "task": "codes:train",
        "dialect": "terse",
        "steps": 3,
        "tasks_per_step": 8,
        "group_size": 8,
        "overlap": 1,
        "budget": {"tokens": [60, 90], "nodes": 6, "depth": 1, "window": 128, "reserve": 4},
        "warm": {
            "steps": 40,
            "trees_per_step": 32,
            "delegate": 0.5,
            "update": {"learning_rate": 3e-3, "warmup_steps": 5},
        },
        "update": {"learning_rate": 1e-3, "micro_batch_tokens": 4096},
        "sampler": {"device": DEVICE, "dtype": "float32", "cache_tokens": 16384},
        "max_logprob_gap": 1e-3,
        "save_every": 1,
    }
    return load(TrainConfig, base=words)


def check(run: RunDir) -> None:
    """All steps are there; each with a signal learnt, from trees no older than allowed and as the sampler saw them.

    Which weights a token is sampled from depends on timing here, so any step may be without a signal.
    """
    logged = run.metrics()
    assert [record["step"] for record in logged] == [0, 1, 2]
    assert {record["trees"] for record in logged} == {64}
    learnt = [record for record in logged if "note" not in record]
    assert min(record["grad_norm"] for record in learnt) > 0
    assert max(record["logprob_gap"] or 0 for record in learnt) < CLOSE
    assert max(record["age_max"] for record in logged) <= 1
    newest = latest(run.path)
    assert newest is not None
    AutoModelForCausalLM.from_pretrained(newest)


def test_three_steps_of_a_run_that_learns_while_it_collects(tmp_path: Path, nano: Path) -> None:
    run = train(config_of(nano), runs=tmp_path)
    check(run)
    logged = run.metrics()
    resume(run.path)  # nothing is left to do
    assert run.metrics() == logged


def test_a_run_that_stopped_goes_on_to_its_end(tmp_path: Path, nano: Path) -> None:
    def stop(record: dict[str, Any]) -> None:
        if record["step"] == 1 and "part" not in record:
            raise TrainError("stopped here")

    with pytest.raises(TrainError, match="stopped here"):
        train(config_of(nano), runs=tmp_path, on_step=stop)
    check(resume(tmp_path / "train"))
