"""The engines that are compared, each behind the same three verbs: prepare, run, close.

All sample at temperature 1 from the whole vocabulary, never stop before a call's own length, and hold the same number
of tokens in their caches.
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

PAGE = 16  # tokens in a page of transformers' cache: small, so that short prefixes can be shared
FLASH_PAGE = 256  # the smallest that its flash attention takes
STEP_TOKENS = 8192  # its own default for one step; left alone it takes what memory is left


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What every engine is given.

    `cache_tokens` is the room in its cache, `longest` the prompt and completion of the longest call, `batch` the
    sequences in a padded batch, `threads` how many it computes with on a CPU (None: as many as it likes).
    """

    folder: Path  # a Hugging Face model
    device: str
    dtype: str
    cache_tokens: int
    longest: int
    batch: int
    threads: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What an engine did for one call. `logprobs` is None when they were not asked for and not given."""

    prompt_tokens: int
    token_ids: Sequence[int]
    logprobs: Sequence[float] | None = None


class Peer(Protocol):
    """One engine with its model loaded."""

    @property
    def facts(self) -> dict[str, Any]: ...

    def prepare(self, *, logprobs: bool) -> None:
        """Whatever has to be built before calls with or without log-probs can be timed."""
        ...

    def run(self, workload: Workload, *, logprobs: bool) -> list[Done]:
        """Every call of the workload, in its order."""
        ...

    def close(self) -> None: ...


class RametPeer:
    """This package's engine, asked the way a tree asks it: a task per call."""

    def __init__(self, setting: Setting) -> None:
        from ramet.engine.local import LocalEngine

        self.engine = LocalEngine(_load(setting), cache_tokens=setting.cache_tokens)
        self.facts: dict[str, Any] = {"version": ramet.__version__}

    def prepare(self, *, logprobs: bool) -> None:
        """Nothing: log-probs always come with the tokens."""

    def run(self, workload: Workload, *, logprobs: bool) -> list[Done]:
        del logprobs
        before = dataclasses.asdict(self.engine.stats)
        try:
            done = anyio.run(self._run, workload)
        except ExceptionGroup as group:  # all calls fail when the engine does, for one reason
            raise group.exceptions[0] from None
        after = dataclasses.asdict(self.engine.stats)
        self.facts["counted"] = {name: after[name] - before[name] for name in after}
        return done

    async def _run(self, workload: Workload) -> list[Done]:
        progress = Progress(workload)
        done: dict[int, Done] = {}

        async def call(index: int) -> None:
            ids = progress.prompt(index)
            said = await self.engine.sample(
                Prompt(messages=(), ids=ids), max_tokens=workload.calls[index].new_tokens, stop_tokens=()
            )
            done[index] = Done(prompt_tokens=said.prompt_tokens or 0, token_ids=said.token_ids, logprobs=said.logprobs)
            for ready in progress.end(index, said.token_ids):
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
        """Nothing: every batch starts anew."""

    def run(self, workload: Workload, *, logprobs: bool) -> list[Done]:
        def batch(prompts: list[list[int]], calls: list[Call]) -> list[Done]:
            return self._batch(prompts, [call.new_tokens for call in calls], logprobs=logprobs)

        return in_waves(workload, batch, limit=self.batch)

    def _batch(self, prompts: list[list[int]], lengths: list[int], *, logprobs: bool) -> list[Done]:
        """As many steps as the longest needs. What the others say beyond their own length is thrown away."""
        import torch

        width = max(map(len, prompts))
        ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts], device=self.model.device)
        seen = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=self.model.device)
        kept = _KeptLogProbs()
        text = self.model.generate(  # pyright: ignore[reportCallIssue] (it is a mixin's method)
            ids, attention_mask=seen, max_new_tokens=max(lengths), logits_processor=[kept] if logprobs else []
        )
        said = text[:, width:].tolist()
        chances: list[Any] = kept.of(text).tolist() if logprobs else [None] * len(prompts)
        return [
            Done(prompt_tokens=len(p), token_ids=row[:length], logprobs=None if chance is None else chance[:length])
            for p, row, chance, length in zip(prompts, said, chances, lengths, strict=True)
        ]

    def close(self) -> None:
        del self.model


