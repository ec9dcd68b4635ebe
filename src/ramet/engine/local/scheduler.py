"""Who runs in the next step. Knows tokens and pages, no tensors.

Every step advances all requests that are being answered by one token, and spends what is left of the step's token
budget on prompts: those already begun, then new ones in the order they came. A request waits while somebody else is
about to compute the beginning of its prompt. When pages run out, the youngest request is put back into the queue with
what it has said so far; most of that is usually still in the cache when its turn comes again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ramet.engine.local.cache import Page, PrefixCache
from ramet.engine.local.request import Request


@dataclass(slots=True, kw_only=True)
class Stats:
    """What an engine has done so far, in tokens unless said otherwise."""

    prefill_tokens: int = 0  # computed for prompts
    cached_tokens: int = 0  # found in the cache instead
    generated_tokens: int = 0
    steps: int = 0
    preemptions: int = 0
    evicted_pages: int = 0


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens `start` to `end` of a request's text; the last chunk of it also samples."""

    request: Request
    start: int
    end: int
    samples: bool


@dataclass(slots=True)
class Step:
    """What the device does at once: copy pages, compute tokens, sample one token for each of `sampling`."""

    copies: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    decodes: list[Request] = field(default_factory=list[Request])
    chunks: list[Chunk] = field(default_factory=list[Chunk])

    @property
    def sampling(self) -> list[Request]:
        return [*self.decodes, *(chunk.request for chunk in self.chunks if chunk.samples)]

    def __bool__(self) -> bool:
        return bool(self.decodes or self.chunks)


