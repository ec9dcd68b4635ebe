"""Start SkyRL's Tinker server from its PyPI packages. Run by the Python of the server's environment, not ramet's.

    python skyrl_server.py --base-model FOLDER --backend jax --port 8123 --database-url ... --checkpoints-base ...

Takes the options of `python -m skyrl.tinker.api`, and differs from it in four ways. The engine is started by this
Python, not by `uv run`. The server binds 127.0.0.1 unless `--host` names another address, because it checks no API
keys. The port is bound before anything is started, so a port in use starts no engine. The engine ends when the server
does, however that ends, and with `--stop-with-parent PID` the server ends when that process, its parent, does.

This file imports nothing of ramet.
"""

# The server's packages are in another environment.
# pyright: basic, reportMissingImports=false, reportPrivateUsage=false

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import threading
import time
import typing
from collections.abc import Callable, Sequence

ENGINE = "engine"  # first argument of the second process
WATCH_S = 0.5
SHUTDOWN_S = 2  # for requests under way, which clients poll for up to five minutes


def serve(arguments: Sequence[str]) -> None:
    """The process that answers HTTP; it starts the engine process."""
    options, rest = _options(arguments)
    try:
        bound = _bind(options)
    except OSError as error:
        sys.exit(f"cannot listen on {options.host}:{options.port}: {error.strerror}")
    if options.stop_with_parent is not None:
        _when_parent_ends(options.stop_with_parent, lambda: os.kill(os.getpid(), signal.SIGTERM))
    _patch_typed_dict()
    import uvicorn
    from skyrl.tinker import api
    from skyrl.tinker.config import EngineConfig, add_model, config_to_argv

    def engine_command(_parent: object, config: typing.Any) -> list[str]:
        script = [sys.executable, "-P", os.path.abspath(__file__)]  # -P: modules beside this file are not importable
        return [*script, ENGINE, str(os.getpid()), *config_to_argv(config)]

    api._build_uv_run_cmd_engine = engine_command
    parser = argparse.ArgumentParser()
    add_model(parser, EngineConfig)
    api.app.state.engine_config = EngineConfig.model_validate(vars(parser.parse_args(rest)))
    config = uvicorn.Config(api.app, log_level="warning", timeout_graceful_shutdown=SHUTDOWN_S)
    uvicorn.Server(config).run(sockets=[bound])


def run_engine(server: int, arguments: Sequence[str]) -> None:
    """The process that computes. It has no port and reads its requests from the database."""
    _when_parent_ends(server, lambda: os._exit(1))
    _patch_typed_dict()
    from skyrl.tinker.engine import main

    sys.argv = [ENGINE, *arguments]
    main()


def _options(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Our own options, and those of SkyRL."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8123)
    parser.add_argument("--fd", type=int, help="an open listening socket, instead of --host and --port")
    parser.add_argument("--stop-with-parent", type=int, metavar="PID")
    return parser.parse_known_args(list(arguments))


def _bind(options: argparse.Namespace) -> socket.socket:
    if options.fd is not None:
        return socket.socket(fileno=options.fd)
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind((options.host, options.port))
    return bound


def _when_parent_ends(parent: int, end: Callable[[], None]) -> None:
    """Call `end` from a thread when the process that started this one is gone."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(WATCH_S)
        end()

    threading.Thread(target=watch, daemon=True).start()


def _patch_typed_dict() -> None:
    """pydantic refuses `typing.TypedDict` below Python 3.12, and SkyRL uses it."""
    if sys.version_info < (3, 12):
        import typing_extensions

        typing.TypedDict = typing_extensions.TypedDict


if __name__ == "__main__":
    if sys.argv[1:2] == [ENGINE]:
        run_engine(int(sys.argv[2]), sys.argv[3:])
    else:
        serve(sys.argv[1:])
