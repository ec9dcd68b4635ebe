"""Task files: what is read, and the errors of bad ones."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.errors import ConfigError
from ramet.tasks.files import data_file, read_context, read_lines

GOOD = '{"question": "q", "answer": "a"}'


def write(file: Path, *lines: str) -> Path:
    text = "\n".join(lines) + "\n"
    file.write_bytes(gzip.compress(text.encode()) if file.suffix == ".gz" else text.encode())
    return file


def test_plain_and_gzipped_files_are_read_the_same(tmp_path: Path) -> None:
    lines = ['{"question": "où?", "answer": "ici", "more": [1]}', "", "   ", GOOD]
    plain, packed = write(tmp_path / "a.jsonl", *lines), write(tmp_path / "b.jsonl.gz", *lines)
    assert read_lines(plain) == read_lines(packed)
    assert read_lines(plain) == ({"question": "où?", "answer": "ici", "more": [1]}, {"question": "q", "answer": "a"})


def test_a_line_separator_inside_a_text_does_not_end_the_line(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", json.dumps({"question": "a\u2028b\x85c", "answer": "x"}, ensure_ascii=False))
    assert read_lines(file)[0]["question"] == "a\u2028b\x85c"


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "line 3: not valid JSON"),
        ("[1]", "line 3: an object with fields is wanted"),
        ('"text"', "line 3: an object with fields is wanted"),
        ('{"question": "q"}', "line 3: field 'answer' is missing; str is wanted"),
        ('{"question": "q", "answer": 5}', "line 3: field 'answer' is int; str is wanted"),
        ('{"question": null, "answer": "a"}', "line 3: field 'question' is NoneType; str is wanted"),
        ('{"question": "q", "answer": "a", "context": "text"}', "line 3: field 'context' must be a list of"),
        (
            '{"question": "q", "answer": "a", "context": [{"title": "t"}]}',
            "line 3: entries of field 'context' must have",
        ),
        ('{"question": "q", "answer": "a", "context": ["t"]}', "line 3: entries of field 'context' must have"),
        ('{"question": "q", "answer": "a", "context": {"t": 1}}', "line 3: entries of field 'context' must have"),
    ],
)
@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_a_bad_line_names_file_line_and_field(tmp_path: Path, name: str, line: str, complaint: str) -> None:
    file = write(tmp_path / name, GOOD, "", line)
    with pytest.raises(ConfigError) as caught:
        read_lines(file)
    assert str(caught.value).startswith(f"{file}, {complaint}")


def test_other_fields_can_be_required(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", '{"numbers": [1, 2]}', '{"numbers": "1 2"}')
    with pytest.raises(ConfigError, match="line 2: field 'numbers' is str; list is wanted"):
        read_lines(file, (("numbers", list),))


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("not-gzip.jsonl.gz", b"hello"),
        ("cut-off.jsonl.gz", gzip.compress(b"x" * 1000, mtime=0)[:20]),
        ("not-utf8.jsonl", b'{"question": "\xe9", "answer": "a"}\n'),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str, data: bytes) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ConfigError, match=f"cannot read .*{name}"):
        read_lines(tmp_path / name)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*none\.jsonl"):
        read_lines(tmp_path / "none.jsonl")


# The data folder.


def test_a_file_is_found_with_any_of_its_suffixes(tmp_path: Path) -> None:
    for name in ("one.jsonl", "two.jsonl.gz", "three.json"):
        write(tmp_path / name, GOOD)
        assert data_file(tmp_path, name.partition(".")[0], taskset="t") == tmp_path / name


def test_the_gzipped_file_is_preferred(tmp_path: Path) -> None:
    write(tmp_path / "one.jsonl", GOOD)
    write(tmp_path / "one.jsonl.gz", GOOD)
    assert data_file(str(tmp_path), "one", taskset="t").name == "one.jsonl.gz"


def test_without_a_folder_the_error_names_the_flag() -> None:
    with pytest.raises(ConfigError, match="craft reads recipes from a data folder: give --data PATH"):
        data_file(None, "recipes", taskset="craft")


def test_a_missing_folder_or_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"the data folder .*nowhere does not exist"):
        data_file(tmp_path / "nowhere", "recipes", taskset="craft")
    (tmp_path / "recipes.jsonl").mkdir()  # a folder is not a file
    with pytest.raises(ConfigError, match=r"has no recipes\.jsonl\.gz or recipes\.jsonl, which craft reads"):
        data_file(tmp_path, "recipes", taskset="craft")


# Context.


def test_a_list_and_an_object_of_texts_are_equivalent() -> None:
    listed: dict[str, Any] = {"context": [{"title": "A", "text": "1", "supporting": True}, {"title": "B", "text": "2"}]}
    texts = {"A": "1", "B": "2"}
    assert read_context(listed, "here") == read_context({"context": texts}, "here") == texts


def test_a_paragraph_that_is_part_of_another_one_is_kept_and_a_repeated_one_counts_once() -> None:
    texts = ["Anna was born in 1900.", "born in 1900", "Anna", "", "Anna was born in 1900.", "Anna"]
    entries = [{"title": "A", "text": text} for text in texts]
    assert read_context({"context": entries}, "here") == {"A": "Anna was born in 1900.\nborn in 1900\nAnna"}
    assert read_context({"context": [{"title": "A", "text": ""}]}, "here") == {"A": ""}


def test_paragraphs_with_the_same_title_are_joined() -> None:
    entries = [{"title": "A", "text": "1"}, {"title": "B", "text": "2"}, {"title": "A", "text": "3"}]
    assert read_context({"context": entries}, "here") == {"A": "1\n3", "B": "2"}


@pytest.mark.parametrize("row", [{}, {"context": None}, {"context": []}, {"context": {}}])
def test_a_row_without_a_context_has_no_texts(row: dict[str, Any]) -> None:
    assert read_context(row, "here") == {}


@given(st.dictionaries(st.text(min_size=1), st.text()))
def test_texts_keep_their_order(texts: dict[str, str]) -> None:
    assert list(read_context({"context": texts}, "here").items()) == list(texts.items())
