# pyright: standard
"""The local engine: takes requests from any event loop, runs steps in one thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

import anyio
import torch
from transformers import PreTrainedModel

from ramet.engine.local import setup
from ramet.engine.local.cache import PrefixCache
from ramet.engine.local.cpu import Results
from ramet.engine.local.intake import Intake, completion
from ramet.engine.local.loops import Loop, Waiter, current_loop
from ramet.engine.local.request import Request
from ramet.engine.local.scheduler import Scheduler, Stats, Step
from ramet.errors import EngineError, RametError
from ramet.models import attention
from ramet.tokens.render import Renderer
from ramet.types import Completion, Meter, Prompt

THREAD_IDLE_S = 1.0  # the thread ends after this long without work; the next request starts another
LOOP_IDLE_TIMEOUT_S = 20.0  # in lockstep, the longest wait for an event loop to become idle


class LocalEngine:
    """A model in this process, built for many short requests with common prefixes.

    Example:
        engine = LocalEngine("smollm2")

    `model` is `smollm2`, `nano`, a Hugging Face folder or a loaded decoder. It may be trained between requests: change
    its weights inside `with engine.updating():`. `max_batch` is the number of requests per step, `cache_tokens` the
    size of the key-value cache, `window` the longest prompt with completion, `chunk` the most tokens computed per step.
    Without `cache_tokens` the cache takes half of the free memory of a GPU, of which `spare_bytes` are left out.
    With `keep_cache` a node keeps what older weights computed of its own text when the weights change. While many
    requests decode, prompts are read in every `prompts_every`th step (4 on a GPU, where such a step takes longer).
    With `lockstep` a step starts only when all event loops that use the engine are idle, so that the same requests
    always form the same batches and results repeat bit for bit.
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
        spare_bytes: int = 0,
        window: int | None = None,
        chunk: int | None = None,
        top_p: float = 1.0,
        top_k: int = 0,
        lockstep: bool | None = None,
        keep_cache: bool = False,
        prompts_every: int | None = None,
    ) -> None:
        self.model, self.renderer = setup.load(model, renderer, device, dtype)
        attention.attach(self.model)
        self.model.eval()
        on_cuda = self.model.device.type == "cuda"
        self.window = setup.check_window(self.model, window)
        self.lockstep = not on_cuda if lockstep is None else lockstep
        max_batch = setup.check_count("max_batch", max_batch, 512 if on_cuda else 64)
        shape = setup.cache_shape(self.model)
        default = setup.default_cache_tokens(self.model, shape, self.window, spare_bytes=spare_bytes)
        tokens = setup.check_count("cache_tokens", cache_tokens, default)
        pages = -(-tokens // setup.PAGE)
        self.runner = setup.make_runner(self.model, shape, pages=pages, max_batch=max_batch, window=self.window)
        self.scheduler = Scheduler(
            PrefixCache(pages=pages, size=setup.PAGE),
            max_batch=max_batch,
            chunk=setup.check_count("chunk", chunk, 8192 if on_cuda else 512),
            decode=setup.stop_decoder(self.renderer),
            collect_results=self._collect_results,
            keep_cache=keep_cache,
            prompts_every=setup.check_count("prompts_every", prompts_every, 4 if on_cuda else 1),
        )
        self.stop_tokens = setup.end_tokens(self.model, self.renderer)
        known = self.model.config.get_text_config().vocab_size
        self._intake = Intake(
            window=self.window, vocabulary=known, top_p=top_p, top_k=top_k, stop_tokens=self.stop_tokens
        )
        self._in_flight: tuple[Step, Results] | None = None
        self._inbox: list[Callable[[], None]] = []
        self._finished: list[Request] = []
        self._waiters: dict[Request, Waiter] = {}
        self._changed = threading.Condition()
        self._pauses = 0
        self._paused = True
        self._closed_reason: str | None = None  # why the engine takes no more requests
        self._fault: BaseException | None = None  # the exception that ended the thread
        self._thread: threading.Thread | None = None

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
        """At most `max_tokens` tokens. `stop_tokens` defaults to the tokens that end a turn of this model."""
        request = self._intake.request(
            prompt,
            max_tokens=max_tokens,
            stop=stop,
            temperature=temperature,
            seed=seed,
            meter=meter,
            top_p=top_p,
            top_k=top_k,
            stop_tokens=stop_tokens,
        )
        # The thread counts a token after it has appended it, so that the count never runs ahead of the ids.
        request.meter.partial = lambda: self._completion(request, request.meter.tokens)
        ended = anyio.Event()
        self._submit(request, Waiter(loop=current_loop(lockstep=self.lockstep), wake=ended.set))
        try:
            await ended.wait()
        finally:
            if not ended.is_set():
                self._cancel(request)
        if request.error is not None:
            raise EngineError(request.error) from self._fault
        return self._completion(request, len(request.logprobs))

    def submit(
        self,
        prompt: Prompt,
        *,
        max_tokens: int,
        stop: Sequence[str],
        temperature: float,
        seed: int | None,
        meter: Meter,
        on_end: Callable[[Completion | RametError], None],
        stop_tokens: Sequence[int] | None = None,
    ) -> Callable[[], None]:
        """Sample without a task that waits (`Submitting`). Completions have ids and no text."""
        wanted = {"max_tokens": max_tokens, "stop": stop, "temperature": temperature, "seed": seed}
        request = self._intake.request(prompt, **wanted, meter=meter, stop_tokens=stop_tokens)
        meter.partial = lambda: completion(request, meter.tokens)

        def wake() -> None:
            if request.error is not None:
                on_end(EngineError(request.error))
            elif not request.cancelled:
                on_end(completion(request, len(request.logprobs)))

        self._submit(request, Waiter(loop=current_loop(lockstep=self.lockstep), wake=wake))
        return lambda: self._cancel(request)

    def ended(self, node_id: str) -> None:
        """Tell the engine that a node takes no more turns, so that its cached pages may be evicted."""
        with self._changed:
            if self._thread is None:  # it ends when there is no work: nothing else uses the scheduler
                self.scheduler.ended(node_id)
            elif self._closed_reason is None:
                self._inbox.append(lambda: self.scheduler.ended(node_id))

    @property
    def policy_version(self) -> int:
        return self.scheduler.version

    @property
    def stats(self) -> Stats:
        return self.scheduler.stats

    @property
    def idle(self) -> bool:
        """Whether no request is waiting or running."""
        with self._changed:
            return not (self._waiters or self._inbox) and self.scheduler.idle

    @contextmanager
    def updating(self, *, version: int | None = None) -> Iterator[PreTrainedModel]:
        """Change the weights inside this block: no step runs meanwhile, and the cache of the old weights is abandoned.

        Running requests continue with the new weights; their completion reports the version that sampled the first
        token. `version` defaults to the next number; give it when earlier weights are loaded again. With `keep_cache`,
        requests and nodes under way keep their cache; nodes that start later do not find it.
        """
        with self.paused():
            try:
                yield self.model
            finally:
                with self._changed:
                    self.scheduler.set_version(self.scheduler.version + 1 if version is None else version)
                    self.runner.refresh()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """No step runs inside this block: requests wait, and go on afterwards with the same tokens."""
        with self._changed:
            self._pauses += 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._paused)
            self._collect_results()  # of the step in flight
        try:
            yield
        finally:
            with self._changed:
                self._pauses -= 1
                self._changed.notify_all()

    def undisturbed(self) -> AbstractContextManager[object]:
        """For work on the same device in another thread: the engine goes on, but captures no graph meanwhile."""
        return self.runner.guard.working()

    def publish(self) -> int:
        """Use the weights as they are now; returns the new version."""
        with self.updating():
            pass
        return self.policy_version

    def close(self) -> None:
        """End the thread. Running requests fail; the model stays usable."""
        with self._changed:
            self._closed_reason = self._closed_reason or "the engine was closed"
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

    def _completion(self, request: Request, num_tokens: int) -> Completion:
        """The first tokens that were sampled, with their text."""
        sampled = completion(request, num_tokens)
        return replace(sampled, text=self.renderer.decode(sampled.token_ids)) if self.renderer.exact else sampled

    def _submit(self, request: Request, waiter: Waiter) -> None:
        """Put a request into the inbox; start the thread if there is none."""
        request.deliver = self._finished.append
        with self._changed:
            if self._closed_reason is not None:
                raise EngineError(self._closed_reason) from self._fault
            self._inbox.append(lambda: self.scheduler.submit(request))
            self._waiters[request] = waiter
            if self._thread is None:
                self._thread = threading.Thread(target=self._run_thread, name="ramet-engine", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def _cancel(self, request: Request) -> None:
        """Cancel a request: its slot is free from the next step on."""
        with self._changed:
            request.cancelled = True
            self._waiters.pop(request, None)
            self._changed.notify_all()  # the thread may be waiting for the event loop of this request

    # The engine thread.

    def _run_thread(self) -> None:
        try:
            self.runner.start_thread()
            while self._wait_for_work():
                self._step()
        except BaseException as error:  # noqa: BLE001 (top of the thread: every waiting request gets the error)
            self._fault = error
            self._fail_all(f"the engine failed: {error}")

    def _wait_for_work(self) -> bool:
        """Wait until there is work and no weight update; then empty the inbox. False: stop the thread."""
        with self._changed:
            self._paused = True
            self._changed.notify_all()
            while True:
                ready = self._changed.wait_for(
                    lambda: self._closed_reason is not None or (self._pauses == 0 and self._has_work()),
                    timeout=None if self._pauses else THREAD_IDLE_S,
                )
                if self._closed_reason is not None:
                    self._fail_all(self._closed_reason)
                    return False
                if not ready:
                    if not self._has_work():
                        self._thread = None
                        return False
                    continue
                inbox, self._inbox = self._inbox, []
                for action in inbox:
                    action()
                if not (inbox and self.lockstep) or self._wait_for_idle_loops():
                    break
            self._paused = False
            return True

    def _has_work(self) -> bool:
        return bool(self._inbox or self._in_flight or self._finished or not self.scheduler.idle)

    def _wait_for_idle_loops(self) -> bool:
        """Wait until every event loop with a request is idle. False: something changed meanwhile, check again."""
        loops = self._loops()
        idle: set[Loop] = set()

        def on_idle(loop: Loop) -> None:
            with self._changed:
                idle.add(loop)
                self._changed.notify_all()

        for loop in loops:
            if not loop.when_idle(lambda loop=loop: on_idle(loop)):
                self._drop_loop(loop)
        # A loop that is cancelling a task is never idle, and may itself wait for this engine: hence the timeout.
        self._changed.wait_for(
            lambda: self._closed_reason or self._pauses or idle >= loops & self._loops(),
            timeout=LOOP_IDLE_TIMEOUT_S,
        )
        return not (self._closed_reason or self._pauses or self._inbox)

    def _loops(self) -> set[Loop]:
        return {waiter.loop for waiter in self._waiters.values()}

    def _drop_loop(self, loop: Loop) -> None:
        """Cancel the requests of an event loop that has ended."""
        for request, waiter in list(self._waiters.items()):
            if waiter.loop == loop:
                request.cancelled = True
                del self._waiters[request]

    def _step(self) -> None:
        step = self.scheduler.plan()
        launched = self._launch(step) if step else None
        self._collect_results()
        if launched is not None:
            self._in_flight = (step, launched)
            if self.runner.lag == 0:
                self._collect_results()
        self._notify_waiters()

    def _launch(self, step: Step) -> Results | None:
        """None: it ran out of memory and was reverted."""
        try:
            return self.runner.launch(step)
        except RuntimeError as error:
            if not isinstance(error, torch.OutOfMemoryError) and "allocate memory" not in str(error):
                raise
        self.scheduler.shrink(step)
        return None

    def _collect_results(self) -> None:
        """Record the results of the step in flight."""
        if self._in_flight is not None:
            (step, results), self._in_flight = self._in_flight, None
            self.scheduler.record(step, *results())

    def _notify_waiters(self) -> None:
        """Wake the tasks whose requests have finished."""
        if not self._finished:
            return
        with self._changed:
            finished, self._finished[:] = list(self._finished), []
            ended: dict[Loop, list[Callable[[], object]]] = {}
            for request in finished:
                waiter = self._waiters.pop(request, None)
                if waiter is not None:
                    ended.setdefault(waiter.loop, []).append(waiter.wake)
            for loop, to_wake in ended.items():
                if not loop.post(lambda to_wake=to_wake: [wake() for wake in to_wake]):
                    self._drop_loop(loop)
            if self.lockstep and ended:  # wait for these loops before the next step: they may send more requests
                self._inbox.append(lambda: None)

    def _fail_all(self, reason: str) -> None:
        """Fail every request and take no more."""
        with self._changed:
            self._closed_reason, self._paused = reason, True
            self._inbox.clear()
            for request, waiter in self._waiters.items():
                request.error = reason
                waiter.loop.post(waiter.wake)
            self._waiters.clear()
            self._changed.notify_all()
