"""`ramet backend` without a server: what is refused before anything is started, and what a check prints."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from dataclasses import fields
from functools import partial
from pathlib import Path

import anyio.to_thread
import pytest
from typer.testing import CliRunner

from ramet.cli.backend import app
from ramet.engine.tinker.sdk import offered_models, open_service
from ramet.errors import ConfigError, EngineError
from ramet.terminal.backend_check import EFFECTS, check_server, only_model, print_effect
from ramet.train.tinker.probe import Capabilities
from ramet.train.tinker.skyrl import LAUNCHER, check_model, jax_settings
from ramet.train.tinker.skyrl_environment import COMPLETE, VERSION, find_python, has_accelerator
from tests.engine.faulty import says, serve, whole


def folder_with(tmp_path: Path, **config: object) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").touch()
    return tmp_path


def test_a_model_class_that_the_server_lacks_is_refused_with_those_it_has(tmp_path: Path):
    for classes, named in ((["GPT2LMHeadModel"], "GPT2LMHeadModel"), (None, "none")):
        with pytest.raises(
            ConfigError, match=rf"architectures is {named}; SkyRL on JAX serves LlamaForCausalLM, Qwen3"
        ):
            check_model(folder_with(tmp_path, architectures=classes))
    assert check_model(folder_with(tmp_path, architectures=["Qwen3ForCausalLM"])) == tmp_path.resolve()


def test_a_config_that_is_no_object_is_one_line(tmp_path: Path):
    folder_with(tmp_path)
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(ConfigError, match=r"cannot read .*config\.json"):
        check_model(tmp_path)


def test_settings_of_the_server_are_checked_by_name():
    given = jax_settings(["tensor_parallel_size=2", "enforce_eager=true"], rank=8, adapters=4)
    assert given["tensor_parallel_size"] == 2
    assert given["enforce_eager"] is True
    assert (given["max_lora_rank"], given["max_lora_adapters"]) == (8, 4)
    with pytest.raises(ConfigError, match="did you mean tensor_parallel_size"):
        jax_settings(["tensor_parallel=2"], rank=8, adapters=4)
    with pytest.raises(ConfigError, match="train_micro_batch_size is a whole number, true or false; got 'two'"):
        jax_settings(["train_micro_batch_size=two"], rank=8, adapters=4)


def test_without_an_environment_both_ways_to_get_one_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RAMET_CACHE", str(tmp_path))
    with pytest.raises(ConfigError, match=r"add --install .* or --python PATH"):
        find_python(None, install=False, say=print)


def test_an_environment_counts_only_when_it_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RAMET_CACHE", str(tmp_path))
    environment = tmp_path / f"skyrl-{VERSION}-py{sys.version_info.major}.{sys.version_info.minor}"
    (environment / "bin").mkdir(parents=True)
    (environment / "bin" / "python").touch()
    with pytest.raises(ConfigError, match="--install"):
        find_python(None, install=False, say=print)
    (environment / COMPLETE).touch()
    assert find_python(None, install=False, say=print) == environment / "bin" / "python"


def test_a_python_that_cannot_be_run_or_has_no_skyrl_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"cannot run .*missing: No such file"):
        find_python(tmp_path / "missing", install=False, say=print)
    with pytest.raises(ConfigError, match=rf"has no skyrl: .* -m pip install 'skyrl\[tinker,jax\]=={VERSION}'"):
        find_python(Path(sys.executable), install=False, say=print)


def test_an_environment_without_a_plugin_of_jax_computes_on_the_cpu(tmp_path: Path):
    """Batches are smaller there: the server computes a whole one for every request."""
    assert not has_accelerator(Path(sys.executable))
    (tmp_path / "jax_plugins").mkdir()
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    assert has_accelerator(python)
    batches = jax_settings([], rank=8, adapters=4, sequences=8)
    assert (batches["sample_max_num_sequences"], batches["train_micro_batch_size"]) == (8, 8)
    assert jax_settings(["sample_max_num_sequences=2"], rank=8, adapters=4)["sample_max_num_sequences"] == 2


def test_the_launcher_binds_its_port_before_it_imports_anything_of_the_server():
    """So a port in use starts no engine. This Python has no skyrl."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [sys.executable, "-P", str(LAUNCHER), "--port", str(port)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, f"cannot listen on 127.0.0.1:{port}: Address already in use\n")


