"""The metadata of llama.cpp files: what the `gguf` package writes is read back, and damaged files are noticed."""

from __future__ import annotations

from pathlib import Path

import pytest
from gguf import GGUFWriter

from ramet.errors import ConfigError
from ramet.tokens.gguf import read_metadata
from ramet.tokens.huggingface import load_renderer

VALUES = {
    "some.int8": -3,
    "some.uint16": 65535,
    "some.int64": -(2**40),
    "some.float64": 0.1,
    "some.bool": True,
    "some.string": "é漢",
    "some.array": [1, -2, 3],
    "some.strings": ["", "a b"],
}


@pytest.fixture
def written(tmp_path: Path) -> Path:
    writer = GGUFWriter(tmp_path / "model.gguf", "llama")
    for key, value in VALUES.items():
        kind = "array" if isinstance(value, list) else key.removeprefix("some.")
        getattr(writer, f"add_{kind}")(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return tmp_path / "model.gguf"


def test_values_of_every_kind_read_back_equal(written: Path) -> None:
    assert read_metadata(written) == {"general.architecture": "llama"} | VALUES


def test_a_file_cut_off_anywhere_is_refused(written: Path) -> None:
    whole = written.read_bytes()
    for size in range(len(whole)):
        written.write_bytes(whole[:size])
        with pytest.raises(ValueError, match=r"ends too early|empty file|not a GGUF file"):
            read_metadata(written)


@pytest.mark.parametrize(
    ("place", "byte", "problem"),
    [
        (0, b"X", "it is not a GGUF file of version 2 or 3"),
        (4, b"\x01", "it is not a GGUF file of version 2 or 3"),
        (4 + 4 + 8 + 8 + 8 + len("general.architecture"), b"\x0d", "a value has the unknown type 13"),
        (4 + 4 + 8 + 7, b"\xff", "the file ends too early"),
    ],
)
def test_a_changed_byte_is_named(written: Path, place: int, byte: bytes, problem: str) -> None:
    content = bytearray(written.read_bytes())
    content[place : place + 1] = byte
    written.write_bytes(content)
    with pytest.raises(ValueError, match=problem):
        read_metadata(written)


def test_a_file_without_a_chat_template_is_refused(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "model.gguf", "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(ConfigError, match=r"^model\.gguf has no chat template; give the model's folder"):
        load_renderer(tmp_path / "model.gguf")
