"""The gradient of the Tinker backend is that of the local one, whatever the loss, the aggregation and the server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import compress, pairwise
from pathlib import Path
from typing import Any

import anyio
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ramet.engine.scripted import WordTokenizer
from ramet.engine.tinker.calls import Calls
from ramet.tokens.render import TokenRenderer
from ramet.train.local.gradients import current_logprobs, forward_backward
from ramet.train.local.policy import Policy
from ramet.train.loss import Loss, select
from ramet.train.metrics import Stats
from ramet.train.rows import Row
from ramet.train.settings import UpdateConfig
from ramet.train.tinker.backend import Origin, TinkerBackend
from ramet.train.tinker.datum import forward_datum, num_sent, padded_length, split_by_length
from ramet.train.tinker.probe import Capabilities
from tests.train import tiny
from tests.train.tinker.standin import FSDP, HOSTED, MODEL, SKYRL_JAX, Manners, StandIn, StandInTrainer, adapted

RANK = 3
SERVERS = {"hosted": HOSTED, "jax": SKYRL_JAX, "fsdp": FSDP}
KINDS, AGGREGATIONS = ("ppo", "cispo", "plain"), ("token", "node", "tree", "constant")
LOSSES = st.builds(
    Loss,
    kind=st.sampled_from(KINDS),
    aggregation=st.sampled_from(AGGREGATIONS),
    divisor=st.sampled_from([1.0, 7.0]),
    bounds=st.sampled_from([None, (0.7, 1.1), (0.95, 3.0)]),
    dual_clip=st.sampled_from([None, None, 1.5]),
    ceiling=st.sampled_from([None, None, 1.2]),
    kl=st.sampled_from([0.0, 0.0, 0.3]),
    kl_gradient=st.sampled_from(["weighted", "plain"]),
)


@cache
def _warm_policy() -> Policy:
    """An adapter that is not zero, so that all its matrices have gradients."""
    policy = adapted(tiny.model(), RANK, seed=1)
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in policy.trained:
            parameter.add_(0.1 * torch.randn_like(parameter))
    return policy


def capabilities(manners: Manners) -> Capabilities:
    return Capabilities(
        server="stand-in",
        sdk="none",
        models=(MODEL,),
        reduction="sum" if manners.reduction == "sum" else "row_mean",
        keeps_versions=manners.snapshots,
        clips_gradients=manners.clips,
        honours_betas=manners.betas,
        cispo_bounds=manners.bounds,
    )


@cache
def _adapter() -> Policy:
    """The same weights in another module, for the server; no test changes them."""
    policy = adapted(tiny.model(), RANK, seed=1)
    policy.model.load_state_dict(_warm_policy().model.state_dict())
    return policy


@cache
def _unchanged() -> Policy:
    """The adapter as it was created, which is the base model."""
    return adapted(tiny.model(), RANK, seed=1)


def opened(manners: Manners, **more: object) -> tuple[TinkerBackend, StandInTrainer]:
    """A backend whose adapter has the weights of `_warm_policy`."""
    service = StandIn(tiny.model(), manners)
    trainer = StandInTrainer(service, _adapter(), RANK)
    backend = TinkerBackend(
        Calls(service, deadline_s=30),
        capabilities(manners),
        Origin(base_model=MODEL, base=Path(), folder=Path(), rank=RANK, seed=1),
        renderer=TokenRenderer(WordTokenizer()),
        window=100,
        update=UpdateConfig(),
        **more,  # pyright: ignore[reportArgumentType]
    )
    backend._trainer = trainer  # pyright: ignore[reportPrivateUsage]
    backend._reference = StandInTrainer(service, _unchanged(), RANK)  # pyright: ignore[reportPrivateUsage]
    return backend, trainer


def reference_logprobs(rows: Sequence[Row]) -> torch.Tensor:
    """Under the model that a run began with."""
    values = current_logprobs(_unchanged(), rows, micro_batch_tokens=999, temperature=1.0)
    trained = [one for row, found in zip(rows, values, strict=True) for one in compress(found, row.mask)]
    return torch.tensor(trained, dtype=torch.float64)


def local(rows: Sequence[Row], loss: Loss) -> tuple[Stats, dict[str, torch.Tensor]]:
    policy = _warm_policy()
    stats = forward_backward(
        policy,
        select(rows, loss),
        loss=loss,
        micro_batch_tokens=40,
        version=0,
        reference=reference_logprobs if loss.kl else None,
    )
    return stats, tiny.gradients(policy)


async def sent(
    backend: TinkerBackend, trainer: StandInTrainer, parts: Sequence[tuple[Sequence[Row], Loss]]
) -> tuple[list[Stats], dict[str, torch.Tensor]]:
    """The gradient as the server's optimiser sees it."""
    stats = [await backend.forward_backward(rows, loss=loss, temperature=1.0) for rows, loss in parts]
    seen: dict[str, torch.Tensor] = {}
    step = trainer.adam.step

    def look() -> None:
        seen.update(tiny.gradients(trainer.policy))

    trainer.adam.step = look  # pyright: ignore[reportAttributeAccessIssue]
    await backend.optim_step(learning_rate=0.1)
    trainer.adam.step = step
    return stats, seen


