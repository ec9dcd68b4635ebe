"""The package itself: what importing it costs, what it offers, and whether its documentation is true."""

from __future__ import annotations

import ast
import inspect
import pkgutil
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

import ramet
from ramet.budget import Ledger

ROOT = Path(__file__).parent.parent
HEAVY = [
    "torch",
    "transformers",
    "safetensors",
    "gguf",
    "pyarrow",
    "duckdb",
    "httpx",
    "numpy",
    "matplotlib",
    "tokenizers",
]
IMPORT = "import ramet"
HELP = """
import sys, ramet.cli.main
sys.argv = ["ramet", "--help"]
try:
    ramet.cli.main.main()
except SystemExit as done:
    assert done.code == 0
"""


def loaded_by(code: str) -> set[str]:
    """Top-level modules in a fresh interpreter that ran the code."""
    code += "\nimport sys\nprint('loaded:', *{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.rpartition("loaded:")[2].split())


@pytest.mark.parametrize(
    ("code", "unwanted"),
    [
        (IMPORT, [*HEAVY, "pydantic", "rich", "typer", "anyio", "trio", "json_repair"]),
        (HELP, [*HEAVY, "pydantic_monty"]),
    ],
    ids=["import ramet", "ramet --help"],
)
def test_nothing_heavy_is_imported_before_it_is_used(code: str, unwanted: list[str]) -> None:
    loaded = loaded_by(code)
    assert "ramet" in loaded
    assert loaded & set(unwanted) == set()


@pytest.mark.parametrize("name", [*ramet.__all__, "LocalEngine"])
def test_every_public_name_resolves(name: str) -> None:
    assert getattr(ramet, name) is not None
    assert name in dir(ramet)


def test_taking_all_names_at_once_still_loads_neither_file_formats_nor_torch() -> None:
    loaded = loaded_by("from ramet import *; run, RunDir, HttpEngine, Sandbox, TreeRun, Verdict")
    assert loaded & {"pyarrow", "torch"} == set()


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'ramet' has no attribute 'Buget'"):
        ramet.Buget  # noqa: B018
    assert not hasattr(ramet, "__wrapped__")


def test_the_version_is_the_one_that_is_built() -> None:
    assert ramet.__version__ == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def test_types_are_shipped() -> None:
    assert (Path(ramet.__file__).parent / "py.typed").exists()


# Documentation.


def documented() -> Iterator[tuple[str, str, ModuleType]]:
    """Every line `call(...)  # result` in a docstring under `Example:`. Modules without one are not imported."""
    for found in pkgutil.walk_packages(ramet.__path__, "ramet."):
        for node in ast.walk(ast.parse(source_of(found.name))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
                example = (ast.get_docstring(node) or "").partition("Example:\n")[2].partition("\n\n")[0]
                for line in inspect.cleandoc(example).splitlines():
                    code, mark, result = line.partition("  # ")
                    if mark and "==" not in result:
                        yield code.strip(), result.strip(), import_module(found.name)


def source_of(name: str) -> str:
    spec = find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).read_text(encoding="utf-8")


def approx(value: object) -> object:
    return pytest.approx(value) if isinstance(value, float) else value


def test_documented_calls_give_their_documented_results() -> None:
    examples = list(documented())
    called = {code.partition("(")[0] for code, _, _ in examples}
    assert called >= {"shares", "look_up", "cell_in", "parse_type", "name_of", "halves"}
    wrong = [
        (code, result)
        for code, result, module in examples
        if eval(code, vars(module).copy()) != approx(eval(result, vars(module).copy()))
    ]
    assert wrong == []


def test_the_documented_life_of_a_ledger_is_true() -> None:
    """Comments like `ledger.tokens == 40` are checked where they stand."""
    lines: list[str] = []
    for line in inspect.cleandoc((Ledger.__doc__ or "").partition("Example:\n")[2]).splitlines():
        code, _, comment = line.partition("#")
        indent = " " * (len(code) - len(code.lstrip())) + ("    " if code.rstrip().endswith(":") else "")
        lines += [code, *(f"{indent}checked.append({claim})" for claim in re.findall(r"[\w.]+ == \d+", comment))]
    checked: list[bool] = []
    exec("\n".join(lines), {"Ledger": Ledger, "checked": checked})
    assert checked == [True] * 6
