"""Which engines the settings open, for the model and for the judge."""

from __future__ import annotations

from pathlib import Path

import pytest

from ramet.engine.http import HttpEngine
from ramet.engine.open import judge_config, open_engines
from ramet.engine.settings import EngineConfig, JudgeConfig
from ramet.errors import ConfigError

SERVER = EngineConfig(base_url="http://host/v1", model="m", tries=2)
LOCAL = EngineConfig(kind="local", model="smollm2", window=99)


def judge(engine: EngineConfig, model: str = "", base_url: str = "") -> EngineConfig | None:
    return judge_config(engine, JudgeConfig(model=model, base_url=base_url))


@pytest.mark.parametrize("engine", [SERVER, LOCAL])
def test_without_a_judge_model_there_is_no_judge(engine: EngineConfig) -> None:
    assert judge(engine) is None


@pytest.mark.parametrize("engine", [SERVER, LOCAL])
def test_the_same_model_judges_itself(engine: EngineConfig) -> None:
    assert judge(engine, engine.model) == engine


@pytest.mark.parametrize("engine", [SERVER, LOCAL])
def test_the_policy_judges_itself_whatever_its_name(engine: EngineConfig) -> None:
    assert judge(engine, "policy") == engine


@pytest.mark.parametrize("engine", [SERVER, LOCAL])
def test_a_judge_may_have_its_own_server(engine: EngineConfig) -> None:
    assert judge(engine, "j", "http://other/v1") == EngineConfig(base_url="http://other/v1", model="j")


def test_another_model_judges_on_the_same_server() -> None:
    assert judge(SERVER, "j") == EngineConfig(base_url="http://host/v1", model="j", tries=2)
    assert judge(SERVER, "smollm2") == EngineConfig(base_url="http://host/v1", model="smollm2", tries=2)


def test_the_judge_of_a_local_model_is_on_this_machine_or_has_a_server(tmp_path: Path) -> None:
    (tmp_path / "config.json").touch()
    assert judge(LOCAL, str(tmp_path)) == EngineConfig(kind="local", model=str(tmp_path), window=99)
    with pytest.raises(ConfigError, match=r"^judge.model 'j' is not on this machine: give judge.base_url, a folder"):
        judge(LOCAL, "j")


def test_a_model_that_judges_itself_is_opened_once() -> None:
    engine, same = open_engines(SERVER, JudgeConfig(model="m"))
    assert isinstance(engine, HttpEngine)
    assert same is engine
    _, other = open_engines(SERVER, JudgeConfig(model="j"))
    assert isinstance(other, HttpEngine)
    assert other.model == "j"


def test_without_judge_settings_no_judge_is_opened() -> None:
    assert open_engines(SERVER)[1] is None
    assert open_engines(SERVER, None)[1] is None
