# pyright: standard
"""A tokenizer and an untrained model small enough to train on a CPU: no download, no corpus.

There is one token per character, one for each of a few frequent pieces of text, and three control tokens: start of the
user's text, start of the model's turn, end of the model's turn. A reply follows the end of a turn directly:

    <|user|>Compute 1+2<|model|>1+2=3
    = 3<|end|>
"""

from __future__ import annotations

import hashlib
import json
import re
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from ramet.errors import ConfigError
from ramet.models.packages import check_packages, quiet_transformers

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

USER, MODEL, END, PAD = "<|user|>", "<|model|>", "<|end|>", "<|pad|>"
CONTROL = (PAD, END, USER, MODEL)
UNKNOWN = "\ufffd"  # stands for every character outside the alphabet
# Each of these pieces of text is one token. The long ones are the wording of the codes taskset.
CODES_GOAL = ("Add longest runs of ", " (last digit)")
WORDS = ("\n\n", "Compute ", *CODES_GOAL, " codes\n", "> ", "= ", "< ")
TOTALS = tuple(f"={digit}\n" for digit in range(10))  # a result at the end of its line
PARTS = tuple(f":{digit}" for digit in range(10))  # a digit after a colon
PLACES = tuple(map("".join, product("01?", repeat=4)))  # four places of a code
WINDOW = 512  # tokens that the model reads at most
ALPHABET = ("\n", *map(chr, range(32, 127)))
VOCABULARY = {
    text: number for number, text in enumerate([*CONTROL, UNKNOWN, *WORDS, *TOTALS, *PARTS, *PLACES, *ALPHABET])
}
TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'assistant' %}" + MODEL + "{{ m.content }}" + END + "{% else %}"
    "{% if m.role != 'system' and (loop.first or loop.previtem.role == 'system') %}" + USER + "{% endif %}"
    "{{ m.content }}{% endif %}{% endfor %}{% if add_generation_prompt %}" + MODEL + "{% endif %}"
)


def fingerprint() -> str:
    """A short hash of the tokenizer. A model works only with the tokenizer it was made for."""
    return hashlib.sha256(repr((VOCABULARY, TEMPLATE)).encode()).hexdigest()[:8]


def nano_tokenizer_files(folder: str | Path) -> Path:
    """Write `tokenizer.json` and `tokenizer_config.json`, as `ramet.tokens.huggingface` and transformers read them."""
    try:
        from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
    except ImportError:
        raise ConfigError("the nano tokenizer needs the tokenizers package: pip install 'ramet[hf]'") from None
    inner = Tokenizer(models.WordLevel(VOCABULARY, unk_token=UNKNOWN))
    pieces = "|".join([*map(re.escape, WORDS), r"=[0-9]\n", r":[0-9]", r"[01?]{4}", r"[\s\S]"])
    inner.pre_tokenizer = pre_tokenizers.Split(Regex(pieces), behavior="isolated")
    inner.decoder = decoders.Fuse()
    inner.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in CONTROL])
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": TEMPLATE,
        "eos_token": END,
        "pad_token": PAD,
        "unk_token": UNKNOWN,
        "clean_up_tokenization_spaces": False,
    }
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    inner.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    return path


def nano_model(
    *, hidden: int = 128, layers: int = 2, heads: int = 4, window: int = WINDOW, seed: int = 0
) -> LlamaForCausalLM:
    """A Llama with random weights, determined by `seed`; about 330,000 parameters with the default sizes."""
    if min(hidden, layers, heads, window) < 1 or hidden % (2 * heads):
        raise ConfigError(
            f"hidden must be a multiple of 2 * heads, all sizes at least 1; got {hidden} and {heads} heads"
        )
    check_packages()
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=window,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=VOCABULARY[END],
        pad_token_id=VOCABULARY[PAD],
    )
    with torch.random.fork_rng(devices=[]):  # leaves the global random state unchanged
        torch.manual_seed(seed)
        return LlamaForCausalLM(config)


def write_nano(
    folder: str | Path, *, hidden: int = 128, layers: int = 2, heads: int = 4, window: int = WINDOW, seed: int = 0
) -> Path:
    """Write a new model and its tokenizer to a folder, in the format that every Hugging Face loader reads.

    `config.json` names the class and the dtype; tied embeddings are stored once, as `model.embed_tokens.weight`.
    """
    model = nano_model(hidden=hidden, layers=layers, heads=heads, window=window, seed=seed)
    path = nano_tokenizer_files(folder)
    with quiet_transformers():
        model.save_pretrained(path)
    return path
