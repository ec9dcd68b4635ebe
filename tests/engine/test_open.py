"""Who answers and who judges, as settings say."""

from __future__ import annotations

from pathlib import Path

import pytest

from ramet.config import EngineConfig, JudgeConfig, RunConfig
from ramet.engine.http import HttpEngine
from ramet.engine.open import engines_of, judge_of
from ramet.errors import ConfigError

SERVER = EngineConfig(base_url="http://host/v1", model="m", tries=2)
LOCAL = EngineConfig(kind="local", model="smollm2", window=99)


def judge(engine: EngineConfig, model: str = "", base_url: str = "") -> EngineConfig | None:
    return judge_of(RunConfig(engine=engine, judge=JudgeConfig(model=model, base_url=base_url)))


@pytest.mark.parametrize("engine", [SERVER, LOCAL])
def test_without_a_name_nobody_judges(engine: EngineConfig) -> None:
    assert judge(engine) is None


@pytest.mark.parametrize("engine", [SERVER, LOCAL])
def test_the_same_model_judges_itself(engine: EngineConfig) -> None:
    assert judge(engine, engine.model) == engine


@pytest.mark.parametrize("engine", [SERVER, LOCAL])
def test_a_judge_may_be_on_a_server_of_its_own(engine: EngineConfig) -> None:
    assert judge(engine, "j", "http://other/v1") == EngineConfig(base_url="http://other/v1", model="j")


def test_another_model_judges_on_the_same_server() -> None:
    assert judge(SERVER, "j") == EngineConfig(base_url="http://host/v1", model="j", tries=2)
    assert judge(SERVER, "smollm2") == EngineConfig(base_url="http://host/v1", model="smollm2", tries=2)


def test_beside_a_local_model_another_local_one_judges(tmp_path: Path) -> None:
    (tmp_path / "config.json").touch()
    assert judge(LOCAL, str(tmp_path)) == EngineConfig(kind="local", model=str(tmp_path), window=99)
    with pytest.raises(ConfigError, match="where is the judge 'j'"):
        judge(LOCAL, "j")


def test_an_engine_that_judges_itself_is_made_once() -> None:
    engine, judging = engines_of(RunConfig(engine=SERVER, judge=JudgeConfig(model="m")), judged=True, api_key=None)
    assert isinstance(engine, HttpEngine)
    assert judging is engine
    _, other = engines_of(RunConfig(engine=SERVER, judge=JudgeConfig(model="j")), judged=True, api_key=None)
    assert isinstance(other, HttpEngine)
    assert other.model == "j"


def test_a_question_in_words_has_no_judge() -> None:
    assert engines_of(RunConfig(engine=SERVER, judge=JudgeConfig(model="m")), judged=False, api_key=None)[1] is None
