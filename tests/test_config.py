"""Settings: where they come from, which source wins, and the error for a wrong one."""

from __future__ import annotations

import inspect
import tempfile
import tomllib
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, cast, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ramet
from ramet.budget import Budget
from ramet.config import OTHER_NAMES, TASKSET_OPTIONS, find_settings, load, merge_settings, taskset_options, to_toml
from ramet.credit.selfcest import Selfcest
from ramet.engine.settings import EngineConfig, JudgeConfig
from ramet.errors import ConfigError
from ramet.evaluate.settings import EvaluateConfig
from ramet.inputs.settings import RunConfig
from ramet.tasks.registry import TASKSETS, taskset_class
from ramet.train.loss import Loss
from ramet.train.settings import TrainConfig, UpdateConfig, WarmConfig

# A new setting is added here by hand.
SETTINGS = {
    RunConfig: [
        *["question", "context", "context_bytes", "functions", "mcp", "mcp_env", "call_s", "concurrency"],
        *["taskset", "world", "dialect", "temperature", "seed", "show_budget"],
        *["allow_same_goal", "allow_impossible", "instructions", "delegate_instructions", "engine", "clone"],
        *["judge", "budget"],
    ],
    JudgeConfig: [
        *["model", "base_url", "criteria", "max_tokens", "tries", "goal_bytes", "text_bytes", "work_bytes"],
        *["answer_bytes", "tree_calls", "tree_tokens", "calls", "tokens", "cache"],
    ],
    EngineConfig: [
        *["kind", "provider", "base_url", "model", "tokenizer", "top_p", "top_k", "concurrency", "tries", "stall_s"],
        *["deadline_s", "session_id"],
        *["device", "dtype", "max_batch", "cache_tokens", "window", "options"],
    ],
    ramet.Budget: [
        *["tokens", "nodes", "depth", "seconds", "children", "turns", "repeats"],
        *[
            "node_tokens",
            "root_tokens",
            "clone_tokens",
            "path_tokens",
            "window",
            "result_bytes",
            "output_bytes",
            "max_result_chars",
            "max_calls",
            "reserve",
            "parent_share",
        ],
        *["shares", "money", "prices", "clone_prices"],
    ],
    ramet.Prices: ["prompt", "cached", "generated"],
}


def complaint(kind: type[Any] = RunConfig, **given: Any) -> str:
    """The error for settings that are not accepted: always one line."""
    with pytest.raises(ramet.ConfigError, match=r"^.+\Z") as caught:
        load(kind, **given)
    return str(caught.value)


# Where settings come from.


def test_without_settings_there_are_defaults() -> None:
    assert load(RunConfig) == RunConfig()


def test_flags_win_over_words_and_words_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('dialect = "file"\nseed = 1\ntemperature = 0.1\n[budget]\ntokens = 1\nnodes = 1\ndepth = 1\n')
    config = load(
        RunConfig,
        file=file,
        words=["dialect=word", "seed=2", "budget.tokens=2", "budget.nodes=2", "budget.nodes=22"],
        flags={"dialect": "flag", "budget.tokens": 3},
    )
    assert (config.dialect, config.seed, config.temperature) == ("flag", 2, 0.1)
    assert (config.budget.tokens, config.budget.nodes, config.budget.depth) == (3, 22, 1)
    assert config.budget.turns == ramet.Budget().turns


