"""Which engines the settings open, for the model and for the judge."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from ramet.engine.http import HttpEngine
from ramet.engine.open import judge_config, open_engines, with_model
from ramet.engine.settings import EngineConfig, JudgeConfig
from ramet.errors import ConfigError, EngineError

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


def with_models(*names: str) -> EngineConfig:
    """The settings with the model of a server that offers these; without names, of no server at all."""
    if not names:
        return with_model(EngineConfig(base_url="http://127.0.0.1:1/v1"))
    listing = {"data": [{"id": name} for name in names]}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(listing).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        try:
            return with_model(EngineConfig(base_url=f"http://127.0.0.1:{server.server_port}/v1"))
        finally:
            thread.join()


def test_the_only_model_of_a_server_is_used_if_none_is_named():
    found = with_models("smollm2")
    assert (found.kind, found.model) == ("http", "smollm2")  # not the model of that name on this machine


def test_without_a_name_several_models_or_no_server_are_one_line():
    with pytest.raises(EngineError, match=r"which model\? .* serves a, b: name one with --model"):
        with_models("a", "b")
    with pytest.raises(EngineError, match=r"^cannot reach http://127.0.0.1:1/v1: .*; is the server running\?"):
        with_models()
    with pytest.raises(ConfigError, match=r"which model\? give --model NAME"):
        with_model(EngineConfig(kind="local"))


def test_settings_with_a_model_and_those_of_an_engine_of_your_own_are_left_as_they_are():
    for config in (EngineConfig(model="m"), EngineConfig(kind="mine.py:Mine")):
        assert with_model(config) is config
