# pyright: standard
"""What an engine is made of, from what its user said."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from ramet.engine.local.cpu import CpuRunner, Shape
from ramet.engine.local.decoder import Folded, Plain, foldable
from ramet.errors import ConfigError
from ramet.tokens.render import Renderer, TextRenderer

PAGE = 16  # tokens
SMALL = 4_000_000  # parameters up to which threads wait for each other longer than they compute


def load(
    model: str | Path | PreTrainedModel, renderer: Renderer | None, device: str | None, dtype: str | None
) -> tuple[PreTrainedModel, Renderer]:
    if isinstance(model, (str, Path)):
        from ramet.models.folders import load_model, model_folder
        from ramet.tokens.huggingface import load_renderer

        folder = model_folder(model)
        return load_model(folder, device=device, dtype=dtype), renderer or load_renderer(folder)
    if device is not None or dtype is not None:
        raise ConfigError("device and dtype are for models that are loaded here; move a loaded one with model.to(...)")
    return model, renderer or TextRenderer()


def make_runner(model: PreTrainedModel, shape: Shape, *, pages: int, max_batch: int, window: int) -> Any:
    try:
        if model.device.type == "cuda":
            from ramet.engine.local.cuda import CudaRunner

            return CudaRunner(model, shape, pages=pages, page_size=PAGE, max_batch=max_batch, window=window)
        if model.device.type != "cpu":
            raise ConfigError(f"models run on cpu or cuda; this one is on {model.device.type}")
        decoder = Folded(model) if foldable(model) else Plain(model)
        threads = 1 if model.num_parameters() < SMALL else None
        sizes = {"pages": pages, "page_size": PAGE, "max_batch": max_batch, "threads": threads}
        return CpuRunner(decoder, shape, dtype=model.dtype, **sizes)
    except (torch.OutOfMemoryError, RuntimeError) as error:
        if isinstance(error, torch.OutOfMemoryError) or "allocate memory" in str(error):
            needed = pages * PAGE * shape.token_bytes(model.dtype) / 2**30
            raise ConfigError(f"no memory for a cache of {pages * PAGE:,} tokens ({needed:.1f} GiB)") from None
        raise


def shape_of(model: PreTrainedModel) -> Shape:
    config = model.config.get_text_config()
    heads: int = config.num_attention_heads
    return Shape(
        layers=config.num_hidden_layers,
        kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
    )


def default_tokens(model: PreTrainedModel, shape: Shape, window: int) -> int:
    """Tokens to keep by default: half of what a GPU has free; on a CPU a gibibyte, but at least one whole window."""
    size = shape.token_bytes(model.dtype)
    if model.device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(model.device)
        return max(window, free // 2 // size)
    return max(window + PAGE, min(2**30 // size, 2**20))


def checked_window(model: PreTrainedModel, window: int | None) -> int:
    longest = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if window is not None and (window < 2 or (longest and window > longest)):
        raise ConfigError(f"window is a number of tokens from 2 to {longest:,}; got {window:,}")
    return window or longest or 4096


def checked_count(name: str, value: int | None, default: int) -> int:
    if value is not None and value < 1:
        raise ConfigError(f"{name} is a number from 1 up; got {value}")
    return default if value is None else value


def checked_shares(top_p: float, top_k: int) -> tuple[float, int]:
    if not 0 < top_p <= 1:
        raise ConfigError(f"top_p is above 0 and at most 1; got {top_p}")
    if top_k < 0:
        raise ConfigError(f"top_k is a number from 0 (no limit) up; got {top_k}")
    return top_p, top_k


def end_tokens(model: PreTrainedModel, renderer: Renderer) -> frozenset[int]:
    """Tokens with which this model ends its turn."""
    found = {getattr(renderer, "end_of_turn", None)}
    for config in (model.config, model.generation_config):
        ends = getattr(config, "eos_token_id", None)
        found.update(ends if isinstance(ends, (list, tuple)) else [ends])
    return frozenset(token for token in found if token is not None)


def spelled_out(renderer: Renderer) -> Callable[[Sequence[int]], str]:
    """Text with control tokens spelled out, for stop strings."""
    tokenizer = getattr(renderer, "tokenizer", None)
    return tokenizer.decode if tokenizer is not None else renderer.decode
