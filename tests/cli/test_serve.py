"""`ramet serve` as a command: its help, its errors, and a model behind it over HTTP."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import chdir
from functools import partial
from pathlib import Path
from typing import Any

import openai
import pytest
from typer.testing import CliRunner

import ramet
from ramet.budget import Budget
from ramet.cli.main import app
from ramet.engine.scripted import ScriptedEngine
from ramet.errors import ConfigError
from ramet.serve.server import opened_service
from ramet.serve.settings import ServeConfig
from ramet.store import RunDir
from ramet.store.checkpoints import checkpoint_path
from ramet.terminal.serving import resolve_serve, run_server
from ramet.train.settings import TrainConfig
from tests.engine.faulty import Answer, Received, says, serve
from tests.waiting import PATIENCE_S

HELP_WIDTH = {"COLUMNS": "80", "TERM": "dumb"}


def help_text() -> str:
    return CliRunner().invoke(app, ["serve", "--help"], env=HELP_WIDTH).output


def start(folder: Path, *words: str, key: str = "") -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(ramet.__file__).parents[1]), "RAMET_API_KEY": key}
    command = [sys.executable, "-m", "ramet", "serve", *words]
    return subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "which model?"),
        (["--model", "m", "--host", "0.0.0.0"], "give --keys FILE"),
        (["--model", "m", "--keys", "none.toml"], "cannot read none.toml"),
        (["--model", "m", "--port", "70000"], "port must be a number from 0 to 65535"),
        (["--model", "m", "que=3"], "did you mean queue?"),
        (["--model", "m", "--dialect", "tols"], "did you mean tools?"),
        (["--model", "m", "--concurrency", "0"], "concurrency must be an integer of at least 1"),
        (["--model", "m", "clone.tokenizer=t"], "clone needs clone.model"),
        (["--model", "smollm2", "--clone-model", "small"], "is not on this machine: give its server, NAME@URL"),
    ],
)
def test_a_wrong_setting_is_one_line(tmp_path: Path, words: list[str], message: str):
    with pytest.raises(ConfigError, match=re.escape(message)):
        CliRunner().invoke(
            app, ["serve", *words, "--runs", str(tmp_path)], catch_exceptions=False, standalone_mode=False
        )
    assert list(tmp_path.iterdir()) == []


def trained(folder: Path, task: str = "codes:train", **settings: Any) -> Path:
    """The checkpoint of a run directory, without weights."""
    run = RunDir.create(folder, "vow", config=TrainConfig(task=task, **settings), kind="train")
    checkpoint = checkpoint_path(run.path, 5)
    checkpoint.mkdir(parents=True)
    (checkpoint / "config.json").write_text("{}")
    return checkpoint


def test_the_model_of_a_run_directory_is_served_as_it_was_trained_under_the_name_of_the_run(tmp_path: Path):
    checkpoint = trained(tmp_path / "runs", dialect="terse", budget={"window": 160, "nodes": 40, "tokens": [90, 240]})
    with chdir(tmp_path):
        for model in ("runs/vow", str(checkpoint)):
            config, taken_over = resolve_serve(flags={"engine.model": model, "budget.nodes": 7})
            assert (config.engine.kind, config.engine.model) == ("local", str(checkpoint))
            assert (config.model, config.dialect) == ("vow", "terse")
            assert (config.budget.window, config.budget.nodes) == (160, 7)
            assert config.budget.tokens == ServeConfig().budget.tokens
            assert {"dialect=terse", "budget.window=160"} <= set(taken_over)
            assert not any(word.startswith("budget.nodes") for word in taken_over)
        config, _ = resolve_serve(words=["name=mine", "dialect=tools"], flags={"engine.model": "runs/vow"})
        assert (config.model, config.dialect) == ("mine", "tools")
        assert config.engine.model == str(checkpoint)


def test_a_model_without_a_window_in_its_settings_is_served_with_that_of_its_tasks(tmp_path: Path):
    trained(tmp_path)
    taskset = ramet.load_taskset("codes")
    config, taken_over = resolve_serve(flags={"engine.model": str(tmp_path / "vow")})
    assert config.budget.window == taskset.budget(taskset.task("train", 0)).window
    assert f"budget.window={config.budget.window}" in taken_over


def test_a_path_to_nothing_is_not_the_name_of_a_model_on_a_server(tmp_path: Path):
    trained(tmp_path / "runs")
    at = {"engine.base_url": "http://127.0.0.1:9/v1"}
    with chdir(tmp_path):
        for more in ({}, at):
            with pytest.raises(ConfigError, match="no run directory and no model folder runs/vov: did you mean"):
                resolve_serve(flags={"engine.model": "runs/vov", **more})
        config, taken_over = resolve_serve(flags={"engine.model": "Qwen/Qwen3-4B", **at})
    assert (config.engine.model, config.model, taken_over) == ("Qwen/Qwen3-4B", "Qwen3-4B", [])


def test_the_window_that_clients_read_is_at_most_that_of_the_model(tmp_path: Path):
    class Narrow(ScriptedEngine):
        window = 512

    engine = Narrow(lambda _: "Answer: yes")
    for window, listed in ((8192, 512), (300, 300)):
        config = ServeConfig(budget=Budget(window=window))
        with opened_service(config, engine, runs=tmp_path) as service:
            assert service.config.budget.window == listed


def policy(request: Received) -> Answer:
    """The root delegates a question that says so; the rest is answered."""
    last = str(request.body["messages"][-1]["content"])
    if request.body["model"] == "m" and "split" in last:
        return says('<tool_call>{"name": "delegate", "arguments": {"goals": ["half of it"]}}</tool_call>')
    return says("Answer: Rome is warmer")


@pytest.mark.anyio
async def test_the_lines_of_the_help_work_as_they_stand_and_clones_have_their_model(tmp_path: Path):
    async with serve(policy) as model:
        model.models = ("m", "small")
        words = ["--base-url", model.url, "--model", "m", "--clone-model", "small"]
        words += ["--port", "0", "--runs", str(tmp_path)]
        process = start(tmp_path, *words)
        try:
            assert process.stderr is not None
            shown = [await _line(process) for _ in range(4)]
            assert re.fullmatch(r"address  http://127.0.0.1:\d+/v1  \(this machine only, no key needed\)\n", shown[0])
            assert shown[1] == "model    m  (http, dialect tools); clones have small\n"
            assert shown[2].startswith("budget   4,000 tokens, 16 nodes, depth 3 per request")
            assert shown[3] == f"trees    {tmp_path}/serve-m\n"
            port = re.findall(r":(\d+)/v1", shown[0])[0]  # the one of the help may be taken
            curl, python = (line.replace("8100", port) for line in _lines())
            assert "Rome is warmer" in await _output(["bash", "-c", curl])
            assert "Rome is warmer" in await _output([sys.executable, "-c", python])
            await _output(["bash", "-c", curl.replace("Hi", "split this")])
        finally:
            process.send_signal(signal.SIGINT)
            _, rest = await _communicate(process)
        assert process.returncode == 0
        assert re.findall(r"answered  .* tokens  (.*)  ", rest) == ["1 node", "1 node", "2 nodes"]
        assert [body["model"] for body in model.bodies] == ["m", "m", "m", "small", "m"]
    run = RunDir.open(tmp_path / "serve-m")
    assert run.kind == "serve"
    assert 'model = "m"' in (run.path / "config.toml").read_text()


def _lines() -> tuple[str, str]:
    """The curl line and the Python lines of the help, as a terminal of 80 columns shows them."""
    lines = [line.strip() for line in help_text().splitlines()]
    start = lines.index("import openai")
    return next(line for line in lines if line.startswith("curl ")), "\n".join(lines[start : start + 3])


async def _line(process: subprocess.Popen[str]) -> str:
    import anyio

    assert process.stderr is not None
    return await anyio.to_thread.run_sync(process.stderr.readline)


async def _communicate(process: subprocess.Popen[str]) -> tuple[str, str]:
    import anyio

    return await anyio.to_thread.run_sync(lambda: process.communicate(timeout=PATIENCE_S))


async def _output(command: list[str]) -> str:
    import anyio

    done = await anyio.run_process(command, check=False)
    return (done.stdout + done.stderr).decode()


def test_a_taken_port_is_one_line(tmp_path: Path):
    import socket

    from ramet.serve.server import bind

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1 port {port}"), bind("127.0.0.1", port):
            pass


@pytest.mark.anyio
async def test_a_server_is_asked_once_for_its_only_model(tmp_path: Path):
    import socket

    import anyio

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        async with serve(says("unused")) as model:
            flags = {"engine.base_url": model.url, "port": taken.getsockname()[1]}
            start = partial(run_server, file=None, words=[], flags=flags, api_key=None, runs=tmp_path, quiet=True)
            with pytest.raises(ConfigError, match="cannot listen"):  # the next thing after the model is known
                await anyio.to_thread.run_sync(start)
    assert [request.method for request in model.asked] == ["GET"]


def test_openai_is_the_unchanged_client_of_these_tests():
    assert openai.OpenAI.__module__ == "openai"
