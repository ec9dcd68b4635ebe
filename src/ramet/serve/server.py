"""The process of a server: a socket, uvicorn, signals and a run directory."""

from __future__ import annotations

import logging
import signal
import socket
import sys
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
from anyio.abc import TaskStatus

from ramet.agent.tree import within_window
from ramet.draw import counted
from ramet.errors import ConfigError
from ramet.interfaces import Engine
from ramet.serve.keys import Keyring, read_keys
from ramet.serve.settings import ServeConfig, check_address, is_loopback
from ramet.serve.usage import UsageFiles
from ramet.store.lock import exclusive_lock
from ramet.store.run_dir import RunDir
from ramet.types import printable

if TYPE_CHECKING:
    import uvicorn

    from ramet.serve.app import Service

USAGE = "serve-usage"  # folder in the folder of runs: what limited keys have used today
BACKLOG = 2048  # connections that wait to be accepted
KEEP_ALIVE_S = 75  # an idle connection is closed after this long: later than clients and proxies give up theirs
CLOSING_S = 5.0  # for responses to go out, after the last tree has ended
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A server that listens."""

    url: str
    run: Path
    service: Service


def check_packages() -> None:
    """Raise `ConfigError` with the pip command when a package is missing."""
    try:
        import starlette
        import uvicorn

        del starlette, uvicorn
    except ImportError as error:
        raise ConfigError(f"ramet serve needs {error.name}: pip install 'ramet[serve]'") from None


def read_access(config: ServeConfig) -> Keyring:
    """The keys of a server, after a check of everything that can be wrong before a model is loaded."""
    check_packages()
    keys = _open_keys(config)
    check_address(config.host, has_keys=keys.needed)
    return keys


async def serve(
    config: ServeConfig,
    engine: Engine,
    *,
    runs: Path | str = "runs",
    clone_engine: Engine | None = None,
    say: Say | None = None,
    on_start: Callable[[Served], None] = lambda _: None,
) -> None:
    """Serve until SIGTERM or SIGINT. `say` gets a line for every tree; `on_start` is called when clients can connect.

    Clones are sampled by `clone_engine`, if there is one.

    Example:
        await serve(ServeConfig(port=8100, name="my-model"), ScriptedEngine(script))
    """
    with ExitStack() as stack:
        service = stack.enter_context(
            opened_service(config, engine, runs=Path(runs), clone_engine=clone_engine, say=say)
        )
        listener = stack.enter_context(bind(config.host, config.port))
        async with anyio.create_task_group() as group:  # signals are handled until the last tree is stored
            async with listening(service, listener) as server:
                await group.start(_until_signal, service, server)
                on_start(Served(url=_url(listener), run=service.store.run_dir.path, service=service))
                await server.ended.wait()
            group.cancel_scope.cancel()


def _open_keys(config: ServeConfig) -> Keyring:
    if not config.keys:
        return Keyring({}, budget=config.budget)
    found = read_keys(Path(config.keys))
    try:
        return Keyring(found, budget=config.budget)
    except ConfigError as error:
        raise ConfigError(f"{config.keys}: {error}") from None


@contextmanager
def opened_service(
    config: ServeConfig, engine: Engine, *, runs: Path, clone_engine: Engine | None = None, say: Say | None = None
) -> Generator[Service]:
    """What all requests share, with a run directory that no other process writes to."""
    config = replace(config, budget=within_window(config.budget, engine))  # clients read it at /v1/models
    keys = read_access(config)
    from ramet.serve.app import Service
    from ramet.serve.storing import TreeStore

    with ExitStack() as stack:
        usage: UsageFiles | None = None
        if keys.has_days:
            folder = runs / USAGE
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(exclusive_lock(folder))
            usage = UsageFiles(folder, keys)
        run = RunDir.create(runs, f"serve-{config.model}", config=config, kind="serve")
        stack.enter_context(exclusive_lock(run.path))
        log = _log(say)
        store = TreeStore(run, usage=usage, log=log)
        yield Service(config, engine, clone_engine=clone_engine, keys=keys, store=store, log=log)


def _log(say: Say | None) -> Say:
    def log(line: str) -> None:
        if say is not None:
            say(f"{datetime.now():%H:%M:%S}  {line}")

    return log


@contextmanager
def bind(host: str, port: int) -> Generator[socket.socket]:
    """A socket that listens; a port that is taken is one line."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)  # asyncio sets TCP_NODELAY only where TCP is named
    except OSError as error:
        raise ConfigError(f"cannot listen on {host}: {error.strerror}") from None
    with listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
        except OSError as error:
            raise ConfigError(f"cannot listen on {host} port {port}: {error.strerror}; choose another --port") from None
        listener.listen(BACKLOG)
        yield listener


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"


