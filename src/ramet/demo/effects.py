"""What the demo claims, each claim computed from records with its interval, and whether it holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.text import Text

from ramet.errors import ConfigError
from ramet.evaluate.record import Record
from ramet.evaluate.statistics import Difference, Estimate, difference, mean, rate

SMALL, LARGE = 4, 16  # codes: up to, and from; between them lies what just fits into a window
GAIN, CHEAPER = 0.15, 0.25  # accuracy, or tokens, by which learning has to pay
APART = 0.5  # in how often it delegates, of large ones and of small ones
MEANT = 0.5  # accuracy below which nothing else is worth saying
AS_GOOD = 0.1  # accuracy within which two are taken for equally good
REACHED, STAYS = 0.8, 0.3  # accuracy with clones, and alone, on what is twice as long as anything trained on


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Records of the model before and after learning by reward, and alone in a wide window after it."""

    before: Sequence[Record]
    after: Sequence[Record]
    wide: Sequence[Record]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """One claim: what it says, the numbers line by line, and whether it holds."""

    name: str
    claim: str
    lines: tuple[tuple[str, str], ...]
    holds: bool


def effects_of(measured: Measured) -> list[Effect]:
    """All four."""
    return [_when_it_pays(measured), _learning(measured), _longer(measured), _faster(measured)]


def _when_it_pays(measured: Measured) -> Effect:
    (small, large), (small_after, large_after) = (_delegated(records) for records in (measured.before, measured.after))
    apart, blind = large_after.low - small_after.high, abs(large.value - small.value)
    return Effect(
        name="when to delegate",
        claim="shown how, it delegates blindly; by reward it learns when that pays",
        lines=(
            (f"delegated, up to {SMALL} codes", _change(small, small_after)),
            (f"delegated, {LARGE} codes and more", _change(large, large_after)),
            ("by number of codes, before", _by_size(measured.before)),
            ("by number of codes, after", _by_size(measured.after)),
        ),
        holds=apart > APART and apart > 2 * blind,
    )


def _delegated(records: Sequence[Record]) -> tuple[Estimate, Estimate]:
    """How often, of small ones and of large ones."""
    trained = _trained(records)
    small, large = [one for one in trained if _size(one) <= SMALL], [one for one in trained if _size(one) >= LARGE]
    return rate(sum(one.delegated for one in small), len(small)), rate(sum(one.delegated for one in large), len(large))


def _by_size(records: Sequence[Record]) -> str:
    """How often it delegates at every size: what an average over several of them would hide."""
    sizes = sorted({_size(one) for one in _trained(records)})
    rates = {size: mean([float(one.delegated) for one in _trained(records) if _size(one) == size]) for size in sizes}
    return ", ".join(f"{size:.0f}: {found.value:.0%}" for size, found in rates.items())


def _learning(measured: Measured) -> Effect:
    before, after = _trained(measured.before), _trained(measured.after)
    gain = _difference(after, before, lambda one: one.score)
    tokens = [mean([float(one.generated) for one in records]) for records in (before, after)]
    fewer = tokens[1].value <= (1 - CHEAPER) * tokens[0].value and gain.low > -AS_GOOD and _right(after).low > MEANT
    return Effect(
        name="learning by reward",
        claim="at the same budget 15 points more are right, or it takes a quarter fewer tokens",
        lines=(
            ("right", _change(_right(before), _right(after))),
            ("difference", _points(gain)),
            ("tokens", f"{tokens[0].value:.0f} before, {tokens[1].value:.0f} after"),
        ),
        holds=(gain.value >= GAIN and gain.low > 0) or fewer,
    )


def _longer(measured: Measured) -> Effect:
    beyond = [one for one in measured.after if one.beyond]
    clones, single = (_right([one for one in beyond if one.method == method]) for method in ("clones", "single"))
    codes = f"{min(map(_size, beyond)):.0f}"
    return Effect(
        name="twice as long",
        claim=f"{codes} codes, trained on 32 at most: clones reach 80 %, alone stays under 30 %",
        lines=(("right, with clones", _shown(clones)), ("right, alone in that window", _shown(single))),
        holds=clones.value >= REACHED and single.value < STAYS,
    )


def _faster(measured: Measured) -> Effect:
    clones = [one for one in _trained(measured.after) if _size(one) >= LARGE]
    alone = [one for one in measured.wide if _size(one) >= LARGE]
    right = _difference(clones, alone, lambda one: one.score)
    path = _difference(clones, alone, _critical)
    return Effect(
        name="less waiting",
        claim=f"{LARGE} codes and more: as often right as alone in a wide window, in fewer tokens one after another",
        lines=(
            ("critical path, with clones", _tokens(clones)),
            ("critical path, alone", _tokens(alone)),
            ("right, clones less alone", _points(right)),
        ),
        holds=path.high < 0 and right.low > -AS_GOOD and _right(clones).low > MEANT,
    )


def effects_text(effects: Sequence[Effect]) -> Text:
    """All of them, for people."""
    text = Text()
    width = max(len(label) for effect in effects for label, _ in effect.lines)
    for effect in effects:
        text.append(effect.name, style="bold").append("  ")
        text.append("holds" if effect.holds else "does not hold", style="green" if effect.holds else "red")
        text.append(f"\n  {effect.claim}\n", style="dim")
        for label, numbers in effect.lines:
            text.append(f"  {label:{width}}  {numbers}\n")
    return text


def _trained(records: Sequence[Record]) -> list[Record]:
    """Those of clones on sizes that were trained on."""
    return [one for one in records if one.method == "clones" and not one.beyond]


def _difference(some: Sequence[Record], others: Sequence[Record], of: Callable[[Record], float]) -> Difference:
    """Between records of the same tasks, task by task."""
    found = difference({one.task: of(one) for one in some}, {one.task: of(one) for one in others})
    if found is None:
        raise ConfigError("too few tasks to compare: give a larger number")
    return found


def _critical(record: Record) -> float:
    return record.critical_path


def _size(record: Record) -> float:
    return record.size or 0.0


def _right(records: Sequence[Record]) -> Estimate:
    return rate(sum(one.score >= 1 for one in records), len(records))


def _shown(found: Estimate) -> str:
    return f"{found.value:.0%} [{100 * found.low:.0f}, {100 * found.high:.0f}]"


def _points(found: Difference) -> str:
    return f"{100 * found.value:+.0f} points [{100 * found.low:+.0f}, {100 * found.high:+.0f}]"


def _tokens(records: Sequence[Record]) -> str:
    found = mean([_critical(one) for one in records])
    return f"{found.value:.1f} tokens [{found.low:.1f}, {found.high:.1f}]"


def _change(before: Estimate, after: Estimate) -> str:
    return f"{_shown(before)} before, {_shown(after)} after"
