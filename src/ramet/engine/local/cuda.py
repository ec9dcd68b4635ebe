# pyright: standard, reportMissingImports=false, reportIndexIssue=false
"""Steps on a GPU: everything between two tokens is one captured graph, and the host stays a step ahead.

A graph is captured for every size of step that comes up, along a ladder of sizes; a step is filled up to the next one.
What a step is about goes over in one copy. Sampled tokens stay on the device for the next step to read; the host gets
them meanwhile, finds who has ended, and throws away the one token such a request was given too many.
"""

from __future__ import annotations

import gc
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import triton
from torch import Tensor
from transformers import PreTrainedModel

from ramet.engine.local import kernels
from ramet.engine.local.cpu import Results, Shape
from ramet.engine.local.cuda_decoder import ROWS, CudaFolded, CudaPass, Key, Memory
from ramet.engine.local.decoder import Decoder, Plain, foldable
from ramet.engine.local.sampling import BLOCK, keys
from ramet.engine.local.scheduler import Step
from ramet.errors import ConfigError

RING = 3  # steps that may be on their way between host and device
# Sizes that graphs are captured for: rows of steps that only answer, rows of steps that also read prompts, ...
ANSWERING = (1, 2, 4, 8, 16, 24, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512)
READING = (64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)
SAMPLES = (16, 64, 128, 256, 512)  # ... tokens sampled in them, ...
UPDATES = (64, 512, 4096)  # ... and entries of page tables that change


