"""The console of all commands."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.table import Table

from ramet.terminal.console import command, out, print_json, table_console


def test_a_table_in_a_pipe_is_as_wide_as_it_needs_to_be(capsys: pytest.CaptureFixture[str]) -> None:
    table_console().print("wide [/b] " * 500)
    assert capsys.readouterr().out == "wide [/b] " * 500 + "\n"


def test_code_between_colons_is_printed_as_it_was_written(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table.grid()
    table.add_row("cells[i:x:2]")
    for printed in ("cells[i:x:2] at 12:on:00", table):
        out.print(printed)
    out.rule("goal[:end:]")
    said = capsys.readouterr().out
    assert said.count("cells[i:x:2]") == 2
    assert "12:on:00" in said
    assert "goal[:end:]" in said


def test_json_keeps_unicode_and_writes_other_values_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"name": "Bygdøy", "path": Path("runs/a")})
    assert capsys.readouterr().out == '{\n "name": "Bygdøy",\n "path": "runs/a"\n}\n'


def test_hints_name_a_command_that_works_here(tmp_path: Path) -> None:
    assert command(program=".venv/bin/ramet", path=str(tmp_path)) == ".venv/bin/ramet"
    assert command(program="/somewhere/ramet/__main__.py", path=str(tmp_path)) == "python -m ramet"
    (tmp_path / "ramet").touch(mode=0o755)
    assert command(program=".venv/bin/ramet", path=str(tmp_path)) == "ramet"