def test_tables_nest(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('[engine]\nmodel = "m"\n[budget]\nmoney = 2\n[budget.prices]\nprompt = 0.5\n')
    config = load(RunConfig, file=file, words=["budget.prices.generated=1"])
    assert config.engine.model == "m"
    assert config.budget == ramet.Budget(money=2.0, prices=ramet.Prices(prompt=0.5, generated=1.0))


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("seed=4000", 4000),
        ("seed=-1", -1),
        ("seed=1_000", 1000),
        ("temperature=0.5", 0.5),
        ("temperature=1", 1.0),
        ("temperature=1e-3", 0.001),
        ("show_budget=true", True),
        ("show_budget=false", False),
        ("allow_same_goal=true", True),
        ("dialect=python", "python"),
        ('dialect="42"', "42"),
        ("question=two words", "two words"),
        ("question=a = b == c", "a = b == c"),
        ("question=http://host/v1?a=b&c=d", "http://host/v1?a=b&c=d"),
        ('question=it\'s "quoted"', 'it\'s "quoted"'),
        ("question=true story", "true story"),
        ("question=", ""),
        ("question = padded ", "padded"),
        ("question=2\nseed = 3", "2\nseed = 3"),
    ],
)
def test_a_word_is_a_key_and_a_value(word: str, value: object) -> None:
    key = word.partition("=")[0].strip()
    found = getattr(load(RunConfig, words=[word]), key)
    assert (found, type(found)) == (value, type(value))


# Which engine.


def folder_with(parent: Path, *names: str) -> Path:
    folder = parent / "model"
    folder.mkdir()
    for name in names:
        (folder / name).touch()
    return folder


def kind(**given: Any) -> str:
    return load(RunConfig, **given).engine.kind


def test_a_model_on_this_machine_is_local_when_no_server_is_named(tmp_path: Path) -> None:
    folder = str(folder_with(tmp_path, "config.json"))
    assert kind(words=["engine.model=smollm2"]) == "local"
    assert kind(flags={"engine.model": folder}) == "local"
    file = tmp_path / "run.toml"
    file.write_text(f'[engine]\nmodel = "{folder}"\ndevice = "cpu"\n')
    assert kind(file=file) == "local"


def test_a_server_or_a_kind_that_is_given_is_used(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(f'[engine]\nbase_url = "{EngineConfig().base_url}"\n')
    assert kind(file=file, flags={"engine.model": "smollm2"}) == "http"
    assert kind(words=["engine.kind=http"], flags={"engine.model": "smollm2"}) == "http"
    assert kind(words=["engine.kind=local", "engine.model=elsewhere"]) == "local"


@pytest.mark.parametrize("model", ["", "smollm3", "a/b", "x" * 5000, "\0"])
def test_any_other_model_is_on_a_server(model: str) -> None:
    assert kind(flags={"engine.model": model}) == "http"


def test_a_folder_without_a_config_is_not_a_model(tmp_path: Path) -> None:
    assert kind(flags={"engine.model": str(folder_with(tmp_path, "tokenizer.json"))}) == "http"


# Errors.


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["budget.tokns=5"], "unknown setting 'budget.tokns': did you mean budget.tokens?"),
        (["budget.clone_token=5"], "unknown setting 'budget.clone_token': did you mean budget.clone_tokens?"),
        (["budget.shares=equl"], "budget.shares: input should be 'equal' or 'demand'; got 'equl': did you mean equal?"),
        (["budgt.tokens=5"], "unknown setting 'budgt': did you mean budget?"),
        (["temprature=1"], "unknown setting 'temprature': did you mean temperature?"),
        (["engine.modl=x"], "unknown setting 'engine.modl': did you mean engine.model?"),
        (
            ["budget.prices.promt=1"],
            "unknown setting 'budget.prices.promt': did you mean budget.prices.prompt? "
            "(accepted: budget.prices.prompt, budget.prices.cached, budget.prices.generated)",
        ),
        (["dialect.kind=x"], "dialect is a string, not a table of settings; got {'kind': 'x'}"),
        (["context=a.md"], "context: input should be a list, like [\"a\"] or [1, 2]; got 'a.md'"),
        (["budget=5"], "budget is a table of settings, not 5"),
        (["budget.tokens"], "'budget.tokens' is not a setting: write key=value, like budget.tokens=2000"),
        (["=5"], "'=5' is not a setting: write key=value, like budget.tokens=2000"),
        (["budget=5", "budget.tokens=5"], "budget.tokens: budget is a value, not a table"),
    ],
)
def test_a_wrong_key_suggests_the_nearest(words: list[str], said: str) -> None:
    assert complaint(words=words) == said


