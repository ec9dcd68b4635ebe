"""What `ramet backend check` prints: what a Tinker server is, and what it does with ramet's settings."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial

import anyio
from rich.table import Table

from ramet.engine.tinker.sdk import open_service
from ramet.errors import ConfigError, EngineError
from ramet.terminal.console import out, print_json, table_console
from ramet.train.tinker.probe import Capabilities, probe

CONNECT_S = 20.0


def check_server(url: str, *, model: str | None, timeout_s: float, as_json: bool) -> None:
    """Print what a server is and does. A server that does not answer is an error within seconds."""
    found = anyio.run(partial(_look, url, model, timeout_s))
    if as_json:
        print_json({"url": url} | asdict(found))
        return
    out.print(f"{found.server} at {url}, client {found.sdk}")
    out.print(f"models: {', '.join(found.models) or 'none listed'}")
    table = Table(box=None, pad_edge=False)
    for name in ("setting", "effect"):
        table.add_column(name)
    for setting, effect in effects(found):
        table.add_row(setting, effect)
    table_console().print(table)
    for note in found.notes:
        out.print(f"note: {note}")


async def _look(url: str, model: str | None, timeout_s: float) -> Capabilities:
    service = await open_service(url, deadline_s=min(CONNECT_S, timeout_s))
    try:
        with anyio.fail_after(timeout_s):
            base_model = model or only_model((await service.describe()).models)
            return await probe(service, base_model=base_model, deadline_s=timeout_s)
    except TimeoutError:
        raise EngineError(f"{url} did not finish the check within {timeout_s:g} s; --timeout-s allows more") from None
    finally:
        service.close()


def only_model(offered: tuple[str, ...]) -> str:
    """The model to try when none was named."""
    if len(offered) != 1:
        raise ConfigError(f"the server offers {', '.join(offered) or 'no models'}: name one with --model")
    return offered[0]


def effects(found: Capabilities) -> list[tuple[str, str]]:
    """Every setting whose effect depends on the server, and what this one does with it."""
    rank = "any" if found.max_rank is None else f"up to {found.max_rank}"
    overlap = "works: published versions stay what they were"
    replaced = "refused: a published version is replaced while training continues"
    bounds = "obeyed" if found.cispo_bounds else "exact: the loss is computed here, with one forward pass more"
    losses = {
        "sum": "exact: the server adds up token losses",
        "row_mean": "exact: the server takes means of rows, and ramet scales every row by the inverse",
    }
    return [
        ("loss.aggregation", losses[found.reduction]),
        ("loss.bounds of cispo", bounds),
        ("update.max_grad_norm", _obeyed(found.clips_gradients)),
        ("update.betas, update.weight_decay", _obeyed(found.honours_betas)),
        ("overlap", overlap if found.keeps_versions else replaced),
        ("backend.rank", rank),
    ]


def _obeyed(obeyed: bool) -> str:
    return "obeyed" if obeyed else "ignored by the server"
