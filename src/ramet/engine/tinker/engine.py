"""An engine for models behind the Tinker API. Ids go in, ids and log-probs come out.

The API neither streams nor cancels: a request is its result or nothing, and the server ends it whether or not the
caller still waits. So tokens are asked for in chunks: the meter moves with every chunk, and a cancelled call has cost
at most one chunk more than the meter shows. The budget covers that chunk, because it is part of the call's cap.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from ramet.engine.tinker.calls import Calls
from ramet.engine.tinker.service import Sampled, Sampler
from ramet.errors import EngineError
from ramet.tokens.render import TokenRenderer
from ramet.types import Completion, Meter, Prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """What is sampled from, and the number that its tokens are marked with."""

    sampler: Sampler
    number: int


@dataclass(slots=True)
class _Received:
    """The tokens of one completion so far."""

    version: int
    token_ids: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    dropped: int = 0  # tokens that were generated behind a stop text

    @property
    def generated(self) -> int:
        return len(self.token_ids) + self.dropped


class TinkerEngine:
    """A published version of a model behind the Tinker API.

    `current` gives the version that new completions are sampled from; a completion keeps the one it began with.
    `window` is the longest prompt with completion, `chunk` the most tokens per request (None: all at once),
    `stop_ids` the tokens that end a turn: the API stops at none by itself. Texts in `stop` are looked for here.
    `vocabulary` is the number of ids that the model has; None: as many as its tokenizer.
    """

    def __init__(
        self,
        calls: Calls,
        current: Callable[[], Awaitable[Version]],
        *,
        renderer: TokenRenderer,
        window: int,
        chunk: int | None = 64,
        stop_ids: Sequence[int] = (),
        vocabulary: int | None = None,
        top_p: float = 1.0,
        top_k: int = 0,
    ) -> None:
        self.calls = calls
        self.renderer = renderer
        self.window = window
        self.chunk = chunk
        ends: set[int] = {*stop_ids, *([] if renderer.end_of_turn is None else [renderer.end_of_turn])}
        self.stop_ids = tuple(sorted(ends))
        self.vocabulary = renderer.tokenizer.vocab_size if vocabulary is None else vocabulary
        self.top_p, self.top_k = top_p, top_k
        self._current = current
        self._seeds = random.Random()

    async def sample(
        self,
        prompt: Prompt,
        *,
        max_tokens: int,
        stop: Sequence[str] = (),
        temperature: float = 1.0,
        seed: int | None = None,
        meter: Meter | None = None,
    ) -> Completion:
        ids = self._check_prompt(prompt, max_tokens, temperature)
        most = min(max_tokens, self.window - len(ids))
        seed = self._seeds.getrandbits(63) if seed is None else seed
        meter = meter or Meter()
        version = await self._current()
        received = _Received(version=version.number)
        meter.partial = lambda: self._completion(received, stopped=False)
        stopped = False
        while received.generated < most and not stopped:
            asked = chunk_size(most - received.generated, self.chunk)
            sampled = await self._ask(version.sampler, [*ids, *received.token_ids], asked, temperature, seed, received)
            received.token_ids += sampled.token_ids
            received.logprobs += sampled.logprobs
            stopped = self._cut(received, stop, fresh=len(sampled.token_ids)) or sampled.stopped
            meter.tokens = received.generated
        return self._completion(received, stopped=stopped)

    def _check_prompt(self, prompt: Prompt, max_tokens: int, temperature: float) -> Sequence[int]:
        """Ids that the model has, and room for an answer: servers accept anything else and answer nonsense."""
        ids = prompt.ids
        if not ids or max_tokens < 1 or not 0 <= temperature < math.inf:
            raise EngineError("a request needs token ids, max_tokens >= 1 and temperature >= 0")
        if not 0 <= min(ids) <= max(ids) < self.vocabulary:
            raise EngineError(f"the prompt has token ids outside this model's vocabulary of {self.vocabulary:,}")
        if len(ids) >= self.window:
            raise EngineError(f"a prompt of {len(ids):,} tokens does not fit the window of {self.window:,}")
        return ids

    async def _ask(
        self, sampler: Sampler, ids: list[int], asked: int, temperature: float, seed: int, received: _Received
    ) -> Sampled:
        place = received.generated
        sampled = await self.calls.run(
            "sample",
            lambda: sampler.sample(
                ids,
                max_tokens=asked,
                temperature=temperature,
                seed=chunk_seed(seed, place),
                stop_ids=self.stop_ids,
                top_p=self.top_p,
                top_k=self.top_k,
            ),
        )
        return check_sampled(sampled, asked=asked, vocabulary=self.vocabulary)

    def _cut(self, received: _Received, stop: Sequence[str], *, fresh: int) -> bool:
        """Drop what follows the first stop text. Those of one chunk were generated, so they stay paid for."""
        if not stop:
            return False
        ids, decode = received.token_ids, self.renderer.tokenizer.decode

        def has_stop(number: int) -> bool:
            text = decode(ids[:number])
            return any(mark in text for mark in stop)

        if not has_stop(len(ids)):
            return False
        end = next(number for number in range(len(ids) - fresh + 1, len(ids) + 1) if has_stop(number))
        received.dropped += len(ids) - end
        del ids[end:], received.logprobs[end:]
        return True

    def _completion(self, received: _Received, *, stopped: bool) -> Completion:
        return Completion(
            text=self.renderer.decode(received.token_ids),
            token_ids=tuple(received.token_ids),
            logprobs=tuple(received.logprobs),
            num_tokens=received.generated,
            finish="stop" if stopped else "length",
            policy_version=received.version,
        )


def chunk_size(left: int, chunk: int | None) -> int:
    """How many tokens the next request asks for: a chunk, or the largest power of two that fits.

    Some servers compile every size they are asked for, so there are few of them.

    Example:
        With chunks of 32, 100 tokens are asked for as 32, 32, 32 and 4.
    """
    if chunk is None:
        return left
    return chunk if left >= chunk else 1 << (left.bit_length() - 1)


def chunk_seed(seed: int, place: int) -> int:
    """The seed of the request for the tokens from `place` on. The same one twice would draw the same numbers."""
    digest = hashlib.blake2b(f"{seed}/{place}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") >> 1


def check_sampled(sampled: Sampled, *, asked: int, vocabulary: int) -> Sampled:
    """What the server sent, if it keeps to the contract."""
    if not 0 < len(sampled.token_ids) <= asked:
        raise EngineError(f"the server sent {len(sampled.token_ids)} tokens where 1 to {asked} were asked for")
    if len(sampled.logprobs) != len(sampled.token_ids):
        raise EngineError(
            f"the server sent {len(sampled.token_ids)} tokens and {len(sampled.logprobs)} log-probs for them"
        )
    if not all(map(math.isfinite, sampled.logprobs)):
        raise EngineError("the server sent log-probs that are not finite numbers")
    if not 0 <= min(sampled.token_ids) <= max(sampled.token_ids) < vocabulary:
        raise EngineError(f"the server sent token ids outside the vocabulary of {vocabulary:,}")
    if not sampled.stopped and len(sampled.token_ids) < asked:
        raise EngineError(f"the server sent {len(sampled.token_ids)} of {asked} tokens and no reason")
    return sampled
