"""A simulated device: pages hold token ids, and the next token is a hash of the text read from them.

A wrong page, an outdated copy or a page freed too early changes the text, and so every token after it.
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


def sampled_alone(prompt: Sequence[int], *, max_tokens: int, seed: int) -> list[int]:
    """The tokens of a request that runs alone."""
    text = list(prompt)
    while len(text) - len(prompt) < max_tokens:
        text.append(next_token(text, seed))
        if text[-1] == END:
            break
    return text[len(prompt) :]


class SimulatedEngine:
    """A scheduler and a simulated device, stepped by hand. `lag` 1: results arrive after the next step is planned."""

    def __init__(
        self,
        *,
        pages: int,
        size: int,
        max_batch: int,
        chunk: int,
        lag: int = 0,
        keep_cache: bool = False,
        prompts_every: int = 1,
    ) -> None:
        self.scheduler = Scheduler(
            PrefixCache(pages=pages, size=size),
            max_batch=max_batch,
            chunk=chunk,
            decode=lambda ids: "".join(map(str, ids)),
            collect_results=self.settle,
            keep_cache=keep_cache,
            prompts_every=prompts_every,
        )
        self.size = size
        self.lag = lag
        self.memory: dict[int, list[int]] = {number: [-1] * size for number in range(pages)}
        self.last: dict[int, int] = {}
        self.ended: list[Request] = []
        self.in_flight: tuple[Step, list[int]] | None = None

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
            self.in_flight = (step, tokens)
        if not self.lag:
            self.settle()
        return step

    def settle(self) -> None:
        if self.in_flight is not None:
            (step, tokens), self.in_flight = self.in_flight, None
            self.scheduler.record(step, tokens, [float(-token) for token in tokens])

    def run(self, most: int = 20_000) -> None:
        """Step until all requests have ended."""
        for _ in range(most):
            if self.scheduler.idle and self.in_flight is None:
                return
            self.step()
        raise AssertionError("the scheduler does not finish")

    def compute(self, step: Step) -> list[int]:
        copied = [list(self.memory[source]) for source, _ in step.copies]
        for (_, to), content in zip(step.copies, copied, strict=True):
            self.memory[to] = content
        for request in step.decodes:
            assert request.pages[(request.planned - 1) // self.size].users == 1, "a shared page is overwritten"
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


def check_pages(engine: SimulatedEngine) -> None:
    """Check that every page is free, in the tree or in use, and that the reference counts are right."""
    cache = engine.scheduler.cache
    in_use: dict[int, int] = {}
    for request in engine.scheduler.running:
        for page in request.pages:
            in_use[page.number] = in_use.get(page.number, 0) + 1
    linked: dict[int, int] = {}
    for root in cache._roots.values():
        stack = list(root.children)
        while stack:
            page = stack.pop()
            assert page.number not in linked, "a page is in the tree twice"
            linked[page.number] = page.users
            assert page.users == in_use.get(page.number, 0), "a reference count is wrong"
            assert page.parent is not None
            assert 0 < len(page.ids) <= cache.size
            assert page in page.parent.children
            assert page.children == sorted(page.children, key=lambda child: child.ids)
            assert not page.children or len(page.ids) == cache.size
            stack += page.children
    assert cache.idle == sum(users == 0 for users in linked.values())
    free = cache._free
    assert len(set(free)) == len(free)
    assert not set(free) & (set(linked) | set(in_use))
    assert set(free) | set(linked) | set(in_use) == set(range(cache.total)), "a page is lost"


def random_text(rng: random.Random, pieces: list[list[int]]) -> list[int]:
    """Texts with common prefixes: a few of the given pieces, then random tokens."""
    text: list[int] = []
    for _ in range(rng.randrange(4)):
        text += rng.choice(pieces)
    return text + [rng.randrange(7) for _ in range(rng.randrange(1, 12))]
