"""Several updates on the same trees: how they are divided, where clipping acts, and that nothing half done is kept."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, replace
from functools import partial
from math import exp, log, nan
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.errors import ConfigError, TrainError
from ramet.store import RunDir
from ramet.store.checkpoints import list_checkpoints
from ramet.train.local.backend import LocalBackend, open_backend
from ramet.train.loop import resume, train
from ramet.train.loss import Loss
from ramet.train.metrics import Stats
from ramet.train.phase import OpenBackend, open_local
from ramet.train.rows import Row
from ramet.train.settings import TrainConfig, UpdateConfig
from ramet.train.updates import Batch, deal_demos, gap_metrics, learn, plan_updates, summarize
from tests.train import small
from tests.train.coin import Coin, shown
from tests.train.separate import SeparateBackend
from tests.train.test_loop import Stopped, bits, numbers
from tests.train.tiny import row


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small.folder(tmp_path_factory.mktemp("updates"))


@pytest.fixture(params=["local", "separate"])
def backend(request: pytest.FixtureRequest) -> OpenBackend:
    return {"local": open_local, "separate": SeparateBackend}[request.param]


def learnt(coin: Coin, rows: Sequence[Row], *, demos: Sequence[Row] = (), loss: Loss, **update: Any) -> dict[str, Any]:
    config = TrainConfig(loss=loss, update=UpdateConfig(learning_rate=1.0, **update), steps=9)
    return anyio.run(partial(learn, coin, Batch(rows=rows, demos=demos), config=config, step=0))


PPO = Loss(kind="ppo", aggregation="token")


def test_a_second_epoch_is_clipped_where_the_first_has_gone_far_enough() -> None:
    # Token 1 with advantage 1. Epoch 1: ratio 1, gradient -(1 - 0.5), theta 0.5. Then p = 0.622, ratio 1.245 > 1.2: no
    # gradient. The third is the same.
    coin = Coin()
    metrics = learnt(coin, [shown(1)], loss=PPO, epochs=3)
    assert coin.path == pytest.approx([0.5, 0.5, 0.5])
    assert (metrics["updates"], metrics["clip_fraction"], metrics["clip_fraction_last"]) == (3, pytest.approx(2 / 3), 1)
    assert metrics["grad_norm"] == pytest.approx(0.5 / 3)
    assert (metrics["num_rows"], metrics["num_trained"], metrics["learning_rate"]) == (3, 3, 1.0)
    assert (coin.asked, coin.version) == (1, 1)


def test_ratios_of_later_updates_are_against_the_start_of_the_step_and_older_weights_are_a_bounded_weight() -> None:
    # Sampled with probability 0.1, 0.5 at the start of the step: importance weight 5, at most 2. Epoch 1: gradient
    # -2 × 0.5, theta 1 and p = sigmoid(1) = 0.731. The ratio since the start is 1.46: with a bound of 1.2 there is no
    # gradient. Against 0.1 all ratios would be above 5, and even the first update would have been clipped.
    old = shown(1, logprobs=(0.0, log(0.1)), versions=(-3,))
    coin = Coin()
    learnt(coin, [old], loss=replace(PPO, ceiling=2.0), epochs=2)
    assert coin.path == pytest.approx([1.0, 1.0])
    assert learnt(Coin(), [old], loss=PPO)["clip_fraction"] == 1.0


def test_every_mini_batch_has_its_own_denominator() -> None:
    # One group is a single token, the other has four. With the mean over tokens of a mini-batch, each moves theta by
    # half of (1 - p) or so; with that of the step the first would move it by a tenth.
    rows = [shown(1, group="a", tree_id="a"), shown(1, 1, 1, 1, group="b", tree_id="b")]
    coin = Coin()
    metrics = learnt(coin, rows, loss=Loss(kind="cispo", aggregation="token"), mini_batches=2)
    p = 1 / (1 + exp(-0.5))
    # cispo: the second has ratio p / 0.5, below its bound of 5, times the gradient 1 - p.
    assert coin.path == pytest.approx([0.5, 0.5 + 2 * p * (1 - p)])
    assert metrics["updates"] == 2


def test_one_update_asks_for_no_log_probs_and_is_the_same_as_without_the_settings() -> None:
    coin, other = Coin(), Coin()
    metrics = learnt(coin, [shown(1), shown(0, node=1, advantage=-0.5)], loss=PPO)
    assert (coin.asked, len(coin.path)) == (0, 1)
    assert "updates" not in metrics
    # Only one group has credit, so there is one mini-batch.
    flat = [shown(1, group="b", tree_id="u", advantage=0.0)]
    learnt(other, [shown(1, group="a"), *flat], loss=Loss(kind="ppo", aggregation="tree"), mini_batches=2)
    assert (other.asked, len(other.path)) == (0, 1)


def test_a_gap_is_found_before_the_first_of_several_updates() -> None:
    wrong = shown(1, 1, logprobs=(0.0, log(0.25), log(0.5)))
    assert gap_metrics([replace(wrong, proximal=(0.0, log(0.5), log(0.5)))], 0) == {
        "logprob_gap": pytest.approx(log(2) / 2),
        "logprob_gap_max": pytest.approx(log(2)),
    }
    assert gap_metrics([wrong], 0) == {"logprob_gap": None, "logprob_gap_max": None}
    coin = Coin()
    config = TrainConfig(loss=PPO, update=UpdateConfig(epochs=2))
    with pytest.raises(TrainError, match=r"sampler and learner disagree: .* by 0\.3466 .* Nothing was changed"):
        anyio.run(partial(learn, coin, Batch(rows=[wrong]), config=config, step=0, max_logprob_gap=0.1))
    assert coin.path == []


def rows_of(groups: Sequence[tuple[int, bool]], *, trees: int = 2) -> list[Row]:
    """For each group its number of nodes per tree, and whether it has credit."""
    return [
        row(1, 2, node=node, tree_id=f"{group}-{tree}", group=str(group), advantage=float(credited and tree - 0.5))
        for group, (nodes, credited) in enumerate(groups)
        for tree in range(trees)
        for node in range(nodes)
    ]


@given(
    groups=st.lists(st.tuples(st.integers(1, 4), st.booleans()), min_size=1, max_size=7),
    config=st.one_of(
        st.builds(UpdateConfig, epochs=st.integers(1, 3), mini_batches=st.integers(1, 5)),
        st.builds(UpdateConfig, epochs=st.integers(1, 3), mini_batch_nodes=st.integers(1, 9)),
    ),
    seed=st.integers(0, 99),
)
def test_every_epoch_has_every_row_once_in_whole_units_and_no_mini_batch_without_credit(
    groups: list[tuple[int, bool]], config: UpdateConfig, seed: int
) -> None:
    rows = rows_of(groups)
    plan = plan_updates(Batch(rows=rows), config, seed=seed)
    assert plan == plan_updates(Batch(rows=rows), config, seed=seed)
    assert len(plan) % config.epochs == 0
    count = len(plan) // config.epochs
    for start in range(0, len(plan), count):
        parts = [list(part.rows) for part in plan[start : start + count]]
        assert sorted(id(one) for part in parts for one in part) == sorted(map(id, rows))
        units = [{one.tree_id if config.mini_batch_nodes else one.group for one in part} for part in parts]
        assert sum(map(len, units)) == len(set().union(*units))
        assert max(map(len, units)) - min(map(len, units)) <= 1
        if count > 1:
            assert all(any(one.advantage for one in part) for part in parts)


@pytest.mark.parametrize(
    ("config", "sizes"),
    [
        (UpdateConfig(), [18]),
        (UpdateConfig(mini_batches=2), [6, 12]),  # groups of 6 nodes: one of three, and two
        (UpdateConfig(mini_batches=3, epochs=2), [6] * 6),
        (UpdateConfig(mini_batches=9), [6] * 3),
        (UpdateConfig(mini_batch_nodes=7), [6] * 3),  # 18 / 7 is 3 mini-batches, of 6 trees with 3 nodes each
        (UpdateConfig(mini_batch_nodes=4), [3, 3, 3, 3, 6]),
        (UpdateConfig(mini_batch_nodes=99), [18]),
    ],
)
def test_mini_batches_by_hand(config: UpdateConfig, sizes: list[int]) -> None:
    plan = plan_updates(Batch(rows=rows_of([(3, True)] * 3)), config, seed=5)
    assert sorted(len(part.rows) for part in plan) == sizes


def test_a_step_without_signal_has_no_update() -> None:
    coin = Coin()
    assert learnt(coin, [], loss=PPO, epochs=2) == {"updates": 0}
    assert learnt(coin, [], loss=PPO) == {}
    assert coin.path == []


def test_epochs_are_divided_in_different_ways() -> None:
    plan = plan_updates(Batch(rows=rows_of([(1, True)] * 8)), UpdateConfig(epochs=2, mini_batches=2), seed=0)
    first, second = ({one.group for one in plan[place].rows} for place in (0, 2))
    assert len(first) == len(second) == 4
    assert first != second


def test_demonstrations_are_dealt_to_the_mini_batches_and_each_has_one() -> None:
    demos = [row(1, 2, tree_id=name, node=node) for name in "abc" for node in range(2)]
    dealt = [
        ["".join(one.tree_id for one in deal_demos(demos, place, count)) for place in range(count)]
        for count in (1, 2, 5)
    ]
    assert dealt == [["aabbcc"], ["aacc", "bb"], ["aa", "bb", "cc", "aa", "bb"]]
    assert deal_demos([], 0, 2) == []


def test_metrics_of_a_step_by_hand() -> None:
    one = {"learning_rate": 0.1, "grad_norm": 1.0, "num_rows": 3, "kl": None, "clip_fraction": 0.0, "demo_tokens": 5}
    other = {"learning_rate": 0.1, "grad_norm": 2.0, "num_rows": 4, "kl": None, "clip_fraction": 0.5, "demo_tokens": 7}
    assert summarize([one, other]) == {
        "updates": 2,
        "learning_rate": 0.1,
        "grad_norm": 1.5,
        "num_rows": 7,
        "kl": None,
        "clip_fraction": 0.25,
        "demo_tokens": 12,
        "clip_fraction_last": 0.5,
    }


SEVERAL = ("update.epochs=2", "update.mini_batches=2", "loss.kind=ppo", "update.learning_rate=0.03")


@pytest.mark.parametrize("words", [SEVERAL, (*SEVERAL, "loss.ceiling=1.5"), (*SEVERAL, "loss.kind=cispo")])
def test_clipping_acts_in_later_updates_and_both_backends_take_the_same_steps(
    tmp_path: Path, folder: Path, words: tuple[str, ...]
) -> None:
    local, separate = (
        train(
            small.config(folder, "loss.bounds=[0.9, 1.1]", *words, f"steps={steps}"),
            runs=tmp_path / name,
            open_backend=opener,
        ).metrics()
        for name, opener, steps in (("local", open_local, 4), ("separate", SeparateBackend, 2))
    )
    assert max(record["updates"] for record in local) == 4
    assert max(record.get("clip_fraction_last", 0.0) for record in local) > 0.05
    for one, other in zip(local[:2], separate, strict=True):
        assert one["updates"] > 0
        assert one["logprob_gap"] < 1e-4
        assert {name: one[name] for name in ("trees", "reward", "updates", "num_rows", "num_trained")} == {
            name: other[name] for name in ("trees", "reward", "updates", "num_rows", "num_trained")
        }
        assert one["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-3)
        assert one["clip_fraction"] == pytest.approx(other["clip_fraction"], abs=0.02)


@pytest.mark.parametrize("kl_gradient", ["weighted", "plain"])
def test_both_backends_agree_on_the_kl_term(tmp_path: Path, folder: Path, kl_gradient: str) -> None:
    config = small.config(folder, "loss.kl=0.5", f"loss.kl_gradient={kl_gradient}", "steps=3")
    local, separate = (
        train(config, runs=tmp_path / name, open_backend=opener).metrics()
        for name, opener in (("local", open_local), ("separate", SeparateBackend))
    )
    assert local[2]["kl"] > 1e-3
    for one, other in zip(local, separate, strict=True):
        assert one["kl"] == pytest.approx(other["kl"], rel=1e-3, abs=1e-6)
        assert one["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-3)


GROUPS = ("update.mini_batches=2",)
NODES = ("update.mini_batch_nodes=4",)
DEMOS = (*GROUPS, "demos={weight=0.5, trees_per_step=3, taskset={operators=2}, budget={tokens=900, turns=9}}")


@pytest.mark.parametrize(
    ("opener", "words"),
    [
        # Every backend, and every way to divide a step; groups on the local one are also in the test with adapters.
        pytest.param(open_local, DEMOS, id="local-demos"),
        pytest.param(SeparateBackend, NODES, id="separate-nodes"),
        pytest.param(open_local, GROUPS, id="local-groups", marks=pytest.mark.slow),
        pytest.param(open_local, NODES, id="local-nodes", marks=pytest.mark.slow),
        pytest.param(SeparateBackend, GROUPS, id="separate-groups", marks=pytest.mark.slow),
        pytest.param(SeparateBackend, DEMOS, id="separate-demos", marks=pytest.mark.slow),
    ],
)
def test_a_run_with_several_updates_that_stopped_goes_on_to_the_same_bits(
    tmp_path: Path, folder: Path, opener: OpenBackend, words: tuple[str, ...]
) -> None:
    _check_resume(small.config(folder, "update.epochs=2", *words, "steps=3"), tmp_path, opener)


def test_a_run_with_adapters_and_several_updates_goes_on_to_the_same_bits(tmp_path: Path, folder: Path) -> None:
    _check_resume(small.config(folder, "update.lora_rank=2", *SEVERAL, "steps=3"), tmp_path, open_local)


def _check_resume(config: TrainConfig, tmp_path: Path, opener: OpenBackend) -> None:
    whole = train(config, runs=tmp_path / "whole", open_backend=opener)

    def stop(record: dict[str, Any]) -> None:
        if record["step"] == 1:
            raise Stopped

    with pytest.raises(Stopped):
        train(config, runs=tmp_path / "stopped", on_step=stop, open_backend=opener)
    again = resume(tmp_path / "stopped" / "train", open_backend=opener)
    assert bits(again) == bits(whole)
    assert numbers(again) == numbers(whole)
    assert max(record.get("updates", 0) for record in numbers(whole)) >= 2
    assert numbers(again)[-1]["updates"] >= 1  # in the step that was resumed


def test_a_version_is_published_once_per_step_and_there_is_none_in_between(folder: Path) -> None:
    rows = [row(5, 6, 7, trained=2, logprobs=(0.0, -1.0, -2.0))]

    async def work(made: LocalBackend) -> list[tuple[int, int]]:
        seen = [(made.version, made.engine.policy_version)]
        for last in (False, False, True):
            await made.forward_backward(rows, loss=Loss(), temperature=1.0)
            await made.optim_step(learning_rate=0.01, last=last)
            seen.append((made.version, made.engine.policy_version))
        await made.publish(1)
        return [*seen, (made.version, made.engine.policy_version)]

    with closing(open_backend(small.config(folder))) as made:
        assert anyio.run(work, made) == [(0, 0), (-1, 0), (-1, 0), (1, 1), (1, 1)]
        assert {int(state["step"]) for state in made.learner.adam.state.values()} == {3}  # the optimiser counts updates


def test_a_step_that_fails_after_its_first_update_is_not_saved(tmp_path: Path, folder: Path) -> None:
    class Failing(SeparateBackend):
        """Its third update has no finite loss."""

        updates = 0

        async def forward_backward(self, rows: Sequence[Row], *, loss: Loss, temperature: float) -> Stats:
            stats = await super().forward_backward(rows, loss=loss, temperature=temperature)
            Failing.updates += 1
            return Stats(**(asdict(stats) | {"loss": nan})) if Failing.updates == 3 + first else stats

    config = small.config(folder, "update.epochs=2", "save_every=100", "steps=2")
    counted = train(config, runs=tmp_path / "whole", open_backend=SeparateBackend)
    first = numbers(counted)[0]["updates"] - 1  # then the third update of the loop is the second of step 1
    with pytest.raises(
        TrainError, match=r"update 2 of 2 of a step: the loss is nan\. Resume from the newest checkpoint"
    ):
        train(config, runs=tmp_path, open_backend=Failing)
    run = RunDir.open(tmp_path / "train")
    assert len(run.metrics()) == 1
    assert list_checkpoints(run.path) == []
    assert bits(resume(run.path, open_backend=SeparateBackend)) == bits(counted)


def test_with_overlap_ages_and_gaps_stay_true(tmp_path: Path, folder: Path) -> None:
    """Tokens sampled between two updates have the number of the version before: no gap is taken of them."""
    config = small.config(folder, "overlap=1", "loss.ceiling=2.0", "update.epochs=3")
    for record in train(config, runs=tmp_path).metrics():
        assert record["age_max"] <= 1
        if record.get("logprob_gap") is not None:
            assert record["logprob_gap"] < 1e-4


def test_more_mini_batches_than_groups_are_refused(tmp_path: Path, folder: Path) -> None:
    said = r"update\.mini_batches is at most tasks_per_step, 2: trees of a task stay together; got 3"
    with pytest.raises(ConfigError, match=said):
        train(small.config(folder, "update.mini_batches=3"), runs=tmp_path)
    words = ("update.mini_batches=2", "eval.every=1", "eval.num_tasks=1", "steps=1")  # one task to evaluate on is fine
    assert len(train(small.config(folder, *words), runs=tmp_path).metrics()) == 1


def test_a_supervised_start_takes_mini_batches_too(tmp_path: Path, folder: Path, backend: OpenBackend) -> None:
    warm = {"steps": 2, "trees_per_step": 4, "update": {"mini_batches": 2, "epochs": 2, "learning_rate": 0.01}}
    config = small.config(folder, "steps=1", warm=warm | {"budget": {"tokens": 900, "turns": 9}})
    run = train(config, runs=tmp_path, open_backend=backend)
    assert [record["updates"] for record in RunDir.open(run.path / "warm").metrics()] == [4, 4]
