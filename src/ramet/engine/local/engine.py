# pyright: standard
"""The engine itself: requests from any event loop, steps in one thread."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import anyio
import torch
from transformers import PreTrainedModel

from ramet.engine.local import setup
from ramet.engine.local.cache import PrefixCache
from ramet.engine.local.cpu import Results
from ramet.engine.local.loops import Loop, current_loop
from ramet.engine.local.request import Request, Sampling
from ramet.engine.local.scheduler import Scheduler, Stats, Step
from ramet.errors import EngineError
from ramet.models import attention
from ramet.tokens.render import Renderer
from ramet.types import Completion, Meter, Prompt

SMALLEST_CHUNK = 64
IDLE_S = 1.0  # after this long without work the thread ends; the next request starts another
RESTLESS_S = 20.0  # after which an event loop that has not come to rest is not waited for


class LocalEngine:
    """A model in this process, made for many short requests that share their beginnings.

    Example:
        engine = LocalEngine("smollm2")

    `model` is `smollm2`, a Hugging Face folder, or a loaded decoder; the module stays yours, and may be trained between
    requests: change its weights inside `with engine.updating():`. `max_batch` requests run at once, `cache_tokens` is
    how many tokens' keys and values are kept, `window` the longest text, `chunk` how many tokens one step computes at
    most. With `lockstep` a step begins only when everybody who may ask for something has asked, so that the same
    requests always meet in the same batches and results repeat bit for bit.
    """

    def __init__(
        self,
        model: str | Path | PreTrainedModel,
        *,
        renderer: Renderer | None = None,
        device: str | None = None,
        dtype: str | None = None,
        max_batch: int | None = None,
        cache_tokens: int | None = None,
        window: int | None = None,
        chunk: int | None = None,
        top_p: float = 1.0,
        top_k: int = 0,
        lockstep: bool | None = None,
    ) -> None:
        self.model, self.renderer = setup.load(model, renderer, device, dtype)
        attention.attach(self.model)
        self.model.eval()
        on_cuda = self.model.device.type == "cuda"
        self.window = setup.checked_window(self.model, window)
        self.top_p, self.top_k = setup.checked_shares(top_p, top_k)
        self.lockstep = not on_cuda if lockstep is None else lockstep
        max_batch = setup.checked_count("max_batch", max_batch, 512 if on_cuda else 64)
        shape = setup.shape_of(self.model)
        tokens = setup.checked_count("cache_tokens", cache_tokens, setup.default_tokens(self.model, shape, self.window))
        pages = -(-tokens // setup.PAGE)
        self.runner = setup.make_runner(self.model, shape, pages=pages, max_batch=max_batch, window=self.window)
        self._scheduler = Scheduler(
            PrefixCache(pages=pages, size=setup.PAGE),
            max_batch=max_batch,
            chunk=setup.checked_count("chunk", chunk, 8192 if on_cuda else 512),
            decode=setup.spelled_out(self.renderer),
            settle_all=self._settle,
        )
        self._stops = setup.end_tokens(self.model, self.renderer)
        self._flying: tuple[Step, Results] | None = None
        self._inbox: list[Callable[[], None]] = []
        self._finished: list[Request] = []
        self._waiters: dict[Request, Waiter] = {}
        self._changed = threading.Condition()
        self._holds = 0
        self._resting = True
        self._over: str | None = None  # why no more requests are taken
        self._fault: BaseException | None = None  # what ended the thread
        self._thread: threading.Thread | None = None
        self._seeds = random.Random()

    # For those who ask.

    async def sample(
        self,
        prompt: Prompt,
        *,
        max_tokens: int,
        stop: Sequence[str] = (),
        temperature: float = 1.0,
        seed: int | None = None,
        meter: Meter | None = None,
        top_p: float | None = None,
        top_k: int | None = None,
        stop_tokens: Sequence[int] | None = None,
    ) -> Completion:
        """At most `max_tokens` tokens. `stop_tokens`: those that end a turn of this model, unless others are given."""
        ids = self._checked(prompt, max_tokens, temperature)
        share, count = setup.checked_shares(
            self.top_p if top_p is None else top_p, self.top_k if top_k is None else top_k
        )
        sampling = Sampling(
            max_tokens=min(max_tokens, self.window - len(ids)),
            temperature=temperature,
            top_p=share,
            top_k=count,
            seed=self._seeds.getrandbits(63) if seed is None else seed,
            stop=tuple(stop),
            stop_tokens=self._stops if stop_tokens is None else frozenset(stop_tokens),
        )
        request = Request(ids=ids, sampling=sampling, node_id=prompt.node_id, meter=meter or Meter())
        request.deliver = self._finished.append
        waiter = Waiter(current_loop(lockstep=self.lockstep), anyio.Event())
        self._submit(request, waiter)
        try:
            await waiter.event.wait()
        finally:
            if not waiter.event.is_set():
                self._cancel(request)
        if request.error is not None:
            raise EngineError(request.error) from self._fault
        return self._completion(request)

    def ended(self, node_id: str) -> None:
        """A node will not come back: what is cached for it goes first when room is short."""
        with self._changed:
            if self._thread is not None and self._over is None:
                self._inbox.append(lambda: self._scheduler.ended(node_id))

    # For those who train.

    @property
    def policy_version(self) -> int:
        return self._scheduler.version

    @property
    def stats(self) -> Stats:
        return self._scheduler.stats

    @contextmanager
    def updating(self, *, version: int | None = None) -> Iterator[PreTrainedModel]:
        """Change the weights in here: no step runs meanwhile, and nothing computed by the old ones is used afterwards.

        Requests under way go on with the new weights; their completion names the version that began them. The new
        `version` is the next one unless said: weights that were trained before and come back have a number already.
        """
        with self._changed:
            self._holds += 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._resting)
            self._settle()  # the device must be done with the old weights
        try:
            yield self.model
        finally:
            with self._changed:
                try:
                    self._scheduler.renew(self._scheduler.version + 1 if version is None else version)
                    self.runner.refresh()
                finally:
                    self._holds -= 1
                    self._changed.notify_all()

    def publish(self) -> int:
        """Say that the weights have changed; returns the number of the new version."""
        with self.updating():
            pass
        return self.policy_version

    def close(self) -> None:
        """End the thread. Requests under way fail; the model stays usable."""
        with self._changed:
            self._over = self._over or "the engine was closed"
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _checked(self, prompt: Prompt, max_tokens: int, temperature: float) -> list[int]:
        if prompt.ids is None:
            raise EngineError("a local engine takes token ids: give it the model's tokenizer (renderer=)")
        if not prompt.ids or max_tokens < 1 or not 0 <= temperature < float("inf"):
            raise EngineError("a request needs a prompt, max_tokens from 1 and a temperature from 0 up")
        if len(prompt.ids) >= self.window:
            raise EngineError(f"a prompt of {len(prompt.ids):,} tokens does not fit the window of {self.window:,}")
        vocabulary = self.model.config.get_text_config().vocab_size
        if not 0 <= min(prompt.ids) <= max(prompt.ids) < vocabulary:
            raise EngineError(f"the prompt holds token ids outside this model's vocabulary of {vocabulary:,}")
        return list(prompt.ids)

    def _completion(self, request: Request) -> Completion:
        ids = tuple(request.sampled)
        return Completion(
            text=self.renderer.decode(ids) if self.renderer.exact else "",
            token_ids=ids,
            logprobs=tuple(request.logprobs),
            num_tokens=len(ids),
            finish=request.finish or "length",
            prompt_tokens=request.prompt_tokens,
            cached_tokens=request.cached_tokens,
            policy_version=request.version,
        )

    def _submit(self, request: Request, waiter: Waiter) -> None:
        """Hand a request to the thread; start one when there is none."""
        with self._changed:
            if self._over is not None:
                raise EngineError(self._over) from self._fault
            self._inbox.append(lambda: self._scheduler.submit(request))
            self._waiters[request] = waiter
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="ramet-engine", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def _cancel(self, request: Request) -> None:
        """Nobody waits for this any more: its place is free from the next step on."""
        with self._changed:
            request.cancelled = True
            self._waiters.pop(request, None)
            self._changed.notify_all()  # the thread may be waiting for everybody, and this was somebody

    # The thread.

    def _work(self) -> None:
        try:
            self.runner.enter()
            while self._wait_for_work():
                self._step()
        except BaseException as error:  # noqa: BLE001 (nobody is above us: those who wait are told, and get the trace)
            self._fault = error
            self._give_up(f"the engine failed: {error}")

    def _wait_for_work(self) -> bool:
        """Rest until there is something to do and nobody holds us; take in what was asked for. False: go home."""
        with self._changed:
            self._resting = True
            self._changed.notify_all()
            while True:
                ready = self._changed.wait_for(
                    lambda: self._over is not None or (self._holds == 0 and self._has_work()),
                    timeout=None if self._holds else IDLE_S,
                )
                if self._over is not None:
                    self._give_up(self._over)
                    return False
                if not ready:
                    if not self._has_work():
                        self._thread = None
                        return False
                    continue
                asked = bool(self._inbox)
                self._take_in()
                if not (asked and self.lockstep) or self._everybody_waits():
                    break
            self._resting = False
            return True

    def _has_work(self) -> bool:
        return bool(self._inbox or self._flying or self._finished or not self._scheduler.idle)

    def _take_in(self) -> None:
        inbox, self._inbox = self._inbox, []
        for action in inbox:
            action()

    def _everybody_waits(self) -> bool:
        """Let every event loop that asks us run until it has nothing left to do. False: look again, things changed."""
        loops = self._loops()
        quiet: set[Loop] = set()

        def arrived(loop: Loop) -> None:
            with self._changed:
                quiet.add(loop)
                self._changed.notify_all()

        for loop in loops:
            if not loop.when_quiet(lambda loop=loop: arrived(loop)):
                self._forget(loop)
        # An event loop that is cancelling somebody never rests, and what it waits for may be us.
        self._changed.wait_for(lambda: self._over or self._holds or quiet >= loops & self._loops(), timeout=RESTLESS_S)
        return not (self._over or self._holds or self._inbox)

    def _loops(self) -> set[Loop]:
        return {waiter.loop for waiter in self._waiters.values()}

    def _forget(self, loop: Loop) -> None:
        """An event loop has ended without waiting for its requests."""
        for request, waiter in list(self._waiters.items()):
            if waiter.loop == loop:
                request.cancelled = True
                del self._waiters[request]

    def _step(self) -> None:
        step = self._scheduler.plan()
        launched = self._launch(step) if step else None
        self._settle()
        if launched is not None:
            self._flying = (step, launched)
            if self.runner.lag == 0:
                self._settle()
        self._send()

    def _launch(self, step: Step) -> Results | None:
        try:
            return self.runner.launch(step)
        except torch.OutOfMemoryError as error:
            self._too_much(step, error)
        except RuntimeError as error:
            if "allocate memory" not in str(error):
                raise
            self._too_much(step, error)
        return None

    def _too_much(self, step: Step, error: RuntimeError) -> None:
        """Out of memory: smaller steps from now on; when they cannot be smaller, without the youngest request."""
        del error
        scheduler = self._scheduler
        self._settle()
        scheduler.undo(step)
        if step.chunks and scheduler.chunk > SMALLEST_CHUNK:
            scheduler.chunk = max(SMALLEST_CHUNK, scheduler.chunk // 2)
            return
        youngest = step.sampling[-1] if step.sampling else step.chunks[-1].request
        if not youngest.done:
            scheduler.fail(youngest, "out of memory: give the engine a smaller cache_tokens or max_batch")

    def _settle(self) -> None:
        """Bring in the results of the step in flight."""
        if self._flying is not None:
            (step, results), self._flying = self._flying, None
            self._scheduler.settle(step, *results())

    def _send(self) -> None:
        """Wake those whose requests have ended."""
        if not self._finished:
            return
        with self._changed:
            finished, self._finished[:] = list(self._finished), []
            events: dict[Loop, list[anyio.Event]] = {}
            for request in finished:
                waiter = self._waiters.pop(request, None)
                if waiter is not None:
                    events.setdefault(waiter.loop, []).append(waiter.event)
            for loop, woken in events.items():
                if not loop.post(lambda woken=woken: [event.set() for event in woken]):
                    self._forget(loop)
            if self.lockstep and events:
                self._inbox.append(lambda: None)  # look around before the next step: they may ask again

    def _give_up(self, reason: str) -> None:
        with self._changed:
            self._over, self._resting = reason, True
            self._inbox.clear()
            for request, waiter in self._waiters.items():
                request.error = reason
                waiter.loop.post(waiter.event.set)
            self._waiters.clear()
            self._changed.notify_all()


class Waiter:
    """Who waits for a request, and where."""

    __slots__ = ("event", "loop")

    def __init__(self, loop: Loop, event: anyio.Event) -> None:
        self.loop = loop
        self.event = event
