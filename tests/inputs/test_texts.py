"""Texts from files and standard input."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramet.errors import ConfigError
from ramet.inputs.texts import read_texts, unique_names

LIMIT = 100


def test_texts_have_the_names_of_their_files(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_bytes("\ufeffnaïve\r\n".encode())
    stdin = io.BytesIO(b"piped")
    assert read_texts([str(tmp_path / "a.md"), "-"], limit=LIMIT, stdin=stdin) == {
        "a.md": "naïve\r\n",
        "stdin": "piped",
    }


@settings(max_examples=40)
@given(st.lists(st.sampled_from(["a.md", "x/a.md", "y/a.md", "x/y/a.md", "/x/a.md", "b.md", "a.md (2)"]), max_size=8))
def test_names_are_unique_whatever_the_files(sources: list[str]) -> None:
    names = unique_names(sources)
    assert len(set(names)) == len(names) == len(sources)
    assert all(Path(source).name.partition(" (")[0] in name for source, name in zip(sources, names, strict=True))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\x89PNG\0\0", "is not a text file: it has zero bytes"),
        (b"caf\xe9", "is not a text file: byte 3 is not UTF-8"),
        (b"x" * (LIMIT + 1), "is too large: all texts together may have 100 bytes (context_bytes)"),
    ],
)
def test_what_is_no_text_or_too_large_is_one_line(tmp_path: Path, data: bytes, why: str) -> None:
    (tmp_path / "file").write_bytes(data)
    with pytest.raises(ConfigError) as error:
        read_texts([str(tmp_path / "file")], limit=LIMIT)
    assert why in str(error.value)


def test_an_endless_input_is_read_up_to_the_limit() -> None:
    class Endless(io.RawIOBase):
        taken = 0

        def read(self, size: int = -1) -> bytes:
            assert 0 < size <= LIMIT + 1
            return b"x" * size

    with pytest.raises(ConfigError, match="standard input is too large"):
        read_texts(["-"], limit=LIMIT, stdin=Endless())  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("sources", "why"),
    [
        (["missing.md"], "cannot read missing.md: No such file or directory"),
        (["."], ". is a folder: give its files, like './*.md'"),
        (["a\0b"], "cannot read 'a\\x00b'"),
        (["-"], "there is no standard input here"),
        (["missing/*.md"], "no file matches missing/*.md"),
        (["-", "-"], "standard input can be read once"),
    ],
)
def test_a_source_that_cannot_be_read_is_one_line(sources: list[str], why: str) -> None:
    with pytest.raises(ConfigError) as error:
        read_texts(sources, limit=LIMIT)
    assert why in str(error.value)


def test_a_pattern_is_every_file_that_matches_and_a_file_of_that_name_is_itself(tmp_path: Path) -> None:
    for name in ("b.md", "a.md", "c.txt", "[d].md"):
        (tmp_path / name).write_text(name)
    (tmp_path / "folder.md").mkdir()
    assert read_texts([f"{tmp_path}/?.md"], limit=LIMIT) == {"a.md": "a.md", "b.md": "b.md"}
    assert read_texts([f"{tmp_path}/[d].md"], limit=LIMIT) == {"[d].md": "[d].md"}


def test_an_empty_input_is_refused() -> None:
    with pytest.raises(ConfigError, match="standard input is empty"):
        read_texts(["-"], limit=LIMIT, stdin=io.BytesIO())
