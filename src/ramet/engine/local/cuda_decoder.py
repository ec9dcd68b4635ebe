# pyright: standard, reportMissingImports=false, reportIndexIssue=false
"""A decoder with nine kernels per layer, and its attention over the paged cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor
from torch.nn import functional

from ramet.engine.local import kernels
from ramet.engine.local.cuda_inputs import ROWS, Key
from ramet.engine.local.decoder import FusedDecoder

SPLIT_UP_TO = 264  # programs that fill a GPU


@dataclass(slots=True)
class Memory:
    """State that stays on the device between steps."""

    cache: Tensor  # (layers, 2, pages, kv_heads, page_size, head_dim)
    tables: Tensor  # page numbers by slot
    last: Tensor  # newest token by slot
    heads: int


class CudaAttention:
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
        """Store keys and values in the cache, then attend: the interface that `PlainDecoder` uses."""
        positions, slots = self.part["positions"].long(), self.part["slots"].long()
        pages = self.memory.tables[slots, positions // self.page].long()
        cache = self.memory.cache[layer]
        cache[0, pages, :, positions % self.page] = keys
        cache[1, pages, :, positions % self.page] = values
        queries = queries.contiguous()
        return self.attend_cached(layer, queries, queries.stride(0), scale)

    def attend_cached(self, layer: int, queries: Tensor, stride: int, scale: float) -> Tensor:
        """Attention over the cache, which already holds the keys and values of this step."""
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
            SPLITS=self.splits, num_warps=2, num_stages=3, **shape,
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


class CudaFusedDecoder(FusedDecoder):
    """A fused decoder with nine kernels per layer."""

    def logits(self, ids: Tensor, positions: Tensor, rows: Tensor, plan: Any) -> Tensor:
        count, every = len(ids), self.heads + 2 * self.kv_heads
        stride = every * self.head_dim
        x = functional.embedding(ids, self.embedding)
        delta = x
        for index, layer in enumerate(self.layers):
            joint = layer.qkv(self._add_norm(x, delta if index else None, layer.norm))
            self._rotate(joint, index, layer.q_norm, layer.k_norm, plan)
            seen = plan.attend_cached(index, joint, stride, self.scale)
            delta = layer.out(seen.view(count, self.heads * self.head_dim))
            if index == len(self.layers) - 1:
                x, delta = x[rows], delta[rows]  # only these are sampled from
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

    def _rotate(
        self, joint: Tensor, index: int, q_norm: Tensor | None, k_norm: Tensor | None, plan: CudaAttention
    ) -> None:
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
