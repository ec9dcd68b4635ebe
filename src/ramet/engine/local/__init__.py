"""A model in this process: see `LocalEngine`."""

from ramet.models.folders import check_packages

check_packages("", "numpy")  # one clear line rather than a traceback from deep inside

from ramet.engine.local.engine import LocalEngine  # noqa: E402
from ramet.engine.local.scheduler import Stats  # noqa: E402

__all__ = ["LocalEngine", "Stats"]
