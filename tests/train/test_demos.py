"""Demonstrations in every update: which ones, how much they weigh, and that they hold where there is no signal."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from math import log
from pathlib import Path
from typing import Any

import anyio
import pytest
import torch

from ramet.credit import load_rule
from ramet.errors import ConfigError
from ramet.tokens.huggingface import load_renderer
from ramet.tokens.render import TokenRenderer
from ramet.train.demos import DemosConfig, demo_rows, demos_config, open_demos
from ramet.train.local.backend import open_backend
from ramet.train.loop import check_plan, train
from ramet.train.loss import Loss
from ramet.train.phase import NO_DEMOS, OpenBackend, open_local
from ramet.train.rows import Row
from ramet.train.settings import TrainConfig, UpdateConfig
from ramet.train.step import DEMO_LOSS, credited_rows
from ramet.train.updates import Batch, learn
from ramet.types import Verdict
from tests.train import small
from tests.train.coin import Coin, shown
from tests.train.separate import SeparateBackend
from tests.train.test_loop import bits, numbers
from tests.train.test_step import trees_of
from tests.train.test_warmstart import with_mistakes

PLAIN = Loss(kind="plain", aggregation="token")
DEMOS = {"weight": 0.5, "trees_per_step": 3, "taskset": {"operators": 2}, "budget": {"tokens": 900, "turns": 9}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small.folder(tmp_path_factory.mktemp("demos"))


@pytest.fixture(scope="module")
def renderer(folder: Path) -> TokenRenderer:
    return load_renderer(folder)


@pytest.fixture(params=["local", "separate"])
def backend(request: pytest.FixtureRequest) -> OpenBackend:
    return {"local": open_local, "separate": SeparateBackend}[request.param]


def demo(*tokens: int, weight: float = 1.0, **known: object) -> Row:
    return shown(*tokens, **{"logprobs": None, "weight": weight, "tree_id": "demo", **known})


def moved(
    rows: list[Row], demos: list[Row], *, loss: Loss = PLAIN, reference: float = 0.0
) -> tuple[float, dict[str, Any]]:
    """Where one update with learning rate 1 takes theta, from 0."""
    coin = Coin(reference=reference)
    config = TrainConfig(loss=loss, update=UpdateConfig(learning_rate=1.0), steps=9)
    metrics = anyio.run(partial(learn, coin, Batch(rows=rows, demos=demos), config=config, step=0))
    return coin.path[-1] if coin.path else 0.0, metrics


def test_one_update_adds_both_gradients_with_the_weight_of_the_demonstrations() -> None:
    # Sampled: token 1 with advantage -1, whose gradient is +(1 - 0.5). Shown: three tokens 1 and one 0, whose mean
    # gradient is -(3 × 0.5 - 0.5) / 4 = -0.25, times 0.4. Theta moves by -(0.5 - 0.1).
    bad = shown(1, advantage=-1.0)
    demos = [demo(1, 1, weight=0.4), demo(1, 0, weight=0.4, node=1)]
    theta, metrics = moved([bad], demos)
    assert theta == pytest.approx(-0.4)
    assert metrics["demo_loss"] == pytest.approx(log(2))  # of every token, without the weight
    assert metrics["demo_tokens"] == 4
    assert metrics["grad_norm"] == pytest.approx(0.4)
    assert metrics["loss"] == pytest.approx(log(0.5))
    assert metrics["num_rows"] == 1
    assert moved([bad], [])[0] == pytest.approx(-0.5)


def test_a_step_without_signal_learns_from_its_demonstrations_alone() -> None:
    theta, metrics = moved([], [demo(1, weight=0.4)])
    assert theta == pytest.approx(0.4 * 0.5)
    assert "loss" not in metrics
    assert moved([], []) == (0.0, {})


@pytest.mark.parametrize(("kl_gradient", "gradient"), [("weighted", 0.5 * (log(0.8) - log(0.5))), ("plain", 0.3)])
def test_a_step_without_signal_still_has_its_kl_term(folder: Path, kl_gradient: str, gradient: float) -> None:
    """The rows are kept, and the reference pulls: it shows token 1 with probability 0.8, and theta 0 with 0.5."""
    # log-prob of token 1 by theta: 0.5. Weighted: -log(0.8 / 0.5); plain: 1 - 0.8 / 0.5 = -0.6.
    loss = Loss(kind="ppo", aggregation="token", kl=1.0, kl_gradient=kl_gradient)
    theta, _ = moved([shown(1, advantage=0.0)], [], loss=loss, reference=log(4))
    assert theta == pytest.approx(gradient)
    with closing(open_backend(small.config(folder))) as made:
        trees = trees_of(made, folder)
    for node in (node for tree in trees for node in tree.nodes):
        node.verdict = Verdict(score=1.0, how="exact")
    dropped, kept = (credited_rows(trees, load_rule("rao"), keep_flat=keep) for keep in (False, True))
    assert dropped.rows == ()
    assert len(kept.rows) == sum(node.has_sampled for tree in trees for node in tree.nodes)
    assert kept.metrics == dropped.metrics
    assert "no signal" in kept.metrics["note"]


def test_a_run_without_signal_is_updated_by_its_kl_term_or_its_demonstrations_only(
    tmp_path: Path, folder: Path
) -> None:
    """A random model has hardly any codes right, and they score all or nothing."""
    few = ("steps=1", "tasks_per_step=1", "group_size=2", "task=codes:train", "seed=1")
    shown_codes = {"weight": 0.5, "trees_per_step": 2, "budget": {"tokens": 2000, "turns": 9}}
    found: dict[str, dict[str, Any]] = {}
    for name, words, demos in (("none", [], {}), ("kl", ["loss.kl=0.1"], {}), ("demos", [], shown_codes)):
        config = small.config(folder, *few, *words, taskset={}, demos=demos)
        (found[name],) = train(config, runs=tmp_path).metrics()
        assert found[name]["flat"] == found[name]["groups"] == 1
        assert "no signal" in found[name]["note"]
    assert not {"grad_norm", "loss"} & found["none"].keys()
    assert found["kl"]["kl"] == pytest.approx(0.0, abs=1e-6)  # nothing has changed yet
    assert found["kl"]["num_rows"] >= 2
    assert found["demos"]["grad_norm"] > 0
    assert "loss" not in found["demos"]


def test_two_calls_of_forward_backward_add_up_on_either_backend(folder: Path, backend: OpenBackend) -> None:
    config = small.config(folder, demos=DEMOS)
    sampled = [
        Row(
            token_ids=(5, 6, 7, 8),
            mask=(False, True, True, True),
            logprobs=(0.0, -1.0, -2.0, -3.0),
            advantage=a,
            tree_id=t,
        )
        for a, t in ((0.7, "a"), (-0.4, "b"))
    ]

    async def grown(made: Any, rows: list[Row], demos: list[Row]) -> list[torch.Tensor]:
        for some, loss in ((rows, Loss()), (demos, DEMO_LOSS)):
            if some:
                await made.forward_backward(some, loss=loss, temperature=1.0)
        found = [one.grad.clone() for one in made.learner.masters if one.grad is not None]
        await made.discard()
        return found

    with closing(backend(config)) as made:
        shows = open_demos(config, made.renderer)
        demos = list(shows.rows(anyio.run(shows.collect, 0)))
        assert {row.weight for row in demos} == {0.5}
        both, one, other = (
            anyio.run(grown, made, rows, some) for rows, some in ((sampled, demos), (sampled, []), ([], demos))
        )
    assert len(both) == len(one) == len(other) > 0
    for whole, policy, copied in zip(both, one, other, strict=True):
        torch.testing.assert_close(whole, policy + copied, rtol=0, atol=1e-6)
    assert max(float(part.abs().max()) for part in other) > 1e-3


def test_a_run_learns_its_demonstrations_too_and_says_how_well(
    tmp_path: Path, folder: Path, backend: OpenBackend
) -> None:
    config = small.config(folder, "steps=6", demos=DEMOS | {"weight": 2.0})
    metrics = train(config, runs=tmp_path, open_backend=backend).metrics()
    assert metrics[-1]["demo_loss"] < 0.8 * metrics[0]["demo_loss"]
    assert all(record["demo_tokens"] > 0 and 1 <= record["demo_trees"] <= 3 for record in metrics)
    plain = train(small.config(folder, "steps=1"), runs=tmp_path, open_backend=backend).metrics()
    assert not any(name.startswith("demo_") for name in plain[0])


def test_both_backends_take_the_same_steps_with_demonstrations(tmp_path: Path, folder: Path) -> None:
    config = small.config(folder, "steps=2", demos=DEMOS)
    local, separate = (
        train(config, runs=tmp_path / name, open_backend=opener).metrics()
        for name, opener in (("local", open_local), ("separate", SeparateBackend))
    )
    for one, other in zip(local, separate, strict=True):
        assert one["demo_loss"] == pytest.approx(other["demo_loss"], rel=1e-4)
        assert one["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-4)


def test_demonstrations_of_no_weight_change_nothing(tmp_path: Path, folder: Path) -> None:
    plain, none = (
        train(small.config(folder, "steps=2", demos=demos), runs=tmp_path) for demos in ({}, DEMOS | {"weight": 0})
    )
    assert bits(plain) == bits(none)
    assert numbers(plain) == numbers(none)


def test_demonstrations_are_made_ahead_with_overlap(tmp_path: Path, folder: Path) -> None:
    metrics = train(small.config(folder, "overlap=2", demos=DEMOS), runs=tmp_path).metrics()
    assert [record["demo_trees"] for record in metrics] == [3, 3, 3, 3]


def test_they_go_on_where_those_of_the_supervised_start_ended(folder: Path, renderer: TokenRenderer) -> None:
    warm = {"steps": 5, "trees_per_step": 4, "taskset": {"operators": 2}, "budget": {"tokens": 900, "turns": 9}}
    config = small.config(folder, warm=warm, demos={"weight": 0.1, "trees_per_step": 2})
    shows = open_demos(config, renderer)
    trees = [tree for step in (0, 1) for tree in anyio.run(shows.collect, step)]
    assert [tree.id for tree in trees] == [f"show-{place:08d}" for place in (20, 21, 22, 23)]
    again = [tree for step in (0, 1) for tree in anyio.run(shows.collect, step)]
    assert [row.token_ids for row in shows.rows(trees)] == [row.token_ids for row in shows.rows(again)]


def test_what_is_not_set_is_as_in_the_supervised_start_even_in_one_that_is_skipped(folder: Path) -> None:
    warm = {"steps": 5, "task": "codes:train", "taskset": {}, "delegate": 0.9, "least": 0.5, "honest_failures": True}
    for steps in (5, 0):
        config = small.config(folder, taskset={}, warm=warm | {"steps": steps}, demos={"weight": 0.1, "delegate": 0.2})
        expected = DemosConfig(weight=0.1, task="codes:train", delegate=0.2, least=0.5, honest_failures=True)
        found = demos_config(config)
        assert found is not None
        assert found.budget == config.budget
        assert found == DemosConfig(**{name: getattr(expected, name) for name in OWN}, budget=config.budget)
    alone = demos_config(small.config(folder, demos={"weight": 0.1}))
    assert alone is not None
    assert (alone.task, alone.taskset, alone.delegate) == ("arithmetic:train", small.WORDS["taskset"], 0.5)
    assert demos_config(small.config(folder)) is None


OWN = ("weight", "task", "delegate", "least", "honest_failures")


def test_mistaken_turns_are_read_and_not_copied(renderer: TokenRenderer) -> None:
    trees = with_mistakes(renderer, 3)
    assert any(piece.sampled and not piece.taught for tree in trees for node in tree.nodes for piece in node.pieces)
    for tree in trees:
        for row in demo_rows([tree], weight=0.3):
            mask = [piece.sampled and piece.taught for piece in tree.nodes[row.node].pieces for _ in piece.token_ids]
            assert list(row.mask) == mask
            assert (row.advantage, row.weight, row.logprobs) == (1.0, 0.3, None)


def test_the_trees_of_another_run_can_be_the_demonstrations(
    tmp_path: Path, folder: Path, renderer: TokenRenderer
) -> None:
    shown_run = train(small.config(folder, "steps=1"), runs=tmp_path)
    config = small.config(folder, demos={"weight": 0.1, "run": str(shown_run.path), "least": 0.0, "trees_per_step": 5})
    shows = open_demos(config, renderer)
    assert len(anyio.run(shows.collect, 0)) == 5


@pytest.mark.parametrize(
    ("demos", "said"),
    [
        ({"trees_per_step": 4}, "demos.weight is missing: the coefficient of the demonstrations' loss, or 0 for none"),
        ({"weight": -1.0}, "demos.weight is a number from 0 up; got -1.0"),
        ({"weight": 1.0, "trees_per_step": 0}, "demos.trees_per_step is a number from 1 up; got 0"),
        ({"weight": 1.0, "delegate": 2.0}, 'demos.delegate is a share from 0 to 1 or "when_needed"; got 2.0'),
        ({"weigth": 1.0}, "unknown setting 'demos.weigth': did you mean demos.weight?"),
        ({"weight": 1.0, "task": "arithmetic:trian"}, "arithmetic has no split 'trian': did you mean train?"),
        ({"weight": 1.0, "steps": 3}, "unknown setting 'demos.steps'"),
    ],
)
def test_wrong_settings_are_one_line_before_a_model_is_loaded(folder: Path, demos: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=r"^.+\Z") as caught:
        check_plan(small.config(folder, demos=demos))
    assert said in str(caught.value)


def test_without_demonstrations_there_is_nothing_to_collect(folder: Path, renderer: TokenRenderer) -> None:
    assert open_demos(small.config(folder), renderer) is NO_DEMOS
    assert anyio.run(NO_DEMOS.collect, 3) == []
