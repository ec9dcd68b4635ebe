"""Mistakes that small models make when they craft, for demonstrations of how to mend them.

Most are confusions of counts ("2 crafts of 2" where one craft makes two), forgotten ingredients, wrong names, clones
that are asked for base materials or for the whole goal, and the same wrong call once more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ramet.interfaces import Do
from ramet.tasks.craft.plan import Sums, Ways, craft_call, craft_line
from ramet.tasks.dice import Dice

Kind = Literal["own goal", "base", "few", "misname", "keep", "times", "once", "amount", "skip"]
REPEATS = (0, 1, 2)  # how often wrong crafts are tried again unchanged
MOST_REPEATS = max(REPEATS)  # a clone that tried again so often reports what is missing
CLAIM = 0.2  # how often a clone whose crafts failed answers that they succeeded
WASTE = 0.5  # how often too many crafts are a valid call, which uses up too much


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistake:
    """What a node does wrong, how often it repeats a wrong craft, and whether it then hides the failure.

    own goal    asks a clone for the node's whole goal
    base        asks a clone for a base material
    few         asks a clone for one item less than needed, or for none
    misname     asks a clone for an item that does not exist
    keep        crafts an ingredient that needs clones itself, without its own ingredients
    times       takes the number of items for the number of crafts
    once        crafts once where several crafts are needed
    amount      gives a wrong amount of one ingredient
    skip        leaves out the craft of an ingredient
    """

    kind: Kind
    repeats: int = 0
    claims: bool = False


def draw_mistake(dice: Dice, kinds: Sequence[Kind], *, depth: int) -> Mistake:
    """One of the mistakes that are possible for a node. Roots mend theirs; clones may also fail."""
    kind, repeats, claims = dice.pick(kinds), dice.pick(REPEATS), dice.chance(CLAIM)
    if depth == 0:
        return Mistake(kind=kind, repeats=min(repeats, MOST_REPEATS - 1))
    return Mistake(kind=kind, repeats=repeats, claims=claims)


def possible_kinds(ways: Ways, own: Sums, *, delegate: bool, parts: Mapping[str, int]) -> list[Kind]:
    """The mistakes that a node can make which delegates `parts` and crafts `own`."""
    possible: dict[Kind, bool] = {
        "own goal": delegate,
        "base": delegate and bool(_base(ways, own)),
        "few": bool(parts),
        "misname": bool(parts),
        "keep": bool(parts),
        "times": bool(_many_made(ways, own)),
        "once": bool(_many_crafted(own)),
        "amount": True,
        "skip": len(own.crafts) > 1,
    }
    return [kind for kind, is_possible in possible.items() if is_possible]


def base_goal(ways: Ways, own: Sums, dice: Dice) -> dict[str, int]:
    """A base material that the crafts need, as if a clone could make it."""
    base = dice.pick(_base(ways, own))
    return {base: own.needs[base]}


def misname(item: str, items: Mapping[str, object], dice: Dice) -> str:
    """A name like that of an item, which no item has: for a3_i2_10 for example a3_2_10 or a3_i2."""
    names = (item.replace("_i", "_", 1), item.rpartition("_")[0], f"{item}_0", f"{item}_00")
    return dice.pick([name for name in names if name and name not in items])


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrong:
    """A wrong craft in place of the right one: its call, None if it is left out, and its line in the thought."""

    call: Do | None
    line: str = ""


def wrong_craft(kind: Kind, ways: Ways, own: Sums, dice: Dice) -> tuple[str, Wrong] | None:
    """The item that is crafted in a wrong way, and how; None if the mistake is not one of crafting."""
    match kind:
        case "times":
            item = dice.pick(_many_made(ways, own))
            return item, _too_often(ways, item, own.needs[item], valid=dice.chance(WASTE))
        case "once":
            item = dice.pick(_many_crafted(own))
            line = craft_line(ways, item, own.needs[item], times=1)
            return item, Wrong(call=craft_call(ways, item, 1), line=line)
        case "amount":
            item = dice.pick(list(own.crafts))
            return item, _wrong_amount(ways, item, own, dice)
        case "skip":
            return dice.pick(list(own.crafts)[:-1]), Wrong(call=None)
        case _:
            return None


def _too_often(ways: Ways, item: str, need: int, *, valid: bool) -> Wrong:
    """As many crafts as items: with the count of all that they make, a valid call; with the number needed, an error."""
    call, line = craft_call(ways, item, need), craft_line(ways, item, need, times=need)
    return Wrong(call=call if valid else _changed(call, count=need), line=line)


def _wrong_amount(ways: Ways, item: str, own: Sums, dice: Dice) -> Wrong:
    """One ingredient doubled, or as for a single craft."""
    call = craft_call(ways, item, own.crafts[item])
    takes = dict(call.arguments["ingredients"])
    ingredient = dice.pick(list(takes))
    each = ways[item].takes[ingredient]
    takes[ingredient] = each if takes[ingredient] > each and dice.chance(0.5) else 2 * takes[ingredient]
    return Wrong(call=_changed(call, ingredients=takes), line=craft_line(ways, item, own.needs[item]))


def _changed(call: Do, **arguments: object) -> Do:
    return Do(name=call.name, arguments={**call.arguments, **arguments})


def _base(ways: Ways, own: Sums) -> list[str]:
    """The base materials of the crafts, in the order of the recipes."""
    return list(dict.fromkeys(one for item in own.crafts for one in ways[item].takes if one not in ways))


def _many_made(ways: Ways, own: Sums) -> list[str]:
    """Items of which one craft makes several, and several are needed."""
    return [item for item, times in own.crafts.items() if ways[item].makes > 1 and own.needs[item] > times]


def _many_crafted(own: Sums) -> list[str]:
    return [item for item, times in own.crafts.items() if times > 1]
