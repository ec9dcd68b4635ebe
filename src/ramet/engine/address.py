"""The address of a server, the headers that carry its key, and the models it lists."""

from __future__ import annotations

from collections.abc import Sequence

import httpx

from ramet.engine.providers import Provider
from ramet.errors import ConfigError

NAMES_SHOWN = 20  # of the models that a server offers, in an error


def check_base_url(base_url: str) -> str:
    """The URL without a trailing slash; `/v1` is added when it has no path."""
    try:
        url = httpx.URL(base_url)
    except httpx.InvalidURL as error:
        raise ConfigError(f"base_url {base_url!r} is not a URL: {error}") from None
    if url.userinfo:
        raise ConfigError("base_url contains a password: give it as the API key, which is never stored")
    if url.scheme not in ("http", "https") or not url.host:
        raise ConfigError(f"base_url must be a URL like http://127.0.0.1:8000/v1; got {base_url!r}")
    if url.query:
        raise ConfigError("base_url has a query (?...): leave it out; an API key is given as such, and never stored")
    return str(url).rstrip("/") + ("/v1" if url.path in ("", "/") else "")


def key_headers(provider: Provider, key: str | None) -> dict[str, str]:
    if key is None:
        return {}
    more = {name: value.replace("{key}", key) for name, value in provider.key_headers.items()}
    return {"Authorization": f"Bearer {key}", **more}


def unknown_model(base_url: str, model: str, offered: Sequence[str]) -> str:
    return f"{base_url} has no model {model!r}; it serves {shorten(offered) or 'none'}"


def shorten(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return ", ".join(names[:NAMES_SHOWN]) + more
