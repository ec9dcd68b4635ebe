"""Settings of the models: the one that answers, and the one that grades."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Literal

from ramet import plugins
from ramet.errors import ConfigError, did_you_mean

ENGINE_KINDS = ("http", "local", "tinker")
OF_TINKER = ("base_url", "window")  # settings of other engines that engine.kind=tinker has too
OF_OWN = ("kind", "model", "base_url", "options")  # settings that an engine of your own may get
POLICY = "policy"  # as judge.model: the model that is run or trained, at its current weights


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Which model answers: behind a server (http, tinker), in this process (local), or by an engine of your own."""

    # `load` sets local for a model on this machine, unless a server is given, and tinker for a tinker:// path
    kind: str = "http"  # http, local, tinker, or an engine of your own, file.py:Name
    provider: str = ""  # a preset: openai, anthropic, openrouter, vllm, sglang, llamacpp, ollama, litellm
    base_url: str = "http://127.0.0.1:8000/v1"  # of the provider, if that is given
    model: str = ""  # its name on the server; local: a Hugging Face folder, or smollm2
    tokenizer: str | None = None  # a folder with tokenizer.json, a .gguf file, or smollm2: exact token ids
    top_p: float = 1.0
    top_k: int = 0  # 0: no limit
    concurrency: int = 64
    tries: int = 5
    stall_s: float = 120.0
    deadline_s: float = 300.0  # longest wait for any one call of a tinker:// server, compiling included
    session_id: Literal["node", "tree"] = "node"  # what a router keeps on one replica (header X-Session-ID)
    device: str | None = None  # cpu, cuda, cuda:1, mps; None: a GPU if there is one
    dtype: Literal["bfloat16", "float16", "float32"] | None = None  # None: bfloat16 on a GPU, else float32
    max_batch: int | None = None  # requests per batch
    cache_tokens: int | None = None  # size of the key-value cache
    window: int | None = None  # longest sequence in tokens; None: the model's own limit
    options: dict[str, Any] = field(default_factory=dict[str, Any])  # of an engine of your own

    def __post_init__(self) -> None:
        self._check_kind()
        for name in ("concurrency", "tries", "stall_s", "deadline_s", "max_batch", "cache_tokens", "window"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise ConfigError(f"engine.{name} is a number above 0; got {value!r}")
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"engine.top_p is above 0 and at most 1; got {self.top_p!r}")
        if self.top_k < 0:
            raise ConfigError(f"engine.top_k is a whole number from 0 up; got {self.top_k!r}")
        self._refuse_other_kind()

    def _check_kind(self) -> None:
        known = [*ENGINE_KINDS, *plugins.entry_point_names("engine")] if self.kind not in ENGINE_KINDS else ENGINE_KINDS
        if self.kind not in known and not plugins.is_reference(self.kind):
            hint = did_you_mean(self.kind, [*known, "file.py:Name"])
            raise ConfigError(f"engine.kind is the name of an engine: {hint}; got {self.kind!r}")

    def _refuse_other_kind(self) -> None:
        """Refuse settings of the other kinds of engine, which would have no effect."""
        if self.kind not in ENGINE_KINDS:
            return self._refuse_built_in()
        if self.options:
            raise ConfigError(f"engine.options are for an engine of your own, and this is {self.kind}")
        only = {
            "http": ("provider", "base_url", "concurrency", "tries", "stall_s", "session_id"),
            "local": ("device", "dtype", "max_batch", "cache_tokens", "window"),
            "tinker": ("deadline_s",),
        }
        used = OF_TINKER if self.kind == "tinker" else ()
        for kind, names in only.items():
            for setting in fields(self):
                if kind == self.kind or setting.name not in names or setting.name in used:
                    continue
                if getattr(self, setting.name) != setting.default:
                    raise ConfigError(f"engine.{setting.name} is for engine.kind={kind}, and this is {self.kind}")
        return None

    def _refuse_built_in(self) -> None:
        own = plugins.shortened(self.kind)
        for setting in fields(self):
            if setting.name not in OF_OWN and getattr(self, setting.name) != setting.default:
                raise ConfigError(f"engine.{setting.name} has no effect on {own}, whose settings are engine.options")


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeConfig:
    """The model that grades nodes where the taskset cannot, and what it may see and cost."""

    model: str = ""  # a name on a server, a folder, smollm2, or policy: the model itself; empty: no judge
    base_url: str = ""  # its server; empty: the engine's own server or process
    criteria: str = ""  # added to the judge's instructions
    max_tokens: int = 512  # generated per reply
    tries: int = 2  # replies asked for until one can be parsed
    goal_bytes: int = 2000  # most bytes shown of the goal, and of the right answer
    text_bytes: int = 8000  # of all texts that the node was handed
    work_bytes: int = 8000  # of its turns and their results
    answer_bytes: int = 2000  # of its answer, and of its error
    tree_calls: int | None = None  # most calls for one tree, all tries included; None: no limit
    tree_tokens: int | None = None  # most tokens for one tree, prompts and replies together
    calls: int | None = None  # most calls of the whole run
    tokens: int | None = None  # most tokens of the whole run
    cache: int = 100_000  # verdicts kept by content; 0: none

    def __post_init__(self) -> None:
        for setting in fields(self):
            value = getattr(self, setting.name)
            least = 0 if setting.name == "cache" else 1
            if isinstance(value, int) and (isinstance(value, bool) or value < least):
                raise ConfigError(f"judge.{setting.name} is a whole number from {least} up; got {value!r}")
        if self.base_url and not self.model:
            raise ConfigError("judge.base_url needs judge.model: the name of the judge on that server")
        if self.base_url and self.model == POLICY:
            raise ConfigError("judge.model=policy is the model itself and has no server: leave out judge.base_url")
