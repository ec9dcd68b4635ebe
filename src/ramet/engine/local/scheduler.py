"""Which requests run in the next step. Knows tokens and pages, no tensors.

Every step decodes one token for each running request whose prompt is computed, and spends the rest of its token budget
on prompts: first those already started, then new ones in order of arrival. Where a step that reads prompts takes much
longer than one that only decodes, as on a GPU, the prompts of several steps are read together. A request waits while
another request is computing a prefix of its prompt. When pages run out, the youngest request is preempted: it returns
to the queue with the tokens sampled so far, most of which are usually still cached when it is admitted again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ramet.engine.local.cache import Match, Page, PrefixCache
from ramet.engine.local.request import Request

SMALLEST_CHUNK = 64
MANY = 32  # requests that decode: with fewer, prompts seldom arrive, and those that wait matter more


@dataclass(slots=True, kw_only=True)
class Stats:
    """Counters of an engine since its start."""

    prefill_tokens: int = 0  # computed for prompts
    cached_tokens: int = 0  # of prompts, found in the cache
    generated_tokens: int = 0
    steps: int = 0
    preemptions: int = 0
    evicted_pages: int = 0


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens `start` to `end` of a request. The last chunk of a prompt also samples."""

    request: Request
    start: int
    end: int
    samples: bool


@dataclass(slots=True)
class Step:
    """One step of the device: copy pages, compute tokens, sample one token for each of `sampling`."""

    copies: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    decodes: list[Request] = field(default_factory=list[Request])
    chunks: list[Chunk] = field(default_factory=list[Chunk])

    @property
    def sampling(self) -> list[Request]:
        return [*self.decodes, *(chunk.request for chunk in self.chunks if chunk.samples)]

    def __bool__(self) -> bool:
        return bool(self.decodes or self.chunks)


