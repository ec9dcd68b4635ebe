"""Parquet files that can be damaged without harm: written whole, and checked before they are parsed.

The footer of such a file says how everything else is laid out; a damaged one can end the process of its reader. So the
file holds a checksum of its own footer. Data pages have checksums of their own, which Parquet defines.
"""

# pyarrow ships no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportUnknownParameterType=false

from __future__ import annotations

import re
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ramet.errors import StoreError
from ramet.store.atomic import atomic_file

if TYPE_CHECKING:
    import pyarrow as pa

MAGIC = b"PAR1"
TAIL = 8  # bytes at the end of a Parquet file: the length of the footer and the magic number
MAX_FOOTER = 64 * 2**20
UNSEALED = b"blake2:" + b"0" * 32  # in the metadata of the file, until `seal` replaces it
SMALL: dict[str, Any] = {"compression": "zstd"}
QUICK: dict[str, Any] = {"compression": "lz4", "use_dictionary": False, "write_statistics": False}
SEALED = re.compile(rb"blake2:[0-9a-f]{32}")


def write_table(file: Path, table: pa.Table, *, quick: bool = False) -> None:
    """Write a table as a file, all or nothing. `quick`: in less than half the time, for one that is soon replaced."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    table = table.replace_schema_metadata({**(table.schema.metadata or {}), b"ramet.seal": UNSEALED})
    pq.write_table(table, sink, write_page_checksum=True, **(QUICK if quick else SMALL))
    try:
        with atomic_file(file) as out:
            out.write(seal(sink.getvalue().to_pybytes()))
    except OSError as error:
        raise StoreError(f"cannot write {file}: {reason(error)}") from None


def read_table(file: Path, **what: Any) -> pa.Table:
    """A table as it was written, or the `columns` and rows that `what` asks for. Any damage is a `StoreError`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    check_seal(file)
    try:
        return pq.read_table(str(file), page_checksum_verification=True, **what)
    except (OSError, ValueError, KeyError, OverflowError, pa.ArrowException) as error:
        raise StoreError(f"cannot read {file}: {reason(error)}") from None


def reason(error: Exception) -> str:
    """The reason of an error, in one line."""
    return " ".join(str(getattr(error, "strerror", None) or error).split())[:300]


def seal(data: bytes) -> bytes:
    """A Parquet file with the checksum of its footer in place of `UNSEALED`."""
    start = len(data) - TAIL - int.from_bytes(data[-TAIL:-4], "little")
    footer = data[start:-TAIL]
    before, unsealed, after = footer.rpartition(UNSEALED)  # the last one: a text of a model may look like it
    if not unsealed:
        raise AssertionError("a file has a place for its checksum")
    return data[:start] + before + _checksum(footer) + after + data[-TAIL:]


def check_seal(file: Path) -> None:
    """Raise `StoreError` unless the footer is the one that was written."""
    try:
        footer = _footer(file)
    except OSError as error:
        raise StoreError(f"cannot read {file}: {error.strerror}") from None
    if footer is None:
        raise StoreError(f"cannot read {file}: it is not a complete Parquet file")
    found = [*SEALED.finditer(footer)][-1:]  # metadata come after statistics, which have texts of models
    if not found:
        raise StoreError(f"cannot read {file}: it is not a file of trees of this version of ramet, or it is damaged")
    begin, end = found[0].span()
    if found[0][0] != _checksum(footer[:begin] + UNSEALED + footer[end:]):
        raise StoreError(f"cannot read {file}: it is damaged")


def _checksum(unsealed: bytes) -> bytes:
    return b"blake2:" + blake2b(unsealed, digest_size=16).hexdigest().encode()


def _footer(file: Path) -> bytes | None:
    """The footer of a Parquet file; None if the file cannot have one."""
    size = file.stat().st_size
    if size < TAIL + len(MAGIC):
        return None
    with file.open("rb") as source:
        source.seek(size - TAIL)
        tail = source.read(TAIL)
        length = int.from_bytes(tail[:4], "little")
        if tail[4:] != MAGIC or not 0 < length <= min(MAX_FOOTER, size - TAIL - len(MAGIC)):
            return None
        source.seek(size - TAIL - length)
        return source.read(length)
