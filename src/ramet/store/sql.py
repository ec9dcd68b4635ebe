"""SQL over the files of a run, which it can read and nothing else: no other file, no writing, no network."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ramet.errors import StoreError
from ramet.store.parquet import arrow_schema
from ramet.store.run_dir import OnProblem, RunDir
from ramet.types import clean

if TYPE_CHECKING:
    import duckdb

TREES_VIEW = """
create view trees as
select tree, any_value(question) as question, any_value(task_id) as task_id, any_value(dialect) as dialect,
       max(case when parent is null then answer end) as answer,
       max(case when parent is null then stop end) as stop,
       max(case when parent is null then score end) as score,
       max(case when parent is null then critical_path_tokens end) as critical_path_tokens,
       count(*) as nodes, max(depth) as depth, sum(tokens) as tokens, sum(lost_tokens) as lost_tokens,
       sum(prompt_tokens) as prompt_tokens, sum(cached_tokens) as cached_tokens, sum(calls) as calls,
       sum(cost) / 1e12 as dollars, max(peak_window) as peak_window, sum(num_refused) as refused,
       max(seconds) as seconds
from nodes group by tree
"""


def query(
    run: RunDir | Path | str,
    sql: str,
    *,
    on_problem: OnProblem | None = None,
    tables: Mapping[str, Any] | None = None,
) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Run SQL over `nodes` (a row per node), `trees` (a row per tree), `metrics` and, for an evaluation, `records`.

    Other `tables`, of Arrow, can be given by name.
    Returns column names and rows. Files that cannot be read are left out and reported to `on_problem`; without it
    they are an error.
    """
    import duckdb

    run = run if isinstance(run, RunDir) else RunDir.open(run)
    files = run.readable_files(on_problem)
    with duckdb.connect(":memory:") as database:
        try:
            _create_views(database, run, files)
            for name, table in (tables or {}).items():
                database.register(name, table)
            _lock(database, [*files, run.path / "records.parquet", run.path / "metrics.jsonl"])
            _check_select(clean(sql))
            result = database.execute(clean(sql))
            names = [column[0] for column in result.description or []]
            return names, result.fetchall()
        except duckdb.Error as error:
            said = str(error).strip().partition("\n\n")[0]  # a picture of the query follows
            raise StoreError(f"SQL: {' '.join(said.split())}") from None
        except (ValueError, OverflowError) as error:  # a value that Python cannot hold, like the year 300000
            raise StoreError(f"SQL: a value of the result cannot be shown: {error}") from None


def _create_views(database: duckdb.DuckDBPyConnection, run: RunDir, files: list[Path]) -> None:
    if files:
        database.read_parquet([str(file) for file in files], union_by_name=True).create_view("nodes")
    else:
        database.register("nodes", arrow_schema().empty_table())
    database.execute(TREES_VIEW)
    records = run.path / "records.parquet"
    if records.exists():
        database.read_parquet(str(records)).create_view("records")
    metrics = run.path / "metrics.jsonl"
    if metrics.exists() and metrics.stat().st_size:  # a killed process may have left part of a line
        quoted = str(metrics).replace("'", "''")
        database.execute(f"create view metrics as from read_ndjson('{quoted}', ignore_errors = true)")


def _lock(database: duckdb.DuckDBPyConnection, files: list[Path]) -> None:
    """From now on only these files can be opened, and no setting can be changed."""
    database.execute("set allowed_paths = ?", [[str(file) for file in files]])
    database.execute("set enable_external_access = false")
    database.execute("set lock_configuration = true")


def _check_select(sql: str) -> None:
    """Refuse what is not one query: an allowed file could be overwritten otherwise."""
    import duckdb

    statements = duckdb.extract_statements(sql)
    if not statements:
        raise StoreError("SQL: the query is empty")
    kinds = {duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN}
    if len(statements) > 1 or statements[0].type not in kinds:
        raise StoreError("SQL: write one query, like select count(*) from nodes; nothing can be changed")