class Listening:
    """A uvicorn server in this event loop."""

    def __init__(self, server: uvicorn.Server) -> None:
        self.server = server
        self.started = anyio.Event()
        self.ended = anyio.Event()

    def stop(self) -> None:
        """Accept nothing new, and end when all responses have been sent."""
        self.server.should_exit = True


class Escaped(logging.Formatter):
    """Lines and tracebacks of uvicorn's log. They may quote what a client sent."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


LOG_CONFIG: dict[str, Any] = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"escaped": {"()": Escaped, "format": "ramet: %(message)s"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "escaped", "stream": "ext://sys.stderr"}},
    "loggers": {"uvicorn": {"handlers": ["stderr"], "level": "ERROR", "propagate": False}},
}


@asynccontextmanager
async def listening(service: Service, listener: socket.socket) -> AsyncGenerator[Listening]:
    """Accept connections inside the block; at its end, wait for those that are answered."""
    import uvicorn

    from ramet.serve.app import make_app

    class Server(uvicorn.Server):
        @contextmanager
        def capture_signals(self) -> Generator[None]:
            yield  # `_until_signal` handles them: trees have to end first

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            server.started.set()

    settings = uvicorn.Config(
        make_app(service),
        log_config=LOG_CONFIG,
        log_level="error",
        access_log=False,
        lifespan="off",
        server_header=False,
        backlog=BACKLOG,
        h11_max_incomplete_event_size=64 * 1024,
        timeout_graceful_shutdown=int(service.config.grace_s + CLOSING_S) + 1,
        timeout_keep_alive=KEEP_ALIVE_S,
        ws="none",
    )
    server = Listening(Server(settings))

    async def run() -> None:
        await server.server.serve(sockets=[listener])
        server.ended.set()
        server.started.set()

    async with service.open(), anyio.create_task_group() as group:
        group.start_soon(run)
        await server.started.wait()
        try:
            yield server
        finally:
            server.stop()


async def _until_signal(service: Service, server: Listening, *, task_status: TaskStatus[None]) -> None:
    """After SIGTERM or SIGINT, let trees end; after the time of grace, or a second signal, store what they have."""
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        task_status.started()
        await anext(signals)
        service.drain()
        service.log(f"shutting down: {counted(len(service.running), 'tree')} left, {service.config.grace_s:g} s to end")
        server.stop()
        with anyio.move_on_after(service.config.grace_s):
            await anext(signals)
        service.cancel_all()
        await anyio.sleep_forever()


def banner(served: Served) -> list[str]:
    """What is printed when the server listens: address, model, budget, where trees go."""
    config, budget = served.service.config, served.service.config.budget
    limits = [counted(budget.tokens, "token"), counted(budget.nodes, "node"), f"depth {budget.depth}"]
    limits += [f"{budget.seconds:g} s"] if budget.seconds is not None else []
    limits += [f"${budget.money:g}"] if budget.money is not None else []
    access = counted(len(served.service.keys.accounts), "key") if served.service.keys.needed else "no key needed"
    reach = "this machine only" if is_loopback(config.host) else "other machines can connect"
    at_once = f"{counted(config.concurrency, 'tree')} at once"
    clones = f"; clones have {config.clone.model}" if config.clone.model else ""
    return [
        f"address  {served.url}  ({reach}, {access})",
        f"model    {config.model}  ({config.engine.kind}, dialect {config.dialect}){clones}",
        f"budget   {', '.join(limits)} per request; {at_once}, {config.queue} waiting",
        f"trees    {served.run}",
    ]


def print_line(line: str) -> None:
    sys.stderr.write(f"{printable(line)}\n")
    sys.stderr.flush()