def check_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    if one or other:
        assert tiny.largest_difference(one, other) < 1e-8 * max(1.0, *(float(g.abs().max()) for g in one.values()))


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@settings(max_examples=2)
@given(rows=tiny.tries(), loss=LOSSES, with_proximal=st.booleans())
def test_the_gradient_is_that_of_the_local_backend(
    server: str, kind: Any, aggregation: Any, rows: list[Row], loss: Loss, with_proximal: bool
) -> None:
    loss = replace(loss, kind=kind, aggregation=aggregation)
    rows = [row for row in rows if row.num_trained]
    if with_proximal and loss.kind != "plain":
        rows = [replace(row, proximal=tuple(0.9 * one for one in row.logprobs or ())) for row in rows]
    backend, trainer = opened(replace(SERVERS[server], clips=False))
    stats, here = local(rows, loss)
    (found,), there = anyio.run(sent, backend, trainer, [(rows, loss)])
    check_same(here, there)
    assert found.loss == pytest.approx(stats.loss, abs=1e-9)
    for name in ("num_rows", "num_skipped", "num_trained", "num_tokens"):
        assert getattr(found, name) == getattr(stats, name)
    for name in ("clip_fraction", "logprob_gap", "logprob_gap_max", "kl"):
        assert getattr(found, name) == pytest.approx(getattr(stats, name), abs=1e-9)


@pytest.mark.parametrize("server", SERVERS)
@settings(max_examples=8)
@given(rows=tiny.tries(), demos=tiny.tries(), loss=LOSSES)
def test_two_calls_before_a_step_add_up(server: str, rows: list[Row], demos: list[Row], loss: Loss) -> None:
    """As with demonstrations beside trees: a mean over rows must know the rows of both calls."""
    demos = [replace(row, logprobs=None, advantage=1.0) for row in demos]
    copying = Loss(kind="plain", aggregation="token")
    backend, trainer = opened(replace(SERVERS[server], clips=False), several_calls=True)
    grads = [local(part, one)[1] for part, one in ((rows, loss), (demos, copying))]
    total = {name: sum(g[name] for g in grads if name in g) for name in {name for g in grads for name in g}}
    _, there = anyio.run(sent, backend, trainer, [(rows, loss), (demos, copying)])
    check_same(total, there)  # pyright: ignore[reportArgumentType]


def test_rows_are_sent_in_few_sizes_where_a_server_compiles_every_size() -> None:
    """A batch of 32 stays as it is, the rest becomes a power of two. A server that sums gets no empty rows."""
    assert [num_sent(number, "row_mean") for number in (1, 3, 5, 32, 37, 64, 90)] == [1, 4, 8, 32, 40, 64, 96]
    assert num_sent(37, "sum") == 37


