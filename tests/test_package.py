"""The package itself: what importing it costs, which names it has, and whether its documentation is right."""

from __future__ import annotations

import ast
import inspect
import pkgutil
import pydoc
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import anyio
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
COMMAND = """
import sys, ramet.cli.main
sys.argv = ["ramet", *{arguments}]
try:
    ramet.cli.main.main()
except SystemExit as done:
    assert done.code == 0, done.code
"""
HELP = COMMAND.format(arguments=["--help"])
CHECK = COMMAND.format(arguments=["train", "nano", "--check"])


def loaded_by(code: str) -> set[str]:
    """Top-level modules in a fresh interpreter that ran the code."""
    code += "\nimport sys\nprint('loaded:', *{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.rpartition("loaded:")[2].split())


@pytest.mark.parametrize(
    ("code", "unwanted"),
    [
        (IMPORT, [*HEAVY, "pydantic", "rich", "typer", "anyio", "trio", "json_repair"]),
        ("from ramet import *; run, RunDir, HttpEngine, Sandbox, TreeRun, play", ["torch", "pyarrow"]),
        ("from ramet.train import TrainConfig, train; from ramet.evaluate import evaluate", ["torch", "pyarrow"]),
        (HELP, [*HEAVY, "pydantic_monty"]),
        (CHECK, ["torch", "transformers", "safetensors", "peft"]),
    ],
    ids=["import ramet", "import *", "train and evaluate", "ramet --help", "ramet train --check"],
)
def test_nothing_heavy_is_imported_before_it_is_used(code: str, unwanted: list[str]) -> None:
    loaded = loaded_by(code)
    assert "ramet" in loaded
    assert loaded & set(unwanted) == set()


@pytest.mark.parametrize("name", [*ramet.__all__, "LocalEngine", "evaluate", "train"])
def test_every_public_name_resolves(name: str) -> None:
    assert getattr(ramet, name) is not None
    assert name in dir(ramet)


def test_train_and_evaluate_are_packages_before_and_after_their_modules_are_imported() -> None:
    for name, function in (("train", "train"), ("evaluate", "evaluate")):
        package = getattr(ramet, name)
        assert isinstance(package, ModuleType)
        assert callable(getattr(package, function))
        assert getattr(ramet, name) is package


def test_type_checkers_see_the_names_that_are_loaded_lazily() -> None:
    (block,) = (node for node in ast.parse(source_of("ramet")).body if isinstance(node, ast.If))
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    declared = {alias.asname or alias.name for node in imports for alias in node.names}
    assert declared == set(dir(ramet)) - {"__version__"}


def test_the_module_can_be_run_as_a_command() -> None:
    done = subprocess.run([sys.executable, "-m", "ramet", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"ramet {ramet.__version__}\n"
    failed = subprocess.run([sys.executable, "-m", "ramet", "nonsense"], capture_output=True, text=True)
    assert (failed.returncode, failed.stderr[:7]) == (2, "ramet: ")


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
    assert called >= {"shares", "look_up", "cell_in", "parse_type", "tensor_name", "halves"}
    wrong = [
        (code, result)
        for code, result, module in examples
        if eval(code, vars(module).copy()) != approx(eval(result, vars(module).copy()))
    ]
    assert wrong == []


def python_blocks(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / page).read_text(encoding="utf-8"), re.DOTALL | re.M)


def imports_in(code: str) -> list[str]:
    return [line for line in code.splitlines() if re.match(r"(from|import) ", line)]


@pytest.mark.parametrize("split", ["train", "eval"])
def test_the_documented_taskset_needs_one_import_line_and_is_valid(split: str) -> None:
    (code,) = (block for block in python_blocks("plugins.md") if "class Backwards" in block)
    assert len(imports_in(code)) == 1
    names: dict[str, Any] = {}
    exec(code, names)
    report = anyio.run(ramet.validate, names["Backwards"](), split)
    assert (report.tasks, report.faults) == (5, [])


def test_the_documented_use_of_a_credit_rule_works() -> None:
    names: dict[str, Any] = {}
    exec(python_blocks("credit.md")[0], names)
    trees: list[ramet.Tree] = names["trees"]
    assert isinstance(names["credits"][trees[0].id, 3], ramet.Credit)
    assert set(names["credits"].of(trees[1])) == {node.index for node in trees[1].nodes}


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


@pytest.mark.parametrize("name", ["train", "evaluate"])
def test_help_of_a_package_that_can_be_called_begins_with_its_function(name: str) -> None:
    package = getattr(ramet, name)
    function = getattr(package, name)
    said = pydoc.render_doc(package, renderer=pydoc.plaintext).partition("PACKAGE CONTENTS")[0]
    assert f"{name}{inspect.signature(function)}" in said
    for line in (inspect.getdoc(function) or "").splitlines():
        assert line in said
    assert inspect.signature(package) == inspect.signature(function)
    assert {*package.__all__} <= {*dir(package)}


@pytest.mark.parametrize("name", [name for name in ramet.__all__ if name not in ("__version__", "HostFunction")])
def test_help_has_something_to_say_about_every_public_name(name: str) -> None:
    said = inspect.getdoc(getattr(ramet, name)) or ""
    assert said
    assert not said.startswith(f"{name}(")  # what a dataclass without a docstring says
