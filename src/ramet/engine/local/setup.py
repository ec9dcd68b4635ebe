# pyright: standard
"""Load the model and build the parts of a local engine from its arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from ramet.engine.local.cpu import CpuRunner, Shape
from ramet.engine.local.decoder import FusedDecoder, PlainDecoder, can_fuse
from ramet.errors import ConfigError
from ramet.tokens.render import Renderer, TextRenderer

PAGE = 32  # tokens: with more, fewer pages have to be planned, found and evicted
SINGLE_THREAD_BELOW = 4_000_000  # parameters: smaller models are faster on one thread


def load(
    model: str | Path | PreTrainedModel, renderer: Renderer | None, device: str | None, dtype: str | None
) -> tuple[PreTrainedModel, Renderer]:
    if isinstance(model, (str, Path)):
        from ramet.models.folders import load_model, model_folder
        from ramet.tokens.huggingface import load_renderer

        folder = model_folder(model)
        return load_model(folder, device=device, dtype=dtype), renderer or load_renderer(folder)
    if device is not None or dtype is not None:
        raise ConfigError("device and dtype apply only when a folder is loaded; move a loaded model with model.to(...)")
    return model, renderer or TextRenderer()


def make_runner(model: PreTrainedModel, shape: Shape, *, pages: int, max_batch: int, window: int) -> Any:
    try:
        if model.device.type == "cuda":
            from ramet.engine.local.cuda import CudaRunner

            return CudaRunner(model, shape, pages=pages, page_size=PAGE, max_batch=max_batch, window=window)
        if model.device.type != "cpu":
            raise ConfigError(f"a local engine runs on cpu or cuda; the model is on {model.device.type}")
        decoder = FusedDecoder(model) if can_fuse(model) else PlainDecoder(model)
        threads = 1 if model.num_parameters() < SINGLE_THREAD_BELOW else None
        sizes = {"pages": pages, "page_size": PAGE, "max_batch": max_batch, "threads": threads}
        return CpuRunner(decoder, shape, dtype=model.dtype, **sizes)
    except (MemoryError, torch.OutOfMemoryError, RuntimeError) as error:
        if isinstance(error, MemoryError | torch.OutOfMemoryError) or "allocate memory" in str(error):
            needed = pages * PAGE * shape.token_bytes(model.dtype) / 2**30
            raise ConfigError(f"not enough memory for a cache of {pages * PAGE:,} tokens ({needed:.1f} GiB)") from None
        raise


def cache_shape(model: PreTrainedModel) -> Shape:
    config = model.config.get_text_config()
    heads: int = config.num_attention_heads
    return Shape(
        layers=config.num_hidden_layers,
        kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
    )


def default_cache_tokens(model: PreTrainedModel, shape: Shape, window: int, *, spare_bytes: int = 0) -> int:
    """The default cache size: half of the free GPU memory, or 1 GiB on a CPU; at least one window.

    `spare_bytes` of the memory that is free now are left for others.
    """
    size = shape.token_bytes(model.dtype)
    if model.device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(model.device)
        return max(window, (free - spare_bytes) // 2 // size)
    return max(window + PAGE, min(2**30 // size, 2**20))


def check_window(model: PreTrainedModel, window: int | None) -> int:
    longest = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if window is not None and (window < 2 or (longest and window > longest)):
        raise ConfigError(f"window must be from 2 to {longest:,} tokens; got {window:,}")
    return window or longest or 4096


def check_count(name: str, value: int | None, default: int) -> int:
    if value is not None and value < 1:
        raise ConfigError(f"{name} must be at least 1; got {value}")
    return default if value is None else value


def check_nucleus(top_p: float, top_k: int) -> tuple[float, int]:
    if not 0 < top_p <= 1:
        raise ConfigError(f"top_p must be above 0 and at most 1; got {top_p}")
    if top_k < 0:
        raise ConfigError(f"top_k must be at least 0 (0: no limit); got {top_k}")
    return top_p, top_k


def end_tokens(model: PreTrainedModel, renderer: Renderer) -> frozenset[int]:
    """The tokens that end a turn of this model."""
    tokens = {getattr(renderer, "end_of_turn", None)}
    for config in (model.config, model.generation_config):
        ends = getattr(config, "eos_token_id", None)
        tokens.update(ends if isinstance(ends, (list, tuple)) else [ends])
    return frozenset(token for token in tokens if token is not None)


def stop_decoder(renderer: Renderer) -> Callable[[Sequence[int]], str]:
    """The function that decodes tokens to find stop strings in them; control tokens appear as text."""
    tokenizer = getattr(renderer, "tokenizer", None)
    return tokenizer.decode if tokenizer is not None else renderer.decode
