# pyright: basic, reportMissingImports=false, reportArgumentType=false, reportIndexIssue=false, reportCallIssue=false
# pyright: reportAttributeAccessIssue=false, reportOperatorIssue=false
"""Triton kernels for the operations of a decoder that are not matrix products.

Values are rounded where the model's own operations round them, so that log-probs equal those of a plain forward pass.
"""

from __future__ import annotations

import triton
import triton.language as tl

# A cache of one layer is (2, pages, kv_heads, page_size, head_dim): keys, then values. `tables` has a row of page
# numbers for every slot. `count` points to the number of real rows or blocks; the rest is padding.


@triton.jit
def add_norm(x, delta, weight, out, eps, SIZE: tl.constexpr, WIDE: tl.constexpr, ADD: tl.constexpr):
    """x += delta, then out = rms_norm(x) * weight. One program per row."""
    row = tl.program_id(0).to(tl.int64) * SIZE
    at = tl.arange(0, WIDE)
    real = at < SIZE
    value = tl.load(x + row + at, mask=real, other=0.0)
    kind = value.dtype
    if ADD:
        value = (value.to(tl.float32) + tl.load(delta + row + at, mask=real, other=0.0).to(tl.float32)).to(kind)
        tl.store(x + row + at, value, mask=real)
    wide = value.to(tl.float32)
    spread = tl.rsqrt(tl.sum(wide * wide, 0) / SIZE + eps)
    normed = (wide * spread).to(kind).to(tl.float32)
    scale = tl.load(weight + at, mask=real, other=0.0).to(tl.float32)
    tl.store(out + row + at, (scale * normed).to(kind), mask=real)


