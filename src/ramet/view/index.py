"""The trees of one run as a narrow table: one row per tree, without texts and tokens, made by DuckDB from Parquet.

A run with 100,000 trees is listed, sorted and filtered in this table, page by page. Everything else is read from the
file of a tree when it is shown. Files are added when they appear, and dropped when they are replaced or removed.
"""

# duckdb's types are partial.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ramet.errors import StoreError
from ramet.store import RunDir
from ramet.store.parquet import USAGE, tree_from_rows
from ramet.store.tree_files import check_file
from ramet.types import Tree
from ramet.view.catalog import is_inside

PART = r"^(step|eval|replay|chunk)-([0-9]+)$"  # names of tree files: what they are, and of which step
TEXT = 240  # characters of a question and an answer in the table
PAGE = 200  # rows of a page, at most
METHOD = r"^([^.:]+\.(?:own|[0-9]+))\."  # how the id of a tree of an evaluation begins: `clones.own.codes:eval/3.0`

TABLE = """
create table trees (
  file varchar, part varchar, step integer, tree varchar, task_id varchar, question varchar, answer varchar,
  stop varchar, score double, verdict varchar, nodes integer, depth integer, tokens bigint, lost bigint,
  critical bigint, refused integer, wrong integer, seconds double, grant_ bigint, method varchar, place bigint
)
"""
ADD = """
insert into trees
select filename, nullif(regexp_extract(parse_filename(filename, true), $part, 1), ''),
       try_cast(regexp_extract(parse_filename(filename, true), $part, 2) as integer),
       tree, any_value(task_id), any_value(left(question, {text})),
       max(left(answer, {text})) filter (where parent is null), max(stop) filter (where parent is null),
       max(score) filter (where parent is null), max(verdict) filter (where parent is null),
       count(*), max(depth), sum(tokens), sum(lost_tokens),
       max(critical_path_tokens) filter (where parent is null), sum(num_refused),
       count(*) filter (where score < 1 - 1e-9), max(seconds), max("grant") filter (where parent is null),
       nullif(regexp_extract(tree, $method, 1), ''), min(file_row_number)
from read_parquet($files, filename = true, file_row_number = true) group by filename, tree order by filename, tree
"""
COLUMNS = (
    *("file", "part", "step", "tree", "task_id", "question", "answer", "stop", "score", "verdict", "nodes", "depth"),
    *("tokens", "lost", "critical", "refused", "wrong", "seconds", "grant_", "method"),
)
SHOWN = ", ".join(name for name in COLUMNS if name != "file")
SORTS = ("step", "tree", "task_id", "score", "nodes", "depth", "tokens", "critical", "refused", "wrong", "seconds")
NEWEST = "step desc nulls last, part desc, if(part = 'chunk', -place, 0), tree"  # chunks grow as trees end
NODE_COLUMNS = (
    *("tree", "node", "parent", "depth", "path", "goal", "grant", "stop", "answer", "value", "error", "score"),
    *("verdict", "verdict_reason", "judgement", *USAGE, "started_s", "ended_s", "turns"),
    *("question", "task_id", "task", "budget", "dialect", "seconds"),
)
NO_TEXTS: dict[str, Any] = {"pieces": [], "token_ids": [], "mask": [], "logprobs": []}


