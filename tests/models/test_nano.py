"""The nano model: exact ids, few tokens, and files that transformers can load."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import anyio
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer

import ramet
from ramet.errors import ConfigError
from ramet.models.folders import load_model
from ramet.models.nano import (
    ALPHABET,
    CODES_GOAL,
    CONTROL,
    END,
    MODEL,
    UNKNOWN,
    USER,
    VOCABULARY,
    fingerprint,
    nano_model,
    nano_tokenizer_files,
    write_nano,
)
from ramet.tasks import codes
from ramet.tokens.huggingface import load_renderer
from ramet.tokens.render import TokenRenderer
from ramet.types import Piece

READABLE = st.text(st.sampled_from(ALPHABET))
TALK = [
    {"role": "system", "content": ""},
    {"role": "user", "content": "Compute 1+2-3"},
    {"role": "assistant", "content": "> Compute 1+2"},
    {"role": "user", "content": "< 3"},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_nano(tmp_path_factory.mktemp("nano") / "model", hidden=32, layers=2, window=128)


@pytest.fixture(scope="module")
def renderer(folder: Path) -> TokenRenderer:
    return load_renderer(folder)


def ids(*texts: str) -> tuple[int, ...]:
    return tuple(VOCABULARY[text] for text in texts)


def test_a_node_starts_with_its_goal_between_two_control_tokens(renderer: TokenRenderer):
    assert renderer.open("", "Compute 1+2").token_ids == ids(USER, "Compute ", "1", "+", "2", MODEL)
    assert renderer.open(".", "7").token_ids == ids(".", USER, "7", MODEL)


def test_a_reply_follows_the_end_of_the_turn(renderer: TokenRenderer):
    ended = Piece(sampled=True, text="> 1", token_ids=ids("> ", "1", END))
    cut_off = Piece(sampled=True, text="> 1", token_ids=ids("> ", "1"))
    assert renderer.end_of_turn == VOCABULARY[END]
    assert renderer.reply("< 3\n< 4", after=ended).token_ids == ids("< ", "3", "\n", "< ", "4", MODEL)
    assert renderer.reply("!", after=cut_off).token_ids == ids(END, "!", MODEL)
    assert renderer.decode(ended.token_ids) == "> 1"


def test_the_tokenizer_has_the_wording_of_the_codes_taskset():
    assert (codes.ASKED, codes.LAST) == CODES_GOAL


def test_the_tokenizer_is_unchanged():
    """A new fingerprint means that every trained nano model is lost."""
    assert fingerprint() == "a73fa413"


def test_four_places_of_a_code_are_one_token(renderer: TokenRenderer):
    encoded = renderer.tokenizer.encode("1?0??101\n32 codes\n10000101:4=4\n101", control=False)
    lines = (("1?0?", "?101", "\n"), ("3", "2", " codes\n"), ("1000", "0101", ":4", "=4\n"), ("1", "0", "1"))
    assert tuple(encoded) == tuple(token for line in lines for token in ids(*line))


def test_a_line_marker_and_a_result_with_its_newline_are_one_token_each(renderer: TokenRenderer):
    encoded = renderer.tokenizer.encode("3+4=7\n= 7\n\n!", control=False)
    assert tuple(encoded) == ids("3", "+", "4", "=7\n", "= ", "7", "\n\n", "!")


@given(READABLE)
def test_text_of_the_alphabet_round_trips(renderer: TokenRenderer, text: str):
    assert renderer.tokenizer.decode(renderer.tokenizer.encode(text, control=False)) == text


@given(st.text())
def test_any_other_character_is_the_unknown_token(renderer: TokenRenderer, text: str):
    encoded = renderer.tokenizer.encode(text, control=False)
    assert all(0 <= token < len(VOCABULARY) for token in encoded)
    assert renderer.tokenizer.decode(encoded) == "".join(letter if letter in ALPHABET else UNKNOWN for letter in text)


@pytest.mark.parametrize("control", CONTROL)
def test_text_that_looks_like_a_control_token_is_text(renderer: TokenRenderer, control: str):
    encoded = renderer.tokenizer.encode(f"1{control}2", control=False)
    assert tuple(encoded) == ids("1", *control, "2")
    assert renderer.tokenizer.is_control(VOCABULARY[control])


def test_transformers_reads_the_same_tokenizer_and_template(folder: Path, renderer: TokenRenderer):
    loaded = AutoTokenizer.from_pretrained(folder)
    text = loaded.apply_chat_template(TALK, add_generation_prompt=True, tokenize=False)
    assert text == f"{USER}Compute 1+2-3{MODEL}> Compute 1+2{END}< 3{MODEL}"
    assert loaded.encode(text) == renderer.tokenizer.encode(text, control=True)
    assert (loaded.eos_token, loaded.unk_token) == (END, UNKNOWN)


def test_a_tokenizer_can_be_written_without_a_model(tmp_path: Path):
    assert load_renderer(nano_tokenizer_files(tmp_path / "new" / "folder")).exact


def test_the_model_has_the_documented_size():
    assert 300_000 <= nano_model().num_parameters() <= 1_000_000
    assert nano_model(hidden=16, heads=2, layers=1, window=64).config.max_position_embeddings == 64


def test_the_same_seed_gives_the_same_weights_and_leaves_the_global_random_state():
    small = partial(nano_model, hidden=16, heads=2, layers=1)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first, again, other = small(seed=1).state_dict(), small(seed=1).state_dict(), small(seed=2).state_dict()
    assert torch.equal(torch.rand(3), expected)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


@pytest.mark.parametrize("sizes", [{"heads": 3}, {"layers": 0}, {"hidden": 4, "heads": 4}])
def test_incompatible_sizes_are_refused(sizes: dict[str, int]):
    with pytest.raises(ConfigError, match=r"multiple of 2 \* heads"):
        nano_model(**sizes)


def test_a_written_model_is_loaded_unchanged(folder: Path):
    made = nano_model(hidden=32, layers=2, window=128).state_dict()
    loaded = AutoModelForCausalLM.from_pretrained(folder)
    assert all(torch.equal(made[name], weight) for name, weight in loaded.state_dict().items())
    assert loaded.generation_config.eos_token_id == VOCABULARY[END]
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight


def test_other_loaders_find_the_class_the_dtype_and_the_tied_weight_by_its_usual_name(folder: Path):
    config = json.loads((folder / "config.json").read_text())
    assert (config["architectures"], config["dtype"]) == (["LlamaForCausalLM"], "float32")
    assert config["tie_word_embeddings"]
    with safe_open(folder / "model.safetensors", framework="pt") as opened:
        names = set(opened.keys())
        assert opened.metadata() == {"format": "pt"}
    expected = set(nano_model(hidden=32, layers=2, window=128).state_dict()) - {"lm_head.weight"}
    assert names == expected


def test_transformers_gives_the_log_probs_that_our_loader_gives(folder: Path):
    given = torch.tensor([ids(USER, "Compute ", "1", "+", "2", MODEL, "= ", "3", END)])
    plain = AutoModelForCausalLM.from_pretrained(folder).eval()
    with torch.inference_mode():
        ours = load_model(folder, device="cpu")(given).logits.log_softmax(-1)
        theirs = plain(given).logits.log_softmax(-1)
    assert torch.equal(ours, theirs)


def test_it_runs_a_tree_in_this_process(folder: Path):
    engine = ramet.LocalEngine(folder)
    limits = ramet.Budget(tokens=200, window=128, nodes=4, depth=1, reserve=8, turns=3)
    tree = anyio.run(partial(ramet.run, "Compute 1+2", engine=engine, budget=limits, dialect="terse", seed=1))
    pieces = tree.root.pieces
    assert pieces[0].token_ids == ids(USER, "Compute ", "1", "+", "2", MODEL)
    assert len(pieces[1].token_ids) == len(pieces[1].logprobs) > 0
    assert 0 < tree.usage.tokens <= 200
