"""The local engine: a model in this process."""

from ramet.models.packages import check_packages

check_packages("numpy")  # a one-line error instead of a traceback

from ramet.engine.local.engine import LocalEngine  # noqa: E402
from ramet.engine.local.scheduler import Stats  # noqa: E402

__all__ = ["LocalEngine", "Stats"]
