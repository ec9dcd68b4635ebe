# pyright: standard
"""Steps on a GPU: everything between two tokens is one captured graph, and the host stays a step ahead.

A graph is captured for every size of step that comes up, along a ladder of sizes; a step is filled up to the next one.
What a step is about goes over in one copy. Sampled tokens stay on the device for the next step to read; the host gets
them meanwhile, finds who has ended, and throws away the one token such a request was given too many.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import triton
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from ramet.engine.local import kernels
from ramet.engine.local.cpu import Results, Shape
from ramet.engine.local.decoder import Decoder, Folded, Plain, foldable
from ramet.engine.local.sampling import uniform
from ramet.engine.local.scheduler import Step
from ramet.errors import ConfigError

ROWS = 32  # tokens of a prompt that one program attends from
VOCABULARY_BLOCK = 2048
RING = 3  # steps that may be on their way between host and device
SPLIT_UP_TO = 264  # programs that keep a GPU busy
LADDER = (1, 2, 4, 8, 16, 24, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512)


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
        self.vocabulary = model.get_output_embeddings().weight.shape[0]
        self.stream = torch.cuda.Stream(device)
        self._graphs: dict[Key, Graph] = {}
        self._graph_memory = torch.cuda.graph_pool_handle()
        self._host = [np.zeros(0, dtype=np.int32)] * RING
        self._pinned = [torch.zeros(0, dtype=torch.int32)] * RING
        self._turn = 0
        self._weights = _addresses(model)
        self._model = model

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
        if not tokens:
            rows = _rung(decodes, self.max_batch)
            return Key(rows, rows, 0, _power(updates, 64), filtered)
        rows = _power(decodes + tokens, 64)
        samples = _power(max(decodes, len(step.sampling)), 16)
        blocks = sum(-(-(chunk.end - chunk.start) // ROWS) for chunk in step.chunks)
        return Key(rows, samples, _power(blocks, rows // ROWS), _power(updates, 64), filtered)

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
        part["uniform"][:picked] = uniform([one.seed for one in sampling], [request.draws - 1 for request in requests])
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


@dataclass(slots=True)
class Memory:
    """What stays on the device between steps."""

    cache: Tensor  # (layers, 2, pages, kv_heads, page_size, head_dim)
    tables: Tensor  # page numbers by slot
    last: Tensor  # the newest token by slot
    heads: int


@dataclass(frozen=True, slots=True)
class Key:
    """Sizes that a graph is made for."""

    rows: int
    samples: int
    blocks: int
    updates: int
    filtered: bool


class Layout:
    """Where things are in the array that describes a step."""

    FLOATS = ("uniform", "temperature", "top_p")

    def __init__(self, key: Key) -> None:
        sizes = {
            "counts": 2, "ids": key.rows, "positions": key.rows, "slots": key.rows, "picks": key.samples,
            "sampled_slots": key.samples, "uniform": key.samples, "temperature": key.samples, "top_p": key.samples,
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
        with torch.cuda.graph(
            graph, pool=runner._graph_memory, stream=runner.stream, capture_error_mode="thread_local"
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
        number = triton.cdiv(size, VOCABULARY_BLOCK)
        floors = torch.full((count,), -torch.inf, device=logits.device)
        if self.key.filtered:
            kernels.find_floors[(count,)](
                logits, part["temperature"], part["top_p"], part["top_k"], floors, size, BLOCK=4096, num_warps=8
            )
        sums = torch.empty(count, number, 3, device=logits.device)
        kernels.sum_blocks[(count, number)](
            logits, part["temperature"], floors, sums, size, number, BLOCK=VOCABULARY_BLOCK
        )
        kernels.look_up[(count,)](
            logits, part["temperature"], floors, part["uniform"], sums, part["sampled_slots"], self._runner.memory.last,
            self.tokens, self.logprobs, size, number, BLOCK=VOCABULARY_BLOCK, BLOCKS=triton.next_power_of_2(number),
        )  # fmt: skip


class CudaPass:
    """Attention of one step over the paged cache."""

    def __init__(self, memory: Memory, key: Key, part: dict[str, Tensor]) -> None:
        self.memory, self.key, self.part = memory, key, part
        _, _, pages, self.kv_heads, self.page, self.size = memory.cache.shape
        self.value_offset = pages * self.kv_heads * self.page * self.size
        self.width = memory.tables.shape[1]
        self.shared = memory.heads // self.kv_heads
        wanted = SPLIT_UP_TO // max(1, key.samples * self.kv_heads)
        self.splits = min(16, 1 << max(0, wanted.bit_length() - 1)) if self.width * self.page > 512 else 1

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        """Keys and values that are not in the cache yet, as `Plain` hands them over."""
        positions, slots = self.part["positions"].long(), self.part["slots"].long()
        pages = self.memory.tables[slots, positions // self.page].long()
        cache = self.memory.cache[layer]
        cache[0, pages, :, positions % self.page] = keys
        cache[1, pages, :, positions % self.page] = values
        queries = queries.contiguous()
        return self.look(layer, queries, queries.stride(0), scale)

    def look(self, layer: int, queries: Tensor, stride: int, scale: float) -> Tensor:
        """Attention over what the cache holds by now, queries included."""
        memory, part, key = self.memory, self.part, self.key
        heads, size = memory.heads, self.size
        cache = memory.cache[layer]
        out = torch.empty(key.rows, heads, size, dtype=cache.dtype, device=cache.device)
        counts = part["counts"]
        shape: dict[str, Any] = {"HEADS": heads, "KV_HEADS": self.kv_heads, "SIZE": size, "PAGE": self.page}
        partial = stats = out
        if self.splits > 1:
            partial = torch.empty(key.samples, heads, self.splits, size, dtype=torch.float32, device=cache.device)
            stats = torch.empty(key.samples, heads, self.splits, 2, dtype=torch.float32, device=cache.device)
        kernels.attend_one[(key.samples, self.kv_heads, self.splits)](
            queries, stride, cache, memory.tables, part["slots"], part["positions"], counts, out, partial, stats, scale,
            self.width, self.value_offset, GROUP=max(16, triton.next_power_of_2(self.shared)), BLOCK=64,
            SPLITS=self.splits, num_warps=4, num_stages=3, **shape,
        )  # fmt: skip
        if self.splits > 1:
            kernels.join_splits[(key.samples, heads)](
                partial, stats, counts, out, HEADS=heads, SIZE=size, SPLITS=self.splits, num_warps=1
            )
        if key.blocks:
            kernels.attend_many[(key.blocks, self.kv_heads)](
                queries, stride, cache, memory.tables, part["slots"], part["positions"], part["blocks"], counts[1:],
                out, scale, self.width, self.value_offset, GROUP=triton.next_power_of_2(self.shared), ROWS=ROWS,
                BLOCK=64, num_warps=4, num_stages=2, **shape,
            )  # fmt: skip
        return out


class CudaFolded(Folded):
    """A decoder of known shape in nine kernels a layer."""

    def logits(self, ids: Tensor, positions: Tensor, rows: Tensor, plan: Any) -> Tensor:
        count, every = len(ids), self.heads + 2 * self.kv_heads
        stride = every * self.head_dim
        x = functional.embedding(ids, self.embedding)
        delta = x
        for index, layer in enumerate(self.layers):
            joint = layer.qkv(self._add_norm(x, delta if index else None, layer.norm))
            self._rotate(joint, index, layer.q_norm, layer.k_norm, plan)
            seen = plan.look(index, joint, stride, self.scale)
            delta = layer.out(seen.view(count, self.heads * self.head_dim))
            if index == len(self.layers) - 1:
                x, delta = x[rows], delta[rows]  # only these are asked for
            gate_up = layer.gate_up(self._add_norm(x, delta, layer.mlp_norm))
            delta = layer.down(_silu_mul(gate_up))
        return self.head(self._add_norm(x, delta, self.norm))

    def _add_norm(self, x: Tensor, delta: Tensor | None, weight: Tensor) -> Tensor:
        out, size = torch.empty_like(x), x.shape[1]
        kernels.add_norm[(len(x),)](
            x, x if delta is None else delta, weight, out, self.eps, SIZE=size, WIDE=triton.next_power_of_2(size),
            ADD=delta is not None, num_warps=4 if size <= 2048 else 8,
        )  # fmt: skip
        return out

    def _rotate(self, joint: Tensor, index: int, q_norm: Tensor | None, k_norm: Tensor | None, plan: CudaPass) -> None:
        memory, part = plan.memory, plan.part
        kernels.rotate_and_store[(len(joint),)](
            joint, part["positions"], part["slots"], memory.tables, memory.cache[index], self.cos, self.sin,
            self.norm if q_norm is None else q_norm, self.norm if k_norm is None else k_norm, self.eps, plan.width,
            plan.value_offset, HEADS=self.heads, KV_HEADS=self.kv_heads, SIZE=self.head_dim, PAGE=plan.page,
            ALL=triton.next_power_of_2(self.heads + 2 * self.kv_heads), NORM=q_norm is not None,
        )  # fmt: skip


def _silu_mul(joint: Tensor) -> Tensor:
    size = joint.shape[1] // 2
    out = torch.empty(len(joint), size, dtype=joint.dtype, device=joint.device)
    kernels.silu_mul[(len(joint), triton.cdiv(size, 1024))](joint, out, SIZE=size, BLOCK=1024)
    return out


def _rung(count: int, most: int) -> int:
    """The size on the ladder that holds this many."""
    if count > LADDER[-1]:
        return min(most, -(-count // 128) * 128) if most >= count else count
    return min(LADDER[bisect_left(LADDER, count)], max(most, count))


def _power(count: int, least: int) -> int:
    return max(least, 1 << (count - 1).bit_length() if count > 1 else 1)


def _addresses(model: PreTrainedModel) -> list[int]:
    return [parameter.data_ptr() for parameter in model.parameters()]
