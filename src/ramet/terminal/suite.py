"""A pinned suite in the terminal: its progress, its card, and two cards side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

from ramet.errors import ConfigError
from ramet.evaluate.format import budget_label, method_label, share
from ramet.evaluate.suite.card import CARD, against_alone, compare_cards, headline, read_card, write_card
from ramet.evaluate.suite.definition import PREFIX, check_size, find_suite
from ramet.evaluate.suite.run import SuiteRun, resolve_suite, run_suite
from ramet.evaluate.text import fitted_table
from ramet.report.card import write_page
from ramet.terminal.console import out, print_json, table_console
from ramet.terminal.evaluation import show_progress

COMPARE = f"{PREFIX}compare"


def evaluate_suite(
    words: Sequence[str],
    *,
    flags: Mapping[str, Any],
    size: str,
    api_key: str | None,
    runs: Path,
    into: Path | None,
    as_json: bool,
) -> None:
    """`ramet eval suite:NAME`, or `suite:compare A B`: the first word says which."""
    first, *rest = words
    if first == COMPARE:
        return print_comparison(rest, as_json=as_json)
    others = [word for word in rest if "=" not in word]
    if others:
        raise ConfigError(f"{first} is a whole suite of tasks: leave out {others[0]}")
    suite, chosen = find_suite(first), check_size(size)
    plan = resolve_suite(suite, chosen, words=rest, flags=flags, runs=runs, into=into, api_key=api_key)
    with show_progress(as_json=as_json, unit="part") as callbacks:
        card = run_suite(
            plan,
            api_key=api_key,
            on_start=callbacks["on_start"],
            on_progress=callbacks["on_progress"],
            on_card=lambda card: _write(card, plan),
        )
    page = _write(card, plan)
    if as_json:
        return print_json(card)
    return _print_card(card, page)


def _write(card: Mapping[str, Any], plan: SuiteRun) -> Path:
    write_card(card, plan.folder / CARD)
    return write_page(card, plan.folder / "card.html")


def _print_card(card: Mapping[str, Any], page: Path) -> None:
    names = ("part", "budget", "single", "vote@4", "clones", "clones − single", "tokens", "path", "")
    spare = ("path", "tokens", "budget", "vote@4", "single", "clones")
    _print_table(names, [_row(part) for part in card["parts"]], words=("part", ""), spare=spare)
    for line in headline(card):
        out.print(line)
    for part in card["skipped"]:
        out.print(f"{part['name']} was not run: {part['reason']}", style="yellow")
    out.print(f"{page.with_suffix('.json')}  {page}", style="dim")


def _row(part: Mapping[str, Any]) -> list[str]:
    fact = against_alone(part)
    cells = {cell["method"]: cell for cell in part["cells"] if cell["budget"] == fact["budget"]}
    shares = [share(cells[name]["accuracy"]["value"]) for name in ("single", "vote@4", "clones")]
    costs = [fact["cost"][name] for name in ("generated", "critical_path")]
    ratios = ["" if cost is None else f"{cost:.2f}×" for cost in costs]
    return [part["name"], budget_label(fact["budget"]), *shares, fact["points"], *ratios, fact["verdict"]]


def print_comparison(files: Sequence[str], *, as_json: bool) -> None:
    """Two cards side by side, item by item."""
    if len(files) != 2:
        raise ConfigError(
            f"{COMPARE} takes two cards, or the directories they are in: ramet eval {COMPARE} A/{CARD} B/{CARD}"
        )
    first, second = (read_card(file) for file in files)
    rows = compare_cards(first, second)
    names = [str(card["model"]["model"]) for card in (first, second)]
    if as_json:
        return print_json({"models": names, "rows": rows})
    head = ("part", "method", "budget", "items", *names, "points", "")
    return _print_table(
        head, list(map(_compared, rows)), words=("part", "method", ""), spare=("items", "budget", *names)
    )


def _compared(row: Mapping[str, Any]) -> list[str]:
    shares = (share(row["first"]), share(row["second"]))
    named = (row["part"], method_label(row["method"]), budget_label(row["budget"]), str(row["items"]))
    return [*named, *shares, row["points"], row["verdict"]]


def _print_table(
    names: Sequence[str], rows: Sequence[Sequence[str]], *, words: Sequence[str], spare: Sequence[str]
) -> None:
    console = table_console()
    columns = [(name, itemgetter(place)) for place, name in enumerate(names)]
    console.print(fitted_table(columns, rows, spare=spare, width=console.width, words=words))