class _KeptLogProbs:
    """Sits among the logits processors and keeps one number a token.

    The way `generate` itself offers keeps the logits of the whole vocabulary for every step, and is slower.
    """

    def __init__(self) -> None:
        self.columns: list[Tensor] = []
        self.last: Tensor | None = None

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        self._keep(ids)
        self.last = scores.float().log_softmax(-1)
        return scores

    def _keep(self, ids: Tensor) -> None:
        if self.last is not None:
            self.columns.append(self.last.gather(1, ids[:, -1:]))

    def of(self, ids: Tensor) -> Tensor:
        import torch

        self._keep(ids)
        return torch.cat(self.columns, dim=1)


class ContinuousPeer:
    """transformers' continuous batching, with its prefix sharing; calls are handed over as soon as they may start."""

    def __init__(self, setting: Setting) -> None:
        self.model, self.setting = _load(setting), setting
        self.session: Any = None
        self.logprobs: bool | None = None
        self.facts: dict[str, Any] = _transformers_facts(self.model)

    def prepare(self, *, logprobs: bool) -> None:
        """A session has log-probs or has not."""
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
        self.run(flat(batch=2, prompt=PAGE, new=2), logprobs=logprobs)  # its cache is made with the first request

    def run(self, workload: Workload, *, logprobs: bool) -> list[Done]:
        progress = Progress(workload)
        done: dict[int, Done] = {}
        ready = progress.start()
        while not progress.done:
            for index in ready:
                self._ask(index, progress.prompt(index), workload.calls[index])
            result = self._result()
            index = int(result.request_id)
            done[index] = Done(
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
                raise EngineError("continuous batching ended by itself")

    def close(self) -> None:
        if self.session is not None:
            self.session.stop(block=True)
            self.session = None


def in_waves(
    workload: Workload, batch: Callable[[list[list[int]], list[Call]], list[Done]], *, limit: int
) -> list[Done]:
    """Run everything that waits for nothing, then everything that waited for that, and so on, in batches of `limit`."""
    progress = Progress(workload)
    done: dict[int, Done] = {}
    ready = progress.start()
    while ready:
        following: list[int] = []
        for group in _of_a_length(ready, workload, limit):
            prompts, calls = [progress.prompt(i) for i in group], [workload.calls[i] for i in group]
            for index, one in zip(group, batch(prompts, calls), strict=True):
                done[index] = one
                following += progress.end(index, one.token_ids)
        ready = following
    return [done[index] for index in range(len(workload.calls))]


def _of_a_length(ready: list[int], workload: Workload, limit: int) -> Iterator[list[int]]:
    """Batches of calls that end at about the same time."""
    ready = sorted(ready, key=lambda index: workload.calls[index].new_tokens)
    return (ready[start : start + limit] for start in range(0, len(ready), limit))


def _load(setting: Setting) -> PreTrainedModel:
    from ramet.models.folders import load_model

    return load_model(setting.folder, device=setting.device, dtype=setting.dtype)


def _sampling(*, eos: int | None) -> Any:
    """Plain sampling from the whole vocabulary, without an end."""
    from transformers import GenerationConfig

    return GenerationConfig(do_sample=True, temperature=1.0, top_k=0, top_p=1.0, eos_token_id=eos, pad_token_id=0)


def _continuous_config(cache_tokens: int, page: int, *, logprobs: bool) -> Any:
    """Settings of continuous batching, under the names that this version of transformers has for them."""
    from transformers import ContinuousBatchingConfig

    names = {field.name for field in dataclasses.fields(ContinuousBatchingConfig)}
    wanted: dict[str, Any] = {
        "page_size" if "page_size" in names else "block_size": page,
        "num_blocks": -(-cache_tokens // page) + 8,
        "max_batch_tokens": min(STEP_TOKENS, cache_tokens),
        "return_logprobs": logprobs,
        "auto_switch_to_flash": False,  # the size of a page has been chosen for the attention there is
    }
    return ContinuousBatchingConfig(**{name: value for name, value in wanted.items() if name in names})


def _transformers_facts(model: Any) -> dict[str, Any]:
    return {"version": version("transformers"), "attention": model.config._attn_implementation}