def test_a_key_like_no_other_gets_the_list_of_accepted_ones() -> None:
    assert complaint(words=["xyzzy=1"]) == f"unknown setting 'xyzzy': accepted: {', '.join(SETTINGS[RunConfig])}"


@pytest.mark.parametrize(
    ("kind", "word", "new"),
    [
        (RunConfig, "budget.context=9", "budget.window"),
        (RunConfig, "budget.keep=2", "budget.parent_share"),
        (RunConfig, "task.digits=2", "taskset.digits"),
        (RunConfig, "options.digits=2", "taskset.digits"),
        (EvaluateConfig, "number=5", "num_tasks"),
        (EvaluateConfig, "at_once=5", "concurrency"),
        (EvaluateConfig, "options.digits=2", "taskset.digits"),
        (EvaluateConfig, "budget.context=9", "budget.window"),
        (TrainConfig, "options.digits=2", "taskset.digits"),
        (TrainConfig, "task.digits=2", "taskset.digits"),
        (TrainConfig, "tasks=4", "tasks_per_step"),
        (TrainConfig, "group=4", "group_size"),
        (TrainConfig, "keep=4", "keep_checkpoints"),
        (TrainConfig, "gap=0.1", "max_logprob_gap"),
        (TrainConfig, "eval.number=4", "eval.num_tasks"),
        (TrainConfig, "budget.context=[9, 10]", "budget.window"),
        (TrainConfig, "update.rate=0.1", "update.learning_rate"),
        (TrainConfig, "update.warmup=3", "update.warmup_steps"),
        (TrainConfig, "update.decay=0.1", "update.weight_decay"),
        (TrainConfig, "update.clip=1.0", "update.max_grad_norm"),
        (TrainConfig, "update.tokens=64", "update.micro_batch_tokens"),
        (TrainConfig, "update.checkpointing=true", "update.gradient_checkpointing"),
        (TrainConfig, "update.lora=8", "update.lora_rank"),
        (TrainConfig, "warm={steps = 1, trees = 4}", "warm.trees_per_step"),
        (TrainConfig, "warm={steps = 1, update = {rate = 0.1}}", "warm.update.learning_rate"),
        (WarmConfig, "trees=4", "trees_per_step"),
        (WarmConfig, "keep=4", "keep_checkpoints"),
        (TrainConfig, "lr=0.1", "update.learning_rate"),
        (TrainConfig, "update.lr=0.1", "update.learning_rate"),
        (TrainConfig, "learning_rate=0.1", "update.learning_rate"),
        (TrainConfig, "num_generations=8", "group_size"),
        (TrainConfig, "beta=0.01", "loss.kl"),
        (TrainConfig, "clip_range=0.2", "loss.bounds"),
        (TrainConfig, "epsilon_high=0.28", "loss.bounds"),
        (TrainConfig, "adv_estimator=grpo", "rule"),
        (TrainConfig, "gradient_accumulation_steps=2", "update.micro_batch_tokens"),
        (TrainConfig, "num_iterations=2", "update.epochs"),
        (TrainConfig, "ppo_mini_batch_size=64", "update.mini_batches"),
        (TrainConfig, "max_completion_length=256", "budget.node_tokens"),
        (TrainConfig, "loss_type=grpo", "loss.kind"),
        (TrainConfig, "wandb=true", "track"),
        (TrainConfig, "max_tokens=100", "budget.tokens"),
        (TrainConfig, "num_tasks=4", "eval.num_tasks"),
        (TrainConfig, "window=4", "sampler.window or stop.window"),
        (RunConfig, "tokens=100", "budget.tokens"),
        (RunConfig, "base_url=x", "engine.base_url or clone.base_url or judge.base_url"),
    ],
)
def test_a_name_that_others_use_or_without_its_table_gets_the_name_of_the_setting(
    kind: type[Any], word: str, new: str
) -> None:
    said = complaint(kind, words=[word])
    assert said.startswith("unknown setting '")
    assert said.endswith(f"': did you mean {new}?")


