# pyright: standard, reportMissingImports=false, reportIndexIssue=false
"""Steps on a GPU: each step is one captured CUDA graph, and the host plans one step ahead.

Step sizes are rounded up to a small fixed set, and a graph is captured for each size when it occurs a second time, or
at the next change of the weights if the learner is at work then. The inputs of a step, copies of pages included, go to
the device in one transfer from pinned memory, and its results come back in one: nothing in a launch waits for the
device. Sampled tokens stay on the device for the next step to read. The host reads them one step later and discards
the extra token of requests that have ended.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import numpy as np
import torch
import triton
from torch import Tensor
from transformers import PreTrainedModel

from ramet.engine.local import kernels
from ramet.engine.local.captures import CaptureGuard
from ramet.engine.local.cpu import Results, Shape
from ramet.engine.local.cuda_decoder import CudaAttention, CudaFusedDecoder, Memory
from ramet.engine.local.cuda_inputs import Inputs, Key, Layout, aligned, key_of
from ramet.engine.local.decoder import Decoder, PlainDecoder, can_fuse
from ramet.engine.local.sampling import BLOCK
from ramet.engine.local.scheduler import Step
from ramet.errors import ConfigError

RING = 3  # buffers for steps in transit between host and device
HIGH_PRIORITY = -1  # of the engine's stream: a step is short, and trees wait for it; the learner runs in between
ATTEMPTS = 3  # captures of one size that may fail; after that its steps run without a graph


class CudaRunner:
    """Launches steps asynchronously; results are collected one step later."""

    lag = 1

    def __init__(
        self, model: PreTrainedModel, shape: Shape, *, pages: int, page_size: int, max_batch: int, window: int
    ):
        if shape.head_dim & (shape.head_dim - 1) or shape.head_dim < 16:
            raise ConfigError(f"head_dim must be a power of two, at least 16, on a GPU; got {shape.head_dim}")
        device, dtype = model.device, model.dtype
        self.device = device
        cache = torch.zeros(
            shape.layers, 2, pages + 1, shape.kv_heads, page_size, shape.head_dim, dtype=dtype, device=device
        )
        self.memory = Memory(
            cache=cache,
            tables=torch.full((max_batch + 1, -(-window // page_size) + 1), pages, dtype=torch.int32, device=device),
            last=torch.zeros(max_batch + 1, dtype=torch.int64, device=device),
            heads=model.config.get_text_config().num_attention_heads,
        )
        width = self.memory.tables.shape[1]
        self.inputs = Inputs(max_batch=max_batch, table_width=width, padding_page=pages)
        self.decoder: Decoder = CudaFusedDecoder(model) if can_fuse(model) else PlainDecoder(model)
        self.stream = torch.cuda.Stream(device, priority=HIGH_PRIORITY)
        self.guard = CaptureGuard()
        self.captures = 0  # graphs captured so far
        self._graphs: dict[Key, Graph] = {}
        self.graph_memory = torch.cuda.graph_pool_handle()
        self._host = [np.zeros(0, dtype=np.int32)] * RING
        self._pinned = [torch.zeros(0, dtype=torch.int32)] * RING
        self._turn = 0
        self._weights = _addresses(model)
        self._model = model

    def start_thread(self) -> None:
        torch.cuda.set_device(self.device)

    def refresh(self) -> None:
        self.decoder.refresh()
        addresses = _addresses(self._model)
        if addresses != self._weights:  # captured graphs hold the old addresses
            self._weights = addresses
            self._graphs.clear()
            self.graph_memory = torch.cuda.graph_pool_handle()  # the old one went with its last graph
        torch.cuda.synchronize(self.device)
        self._capture_delayed()

    @torch.inference_mode()
    def _capture_delayed(self) -> None:
        """Capture what was put off while the learner worked, which waits here for the new weights."""
        with torch.cuda.device(self.device), torch.cuda.stream(self.stream):
            for graph in self._graphs.values():
                if graph.delayed:
                    graph.capture()

    def abandon_graph_memory(self) -> None:
        """After a broken capture: torch would keep allocating for it, and refuses to capture into the same pool."""
        with suppress(RuntimeError):
            torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), self.graph_memory)
        self.graph_memory = torch.cuda.graph_pool_handle()

    @torch.inference_mode()
    def launch(self, step: Step) -> Results:
        with torch.cuda.device(self.device), torch.cuda.stream(self.stream):
            return self._run(step)

    def _run(self, step: Step) -> Results:
        updates, requests = self.inputs.updates(step), step.sampling
        key = key_of(step, requests, len(updates))
        graph = self._graphs.get(key)
        if graph is None:
            graph = self._graphs[key] = Graph(self, key)
        turn = self._turn = (self._turn + 1) % RING
        if len(self._host[turn]) < graph.layout.size:
            self._pinned[turn] = torch.zeros(graph.layout.size, dtype=torch.int32, pin_memory=True)
            self._host[turn] = self._pinned[turn].numpy()
        count = len(requests)
        self.inputs.write(step, updates, graph.layout, self._host[turn])
        graph.inputs.copy_(self._pinned[turn][: graph.layout.size], non_blocking=True)
        graph.run()
        tokens, logprobs, ready = graph.fetch(turn)

        def results() -> tuple[list[int], list[float]]:
            ready.synchronize()
            return tokens[:count].tolist(), logprobs[:count].tolist()

        return results


class Graph:
    """The CUDA graph of one step size, captured when it runs for the second time."""

    def __init__(self, runner: CudaRunner, key: Key) -> None:
        self.key = key
        self.layout = Layout(key)
        self.inputs = torch.zeros(self.layout.size, dtype=torch.int32, device=runner.device)
        shape = 2, aligned(key.samples)
        self.outputs = torch.zeros(shape, dtype=torch.int32, device=runner.device)
        self.tokens, self.logprobs = self.outputs[0], self.outputs[1].view(torch.float32)
        self._fetched = [
            (torch.zeros(shape, dtype=torch.int32, pin_memory=True), torch.cuda.Event()) for _ in range(RING)
        ]
        self.delayed = False  # whether a capture was put off
        self._runner = runner
        self._occurred = False
        self._failures = 0
        self._graph: torch.cuda.CUDAGraph | None = None

    def run(self) -> None:
        if self._occurred and self._graph is None:  # the first time compiles kernels, which a capture must not do
            self.capture()
        self._occurred = True
        if self._graph is None:
            self._compute()
        else:
            self._graph.replay()

    def capture(self) -> None:
        """Capture the step, unless the learner is at work or it has failed too often."""
        if self._failures < ATTEMPTS:
            self._graph = self._runner.guard.capture(self._capture)
            self.delayed = self._graph is None and self._failures < ATTEMPTS

    def _capture(self) -> torch.cuda.CUDAGraph | None:
        """Record the kernels of a step without running them. None: another use of the device broke the capture.

        Not by `torch.cuda.graph`, which first waits for the device and gives all unused memory back to it, that of
        the learner too.
        """
        graph, pool = torch.cuda.CUDAGraph(), self._runner.graph_memory
        try:
            with _no_garbage_collection():
                graph.capture_begin(pool=pool, capture_error_mode="thread_local")
                try:
                    self._compute()
                finally:
                    graph.capture_end()
        except RuntimeError:  # whatever it is, the step is computed without a graph, and raises it again if it lasts
            self._failures += 1
            self._runner.abandon_graph_memory()
            return None
        self._runner.captures += 1
        return graph

    def fetch(self, turn: int) -> tuple[np.ndarray, np.ndarray, torch.cuda.Event]:
        """Tokens and log-probs on the host; valid after the event."""
        outputs, ready = self._fetched[turn]
        outputs.copy_(self.outputs, non_blocking=True)
        ready.record(self._runner.stream)
        tokens, logprobs = outputs.numpy()
        return tokens, logprobs.view(np.float32), ready

    def _compute(self) -> None:
        runner, part = self._runner, self.layout.parts(self.inputs)
        memory = runner.memory
        if self.key.blocks:
            self._copy_pages(part)
        memory.tables.view(-1).index_copy_(0, part["update_at"].long(), part["update_to"])
        slots = part["slots"]
        ids = torch.where(part["ids"] < 0, memory.last[slots.long()], part["ids"].long())
        view = CudaAttention(memory, self.key, part)
        logits = runner.decoder.logits(ids, part["positions"], part["picks"].long(), view)
        self._sample(logits, part)

    def _copy_pages(self, part: dict[str, Tensor]) -> None:
        layers, two, pages, kv_heads, page_size, head_dim = self._runner.memory.cache.shape
        size = kv_heads * page_size * head_dim
        kernels.copy_pages[(self.key.blocks, layers * two)](
            self._runner.memory.cache, part["copies"], part["counts"][2:], pages * size, SIZE=size,
            BLOCK=min(4096, triton.next_power_of_2(size)),
        )  # fmt: skip

    def _sample(self, logits: Tensor, part: dict[str, Tensor]) -> None:
        count, size = logits.shape
        number = triton.cdiv(size, BLOCK)
        floors = torch.full((count,), -torch.inf, device=logits.device)
        if self.key.filtered:
            kernels.find_floors[(count,)](
                logits, part["temperature"], part["top_p"], part["top_k"], floors, size, BLOCK=4096, num_warps=8
            )
        sums = torch.empty(count, number, 3, device=logits.device)
        kernels.sum_blocks[(count, number)](logits, part["temperature"], floors, sums, size, number, BLOCK=BLOCK)
        kernels.draw[(count,)](
            logits, part["temperature"], floors, part["keys"], sums, part["sampled_slots"], self._runner.memory.last,
            self.tokens, self.logprobs, size, number, BLOCK=BLOCK, BLOCKS=triton.next_power_of_2(number),
        )  # fmt: skip


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Disable garbage collection: freeing the graphs of another engine would break a capture."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _addresses(model: PreTrainedModel) -> list[int]:
    return [parameter.data_ptr() for parameter in model.parameters()]
