"""What `ramet backend check` prints: what a Tinker server is, and what it does with ramet's settings."""

from __future__ import annotations

import time
from dataclasses import asdict
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import anyio
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from ramet.engine.tinker.sdk import check_address, check_health, offered_models, open_service, server_name
from ramet.errors import ConfigError, EngineError
from ramet.terminal.console import out, print_json
from ramet.train.tinker.probe import Capabilities, check_served, probe

CLIENT = "tinker"  # package
CONNECT_S = 20.0
COMPILING = "a server that compiles may take minutes the first time"
# What is found out about a server: the settings that depend on it, and what they do by what was found.
EFFECTS: dict[str, tuple[str, dict[Any, str]]] = {
    "reduction": (
        "loss.aggregation",
        {
            "sum": "exact: token losses are summed",
            "row_mean": "exact: averages of rows are scaled back",
        },
    ),
    "cispo_bounds": ("loss.bounds of cispo", {True: "obeyed", False: "exact, with one more forward pass"}),
    "clips_gradients": ("update.max_grad_norm", {True: "obeyed", False: "ignored by the server"}),
    "honours_betas": ("update.betas, weight_decay", {True: "obeyed", False: "ignored by the server"}),
    "keeps_versions": (
        "overlap",
        {True: "works: published weights stay as they are", False: "refused: published weights are overwritten"},
    ),
}
WIDTH = max(len(setting) for setting, _ in EFFECTS.values()) + 2


def check_server(url: str, *, model: str | None, timeout_s: float, as_json: bool, quick: bool = False) -> None:
    """Print what a server is and does, line by line as it is found out. JSON is printed at the end."""
    began = time.monotonic()
    shown = Shown(quiet=as_json)
    with shown.progress:
        known = anyio.run(_introduce, url, shown)
        if not quick:
            known |= asdict(anyio.run(partial(_try, url, model, timeout_s, shown)))
    if as_json:
        print_json(known | ({"not_tried": list(EFFECTS)} if quick else {}))
    elif quick:
        out.print(f"not tried, because it trains an adapter: {', '.join(setting for setting, _ in EFFECTS.values())}")
    else:
        out.print(f"checked in {time.monotonic() - began:.0f} s; the adapter that was trained for it is unloaded")


class Shown:
    """Lines of a check, and on a terminal what it waits for, with the seconds."""

    def __init__(self, *, quiet: bool) -> None:
        self.quiet = quiet
        self._left = list(EFFECTS)  # in the order in which they are found out
        columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
        self.progress = Progress(*columns, console=out, transient=True, disable=quiet or not out.is_terminal)
        self._task: TaskID | None = None

    def line(self, text: str) -> None:
        if not self.quiet:
            out.print(text)

    def trying(self) -> None:
        """Name the first setting that is not known."""
        if self._task is not None:
            self.progress.remove_task(self._task)
        self._task = self.progress.add_task(f"trying {EFFECTS[self._left[0]][0]}", total=None) if self._left else None

    def fact(self, name: str, value: Any) -> None:
        if not self.quiet:
            print_effect(name, value)
        self._left.remove(name)
        self.trying()


async def _introduce(url: str, shown: Shown) -> dict[str, Any]:
    """What is known at once: nothing here computes, and the client package is not imported."""
    address = check_address(url)
    await check_health(address)
    server = await server_name(address)
    shown.line(f"{server} at {url}")
    models = await offered_models(address) or {}
    listed = [name if window is None else f"{name} (window {window:,})" for name, window in models.items()]
    shown.line(f"models: {', '.join(listed) or 'none listed'}")
    sdk = installed_client()
    shown.line(f"client: {sdk}")
    return {"url": url, "server": server, "sdk": sdk, "models": list(models)}


def installed_client() -> str:
    """The client package and its version, or how to install it."""
    try:
        return f"{CLIENT} {version(CLIENT)}"
    except PackageNotFoundError:
        return f"not installed: pip install 'ramet[{CLIENT}]'"


async def _try(url: str, model: str | None, timeout_s: float, shown: Shown) -> Capabilities:
    """Train an adapter for a few steps, and report every setting as soon as its effect is known."""
    try:
        with anyio.fail_after(timeout_s):
            service = await open_service(url, deadline_s=min(CONNECT_S, timeout_s))
            try:
                facts = await service.describe()
                name = model or only_model(facts.models)
                check_served(name, facts)
                shown.line(f"training an adapter on {name} for a few steps; {COMPILING}")
                shown.trying()
                return await probe(service, base_model=name, deadline_s=timeout_s, facts=facts, on_fact=shown.fact)
            finally:
                service.close()
    except TimeoutError:
        raise EngineError(
            f"{url} did not finish the check within {timeout_s:g} s; --timeout-s allows more, --quick trains nothing"
        ) from None


def only_model(offered: tuple[str, ...]) -> str:
    """The model to try when none was named."""
    if len(offered) != 1:
        raise ConfigError(f"the server offers {', '.join(offered) or 'no models'}: name one with --model")
    return offered[0]


def print_effect(name: str, value: Any) -> None:
    """A setting whose effect depends on the server, and what this one does with it."""
    setting, effects = EFFECTS[name]
    out.print(f"{setting:<{WIDTH}}{effects[value]}")
