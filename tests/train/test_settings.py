"""Settings of training: each of them is there on purpose, does something, and says so when it is wrong."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

import ramet
from ramet.config import load, to_toml
from ramet.errors import ConfigError
from ramet.train.backend_settings import BackendConfig
from ramet.train.demos import DemosConfig
from ramet.train.loss import Loss
from ramet.train.players.settings import CollectConfig
from ramet.train.settings import (
    CurriculumConfig,
    EvalConfig,
    SamplerConfig,
    StopConfig,
    TrainConfig,
    UpdateConfig,
    WarmConfig,
    warm_config,
)

SETTINGS: dict[type[Any], str] = {
    TrainConfig: "name model task taskset world dialect steps tasks_per_step group_size curriculum refill overlap "
    "overlap_by max_age max_trees collect seed temperature budget budget_per show_budget allow_same_goal "
    "allow_impossible "
    "instructions delegate_instructions judge rule credit counterfactual loss update sampler backend eval warm demos "
    "track max_logprob_gap save_every keep_checkpoints keep_best stop minutes",
    WarmConfig: "name model task taskset world run least honest_failures dialect delegate steps trees_per_step workers "
    "seed budget show_budget allow_impossible instructions delegate_instructions loss update sampler backend track "
    "save_every keep_checkpoints",
    UpdateConfig: "learning_rate warmup_steps schedule betas weight_decay epochs mini_batches mini_batch_nodes "
    "max_grad_norm micro_batch_tokens packed skip_zero_credit compile add_gradients "
    "gradient_checkpointing lora_rank lora_alpha process device device_share",
    SamplerConfig: "device dtype max_batch cache_tokens keep_cache window",
    CollectConfig: "processes",
    BackendConfig: "kind base_url base_model rank chunk deadline_s reduction merge",
    CurriculumConfig: "sizes splits target floor width decay",
    StopConfig: "fraction least window no_signal_steps when",
    EvalConfig: "every task num_tasks temperature budget",
    Loss: "kind bounds dual_clip ceiling kl kl_gradient aggregation divisor",
    DemosConfig: "weight trees_per_step task taskset run least honest_failures delegate budget show_budget",
}


@pytest.mark.parametrize("kind", SETTINGS)
def test_settings_are_added_and_renamed_on_purpose(kind: type[Any]) -> None:
    assert [setting.name for setting in fields(kind)] == SETTINGS[kind].split()


def test_reading_settings_loads_no_torch() -> None:
    code = (
        "import sys\n"
        "from ramet.recipes import recipe_file\n"
        "from ramet.config import load\n"
        "from ramet.train.settings import TrainConfig\n"
        "from ramet.train.loop import check_plan\n"
        "check_plan(load(TrainConfig, file=recipe_file('craft-135m')))\n"
        "print(*sorted({'torch', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("steps=0", "steps=0 leaves nothing to do: this run has no supervised start (warm.steps)"),
        ("steps=-1", "steps is a number from 0 up; got -1"),
        ("temperature=0", "temperature is a number above 0; got 0"),
        ("task=arithmetic", "arithmetic needs a split: arithmetic:train, arithmetic:eval, arithmetic:long"),
        ("eval.task=a:b/3", "'a:b/3' is not a taskset and its split"),
        ("budget.tokns=3", "unknown setting 'budget.tokns': did you mean budget.tokens?"),
        ("budget.tokens=[9, 3]", "budget.tokens: the lower bound comes first; got [9, 3]"),
        ("budget.tokens=[1, 2, 3]", "budget.tokens is a limit, or two whole numbers to draw it between"),
        ("budget.tokens=[0, 3]", "budget.tokens is a whole number from 1 up; got 0"),
        ("budget.seconds=[1.5, 3.0]", "budget.seconds is a limit, or two whole numbers"),
        ("update.learning_rate=0", "update.learning_rate is a number above 0; got 0"),
        ("update.betas=[0.9]", "update.betas: the list should have more items; got [0.9]"),
        ("update.betas=[0.9, 0.9, 0.9]", "update.betas: the list should have at most 2 items, not 3; got"),
        ("update.betas=[0.9, 1.0]", "update.betas are two numbers from 0 to below 1"),
        ("update.schedule=square", "update.schedule: input should be"),
        ("loss.kind=dpo", "loss.kind: input should be 'ppo', 'cispo' or 'plain'; got 'dpo'"),
        ("overlap=-1", "overlap is a number from 0 up; got -1"),
        ("refill=-1", "refill is a number from 0 up; got -1"),
        ("stop.fraction=2", "stop.fraction is a share from 0 to 1; got 2"),
        ("stop.fractoin=0.5", "unknown setting 'stop.fractoin': did you mean stop.fraction?"),
        ("stop.window=0", "stop.window is a number from 1 up; got 0"),
        ("curriculum.sizes=[2, 8, 4]", "curriculum.sizes are numbers in rising order; got [2.0, 8.0, 4.0]"),
        ("curriculum.sizes=[2]", "a curriculum has two levels or more: add to curriculum.sizes or curriculum.splits"),
        ("curriculum={sizes=[2,4], splits=['a','b']}", "curriculum.sizes and curriculum.splits are two ways to name"),
        ("curriculum.splits=['a', 'a']", "curriculum.splits are different splits; got ['a', 'a']"),
        ("curriculum.target=0.3", "curriculum.target needs levels: give curriculum.sizes or curriculum.splits"),
        ("curriculum={sizes=[2,4], target=1.0}", "curriculum.target is a share above 0 and below 1; got 1.0"),
        ("curriculum={sizes=[2,4], floor=0.6}", "curriculum.floor is a share from 0 to 0.5, an equal one; got 0.6"),
        ("curriculum={sizes=[2,4], decay=0}", "curriculum.decay is a number above 0 and at most 1; got 0"),
        ("curriculum={sizes=[2,4], width=0}", "curriculum.width is a number above 0; got 0"),
        ("curriculum.traget=0.3", "unknown setting 'curriculum.traget': did you mean curriculum.target?"),
        ("minutes=0", "minutes is a number above 0; got 0"),
        ("warm.task=craft:easy", "warm.steps is missing"),
        ("warm={steps=3, seed=4}", "warm.seed cannot be set: a run has one seed for its supervised start and RL"),
        ("warm={steps=3, stpes=4}", "unknown setting 'warm.stpes': did you mean warm.steps?"),
        ("eval.budget.tokns=3", "unknown setting 'eval.budget.tokns': did you mean eval.budget.tokens?"),
        ("judge.tries=0", "judge.tries is a whole number from 1 up; got 0"),
        ("judge.tokens=-5", "judge.tokens is a whole number from 1 up; got -5"),
        ("judge.modle=x", "unknown setting 'judge.modle': did you mean judge.model?"),
        ("judge.base_url=http://h/v1", "judge.base_url needs judge.model"),
        ("judge={model='policy', base_url='http://h/v1'}", "judge.model=policy is the model itself and has no server"),
        ("los.kind=ppo", "unknown setting 'los': did you mean loss?"),
        ("loss.kl_gradient=ratio", "loss.kl_gradient: input should be 'weighted' or 'plain'; got 'ratio'"),
        ("loss.kl_gradiant=plain", "unknown setting 'loss.kl_gradiant': did you mean loss.kl_gradient?"),
        ("loss.kl=-0.1", "loss.kl is a number from 0 up; got -0.1"),
        ("update.epochs=0", "update.epochs is a number from 1 up; got 0"),
        ("update.device_share=0", "update.device_share is a number above 0, at most 1; got 0"),
        ("update.device_share=1.5", "update.device_share is a number above 0, at most 1; got 1.5"),
        ("update.mini_batchs=2", "unknown setting 'update.mini_batchs': did you mean update.mini_batches?"),
        ("update={mini_batches=2, mini_batch_nodes=32}", "mini_batches and update.mini_batch_nodes exclude each other"),
    ],
)
def test_a_wrong_setting_is_one_line(word: str, said: str) -> None:
    with pytest.raises(ramet.ConfigError, match=r"^.+\Z") as caught:
        load(TrainConfig, words=[word])
    assert said in str(caught.value)


def test_trees_of_older_weights_are_not_learnt_from_as_if_they_were_new() -> None:
    with pytest.raises(ConfigError, match="overlap needs importance weights for trees of older weights"):
        load(TrainConfig, words=["overlap=1", "loss.kind=plain"])
    load(TrainConfig, words=["overlap=1", "loss.kind=plain", "loss.ceiling=2.0"])


@pytest.mark.parametrize("several", ["update.epochs=2", "update.mini_batches=2", "update.mini_batch_nodes=9"])
def test_several_updates_need_a_ratio_and_with_overlap_a_bounded_weight(several: str) -> None:
    with pytest.raises(ConfigError, match=r"several updates per step need a ratio .* loss\.kind cispo or ppo"):
        load(TrainConfig, words=[several, "loss.kind=plain"])
    with pytest.raises(ConfigError, match=r"overlap with several updates per step needs loss\.ceiling"):
        load(TrainConfig, words=[several, "overlap=1"])
    load(TrainConfig, words=[several, "overlap=1", "loss.ceiling=2.0"])
    load(WarmConfig, words=[several])


def test_a_warm_start_with_ratios_is_refused() -> None:
    with pytest.raises(ramet.ConfigError, match="a supervised start has no ratios"):
        load(WarmConfig, words=["loss.kind=ppo"])


def test_settings_written_into_a_run_load_equal(tmp_path: Path) -> None:
    words = [
        "budget.tokens=[200, 900]",
        "budget.depth=1",
        "loss.bounds=[0.8, 1.3]",
        "credit.bonus=0.4",
        "taskset.digits=1",
        "curriculum={sizes=[2, 4], target=0.4}",
    ]
    config = load(TrainConfig, words=words)
    assert config.loss.bounds == (0.8, 1.3)
    file = tmp_path / "config.toml"
    file.write_text(to_toml(config))
    assert load(TrainConfig, file=file) == config


def test_the_rate_rises_then_falls_to_zero_after_the_last_step() -> None:
    config = UpdateConfig(learning_rate=1.0, warmup_steps=2, schedule="cosine")
    rates = [config.rate_at(step, 6) for step in range(7)]
    assert rates == pytest.approx([0.5, 1.0, 1.0, 0.853553, 0.5, 0.146447, 0.0], abs=1e-6)
    assert {UpdateConfig(learning_rate=0.3).rate_at(step, 6) for step in range(6)} == {0.3}


def test_a_table_that_says_one_thing_leaves_the_rest_as_it_is_without_a_table() -> None:
    assert load(WarmConfig, words=["update.micro_batch_tokens=99"]).update == UpdateConfig(
        learning_rate=WarmConfig().update.learning_rate, micro_batch_tokens=99
    )
    assert load(WarmConfig, words=["loss.divisor=9.0"]).loss.kind == "plain"


def test_a_supervised_start_says_what_the_run_says_unless_it_says_otherwise() -> None:
    words = ["model=m", "task=craft:train", "dialect=python", "seed=3", "sampler.window=99", "budget.tokens=5"]
    config = load(
        TrainConfig, words=[*words, "warm.steps=7", "warm.task=craft:easy", "warm.update.micro_batch_tokens=9"]
    )
    assert warm_config(config) == WarmConfig(
        name="warm",
        model="m",
        task="craft:easy",
        dialect="python",
        seed=3,
        steps=7,
        budget={"tokens": 5},
        update=UpdateConfig(learning_rate=1e-4, micro_batch_tokens=9),
        sampler=SamplerConfig(window=99),
    )
    assert warm_config(replace(config, warm={"steps": 0, "task": "craft:easy"})) is None
    assert warm_config(TrainConfig()) is None


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("sampler.max_batch=0", "sampler.max_batch is a number from 1 up; got 0"),
        ("sampler.cache_tokens=0", "sampler.cache_tokens is a number from 1 up; got 0"),
        ("sampler.window=0", "sampler.window is a number from 1 up; got 0"),
        ("sampler.device=gpu", "sampler.device is cpu, cuda, cuda:1 or mps; got 'gpu'"),
        ("sampler.device=cuda:x", "sampler.device is cpu, cuda, cuda:1 or mps; got 'cuda:x'"),
    ],
)
def test_a_sampler_that_cannot_exist_is_refused_with_the_settings(word: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(TrainConfig, words=[word])
    assert str(caught.value) == said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["warm.steps=-1"], "warm.steps is a number from 0 up; got -1"),
        (["warm.steps=5", "warm.workers=-1"], "warm.workers is a number from 0 up; got -1"),
        (["warm.steps=5", "warm.delegate=2"], 'warm.delegate is a share from 0 to 1 or "when_needed"; got 2.0'),
        (["warm.steps=5", "warm.update.epochs=0"], "warm.update.epochs is a number from 1 up; got 0"),
        (["warm.steps=5", "warm.budget.tokens=[9,1]"], "warm.budget.tokens: the lower bound comes first; got [9, 1]"),
    ],
)
def test_a_mistake_in_the_supervised_start_is_named_with_its_table(words: list[str], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(TrainConfig, words=words)
    assert str(caught.value) == said


def test_an_unknown_limit_of_the_supervised_start_is_named_with_its_table() -> None:
    with pytest.raises(
        ConfigError, match=r"^unknown setting 'warm\.budget\.toekns': did you mean warm\.budget\.tokens"
    ):
        load(TrainConfig, words=["warm.steps=5", "warm.budget.toekns=3"])
    with pytest.raises(ConfigError, match=r"^steps is a number from 1 up; got -1$"):
        load(WarmConfig, words=["steps=-1"])


@pytest.mark.parametrize("setting", ["task", "eval.task"])
def test_an_unknown_taskset_without_a_split_is_named(setting: str) -> None:
    with pytest.raises(ConfigError, match=r"^unknown taskset 'crafd': did you mean craft\?"):
        load(TrainConfig, words=[f"{setting}=crafd"])
    with pytest.raises(ConfigError, match=r"^unknown taskset 'nope': accepted: arithmetic, codes, "):
        load(TrainConfig, words=[f"{setting}=nope"])
