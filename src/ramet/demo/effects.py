"""The claims of the demo: each is computed from records, with intervals, and holds or does not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.text import Text

from ramet.errors import ConfigError
from ramet.evaluate.cells import accuracy_rate
from ramet.evaluate.format import interval, percent, share, signed
from ramet.evaluate.record import Record
from ramet.evaluate.statistics import Difference, Estimate, difference, mean, rate

SMALL, LARGE = 4, 16  # codes: at most, and at least; sizes between them just fit into a window
MIN_GAIN, MIN_SAVING = 0.15, 0.25  # accuracy gained, or share of tokens saved, for training by reward to have paid
MIN_CONTRAST = 0.5  # between how often large and small patterns are delegated
MIN_ACCURACY = 0.5  # below it no other number means anything
MAX_LOSS = 0.1  # accuracy that may be lost for two methods to count as equally good
CLONES_REACH, ALONE_STAYS = 0.8, 0.3  # accuracy on patterns twice as long as any trained on


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Records of the model before and after training by reward, and after it alone in a wide window."""

    before: Sequence[Record]
    after: Sequence[Record]
    wide: Sequence[Record]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """One claim, its numbers line by line, and whether it holds."""

    name: str
    claim: str
    lines: tuple[tuple[str, str], ...]
    holds: bool


def measure_effects(measured: Measured) -> list[Effect]:
    """All four effects."""
    return [_when_to_delegate(measured), _reward(measured), _longer(measured), _critical_path(measured)]


def _when_to_delegate(measured: Measured) -> Effect:
    small, large = _delegation(measured.before)
    small_after, large_after = _delegation(measured.after)
    contrast, before = large_after.low - small_after.high, abs(large.value - small.value)
    return Effect(
        name="when to delegate",
        claim="demonstrations teach it how to delegate, reward teaches it when",
        lines=(
            (f"delegated, up to {SMALL} codes", _change(small, small_after)),
            (f"delegated, {LARGE} codes and more", _change(large, large_after)),
            ("by number of codes, before", _by_size(measured.before)),
            ("by number of codes, after", _by_size(measured.after)),
        ),
        holds=contrast > MIN_CONTRAST and contrast > 2 * before,
    )


def _delegation(records: Sequence[Record]) -> tuple[Estimate, Estimate]:
    """How often small and large patterns are delegated."""
    small = [record.delegated for record in _trained(records) if _size(record) <= SMALL]
    large = [record.delegated for record in _trained(records) if _size(record) >= LARGE]
    return rate(sum(small), len(small)), rate(sum(large), len(large))


def _by_size(records: Sequence[Record]) -> str:
    """How often patterns of each size are delegated."""
    by_size: dict[float, list[float]] = {}
    for record in _trained(records):
        by_size.setdefault(_size(record), []).append(float(record.delegated))
    return ", ".join(f"{size:.0f}: {share(mean(by_size[size]).value)}" for size in sorted(by_size))


def _reward(measured: Measured) -> Effect:
    before, after = _trained(measured.before), _trained(measured.after)
    gain = _difference(after, before, lambda record: record.score)
    tokens = [mean([float(record.generated) for record in records]).value for records in (before, after)]
    cheaper = tokens[1] <= (1 - MIN_SAVING) * tokens[0]
    as_good = gain.low > -MAX_LOSS and accuracy_rate(after).low > MIN_ACCURACY
    return Effect(
        name="learning by reward",
        claim="at the same budget 15 points more tasks are right, or it takes a quarter fewer tokens",
        lines=(
            ("right", _change(accuracy_rate(before), accuracy_rate(after))),
            ("difference", _points(gain)),
            ("tokens", f"{tokens[0]:.0f} before, {tokens[1]:.0f} after"),
        ),
        holds=(gain.value >= MIN_GAIN and gain.low > 0) or (cheaper and as_good),
    )


def _longer(measured: Measured) -> Effect:
    beyond = [record for record in measured.after if record.beyond]
    clones = accuracy_rate([record for record in beyond if record.method == "clones"])
    single = accuracy_rate([record for record in beyond if record.method == "single"])
    codes = f"{min(map(_size, beyond)):.0f}"
    return Effect(
        name="twice as long",
        claim=f"{codes} codes, trained on at most 32: clones reach 80%, alone stays below 30%",
        lines=(("right, with clones", percent(clones)), ("right, alone in that window", percent(single))),
        holds=clones.value >= CLONES_REACH and single.value < ALONE_STAYS,
    )


def _critical_path(measured: Measured) -> Effect:
    clones = [record for record in _trained(measured.after) if _size(record) >= LARGE]
    alone = [record for record in measured.wide if _size(record) >= LARGE]
    accuracy = _difference(clones, alone, lambda record: record.score)
    path = _difference(clones, alone, lambda record: float(record.critical_path))
    return Effect(
        name="less waiting",
        claim=f"{LARGE} codes and more: as accurate as alone in a wide window, on a shorter critical path",
        lines=(
            ("critical path, with clones", _tokens(clones)),
            ("critical path, alone", _tokens(alone)),
            ("right, clones less alone", _points(accuracy)),
        ),
        holds=path.high < 0 and accuracy.low > -MAX_LOSS and accuracy_rate(clones).low > MIN_ACCURACY,
    )


def effects_text(effects: Sequence[Effect]) -> Text:
    """The effects as lines for a terminal."""
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
    """Records of clones on sizes within the training range."""
    return [record for record in records if record.method == "clones" and not record.beyond]


def _difference(some: Sequence[Record], others: Sequence[Record], value: Callable[[Record], float]) -> Difference:
    """The paired difference of a value between records of the same tasks."""
    result = difference(*({record.task: value(record) for record in records} for records in (some, others)))
    if result is None:
        raise ConfigError("too few tasks to compare: give a larger -n")
    return result


def _size(record: Record) -> float:
    return record.size or 0.0


def _points(gap: Difference) -> str:
    return f"{signed(gap.value)} points {interval(gap.low, gap.high)}"


def _tokens(records: Sequence[Record]) -> str:
    path = mean([float(record.critical_path) for record in records])
    return f"{path.value:.1f} tokens [{path.low:.1f}, {path.high:.1f}]"


def _change(before: Estimate, after: Estimate) -> str:
    return f"{percent(before)} before, {percent(after)} after"
