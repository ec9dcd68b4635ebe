"""A model in this process: see `LocalEngine`."""

from ramet.engine.local.engine import LocalEngine
from ramet.engine.local.scheduler import Stats

__all__ = ["LocalEngine", "Stats"]
