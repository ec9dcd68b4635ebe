"""The packages that a model in this process needs. This module imports none of them."""

from __future__ import annotations

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
