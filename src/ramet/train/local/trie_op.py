"""Attention over a packed trie as one operation of torch: kernels of a GPU, gradients, and shapes for the compiler."""

# pyright: standard

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

BLOCK = 128  # tokens; sequences are padded to whole blocks
LOG2_E = math.log2(math.e)


@dataclass(frozen=True, slots=True)
class _Launch:
    """How a kernel is run: the tokens that a program holds, those that it reads at a time, warps, stages of loads."""

    rows: int
    step: int
    warps: int
    stages: int

    @property
    def options(self) -> dict[str, int]:
        return {"ROWS": self.rows, "STEP": self.step, "num_warps": self.warps, "num_stages": self.stages}


@dataclass(frozen=True, slots=True)
class _Launches:
    attend: _Launch
    query_gradient: _Launch
    key_gradient: _Launch


def _launches(wide: int, dtype: torch.dtype) -> _Launches:
    """Sizes that fit the registers and the shared memory of a multiprocessor; those of 64 and 128 were measured."""
    if dtype.itemsize > 2:
        launch = (
            _Launch(64, 32, 4, 1) if wide <= 64 else _Launch(32, 32, 4, 1) if wide <= 128 else _Launch(16, 16, 4, 1)
        )
        return _Launches(launch, launch, launch)
    if wide <= 64:
        return _Launches(_Launch(128, 64, 4, 3), _Launch(64, 64, 4, 3), _Launch(64, 64, 4, 3))
    if wide <= 128:
        return _Launches(_Launch(128, 64, 4, 2), _Launch(64, 32, 4, 2), _Launch(128, 64, 8, 2))
    return _Launches(_Launch(64, 32, 8, 1), _Launch(32, 32, 4, 1), _Launch(32, 32, 4, 1))


@dataclass(frozen=True, slots=True)
class Lists:
    """What the kernels read about a trie; see `trie_kernels`. All of it is one tensor, so that one copy brings it."""

    ends: Tensor  # per token: the end of its branch
    offsets: Tensor  # per block of queries: where its list in `blocks` begins; one more at the end
    fulls: Tensor  # per block of queries: how many of its list it sees without a mask
    whole: Tensor  # per block of keys: blocks of queries before this one see all of it
    slots: Tensor  # per block of keys: where its items begin; one more at the end
    blocks: Tensor  # the lists: blocks of keys


def split_lists(joint: Tensor, tokens: int) -> Lists:
    number = tokens // BLOCK
    sizes = [tokens, number + 1, number, number, number + 1]
    return Lists(*joint.split([*sizes, joint.shape[0] - sum(sizes)]))


def _kernels() -> Any:
    """Triton is there where a GPU is."""
    from ramet.train.local import trie_kernels

    return trie_kernels


def attend(
    queries: Tensor, keys: Tensor, values: Tensor, joint: Tensor, items: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """Outputs, and for every query the logarithm (base 2) of the sum of its weights, as (heads, tokens)."""
    del items  # for the gradient
    kernels = _kernels()
    queries, keys, values = (_rows(one) for one in (queries, keys, values))
    tokens, heads, size = queries.shape
    out = torch.empty((tokens, heads, size), dtype=queries.dtype, device=queries.device)
    sums = torch.empty((heads, tokens), dtype=torch.float32, device=queries.device)
    lists = split_lists(joint, tokens)
    wide = _wide(size)
    launch = _launches(wide, queries.dtype).attend
    with torch.cuda.device_of(queries):  # Triton runs kernels on the current device
        kernels.attend[(heads, tokens // launch.rows)](
            queries, keys, values, out, sums, lists.ends, lists.offsets, lists.fulls, lists.blocks, scale * LOG2_E,
            tokens, *_strides(queries, keys, values, out),
            SHARED=heads // keys.shape[1], SIZE=size, WIDE=wide, BLOCK=BLOCK, **launch.options,
        )  # fmt: skip
    return out, sums


def attend_backward(
    grads: Tensor,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    out: Tensor,
    sums: Tensor,
    joint: Tensor,
    items: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries, keys and values."""
    kernels = _kernels()
    grads, queries, keys, values = (_rows(one) for one in (grads, queries, keys, values))
    tokens, heads, size = queries.shape
    kv_heads, number = keys.shape[1], items.shape[0]
    lists = split_lists(joint, tokens)
    wide = _wide(size)
    launches = _launches(wide, queries.dtype)
    sizes = {"SHARED": heads // kv_heads, "SIZE": size, "WIDE": wide, "BLOCK": BLOCK}
    deltas = torch.empty_like(sums)
    parts = torch.empty((2, number, kv_heads, BLOCK, size), dtype=torch.float32, device=queries.device)
    changes, key_changes, value_changes = (
        torch.empty(one.shape, dtype=one.dtype, device=one.device) for one in (queries, keys, values)
    )
    by_query, by_key = launches.query_gradient, launches.key_gradient
    with torch.cuda.device_of(queries):
        kernels.query_gradient[(heads, tokens // by_query.rows)](
            queries, keys, values, out, grads, sums, deltas, changes, lists.ends, lists.offsets, lists.fulls,
            lists.blocks, scale * LOG2_E, scale, tokens, *_strides(queries, keys, values, out, grads, changes),
            **sizes, **by_query.options,
        )  # fmt: skip
        kernels.key_gradient[(kv_heads, number, BLOCK // by_key.rows)](
            queries, keys, values, grads, sums, deltas, parts[0], parts[1], lists.ends, items, lists.whole,
            scale * LOG2_E, tokens, *_strides(queries, keys, values, grads), **sizes, **by_key.options,
        )  # fmt: skip
        kernels.join_items[(kv_heads, tokens // 32)](
            parts[0], parts[1], key_changes, value_changes, lists.slots, scale,
            SIZE=size, WIDE=wide, BLOCK=BLOCK, ROWS=32,
        )  # fmt: skip
    return changes, key_changes, value_changes


def _wide(size: int) -> int:
    """Tiles have a power of two, at least 16."""
    return max(16, 1 << (size - 1).bit_length())


def _rows(one: Tensor) -> Tensor:
    return one if one.stride(-1) == 1 else one.contiguous()


def _strides(*tensors: Tensor) -> list[int]:
    return [stride for one in tensors for stride in one.stride()[:2]]


trie_attention = torch.library.custom_op("ramet::trie_attention", attend, mutates_args=(), device_types="cuda")
trie_attention_backward = torch.library.custom_op(
    "ramet::trie_attention_backward", attend_backward, mutates_args=(), device_types="cuda"
)


@trie_attention.register_fake
def _(queries: Tensor, keys: Tensor, values: Tensor, joint: Tensor, items: Tensor, scale: float) -> Any:
    del keys, values, joint, items, scale
    tokens, heads, _ = queries.shape
    return queries.new_empty(queries.shape), queries.new_empty((heads, tokens), dtype=torch.float32)


@trie_attention_backward.register_fake
def _(grads: Tensor, queries: Tensor, keys: Tensor, values: Tensor, *rest: Any) -> Any:
    del grads, rest
    return tuple(one.new_empty(one.shape) for one in (queries, keys, values))


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    queries, keys, values, joint, items, scale = inputs
    ctx.save_for_backward(queries, keys, values, *output, joint, items)
    ctx.scale = scale


def _backward(ctx: Any, grads: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    queries, keys, values, out, sums, joint, items = ctx.saved_tensors
    changes = trie_attention_backward(grads, queries, keys, values, out, sums, joint, items, ctx.scale)
    return *changes, None, None, None


trie_attention.register_autograd(_backward, setup_context=_remember)
