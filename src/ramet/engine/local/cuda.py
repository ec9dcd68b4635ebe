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
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import torch
import triton
from torch import Tensor
from transformers import PreTrainedModel

from ramet.engine.local import kernels
from ramet.engine.local.captures import CaptureGuard
from ramet.engine.local.cpu import Results, Shape
from ramet.engine.local.cuda_decoder import ROWS, CudaAttention, CudaFusedDecoder, Key, Memory
from ramet.engine.local.decoder import Decoder, PlainDecoder, can_fuse
from ramet.engine.local.request import Request
from ramet.engine.local.sampling import BLOCK, keys
from ramet.engine.local.scheduler import Step
from ramet.errors import ConfigError

RING = 3  # buffers for steps in transit between host and device
HIGH_PRIORITY = -1  # of the engine's stream: a step is short, and trees wait for it; the learner runs in between
# Sizes that graphs are captured for: rows of steps that only decode, rows of steps with prompt chunks, and tokens
# sampled in these. Steps of trees have many sizes, and a capture costs as much as many steps save, so there are few.
DECODE_SIZES = (1, 4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512)
PREFILL_SIZES = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
SAMPLE_SIZES = (32, 128, 512)
UPDATE_SIZES = (512, 8192)  # entries of page tables that change: in steps that only decode, and in others
ATTEMPTS = 3  # captures of one size that may fail; after that its steps run without a graph
ALIGNED = 4  # inputs begin at multiples of 16 bytes: Triton compiles a kernel again for another alignment


