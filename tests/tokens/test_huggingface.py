"""Hugging Face tokenizers and chat templates, without torch."""

from __future__ import annotations

import json
import pickle
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import tokenizers
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from ramet.errors import ConfigError
from ramet.tokens.huggingface import HfTokenizer, chat_format, load_renderer
from ramet.tokens.render import TokenRenderer
from ramet.types import Piece

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
HEADERS = (
    "{{ bos_token }}{% for m in messages %}<h>{{ m.role }}</h>\n\n{{ m.content | trim }}<eot>{% endfor %}"
    "{% if add_generation_prompt %}<h>assistant</h>\n\n{% endif %}"
)
BRACKETS = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{% set s = messages[0].content ~ '\n\n' %}"
    "{% set messages = messages[1:] %}{% else %}{% set s = '' %}{% endif %}{% for m in messages %}"
    "{% if m.role == 'user' %}[I] {{ s if loop.first else '' }}{{ m.content }} [/I]"
    "{% else %}{% generation %} {{ m.content }}{{ eos_token }}{% endgeneration %}{% endif %}{% endfor %}"
)
NO_SYSTEM = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "<t>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content }}</t>\n{% endfor %}"
    "{% if add_generation_prompt %}<t>model\n{% endif %}"
)
FORGETFUL = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' and not loop.last %}"
    "{{ m.content.split('</think>')[-1] }}{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
DATED = "{{ strftime_now('%Y') }}{{ [1, {'a': 'é'}] | tojson }}" + CHATML
SPECIAL = ["<|im_start|>", "<|im_end|>", "<s>", "</s>", "<eot>", "<h>", "</h>", "<t>", "</t>", "[I]", "[/I]"]


def byte_level() -> Tokenizer:
    """A tokenizer like those of GPT-2, Llama 3 and Qwen, trained on a few words."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(["system user assistant model answer the question\n\n"] * 20, trainer)
    tokenizer.add_tokens([AddedToken("<tool_call>", special=False)])
    return tokenizer


def word_mark() -> Tokenizer:
    """A tokenizer like those of Llama 2 and Mistral: a mark before every first word."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    text = ["system user assistant model answer the question a b c d e f g h i j k l m n o p\n"] * 20
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<unk>", *SPECIAL], show_progress=False)
    tokenizer.train_from_iterator(text, trainer)
    return tokenizer


def rendered(template: str, messages: list[dict[str, str]]) -> str:
    """A conversation rendered by the template itself."""
    from ramet.tokens.template import render

    text = render(template, messages, {"bos_token": "<s>", "eos_token": "</s>"})
    assert text is not None
    return text


@pytest.mark.parametrize("template", [CHATML, HEADERS, BRACKETS, DATED])
def test_append_only_rendering_equals_the_template_after_every_turn(template: str):
    renderer = TokenRenderer(HfTokenizer(byte_level()), chat_format(template, bos_token="<s>", eos_token="</s>"))
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "the question"}]
    pieces = [renderer.open("be brief", "the question")]
    for turn in ("I answer", "again"):
        assert renderer.tokenizer.decode([t for p in pieces for t in p.token_ids]) == rendered(template, messages)
        space = " " if template is BRACKETS else ""
        ids = (*renderer.tokenizer.encode(space + turn, control=False), renderer.end_of_turn or 0)
        pieces.append(Piece(sampled=True, text=turn, token_ids=ids))
        pieces.append(renderer.reply("and then?", after=pieces[-1]))
        messages += [{"role": "assistant", "content": turn}, {"role": "user", "content": "and then?"}]
    assert renderer.tokenizer.decode([t for p in pieces for t in p.token_ids]) == rendered(template, messages)


def test_without_a_system_role_the_system_prompt_opens_the_first_message():
    chat = chat_format(NO_SYSTEM)
    assert chat.folds_system
    renderer = TokenRenderer(HfTokenizer(byte_level()), chat)
    text = renderer.tokenizer.decode(renderer.open("be brief", "why").token_ids)
    assert text == "<t>user\nbe brief\n\nwhy</t>\n<t>model\n"


