"""A device made of paper: pages hold token ids, and the next token is a number computed from the text read back.

A wrong page, a stale copy or a page given away too early changes what is read, and so every token after it.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence

from ramet.engine.local.cache import PrefixCache
from ramet.engine.local.request import Request, Sampling
from ramet.engine.local.scheduler import Scheduler, Step

VOCABULARY = 23
END = 0


def next_token(text: Sequence[int], seed: int) -> int:
    return zlib.crc32(repr((list(text), seed)).encode()) % VOCABULARY


def alone(prompt: Sequence[int], *, max_tokens: int, seed: int) -> list[int]:
    """What a request says when nobody else is there."""
    text = list(prompt)
    while len(text) - len(prompt) < max_tokens:
        text.append(next_token(text, seed))
        if text[-1] == END:
            break
    return text[len(prompt) :]


class PaperEngine:
    """A scheduler and a paper device, stepped by hand. `lag`: results come in after the next step has been planned."""

    def __init__(self, *, pages: int, size: int, max_batch: int, chunk: int, lag: int = 0) -> None:
        self.scheduler = Scheduler(
            PrefixCache(pages=pages, size=size),
            max_batch=max_batch,
            chunk=chunk,
            decode=lambda ids: "".join(map(str, ids)),
            settle_all=self.settle,
        )
        self.size = size
        self.lag = lag
        self.memory: dict[int, list[int]] = {number: [-1] * size for number in range(pages)}
        self.last: dict[int, int] = {}
        self.ended: list[Request] = []
        self.flying: tuple[Step, list[int]] | None = None

    def submit(self, prompt: Sequence[int], *, max_tokens: int, seed: int = 0, node_id: str = "") -> Request:
        request = Request(
            ids=list(prompt),
            sampling=Sampling(max_tokens=max_tokens, seed=seed, stop_tokens=frozenset({END})),
            node_id=node_id,
        )
        request.deliver = self.ended.append
        self.scheduler.submit(request)
        return request

    def step(self) -> Step:
        step = self.scheduler.plan()
        tokens = self.compute(step)
        self.settle()
        if step:
            self.flying = (step, tokens)
        if not self.lag:
            self.settle()
        return step

    def settle(self) -> None:
        if self.flying is not None:
            (step, tokens), self.flying = self.flying, None
            self.scheduler.settle(step, tokens, [float(-token) for token in tokens])

    def run(self, most: int = 20_000) -> None:
        """Until nothing is left to do."""
        for _ in range(most):
            if self.scheduler.idle and self.flying is None:
                return
            self.step()
        raise AssertionError("the scheduler does not come to an end")

    def compute(self, step: Step) -> list[int]:
        copied = [list(self.memory[source]) for source, _ in step.copies]
        for (_, to), content in zip(step.copies, copied, strict=True):
            self.memory[to] = content
        for request in step.decodes:
            assert request.pages[(request.planned - 1) // self.size].users == 1, "a page that others read is written to"
            self._write(request, request.planned - 1, self.last[request.slot])
        for chunk in step.chunks:
            for at in range(chunk.start, chunk.end):
                self._write(chunk.request, at, chunk.request.ids[at])
        tokens: list[int] = []
        for request, length in [(request, request.planned) for request in step.decodes] + [
            (chunk.request, chunk.end) for chunk in step.chunks if chunk.samples
        ]:
            text = [self.memory[request.pages[at // self.size].number][at % self.size] for at in range(length)]
            tokens.append(next_token(text, request.sampling.seed))
            self.last[request.slot] = tokens[-1]
        return tokens

    def _write(self, request: Request, at: int, token: int) -> None:
        self.memory[request.pages[at // self.size].number][at % self.size] = token


def check_books(engine: PaperEngine) -> None:
    """Every page is free, or in the tree, or held by somebody, and the counts say so."""
    cache = engine.scheduler.cache
    held: dict[int, int] = {}
    for request in engine.scheduler.running:
        for page in request.pages:
            held[page.number] = held.get(page.number, 0) + 1
    linked: dict[int, int] = {}
    for root in cache._roots.values():
        stack = list(root.children)
        while stack:
            page = stack.pop()
            assert page.number not in linked, "a page is in the tree twice"
            linked[page.number] = page.users
            assert page.users == held.get(page.number, 0), "a reference count is wrong"
            assert page.parent is not None
            assert 0 < len(page.ids) <= cache.size
            assert page in page.parent.children
            assert page.children == sorted(page.children, key=lambda child: child.ids)
            assert not page.children or len(page.ids) == cache.size
            stack += page.children
    assert cache.idle == sum(users == 0 for users in linked.values())
    free = cache._free
    assert len(set(free)) == len(free)
    assert not set(free) & (set(linked) | set(held))
    assert set(free) | set(linked) | set(held) == set(range(cache.total)), "a page is lost"


def random_text(rng: random.Random, pieces: list[list[int]]) -> list[int]:
    """Texts that begin alike: a few pieces of a small stock, then something of their own."""
    text: list[int] = []
    for _ in range(rng.randrange(4)):
        text += rng.choice(pieces)
    return text + [rng.randrange(7) for _ in range(rng.randrange(1, 12))]