class CudaRunner:
    """Launches steps; results come one step later."""

    lag = 1

    def __init__(
        self, model: PreTrainedModel, shape: Shape, *, pages: int, page_size: int, max_batch: int, window: int
    ):
        if shape.head_dim & (shape.head_dim - 1) or shape.head_dim < 16:
            raise ConfigError(f"heads of size {shape.head_dim} cannot be run on a GPU: powers of two from 16 can")
        device, dtype = model.device, model.dtype
        self.device, self.size, self.max_batch = device, page_size, max_batch
        self.nobody = max_batch  # the slot of rows that only fill up; its one page is nobody's either
        self.spare = pages
        cache = torch.zeros(
            shape.layers, 2, pages + 1, shape.kv_heads, page_size, shape.head_dim, dtype=dtype, device=device
        )
        self.memory = Memory(
            cache=cache,
            tables=torch.full((max_batch + 1, -(-window // page_size) + 1), pages, dtype=torch.int32, device=device),
            last=torch.zeros(max_batch + 1, dtype=torch.int64, device=device),
            heads=model.config.get_text_config().num_attention_heads,
        )
        self.decoder: Decoder = CudaFolded(model) if foldable(model) else Plain(model)
        self.stream = torch.cuda.Stream(device)
        self._graphs: dict[Key, Graph] = {}
        self._graph_memory = torch.cuda.graph_pool_handle()
        self._host = [np.zeros(0, dtype=np.int32)] * RING
        self._pinned = [torch.zeros(0, dtype=torch.int32)] * RING
        self._turn = 0
        self._weights = _addresses(model)
        self._model = model

    def enter(self) -> None:
        torch.cuda.set_device(self.device)

    def refresh(self) -> None:
        self.decoder.refresh()
        addresses = _addresses(self._model)
        if addresses != self._weights:  # graphs remember where the weights were
            self._weights = addresses
            self._graphs.clear()
        torch.cuda.synchronize(self.device)

    @torch.inference_mode()
    def launch(self, step: Step) -> Results:
        with torch.cuda.device(self.device), torch.cuda.stream(self.stream):
            if step.copies:
                pairs = torch.tensor(step.copies, device=self.device)
                self.memory.cache[:, :, pairs[:, 1]] = self.memory.cache[:, :, pairs[:, 0]]
            return self._run(step)

    def _run(self, step: Step) -> Results:
        updates = self._updates(step)
        key = self._key(step, len(updates))
        graph = self._graphs.get(key)
        if graph is None:
            graph = self._graphs[key] = Graph(self, key)
        turn = self._turn = (self._turn + 1) % RING
        if len(self._host[turn]) < graph.layout.size:
            self._pinned[turn] = torch.zeros(graph.layout.size, dtype=torch.int32, pin_memory=True)
            self._host[turn] = self._pinned[turn].numpy()
        count = len(step.sampling)
        self._fill(graph, self._host[turn], step, updates)
        graph.inputs.copy_(self._pinned[turn][: graph.layout.size], non_blocking=True)
        graph.run()
        tokens, logprobs, ready = graph.fetch(turn)

        def results() -> tuple[list[int], list[float]]:
            ready.synchronize()
            return tokens[:count].tolist(), logprobs[:count].tolist()

        return results

    def _key(self, step: Step, updates: int) -> Key:
        decodes, tokens = len(step.decodes), sum(chunk.end - chunk.start for chunk in step.chunks)
        filtered = any(request.sampling.top_p < 1 or request.sampling.top_k > 0 for request in step.sampling)
        changes = _rung(updates, UPDATES)
        if not tokens:
            rows = _rung(decodes, ANSWERING)
            return Key(rows, rows, 0, changes, filtered)
        rows = _rung(decodes + tokens, READING)
        samples = _rung(max(decodes, len(step.sampling)), SAMPLES)
        blocks = sum(-(-(chunk.end - chunk.start) // ROWS) for chunk in step.chunks)
        return Key(rows, samples, max(rows // ROWS + samples, _power(blocks)), changes, filtered)

    def _updates(self, step: Step) -> list[tuple[int, int]]:
        """Entries of the page tables that have changed: (place, page)."""
        width, found = self.memory.tables.shape[1], []
        for request in [*step.decodes, *(chunk.request for chunk in step.chunks)]:
            if request.tabled < len(request.pages):
                start = request.slot * width
                for place in range(request.tabled, len(request.pages)):
                    found.append((start + place, request.pages[place].number))
                request.tabled = len(request.pages)
        return found

    def _fill(self, graph: Graph, host: np.ndarray, step: Step, updates: list[tuple[int, int]]) -> None:
        """Everything the device must know about the step, in one array."""
        layout = graph.layout
        decodes = len(step.decodes)
        part = layout.parts(host)
        part["counts"][:] = decodes, 0
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
        part["ids"][at:] = 0
        part["positions"][at:] = 0
        part["slots"][at:] = self.nobody
        requests = step.sampling
        sampling = [request.sampling for request in requests]
        part["picks"][picked:] = 0
        part["sampled_slots"][:picked] = [request.slot for request in requests]
        part["sampled_slots"][picked:] = self.nobody
        numbers = keys([one.seed for one in sampling], [request.draws - 1 for request in requests]).view(np.int32)
        part["keys"][: 2 * picked] = numbers.reshape(-1)
        part["temperature"][:picked] = [one.temperature for one in sampling]
        part["temperature"][picked:] = 1.0
        if graph.key.filtered:
            part["top_p"][:picked] = [one.top_p for one in sampling]
            part["top_p"][picked:] = 1.0
            part["top_k"][:picked] = [one.top_k for one in sampling]
            part["top_k"][picked:] = 0
        count = len(updates)
        nowhere = self.nobody * self.memory.tables.shape[1]
        part["update_at"][count:] = nowhere
        part["update_to"][count:] = self.spare
        if updates:
            places, pages = zip(*updates, strict=True)
            part["update_at"][:count], part["update_to"][:count] = places, pages


class Layout:
    """Where things are in the array that describes a step."""

    FLOATS = ("temperature", "top_p")

    def __init__(self, key: Key) -> None:
        sizes = {
            "counts": 2, "ids": key.rows, "positions": key.rows, "slots": key.rows, "picks": key.samples,
            "sampled_slots": key.samples, "keys": 2 * key.samples, "temperature": key.samples, "top_p": key.samples,
            "top_k": key.samples, "blocks": 2 * key.blocks, "update_at": key.updates, "update_to": key.updates,
        }  # fmt: skip
        self.spans: dict[str, slice] = {}
        at = 0
        for name, size in sizes.items():
            self.spans[name] = slice(at, at + size)
            at += size
        self.size = at

    def parts(self, array: Any) -> dict[str, Any]:
        """Views by name, of numpy arrays and of tensors alike."""
        floats: Any = np.float32 if isinstance(array, np.ndarray) else torch.float32
        return {
            name: array[span].view(floats) if name in self.FLOATS else array[span] for name, span in self.spans.items()
        }


class Graph:
    """One size of step, captured when it first runs."""

    def __init__(self, runner: CudaRunner, key: Key) -> None:
        self.key = key
        self.layout = Layout(key)
        self.inputs = torch.zeros(self.layout.size, dtype=torch.int32, device=runner.device)
        self.tokens = torch.zeros(key.samples, dtype=torch.int64, device=runner.device)
        self.logprobs = torch.zeros(key.samples, dtype=torch.float32, device=runner.device)
        self._fetched = [
            (
                torch.zeros(key.samples, dtype=torch.int64, pin_memory=True),
                torch.zeros(key.samples, dtype=torch.float32, pin_memory=True),
                torch.cuda.Event(),
            )
            for _ in range(RING)
        ]
        self._runner = runner
        self._graph: torch.cuda.CUDAGraph | None = None

    def run(self) -> None:
        if self._graph is not None:
            self._graph.replay()
            return
        self._compute()  # compiles what is not compiled yet, and is this step
        graph = torch.cuda.CUDAGraph()
        runner = self._runner
        with (
            _nothing_collected(),
            torch.cuda.graph(graph, pool=runner._graph_memory, stream=runner.stream, capture_error_mode="thread_local"),
        ):
            self._compute()
        self._graph = graph

    def fetch(self, turn: int) -> tuple[Tensor, Tensor, torch.cuda.Event]:
        tokens, logprobs, ready = self._fetched[turn]
        tokens.copy_(self.tokens, non_blocking=True)
        logprobs.copy_(self.logprobs, non_blocking=True)
        ready.record(self._runner.stream)
        return tokens, logprobs, ready

    def _compute(self) -> None:
        runner, part = self._runner, self.layout.parts(self.inputs)
        memory = runner.memory
        memory.tables.view(-1).index_copy_(0, part["update_at"].long(), part["update_to"])
        slots = part["slots"]
        ids = torch.where(part["ids"] < 0, memory.last[slots.long()], part["ids"].long())
        view = CudaPass(memory, self.key, part)
        logits = runner.decoder.logits(ids, part["positions"], part["picks"].long(), view)
        self._sample(logits, part)

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
def _nothing_collected() -> Iterator[None]:
    """Python lets go of unused objects whenever it likes; graphs of an engine that is gone would spoil a capture."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _rung(count: int, ladder: tuple[int, ...]) -> int:
    """The size on a ladder that holds this many; above its end, the next power of two."""
    place = bisect_left(ladder, count)
    return ladder[place] if place < len(ladder) else _power(count)


def _power(count: int) -> int:
    return 1 << (count - 1).bit_length() if count > 1 else 1


def _addresses(model: PreTrainedModel) -> list[int]:
    return [parameter.data_ptr() for parameter in model.parameters()]
