"""The architecture, kept: who may import whom, what loads no torch, how large a module may get.

Imports inside functions count like any other. Imports under `if TYPE_CHECKING` load nothing and do not count, but only
the two modules that name types of every layer may use them upwards.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import ramet

SOURCE = Path(ramet.__file__).parent
ROOT_MODULES = {"__init__", "__main__", "budget", "config", "draw", "errors", "interfaces", "plugins", "types"}
MAX_LINES = 400

# Lowest first. A package imports packages of lower layers; packages of one layer do not know each other.
LAYERS: list[set[str]] = [
    {"root"},
    {"store", "tokens", "recipes", "credit"},
    {"models"},
    {"agent", "engine"},
    {"inputs"},
    {"tasks"},
    {"train"},
    {"evaluate"},
    {"report"},
    {"serve"},
    {"view"},
    {"terminal"},
    {"demo", "bench"},
    {"cli"},
]
NAMES_TYPES_OF_EVERY_LAYER = {"ramet", "ramet.interfaces"}  # and import none of them
FRONT_DOOR = {"ramet", "ramet.__main__"}  # open everything, lazily

# These load neither torch nor what comes with it.
TORCH = {"torch", "transformers", "safetensors", "peft", "triton"}
WITH_TORCH = ("ramet.models", "ramet.engine.local", "ramet.train.local", "ramet.bench")


@cache
def modules() -> dict[str, Path]:
    """Every module by its dotted name."""
    found: dict[str, Path] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = ("ramet", *path.relative_to(SOURCE).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def package(module: str) -> str:
    """The part of the architecture a module belongs to."""
    name = module.split(".")[1] if "." in module else ""
    return "root" if not name or name in ROOT_MODULES else name


@cache
def imports(module: str, *, types: bool = False) -> frozenset[str]:
    """What a module imports, of ramet and of others; with `types`, what it imports for type checkers alone."""
    guarded = {id(node) for block in nodes(module) if _is_type_checking(block) for node in ast.walk(block)}
    return frozenset(name for node in nodes(module) if (id(node) in guarded) == types for name in _imported(node))


@cache
def nodes(module: str) -> tuple[ast.AST, ...]:
    """The statements with names in them that a module can import, and the conditions around them."""
    tree = ast.parse(modules()[module].read_text(encoding="utf-8"))
    return tuple(node for node in ast.walk(tree) if isinstance(node, ast.If | ast.Import | ast.ImportFrom))


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def _imported(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
        for alias in node.names:
            name = f"{node.module}.{alias.name}"
            yield name if name in modules() else node.module


def own(names: frozenset[str]) -> set[str]:
    return {name for name in names if name.split(".")[0] == "ramet"}


def layer(module: str) -> int:
    return next(number for number, names in enumerate(LAYERS) if package(module) in names)


def test_every_package_has_its_place_in_a_layer() -> None:
    placed = set().union(*LAYERS)
    assert {package(module) for module in modules()} == placed


def test_the_root_holds_the_vocabulary_and_the_seams_and_nothing_else() -> None:
    assert {path.stem for path in SOURCE.glob("*.py")} == ROOT_MODULES
    assert len(ROOT_MODULES) <= 9


def test_a_module_imports_only_its_own_package_and_lower_layers() -> None:
    checked = sorted(set(modules()) - FRONT_DOOR)
    assert {module: wrong for module in checked if (wrong := not_lower(module, own(imports(module)) - {"ramet"}))} == {}


def test_a_module_names_types_of_its_own_and_lower_layers_only() -> None:
    checked = sorted(set(modules()) - NAMES_TYPES_OF_EVERY_LAYER)
    assert {module: wrong for module in checked if (wrong := not_lower(module, own(imports(module, types=True))))} == {}


def not_lower(module: str, names: set[str]) -> set[str]:
    """The names that belong to another package of the same layer or of a higher one."""
    return {name for name in names if package(name) != package(module) and layer(name) >= layer(module)}


def test_packages_do_not_import_each_other_in_a_circle() -> None:
    edges: dict[str, set[str]] = {}
    for module in set(modules()) - FRONT_DOOR:
        targets = {package(name) for name in own(imports(module)) - {"ramet"}}
        edges.setdefault(package(module), set()).update(targets - {package(module)})
    reached = {start: _reachable(start, edges) for start in edges}
    assert [start for start, targets in reached.items() if start in targets] == []


def _reachable(start: str, edges: dict[str, set[str]]) -> set[str]:
    seen: set[str] = set()
    waiting = list(edges.get(start, ()))
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += edges.get(name, ())
    return seen


def test_only_the_command_line_imports_the_command_line() -> None:
    wrong = {
        module
        for module in set(modules()) - FRONT_DOOR
        if package(module) != "cli" and any(package(name) == "cli" for name in own(imports(module)))
    }
    assert wrong == set()


def test_torch_is_named_only_where_models_run() -> None:
    """Two places ask torch about itself: TensorBoard's writer comes with it, and a report names its version."""
    excused = {"ramet.train.track", "ramet.evaluate.model"}
    checked = [name for name in modules() if not name.startswith(WITH_TORCH) and name not in excused]
    assert [name for name in checked if {word.partition(".")[0] for word in imports(name)} & TORCH] == []


def test_importing_everything_that_is_free_of_torch_loads_no_torch() -> None:
    free = [name for name in modules() if not name.startswith(WITH_TORCH) and not name.endswith("__main__")]
    code = f"import importlib, sys\nfor name in {free!r}: importlib.import_module(name)\nprint(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "ramet.train.loop" in loaded
    assert loaded & TORCH == set()


def test_no_module_is_longer_than_a_reader_can_hold() -> None:
    lines = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in modules().items()}
    assert {name: number for name, number in lines.items() if number > MAX_LINES} == {}
