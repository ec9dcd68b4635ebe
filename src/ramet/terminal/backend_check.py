"""What `ramet backend check` prints: what a Tinker server is, and what it does with ramet's settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

import anyio

from ramet.engine.tinker.sdk import check_address, check_health, open_service, server_name
from ramet.errors import ConfigError, EngineError
from ramet.terminal.console import out, print_json
from ramet.train.tinker.probe import Capabilities, OnFact, ignore, probe

CONNECT_S = 20.0
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


def check_server(url: str, *, model: str | None, timeout_s: float, as_json: bool) -> None:
    """Print what a server is and does, line by line as it is found out. JSON is printed at the end."""
    on_line, on_fact = (_no_line, ignore) if as_json else (out.print, print_effect)
    found = anyio.run(partial(_look, url, model, timeout_s, on_line, on_fact))
    if as_json:
        print_json({"url": url} | asdict(found))


async def _look(
    url: str, model: str | None, timeout_s: float, on_line: Callable[[str], None], on_fact: OnFact
) -> Capabilities:
    address = check_address(url)
    await check_health(address)
    on_line(f"{await server_name(address)} at {url}")
    service = await open_service(url, deadline_s=min(CONNECT_S, timeout_s))
    try:
        with anyio.fail_after(timeout_s):
            facts = await service.describe()
            on_line(f"models: {', '.join(facts.models) or 'none listed'}")
            on_line(f"client: {facts.sdk}")
            base_model = model or only_model(facts.models)
            return await probe(service, base_model=base_model, deadline_s=timeout_s, facts=facts, on_fact=on_fact)
    except TimeoutError:
        raise EngineError(f"{url} did not finish the check within {timeout_s:g} s; --timeout-s allows more") from None
    finally:
        service.close()


def only_model(offered: tuple[str, ...]) -> str:
    """The model to try when none was named."""
    if len(offered) != 1:
        raise ConfigError(f"the server offers {', '.join(offered) or 'no models'}: name one with --model")
    return offered[0]


def print_effect(name: str, value: Any) -> None:
    """A setting whose effect depends on the server, and what this one does with it."""
    setting, effects = EFFECTS[name]
    out.print(f"{setting:<{WIDTH}}{effects[value]}")


def _no_line(text: str) -> None:
    del text