class Scheduler:
    """Takes requests, plans steps, records their results.

    `collect_results` is called before a request is preempted: it must record the results of the step in flight. With
    `keep_cache`, the keys and values of a node's text stay those of the weights that first read it. While many requests
    decode, prompts are read in every `prompts_every`th step.
    """

    def __init__(
        self,
        cache: PrefixCache,
        *,
        max_batch: int,
        chunk: int,
        decode: Callable[[Sequence[int]], str],
        collect_results: Callable[[], None] = lambda: None,
        keep_cache: bool = False,
        prompts_every: int = 1,
    ) -> None:
        self.cache = cache
        self.keep_cache = keep_cache
        self.prompts_every = prompts_every
        self.many = MANY
        self.chunk = chunk
        self.stats = Stats()
        self.version = 0  # of the weights
        self.salt = 0  # of the cache: changes with every update, even when an earlier version is loaded again
        self._salts: dict[str, int] = {}  # by node under way, if it keeps its cache: the salt when it was first read
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []  # oldest first
        self.collect_results = collect_results
        self._decode = decode
        self._number = 0  # of the step being planned
        self._read_in = 0  # the last step that read prompts
        self._slots = list(range(max_batch - 1, -1, -1))
        self.pinned: dict[str, list[Page]] = {}

    @property
    def idle(self) -> bool:
        return not (self.waiting or self.running)

    def submit(self, request: Request) -> None:
        self._unpin(request.node_id)
        self.waiting.append(request)

    def ended(self, node_id: str) -> None:
        """Unpin the pages of a node that takes no more turns."""
        self._unpin(node_id)
        self._salts.pop(node_id, None)

    def set_version(self, version: int) -> None:
        """Start using new weights: preempt running requests and abandon the cache, unless nodes keep theirs."""
        self.collect_results()
        if not self.keep_cache:
            for request in self.running[::-1]:
                self._preempt(request)
            for node_id in list(self.pinned):
                self._unpin(node_id)
        self.version = version
        self.salt += 1

    def plan(self) -> Step:
        """The next step; empty when there is no work, or none that can start before results are recorded."""
        self._number += 1
        self._drop_cancelled()
        step = Step()
        self._plan_decodes(step)
        started = [request for request in self.running if request.planned < request.prefill_end]
        admissible = min(len(self.waiting), len(self._slots))
        if not self._can_wait(len(started) + admissible, len(step.decodes)):
            self._plan_prompts(step, started)
        self.stats.evicted_pages = self.cache.evicted
        self.stats.steps += bool(step)
        return step

    def record(self, step: Step, tokens: Sequence[int], logprobs: Sequence[float]) -> None:
        """Record sampled tokens and log-probs, in the order of `step.sampling`."""
        size, decode, accepted = self.cache.size, self._decode, 0
        for request, token, logprob in zip(step.sampling, tokens, logprobs, strict=True):
            if request.finish is not None or request.error is not None or request.cancelled:
                continue  # it ended while this token was being sampled
            request.accept(token, logprob, decode)
            accepted += 1
            if request.finish is not None:
                self._finish(request)
            elif len(request.ids) > (request.linked + 1) * size:
                self._link_full_pages(request)
        self.stats.generated_tokens += accepted

    def fail(self, request: Request, error: str) -> None:
        """End a request with an error."""
        request.error = error
        if request in self.waiting:
            self.waiting.remove(request)
        if request in self.running:
            self._release(request)
        request.deliver(request)

    def undo(self, step: Step) -> None:
        """Revert a planned step that did not run, record the step in flight, and preempt all running requests."""
        for request in step.decodes:  # before it ends: what it leaves in the cache has to be computed
            request.planned -= 1
        for chunk in step.chunks:
            chunk.request.planned = chunk.start
            for place in range(chunk.start // self.cache.size, len(chunk.request.pages)):
                page = chunk.request.pages[place]
                page.ready = max(0, min(page.ready, chunk.start - place * self.cache.size))
        for source, copy in step.copies:
            del source  # the page was not copied
            for chunk in step.chunks:
                first = chunk.request.pages[chunk.start // self.cache.size]
                if first.number == copy:
                    first.ready = 0
                    chunk.request.planned -= chunk.start % self.cache.size
        self.collect_results()
        for request in self.running[::-1]:
            self._preempt(request)

    def shrink(self, step: Step) -> None:
        """Revert a step that ran out of memory; later ones have half the chunk, or the youngest request fails."""
        self.undo(step)
        if step.chunks and self.chunk > SMALLEST_CHUNK:
            self.chunk = max(SMALLEST_CHUNK, self.chunk // 2)
            return
        youngest = step.sampling[-1] if step.sampling else step.chunks[-1].request
        if not youngest.done:
            self.fail(youngest, "out of memory: give the engine a smaller cache_tokens or max_batch")

    def _plan_decodes(self, step: Step) -> None:
        if len(self.running) > self.cache.available:
            full = sum(request.planned == len(request.pages) * self.cache.size for request in self.running)
            if full > self.cache.available:
                # A request may end and free its pages; none may be preempted with a token in flight.
                self.collect_results()
        size, decodes = self.cache.size, step.decodes
        for request in list(self.running):  # once per token: nothing here is looked up twice
            planned, draws = request.planned, request.draws
            if request.slot < 0 or planned < request.prefill_end or draws >= request.sampling.max_tokens:
                continue
            if planned < len(request.pages) * size or self._reserve_token(request):
                request.planned, request.draws = planned + 1, draws + 1
                decodes.append(request)

    def _can_wait(self, unread: int, decoding: int) -> bool:
        """Whether prompts are left to a later step: few are unread, many requests decode, and some were read lately."""
        lately = self._number - self._read_in < self.prompts_every
        return lately and decoding >= self.many and self.prompts_every * unread < decoding

    def _plan_prompts(self, step: Step, started: Sequence[Request]) -> None:
        budget = max(1, self.chunk - len(step.decodes))
        for request in started:
            if budget > 0:
                budget -= self._plan_chunk(step, request, budget)
        self._admit(step, budget)
        if step.chunks:
            self._read_in = self._number

    def _reserve_token(self, request: Request) -> bool:
        """Add a page for one more token; preempts younger requests if needed."""
        while request.slot >= 0:
            pages = self.cache.allocate(1)
            if pages is not None:
                request.pages += pages
                return True
            if len(self.running) == 1:
                room = self.cache.total * self.cache.size
                self.fail(request, f"this request alone fills the cache of {room:,} tokens: raise cache_tokens")
                return False
            self._preempt(self.running[-1])
        return False

    def _plan_chunk(self, step: Step, request: Request, budget: int) -> int:
        start, size = request.planned, self.cache.size
        end = min(request.prefill_end, start + budget)
        for place in range(start // size, (end - 1) // size + 1):
            page = request.pages[place]
            page.ready = max(page.ready, min(size, end - place * size))
            page.computed_in = self._number
        request.planned = end
        samples = end == request.prefill_end
        request.draws += samples
        step.chunks.append(Chunk(request, start, end, samples))
        self.stats.prefill_tokens += end - start
        return end - start

    def _admit(self, step: Step, budget: int) -> None:
        for request in list(self.waiting):
            if budget <= 0 or not self._slots:
                return
            request.salt = self._salts.get(request.node_id, self.salt)
            match = self.cache.match(request.ids, salt=request.salt, step=self._number)
            if match.pending:
                continue
            new = self._allocate(request, match)
            if new is None:
                if not self.running:
                    room = self.cache.total * self.cache.size
                    self.fail(
                        request,
                        f"a text of {len(request.ids):,} tokens does not fit the cache of {room:,}: raise cache_tokens",
                    )
                return
            self.waiting.remove(request)
            self._start(request, match.pages, new)
            if match.partial is not None:
                step.copies.append((match.partial.number, new[0].number))
                self.cache.release([match.partial])
                new[0].ready = match.partial_tokens
            request.planned = len(match.pages) * self.cache.size + match.partial_tokens
            if not request.draws:
                request.cached_tokens = request.planned
            self.stats.cached_tokens += request.planned
            budget -= self._plan_chunk(step, request, budget)

    def _allocate(self, request: Request, match: Match) -> list[Page] | None:
        """Pages for what is not cached; None if there are too few. Those that match have one more user from then on."""
        cache, matched = self.cache, match.pages if match.partial is None else [*match.pages, match.partial]
        cache.acquire(matched)  # so that they are not evicted
        needed = -(-len(request.ids) // cache.size) - len(match.pages)
        # Leave one page for each running request: admitting a request only to preempt it wastes work.
        if needed + len(self.running) <= cache.available:
            return cache.allocate(needed)
        cache.release(matched)
        if match.partial is None or self.running:
            return None
        match.partial, match.partial_tokens = None, 0  # the request needs the page that it would copy
        return self._allocate(request, match)

    def _start(self, request: Request, known: list[Page], new: list[Page]) -> None:
        request.slot = self._slots.pop()
        request.admissions += 1
        request.pages = [*known, *new]
        request.linked = len(known)
        if request.version < 0:
            request.version = self.version
        if self.keep_cache and request.node_id:
            self._salts.setdefault(request.node_id, request.salt)
        self.running.append(request)
        # From now on other requests match these pages and wait for them to be computed.
        size, after = self.cache.size, known[-1] if known else self.cache.root(request.salt)
        for place, page in enumerate(new, start=len(known)):
            ids = tuple(request.ids[place * size : (place + 1) * size])
            if self.cache.link(page, ids, after=after, ready=0) is not page:
                break
            after = page

    def _link_full_pages(self, request: Request) -> None:
        """Add pages that have become full to the tree, or use the cached page with the same tokens."""
        size, cache = self.cache.size, self.cache
        while (request.linked + 1) * size <= min(request.planned, len(request.ids)):
            place = request.linked
            page = request.pages[place]
            ids = tuple(request.ids[place * size : (place + 1) * size])
            if page.parent is None or page.ids != ids:
                cache.unlink(page)
                after = request.pages[place - 1] if place else cache.root(request.salt)
                known = cache.link(page, ids, after=after, ready=size)
                if known is not page and known.ready == size:
                    cache.acquire([known])
                    request.pages[place] = known
                    request.synced = min(request.synced, place)
                    cache.release([page])
                elif known is not page:
                    return  # another request is computing the same page: keep this one private
            request.linked += 1

    def _release(self, request: Request) -> list[Page]:
        """Stop running a request; returns its cached pages. Computed pages stay in the tree until they are evicted."""
        self._link_full_pages(request)
        size, cache = self.cache.size, self.cache
        for page in reversed(request.pages[request.linked :]):  # announced to other requests, but not computed
            cache.unlink(page)
        started = min(request.planned, len(request.ids)) - request.linked * size
        if 0 < started < size:
            place = request.linked
            after = request.pages[place - 1] if place else cache.root(request.salt)
            cache.link(request.pages[place], tuple(request.ids[place * size :][:started]), after=after, ready=started)
        pages, request.pages, request.linked, request.synced = request.pages, [], 0, 0
        cache.release(pages)
        self.running.remove(request)
        self._slots.append(request.slot)
        request.slot = -1
        return [page for page in pages if page.parent is not None]

    def _finish(self, request: Request) -> None:
        pages = self._release(request)
        if request.node_id:
            self._unpin(request.node_id)  # of another request of the node that ran beside this one
            self.cache.pin(pages, 1)
            self.pinned[request.node_id] = pages
        request.deliver(request)

    def _preempt(self, request: Request) -> None:
        self._release(request)
        self.stats.preemptions += 1
        request.prefill_end = len(request.ids)
        request.planned = 0
        request.draws = len(request.logprobs)
        self.waiting.appendleft(request)

    def _drop_cancelled(self) -> None:
        for request in [request for request in self.running if request.cancelled]:
            self._release(request)
        if any(request.cancelled for request in self.waiting):
            self.waiting = deque(request for request in self.waiting if not request.cancelled)

    def _unpin(self, node_id: str) -> None:
        pages = self.pinned.pop(node_id, None)
        if pages:
            self.cache.pin(pages, -1)
