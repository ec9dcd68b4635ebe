"""Read one file of trees. Whatever its bytes are, the result is its trees or a `StoreError` that names the file."""

# pyarrow ships no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ramet.errors import RametError, StoreError
from ramet.store.parquet import SCHEMA, USAGE, arrow_schema, tree_from_rows
from ramet.store.seal import check_seal, read_table, reason
from ramet.types import Tree

MAX_EXPANSION = 5_000  # unpacked bytes per byte of a file; more is a damaged file
REQUIRED = (
    *("node", "depth", "path", "goal", "grant", *USAGE, "started_s"),
    *("turns", "pieces", "token_ids", "mask", "logprobs"),
)
REQUIRED_OF_ROOT = ("question", "task_id", "task", "budget", "dialect", "seconds")
REQUIRED_OF_TURN = ("tokens", "finish", "started_s", "sampled_s", "children", "refusals", "repairs", "faults")
REQUIRED_OF_PIECE = ("sampled", "text", "num_ids", "taught")
REPLACED = 100  # times that a file may be replaced while it is read
ALWAYS_READ = 64 * 2**20  # unpacked bytes that are read from any file


def check_file(file: Path) -> None:
    """Raise unless the file has our schema and columns and a plausible size. Reads its footer only."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    check_seal(file)
    try:
        meta = pq.read_metadata(file)
        schema = meta.schema.to_arrow_schema()
        groups = [meta.row_group(number) for number in range(meta.num_row_groups)]
        sizes = [group.column(i).total_uncompressed_size for group in groups for i in range(group.num_columns)]
    except (OSError, ValueError, pa.ArrowException) as error:
        raise StoreError(f"cannot read {file}: {reason(error)}") from None
    check_schema((schema.metadata or {}).get(b"ramet.schema", b"none").decode(errors="replace"), file)
    for field in arrow_schema():
        place = schema.get_field_index(field.name)
        if place < 0 or not schema.field(place).type.equals(field.type):
            raise StoreError(f"cannot read {file}: its column {field.name!r} is missing or of another type")
    if min(sizes, default=0) < 0 or sum(sizes) > ALWAYS_READ + MAX_EXPANSION * file.stat().st_size:
        raise StoreError(f"cannot read {file}: its sizes are damaged")


def read_file(file: Path, ids: Sequence[str] | None = None) -> Iterator[Tree]:
    """The trees of a file, or those with one of the `ids`, equal to the ones that were written."""
    table = _read_whole(file, filters=None if ids is None else [("tree", "in", list(ids))])
    rows: dict[str, list[dict[str, Any]]] = {}
    try:
        for row in table.to_pylist():
            rows.setdefault(row["tree"], []).append(row)
    except (ValueError, OverflowError) as error:  # bytes that are not UTF-8
        raise StoreError(f"cannot read {file}: {reason(error)}") from None
    for name, rows_of_tree in rows.items():
        yield _tree(file, name, rows_of_tree)


def _read_whole(file: Path, **what: Any) -> Any:
    """A table of a file. It is opened several times, so one that is replaced in between is read again."""
    for _ in range(REPLACED):
        before = _identity(file)
        try:
            check_file(file)
            return read_table(file, **what)
        except StoreError:
            if _identity(file) == before:
                raise
    raise StoreError(f"cannot read {file}: it is replaced again and again")


def _identity(file: Path) -> tuple[int, ...]:
    """Another one for every version of a file; empty if there is none."""
    try:
        found = file.stat()
    except OSError:
        return ()
    return found.st_ino, found.st_mtime_ns, found.st_size


def _tree(file: Path, name: str, rows: list[dict[str, Any]]) -> Tree:
    try:
        for row in rows:
            _check_row(row)
        tree = tree_from_rows(rows)
    except KeyError as error:
        raise StoreError(f"cannot read {file}: tree {name!r} has no field {error}") from None
    except (TypeError, ValueError, AttributeError, RecursionError, RametError) as error:
        raise StoreError(f"cannot read {file}: tree {name!r} is damaged: {reason(error)}") from None
    for place, node in enumerate(tree.nodes):
        if node.index != place or (node.parent is None) != (place == 0) or not -1 < (node.parent or 0) <= place:
            raise StoreError(f"cannot read {file}: tree {name!r} is damaged: node {place} is not where it belongs")
    return tree


def _check_row(row: dict[str, Any]) -> None:
    """Raise `ValueError` where a value is missing that every node has."""
    required = REQUIRED if row["parent"] is not None else (*REQUIRED, *REQUIRED_OF_ROOT)
    places = [(row, required)]
    places += [(turn, REQUIRED_OF_TURN) for turn in row["turns"] or ()]
    places += [(piece, REQUIRED_OF_PIECE) for piece in row["pieces"] or ()]
    places += [
        (refusal, ("goal", "reason", "kind")) for turn in row["turns"] or () for refusal in turn["refusals"] or ()
    ]
    for record, names in places:
        for name in names:
            if record[name] is None:
                raise ValueError(f"node {row['node']} has no {name}")
    if sum(piece["num_ids"] for piece in row["pieces"]) != len(row["token_ids"]):
        raise ValueError(f"node {row['node']} has other token_ids than its pieces")


def check_schema(schema: object, path: Path) -> None:
    if str(schema) != str(SCHEMA):
        raise StoreError(f"{path} has schema {str(schema)[:40]}; this version of ramet reads schema {SCHEMA}")