class Index:
    """The table of one run. Methods may be called from several threads."""

    def __init__(self, run: Path) -> None:
        import duckdb

        self.run = run
        self.notes: list[str] = []  # files that cannot be read
        self._files: dict[str, tuple[int, int]] = {}  # name: size and time of change
        self._lock = threading.Lock()
        self._database = duckdb.connect(":memory:")
        self._database.execute(TABLE)

    def close(self) -> None:
        with self._lock:
            self._database.close()

    def refresh(self) -> None:
        """Add new files and drop those that are gone or were replaced."""
        with self._lock:
            present = {str(path): _stamp(path) for path in RunDir(self.run).files() if is_inside(path, self.run)}
            gone = [name for name, stamp in self._files.items() if present.get(name) != stamp]
            for name in gone:
                self._database.execute("delete from trees where file = ?", [name])
                del self._files[name]
            fresh = [name for name in present if name not in self._files]
            if gone:
                self.notes = [note for note in self.notes if not any(name in note for name in gone)]
            self._files |= {name: present[name] for name in fresh}
            self._add([name for name in fresh if self._is_readable(name)])

    def _is_readable(self, name: str) -> bool:
        try:
            check_file(Path(name))
        except StoreError as error:
            self.notes.append(str(error))
            return False
        return True

    def _add(self, names: list[str]) -> None:
        import duckdb

        if not names:
            return
        try:
            self._database.execute(ADD.format(text=TEXT), {"files": names, "part": PART, "method": METHOD})
        except duckdb.Error as error:
            if len(names) == 1:
                self.notes.append(f"cannot read {names[0]}: {str(error).splitlines()[0]}")
                return
            for name in names:  # one damaged file does not hide the others
                self._add([name])

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[dict[str, Any]]:
        """The rows of a query over `trees` and the files of the run."""
        import duckdb

        with self._lock:
            try:
                result = self._database.execute(sql, list(values))
                names = [column[0] for column in result.description or []]
                return [dict(zip(names, row, strict=True)) for row in result.fetchall()]
            except duckdb.Error as error:
                raise StoreError(f"cannot read {self.run}: {str(error).splitlines()[0]}") from None

    def page(self, filters: Mapping[str, str], *, sort: str, down: bool, offset: int, limit: int) -> dict[str, Any]:
        """One page of trees, and how many there are in all."""
        where, values = self.where(filters)
        order = f"{sort} {'desc' if down else 'asc'} nulls last, rowid" if sort in SORTS else NEWEST
        total = self.rows(f"select count(*) as total from trees{where}", values)[0]["total"]
        found = self.rows(
            f"select {SHOWN} from trees{where} order by {order} limit ? offset ?",
            [*values, max(1, min(limit, PAGE)), max(0, offset)],
        )
        return {"total": total, "offset": max(0, offset), "rows": found}

    def named(self, tree: str) -> list[dict[str, Any]]:
        """The row of one tree."""
        return self.rows(f"select {SHOWN} from trees where tree = ? order by file desc limit 1", [tree])

    def where(self, filters: Mapping[str, str]) -> tuple[str, list[Any]]:
        """The filters of a request as SQL. Only known names become part of the query; values are parameters."""
        parts: list[str] = []
        values: list[Any] = []
        for name in ("stop", "verdict", "part", "task_id", "method"):
            if filters.get(name):
                parts.append(f"{name} = ?")
                values.append(filters[name])
        for name in ("step", "depth"):
            if filters.get(name, "").isdecimal():
                parts.append(f"{name} = ?")
                values.append(int(filters[name][:9]))
        wrong = {"root": "score < 1 - 1e-9", "any": "wrong > 0", "right": "score >= 1 - 1e-9"}.get(
            filters.get("wrong", "")
        )
        if wrong:
            parts.append(wrong)
        text = filters.get("q", "").strip().lower()
        if text:
            own = "contains(lower(concat_ws(' ', tree, task_id, question, answer)), ?)"
            files = sorted(name for name in self._files if self._has(name))
            goals = "tree in (select tree from read_parquet(?) where contains(lower(goal), ?))"
            parts.append(f"({own} or {goals})" if files else own)
            values += [text, files, text] if files else [text]
        return (" where " + " and ".join(parts) if parts else ""), values

    def _has(self, name: str) -> bool:
        return not any(name in note for note in self.notes)

    def file_of(self, tree: str) -> str:
        """The file that holds a tree."""
        found = self.rows("select file from trees where tree = ? order by file desc limit 1", [tree])
        if not found:
            raise StoreError(f"this run has no tree {tree!r}")
        return found[0]["file"]

    def tree(self, tree: str) -> Tree:
        """A tree without its texts and tokens."""
        return _tree(self.node_rows(tree, NODE_COLUMNS))

    def node_rows(self, tree: str, columns: Sequence[str], *, node: int | None = None) -> list[dict[str, Any]]:
        """Columns of the nodes of a tree, or of one of them."""
        names = ", ".join(f'"{name}"' for name in columns)
        where = "tree = ?" if node is None else "tree = ? and node = ?"
        return self.rows(
            f"select {names} from read_parquet(?) where {where} order by node",
            [self.file_of(tree), tree, *([] if node is None else [node])],
        )


def _stamp(path: Path) -> tuple[int, int]:
    try:
        stat = path.stat()
    except OSError:
        return (0, 0)
    return (stat.st_size, stat.st_mtime_ns)


def _tree(rows: list[dict[str, Any]]) -> Tree:
    try:
        return tree_from_rows([row | NO_TEXTS for row in rows])
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise StoreError(f"this tree is damaged: {error}") from None