def test_names_of_settings_that_errors_suggest_exist() -> None:
    kinds: list[type[Any]] = [RunConfig, EvaluateConfig, TrainConfig, WarmConfig, Selfcest]
    tables: dict[str, type[Any]] = {"budget": Budget, "update": UpdateConfig, "loss": Loss}
    for other in OTHER_NAMES:
        table, _, name = other.rpartition(".")
        found = [find_settings(kind, name, table=[table]) for kind in ([tables[table]] if table else kinds)]
        assert any(place.endswith(OTHER_NAMES[other]) for places in found for place in places), other


def test_a_value_for_a_table_with_kinds_suggests_the_kind() -> None:
    assert complaint(TrainConfig, words=["loss=ppo"]) == (
        "loss is a table of settings, not 'ppo': did you mean loss.kind=ppo?"
    )


def test_words_of_a_credit_rule_get_an_error_too() -> None:
    with pytest.raises(
        ramet.ConfigError, match=r"^unknown setting 'credit\.lone': did you mean credit\.group_of_one\?$"
    ):
        ramet.load_rule("selfcest", {"lone": "reward"})
    with pytest.raises(ramet.ConfigError, match=r"^credit\.baseline: .*'same_goal'; got 'alike'$"):
        ramet.load_rule("rao", {"baseline": "alike"})


def test_options_of_a_taskset_are_words_that_begin_with_taskset() -> None:
    assert taskset_options(["taskset.digits=2", "taskset.symbols=+"], data="files") == {
        "digits": 2,
        "symbols": "+",
        "data": "files",
    }
    for word in ("digits=2", "task.digits=2", "options.digits=2"):
        with pytest.raises(ramet.ConfigError, match=r"': did you mean taskset\.digits\?$"):
            taskset_options([word])


