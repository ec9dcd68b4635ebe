"""A real model samples the same tokens as `transformers.generate`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from ramet.engine.local import LocalEngine
from ramet.models.folders import load_model
from ramet.tokens.huggingface import load_renderer
from tests.engine.local.models import ask, largest_difference

THINGS = ("cats", "rivers", "gold", "books", "the stars", "music", "chess", "bridges", "old clocks", "honey")
QUESTIONS = (
    "Write one sentence about {}.",
    "What are {}?",
    "Why do people like {}?",
    "Name three kinds of {}.",
    "Tell me a story about {} and the sea.",
)


@pytest.mark.parametrize(
    ("things", "max_tokens"),
    [pytest.param(THINGS[:1], 8, id="five"), pytest.param(THINGS, 12, id="fifty", marks=pytest.mark.slow)],
)
def test_greedy_completions_equal_generate(smollm2: Path, things: Sequence[str], max_tokens: int) -> None:
    model, renderer = load_model(smollm2, device="cpu"), load_renderer(smollm2)
    prompts = [
        list(renderer.open("You are brief.", question.format(thing)).token_ids)
        for question in QUESTIONS
        for thing in things
    ]
    assert len({tuple(prompt) for prompt in prompts}) == 5 * len(things)
    with LocalEngine(model, renderer=renderer, max_batch=50) as engine:
        answers = ask(engine, prompts, temperature=0.0, max_tokens=max_tokens)
    # generate by length, without padding, which would change its results
    by_length: dict[int, list[int]] = {}
    for place, prompt in enumerate(prompts):
        by_length.setdefault(len(prompt), []).append(place)
    for places in by_length.values():
        ids = torch.tensor([prompts[place] for place in places])
        generated = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=max_tokens,
            eos_token_id=None,
            pad_token_id=0,
        )
        for place, row in zip(places, generated[:, ids.shape[1] :].tolist(), strict=True):
            assert list(answers[place].token_ids) == row, renderer.decode(prompts[place])
    assert largest_difference(model, prompts[:10], answers[:10]) < 1e-4