class Scheduler:
    """Requests in, steps out, results back in.

    `settle_all` is called before a request is put back: it must bring in the results of steps still in flight.
    """

    def __init__(
        self,
        cache: PrefixCache,
        *,
        max_batch: int,
        chunk: int,
        decode: Callable[[Sequence[int]], str],
        settle_all: Callable[[], None] = lambda: None,
    ) -> None:
        self.cache = cache
        self.chunk = chunk
        self.stats = Stats()
        self.version = 0  # of the weights
        self.salt = 0  # of the cache; another one after every change, also where a version comes back
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []  # oldest first
        self.settle_all = settle_all
        self._decode = decode
        self._number = 0  # of the step being planned
        self._slots = list(range(max_batch - 1, -1, -1))
        self._parked: dict[str, list[Page]] = {}

    @property
    def idle(self) -> bool:
        return not (self.waiting or self.running)

    def submit(self, request: Request) -> None:
        self._unpark(request.node_id)
        self.waiting.append(request)

    def ended(self, node_id: str) -> None:
        """This node will not come back: its pages may go before those of nodes that wait."""
        self._unpark(node_id)

    def renew(self, version: int) -> None:
        """The weights have changed. Whoever is running goes on with the new ones, from a cache computed by them."""
        self.settle_all()
        for request in self.running[::-1]:
            self._put_back(request)
        for node_id in list(self._parked):
            self._unpark(node_id)
        self.version = version
        self.salt += 1

    def plan(self) -> Step:
        """The next step; empty when there is nothing to do, or nothing that can be done before results are in."""
        self._number += 1
        self._drop_cancelled()
        step = Step()
        self._plan_decodes(step)
        budget = max(1, self.chunk - len(step.decodes))
        for request in self.running:
            if request.prefilling and budget > 0:
                budget -= self._plan_chunk(step, request, budget)
        self._admit(step, budget)
        self.stats.evicted_pages = self.cache.evicted
        self.stats.steps += bool(step)
        return step

    def settle(self, step: Step, tokens: Sequence[int], logprobs: Sequence[float]) -> None:
        """Results are in, in the order of `step.sampling`."""
        for request, token, logprob in zip(step.sampling, tokens, logprobs, strict=True):
            if request.done:  # it ended while this token was under way
                continue
            request.accept(token, logprob, self._decode)
            self.stats.generated_tokens += 1
            if request.finish is not None:
                self._retire(request)
            elif len(request.ids) - 1 >= (request.linked + 1) * self.cache.size:
                self._link(request)

    def fail(self, request: Request, error: str) -> None:
        """Give up on a request."""
        request.error = error
        if request in self.waiting:
            self.waiting.remove(request)
        if request in self.running:
            self._leave(request)
        request.deliver(request)

    def undo(self, step: Step) -> None:
        """A planned step did not happen: everybody goes back to the queue with what is known to be computed."""
        for request in step.decodes:
            request.planned -= 1
        for chunk in step.chunks:
            chunk.request.planned = chunk.start
            for place in range(chunk.start // self.cache.size, len(chunk.request.pages)):
                page = chunk.request.pages[place]
                page.ready = max(0, min(page.ready, chunk.start - place * self.cache.size))
        for source, copy in step.copies:
            del source  # the copies were not made either
            for chunk in step.chunks:
                first = chunk.request.pages[chunk.start // self.cache.size]
                if first.number == copy:
                    first.ready = 0
                    chunk.request.planned -= chunk.start % self.cache.size
        for request in self.running[::-1]:
            self._put_back(request)

    def _plan_decodes(self, step: Step) -> None:
        full = sum(request.planned == len(request.pages) * self.cache.size for request in self.running)
        if full > self.cache.available:
            self.settle_all()  # somebody may have ended, and nobody is put back with a token under way
        for request in list(self.running):
            if request.slot < 0 or request.prefilling or request.draws >= request.sampling.max_tokens:
                continue
            if self._grow(request):
                request.planned += 1
                request.draws += 1
                step.decodes.append(request)

    def _grow(self, request: Request) -> bool:
        """Room for one more token, whatever it costs the younger ones."""
        if request.planned < len(request.pages) * self.cache.size:
            return True
        while request.slot >= 0:
            pages = self.cache.take(1)
            if pages is not None:
                request.pages += pages
                return True
            if len(self.running) == 1:
                room = self.cache.total * self.cache.size
                self.fail(request, f"this request alone fills the cache of {room:,} tokens: raise cache_tokens")
                return False
            self._put_back(self.running[-1])
        return False

    def _plan_chunk(self, step: Step, request: Request, budget: int) -> int:
        start, size = request.planned, self.cache.size
        end = min(request.goal, start + budget)
        for place in range(start // size, (end - 1) // size + 1):
            page = request.pages[place]
            page.ready = max(page.ready, min(size, end - place * size))
            page.issued = self._number
        request.planned = end
        samples = end == request.goal
        request.draws += samples
        step.chunks.append(Chunk(request, start, end, samples))
        self.stats.prefill_tokens += end - start
        return end - start

    def _admit(self, step: Step, budget: int) -> None:
        for request in list(self.waiting):
            if budget <= 0 or not self._slots:
                return
            match = self.cache.match(request.ids, salt=self.salt, step=self._number)
            if match.awaited:
                continue
            # What is to be read or copied must not be evicted to make room for it.
            held = match.pages if match.begun is None else [*match.pages, match.begun]
            self.cache.hold(held)
            size = self.cache.size
            needed = -(-len(request.ids) // size) - len(match.pages)
            # One page each is left for those that run: to let somebody in and put him back at once helps nobody.
            new = self.cache.take(needed) if needed + len(self.running) <= self.cache.available else None
            if new is None:
                self.cache.drop(held)
                if not self.running:
                    room = self.cache.total * size
                    self.fail(
                        request,
                        f"a text of {len(request.ids):,} tokens does not fit the cache of {room:,}: raise cache_tokens",
                    )
                return
            self.waiting.remove(request)
            self._begin(request, match.pages, new)
            if match.begun is not None:
                step.copies.append((match.begun.number, new[0].number))
                self.cache.drop([match.begun])
                new[0].ready = match.begun_tokens
            request.planned = len(match.pages) * size + match.begun_tokens
            if not request.draws:
                request.cached_tokens = request.planned
            self.stats.cached_tokens += request.planned
            budget -= self._plan_chunk(step, request, budget)

    def _begin(self, request: Request, known: list[Page], new: list[Page]) -> None:
        request.slot = self._slots.pop()
        request.admissions += 1
        request.pages = [*known, *new]
        request.linked = len(known)
        if request.version < 0:
            request.version = self.version
        self.running.append(request)
        # Others may count on these pages from now on, and wait for them.
        size, after = self.cache.size, known[-1] if known else self.cache.root(self.salt)
        for place, page in enumerate(new, start=len(known)):
            ids = tuple(request.ids[place * size : (place + 1) * size])
            if self.cache.link(page, ids, after=after, ready=0) is not page:
                break
            after = page

    def _link(self, request: Request) -> None:
        """Put pages that have become full into the tree, or use those of somebody who has said the same."""
        size, cache = self.cache.size, self.cache
        while (request.linked + 1) * size <= min(request.planned, len(request.ids)):
            place = request.linked
            page = request.pages[place]
            ids = tuple(request.ids[place * size : (place + 1) * size])
            if page.parent is None or page.ids != ids:
                cache.unlink(page)
                after = request.pages[place - 1] if place else cache.root(self.salt)
                known = cache.link(page, ids, after=after, ready=size)
                if known is not page and known.ready == size:
                    cache.hold([known])
                    request.pages[place] = known
                    request.tabled = min(request.tabled, place)
                    cache.drop([page])
                elif known is not page:
                    return  # somebody is about to compute the same: ours stays our own
            request.linked += 1

    def _leave(self, request: Request) -> list[Page]:
        """Stop running. What was computed stays findable as long as there is room; returns the pages it lies in."""
        self._link(request)
        size, cache = self.cache.size, self.cache
        for page in reversed(request.pages[request.linked :]):  # promised to others, and not computed
            cache.unlink(page)
        begun = min(request.planned, len(request.ids)) - request.linked * size
        if 0 < begun < size:
            place = request.linked
            after = request.pages[place - 1] if place else cache.root(self.salt)
            cache.link(request.pages[place], tuple(request.ids[place * size :][:begun]), after=after, ready=begun)
        pages, request.pages, request.linked, request.tabled = request.pages, [], 0, 0
        cache.drop(pages)
        self.running.remove(request)
        self._slots.append(request.slot)
        request.slot = -1
        return [page for page in pages if page.parent is not None]

    def _retire(self, request: Request) -> None:
        pages = self._leave(request)
        if request.node_id:
            self.cache.keep(pages, 1)
            self._parked[request.node_id] = pages
        request.deliver(request)

    def _put_back(self, request: Request) -> None:
        self._leave(request)
        self.stats.preemptions += 1
        request.goal = len(request.ids)
        request.planned = 0
        request.draws = len(request.logprobs)
        self.waiting.appendleft(request)

    def _drop_cancelled(self) -> None:
        for request in [request for request in self.running if request.cancelled]:
            self._leave(request)
        if any(request.cancelled for request in self.waiting):
            self.waiting = deque(request for request in self.waiting if not request.cancelled)

    def _unpark(self, node_id: str) -> None:
        pages = self._parked.pop(node_id, None)
        if pages:
            self.cache.keep(pages, -1)
