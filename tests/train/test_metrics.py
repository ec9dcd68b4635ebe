"""The numbers of a step that come from its engine."""

from __future__ import annotations

from dataclasses import dataclass, field

import ramet
from ramet.train.metrics import engine_counts, engine_metrics


@dataclass
class Counters:
    generated_tokens: int = 0
    steps: int = 0


@dataclass
class CountingEngine:
    stats: Counters = field(default_factory=Counters)


def test_tokens_per_engine_step_are_those_between_two_counts() -> None:
    engine = CountingEngine(Counters(generated_tokens=1000, steps=20))
    before = engine_counts(engine)  # pyright: ignore[reportArgumentType] (no more of an engine is needed here)
    engine.stats = Counters(generated_tokens=4000, steps=35)
    found = engine_metrics(before, engine_counts(engine))  # pyright: ignore[reportArgumentType]
    assert found == {"engine_tokens": 3000, "engine_steps": 15, "tokens_per_engine_step": 200.0}


def test_a_step_in_which_the_engine_did_nothing_has_no_tokens_per_step() -> None:
    assert engine_metrics((7, 3), (7, 3)) == {"engine_tokens": 0, "engine_steps": 0, "tokens_per_engine_step": 0.0}


def test_an_engine_that_does_not_count_adds_no_metrics() -> None:
    counts = engine_counts(ramet.ScriptedEngine(lambda prompt: "Answer: 1"))
    assert counts is None
    assert engine_metrics(counts, counts) == {}
