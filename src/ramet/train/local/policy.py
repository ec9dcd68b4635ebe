"""Prepare a model for training: attention, adapters, activation memory."""

# pyright: standard

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from ramet.errors import ConfigError
from ramet.models import attention
from ramet.models.packages import quiet_transformers


@dataclass(frozen=True, slots=True, kw_only=True)
class Lora:
    """LoRA: train low-rank matrices beside frozen weights."""

    rank: int = 16
    alpha: float = 32.0
    targets: str | tuple[str, ...] = "all-linear"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A model prepared for training.

    `head` is None when logits are more than a linear map of the decoder's output (scaled, capped, adapted): then the
    whole model is called and its logits are kept.
    """

    model: nn.Module  # with its adapters, if it has any
    core: PreTrainedModel
    decoder: nn.Module
    head: nn.Linear | None
    packs: bool

    @property
    def device(self) -> torch.device:
        return self.core.device

    @property
    def trained(self) -> list[nn.Parameter]:
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]


def prepare(
    model: PreTrainedModel,
    *,
    packed: bool | None = None,
    checkpointing: bool = False,
    lora: Lora | None = None,
    compiled: bool = False,
) -> Policy:
    """Prepare `model` for training, in place.

    `packed`: None packs if the model supports it, True requires it, False pads. Dropout is off, because the learner
    must compute the log-probs of the sampler. `checkpointing` keeps only the input of each layer. `compiled` compiles
    the layers.
    """
    core: PreTrainedModel = model
    whole: nn.Module = _adapted(model, lora) if lora else model
    whole.eval()
    packs = packed if packed is not None else attention.unsupported(core) is None
    if packs:
        attention.attach(core)
    if compiled:
        _compile_layers(core)
    if checkpointing:
        _checkpoint_layers(core)
    decoder = core.get_decoder()
    return Policy(model=whole, core=core, decoder=decoder, head=_plain_head(core, decoder), packs=packs)


def _adapted(model: PreTrainedModel, lora: Lora) -> nn.Module:
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError:
        raise ConfigError("LoRA needs peft: pip install 'ramet[train]'") from None
    targets = lora.targets if isinstance(lora.targets, str) else list(lora.targets)
    config = LoraConfig(r=lora.rank, lora_alpha=cast(int, lora.alpha), target_modules=targets, task_type="CAUSAL_LM")
    with quiet_transformers():  # peft reads attributes that newer versions of transformers call deprecated
        return get_peft_model(model, config)


def _compile_layers(model: PreTrainedModel) -> None:
    """Compile the layers, all of them to the same few kernels. Attention has its own kernel.

    Norms, rotations, activations and sums are many small operations, each of which reads and writes all of its tokens.
    In Python, each also gives the interpreter lock away and waits to get it back.
    """
    for layer in _layers(model, "compiled"):
        layer.forward = torch.compile(layer.forward, dynamic=True)
    # Attention by segments, on a CPU, would be another program for every batch.
    attention.compile_plans(whole=model.device.type == "cuda")


def _layers(model: PreTrainedModel, how: str) -> list[GradientCheckpointingLayer]:
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise ConfigError(f"{type(model).__name__} has no layers that can be {how}")
    return layers


def _checkpoint_layers(model: PreTrainedModel) -> None:
    """Recompute every layer in the backward pass, also in eval mode: the model stays there, so that dropout is off."""
    for layer in _layers(model, "checkpointed"):
        layer.forward = partial(_recomputed, layer.forward)


def _recomputed(forward: Callable[..., Any], *inputs: Any, **options: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*inputs, **options)
    return checkpoint(forward, *inputs, use_reentrant=False, **options)


def _plain_head(model: PreTrainedModel, decoder: nn.Module) -> nn.Linear | None:
    """The linear head, if logits are exactly its output; found out by trying."""
    head = model.get_output_embeddings()
    if type(head) is not nn.Linear:
        return None
    ids = torch.tensor([[0, 1]], device=model.device)
    with torch.no_grad():
        hidden: Tensor = decoder(input_ids=ids, use_cache=False).last_hidden_state
        logits: Tensor = model(input_ids=ids, use_cache=False).logits
        return head if torch.equal(head(hidden), logits) else None