def test_a_template_that_rewrites_history_has_no_effect():
    """Sampled text stays in the prompt, including thoughts."""
    renderer = TokenRenderer(HfTokenizer(byte_level()), chat_format(FORGETFUL))
    thought = "<think>hm</think>answer"
    ids = (*renderer.tokenizer.encode(thought, control=False), renderer.end_of_turn or 0)
    pieces = [renderer.open("s", "u"), Piece(sampled=True, text=thought, token_ids=ids)]
    pieces.append(renderer.reply("next", after=pieces[-1]))
    assert thought in renderer.tokenizer.decode([t for p in pieces for t in p.token_ids])


@pytest.mark.parametrize("make", [byte_level, word_mark])
def test_control_tokens_in_text_never_become_control(make: object):
    tokenizer = HfTokenizer(make())  # pyright: ignore[reportCallIssue]
    end = tokenizer.inner.token_to_id("<|im_end|>")
    assert end in tokenizer.encode("a<|im_end|>", control=True)
    assert end not in tokenizer.encode("a<|im_end|>b", control=False)
    assert end in tokenizer.encode("a<|im_end|>", control=True)


@pytest.mark.parametrize("control", [False, True])
def test_a_tokenizer_that_was_saved_with_truncation_and_padding_encodes_the_whole_text(control: bool):
    saved = byte_level()
    saved.enable_truncation(max_length=4)
    saved.enable_padding(length=8)
    tokenizer = HfTokenizer(saved)
    for text in ("a", "a text of many more than eight tokens"):
        assert tokenizer.decode(tokenizer.encode(text, control=control)) == text


def test_encoding_leaves_nothing_that_another_thread_could_read():
    tokenizer = HfTokenizer(byte_level())
    before = tokenizer.inner.encode_special_tokens
    tokenizer.encode("<|im_end|>", control=not before)
    assert tokenizer.inner.encode_special_tokens == before
    tokenizer.encode("<|im_end|>", control=before)
    assert tokenizer.inner.encode_special_tokens == before


def test_threads_that_share_a_tokenizer_get_the_ids_of_one_thread():
    tokenizer = HfTokenizer(byte_level())
    wanted = {control: tokenizer.encode("a<|im_end|>b", control=control) for control in (False, True)}
    assert wanted[False] != wanted[True]

    def encode(control: bool) -> bool:
        return all(tokenizer.encode("a<|im_end|>b", control=control) == wanted[control] for _ in range(2000))

    with ThreadPoolExecutor(2) as threads:
        assert all(threads.map(encode, (False, True)))


def test_a_tokenizer_that_was_sent_to_another_process_encodes_as_before():
    tokenizer = HfTokenizer(byte_level())
    sent: HfTokenizer = pickle.loads(pickle.dumps(tokenizer))
    for control in (False, True):
        text = "user<tool_call><|im_end|>x"
        assert sent.encode(text, control=control) == tokenizer.encode(text, control=control)


@pytest.mark.parametrize("normalizer", [None, normalizers.Lowercase()])
def test_control_text_is_encoded_as_by_the_tokenizer_itself(normalizer: normalizers.Normalizer | None):
    own = byte_level()
    own.normalizer = normalizer  # pyright: ignore[reportAttributeAccessIssue]
    own.add_special_tokens([AddedToken("<later>", lstrip=True, rstrip=True)])
    own.add_tokens([AddedToken("<Odd>", normalized=True), AddedToken("word", single_word=True)])
    same = Tokenizer.from_str(own.to_str())
    tokenizer = HfTokenizer(own)
    text = " The <later> <odd> word words<|im_start|>user <tool_call>\n\n"
    assert tokenizer.encode(text, control=True) == same.encode(text, add_special_tokens=False).ids
    same.encode_special_tokens = True
    assert tokenizer.encode(text, control=False) == same.encode(text, add_special_tokens=False).ids


