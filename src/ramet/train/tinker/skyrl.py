"""A SkyRL server on this machine: its two processes, when they are ready, and how they end.

One process answers HTTP, the other one computes. Both are in a process group of their own, which ends as a whole.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import httpx

from ramet.errors import ConfigError, EngineError, did_you_mean
from ramet.models.folders import model_folder
from ramet.store.lock import exclusive_lock

LAUNCHER = Path(__file__).with_name("skyrl_server.py")
# Classes in config.json that the JAX backend implements.
ARCHITECTURES = (
    *("LlamaForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM", "Qwen3_5ForCausalLM"),
    *("DeepseekV3ForCausalLM", "Glm4MoeLiteForCausalLM"),
)
# Settings of the JAX backend that make sense on one machine.
JAX_SETTINGS = (
    *("max_lora_adapters", "max_lora_rank", "tensor_parallel_size", "expert_parallel_size"),
    *("fully_sharded_data_parallel_size", "train_micro_batch_size", "sample_max_num_sequences", "enforce_eager"),
    *("shard_attention_heads", "gradient_checkpointing", "loss_chunk_size"),
)
POLL_S = 0.2
ANSWER_S = 5.0  # one HTTP request of the readiness check; the result is asked for again after it
END_S = 10.0  # a server that has answered with an error may be ending
STOP_S = 20.0  # for a clean stop, before the group is killed
LOG_BYTES, LOG_WORDS = 8192, 60  # of a failed server, in the error


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """How a server is started. `backend` goes to SkyRL's JAX backend as it is."""

    model: Path
    folder: Path  # for the database, the checkpoints and the log
    python: Path
    port: int = 8123  # 0: any free port
    session_timeout_s: int = 300  # an adapter is dropped when its client has been silent for so long
    backend: Mapping[str, Any]
    compile_cache: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server that has been started. `process` answers HTTP and leads the group."""

    process: subprocess.Popen[bytes]
    url: str
    base_model: str  # what clients ask for
    log: Path


def check_model(source: str | Path) -> Path:
    """The absolute folder of a model that the JAX backend can load."""
    folder = model_folder(source).resolve()
    try:
        config = cast(dict[str, Any], json.loads((folder / "config.json").read_text(encoding="utf-8")))
        classes = cast(list[str], config.get("architectures") or [])
    except (OSError, ValueError, AttributeError) as error:
        raise ConfigError(f"cannot read {folder / 'config.json'}: {error}") from None
    if not set(classes) & set(ARCHITECTURES):
        named = ", ".join(map(str, classes)) or "none"
        raise ConfigError(
            f"{folder / 'config.json'}: architectures is {named}; SkyRL on JAX serves {', '.join(ARCHITECTURES)}"
        )
    return folder


@contextmanager
def running(settings: ServerSettings, *, ready_s: float) -> Generator[Server]:
    """A server that has answered a real request, until the block ends."""
    with started(settings) as server:
        wait_until_ready(server, ready_s)
        yield server


@contextmanager
def started(settings: ServerSettings) -> Generator[Server]:
    """A server whose processes run, until the block ends. It answers after `wait_until_ready`."""
    _make_folder(settings.folder)
    with exclusive_lock(settings.folder):
        server = start(settings)
        try:
            yield server
        finally:
            stop(server)


def start(settings: ServerSettings) -> Server:
    """Start both processes in a process group of their own. They end when this process does."""
    model, folder = str(settings.model), settings.folder.resolve()
    with _listen(settings.port) as bound:
        descriptor, port = bound.fileno(), bound.getsockname()[1]
        own = ["--fd", str(descriptor), "--stop-with-parent", str(os.getpid())]
        skyrl = {
            "base-model": model,
            "backend": "jax",
            "backend-config": json.dumps(dict(settings.backend)),
            "checkpoints-base": folder / "checkpoints",
            "database-url": f"sqlite:///{folder / 'tinker.db'}",
            "external-inference-lora-base": folder / "lora",
            "session-timeout-sec": settings.session_timeout_s,
            "session-cleanup-interval-sec": max(1, min(60, settings.session_timeout_s // 5)),
        }
        options = [word for name, value in skyrl.items() for word in (f"--{name}", str(value))]
        log = folder / "server.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [str(settings.python), "-P", str(LAUNCHER), *own, *options],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | _environment(settings.compile_cache),
                pass_fds=(descriptor,),
                start_new_session=True,
            )
    return Server(process=process, url=f"http://127.0.0.1:{port}", base_model=model, log=log)


def wait_until_ready(server: Server, seconds: float) -> None:
    """Return when the engine has sampled a token: the server's own health check passes long before that."""
    end = time.monotonic() + seconds
    request: str | None = None
    with httpx.Client(base_url=f"{server.url}/api/v1", timeout=ANSWER_S, trust_env=False) as client:
        while time.monotonic() < end:
            if server.process.poll() is not None:
                raise _failure(server)
            try:
                with suppress(httpx.TransportError):
                    request = request or _ask_for_a_token(client, server.base_model)
                    if _is_answered(client, request):
                        return
            except EngineError as error:
                with suppress(subprocess.TimeoutExpired):  # a server that is ending answers 500
                    server.process.wait(END_S)
                    raise _failure(server) from None
                raise EngineError(f"{error} (log: {server.log})") from None
            time.sleep(POLL_S)
    raise EngineError(f"the server was not ready after {seconds:g} s (log: {server.log})")


