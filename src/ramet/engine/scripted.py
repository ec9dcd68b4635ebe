"""An engine whose model is a Python function, for tests, documentation and the first demo.

It can take time, counts the tokens it generates, and can fail on purpose.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import anyio
import anyio.lowlevel

from ramet.errors import EngineError, EngineInterrupted
from ramet.tokens.render import TextRenderer, Tokenizer, TokenRenderer
from ramet.types import Completion, Meter, Prompt, ToolCall

SLICES = 8  # a slow reply appears in this many parts
OPEN, CLOSE = "<tool_call>", "</tool_call>"
WORD = re.compile(r"<\|\w+\|>|\s?\w+|\s?[^\w\s]+|\s+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A reply that takes time or fails.

    It is complete after `seconds`, and its tokens appear evenly over that time; with `rate`, in tokens per second, the
    time depends on its length. With `fault` it fails at the end, with that text. `taught=False` marks a mistake in a
    demonstration, which is not trained on. `calls` are native tool calls, names and arguments, after the text.
    """

    text: str = ""
    seconds: float = 0.0
    rate: float | None = None  # instead of `seconds`
    fault: str | None = None
    taught: bool = True
    calls: Sequence[tuple[str, Mapping[str, Any]]] = ()

    @property
    def written(self) -> str:
        """The whole reply as text, calls as the dialect `tools` writes them."""
        return self.text + "".join(
            f"{OPEN}{json.dumps({'name': name, 'arguments': dict(arguments)})}{CLOSE}" for name, arguments in self.calls
        )


Script = Callable[[Prompt], str | Reply]


class WordTokenizer:
    """One id per word, assigned on first use. Decoding restores the text exactly."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self._ids: dict[str, int] = {}

    def encode(self, text: str, *, control: bool = False) -> list[int]:
        words: list[str] = WORD.findall(text)
        if not control and "<|" in text:  # a control token inside plain text is plain text
            words = [part for word in words for part in ([word[:1], word[1:]] if word.startswith("<|") else [word])]
        for word in words:
            if word not in self._ids:
                self._ids[word] = len(self.words)
                self.words.append(word)
        return [self._ids[word] for word in words]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self.words[i] for i in ids)

    def is_control(self, token: int) -> bool:
        return self.words[token].startswith("<|")

    @property
    def vocab_size(self) -> int:
        return len(self.words)


class ScriptedEngine:
    """An engine without a model: it answers each prompt with `script(prompt)`.

    Example:
        ScriptedEngine(lambda prompt: "Answer: 42")

    `slots` limits concurrent calls. `token_ids=False` makes it a text-only engine. With the `renderer` of a model it
    uses that model's tokens and end of turn, so that its trees can be trained on. `generated` counts all generated
    tokens; `running` is the number of calls in progress.
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
            ids = self._ids(reply.written, stop)
            self.running += 1
            self.most_running = max(self.most_running, self.running)
            meter = meter or Meter()
            meter.partial = lambda: self._completion(ids, min(max_tokens, meter.tokens), reply)
            try:
                await self._generate(min(len(ids), max_tokens), reply, meter)
            finally:
                self.running -= 1
        return self._completion(ids, max_tokens, reply)

    def _ids(self, text: str, stop: Sequence[str]) -> list[int]:
        """Token ids up to a stop string, or with the end of turn."""
        text = cut_at_stop(text, stop)
        stopped = any(text.endswith(mark) for mark in stop)
        return [*self.tokenizer.encode(text, control=False), *([] if stopped else self._end)]

    async def _generate(self, num_tokens: int, reply: Reply, meter: Meter) -> None:
        """Let time pass and count tokens. A cancelled call counts only the tokens that had appeared."""
        seconds = reply.seconds if reply.rate is None else num_tokens / reply.rate
        if seconds:
            await self._generate_slowly(num_tokens, seconds, meter)
        else:
            await anyio.lowlevel.checkpoint()
            meter.tokens = num_tokens
            self.generated += num_tokens
        if reply.fault is not None:
            raise (EngineInterrupted if num_tokens else EngineError)(reply.fault)

    async def _generate_slowly(self, num_tokens: int, seconds: float, meter: Meter) -> None:
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

    def _completion(self, ids: list[int], max_tokens: int, reply: Reply) -> Completion:
        kept = tuple(ids[:max_tokens])
        exact = self.renderer.exact
        completion = Completion(
            text=self.renderer.decode(kept) if self._end else self.tokenizer.decode(kept),
            token_ids=kept if exact else (),
            logprobs=(0.0,) * len(kept) if exact else (),  # a script has probability 1
            num_tokens=len(kept),
            finish="stop" if len(ids) <= max_tokens else "length",
            taught=reply.taught,
        )
        return _with_calls(completion, reply) if reply.calls else completion


def cut_at_stop(text: str, stop: Sequence[str]) -> str:
    """The text up to and including the first stop string, as servers return it."""
    ends = [text.index(mark) + len(mark) for mark in stop if mark in text]
    return text[: min(ends)] if ends else text


def _with_calls(completion: Completion, reply: Reply) -> Completion:
    """A completion whose calls are apart from its text. The last one may be cut off, in its arguments or before."""
    written = completion.text[len(reply.text) :]
    blocks = written.split(OPEN)[1:]
    calls: list[ToolCall] = []
    for number, (block, (name, arguments)) in enumerate(zip(blocks, reply.calls, strict=False)):
        begun = block.partition('"arguments": ')[2].rstrip("}")
        text = json.dumps(dict(arguments)) if CLOSE in block else begun
        calls.append(ToolCall(id=f"call_{number}", name=name, arguments=text))
    return replace(completion, text=completion.text[: len(reply.text)], calls=tuple(calls))
