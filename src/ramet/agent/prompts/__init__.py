"""The words a node reads. Prefix-stable: what all nodes share comes first, the goal last."""

from __future__ import annotations

from functools import cache
from importlib.resources import files


@cache
def load(name: str) -> str:
    """The text of one prompt file."""
    return files("ramet.agent.prompts").joinpath(f"{name}.txt").read_text(encoding="utf-8").strip()
