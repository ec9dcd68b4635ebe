# pyright: standard
"""Replaceable attention for a Hugging Face decoder.

The engine attends over a paged cache, the learner over a packed tree, other callers want plain causal attention; all
three run the same module object. `attach(model)` registers our attention function once. A call of the model with
`**planned(plan)` attends by that `Plan`: transformers hands keywords that it does not know on to attention, so threads
can run the model at the same time with different plans, and a plan can be compiled like any other input.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from ramet.errors import ConfigError

NAME = "ramet"
# The mask of calls with a plan. transformers passes masks of four dimensions on unread; without one it searches the
# positions for packed sequences, which makes the learner wait for the GPU in every forward pass.
UNREAD = torch.empty(1, 1, 1, 1)


class Plan(Protocol):
    """How the tokens of one forward pass attend to each other."""

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        """Tensors are (tokens, heads, size); returns the same shape as `queries`."""
        ...


def planned(plan: Plan) -> dict[str, Any]:
    """Keywords of a call of an attached model, on one row of tokens, that attends by `plan`."""
    return {"plan": plan, "attention_mask": UNREAD, "use_cache": False}


def attach(model: PreTrainedModel) -> None:
    """Make `model` use plans. Without an active plan its results do not change.

    Raises `ConfigError` for models that do not use the attention interface, have recurrent layers, or use a sliding
    window.
    """
    reason = unsupported(model)
    if reason:
        raise ConfigError(f"{type(model).__name__}: {reason}; supported are decoders like Llama, Qwen2 and Qwen3")
    if model.config._attn_implementation != NAME:
        model.set_attn_implementation(NAME)


def unsupported(model: PreTrainedModel) -> str | None:
    """Why this model cannot use plans, or None if it can."""
    if not isinstance(model, PreTrainedModel):
        return "not a Hugging Face model"
    if not getattr(model, "_supports_attention_backend", False):
        return "it does not use the attention interface of transformers"
    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"}:
        return f"it has layers of kind {', '.join(sorted(kinds - {'full_attention'}))}"
    if getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True):
        return "it has a sliding window"
    rope: dict[str, Any] = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope":  # longer texts would change the positions of cached tokens
        return "its positions depend on the length of the text (longrope)"
    return None


def _forward(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    plan: Plan | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """The attention function that transformers calls in every layer; tensors are (1, heads, tokens, size)."""
    if plan is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **options)
    for name in ("softcap", "s_aux"):
        if options.get(name) is not None:
            raise ConfigError(f"{type(module).__name__} needs {name}, which plans do not support")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    layer: Any = module.layer_idx
    queries, keys, values = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    return plan.attend(layer, queries, keys, values, scale).unsqueeze(0), None


def compile_plans(whole: bool) -> None:
    """Whether `torch.compile` compiles plans with their layers, from now on, or calls them as they are."""
    AttentionInterface.register(NAME, _forward if whole else torch.compiler.disable(_forward))


AttentionInterface.register(NAME, _forward)
AttentionMaskInterface.register(NAME, sdpa_mask)
