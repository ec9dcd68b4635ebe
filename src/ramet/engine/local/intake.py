# pyright: standard
"""From a prompt to a request, and from a request to its completion."""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence

import numpy as np

from ramet.engine.local.request import Request, Sampling
from ramet.engine.local.setup import check_nucleus
from ramet.errors import EngineError
from ramet.types import Completion, Meter, Prompt


class Intake:
    """Checks prompts against the model, and fills in how it is sampled by default."""

    def __init__(self, *, window: int, vocabulary: int, top_p: float, top_k: int, stop_tokens: frozenset[int]) -> None:
        self.window = window
        self.top_p, self.top_k = check_nucleus(top_p, top_k)
        self.stop_tokens = stop_tokens  # that end a turn of this model
        self._vocabulary = vocabulary
        self._seeds = random.Random()

    def request(
        self,
        prompt: Prompt,
        *,
        max_tokens: int,
        stop: Sequence[str],
        temperature: float,
        seed: int | None,
        meter: Meter | None,
        top_p: float | None = None,
        top_k: int | None = None,
        stop_tokens: Sequence[int] | None = None,
    ) -> Request:
        """What is None has the engine's own value; a seed is drawn."""
        ids = self._check_prompt(prompt, max_tokens, temperature)
        top_p, top_k = check_nucleus(self.top_p if top_p is None else top_p, self.top_k if top_k is None else top_k)
        sampling = Sampling(
            max_tokens=min(max_tokens, self.window - len(ids)),
            temperature=temperature,
            top_p=top_p,
            top_k=min(top_k, self._vocabulary),  # kernels find no higher rank
            seed=self._seeds.getrandbits(63) if seed is None else seed,
            stop=tuple(stop),
            stop_tokens=self.stop_tokens if stop_tokens is None else frozenset(stop_tokens),
        )
        return Request(ids=ids, sampling=sampling, node_id=prompt.node_id, meter=meter or Meter())

    def _check_prompt(self, prompt: Prompt, max_tokens: int, temperature: float) -> list[int]:
        if prompt.ids is None:
            raise EngineError("a local engine needs token ids: pass the model's tokenizer as renderer=")
        if not prompt.ids or max_tokens < 1 or not 0 <= temperature < float("inf"):
            raise EngineError("a request needs a non-empty prompt, max_tokens >= 1 and temperature >= 0")
        if len(prompt.ids) >= self.window:
            raise EngineError(f"a prompt of {len(prompt.ids):,} tokens does not fit the window of {self.window:,}")
        ids, least, largest = _listed(prompt.ids)
        if not 0 <= least <= largest < self._vocabulary:
            raise EngineError(f"the prompt has token ids outside this model's vocabulary of {self._vocabulary:,}")
        return ids


def _listed(ids: Sequence[int]) -> tuple[list[int], int, int]:
    """The ids, the least and the largest of them. Other processes send arrays, which numpy reads much faster."""
    if isinstance(ids, array):
        numbers = np.frombuffer(ids, dtype=ids.typecode)
        return numbers.tolist(), int(numbers.min()), int(numbers.max())
    return list(ids), min(ids), max(ids)


def completion(request: Request, num_tokens: int) -> Completion:
    """The first tokens that were sampled, without their text: all of them, unless the request is cancelled."""
    ids = tuple(request.sampled[:num_tokens])
    return Completion(
        text="",
        token_ids=ids,
        logprobs=tuple(request.logprobs[:num_tokens]),
        num_tokens=len(ids),
        finish=request.finish or "length",
        prompt_tokens=request.prompt_tokens,
        cached_tokens=request.cached_tokens,
        policy_version=request.version,
    )
