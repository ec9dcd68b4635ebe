"""A model that is a Python function: the fake that ships. Tests, documentation and the first demo run on it.

It takes virtual seconds, counts what it really generated, and can fail on purpose.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass

import anyio
import anyio.lowlevel

from ramet.errors import EngineError, EngineInterrupted
from ramet.tokens.render import TextRenderer, Tokenizer, TokenRenderer
from ramet.types import Completion, Meter, Prompt

SLICES = 8  # in how many steps the tokens of a slow reply appear
WORD = re.compile(r"<\|\w+\|>|\s?\w+|\s?[^\w\s]+|\s+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What a script answers when plain text is not enough.

    `seconds` pass before it is complete; its tokens appear evenly over that time. With `fault` it breaks off then.
    """

    text: str
    seconds: float = 0.0
    fault: str | None = None


Script = Callable[[Prompt], str | Reply]


class WordTokenizer:
    """One id per word, given out as words appear. Joins back exactly."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self._ids: dict[str, int] = {}

    def encode(self, text: str, *, control: bool = False) -> list[int]:
        ids: list[int] = []
        for word in WORD.findall(text):
            if not control and word.startswith("<|"):
                ids += [self._id(word[:1]), self._id(word[1:])]  # a control token in somebody's text is just text
            else:
                ids.append(self._id(word))
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self.words[i] for i in ids)

    def is_control(self, token: int) -> bool:
        return self.words[token].startswith("<|")

    def _id(self, word: str) -> int:
        found = self._ids.get(word)
        if found is None:
            found = self._ids[word] = len(self.words)
            self.words.append(word)
        return found


class ScriptedEngine:
    """Answers with `script(prompt)`.

    Example:
        ScriptedEngine(lambda prompt: "Answer: 42")

    `slots` bounds concurrent calls. `token_ids=False` makes it a text-only server. With the `renderer` of a model it
    speaks that model's tokens, and ends its turns as that model does: what it shows can be learnt. `generated` is the
    truth that tests compare reports with; `running` returns to 0 when every call has ended.
    """

    def __init__(
        self, script: Script, *, slots: int | None = None, token_ids: bool = True, renderer: TokenRenderer | None = None
    ) -> None:
        self.script = script
        self.tokenizer: Tokenizer = WordTokenizer() if renderer is None else renderer.tokenizer
        self.renderer = renderer or (TokenRenderer(self.tokenizer) if token_ids else TextRenderer())
        self._end = [] if renderer is None or renderer.end_of_turn is None else [renderer.end_of_turn]
        self.prompts: list[Prompt] = []
        self.generated = 0
        self.running = 0
        self.most_running = 0
        self._slots: AbstractAsyncContextManager[object] = (
            nullcontext() if slots is None else anyio.CapacityLimiter(slots)
        )

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
        del temperature, seed
        async with self._slots:
            self.prompts.append(prompt)
            reply = self.script(prompt)
            reply = Reply(text=reply) if isinstance(reply, str) else reply
            ids = self._ids(reply.text, stop)
            self.running += 1
            self.most_running = max(self.most_running, self.running)
            try:
                await self._generate(min(len(ids), max_tokens), reply, meter or Meter())
            finally:
                self.running -= 1
        return self._completion(ids, max_tokens)

    def _ids(self, text: str, stop: Sequence[str]) -> list[int]:
        """Up to a stop string, or to the end of the turn."""
        said = _cut(text, stop)
        cut = any(said.endswith(mark) for mark in stop)
        return [*self.tokenizer.encode(said, control=False), *([] if cut else self._end)]

    async def _generate(self, num_tokens: int, reply: Reply, meter: Meter) -> None:
        """Let time pass; cut off in the middle, count only what had appeared by then."""
        if reply.seconds:
            await self._slowly(num_tokens, reply.seconds, meter)
        else:
            await anyio.lowlevel.checkpoint()
            meter.tokens = num_tokens
            self.generated += num_tokens
        if reply.fault is not None:
            raise (EngineInterrupted if num_tokens else EngineError)(reply.fault)

    async def _slowly(self, num_tokens: int, seconds: float, meter: Meter) -> None:
        began, share = anyio.current_time(), 1.0
        slices = max(1, min(SLICES, num_tokens))
        try:
            for passed in range(slices):
                meter.tokens = num_tokens * passed // slices
                await anyio.sleep(seconds / slices)
        except BaseException:
            share = min(1.0, (anyio.current_time() - began) / seconds)
            raise
        finally:
            meter.tokens = int(num_tokens * share)
            self.generated += meter.tokens

    def _completion(self, ids: list[int], max_tokens: int) -> Completion:
        kept = tuple(ids[:max_tokens])
        exact = self.renderer.exact
        return Completion(
            text=self.renderer.decode(kept) if self._end else self.tokenizer.decode(kept),
            token_ids=kept if exact else (),
            logprobs=(0.0,) * len(kept) if exact else (),  # a script is always sure
            num_tokens=len(kept),
            finish="stop" if len(ids) <= max_tokens else "length",
        )


def _cut(text: str, stop: Sequence[str]) -> str:
    """As servers do: up to and including the first stop string."""
    ends = [text.index(mark) + len(mark) for mark in stop if mark in text]
    return text[: min(ends)] if ends else text
