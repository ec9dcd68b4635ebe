"""How the trees of wrong answers ended, as a table of the page and as lines of text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from ramet.draw import counted
from ramet.evaluate.cells import Cell
from ramet.evaluate.format import budget_label, method_label
from ramet.evaluate.tables import Section
from ramet.report.markup import Content, Markup, table, tag
from ramet.report.page_tables import cell_id, link
from ramet.report.read import Run, read_stops
from ramet.types import Stop

MEANINGS = {
    Stop.ANSWERED: "the root gave an answer by itself",
    Stop.BUDGET: "tokens, money, or tokens on the critical path ran out",
    Stop.TURNS: "the root had taken all its turns",
    Stop.REPEATS: "the root repeated a turn with the same results too often",
    Stop.WINDOW: "the window of the root was full",
    Stop.DEADLINE: "the time of the tree was up",
    Stop.CANCELLED: "the run was cancelled",
    Stop.ERROR: "the engine failed",
}


def ending_table(section: Section, runs: Mapping[str, Run]) -> Markup | None:
    """A row for each method and budget with wrong answers whose trees are stored; None if there is none."""
    endings = count_endings(section, runs)
    if not endings:
        return None
    total = sum((counts for _, counts in endings), Counter[Stop]())
    kinds = [stop for stop, _ in total.most_common()]
    names: list[Content] = ["run"] if section.several_runs else []
    columns = [tag("abbr", stop.value, title=MEANINGS[stop]) for stop in kinds]
    rows = [
        [
            *([cell.run] if section.several_runs else []),
            method_label(cell.method),
            budget_label(cell.budget),
            link(cell_id(section, cell.key), f"{counts.total():,}"),
            *(f"{counts[stop]:,}" for stop in kinds),
        ]
        for cell, counts in endings
    ]
    caption = "How the trees of wrong answers ended; of votes, all trees count"
    return table([*names, "method", "budget", "trees", *columns], rows, caption=caption, labels=len(names) + 2)


def count_endings(section: Section, runs: Mapping[str, Run]) -> list[tuple[Cell, Counter[Stop]]]:
    """How the stored trees of wrong answers ended, for every method and budget that has any."""
    stops = {name: read_stops(runs[name]) for name in section.runs}
    endings = [(cell, _count(cell, stops[cell.run])) for cell in section.cells]
    return [(cell, counts) for cell, counts in endings if counts]


def ending_lines(section: Section, runs: Mapping[str, Run]) -> list[str]:
    """One line for each method under the largest budget, such as `clones, 9 trees: turns 7, repeats 2`."""
    return [
        f"{method_label(cell.method)}, {counted(counts.total(), 'tree')}: "
        + ", ".join(f"{stop} {number:,}" for stop, number in counts.most_common())
        for cell, counts in count_endings(section, runs)
        if cell.budget == section.budgets[-1]
    ]


def _count(cell: Cell, stops: Mapping[str, Stop]) -> Counter[Stop]:
    wrong = [name for record in cell.records if not record.is_right for name in record.trees]
    return Counter(stops[name] for name in wrong if name in stops)
