"""Random choices that are the same on every machine and every version of Python.

Python guarantees the same `random()` for the same seed, but not the methods built on it, so only `random()` is used.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Dice:
    """A source of random choices, seeded by words: `Dice("arithmetic", 0, "train", 17)`."""

    def __init__(self, *seed: object) -> None:
        self._random = random.Random("/".join(map(str, seed))).random

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return self._random() < probability

    def below(self, limit: int) -> int:
        """A whole number from 0 to limit - 1."""
        return int(self._random() * limit)

    def between(self, low: int, high: int) -> int:
        """A whole number from low to high, both included."""
        return low + self.below(high - low + 1)

    def pick(self, choices: Sequence[T]) -> T:
        """One of the choices, each with the same probability."""
        return choices[self.below(len(choices))]

    def weighted(self, choices: Sequence[T], weights: Sequence[float]) -> T:
        """One of the choices, with probabilities in proportion to the weights."""
        if len(choices) != len(weights):
            raise AssertionError(f"{len(choices)} choices, {len(weights)} weights")
        point = self._random() * sum(weights)
        for choice, weight in zip(choices, weights, strict=True):
            point -= weight
            if point < 0:
                return choice
        return choices[-1]

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """The items in random order."""
        order = list(items)
        for i in range(len(order) - 1, 0, -1):
            j = self.below(i + 1)
            order[i], order[j] = order[j], order[i]
        return order

    def sample(self, items: Sequence[T], number: int) -> list[T]:
        """Different items, in random order."""
        return self.shuffled(items)[:number]


def in_eval(text: str, *, one_in: int = 10) -> bool:
    """Whether a generated task belongs to evaluation, by a hash of its text: so train and eval never overlap."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") % one_in == 0


def seed_of(*place: object) -> int:
    """A random seed that depends on nothing but a place, such as the run's seed, a step, a task and a tree.

    Example:
        seed_of(0, "sample", 3, 1, 4)  # 8166594275714710
    """
    return int.from_bytes(hashlib.blake2b(repr(place).encode(), digest_size=7).digest(), "big")
