"""Convert a Llama model from a llama.cpp (GGUF) file to a Hugging Face folder."""

# pyright: standard

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from gguf import GGUFReader, ReaderTensor
from gguf.quants import dequantize
from rich.console import Console
from rich.progress import track
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor
from transformers import LlamaConfig

from ramet.tokens.gguf import read_metadata
from ramet.tokens.huggingface import HfTokenizer, load_renderer

# Tensor names in the GGUF file, and in Hugging Face.
OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
INNER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def unpack(source: Path, folder: Path, *, target: Path) -> None:
    """Write config, bfloat16 weights and tokenizer to `folder`. The message names `target`, the final folder."""
    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    console.print(f"unpacking {source.name} into {target} (once)")
    reader, facts = GGUFReader(source), read_metadata(source)
    config = llama_config(facts, tied=all(tensor.name != "output.weight" for tensor in reader.tensors))
    tensors: dict[str, Tensor] = {}
    bar = {"description": "unpacking", "transient": True, "disable": not console.is_terminal}
    for tensor in track(reader.tensors, console=console, **bar):
        tensors[tensor_name(tensor.name)] = tensor_weights(tensor, config).to(torch.bfloat16)
    try:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    except SafetensorError as error:  # a full disk, for example
        raise OSError(str(error)) from None
    config.save_pretrained(folder)
    write_tokenizer(source, facts, folder)


def llama_config(facts: Mapping[str, Any], *, tied: bool) -> LlamaConfig:
    return LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=facts["llama.vocab_size"],
        hidden_size=facts["llama.embedding_length"],
        intermediate_size=facts["llama.feed_forward_length"],
        num_hidden_layers=facts["llama.block_count"],
        num_attention_heads=facts["llama.attention.head_count"],
        num_key_value_heads=facts["llama.attention.head_count_kv"],
        max_position_embeddings=facts["llama.context_length"],
        rms_norm_eps=facts["llama.attention.layer_norm_rms_epsilon"],
        rope_parameters={"rope_type": "default", "rope_theta": facts["llama.rope.freq_base"]},
        bos_token_id=facts["tokenizer.ggml.bos_token_id"],
        eos_token_id=facts["tokenizer.ggml.eos_token_id"],
        pad_token_id=facts["tokenizer.ggml.padding_token_id"],
        tie_word_embeddings=tied,
        dtype="bfloat16",
    )


def tensor_name(name: str) -> str:
    """The Hugging Face name of a tensor.

    Example:
        tensor_name("blk.3.attn_q.weight")  # "model.layers.3.self_attn.q_proj.weight"
    """
    *block, kind, _ = name.split(".")
    return f"model.layers.{block[1]}.{INNER[kind]}.weight" if block else f"{OUTER[kind]}.weight"


def tensor_weights(tensor: ReaderTensor, config: LlamaConfig) -> Tensor:
    """A dequantised tensor, its rows in the order Hugging Face expects."""
    weight = torch.from_numpy(np.array(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32))
    heads = {"attn_q": config.num_attention_heads, "attn_k": cast(int, config.num_key_value_heads)}
    kind = tensor.name.split(".")[-2]
    return split_halves(weight, heads[kind]) if kind in heads else weight


def split_halves(weight: Tensor, num_heads: int) -> Tensor:
    """Reorder the rows of each head: a rotary pair is adjacent in the file, and half a head apart in Hugging Face.

    Example:
        split_halves(torch.arange(8).reshape(8, 1), 2).flatten().tolist()  # [0, 2, 1, 3, 4, 6, 5, 7]
    """
    rows, columns = weight.shape
    return weight.reshape(num_heads, rows // num_heads // 2, 2, columns).transpose(1, 2).reshape(rows, columns)


def write_tokenizer(source: Path, facts: Mapping[str, Any], folder: Path) -> None:
    """Write `tokenizer.json` and `tokenizer_config.json` (special tokens and chat template)."""
    inner = cast(HfTokenizer, load_renderer(source).tokenizer).inner
    inner.save(str(folder / "tokenizer.json"))
    names = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    special = {
        f"{ours}_token": inner.id_to_token(facts[f"tokenizer.ggml.{theirs}_token_id"]) for ours, theirs in names.items()
    }
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": facts["llama.context_length"],
        "clean_up_tokenization_spaces": False,
        "chat_template": facts["tokenizer.chat_template"],
        **special,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2), encoding="utf-8")
