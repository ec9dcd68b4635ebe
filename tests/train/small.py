"""A tiny random Llama in a folder of its own, with a tokenizer of a few hundred words: a run of seconds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM

from ramet.agent.dialects import make_dialect
from ramet.config import load
from ramet.train.settings import TrainConfig

CONTROL = ["<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WORDS = {
    "task": "arithmetic:train",
    "taskset": {"operators": 1, "digits": 1, "symbols": "+", "brackets": False},
    "steps": 4,
    "tasks_per_step": 2,
    "group_size": 6,
    "budget": {"tokens": [12, 24], "nodes": 3, "depth": 1, "turns": 2, "reserve": 4, "window": 900},
    "update": {"learning_rate": 0.01, "micro_batch_tokens": 4096},
    "sampler": {"device": "cpu", "cache_tokens": 8192},
    "save_every": 2,
}


def tokenizer() -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    tools = make_dialect("tools")
    seen = [tools.system(functions={}, may_delegate=more, child=child) for more in (0, 1) for child in (0, 1)]
    trainer = trainers.BpeTrainer(
        vocab_size=900,
        special_tokens=CONTROL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(seen, trainer)
    return made


def folder(parent: Path, *, seed: int = 10, **more: Any) -> Path:
    """A model to train, as it would come from elsewhere. With this seed, all four steps of a run have signal."""
    made = tokenizer()
    torch.manual_seed(seed)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True}
    place = {"vocab_size": made.get_vocab_size(), "max_position_embeddings": 2048, "eos_token_id": 1, "bos_token_id": 0}
    model = LlamaForCausalLM(LlamaConfig(**(sizes | heads | place | more)))
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(3) if weight.ndim == 2 else None
    path = parent / "model"
    model.save_pretrained(path)
    made.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE, "eos_token": CONTROL[1]}))
    return path


def config(model: Path, *words: str, **more: Any) -> TrainConfig:
    return load(TrainConfig, words=words, base=WORDS | {"model": str(model)} | more)
