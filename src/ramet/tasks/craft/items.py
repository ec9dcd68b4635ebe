"""A world of meaningless items, after RAO's TextCraft-Synth: 50 base materials, 1402 items to craft in 12 tiers.

There are five domains, each with its own items, and 12 items that need several domains. Names give no hint of recipes.
Every item has exactly one recipe, drawn from the two tiers below it (and sometimes from deeper ones).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from ramet.tasks.craft.world import Book, Recipe
from ramet.tasks.dice import Dice

DOMAINS = "mcoat"  # metal, crystal, organic, arcane, tech
VARIANTS, PER_TIER, TIERS, MOST_KINDS = 10, 25, 12, 6
KINDS = (0, 1, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 4)  # fewest kinds of ingredients, by tier
MAKES = ((0, 0), (2, 4), (2, 3), *((1, 2),) * 3, *((1, 1),) * 7)  # how many a craft makes, by tier
CROSS = {10: ("mc", "ot", "am", "ct"), 11: ("mct", "oam", "act", "tca"), 12: ("mcat", "oacm", "tcoa", "all")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Items:
    """The recipes, the items of every tier, and the base materials of each item if every craft made just one."""

    book: Book
    tiers: tuple[tuple[str, ...], ...]
    materials: Mapping[str, Mapping[str, int]]


@lru_cache(maxsize=8)
def make_items(seed: int) -> Items:
    """The world of this seed."""
    dice = Dice("craft", seed, "items")
    takes: dict[str, dict[str, int]] = {}
    makes: dict[str, int] = {}
    domains = {domain: [_base(domain)] for domain in DOMAINS}
    for tier in range(1, TIERS + 1):
        for domain, tiers in domains.items():
            names = _names(domain, tier)
            for name in names:
                takes[name] = _ingredients(dice, tiers, tier)
                makes[name] = dice.between(*MAKES[tier])
            tiers.append(names)
    cross = {tier: [f"x{tier}_{letters}" for letters in CROSS.get(tier, ())] for tier in range(TIERS + 1)}
    for tier, mixes in CROSS.items():
        for name, letters in zip(cross[tier], mixes, strict=True):
            sources = [domains[letter][tier - 3] for letter in (DOMAINS if letters == "all" else letters)]
            takes[name] = {dice.pick(source): dice.between(1, 2) for source in sources}
            makes[name] = 1
    tiers = tuple(
        (*dict.fromkeys(name for domain in DOMAINS for name in domains[domain][tier]), *cross[tier])
        for tier in range(TIERS + 1)
    )
    recipes = {name: (_recipe(takes[name], makes[name]),) for name in takes}
    depths = {name: tier for tier, names in enumerate(tiers) for name in names}
    return Items(book=Book(recipes=recipes, depths=depths), tiers=tiers, materials=_materials(tiers, takes))


def _base(domain: str) -> list[str]:
    """Base materials by variant: the first variants are repeated more often, so they are drawn more often."""
    variants = [i % VARIANTS for i in range(PER_TIER)]
    return [f"{domain}{variant}_ore" if domain in "mc" else f"raw_{domain}{variant}" for variant in variants]


def _names(domain: str, tier: int) -> list[str]:
    names: dict[str, None] = {}
    for i in range(PER_TIER - tier // 3):
        name = f"{domain}{i % VARIANTS}_i{tier}" + (f"_{tier}" if tier >= 6 else "")
        names[f"{name}_{i}" if name in names else name] = None
    return list(names)


def _ingredients(dice: Dice, tiers: Sequence[Sequence[str]], tier: int) -> dict[str, int]:
    """Kinds and amounts: near tiers are likelier, and a base material drawn twice is one kind."""
    pool = [(name, below) for below in range(max(0, tier - 2), tier) for name in tiers[below]]
    if tier >= 4:
        below = dice.between(tier - 4, tier - 3)
        pool.append((dice.pick(tiers[below]), below))
    wanted = KINDS[tier] + dice.between(0, min(2, tier // 3))
    amounts: dict[str, int] = {}
    for _ in range(min(wanted, len(pool), MOST_KINDS)):
        drawn = dice.weighted(pool, [1 / (tier - below + 1) for _, below in pool])
        pool.remove(drawn)
        amounts[drawn[0]] = amounts.get(drawn[0], 0) + (dice.between(1, 2) if tier <= 4 else 1)
    return amounts


def _recipe(takes: Mapping[str, int], makes: int) -> Recipe:
    return Recipe(slots=tuple(((name,), amount) for name, amount in takes.items()), makes=makes)


def _materials(tiers: Sequence[Sequence[str]], takes: Mapping[str, Mapping[str, int]]) -> dict[str, Mapping[str, int]]:
    materials: dict[str, Mapping[str, int]] = {name: {name: 1} for name in tiers[0]}
    for names in tiers[1:]:
        for name in names:
            total: Counter[str] = Counter()
            for ingredient, amount in takes[name].items():
                for base, number in materials[ingredient].items():
                    total[base] += amount * number
            materials[name] = dict(total)
    return materials
