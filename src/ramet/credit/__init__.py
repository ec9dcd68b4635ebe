"""Credit: what every node of a call tree is praised or blamed for. Numbers in, numbers out.

Trees of the same task form a group. A rule compares them and says, for every node, how much better or worse it did
than could be expected (the advantage) and how loudly it is heard (the weight). A new rule is one file with one frozen
dataclass, whose fields are its knobs, and one line here.

Example:
    rule = load("rao", {"bonus": 0.4})
    credits = rule.credit(group_trees(trees))
    credits[tree.id, 3].advantage
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from importlib import import_module
from typing import Any

from ramet.config import build
from ramet.credit.records import Credit, Credits, Group, Key, Rule, Summary, group_trees
from ramet.errors import ConfigError

__all__ = ["RULES", "Credit", "Credits", "Group", "Key", "Rule", "Summary", "find", "group_trees", "load"]

RULES: dict[str, str] = {
    "rao": "ramet.credit.rao:Rao",
    "selfcest": "ramet.credit.selfcest:Selfcest",
    "broadcast": "ramet.credit.broadcast:Broadcast",
}


def find(name: str) -> type[Rule]:
    """The rule of this name; an unknown name names the nearest."""
    if name not in RULES:
        near = get_close_matches(name, RULES, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ConfigError(f"unknown credit rule {name!r}: {hint}(accepted are {', '.join(RULES)})")
    module, _, kind = RULES[name].partition(":")
    return getattr(import_module(module), kind)


def load(name: str, knobs: Mapping[str, Any] | None = None) -> Rule:
    """The rule of this name with its knobs set; an unknown knob names the nearest."""
    return build(find(name), knobs or {}, inside=f"{name}.")
