"""Serve the page on this machine: a loopback address, a free port, a random token."""

# starlette's and uvicorn's types are partial.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import importlib.util
import secrets
import socket
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ramet.errors import ConfigError
from ramet.view.api import Api
from ramet.view.app import make_app
from ramet.view.catalog import Catalog
from ramet.view.forks import Forks

LOOPBACK = "127.0.0.1"
PACKAGES = ("starlette", "uvicorn")


class Viewer:
    """A running viewer. Use it as a context manager, or call `stop`."""

    def __init__(self, api: Api, *, port: int = 0) -> None:
        import uvicorn

        self.api = api
        self.token = secrets.token_urlsafe(18)
        self._socket = _listen(port)
        self.port: int = self._socket.getsockname()[1]
        config = uvicorn.Config(
            make_app(api, token=self.token),
            log_level="critical",
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True, name="ramet view"
        )
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}/{self.token}/"

    def link(self, *parts: str) -> str:
        """The address of a page: of a run, or of a tree of it.

        Example:
            viewer.link("nano", "000007-003-001")

        gives http://127.0.0.1:8123/TOKEN/#/run/nano/tree/000007-003-001.
        """
        names = ("run", "tree", "node")
        return self.url + "#/" + "/".join(f"{n}/{quote(part, safe='')}" for n, part in zip(names, parts, strict=False))

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(timeout=5)
        self._socket.close()
        self.api.close()

    def __enter__(self) -> Viewer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def start(
    runs: Sequence[Path],
    *,
    port: int = 0,
    fork_settings: Mapping[str, Any] | None = None,
    api_key: str | None = None,
) -> Viewer:
    """Serve these run directories, or folders of them, in a thread of this process.

    `port` 0 is a free one. `fork_settings` name the model that forks are sampled from, like
    `{"engine.model": "smollm2"}`; without them it is the run's own.

    Example:
        with view.start([Path("runs")]) as viewer:
            print(viewer.url)
    """
    check_packages()
    catalog = Catalog(runs)
    return Viewer(Api(catalog, Forks(catalog, settings=fork_settings, api_key=api_key)), port=port)


def check_packages() -> None:
    """Raise one clear line if the packages of the viewer are missing."""
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f"the viewer needs {' and '.join(missing)}: pip install 'ramet[view]'")


def _listen(port: int) -> socket.socket:
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((LOOPBACK, port))
        listening.listen(128)
    except OSError as error:
        listening.close()
        raise ConfigError(f"port {port} cannot be used: {error.strerror}; without --port a free one is found") from None
    return listening