def test_an_unknown_key_in_a_file_is_named_like_one_in_a_word(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text("[budget]\ntokns = 5\n")
    assert complaint(file=file) == "unknown setting 'budget.tokns': did you mean budget.tokens?"


@pytest.mark.parametrize(
    ("word", "key", "value"),
    [
        ("budget.tokens=many", "budget.tokens", "'many'"),
        ("budget.tokens=0", "budget.tokens", "0"),
        ("budget.tokens=-5", "budget.tokens", "-5"),
        ("budget.tokens=1.5", "budget.tokens", "1.5"),
        ("budget.tokens=1e3", "budget.tokens", "1000.0"),
        ("budget.tokens=true", "budget.tokens", "True"),
        ("budget.tokens=[1]", "budget.tokens", "[1]"),
        ("budget.tokens={a = 1}", "budget.tokens", "{'a': 1}"),
        ("budget.tokens=99999999999999999999", "budget.tokens", "99999999999999999999"),  # no column holds it
        ("budget.result_bytes=31", "budget.result_bytes", "31"),
        ("budget.seconds=0", "budget.seconds", "0"),
        ("budget.seconds=nan", "budget.seconds", "nan"),
        ("budget.seconds=inf", "budget.seconds", "inf"),
        ("budget.seconds=soon", "budget.seconds", "'soon'"),
        ("budget.prices.prompt=-1", "prices", "-1"),
        ("budget.prices.prompt=cheap", "budget.prices.prompt", "'cheap'"),
        ("temperature=warm", "temperature", "'warm'"),
        ("temperature=true", "temperature", "True"),
        ("temperature=nan", "temperature", "nan"),
        ("seed=1.5", "seed", "1.5"),
        ("seed=true", "seed", "True"),
        ("show_budget=perhaps", "show_budget", "'perhaps'"),
        ("dialect=5", "dialect", "5"),
        ("engine.kind=tpu", "engine.kind", "'tpu'"),
        ("engine.model=5", "engine.model", "5"),
        ("engine.concurrency=0", "concurrency", "0"),
        ("engine.tries=0", "tries", "0"),
        ("engine.stall_s=0", "stall_s", "0"),
        ("engine.top_p=0", "engine.top_p", "0"),
        ("engine.top_p=1.5", "engine.top_p", "1.5"),
        ("engine.top_k=-1", "engine.top_k", "-1"),
        ("engine.max_batch=0", "engine.max_batch", "0"),
        ("engine.cache_tokens=few", "engine.cache_tokens", "'few'"),
        ("engine.window=-1", "engine.window", "-1"),
        ("engine.device=0", "engine.device", "0"),
    ],
)
def test_a_wrong_value_is_named_with_its_key(word: str, key: str, value: str) -> None:
    said = complaint(words=[word])
    assert key in said
    assert f"got {value}" in said


def test_money_without_prices_is_refused() -> None:
    assert "prices" in complaint(words=["budget.money=1"])


@pytest.mark.parametrize("setting", ["device=cpu", "dtype=float32", "max_batch=1", "cache_tokens=1", "window=9"])
def test_a_setting_of_the_local_engine_is_refused_for_a_server(setting: str) -> None:
    name = setting.partition("=")[0]
    assert complaint(words=[f"engine.{setting}"]) == f"engine.{name} is for engine.kind=local, and this is http"
    assert load(RunConfig, words=[f"engine.{setting}", "engine.kind=local"]).engine.kind == "local"


@pytest.mark.parametrize(
    "setting", ["base_url=http://host/v1", "concurrency=1", "tries=1", "stall_s=1", "session_id=tree"]
)
def test_a_setting_of_a_server_is_refused_for_a_local_model(setting: str) -> None:
    name = setting.partition("=")[0]
    said = complaint(words=[f"engine.{setting}", "engine.kind=local"])
    assert said == f"engine.{name} is for engine.kind=http, and this is local"


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_bytes(b"\xef\xbb\xbfdialect = 'python'")
    assert load(RunConfig, file=file).dialect == "python"


@pytest.mark.parametrize("text", [b"tokens = ", b"[budget", b"\xff\xfe", b"a = 1\na = 2"])
def test_a_file_that_is_not_toml_is_named(tmp_path: Path, text: bytes) -> None:
    file = tmp_path / "run.toml"
    file.write_bytes(text)
    assert complaint(file=file).startswith(f"{file} is not valid TOML: ")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "missing.toml"
    assert complaint(file=missing) == f"cannot read {missing}: No such file or directory"
    assert complaint(file=tmp_path) == f"cannot read {tmp_path}: Is a directory"


# Written and read again.

LIMITS = st.integers(32, 2**40)
PRICES = st.builds(ramet.Prices, prompt=st.floats(1e-3, 1e5), cached=st.none() | st.floats(0, 1e5))
BUDGETS = st.builds(
    ramet.Budget,
    **dict.fromkeys(["tokens", "nodes", "depth", "children", "turns", "window", "result_bytes"], LIMITS),
    **dict.fromkeys(["node_tokens", "root_tokens", "clone_tokens", "path_tokens", "reserve"], st.none() | LIMITS),
    **dict.fromkeys(["max_result_chars", "max_calls"], st.none() | LIMITS),
    shares=st.sampled_from(["equal", "demand"]),
    **dict.fromkeys(["seconds", "money"], st.none() | st.floats(1e-9, 1e18)),
    parent_share=st.floats(0, 100),
    prices=PRICES,
)
TEXTS = st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from(
    ['"""', "\\u", "a\x7fb", "\r\n", "[budget]"]
)
OPTIONS = st.recursive(
    st.booleans() | st.integers(-100, 100) | TEXTS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXTS, inner, max_size=2),
    max_leaves=4,
)
CONFIGS = st.builds(
    RunConfig,
    question=TEXTS,
    temperature=st.floats(0, 2),
    seed=st.none() | st.integers(-(2**63), 2**63 - 1),
    show_budget=st.booleans(),
    allow_same_goal=st.booleans(),
    allow_impossible=st.booleans(),
    engine=st.builds(EngineConfig, model=TEXTS, tokenizer=st.none() | TEXTS)
    | st.builds(EngineConfig, kind=st.just("local"), model=TEXTS, device=st.none() | TEXTS, window=st.none() | LIMITS),
    judge=st.builds(JudgeConfig, model=TEXTS),
    taskset=st.dictionaries(TEXTS, OPTIONS, max_size=3),
    budget=BUDGETS,
)


