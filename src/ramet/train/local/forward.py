"""Log-probs of the tokens that rows sampled, under the current policy."""

# pyright: standard

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ramet.models.attention import planned
from ramet.train.local.head import CHUNK_ELEMENTS, Targets, pick, token_logprobs
from ramet.train.local.packing import pack
from ramet.train.local.policy import Policy
from ramet.train.local.transfer import to_device
from ramet.train.local.trie_attention import padded_length, plan_for
from ramet.train.rows import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """One number per trained token: rows in the order given, tokens in the order sampled."""

    logprobs: Tensor
    entropies: Tensor | None  # without gradient; None: not computed
    num_read: int  # tokens the model was run on, padding included


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """The inputs of the model, and the position at which each trained token is predicted."""

    inputs: dict[str, Any]
    positions: Sequence[int]  # in the flattened inputs, per trained token
    tokens: Sequence[int]


def row_logprobs(
    policy: Policy,
    rows: Sequence[Row],
    *,
    temperature: float = 1.0,
    entropy: bool = False,
    chunk_elements: int = CHUNK_ELEMENTS,
) -> Scores:
    """Run the model once over `rows`, packed or padded as the policy supports. `temperature` is the sampler's."""
    if not any(row.num_trained for row in rows):
        nothing = torch.zeros(0, device=policy.device)
        return Scores(logprobs=nothing, entropies=nothing if entropy else None, num_read=0)
    reading = _packed(policy, rows) if policy.packs else _padded(policy, rows)
    places, targets, back = _arrange(reading, policy.device)
    states = _states(policy, reading, places)
    if policy.head is None:
        logprobs, entropies = pick(states, targets, temperature=temperature, entropy=entropy)
    else:
        logprobs, entropies = token_logprobs(
            states, policy.head, targets, temperature=temperature, entropy=entropy, chunk_elements=chunk_elements
        )
    return Scores(
        logprobs=logprobs[back],
        entropies=None if entropies is None else entropies[back],
        num_read=reading.inputs["input_ids"].numel(),
    )


def _packed(policy: Policy, rows: Sequence[Row]) -> _Reading:
    packed = pack(rows)
    plan = plan_for(packed, policy.core.dtype, policy.device)
    padding = (0,) * (padded_length(packed, plan) - len(packed.token_ids))
    inputs = {
        "input_ids": to_device(packed.token_ids + padding, policy.device)[None],
        "position_ids": to_device(packed.depths + padding, policy.device)[None],
        **planned(plan),
    }
    return _Reading(inputs=inputs, positions=packed.positions, tokens=packed.targets)


def _padded(policy: Policy, rows: Sequence[Row]) -> _Reading:
    """Rows as a batch, padded on the right: for models whose attention cannot be planned."""
    reads = [row.read for row in rows]
    width = max(map(len, reads))
    inputs = {
        "input_ids": torch.tensor([read + (0,) * (width - len(read)) for read in reads], device=policy.device),
        "attention_mask": torch.tensor(
            [[1] * len(read) + [0] * (width - len(read)) for read in reads], device=policy.device
        ),
        "use_cache": False,
    }
    positions = [line * width + at - 1 for line, row in enumerate(rows) for at in row.trained]
    tokens = [token for row in rows for token in compress(row.token_ids, row.mask)]
    return _Reading(inputs=inputs, positions=positions, tokens=tokens)


def _arrange(reading: _Reading, device: torch.device) -> tuple[Tensor, Targets, Tensor]:
    """Each predicting position once, its targets in order, and the permutation back to the order of rows."""
    positions = np.array(reading.positions)
    places, slots, counts = np.unique(positions, return_inverse=True, return_counts=True)
    order = np.argsort(positions, kind="stable")
    back = np.empty_like(order)
    back[order] = np.arange(len(order))
    targets = Targets(
        slots=to_device(slots[order], device),
        tokens=to_device(np.array(reading.tokens)[order], device),
        counts=tuple(counts.tolist()),
    )
    return to_device(places, device), targets, to_device(back, device)


def _states(policy: Policy, reading: _Reading, places: Tensor) -> Tensor:
    """Hidden states at the predicting positions; logits for models that do more than a linear head."""
    if policy.head is not None:
        return policy.decoder(**reading.inputs).last_hidden_state.flatten(0, 1)[places]
    if "plan" in reading.inputs:
        return policy.model(**reading.inputs, logits_to_keep=places).logits[0]
    return policy.model(**reading.inputs).logits.flatten(0, 1)[places]
