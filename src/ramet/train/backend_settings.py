"""The settings under `backend`: where the weights of a training run are."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Literal

from ramet.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendConfig:
    """Weights in this process, or on a server of the Tinker API. Its API key is in the environment: TINKER_API_KEY."""

    kind: Literal["local", "tinker"] = "local"
    base_url: str = ""  # tinker: address of the server, like http://127.0.0.1:8123
    base_model: str = ""  # tinker: name of the model on the server; default: `model`
    rank: int = 32  # tinker: rank of the LoRA adapter
    chunk: int = 64  # tinker: most tokens per sampling request; 0: all at once
    deadline_s: float = 300.0  # tinker: longest wait for any one call
    reduction: Literal["auto", "sum", "row_mean"] = "auto"  # tinker: how the server reduces losses; auto: find out
    merge: bool = True  # tinker: checkpoints hold the whole model; false: only the adapter

    def __post_init__(self) -> None:
        if self.kind == "local":
            self._refuse_without_server()
        elif not self.base_url:
            raise ConfigError("backend.kind=tinker needs backend.base_url, like http://127.0.0.1:8123")
        for name, least in (("rank", 1), ("chunk", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"backend.{name} is a whole number from {least} up; got {getattr(self, name)!r}")
        if not 0 < self.deadline_s < math.inf:
            raise ConfigError(f"backend.deadline_s is a number above 0; got {self.deadline_s!r}")

    def _refuse_without_server(self) -> None:
        for setting in fields(self):
            if getattr(self, setting.name) != setting.default:
                raise ConfigError(f"backend.{setting.name} is for backend.kind=tinker, and this is local")
