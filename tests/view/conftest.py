"""One folder of runs, one server and one browser for all tests of a module."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from ramet.view import Viewer, start
from tests.view.samples import write_runs
from tests.waiting import PATIENCE_S

CHROMIUM = shutil.which("chromium")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_runs(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def viewer(runs: Path) -> Iterator[Viewer]:
    with start([runs]) as viewer:
        yield viewer


@pytest.fixture(scope="module")
def client(viewer: Viewer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=viewer.url + "api/", timeout=PATIENCE_S) as client:
        yield client


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("no browser: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        window = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield window
        window.close()