@given(CONFIGS)
def test_a_config_written_as_toml_loads_equal(config: RunConfig) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "config.toml"
        file.write_text(to_toml(config), encoding="utf-8")
        assert load(RunConfig, file=file) == config


@given(BUDGETS)
def test_every_limit_can_be_given_as_a_word(budget: ramet.Budget) -> None:
    words: list[str] = []
    table = "budget."
    for line in to_toml(budget).splitlines():
        key, equals, value = line.partition(" = ")
        if equals:
            words.append(f"{table}{key}={value}")
        elif line:
            table = f"budget.{line.strip('[]')}."
    assert load(RunConfig, words=words).budget == budget


# The list of settings.


@pytest.mark.parametrize("kind", SETTINGS)
def test_settings_are_added_on_purpose(kind: type[Any]) -> None:
    assert [setting.name for setting in fields(kind)] == SETTINGS[kind]


# Everything that is accepted can be read back.

PLAIN = st.one_of(
    st.booleans(),
    st.integers(-(2**62), 2**62),
    st.floats(allow_nan=False),
    st.text(st.characters(codec="utf-8"), max_size=8),
    st.dates(),
    st.times(),
    st.datetimes(),
)
NESTED = st.recursive(
    PLAIN,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=6), NESTED, max_size=4))
def test_a_table_of_any_values_reads_back_equal(table: dict[str, Any]) -> None:
    assert tomllib.loads(to_toml(TrainConfig(taskset=table)))["taskset"] == table


@pytest.mark.parametrize("kind", [RunConfig, TrainConfig, WarmConfig, EvaluateConfig])
@pytest.mark.parametrize(
    "value",
    ["inf", "-inf", "1e400", "0", "1", "2", "0.5", "true", '"x"', "[1, 2]", "2020-01-01", "12:30:00", "{a = inf}"],
)
def test_every_setting_that_is_accepted_reads_back_equal(kind: type[Any], value: str, tmp_path: Path) -> None:
    """Every setting of every table with every kind of value; those that are refused are left out."""
    accepted = 0
    for word in every_setting(kind):
        try:
            config = load(kind, words=[f"{word}={value}"])
        except ramet.ConfigError:
            continue
        accepted += 1
        (tmp_path / "config.toml").write_text(to_toml(config), encoding="utf-8")
        assert load(kind, file=tmp_path / "config.toml") == config, word
    assert accepted or value.startswith("{")


def every_setting(kind: type[Any], inside: str = "") -> list[str]:
    names: list[str] = []
    for setting, hint in get_type_hints(kind).items():
        if is_dataclass(hint):
            names += every_setting(cast(type[Any], hint), f"{inside}{setting}.")
        else:
            names.append(f"{inside}{setting}" + (".x" if str(hint).startswith("dict") else ""))
    return names


@pytest.mark.parametrize("value", ["9" * 5000, "[" * 5000])
def test_a_value_that_cannot_be_parsed_is_one_line(value: str) -> None:
    assert complaint(words=[f"seed={value}"])


# Files that extend others.


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / f"{name}.toml").write_text(text)
    return folder