class CudaRunner:
    """Launches steps asynchronously; results are collected one step later."""

    lag = 1

    def __init__(
        self, model: PreTrainedModel, shape: Shape, *, pages: int, page_size: int, max_batch: int, window: int
    ):
        if shape.head_dim & (shape.head_dim - 1) or shape.head_dim < 16:
            raise ConfigError(f"head_dim must be a power of two, at least 16, on a GPU; got {shape.head_dim}")
        device, dtype = model.device, model.dtype
        self.device, self.size, self.max_batch = device, page_size, max_batch
        self.padding_slot = max_batch  # the slot of padding rows; it has a page of its own
        self.padding_page = pages
        cache = torch.zeros(
            shape.layers, 2, pages + 1, shape.kv_heads, page_size, shape.head_dim, dtype=dtype, device=device
        )
        self.memory = Memory(
            cache=cache,
            tables=torch.full((max_batch + 1, -(-window // page_size) + 1), pages, dtype=torch.int32, device=device),
            last=torch.zeros(max_batch + 1, dtype=torch.int64, device=device),
            heads=model.config.get_text_config().num_attention_heads,
        )
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
        updates, requests = self._updates(step), step.sampling
        key = self._key(step, requests, len(updates))
        graph = self._graphs.get(key)
        if graph is None:
            graph = self._graphs[key] = Graph(self, key)
        turn = self._turn = (self._turn + 1) % RING
        if len(self._host[turn]) < graph.layout.size:
            self._pinned[turn] = torch.zeros(graph.layout.size, dtype=torch.int32, pin_memory=True)
            self._host[turn] = self._pinned[turn].numpy()
        count = len(requests)
        self._fill(graph, self._host[turn], step, requests, updates)
        graph.inputs.copy_(self._pinned[turn][: graph.layout.size], non_blocking=True)
        graph.run()
        tokens, logprobs, ready = graph.fetch(turn)

        def results() -> tuple[list[int], list[float]]:
            ready.synchronize()
            return tokens[:count].tolist(), logprobs[:count].tolist()

        return results

    def _key(self, step: Step, requests: list[Request], updates: int) -> Key:
        decodes, tokens = len(step.decodes), sum(chunk.end - chunk.start for chunk in step.chunks)
        filtered = any(request.filtered for request in requests)
        if not tokens:
            rows = _round_up(decodes, DECODE_SIZES)
            return Key(rows, rows, 0, _round_up(updates, UPDATE_SIZES), filtered)
        rows = _round_up(decodes + tokens, PREFILL_SIZES)
        samples = _round_up(max(decodes, len(requests)), SAMPLE_SIZES)
        blocks = sum(-(-(chunk.end - chunk.start) // ROWS) for chunk in step.chunks)
        # A chunk begins at most one block that is not full, and at most one chunk of a step does not sample.
        most = rows // ROWS + samples + 1
        updates = _round_up(updates, UPDATE_SIZES[1:])
        return Key(rows, samples, most if blocks <= most else _power_of_two(blocks), updates, filtered)

    def _updates(self, step: Step) -> list[tuple[int, int]]:
        """Changed entries of the page tables: (index, page number)."""
        width, changes = self.memory.tables.shape[1], []
        for request in [*step.decodes, *(chunk.request for chunk in step.chunks)]:
            if request.synced < len(request.pages):
                start = request.slot * width
                for place in range(request.synced, len(request.pages)):
                    changes.append((start + place, request.pages[place].number))
                request.synced = len(request.pages)
        return changes

    def _fill(
        self, graph: Graph, host: np.ndarray, step: Step, requests: list[Request], updates: list[tuple[int, int]]
    ) -> None:
        """Write the inputs of a step into one array."""
        layout = graph.layout
        decodes = len(step.decodes)
        part = layout.parts(host)
        part["counts"][:] = decodes, 0, len(step.copies)
        part["ids"][:decodes] = -1
        part["positions"][:decodes] = [request.planned - 1 for request in step.decodes]
        part["slots"][:decodes] = [request.slot for request in step.decodes]
        part["picks"][:decodes] = np.arange(decodes)
        at, picked, block = decodes, decodes, 0
        for chunk in step.chunks:
            number = chunk.end - chunk.start
            part["ids"][at : at + number] = chunk.request.ids[chunk.start : chunk.end]
            part["positions"][at : at + number] = np.arange(chunk.start, chunk.end)
            part["slots"][at : at + number] = chunk.request.slot
            for first in range(0, number, ROWS):
                part["blocks"][2 * block : 2 * block + 2] = at + first, min(ROWS, number - first)
                block += 1
            at += number
            if chunk.samples:
                part["picks"][picked] = at - 1
                picked += 1
        part["counts"][1] = block
        if step.copies:
            part["copies"][: 2 * len(step.copies)] = np.array(step.copies, dtype=np.int32).reshape(-1)
        part["ids"][at:] = 0
        part["positions"][at:] = 0
        part["slots"][at:] = self.padding_slot
        sampling = [request.sampling for request in requests]
        part["picks"][picked:] = 0
        part["sampled_slots"][:picked] = [request.slot for request in requests]
        part["sampled_slots"][picked:] = self.padding_slot
        numbers = keys([each.seed for each in sampling], [request.draws - 1 for request in requests]).view(np.int32)
        part["keys"][: 2 * picked] = numbers.reshape(-1)
        part["temperature"][:picked] = [each.temperature for each in sampling]
        part["temperature"][picked:] = 1.0
        if graph.key.filtered:
            part["top_p"][:picked] = [each.top_p for each in sampling]
            part["top_p"][picked:] = 1.0
            part["top_k"][:picked] = [each.top_k for each in sampling]
            part["top_k"][picked:] = 0
        count = len(updates)
        part["update_at"][count:] = self.padding_slot * self.memory.tables.shape[1]
        part["update_to"][count:] = self.padding_page
        if updates:
            places, pages = zip(*updates, strict=True)
            part["update_at"][:count], part["update_to"][:count] = places, pages


class Layout:
    """The offsets of the inputs in the array that describes a step."""

    FLOATS = ("temperature", "top_p")

    def __init__(self, key: Key) -> None:
        sizes = {
            "counts": 3, "ids": key.rows, "positions": key.rows, "slots": key.rows, "picks": key.samples,
            "sampled_slots": key.samples, "keys": 2 * key.samples, "temperature": key.samples, "top_p": key.samples,
            "top_k": key.samples, "blocks": 2 * key.blocks, "update_at": key.updates, "update_to": key.updates,
            "copies": 2 * key.blocks,  # a page is copied for a chunk, which has at least one block
        }  # fmt: skip
        self.spans: dict[str, slice] = {}
        at = 0
        for name, size in sizes.items():
            self.spans[name] = slice(at, at + size)
            at += _aligned(size)
        self.size = at

    def parts(self, array: Any) -> dict[str, Any]:
        """Views by name, of a numpy array or a tensor."""
        floats: Any = np.float32 if isinstance(array, np.ndarray) else torch.float32
        return {
            name: array[span].view(floats) if name in self.FLOATS else array[span] for name, span in self.spans.items()
        }


class Graph:
    """The CUDA graph of one step size, captured when it runs for the second time."""

    def __init__(self, runner: CudaRunner, key: Key) -> None:
        self.key = key
        self.layout = Layout(key)
        self.inputs = torch.zeros(self.layout.size, dtype=torch.int32, device=runner.device)
        shape = 2, _aligned(key.samples)
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


def _round_up(count: int, sizes: tuple[int, ...]) -> int:
    """The smallest size that is at least `count`; beyond the last one, the next power of two."""
    place = bisect_left(sizes, count)
    return sizes[place] if place < len(sizes) else _power_of_two(count)


def _aligned(count: int) -> int:
    """So many numbers of four bytes, rounded up to a multiple of `ALIGNED`."""
    return -(-count // ALIGNED) * ALIGNED


def _power_of_two(count: int) -> int:
    return 1 << (count - 1).bit_length() if count > 1 else 1


def _addresses(model: PreTrainedModel) -> list[int]:
    return [parameter.data_ptr() for parameter in model.parameters()]