@triton.jit
def silu_mul(joint, out, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """out = silu(left half) * right half."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real = at < SIZE
    gate = tl.load(joint + row * 2 * SIZE + at, mask=real, other=0.0)
    up = tl.load(joint + row * 2 * SIZE + SIZE + at, mask=real, other=0.0).to(tl.float32)
    wide = gate.to(tl.float32)
    act = (wide / (1.0 + tl.exp(-wide))).to(gate.dtype).to(tl.float32)
    tl.store(out + row * SIZE + at, (act * up).to(gate.dtype), mask=real)


@triton.jit
def copy_pages(cache, pairs, count, plane, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """Copy pages of the whole cache. `pairs` is (from, to); one program per pair, layer and keys or values."""
    pair = tl.program_id(0)
    if pair >= tl.load(count):
        return
    base = cache + tl.program_id(1).to(tl.int64) * plane
    source = tl.load(pairs + 2 * pair).to(tl.int64) * SIZE
    target = tl.load(pairs + 2 * pair + 1).to(tl.int64) * SIZE
    for start in range(0, SIZE, BLOCK):
        at = start + tl.arange(0, BLOCK)
        tl.store(base + target + at, tl.load(base + source + at, mask=at < SIZE), mask=at < SIZE)


@triton.jit
def rotate_and_store(
    joint, positions, slots, tables, cache, cos, sin, q_norm, k_norm, eps, table_width, value_offset,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, SIZE: tl.constexpr, PAGE: tl.constexpr, ALL: tl.constexpr,
    NORM: tl.constexpr,
):  # fmt: skip
    """Rotate queries (in place) and keys by their position; write keys and values to the cache. One program per row."""
    row = tl.program_id(0).to(tl.int64)
    position = tl.load(positions + row)
    slot = tl.load(slots + row).to(tl.int64)
    page = tl.load(tables + slot * table_width + position // PAGE).to(tl.int64)
    half: tl.constexpr = SIZE // 2
    head = tl.arange(0, ALL)[:, None]
    at = tl.arange(0, half)[None, :]
    real = (head < HEADS + 2 * KV_HEADS) & (at < half)
    place = row * (HEADS + 2 * KV_HEADS) * SIZE + head * SIZE + at
    left = tl.load(joint + place, mask=real, other=0.0)
    right = tl.load(joint + place + half, mask=real, other=0.0)
    kind = left.dtype
    is_query, is_key = head < HEADS, (head >= HEADS) & (head < HEADS + KV_HEADS)
    wide_left, wide_right = left.to(tl.float32), right.to(tl.float32)
    if NORM:
        spread = tl.rsqrt((tl.sum(wide_left * wide_left, 1) + tl.sum(wide_right * wide_right, 1)) / SIZE + eps)[:, None]
        weight_left = tl.where(is_query, tl.load(q_norm + at), tl.load(k_norm + at)).to(tl.float32)
        weight_right = tl.where(is_query, tl.load(q_norm + half + at), tl.load(k_norm + half + at)).to(tl.float32)
        wide_left = ((wide_left * spread).to(kind).to(tl.float32) * weight_left).to(kind).to(tl.float32)
        wide_right = ((wide_right * spread).to(kind).to(tl.float32) * weight_right).to(kind).to(tl.float32)
    c = tl.load(cos + position.to(tl.int64) * SIZE + at).to(tl.float32)
    s = tl.load(sin + position.to(tl.int64) * SIZE + at).to(tl.float32)
    turned_left = (wide_left * c).to(kind).to(tl.float32) - (wide_right * s).to(kind).to(tl.float32)
    turned_right = (wide_right * c).to(kind).to(tl.float32) + (wide_left * s).to(kind).to(tl.float32)
    tl.store(joint + place, turned_left.to(kind), mask=is_query & real)
    tl.store(joint + place + half, turned_right.to(kind), mask=is_query & real)
    into = cache + (page * KV_HEADS) * PAGE * SIZE + (position % PAGE) * SIZE + at
    key_head = (head - HEADS).to(tl.int64)
    tl.store(into + key_head * PAGE * SIZE, turned_left.to(kind), mask=is_key)
    tl.store(into + key_head * PAGE * SIZE + half, turned_right.to(kind), mask=is_key)
    value_head = (head - HEADS - KV_HEADS).to(tl.int64)
    is_value = (value_head >= 0) & real
    tl.store(into + value_offset + value_head * PAGE * SIZE, left, mask=is_value)
    tl.store(into + value_offset + value_head * PAGE * SIZE + half, right, mask=is_value)


@triton.jit
def attend_one(
    queries, query_stride, cache, tables, slots, positions, count, out, partial, stats, scale, table_width,
    value_offset, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, GROUP: tl.constexpr, SIZE: tl.constexpr,
    PAGE: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Attention of one query token over its whole text. One program per row, key head and split of the text."""
    row = tl.program_id(0)
    if row >= tl.load(count):
        return
    kv_head, split = tl.program_id(1), tl.program_id(2)
    shared: tl.constexpr = HEADS // KV_HEADS
    slot = tl.load(slots + row).to(tl.int64)
    length = tl.load(positions + row) + 1
    part = tl.cdiv(tl.cdiv(length, SPLITS), BLOCK) * BLOCK
    begin, end = split * part, min((split + 1) * part, length)
    member = tl.arange(0, GROUP)
    at = tl.arange(0, SIZE)
    head = kv_head * shared + member
    query = tl.load(
        queries + row.to(tl.int64) * query_stride + head[:, None] * SIZE + at[None, :],
        mask=(member < shared)[:, None], other=0.0,
    )  # fmt: skip
    best = tl.full([GROUP], float("-inf"), tl.float32)
    total = tl.zeros([GROUP], tl.float32)
    seen = tl.zeros([GROUP, SIZE], tl.float32)
    for start in range(begin, end, BLOCK):
        token = start + tl.arange(0, BLOCK)
        real = token < end
        page = tl.load(tables + slot * table_width + token // PAGE, mask=real, other=0).to(tl.int64)
        where = ((page * KV_HEADS + kv_head) * PAGE + token % PAGE) * SIZE
        key = tl.load(cache + where[None, :] + at[:, None], mask=real[None, :], other=0.0)
        score = tl.dot(query, key, input_precision="ieee") * scale
        score = tl.where(real[None, :], score, float("-inf"))
        higher = tl.maximum(best, tl.max(score, 1))
        shrink = tl.exp(best - higher)
        weight = tl.exp(score - higher[:, None])
        value = tl.load(cache + value_offset + where[:, None] + at[None, :], mask=real[:, None], other=0.0)
        total = total * shrink + tl.sum(weight, 1)
        seen = seen * shrink[:, None] + tl.dot(weight.to(value.dtype), value, input_precision="ieee")
        best = higher
    if SPLITS == 1:
        to = out + (row.to(tl.int64) * HEADS + head[:, None]) * SIZE + at[None, :]
        tl.store(to, (seen / total[:, None]).to(out.dtype.element_ty), mask=(member < shared)[:, None])
    else:
        place = (row.to(tl.int64) * HEADS + head) * SPLITS + split
        tl.store(partial + place[:, None] * SIZE + at[None, :], seen, mask=(member < shared)[:, None])
        tl.store(stats + place * 2, best, mask=member < shared)
        tl.store(stats + place * 2 + 1, total, mask=member < shared)


@triton.jit
def join_splits(
    partial, stats, count, out, HEADS: tl.constexpr, SIZE: tl.constexpr, SPLITS: tl.constexpr
):  # fmt: skip
    """Combine the splits of a text. One program per row and head."""
    row = tl.program_id(0)
    if row >= tl.load(count):
        return
    place = row.to(tl.int64) * HEADS + tl.program_id(1)
    split = tl.arange(0, SPLITS)
    at = tl.arange(0, SIZE)
    best = tl.load(stats + (place * SPLITS + split) * 2)
    total = tl.load(stats + (place * SPLITS + split) * 2 + 1)
    weight = tl.where(total > 0, tl.exp(best - tl.max(best, 0)), 0.0)
    seen = tl.load(partial + (place * SPLITS + split)[:, None] * SIZE + at[None, :])
    joint = tl.sum(seen * weight[:, None], 0) / tl.sum(total * weight, 0)
    tl.store(out + place * SIZE + at, joint.to(out.dtype.element_ty))


@triton.jit
def attend_many(
    queries, query_stride, cache, tables, slots, positions, blocks, count, out, scale, table_width, value_offset,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, GROUP: tl.constexpr, SIZE: tl.constexpr, PAGE: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Attention of adjacent prompt tokens of one text. `blocks` is (first row, number of rows) for each program."""
    block = tl.program_id(0)
    if block >= tl.load(count):
        return
    kv_head = tl.program_id(1)
    shared: tl.constexpr = HEADS // KV_HEADS
    first = tl.load(blocks + block * 2).to(tl.int64)
    number = tl.load(blocks + block * 2 + 1)
    slot = tl.load(slots + first).to(tl.int64)
    start_at = tl.load(positions + first)
    line = tl.arange(0, ROWS * GROUP)
    token_of, member = line // GROUP, line % GROUP
    asks = (token_of < number) & (member < shared)
    at = tl.arange(0, SIZE)
    head = kv_head * shared + member
    query = tl.load(
        queries + (first + token_of)[:, None] * query_stride + head[:, None] * SIZE + at[None, :],
        mask=asks[:, None], other=0.0,
    )  # fmt: skip
    best = tl.full([ROWS * GROUP], float("-inf"), tl.float32)
    total = tl.zeros([ROWS * GROUP], tl.float32)
    seen = tl.zeros([ROWS * GROUP, SIZE], tl.float32)
    end = start_at + number
    for start in range(0, end, BLOCK):
        token = start + tl.arange(0, BLOCK)
        real = token < end
        page = tl.load(tables + slot * table_width + token // PAGE, mask=real, other=0).to(tl.int64)
        where = ((page * KV_HEADS + kv_head) * PAGE + token % PAGE) * SIZE
        key = tl.load(cache + where[None, :] + at[:, None], mask=real[None, :], other=0.0)
        score = tl.dot(query, key, input_precision="ieee") * scale
        score = tl.where(token[None, :] <= (start_at + token_of)[:, None], score, float("-inf"))
        higher = tl.maximum(best, tl.max(score, 1))
        shrink = tl.exp(best - higher)
        weight = tl.exp(score - higher[:, None])
        value = tl.load(cache + value_offset + where[:, None] + at[None, :], mask=real[:, None], other=0.0)
        total = total * shrink + tl.sum(weight, 1)
        seen = seen * shrink[:, None] + tl.dot(weight.to(value.dtype), value, input_precision="ieee")
        best = higher
    to = out + ((first + token_of)[:, None] * HEADS + head[:, None]) * SIZE + at[None, :]
    tl.store(to, (seen / total[:, None]).to(out.dtype.element_ty), mask=asks[:, None])


@triton.jit
def sum_blocks(logits, temperature, floors, sums, SIZE, NUMBER, BLOCK: tl.constexpr):
    """For every row and block of the vocabulary: the highest logit, the sum of exponentials, and the argmax."""
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = block * BLOCK + tl.arange(0, BLOCK)
    heat = tl.load(temperature + row)
    raw = tl.load(logits + row * SIZE + at, mask=at < SIZE, other=float("-inf")).to(tl.float32)
    raw = tl.where(raw >= tl.load(floors + row), raw, float("-inf"))
    best = tl.max(raw, 0)
    where = tl.min(tl.where(raw == best, at, 2147483647), 0)  # the first of ties
    scale = tl.where(heat == 0, 1.0, 1.0 / heat)
    total = tl.sum(tl.where(raw > float("-inf"), tl.exp((raw - best) * scale), 0.0), 0)
    place = (row * NUMBER + block) * 3
    tl.store(sums + place, best)
    tl.store(sums + place + 1, tl.where(best > float("-inf"), total, 0.0))
    tl.store(sums + place + 2, where.to(tl.float32))


@triton.jit
def _mixed(x):
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def _noise(entry, first, second):
    """Gumbel noise, equal to `sampling.noise`."""
    x = _mixed(_mixed((entry.to(tl.uint32) * 0x9E3779B9) ^ first) ^ second)
    even = ((x >> 9).to(tl.float32) + 0.5) / 8388608.0
    return -tl.log(-tl.log(even))


@triton.jit
def draw(
    logits, temperature, floors, keys, sums, slots, last, tokens, logprobs, SIZE, NUMBER,
    BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """Draw a block of the vocabulary by its probability, then an entry inside it. One program per row."""
    row = tl.program_id(0).to(tl.int64)
    first, second = tl.load(keys + 2 * row).to(tl.uint32), tl.load(keys + 2 * row + 1).to(tl.uint32)
    block = tl.arange(0, BLOCKS)
    place = (row * NUMBER + block) * 3
    real = block < NUMBER
    best = tl.load(sums + place, mask=real, other=float("-inf"))
    total = tl.load(sums + place + 1, mask=real, other=0.0)
    where = tl.load(sums + place + 2, mask=real, other=2147483647.0)
    heat = tl.load(temperature + row)
    scale = tl.where(heat == 0, 1.0, 1.0 / heat)
    top = tl.max(best, 0)
    mass = tl.where(total > 0, total * tl.exp((best - top) * scale), 0.0)
    norm = tl.sum(mass, 0)
    score = tl.where(mass > 0, tl.log(mass) + _noise(block.to(tl.uint32) + 0x80000000, first, second), float("-inf"))
    chosen = tl.min(tl.where(score == tl.max(score, 0), block, BLOCKS), 0)
    at = tl.arange(0, BLOCK)
    token = chosen * BLOCK + at
    raw = tl.load(logits + row * SIZE + token, mask=token < SIZE, other=float("-inf")).to(tl.float32)
    drawable = (raw >= tl.load(floors + row)) & (raw > float("-inf"))
    entry = tl.where(drawable, raw * scale + _noise(token, first, second), float("-inf"))
    picked = chosen * BLOCK + tl.min(tl.where(entry == tl.max(entry, 0), at, BLOCK), 0)
    likeliest = tl.min(tl.where(best == top, where, 2147483647.0), 0).to(tl.int32)
    picked = tl.where(heat == 0, likeliest, picked)
    value = tl.load(logits + row * SIZE + picked).to(tl.float32)
    tl.store(tokens + row, picked)
    tl.store(logprobs + row, (value - top) * scale - tl.log(norm))
    tl.store(last + tl.load(slots + row), picked)


@triton.jit
def _ordered(value):
    """Map a float to an integer with the same order."""
    bits = value.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def find_floors(logits, temperature, top_p, top_k, floors, SIZE, BLOCK: tl.constexpr):
    """The lowest logit that may be drawn: the `top_k`-th, then the one at which the rest reaches `top_p`.

    Both are found by a binary search over the bits of the ordered integers, without sorting.
    """
    row = tl.program_id(0).to(tl.int64)
    heat = tl.load(temperature + row)
    scale = tl.where(heat == 0, 1.0, 1.0 / heat)
    k, p = tl.load(top_k + row), tl.load(top_p + row)
    at = tl.arange(0, BLOCK)
    high = tl.full([BLOCK], float("-inf"), tl.float32)
    for start in range(0, SIZE, BLOCK):
        raw = tl.load(logits + row * SIZE + start + at, mask=start + at < SIZE, other=float("-inf")).to(tl.float32)
        high = tl.maximum(high, raw)
    top = tl.max(high, 0)
    floor = tl.full([], -2147483648, tl.int64)
    for stage in range(2):
        # Stage 0: at least k entries are not below the floor. Stage 1: their mass is at least p of the remaining mass.
        below = floor
        every = tl.zeros([BLOCK], tl.float32)
        for start in range(0, SIZE, BLOCK):
            raw = tl.load(logits + row * SIZE + start + at, mask=start + at < SIZE, other=float("-inf")).to(tl.float32)
            inside = (_ordered(raw).to(tl.int64) >= below) & (start + at < SIZE)
            every += tl.where(inside, tl.exp((raw - top) * scale), 0.0)
        goal = tl.where(stage == 0, k.to(tl.float32), p * tl.sum(every, 0))
        on = tl.where(stage == 0, k > 0, p < 1.0)
        for bit in range(32):
            raised = floor + (tl.full([], 1, tl.int64) << (31 - bit))
            found = tl.zeros([BLOCK], tl.float32)
            for start in range(0, SIZE, BLOCK):
                raw = tl.load(
                    logits + row * SIZE + start + at, mask=start + at < SIZE, other=float("-inf")
                ).to(tl.float32)  # fmt: skip
                inside = (_ordered(raw).to(tl.int64) >= raised) & (start + at < SIZE)
                found += tl.where(inside, tl.where(stage == 0, 1.0, tl.exp((raw - top) * scale)), 0.0)
            floor = tl.where(on & (tl.sum(found, 0) >= goal) & (raised <= 2147483647), raised, floor)
    bits = floor.to(tl.int32)
    value = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.float32, bitcast=True)
    tl.store(floors + row, tl.where((k > 0) | (p < 1.0), value, float("-inf")))
