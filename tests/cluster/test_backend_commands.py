"""`ramet backend serve` and `ramet backend check` as a user runs them, with a real SkyRL server."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest

from tests.cluster.conftest import ADAPTERS, ENVIRONMENTS, RANK, READY_S, server_python

RAMET = (sys.executable, "-m", "ramet")
MANY_S = 120.0  # for what takes seconds on an idle machine


@dataclass(frozen=True, kw_only=True)
class Serving:
    """A running `ramet backend serve`, and the processes of its server."""

    command: subprocess.Popen[str]
    server: Sequence[psutil.Process]
    folder: Path
    url: str  # empty: it has not been waited for

    def ends(self) -> tuple[int, str]:
        """Exit code and everything it printed that has not been read."""
        printed, _ = self.command.communicate(timeout=MANY_S)
        return self.command.returncode, printed

    def nothing_is_left(self) -> bool:
        _, alive = psutil.wait_procs(self.server, timeout=MANY_S)
        return not alive


@contextmanager
def serving(model: Path, folder: Path, *more: str, ready: bool = True) -> Generator[Serving]:
    """Start the command; wait until the server is ready, or only until both of its processes run."""
    options = ["--port", "0", "--folder", str(folder), "--python", str(server_python()), "--rank", str(RANK)]
    command = subprocess.Popen(
        [*RAMET, "backend", "serve", str(model), *options, "--adapters", str(ADAPTERS), *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"RAMET_CACHE": str(ENVIRONMENTS)},
    )
    try:
        url = _ready_url(command) if ready else ""
        until(lambda: _engine_runs(command.pid), within_s=READY_S)
        processes = psutil.Process(command.pid).children(recursive=True)
        yield Serving(command=command, server=processes, folder=folder, url=url)
    finally:
        command.send_signal(signal.SIGTERM)
        command.communicate()


def _ready_url(command: subprocess.Popen[str]) -> str:
    assert command.stdout is not None
    printed = ""
    for line in command.stdout:
        printed += line
        if line.startswith("ready: "):
            return line.split()[1]
    raise AssertionError(f"the command ended: {printed}")


def _engine_runs(command: int) -> bool:
    """Whether the second process has begun: between fork and exec it still looks like the first one."""
    children = psutil.Process(command).children(recursive=True)
    return any("engine" in process.cmdline() for process in children)


def until(holds: Callable[[], bool], *, within_s: float = MANY_S) -> None:
    end = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


def ramet(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*RAMET, *words], capture_output=True, text=True, timeout=READY_S, check=False)


@pytest.fixture(scope="module")
def served(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Generator[Serving]:
    with serving(tiny_model, tmp_path_factory.mktemp("served")) as one:
        yield one


# Serve.


def test_a_server_is_ready_when_it_samples_and_listens_on_loopback_only(served: Serving, tiny_model: Path):
    offered = httpx.get(f"{served.url}/api/v1/get_server_capabilities").json()["supported_models"]
    assert [model["model_name"] for model in offered] == [str(tiny_model.resolve())]
    listening = {
        connection.laddr.ip
        for process in served.server
        for connection in process.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    }
    assert listening == {"127.0.0.1"}


def test_database_log_and_checkpoints_are_in_the_folder(served: Serving):
    assert {"tinker.db", "server.log"} <= {path.name for path in served.folder.iterdir()}
    [engine] = [process for process in served.server if "engine" in process.cmdline()]
    command = engine.cmdline()
    assert command[command.index("--checkpoints-base") + 1] == str(served.folder.resolve() / "checkpoints")


def test_both_processes_are_in_a_group_of_their_own(served: Serving):
    groups = {os.getpgid(process.pid) for process in served.server}
    assert len(groups) == 1
    assert os.getpgid(served.command.pid) not in groups


def test_a_folder_belongs_to_one_server(served: Serving, tiny_model: Path):
    words = ("--port", "0", "--folder", str(served.folder), "--python", str(server_python()))
    done = ramet("backend", "serve", str(tiny_model), *words)
    assert (done.returncode, done.stderr) == (
        2,
        f"ramet: another process is writing to {served.folder}: wait until it ends, or stop it\n",
    )


def test_a_port_in_use_is_one_line_and_starts_nothing(tiny_model: Path, tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        words = ("--port", port, "--folder", str(tmp_path / "run"), "--python", str(server_python()))
        done = ramet("backend", "serve", str(tiny_model), *words)
    assert done.returncode == 2
    assert (
        done.stderr == f"ramet: cannot listen on 127.0.0.1:{port}: Address already in use; --port 0 takes a free port\n"
    )
    assert not (tmp_path / "run" / "server.log").exists()


def test_ctrl_c_stops_a_server_that_is_ready(tiny_model: Path, tmp_path: Path):
    with serving(tiny_model, tmp_path / "run") as one:
        one.command.send_signal(signal.SIGINT)
        code, printed = one.ends()
        assert code == 0
        assert printed.endswith("stopped\n")
        assert one.nothing_is_left()


def test_a_server_can_be_stopped_while_it_starts(tiny_model: Path, tmp_path: Path):
    with serving(tiny_model, tmp_path / "run", ready=False) as one:
        one.command.send_signal(signal.SIGTERM)
        assert one.ends()[0] == 0
        assert one.nothing_is_left()


def test_a_killed_command_leaves_no_processes(tiny_model: Path, tmp_path: Path):
    with serving(tiny_model, tmp_path / "run", ready=False) as one:
        one.command.kill()
        assert one.nothing_is_left()


def test_an_engine_that_dies_ends_the_server_with_one_line(tiny_model: Path, tmp_path: Path):
    with serving(tiny_model, tmp_path / "run", ready=False) as one:
        next(process for process in one.server if "engine" in process.cmdline()).kill()
        code, printed = one.ends()
        assert code == 2
        assert re.search(r"^ramet: the server ended .*exit code .*server\.log\)$", printed.splitlines()[-1])
        assert one.nothing_is_left()


def test_an_http_process_that_is_killed_takes_the_engine_with_it(tiny_model: Path, tmp_path: Path):
    with serving(tiny_model, tmp_path / "run", ready=False) as one:
        next(process for process in one.server if "engine" not in process.cmdline()).kill()
        assert one.ends()[0] == 2
        assert one.nothing_is_left()


# Check.


def test_a_check_reports_what_the_server_does_with_every_setting(served: Serving, tiny_model: Path):
    done = ramet("backend", "check", served.url)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:2] == [f"SkyRL at {served.url}", f"models: {tiny_model.resolve()}"]
    assert lines[2].startswith("client: tinker ")
    assert lines[3].startswith(f"training an adapter on {tiny_model.resolve()} for a few steps; ")
    assert lines[-1].startswith("checked in ")
    effects = dict(re.split(r"\s{2,}", line, maxsplit=1) for line in lines[4:-1])
    assert effects["update.max_grad_norm"] == "ignored by the server"
    assert effects["update.betas, weight_decay"] == "obeyed"
    assert effects["loss.bounds of cispo"] == "obeyed"
    assert effects["overlap"].startswith("refused")


def test_a_check_as_json_has_the_same_facts(served: Serving, tiny_model: Path):
    facts = json.loads(ramet("backend", "check", served.url, "--json").stdout)
    assert (facts["url"], facts["models"]) == (served.url, [str(tiny_model.resolve())])
    assert (facts["reduction"], facts["keeps_versions"], facts["clips_gradients"]) == ("row_mean", False, False)


def test_a_quick_check_trains_nothing(served: Serving, tiny_model: Path):
    log = (served.folder / "server.log").read_text()
    done = ramet("backend", "check", served.url, "--quick")
    lines = done.stdout.splitlines()
    assert lines[:2] == [f"SkyRL at {served.url}", f"models: {tiny_model.resolve()}"]
    assert lines[3].startswith("not tried, because it trains an adapter: ")
    assert "create_model" not in (served.folder / "server.log").read_text().removeprefix(log)


def test_a_model_that_is_not_served_is_one_line(served: Serving):
    done = ramet("backend", "check", served.url, "--model", "no-such-model")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "no-such-model" in done.stderr


def test_a_wrong_address_is_one_line():
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        done = ramet("backend", "check", url)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert url in done.stderr
