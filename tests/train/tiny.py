"""Tiny random models in double precision, and rows that share prefixes."""

from __future__ import annotations

import copy
from functools import cache

import torch
from hypothesis import strategies as st
from transformers import (
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from ramet.train.local.policy import Policy
from ramet.train.rows import Row

VOCABULARY = 19
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
FAMILIES = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=True)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=8, tie_word_embeddings=False)),
    "granite": lambda: GraniteForCausalLM(GraniteConfig(**SIZES, logits_scaling=3.0)),
}


@cache
def _original(family: str) -> PreTrainedModel:
    torch.manual_seed(7)
    return exact(FAMILIES[family]())


def exact(made: PreTrainedModel) -> PreTrainedModel:
    """Double precision throughout: norms of transformers go through single. Spread out, so that a wrong mask shows."""
    for module in list(made.modules()):
        for name, child in module.named_children():
            if type(child).__name__.endswith("RMSNorm"):
                norm = torch.nn.RMSNorm(child.weight.shape, eps=child.variance_epsilon)
                module.register_module(name, norm)
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.ndim > 1:
                parameter.mul_(8)
    return made.double()


def model(family: str = "llama") -> PreTrainedModel:
    """Always the same weights, in a module of its own."""
    return copy.deepcopy(_original(family))


def row(*token_ids: int, trained: int = 1, **known: object) -> Row:
    """A row whose last tokens are trained, unless a mask is given."""
    mask = (False,) * (len(token_ids) - trained) + (True,) * trained
    given = {"mask": mask, "logprobs": None, "advantage": 1.0, "tree_id": "t", **known}
    return Row(token_ids=token_ids, **given)  # pyright: ignore[reportArgumentType]


def gradients(policy: Policy) -> dict[str, torch.Tensor]:
    """Of every parameter, and gone afterwards."""
    found = {name: p.grad.clone() for name, p in policy.model.named_parameters() if p.grad is not None}
    policy.model.zero_grad()
    return found


def largest_difference(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> float:
    assert left.keys() == right.keys()
    assert left
    return max(float((left[name] - right[name]).abs().max()) for name in left)


@st.composite
def tries(draw: st.DrawFn, *, most: int = 7) -> list[Row]:
    """Rows that grow out of each other: from any point of an earlier row, to its end, or not at all."""
    token = st.integers(0, 3)
    rows: list[Row] = []
    for index in range(draw(st.integers(1, most))):
        start: tuple[int, ...] = ()
        if rows and draw(st.booleans()):
            earlier = draw(st.sampled_from(rows)).token_ids
            start = earlier[: draw(st.integers(0, len(earlier)))]
        token_ids = start + tuple(draw(st.lists(token, min_size=0 if start else 1, max_size=6)))
        mask = (False, *(draw(st.booleans()) for _ in token_ids[1:]))
        logprobs = tuple(draw(st.floats(-3, 0)) if sampled else 0.0 for sampled in mask)
        rows.append(
            Row(
                token_ids=token_ids,
                mask=mask,
                logprobs=logprobs,
                advantage=draw(st.floats(-2, 2)),
                weight=draw(st.sampled_from([0.5, 1.0, 2.0])),
                tree_id=draw(st.sampled_from("ab")),
                node=index,
                versions=(0,),
            )
        )
    return rows
