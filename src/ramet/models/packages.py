"""The packages that a model in this process needs. This module imports none of them."""

from __future__ import annotations

import warnings
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module

from ramet.errors import ConfigError

NEEDED = ("torch", "transformers", "safetensors")


def check_packages(*more: str, extra: str = "train") -> None:
    """Import the packages a local model needs; raise `ConfigError` with the pip command when one is missing."""
    try:
        for name in (*NEEDED, *more):
            import_module(name)
    except ImportError as error:
        raise ConfigError(f"a model in this process needs {error.name}: pip install 'ramet[{extra}]'") from None


@contextmanager
def quiet_transformers() -> Generator[None]:
    """Suppress progress bars, logs and warnings of transformers inside the block."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
