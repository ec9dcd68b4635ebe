# pyright: basic, reportMissingImports=false, reportArgumentType=false, reportIndexIssue=false, reportCallIssue=false
# pyright: reportAttributeAccessIssue=false, reportOperatorIssue=false
"""Triton kernels for attention over a packed trie, and for its gradient.

`query` attends to `key` when key <= query < ends[key]. Tokens are in blocks of BLOCK. A block of queries has a list of
the blocks of keys that it sees, those that all of it sees first: they need no mask. A block of keys is seen by the
blocks of queries that follow it without a gap; the gradient of keys and values divides them into items, so that no
program takes much longer than the others.

Queries are (tokens, heads, size), keys and values (tokens, heads / SHARED, size). Exponentials are those of base 2.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _tile(base, tokens, stride, at, SIZE: tl.constexpr, WIDE: tl.constexpr):
    """Rows of one head, as (tokens, WIDE)."""
    where = base + tokens[:, None].to(tl.int64) * stride + at[None, :]
    if SIZE == WIDE:
        return tl.load(where)
    return tl.load(where, mask=at[None, :] < SIZE, other=0.0)


@triton.jit
def _put(base, tokens, stride, at, values, SIZE: tl.constexpr, WIDE: tl.constexpr):
    where = base + tokens[:, None].to(tl.int64) * stride + at[None, :]
    values = values.to(base.dtype.element_ty)
    if SIZE == WIDE:
        tl.store(where, values)
    else:
        tl.store(where, values, mask=at[None, :] < SIZE)


@triton.jit
def _dot(left, right):
    return tl.dot(left, right, input_precision="ieee")


@triton.jit
def _scan(
    query, rows, best, total, seen, keys, values, key_stride, value_stride, ends, blocks, first, last, scale, at,
    SIZE: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr, STEP: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Add the blocks first to last of the list to what the queries have seen."""
    parts: tl.constexpr = BLOCK // STEP
    for turn in range(first * parts, last * parts):
        token = tl.load(blocks + turn // parts) * BLOCK + turn % parts * STEP + tl.arange(0, STEP)
        key = _tile(keys, token, key_stride, at, SIZE, WIDE)
        score = _dot(query, tl.trans(key)) * scale
        if MASKED:
            end = tl.load(ends + token)
            visible = (token[None, :] <= rows[:, None]) & (rows[:, None] < end[None, :])
            score = tl.where(visible, score, float("-inf"))
        higher = tl.maximum(best, tl.max(score, 1))
        base = tl.where(higher == float("-inf"), 0.0, higher) if MASKED else higher  # some have seen nothing yet
        weight = tl.exp2(score - base[:, None])
        shrink = tl.exp2(best - base)
        value = _tile(values, token, value_stride, at, SIZE, WIDE)
        total = total * shrink + tl.sum(weight, 1)
        seen = seen * shrink[:, None] + _dot(weight.to(value.dtype), value)
        best = higher
    return best, total, seen


@triton.jit
def attend(
    queries, keys, values, out, sums, ends, offsets, fulls, blocks, scale, tokens,
    query_stride, query_head, key_stride, key_head, value_stride, value_head, out_stride, out_head,
    SHARED: tl.constexpr, SIZE: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
    STEP: tl.constexpr,
):  # fmt: skip
    """Attention of ROWS queries of one head; `sums` are the logarithms of the sums of their weights."""
    head, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    block = part * ROWS // BLOCK
    rows = part * ROWS + tl.arange(0, ROWS)
    at = tl.arange(0, WIDE)
    query = _tile(queries + head * query_head, rows, query_stride, at, SIZE, WIDE)
    keys += head // SHARED * key_head
    values += head // SHARED * value_head
    best = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    seen = tl.zeros([ROWS, WIDE], tl.float32)
    first, last = tl.load(offsets + block), tl.load(offsets + block + 1)
    middle = first + tl.load(fulls + block)
    best, total, seen = _scan(
        query, rows, best, total, seen, keys, values, key_stride, value_stride, ends, blocks, first, middle, scale, at,
        SIZE, WIDE, BLOCK, STEP, False,
    )  # fmt: skip
    best, total, seen = _scan(
        query, rows, best, total, seen, keys, values, key_stride, value_stride, ends, blocks, middle, last, scale, at,
        SIZE, WIDE, BLOCK, STEP, True,
    )  # fmt: skip
    _put(out + head * out_head, rows, out_stride, at, seen / total[:, None], SIZE, WIDE)
    tl.store(sums + head * tokens + rows, best + tl.log2(total))


@triton.jit
def _scan_queries(
    query, grad, rows, total, delta, change, keys, values, key_stride, value_stride, ends, blocks, first, last, scale,
    at, SIZE: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr, STEP: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Add what the blocks first to last of the list contribute to the gradient of the queries."""
    parts: tl.constexpr = BLOCK // STEP
    for turn in range(first * parts, last * parts):
        token = tl.load(blocks + turn // parts) * BLOCK + turn % parts * STEP + tl.arange(0, STEP)
        key = _tile(keys, token, key_stride, at, SIZE, WIDE)
        value = _tile(values, token, value_stride, at, SIZE, WIDE)
        weight = tl.exp2(_dot(query, tl.trans(key)) * scale - total[:, None])
        if MASKED:
            end = tl.load(ends + token)
            visible = (token[None, :] <= rows[:, None]) & (rows[:, None] < end[None, :])
            weight = tl.where(visible, weight, 0.0)
        step = weight * (_dot(grad, tl.trans(value)) - delta[:, None])
        change += _dot(step.to(key.dtype), key)
    return change


@triton.jit
def query_gradient(
    queries, keys, values, out, grads, sums, deltas, changes, ends, offsets, fulls, blocks, scale, factor, tokens,
    query_stride, query_head, key_stride, key_head, value_stride, value_head, out_stride, out_head,
    grad_stride, grad_head, change_stride, change_head,
    SHARED: tl.constexpr, SIZE: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
    STEP: tl.constexpr,
):  # fmt: skip
    """The gradient of ROWS queries of one head; `deltas` are the products of outputs and their gradients."""
    head, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    block = part * ROWS // BLOCK
    rows = part * ROWS + tl.arange(0, ROWS)
    at = tl.arange(0, WIDE)
    place = head * tokens + rows
    query = _tile(queries + head * query_head, rows, query_stride, at, SIZE, WIDE)
    grad = _tile(grads + head * grad_head, rows, grad_stride, at, SIZE, WIDE)
    seen = _tile(out + head * out_head, rows, out_stride, at, SIZE, WIDE)
    delta = tl.sum(seen.to(tl.float32) * grad.to(tl.float32), 1)
    tl.store(deltas + place, delta)
    total = tl.load(sums + place)
    keys += head // SHARED * key_head
    values += head // SHARED * value_head
    change = tl.zeros([ROWS, WIDE], tl.float32)
    first, last = tl.load(offsets + block), tl.load(offsets + block + 1)
    middle = first + tl.load(fulls + block)
    change = _scan_queries(
        query, grad, rows, total, delta, change, keys, values, key_stride, value_stride, ends, blocks, first, middle,
        scale, at, SIZE, WIDE, BLOCK, STEP, False,
    )  # fmt: skip
    change = _scan_queries(
        query, grad, rows, total, delta, change, keys, values, key_stride, value_stride, ends, blocks, middle, last,
        scale, at, SIZE, WIDE, BLOCK, STEP, True,
    )  # fmt: skip
    _put(changes + head * change_head, rows, change_stride, at, change * factor, SIZE, WIDE)


@triton.jit
def _scan_keys(
    key, value, token, end, key_change, value_change, queries, grads, sums, deltas, query_stride, grad_stride, first,
    last, scale, at, SIZE: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr, STEP: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """Add what the blocks of queries from first to last contribute to the gradient of the keys and values."""
    parts: tl.constexpr = BLOCK // STEP
    for turn in range(first * parts, last * parts):
        row = turn * STEP + tl.arange(0, STEP)
        query = _tile(queries, row, query_stride, at, SIZE, WIDE)
        grad = _tile(grads, row, grad_stride, at, SIZE, WIDE)
        total, delta = tl.load(sums + row), tl.load(deltas + row)
        weight = tl.exp2(_dot(key, tl.trans(query)) * scale - total[None, :])
        if MASKED:
            visible = (token[:, None] <= row[None, :]) & (row[None, :] < end[:, None])
            weight = tl.where(visible, weight, 0.0)
        value_change += _dot(weight.to(grad.dtype), grad)
        step = weight * (_dot(value, tl.trans(grad)) - delta[None, :])
        key_change += _dot(step.to(query.dtype), query)
    return key_change, value_change


@triton.jit
def key_gradient(
    queries, keys, values, grads, sums, deltas, key_parts, value_parts, ends, items, whole, scale, tokens,
    query_stride, query_head, key_stride, key_head, value_stride, value_head, grad_stride, grad_head,
    SHARED: tl.constexpr, SIZE: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
    STEP: tl.constexpr,
):  # fmt: skip
    """What the queries of one item contribute to the gradient of ROWS keys and values of one head.

    An item is (block of keys, first block of queries, the one after the last). Blocks of queries before
    `whole[block of keys]`, but for the block itself, see all of its keys.
    """
    kv_head, item, part = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    block, first, last = tl.load(items + 3 * item), tl.load(items + 3 * item + 1), tl.load(items + 3 * item + 2)
    token = block * BLOCK + part * ROWS + tl.arange(0, ROWS)
    at = tl.arange(0, WIDE)
    key = _tile(keys + kv_head * key_head, token, key_stride, at, SIZE, WIDE)
    value = _tile(values + kv_head * value_head, token, value_stride, at, SIZE, WIDE)
    end = tl.load(ends + token)
    key_change = tl.zeros([ROWS, WIDE], tl.float32)
    value_change = tl.zeros([ROWS, WIDE], tl.float32)
    after_own = tl.minimum(tl.maximum(first, block + 1), last)
    after_whole = tl.minimum(tl.maximum(after_own, tl.load(whole + block)), last)
    for member in range(SHARED):
        head = kv_head * SHARED + member
        q, g = queries + head * query_head, grads + head * grad_head
        s, d = sums + head * tokens, deltas + head * tokens
        key_change, value_change = _scan_keys(
            key, value, token, end, key_change, value_change, q, g, s, d, query_stride, grad_stride, first, after_own,
            scale, at, SIZE, WIDE, BLOCK, STEP, True,
        )  # fmt: skip
        key_change, value_change = _scan_keys(
            key, value, token, end, key_change, value_change, q, g, s, d, query_stride, grad_stride, after_own,
            after_whole, scale, at, SIZE, WIDE, BLOCK, STEP, False,
        )  # fmt: skip
        key_change, value_change = _scan_keys(
            key, value, token, end, key_change, value_change, q, g, s, d, query_stride, grad_stride, after_whole, last,
            scale, at, SIZE, WIDE, BLOCK, STEP, True,
        )  # fmt: skip
    base = (item * tl.num_programs(0) + kv_head) * BLOCK * SIZE
    row = part * ROWS + tl.arange(0, ROWS)
    _put(key_parts + base, row, SIZE, at, key_change, SIZE, WIDE)
    _put(value_parts + base, row, SIZE, at, value_change, SIZE, WIDE)


@triton.jit
def join_items(
    key_parts, value_parts, key_changes, value_changes, slots, factor,
    SIZE: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Add up the items of a block of keys, always in the same order. Results are (tokens, heads, size)."""
    kv_head, part, heads = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(0)
    block = part * ROWS // BLOCK
    row = part * ROWS % BLOCK + tl.arange(0, ROWS)
    at = tl.arange(0, WIDE)
    key_change = tl.zeros([ROWS, WIDE], tl.float32)
    value_change = tl.zeros([ROWS, WIDE], tl.float32)
    for item in range(tl.load(slots + block), tl.load(slots + block + 1)):
        base = (item * heads + kv_head) * BLOCK * SIZE
        key_change += _tile(key_parts + base, row, SIZE, at, SIZE, WIDE)
        value_change += _tile(value_parts + base, row, SIZE, at, SIZE, WIDE)
    token = part * ROWS + tl.arange(0, ROWS)
    _put(key_changes + kv_head * SIZE, token, heads * SIZE, at, key_change * factor, SIZE, WIDE)
    _put(value_changes + kv_head * SIZE, token, heads * SIZE, at, value_change, SIZE, WIDE)
