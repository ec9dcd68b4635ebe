"""The settings of a server."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field

from ramet.agent.dialects import make_dialect
from ramet.budget import Budget
from ramet.config import AUTO, TEMPERATURE
from ramet.engine.settings import EngineConfig
from ramet.errors import ConfigError

ALIAS = "ramet"  # a name under which every server knows its model


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeConfig:
    """Where a server listens, what it runs, and how much of it at once.

    Example:
        ServeConfig(engine=EngineConfig(model="my-model"), budget=Budget(tokens=4000, nodes=16), port=8100)
    """

    host: str = "127.0.0.1"  # any other address than a loopback address needs keys
    port: int = 8100  # 0: any free one
    name: str = ""  # of the model, as clients write it; empty: the last part of engine.model
    keys: str = ""  # a TOML file with API keys and their limits
    concurrency: int = 64  # trees at once
    queue: int = 256  # requests that wait for one of these places; more are refused with 429
    max_body_bytes: int = 4 * 2**20  # of one request
    body_s: float = 30.0  # time in which the body of a request must have arrived
    grace_s: float = 30.0  # after SIGTERM, running trees have this long to end
    dialect: str = "tools"  # auto: `ramet serve` asks the model's server whether it calls tools
    temperature: float = TEMPERATURE  # unless the request names one
    seed: int | None = None
    show_budget: bool = False
    allow_same_goal: bool = False
    instructions: str = ""  # added to the system prompt of every node
    delegate_instructions: str = ""  # added to that of nodes that may delegate
    engine: EngineConfig = field(default_factory=EngineConfig)
    clone: EngineConfig = field(default_factory=EngineConfig)  # of all nodes but the root; without a model: the same
    budget: Budget = field(default_factory=Budget)  # of every request; a request or a key can only lower it

    def __post_init__(self) -> None:
        for name, least in (("concurrency", 1), ("queue", 0), ("max_body_bytes", 1024), ("port", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or value < least:
                raise ConfigError(f"{name} must be an integer of at least {least}; got {value!r}")
        if self.port > 65535:
            raise ConfigError(f"port must be a number from 0 to 65535; got {self.port}")
        for name in ("body_s", "grace_s"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ConfigError(f"{name} must be a number of seconds above 0; got {getattr(self, name)!r}")
        if not 0 <= self.temperature <= 2:
            raise ConfigError(f"temperature must be a number from 0 to 2; got {self.temperature!r}")
        if self.dialect != AUTO:
            make_dialect(self.dialect, also=(AUTO,))

    @property
    def model(self) -> str:
        """The name that clients use. Of a folder it is the last part: clients need not know paths of this machine."""
        return self.name or self.engine.model.rstrip("/").rpartition("/")[2] or ALIAS


def check_address(host: str, *, has_keys: bool) -> None:
    """Raise unless the address is a loopback address or clients need a key."""
    if has_keys or is_loopback(host):
        return
    raise ConfigError(
        f"--host {host} can be reached from other machines: give --keys FILE, a TOML file like "
        '[keys.alice] key = "a long random text"'
    )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address.

    Example:
        is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("192.168.1.20")  # True, True, False
    """
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
