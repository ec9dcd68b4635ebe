"""Small random decoders with large weights, so that every token affects the next."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import anyio
import torch
from transformers import (
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from ramet.engine.local import LocalEngine
from ramet.types import Completion, Prompt

VOCABULARY = 211
KINDS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "llama": (LlamaConfig, LlamaForCausalLM, {}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {}),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {"head_dim": 32, "tie_word_embeddings": True}),
}


def make(kind: str = "llama", *, seed: int = 0, device: str = "cpu", **more: Any) -> PreTrainedModel:
    config, model, options = KINDS[kind]
    sizes: dict[str, Any] = {
        "hidden_size": 96,
        "intermediate_size": 160,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 512,
    }
    torch.manual_seed(seed)
    made = model(config(**(sizes | options | more))).eval()
    with torch.no_grad():
        for weight in made.parameters():
            weight.mul_(4) if weight.ndim == 2 else weight.add_(torch.randn_like(weight) * 0.2)
    return made.to(device)


def granite(device: str = "cpu") -> PreTrainedModel:
    """A decoder of an architecture that the engine does not fuse."""
    torch.manual_seed(0)
    config = GraniteConfig(
        hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=VOCABULARY, max_position_embeddings=256, logits_scaling=0.05, attention_multiplier=0.2,
    )  # fmt: skip
    made: Any = GraniteForCausalLM(config).eval()
    return made.to(device)


def texts(count: int, *, seed: int = 1) -> list[list[int]]:
    """Prompts with common prefixes and different ends."""
    rng = random.Random(seed)
    shared = [rng.randrange(VOCABULARY) for _ in range(70)]
    return [
        shared[: rng.randrange(1, 70)] + [rng.randrange(VOCABULARY) for _ in range(rng.randrange(1, 40))]
        for _ in range(count)
    ]


def ask(engine: LocalEngine, prompts: Sequence[Sequence[int]], **options: Any) -> list[Completion]:
    """Sample all prompts in parallel; the default seed is the index of the prompt."""

    async def everything() -> list[Completion]:
        answers: dict[int, Completion] = {}

        async def one(place: int) -> None:
            wanted = {"max_tokens": 12, "stop_tokens": (), "seed": place} | options
            wanted = {name: value(place) if callable(value) else value for name, value in wanted.items()}
            answers[place] = await engine.sample(Prompt(messages=(), ids=tuple(prompts[place])), **wanted)

        async with anyio.create_task_group() as group:
            for place in range(len(prompts)):
                group.start_soon(one, place)
        return [answers[place] for place in range(len(prompts))]

    return anyio.run(everything)


@torch.no_grad()
def plain_logprobs(
    model: PreTrainedModel, prompt: Sequence[int], sampled: Sequence[int], *, heat: float = 1.0
) -> torch.Tensor:
    """Log-probs of all tokens at every sampled position, from a plain forward pass."""
    ids = torch.tensor([[*prompt, *sampled]], device=model.device)
    logits = model(ids).logits[0, len(prompt) - 1 : -1].float()
    return (logits / heat).log_softmax(-1).cpu()


def largest_difference(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], answers: Sequence[Completion], heat: float = 1.0
) -> float:
    """The largest difference between the log-probs of an engine and of a plain forward pass."""
    worst = 0.0
    for prompt, answer in zip(prompts, answers, strict=True):
        plain = plain_logprobs(model, prompt, answer.token_ids, heat=heat)
        plain = plain.gather(1, torch.tensor(answer.token_ids).unsqueeze(1)).squeeze(1)
        worst = max(worst, float((plain - torch.tensor(answer.logprobs)).abs().max()))
    return worst
