"""Models with random weights, in the shapes of known ones: speed and memory do not depend on the weights."""

# pyright: standard

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

RANDOM_MODELS: dict[str, dict[str, Any]] = {
    "random-4b": {  # Qwen3-4B
        "model_type": "qwen3",
        "hidden_size": 2560,
        "intermediate_size": 9728,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
        "max_position_embeddings": 40960,
    },
    "random-135m": {  # SmolLM2-135M
        "model_type": "llama",
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "vocab_size": 49152,
        "max_position_embeddings": 8192,
    },
    "random-tiny": {
        "model_type": "llama",
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "vocab_size": 512,
        "max_position_embeddings": 16384,
    },
}


def write_random_model(folder: Path, shape: Mapping[str, Any], *, dtype: str, device: str = "cpu") -> None:
    """Write the configuration and weights of a random model, always the same ones on one kind of device.

    A large model is made much faster on a GPU.
    """
    import torch
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoModelForCausalLM

    config: Any = AutoConfig.for_model(**shape, tie_word_embeddings=True, dtype=dtype)
    with torch.random.fork_rng(), torch.device(device):
        torch.manual_seed(0)
        made: Any = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
    weights = {name: value for name, value in made.state_dict().items() if name != "lm_head.weight"}  # tied
    made.config.architectures = [type(made).__name__]
    made.config.save_pretrained(folder)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