def test_the_launcher_imports_nothing_of_ramet():
    text = LAUNCHER.read_text()
    assert "import ramet" not in text
    assert "from ramet" not in text


def test_a_check_has_words_for_everything_that_a_probe_finds_out():
    found = {one.name for one in fields(Capabilities)} - {"server", "sdk", "models", "notes"}
    assert set(EFFECTS) == found
    for name, (_, effects) in EFFECTS.items():
        assert set(effects) == ({"sum", "row_mean"} if name == "reduction" else {True, False})


def test_every_line_of_a_check_fits_a_terminal(capsys: pytest.CaptureFixture[str]):
    for name, (_, effects) in EFFECTS.items():
        for value in effects:
            print_effect(name, value)
    lines = capsys.readouterr().out.splitlines()
    assert "update.max_grad_norm        ignored by the server" in lines
    assert max(map(len, lines)) <= 80


def test_a_wrong_address_is_one_line_without_the_client_package():
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        with pytest.raises(EngineError, match=f"^nothing answers at {url}: "):
            check_server(url, model=None, timeout_s=60, as_json=False)
    with pytest.raises(ConfigError, match=r"an address like http://127\.0\.0\.1:8123; got 'localhost'"):
        check_server("localhost", model=None, timeout_s=60, as_json=False)


@pytest.mark.anyio
async def test_another_kind_of_server_is_one_line():
    async with serve(says("hello")) as server:
        url = server.url.removesuffix("/v1")
        with pytest.raises(EngineError, match=f"^{url} is no server of the Tinker API"):
            await open_service(url)


@pytest.mark.anyio
async def test_a_quick_check_trains_nothing_and_lists_what_it_left_out(capsys: pytest.CaptureFixture[str]):
    """Health, name and models are three addresses; this server answers all of them with the same object."""
    offered = [{"model_name": "tiny", "max_context_length": 4096}, {"model_name": "large"}]
    async with serve(says("")) as server:
        server.listing = whole({"status": "ok", "name": "Tinker API Mock", "supported_models": offered})
        url = server.url.removesuffix("/v1")
        for as_json in (False, True):
            check = partial(check_server, url, model=None, timeout_s=60, as_json=as_json, quick=True)
            await anyio.to_thread.run_sync(check)
        assert server.requests == []
    lines = capsys.readouterr().out.split("\n", 4)
    assert lines[:2] == [f"SkyRL at {url}", "models: tiny (window 4,096), large"]
    assert lines[2].startswith("client: ")
    assert lines[3].startswith("not tried, because it trains an adapter: loss.aggregation, loss.bounds of cispo, ")
    facts = json.loads(lines[4])
    assert (facts["models"], facts["not_tried"]) == (["tiny", "large"], list(EFFECTS))


@pytest.mark.anyio
async def test_a_server_that_lists_its_models_in_another_way_is_not_an_error():
    for listing in ({"supported_models": None}, {"supported_models": [3]}, ["x"], {}):
        async with serve(says("")) as server:
            server.listing = whole(listing)
            assert await offered_models(server.url) is None


def test_a_model_is_chosen_only_when_there_is_one():
    assert only_model(("m",)) == "m"
    with pytest.raises(ConfigError, match="offers a, b: name one with --model"):
        only_model(("a", "b"))


@pytest.mark.parametrize("verb", ["serve", "check"])
def test_help_names_the_options(verb: str):
    shown = CliRunner().invoke(app, [verb, "--help"], env={"COLUMNS": "200"}).output
    expected = {"serve": ("--install", "--python", "--folder", "--port"), "check": ("--model", "--quick", "--json")}
    assert all(option in shown for option in expected[verb])
