# pyright: standard
"""Run a Hugging Face decoder, with its matrix products fused where its architecture is known.

Llama, Qwen2, Qwen3 and Mistral consist of the same few operations. Run one by one through the module, their overhead
exceeds the arithmetic, so `FusedDecoder` joins the module's own weights into few large products. Other architectures
run unchanged (`PlainDecoder`). Both delegate attention to a `Plan`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from ramet.models import attention

FUSED_MODELS = {"LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "MistralForCausalLM"}
ROPES = {"default", "linear", "llama3", "yarn"}  # rotary embeddings that do not depend on the length of the text


class Decoder(Protocol):
    """Tokens to logits."""

    def logits(self, ids: Tensor, positions: Tensor, rows: Tensor, plan: attention.Plan) -> Tensor:
        """Logits after the tokens at `rows`. All inputs are 1-d."""
        ...

    def refresh(self) -> None:
        """Use the weights as they are now."""
        ...


class PlainDecoder:
    """Any decoder with the attention interface, run through its own `forward`."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model

    def logits(self, ids: Tensor, positions: Tensor, rows: Tensor, plan: attention.Plan) -> Tensor:
        out = self.model(
            input_ids=ids.unsqueeze(0),
            position_ids=positions.long().unsqueeze(0),
            logits_to_keep=rows,
            **attention.planned(plan),
        )
        return out.logits[0]

    def refresh(self) -> None:
        pass


@dataclass(slots=True)
class Linear:
    """One matrix product. On CPUs with oneDNN the weight is packed, which makes small batches up to twice as fast."""

    weight: Tensor
    bias: Tensor | None
    packed: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        if self.packed is None:
            return functional.linear(x, self.weight, self.bias)
        return torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")


@dataclass(slots=True)
class Layer:
    """Weights of one layer."""

    norm: Tensor
    qkv: Linear
    q_norm: Tensor | None
    k_norm: Tensor | None
    out: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear


class FusedDecoder:
    """A decoder of a known architecture with fused products.

    Fused weights are adjacent in memory, and the module's parameters are views of them: training changes both at once.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        body: Any = model.get_decoder()
        config = model.config
        attn = body.layers[0].self_attn
        self.heads = config.num_attention_heads
        self.kv_heads = config.num_key_value_heads
        self.head_dim: int = attn.head_dim
        self.scale: float = attn.scaling
        self.eps: float = config.rms_norm_eps
        self.layers: list[Layer] = []
        self._body = body
        with torch.no_grad():
            like = torch.zeros(1, dtype=model.dtype, device=model.device)
            places = torch.arange(config.max_position_embeddings, device=model.device)
            cos, sin = body.rotary_emb(like, places.unsqueeze(0))
        self.cos, self.sin = cos[0].contiguous(), sin[0].contiguous()
        self.refresh()

    def refresh(self) -> None:
        with torch.no_grad():
            body = self._body
            self.layers = [self._layer(layer) for layer in body.layers]
            self.norm = body.norm.weight.detach()
            self.embedding = body.embed_tokens.weight.detach()
            head: Any = self.model.get_output_embeddings()
            self.head = _linear([head])

    def _layer(self, layer: Any) -> Layer:
        attn, mlp = layer.self_attn, layer.mlp
        return Layer(
            norm=layer.input_layernorm.weight.detach(),
            qkv=_linear([attn.q_proj, attn.k_proj, attn.v_proj]),
            q_norm=attn.q_norm.weight.detach() if hasattr(attn, "q_norm") else None,
            k_norm=attn.k_norm.weight.detach() if hasattr(attn, "k_norm") else None,
            out=_linear([attn.o_proj]),
            mlp_norm=layer.post_attention_layernorm.weight.detach(),
            gate_up=_linear([mlp.gate_proj, mlp.up_proj]),
            down=_linear([mlp.down_proj]),
        )

    def logits(self, ids: Tensor, positions: Tensor, rows: Tensor, plan: attention.Plan) -> Tensor:
        count, heads, kv_heads, size = len(ids), self.heads, self.kv_heads, self.head_dim
        cos, sin = self.cos[positions].unsqueeze(1), self.sin[positions].unsqueeze(1)
        x = functional.embedding(ids, self.embedding)
        for index, layer in enumerate(self.layers):
            joint = layer.qkv(self._norm(x, layer.norm)).view(count, heads + 2 * kv_heads, size)
            queries, keys, values = joint.split([heads, kv_heads, kv_heads], dim=1)
            if layer.q_norm is not None and layer.k_norm is not None:
                queries, keys = self._norm(queries, layer.q_norm), self._norm(keys, layer.k_norm)
            queries, keys = _rotate(queries, cos, sin), _rotate(keys, cos, sin)
            seen = plan.attend(index, queries, keys, values, self.scale)
            x = x + layer.out(seen.reshape(count, heads * size))
            if index == len(self.layers) - 1:
                x = x[rows]  # only these are sampled from
            gate, up = layer.gate_up(self._norm(x, layer.mlp_norm)).chunk(2, dim=1)
            x = x + layer.down(functional.silu(gate) * up)
        return self.head(self._norm(x, self.norm))

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(x, (x.shape[-1],), weight, self.eps)


def can_fuse(model: PreTrainedModel) -> bool:
    """Whether the architecture is known and no layer is wrapped (by LoRA, for example)."""
    config = model.config
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if type(model).__name__ not in FUSED_MODELS or rope not in ROPES or config.hidden_act != "silu":
        return False
    return all(type(module) in (nn.Linear, nn.Embedding) for module in model.modules() if _is_matrix(module))


def _is_matrix(module: nn.Module) -> bool:
    weight = getattr(module, "weight", None)
    return isinstance(weight, Tensor) and weight.ndim == 2


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-right, left), dim=-1) * sin


def _linear(parts: list[nn.Linear]) -> Linear:
    weight = _fuse_weights([part.weight for part in parts])
    bias = None if parts[0].bias is None else _fuse_weights([part.bias for part in parts])
    packed = None
    if weight.device.type == "cpu" and weight.dtype == torch.float32 and torch.backends.mkldnn.is_available():
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, 32)
    return Linear(weight, bias, packed)


def _fuse_weights(weights: Sequence[Tensor]) -> Tensor:
    """The tensor that these parameters are views of; created on the first call."""
    if len(weights) == 1:
        return weights[0].detach()
    first, rows = weights[0], [len(weight) for weight in weights]
    step = first[0].numel() * first.element_size()
    places = [first.data_ptr() + sum(rows[:i]) * step for i in range(len(rows))]
    whole = first.untyped_storage().nbytes() >= first.storage_offset() * first.element_size() + sum(rows) * step
    if not whole or [weight.data_ptr() for weight in weights] != places:
        joint = torch.cat([weight.detach() for weight in weights])
        for weight, view in zip(weights, joint.split(rows), strict=True):
            weight.data = view
    return torch.as_strided(weights[0].detach(), (sum(rows), *first.shape[1:]), weights[0].stride())
