"""Random faults for an hour, or for as long as `--seconds` says. Prints every round; exit code 1 if anything broke.

python -m tests.soak --seconds 600
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ramet.errors import RametError
from tests.soak import evaluating, serving, training, trees
from tests.soak.rounds import Place, Report, Round

ROUNDS: dict[str, Round] = {
    "train, killed": training.train_killed,
    "train, full disk": training.train_full_disk,
    "train, two writers": training.train_two_writers,
    "eval, killed": evaluating.eval_killed,
    "eval, faulty server": evaluating.eval_faulty_server,
    "eval, full disk": evaluating.eval_full_disk,
    "eval, two writers": evaluating.eval_two_writers,
    "serve, faults": serving.serve_faults,
    "serve, memory": serving.serve_memory,
    "trees, clock jumps": trees.clock_jumps,
    "trees, cancelled cells": trees.cancelled_cells,
}
out = Console(highlight=False, width=160)


@dataclass(slots=True, kw_only=True)
class Total:
    """All rounds of one kind."""

    rounds: int = 0
    seconds: float = 0.0
    reports: list[Report] = field(default_factory=list[Report])

    @property
    def broken(self) -> list[str]:
        return [problem for report in self.reports for problem in report.broken]

    @property
    def done(self) -> Counter[str]:
        return sum((report.done for report in self.reports), Counter[str]())


def soak(seconds: float, *, seed: int, kinds: Sequence[str], say: Callable[[str], None]) -> dict[str, Total]:
    """Rounds of these kinds in turn until the time is up; at least one of each."""
    totals = {kind: Total() for kind in kinds}
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ramet-soak-") as folder:
        model = cache(lambda: _model(Path(folder)))
        for number in range(10**9):
            kind = kinds[number % len(kinds)]
            if number >= len(kinds) and time.monotonic() - began > seconds:
                break
            place = Path(folder) / f"round-{number}"
            place.mkdir()
            dice = random.Random(f"{seed}/{number}")
            _one(totals[kind], ROUNDS[kind], Place(folder=place, dice=dice, model=model))
            report = totals[kind].reports[-1]
            say(f"{time.monotonic() - began:6.0f} s  round {number}  {kind}: {_listed(report.done)}")
            for problem in report.broken:
                say(f"          BROKEN (seed {seed}, round {number}): {problem}")
    return totals


def _one(total: Total, play: Round, place: Place) -> None:
    began = time.monotonic()
    try:
        report = play(place)
    except (RametError, BaseExceptionGroup) as error:  # what is left on disk cannot even be read
        report = Report(broken=[f"{type(error).__name__}: {error!r}"])
    total.reports.append(report)
    total.rounds += 1
    total.seconds += time.monotonic() - began


def _model(folder: Path) -> Path:
    from tests.train import small

    (folder / "model").mkdir()
    return small.folder(folder / "model")


def _listed(done: Counter[str]) -> str:
    return ", ".join(f"{number} {what}" for what, number in sorted(done.items())) or "nothing"


def _summary(totals: dict[str, Total]) -> Table:
    table = Table("kind", "rounds", "seconds", "what was done", "slowest", "broken")
    for kind, total in totals.items():
        slowest = max((report.slowest_s for report in total.reports if report.slowest_s is not None), default=None)
        late = "" if slowest is None else f"{slowest:.3f} s"
        table.add_row(
            kind, str(total.rounds), f"{total.seconds:.0f}", _listed(total.done), late, str(len(total.broken))
        )
    return table


def main() -> int:
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=ROUNDS, action="append", help="only rounds of this kind")
    given = parser.parse_args()
    totals = soak(given.seconds, seed=given.seed, kinds=given.only or list(ROUNDS), say=out.print)
    out.print(_summary(totals))
    broken = sum(len(total.broken) for total in totals.values())
    out.print(f"{sum(total.rounds for total in totals.values())} rounds, {broken} problems")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
