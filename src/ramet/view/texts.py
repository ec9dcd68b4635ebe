"""Everything one node saw and wrote: its pieces, turn by turn, and its sampled tokens with their log-probs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from ramet.errors import RametError, StoreError
from ramet.store.checkpoints import list_checkpoints
from ramet.tokens.huggingface import load_renderer
from ramet.tokens.render import TokenRenderer
from ramet.view.catalog import is_inside, read_config
from ramet.view.index import Index

TEXT_COLUMNS = ("pieces", "token_ids", "logprobs")
MAX_TOKENS = 20_000  # of one piece that are shown one by one
HALF = "\N{REPLACEMENT CHARACTER}"  # part of a character
MAX_PARTS = 8  # tokens of one character
# What chat templates put around a message: ChatML and Llama 3, the nano model, Gemma. The role is in some group.
MARKUP = re.compile(
    r"<\|(?:im_start|start_header_id)\|>(\w+)(?:<\|end_header_id\|>)?\s*|<\|(?:im_end|eot_id|end)\|>\s*"
    r"|<\|(system|user|assistant|model)\|>\n?|<start_of_turn>(\w+)\n|<end_of_turn>\s*"
)


def node_texts(index: Index, tree: str, node: int, *, tokens: bool = False) -> dict[str, Any]:
    """The pieces of a node: `turn` is that of a sampled piece, or of the turn that reads a given one.

    With `tokens`, sampled pieces have the text of each token; for that the tokenizer of the run is loaded.
    """
    rows = index.node_rows(tree, TEXT_COLUMNS, node=node)
    if not rows:
        raise StoreError(f"tree {tree!r} has no node {node}")
    row, start, turn = rows[0], 0, 0
    renderer = run_renderer(index.run) if tokens else None
    pieces: list[dict[str, Any]] = []
    for piece in row["pieces"]:
        end = start + piece["num_ids"]
        part: dict[str, Any] = {"sampled": piece["sampled"], "text": piece["text"], "turn": turn}
        if piece["sampled"]:
            part |= {"version": piece["policy_version"], "taught": piece["taught"]}
            part |= _tokens(row["token_ids"][start:end], row["logprobs"][start:end], renderer)
            turn += 1
        else:
            part["message"] = message_of(piece["text"])
        pieces.append(part)
        start = end
    return {"node": node, "pieces": pieces}


def _tokens(ids: Sequence[int], logprobs: Sequence[float | None], renderer: TokenRenderer | None) -> dict[str, Any]:
    """Log-probs of the sampled tokens, and their texts where the run's tokenizer is on this machine."""
    known = [None if value is None else round(value, 4) for value in logprobs[:MAX_TOKENS]]
    if not known or all(value is None for value in known):
        return {"num_ids": len(ids)}
    found: dict[str, Any] = {"num_ids": len(ids), "logprobs": known}
    if renderer is not None and renderer.knows(ids):
        found["tokens"] = token_texts(ids[:MAX_TOKENS], renderer)
    return found


def token_texts(ids: Sequence[int], renderer: TokenRenderer) -> list[str]:
    """The text that each token adds. A character made of several tokens is the last one's, the others are empty."""
    decode = renderer.tokenizer.decode
    texts: list[str] = []
    before = done = 0  # tokens before `done` are shown; the last of them is decoded again, for its spaces
    for end in range(1, len(ids) + 1):
        text = decode(ids[before:end])
        if text.endswith(HALF) and end < len(ids) and end - done < MAX_PARTS:
            texts.append("")
            continue
        texts.append(text[len(decode(ids[before:done])) :])
        before, done = done, end
    return texts


def message_of(text: str) -> str:
    """The newest message in a given piece, without the markup of its chat template.

    Example:
        message_of("<|im_end|>\\n<|im_start|>user\\nclone 1: 7<|im_end|>\\n<|im_start|>assistant\\n")  # "clone 1: 7"
    """
    ends = [(found.start(), found.end(), found[found.lastindex or 0]) for found in MARKUP.finditer(text)]
    for place in range(len(ends) - 1, -1, -1):
        if ends[place][2] == "user":
            following = ends[place + 1][0] if place + 1 < len(ends) else len(text)
            return text[ends[place][1] : following].strip("\n")
    starts = [0, *(end for _, end, _ in ends)]
    parts = [text[start:stop].strip("\n") for start, (stop, _, _) in zip(starts, ends, strict=False)]
    return next((part for part in reversed(parts) if part), text)


def run_renderer(run: Path) -> TokenRenderer | None:
    """The tokenizer that the trees of a run were made with, if it is on this machine."""
    return next((found for source in _sources(run) if (found := _load(source)) is not None), None)


def _sources(run: Path) -> list[str]:
    checkpoints = [str(path) for path in list_checkpoints(run)[-1:] if is_inside(path, run)]
    config = read_config(run)
    engine = config.get("engine")
    named = [config.get("model")]
    if isinstance(engine, dict):
        named += [engine.get("tokenizer"), engine.get("model")]  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
    return checkpoints + [name for name in named if isinstance(name, str) and name]


@lru_cache(maxsize=8)
def _load(source: str) -> TokenRenderer | None:
    try:
        return load_renderer(source)
    except (RametError, OSError):
        return None
