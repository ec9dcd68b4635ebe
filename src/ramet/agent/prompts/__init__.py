"""System prompts. What all nodes share comes first and the goal last, so that engines can cache the prefix."""

from __future__ import annotations

from functools import cache
from importlib.resources import files


@cache
def load(name: str) -> str:
    """The text of a prompt file."""
    return files("ramet.agent.prompts").joinpath(f"{name}.txt").read_text(encoding="utf-8").strip()
