"""The engines that are compared, behind one interface: prepare, run, close.

All sample at temperature 1 from the whole vocabulary, never stop before the length of a call, and have caches of the
same size.
"""

# pyright: standard

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import anyio

import ramet
from ramet.bench.workload import Call, Progress, Workload, flat
from ramet.errors import EngineError
from ramet.types import Prompt

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

PAGE = 16  # tokens per page of transformers' cache; small, to share short prefixes
FLASH_PAGE = 256  # the smallest page for its flash attention
STEP_TOKENS = 8192  # per step; unset, it depends on the free memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The settings of every engine.

    `cache_tokens` is the size of its cache, `longest` the prompt and completion of the longest call, `batch` the
    sequences in a padded batch, `threads` the number of CPU threads (None: its default).
    """

    folder: Path  # a Hugging Face model
    device: str
    dtype: str
    cache_tokens: int
    longest: int
    batch: int
    threads: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CallResult:
    """The result of one call. `logprobs` is None when they were not requested and not returned."""

    prompt_tokens: int
    token_ids: Sequence[int]
    logprobs: Sequence[float] | None = None


class Peer(Protocol):
    """One engine with its model loaded."""

    @property
    def facts(self) -> dict[str, Any]: ...

    def prepare(self, *, logprobs: bool) -> None:
        """Build what calls with or without log-probs need; not timed."""
        ...

    def run(self, workload: Workload, *, logprobs: bool) -> list[CallResult]:
        """Run the workload; returns the results in the order of its calls."""
        ...

    def close(self) -> None: ...


class RametPeer:
    """The local engine of this package, used as a tree uses it: one task per call."""

    def __init__(self, setting: Setting) -> None:
        from ramet.engine.local import LocalEngine

        self.engine = LocalEngine(_load(setting), cache_tokens=setting.cache_tokens)
        self.facts: dict[str, Any] = {"version": ramet.__version__}

    def prepare(self, *, logprobs: bool) -> None:
        """Nothing: log-probs are always returned."""

    def run(self, workload: Workload, *, logprobs: bool) -> list[CallResult]:
        del logprobs
        before = dataclasses.asdict(self.engine.stats)
        try:
            done = anyio.run(self._run, workload)
        except ExceptionGroup as group:  # when the engine fails, all calls fail for the same reason
            raise group.exceptions[0] from None
        after = dataclasses.asdict(self.engine.stats)
        self.facts["counted"] = {name: after[name] - before[name] for name in after}
        return done

    async def _run(self, workload: Workload) -> list[CallResult]:
        progress = Progress(workload)
        done: dict[int, CallResult] = {}

        async def call(index: int) -> None:
            ids = progress.prompt(index)
            completion = await self.engine.sample(
                Prompt(messages=(), ids=ids), max_tokens=workload.calls[index].new_tokens, stop_tokens=()
            )
            done[index] = CallResult(
                prompt_tokens=completion.prompt_tokens or 0,
                token_ids=completion.token_ids,
                logprobs=completion.logprobs,
            )
            for ready in progress.end(index, completion.token_ids):
                nursery.start_soon(call, ready)

        async with anyio.create_task_group() as nursery:
            for index in progress.start():
                nursery.start_soon(call, index)
        return [done[index] for index in range(len(workload.calls))]

    def close(self) -> None:
        self.engine.close()


class GeneratePeer:
    """`transformers.generate`: left-padded batches. Calls that wait for others run in waves."""

    def __init__(self, setting: Setting) -> None:
        self.model, self.batch = _load(setting), setting.batch
        self.model.generation_config = _sampling(eos=None)
        self.facts: dict[str, Any] = _transformers_facts(self.model)

    def prepare(self, *, logprobs: bool) -> None:
        """Nothing: batches are independent."""

    def run(self, workload: Workload, *, logprobs: bool) -> list[CallResult]:
        def batch(prompts: list[list[int]], calls: list[Call]) -> list[CallResult]:
            return self._batch(prompts, [call.new_tokens for call in calls], logprobs=logprobs)

        return in_waves(workload, batch, limit=self.batch)

    def _batch(self, prompts: list[list[int]], lengths: list[int], *, logprobs: bool) -> list[CallResult]:
        """Run as many steps as the longest call needs; tokens beyond the length of a call are dropped."""
        import torch

        width = max(map(len, prompts))
        ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts], device=self.model.device)
        seen = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=self.model.device)
        recorder = _LogProbRecorder()
        text = self.model.generate(  # pyright: ignore[reportCallIssue] (it is a mixin's method)
            ids, attention_mask=seen, max_new_tokens=max(lengths), logits_processor=[recorder] if logprobs else []
        )
        sampled = text[:, width:].tolist()
        logprob_rows: list[Any] = recorder.logprobs(text).tolist() if logprobs else [None] * len(prompts)
        return [
            CallResult(
                prompt_tokens=len(p), token_ids=row[:length], logprobs=None if values is None else values[:length]
            )
            for p, row, values, length in zip(prompts, sampled, logprob_rows, lengths, strict=True)
        ]

    def close(self) -> None:
        del self.model


class _LogProbRecorder:
    """A logits processor that records the log-prob of each sampled token.

    The option of `generate` itself keeps the logits of the whole vocabulary for every step, and is slower.
    """

    def __init__(self) -> None:
        self.columns: list[Tensor] = []
        self.last: Tensor | None = None

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        self._record(ids)
        self.last = scores.float().log_softmax(-1)
        return scores

    def _record(self, ids: Tensor) -> None:
        if self.last is not None:
            self.columns.append(self.last.gather(1, ids[:, -1:]))

    def logprobs(self, ids: Tensor) -> Tensor:
        import torch

        self._record(ids)
        return torch.cat(self.columns, dim=1)


class ContinuousPeer:
    """Continuous batching of transformers, with prefix sharing. Calls are submitted as soon as they can start."""

    def __init__(self, setting: Setting) -> None:
        self.model, self.setting = _load(setting), setting
        self.session: Any = None
        self.logprobs: bool | None = None
        self.facts: dict[str, Any] = _transformers_facts(self.model)

    def prepare(self, *, logprobs: bool) -> None:
        """Start a session: log-probs are a setting of the session."""
        if self.session is not None and self.logprobs == logprobs:
            return
        self.close()
        flash = self.model.device.type == "cuda" and find_spec("flash_attn") is not None
        if flash:
            self.model.set_attn_implementation("flash_attention_2")
        config = _continuous_config(self.setting.cache_tokens, FLASH_PAGE if flash else PAGE, logprobs=logprobs)
        self.session = self.model.init_continuous_batching(_sampling(eos=-1), config)  # pyright: ignore[reportCallIssue]
        self.facts["attention"] = self.model.config._attn_implementation
        self.logprobs = logprobs
        if hasattr(self.session, "warmup"):
            self.session.warmup()
        self.session.start()
        self.run(flat(batch=2, prompt=PAGE, new=2), logprobs=logprobs)  # the cache is allocated at the first request

    def run(self, workload: Workload, *, logprobs: bool) -> list[CallResult]:
        progress = Progress(workload)
        done: dict[int, CallResult] = {}
        ready = progress.start()
        while not progress.done:
            for index in ready:
                self._ask(index, progress.prompt(index), workload.calls[index])
            result = self._result()
            index = int(result.request_id)
            done[index] = CallResult(
                prompt_tokens=len(result.prompt_ids),
                token_ids=result.generated_tokens,
                logprobs=result.logprobs if logprobs else None,
            )
            ready = progress.end(index, result.generated_tokens)
        return [done[index] for index in range(len(workload.calls))]

    def _ask(self, index: int, prompt: list[int], call: Call) -> None:
        self.session.add_request(prompt, request_id=str(index), max_new_tokens=call.new_tokens, eos_token_id=-1)

    def _result(self) -> Any:
        while True:
            result = self.session.get_result(timeout=1)
            if result is not None and result.error:
                raise EngineError(f"continuous batching: {result.error}")
            if result is not None and result.is_finished():
                return result
            if result is None and not self.session.is_running():
                raise EngineError("continuous batching stopped unexpectedly")

    def close(self) -> None:
        if self.session is not None:
            self.session.stop(block=True)
            self.session = None


def in_waves(
    workload: Workload, batch: Callable[[list[list[int]], list[Call]], list[CallResult]], *, limit: int
) -> list[CallResult]:
    """Run the calls that wait for nothing, then those that waited for them, and so on, in batches of `limit`."""
    progress = Progress(workload)
    done: dict[int, CallResult] = {}
    ready = progress.start()
    while ready:
        following: list[int] = []
        for group in _by_length(ready, workload, limit):
            prompts, calls = [progress.prompt(i) for i in group], [workload.calls[i] for i in group]
            for index, result in zip(group, batch(prompts, calls), strict=True):
                done[index] = result
                following += progress.end(index, result.token_ids)
        ready = following
    return [done[index] for index in range(len(workload.calls))]


def _by_length(ready: list[int], workload: Workload, limit: int) -> Iterator[list[int]]:
    """Batches of calls of similar length."""
    ready = sorted(ready, key=lambda index: workload.calls[index].new_tokens)
    return (ready[start : start + limit] for start in range(0, len(ready), limit))


def _load(setting: Setting) -> PreTrainedModel:
    from ramet.models.folders import load_model

    return load_model(setting.folder, device=setting.device, dtype=setting.dtype)


def _sampling(*, eos: int | None) -> Any:
    """Sampling from the whole vocabulary, without stopping."""
    from transformers import GenerationConfig

    return GenerationConfig(do_sample=True, temperature=1.0, top_k=0, top_p=1.0, eos_token_id=eos, pad_token_id=0)


def _continuous_config(cache_tokens: int, page: int, *, logprobs: bool) -> Any:
    """Settings of continuous batching, under the names of the installed version of transformers."""
    from transformers import ContinuousBatchingConfig

    names = {field.name for field in dataclasses.fields(ContinuousBatchingConfig)}
    wanted: dict[str, Any] = {
        "page_size" if "page_size" in names else "block_size": page,
        "num_blocks": -(-cache_tokens // page) + 8,
        "max_batch_tokens": min(STEP_TOKENS, cache_tokens),
        "return_logprobs": logprobs,
        "auto_switch_to_flash": False,  # the page size matches the chosen attention
    }
    return ContinuousBatchingConfig(**{name: value for name, value in wanted.items() if name in names})


def _transformers_facts(model: Any) -> dict[str, Any]:
    return {"version": version("transformers"), "attention": model.config._attn_implementation}
