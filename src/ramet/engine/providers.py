"""Presets for servers that speak the OpenAI API: their address, the variable of their key, what they accept."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import httpx

from ramet.errors import ConfigError, did_you_mean


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """One kind of server.

    Example:
        Provider(name="vllm", base_url="http://127.0.0.1:8000/v1", keys=("VLLM_API_KEY",), owner="vllm")
    """

    name: str
    base_url: str
    keys: tuple[str, ...] = ()  # environment variables that may have its API key
    host: str = ""  # of its public address; empty: it runs anywhere
    owner: str = ""  # `owned_by` in its list of models, by which it is recognised
    native: bool | None = None  # whether it is known to speak native tool calling; None: that depends on the model
    limit: str = "max_tokens"  # its name of the limit on generated tokens
    left_out: tuple[str, ...] = ()  # parameters that it refuses or ignores
    ids: bool = False  # whether it returns token ids for messages
    key_headers: Mapping[str, str] = field(default_factory=dict[str, str])  # more headers; {key} is the API key


PROVIDERS = {
    provider.name: provider
    for provider in (
        Provider(
            name="openai",
            base_url="https://api.openai.com/v1",
            keys=("OPENAI_API_KEY",),
            host="api.openai.com",
            native=True,
            limit="max_completion_tokens",
        ),
        Provider(
            name="anthropic",
            base_url="https://api.anthropic.com/v1",
            keys=("ANTHROPIC_API_KEY",),
            host="api.anthropic.com",
            native=True,
            left_out=("seed", "top_k"),
            key_headers={"x-api-key": "{key}", "anthropic-version": "2023-06-01"},
        ),
        Provider(
            name="openrouter",
            base_url="https://openrouter.ai/api/v1",
            keys=("OPENROUTER_API_KEY",),
            host="openrouter.ai",
            native=True,
        ),
        Provider(name="vllm", base_url="http://127.0.0.1:8000/v1", keys=("VLLM_API_KEY",), owner="vllm", ids=True),
        Provider(name="sglang", base_url="http://127.0.0.1:30000/v1", keys=("SGLANG_API_KEY",), owner="sglang"),
        Provider(name="llamacpp", base_url="http://127.0.0.1:8080/v1", keys=("LLAMA_API_KEY",), owner="llamacpp"),
        Provider(name="ollama", base_url="http://127.0.0.1:11434/v1", keys=("OLLAMA_API_KEY",), owner="library"),
        Provider(
            name="litellm",
            base_url="http://127.0.0.1:4000/v1",
            keys=("LITELLM_API_KEY", "LITELLM_MASTER_KEY"),
        ),
    )
}
ANY = Provider(name="", base_url="http://127.0.0.1:8000/v1", keys=("OPENAI_API_KEY",))  # a server without a preset
Environment = Callable[[str], str | None]


def find_provider(name: str, base_url: str) -> Provider:
    """The preset of this name; without a name, the one whose public address this is, or that of any server."""
    if name:
        if name not in PROVIDERS:
            raise ConfigError(f"unknown provider {name!r}: {did_you_mean(name, PROVIDERS)}")
        return PROVIDERS[name]
    try:
        host = httpx.URL(base_url).host
    except httpx.InvalidURL:
        return ANY
    return next((one for one in PROVIDERS.values() if one.host and host == one.host), ANY)


def provider_of_owner(owner: str) -> Provider | None:
    """The preset of a server by what its list of models gives as their owner."""
    return next((one for one in PROVIDERS.values() if one.owner and one.owner == owner), None)


def key_of(provider: Provider, given: str | None, *, environment: Environment = os.environ.get) -> str | None:
    """The API key of a server: the one that was given, or the first variable of its preset that is set.

    A key goes to the server it was made for: the variable of one preset is never read for another.
    """
    found = (environment(name) for name in provider.keys)
    return given or next((key for key in found if key), None)
