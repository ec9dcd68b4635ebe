"""Credit assignment: an advantage and a weight for every node of a tree.

Trees of the same task form a group. A rule compares them and computes, for every node, how much better or worse it did
than expected (the advantage) and how much it counts in the update (the weight). Rules work on numbers, never on
tensors. A new rule is one file with one frozen dataclass, whose fields are its settings, and one line here; one of your
own needs no line: `my_rule.py:Mine`, `package.module:Name`, or an entry point (`plugins.py`).

Example:
    rule = load_rule("rao", {"bonus": 0.4})
    credits = rule.credit(group_trees(trees))
    credits[tree.id, 3].advantage
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from importlib import import_module
from typing import Any, cast

from ramet import plugins
from ramet.config import build
from ramet.credit.records import Credit, Credits, Group, Key, Summary, group_trees
from ramet.errors import ConfigError, did_you_mean
from ramet.interfaces import Rule

__all__ = [
    "RULES",
    "Credit",
    "Credits",
    "Group",
    "Key",
    "Rule",
    "Summary",
    "compute_credits",
    "group_trees",
    "load_rule",
    "rule_class",
]

RULES: dict[str, str] = {
    "rao": "ramet.credit.rao:Rao",
    "selfcest": "ramet.credit.selfcest:Selfcest",
    "broadcast": "ramet.credit.broadcast:Broadcast",
}


def load_rule(name: str, settings: Mapping[str, Any] | None = None) -> Rule:
    """The rule of this name, with its settings: `rao`, `selfcest`, `broadcast`, or one of your own.

    Example:
        load_rule("broadcast", {"normalise": True})
        load_rule("my_rule.py:Mine")
    """
    if name in RULES:
        return build(rule_class(name), settings or {}, inside="credit.")
    found: Any = rule_class(name)
    if isinstance(found, type) and is_dataclass(found):
        return plugins.check(build(found, settings or {}, inside="credit."), "rule", name)
    return plugins.make(name, "rule", **(settings or {}))


def rule_class(name: str) -> type[Rule]:
    """The class of a rule, by name; of a plug-in, what its reference names."""
    if name in RULES:
        module, _, kind = RULES[name].partition(":")
        return getattr(import_module(module), kind)
    if plugins.is_reference(name) or name in plugins.entry_point_names("rule"):
        return plugins.load(name, "rule")
    plugins.check_has_name(name, "rule")
    known = did_you_mean(name, [*RULES, *plugins.entry_point_names("rule")])
    grpo = "; GRPO is rule=broadcast credit.normalise=true" if name.lower() == "grpo" else ""
    raise ConfigError(f"unknown credit rule {name!r}: {known}{grpo}")


def compute_credits(rule: Rule, groups: Sequence[Group]) -> Credits:
    """The credit that a rule computes, after checking that it is one: a rule of your own may return anything."""
    credits = cast(object, rule.credit(groups))
    if not isinstance(credits, Credits):
        raise ConfigError(
            f"{type(rule).__name__}.credit must return make_credits(groups, ...); got {type(credits).__name__}"
        )
    return credits