def test_a_file_overrides_the_one_it_extends_and_words_override_both(tmp_path: Path) -> None:
    base = 'dialect = "python"\nseed = 1\n[budget]\ntokens = 100\nnodes = 2\n'
    write(tmp_path, base=base, more='extends = "base"\nseed = 2\n[budget]\ntokens = 200\n')
    config = load(RunConfig, file=tmp_path / "more.toml", words=["budget.depth=1"])
    assert (config.dialect, config.seed) == ("python", 2)
    assert (config.budget.tokens, config.budget.nodes, config.budget.depth) == (200, 2, 1)


@pytest.mark.parametrize("name", ["'nowhere'", "'../base'", "3", "'more'"])
def test_only_a_plain_file_beside_it_can_be_extended(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "inner"
    folder.mkdir()
    write(tmp_path, base="seed = 1\n")
    write(folder, more=f"extends = {name}\n")
    with pytest.raises(ramet.ConfigError, match="extends is the name of a file beside it that extends no other; got"):
        load(RunConfig, file=folder / "more.toml")


def test_the_options_of_tasksets_that_errors_know_are_all_there_are() -> None:
    found = {option for name in TASKSETS for option in inspect.signature(taskset_class(name)).parameters}
    assert found == TASKSET_OPTIONS


@pytest.mark.parametrize("word", ["file=x", "task.file=x", "options.file=x"])
def test_one_option_has_one_spelling_and_the_error_names_it(word: str) -> None:
    for kind, before in ((RunConfig, []), (TrainConfig, ["task=jsonl:all"])):
        with pytest.raises(ConfigError, match=r"did you mean taskset\.file"):
            load(kind, words=[*before, word])


@pytest.mark.parametrize(
    ("words", "credit", "taskset"),
    [
        ([], {"clone_cost": 0.03}, {"operators": 4}),
        (["rule=rao", "task=arithmetic:eval"], {"clone_cost": 0.03}, {"operators": 4}),  # the same, another split
        (["rule=my_rule.py:Mine"], {}, {"operators": 4}),
        (["task=codes:train"], {"clone_cost": 0.03}, {}),
        (["task=my_tasks.py:Mine:long", "taskset.most=3"], {"clone_cost": 0.03}, {"most": 3}),
    ],
)
def test_options_of_a_recipe_go_with_the_taskset_and_the_rule_they_are_for(
    tmp_path: Path, words: list[str], credit: dict[str, Any], taskset: dict[str, Any]
) -> None:
    file = tmp_path / "recipe.toml"
    file.write_text("task = 'arithmetic:train'\nrule = 'rao'\n[credit]\nclone_cost = 0.03\n[taskset]\noperators = 4\n")
    settings = merge_settings(file=file, words=words)
    assert (settings.get("credit", {}), settings.get("taskset", {})) == (credit, taskset)


def test_a_base_of_settings_is_not_changed() -> None:
    base = {"a": {"b": {"c": 1}}}
    assert merge_settings(base=base, words=["a.b.c=2"]) == {"a": {"b": {"c": 2}}}
    assert base == {"a": {"b": {"c": 1}}}


@pytest.mark.parametrize(
    ("old", "new", "kept"),
    [
        ("pkg.mod:A:train", "pkg.mod:A:long", True),
        ("pkg.mod:A:train", "pkg.mod:B:train", False),
        ("inspect:a@b", "inspect:c@b", False),
        ("craft:train", "craft:hard", True),
        ("craft:train", "codes:train", False),
    ],
)
def test_options_of_a_taskset_are_dropped_with_it(old: str, new: str, kept: bool) -> None:
    merged = merge_settings(base={"task": old, "taskset": {"x": 1}}, words=[f"task={new}"])
    assert ("taskset" in merged) == kept


def test_options_of_a_taskset_are_a_table() -> None:
    with pytest.raises(ramet.ConfigError, match=r"taskset is a table of settings, like taskset.KEY=VALUE; got 5"):
        taskset_options(["taskset=5"])