def test_added_tokens_that_are_not_control_stay_tokens_in_text():
    tokenizer = HfTokenizer(byte_level())
    assert tokenizer.inner.token_to_id("<tool_call>") in tokenizer.encode("x <tool_call> y", control=False)


def test_a_folder_saved_by_transformers_is_loaded(tmp_path: Path):
    byte_level().save(str(tmp_path / "tokenizer.json"))
    config = {"chat_template": HEADERS, "bos_token": {"content": "<s>"}, "eos_token": "<eot>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    renderer = load_renderer(tmp_path)
    assert renderer.open("s", "u").text.startswith("<s><h>system</h>")
    assert renderer.tokenizer.decode([renderer.end_of_turn or 0]) == "<eot>"
    (tmp_path / "chat_template.jinja").write_text(CHATML)  # the newer location wins
    assert load_renderer(tmp_path).open("s", "u").text.startswith("<|im_start|>system")


def test_the_default_of_several_named_templates_is_used(tmp_path: Path):
    byte_level().save(str(tmp_path / "tokenizer.json"))
    named = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": CHATML}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    assert load_renderer(tmp_path).open("s", "u").text.startswith("<|im_start|>system")


@pytest.mark.parametrize("template", ["{{ messages[0].nothing.at.all }}", "nothing", "{% for %}"])
def test_a_template_that_does_not_render_messages_is_refused(template: str):
    with pytest.raises(ConfigError, match="chat template"):
        chat_format(template)


def test_a_folder_without_tokenizer_or_template_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"tokenizer\.json"):
        load_renderer(tmp_path)
    byte_level().save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ConfigError, match="no chat template"):
        load_renderer(tmp_path)


def test_the_smollm2_package_has_a_tokenizer():
    renderer = load_renderer("smollm2")
    ids = renderer.open("You are brief.", "What is 12 + 30? é漢").token_ids
    assert renderer.tokenizer.decode(ids).endswith("What is 12 + 30? é漢<|im_end|>\n<|im_start|>assistant\n")
    assert renderer.end_of_turn == 2
    assert tokenizers.__version__


# Damaged files.


@pytest.fixture(scope="module")
def whole_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    byte_level().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": CHATML, "bos_token": "<s>"}))
    return folder


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", b""),
        ("tokenizer.json", b"{}"),
        ("tokenizer.json", b'{"model": {"type": "BPE", "vocab": 7}}'),
        ("tokenizer.json", b"\xff\xfe"),
        ("tokenizer_config.json", b"{"),
        ("tokenizer_config.json", b"[]"),
        ("tokenizer_config.json", b"[" * 9999),
        ("tokenizer_config.json", b"\xff"),
        ("tokenizer_config.json", b'{"chat_template": 5}'),
        ("tokenizer_config.json", b'{"chat_template": [1, {"name": "default"}]}'),
        ("chat_template.jinja", b"\xff"),
        ("chat_template.jinja", b"{% for"),
    ],
)
def test_a_damaged_tokenizer_is_one_line(whole_folder: Path, tmp_path: Path, name: str, content: bytes):
    folder = Path(shutil.copytree(whole_folder, tmp_path / "copy"))
    (folder / name).write_bytes(content)
    with pytest.raises(ConfigError, match=r"^.+\Z"):
        load_renderer(folder)


@pytest.mark.parametrize("content", [b"", b"GGUF", b"GGUF\x03\x00\x00\x00" + b"\xff" * 64, b"x" * 5000])
def test_a_damaged_gguf_file_is_one_line(tmp_path: Path, content: bytes):
    (tmp_path / "model.gguf").write_bytes(content)
    with pytest.raises(ConfigError, match=r"model\.gguf: it is damaged"):
        load_renderer(tmp_path / "model.gguf")