def test_rows_that_are_padded_to_like_lengths_share_a_call() -> None:
    """A row of 100 tokens among 69 short ones would make all of them 128 tokens long."""
    assert [padded_length(length) for length in (1, 32, 33, 48, 49, 65, 96, 97, 1025, 1536, 1537)] == [
        *(32, 32, 48, 48, 64, 96, 96, 128, 1536, 1536, 2048),
    ]
    lengths = [10] * 39 + [100] + [60] * 30
    data = [forward_datum(tiny.row(*range(length + 1))) for length in lengths]
    short = [place for place, length in enumerate(lengths) if length == 10]
    assert split_by_length(data, "row_mean") == [[39, *range(40, 70), 0], short[1:]]  # 32 rows of 128, 38 of 32
    assert split_by_length(data[:32], "row_mean") == [list(range(32))]
    assert split_by_length(data, "sum") == [list(range(70))]


@pytest.mark.parametrize("loss", [Loss(kind="cispo", aggregation="node"), Loss(kind="ppo", dual_clip=1.5)])
def test_a_gradient_over_several_calls_is_that_of_one(loss: Loss) -> None:
    """37 rows of 2 to 38 tokens: 32 long ones in one call, five short ones and three empty ones in another."""
    rows = [
        tiny.row(
            *(place % 4 for place in range(length)),
            logprobs=(-1.0 - length / 100,) * length,
            advantage=(-1.0) ** length,
            tree_id=str(length % 3),
            versions=(0,),
        )
        for length in range(2, 39)
    ]
    backend, trainer = opened(replace(SKYRL_JAX, clips=False))
    stats, here = local(rows, loss)
    (found,), there = anyio.run(sent, backend, trainer, [(rows, loss)])
    check_same(here, there)
    assert found.loss == pytest.approx(stats.loss, abs=1e-9)
    assert found.logprob_gap == pytest.approx(stats.logprob_gap, abs=1e-9)
    assert trainer.service.verbs.count("forward_backward") == 2


def test_ppo_and_cispo_need_no_second_pass_where_the_server_has_their_bounds() -> None:
    rows = [tiny.row(1, 2, 3, trained=2, logprobs=(0.0, -1.0, -2.0), versions=(0,))]
    for kind in ("ppo", "cispo", "plain"):
        backend, trainer = opened(SKYRL_JAX)
        anyio.run(sent, backend, trainer, [(rows, Loss(kind=kind))])  # pyright: ignore[reportArgumentType]
        assert "forward" not in trainer.service.verbs
    backend, trainer = opened(FSDP)
    anyio.run(sent, backend, trainer, [(rows, Loss(kind="cispo"))])
    assert trainer.service.verbs.index("forward") < trainer.service.verbs.index("forward_backward")


def test_a_discarded_gradient_is_never_applied() -> None:
    rows = [tiny.row(1, 2, 3, trained=2, logprobs=(0.0, -1.0, -2.0), versions=(0,))]
    others = [tiny.row(4, 2, 3, trained=1, logprobs=(0.0, 0.0, -2.0), versions=(0,), advantage=-0.5)]
    backend, trainer = opened(HOSTED)

    async def work() -> dict[str, torch.Tensor]:
        await backend.forward_backward(rows, loss=Loss(), temperature=1.0)
        await backend.discard()
        stats = await backend.forward_backward(others, loss=Loss(), temperature=1.0)
        assert stats.loss == pytest.approx(local(others, Loss())[0].loss)
        newest = trainer.service.trainers[-1]
        return tiny.gradients(newest.policy)

    there = anyio.run(work)
    check_same(local(others, Loss())[1], there)
    assert trainer.unloaded


def test_log_probs_have_the_shape_of_rows() -> None:
    rows = [tiny.row(1, 2, 3, trained=2), tiny.row(4, 5, 6, 7, trained=1)]
    backend, _ = opened(HOSTED)
    found = anyio.run(lambda: backend.logprobs(rows, temperature=1.0))
    wanted = current_logprobs(_warm_policy(), rows, micro_batch_tokens=99, temperature=1.0)
    for got, right in pairwise([found, wanted]):
        assert [len(one) for one in got] == [3, 4]
        for one, other in zip(got, right, strict=True):
            assert one == pytest.approx(other, abs=1e-9)