def _failure(server: Server) -> EngineError:
    """Why a server that has ended did so, as far as its log tells."""
    code = server.process.returncode
    return EngineError(f"the server ended with exit code {code}: {_log_end(server.log)} (log: {server.log})")


def stop(server: Server) -> None:
    """End the whole group: a clean stop first, then a kill."""
    group = server.process.pid  # of a new session, so the group has its number
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        server.process.wait(STOP_S)
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
    server.process.wait()


def jax_settings(words: Sequence[str], *, rank: int, adapters: int, sequences: int = 32) -> dict[str, Any]:
    """Settings of SkyRL's JAX backend, with `name=value` words over our defaults.

    A fixed number of sequences keeps the shapes few: every new one is compiled, which takes seconds. The server
    computes a whole batch for a single request too.
    """
    chosen: dict[str, Any] = {
        "max_lora_adapters": adapters,
        "max_lora_rank": rank,
        "sample_max_num_sequences": sequences,
        "train_micro_batch_size": sequences,
    }
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or name not in JAX_SETTINGS:
            raise ConfigError(f"{word!r} is no setting of SkyRL's JAX backend: {did_you_mean(name, JAX_SETTINGS)}")
        try:
            chosen[name] = json.loads(value)
        except ValueError:
            raise ConfigError(f"{name} is a whole number, true or false; got {value!r}") from None
    return chosen


def _environment(compile_cache: Path) -> dict[str, str]:
    """Everything is compiled once and kept; nothing is fetched from a model hub."""
    return {
        "HF_HUB_OFFLINE": "1",
        "TINKER_TELEMETRY": "0",
        "JAX_COMPILATION_CACHE_DIR": str(compile_cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
        "PYTHONPATH": "",  # packages of this process would take precedence over those of the server
    }


def _listen(port: int) -> socket.socket:
    """A socket on loopback: the server checks no keys, so other machines must not reach it."""
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind(("127.0.0.1", port))
        bound.listen(128)
    except OSError as error:
        bound.close()
        raise ConfigError(f"cannot listen on 127.0.0.1:{port}: {error.strerror}; --port 0 takes a free port") from None
    return bound


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot write to {folder}: {error.strerror}") from None


def _ask_for_a_token(client: httpx.Client, base_model: str) -> str:
    body = {
        "base_model": base_model,
        "num_samples": 1,
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": [0]}]},
        "sampling_params": {"max_tokens": 1, "seed": 0},
    }
    return str(_checked(client.post("/asample", json=body))["request_id"])


def _is_answered(client: httpx.Client, request: str) -> bool:
    try:
        answer = _checked(client.post("/retrieve_future", json={"request_id": request}))
    except httpx.ReadTimeout:  # the server holds the request while the engine starts
        return False
    if not answer.get("sequences"):
        raise EngineError(f"the server answered without a token: {json.dumps(answer)[:200]}")
    return True


def _checked(response: httpx.Response) -> dict[str, Any]:
    if response.status_code != 200:
        raise EngineError(f"the server answered {response.status_code}: {' '.join(response.text.split())[:300]}")
    return cast(dict[str, Any], response.json())


def _log_end(log: Path) -> str:
    """The last words of a log."""
    with log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - LOG_BYTES))
        return " ".join(file.read().decode(errors="replace").split()[-LOG_WORDS:])
