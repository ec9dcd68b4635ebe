"""Rewrite a cell that uses more of asyncio than the interpreter has.

The interpreter has `await`, `asyncio.gather` without arguments by name, `run` and `sleep`. A cell that uses more gets
the functions in asyncio.txt: `asyncio.NAME` becomes `_aio_NAME`, every `await` passes through `_aio_wait`, and
`async with` and `async for` become what they stand for. Other cells are not touched.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files

from ramet.errors import MalformedAction

NATIVE = ("gather", "run", "sleep")
TASKS = ("create_task", "gather", "wait", "wait_for", "timeout", "as_completed", "TaskGroup")
SUPPORTED = (*TASKS, "Semaphore", "Lock", "Event", "sleep", "shield")
MORE = ("run", "ensure_future", "BoundedSemaphore", "current_task", "CancelledError", "TimeoutError")
CONSTANTS = ("FIRST_COMPLETED", "FIRST_EXCEPTION", "ALL_COMPLETED")
KNOWN = {*SUPPORTED, *MORE, *CONSTANTS}
CANDIDATE = re.compile(r"asyncio|async\s+(?:with|for)|\byield\b|except\s*\*|ExceptionGroup")
WHOLE = "wait"  # asyncio.wait: `_aio_wait` is what every await passes through
END = "await _aio_end()"  # tasks that run are awaited in the cell that started them
GENERATORS = "generators (yield) are not supported in a cell: return a list, or use a generator expression"
COMPREHENSIONS = "async comprehensions are not supported in a cell: use a for loop, or await inside a plain one"
GROUPS = (
    "except* and ExceptionGroup are not supported in a cell: a TaskGroup raises the first error of its tasks as it is, "
    "so catch that with a plain except"
)
RUN_IN_DEF = "asyncio.run inside a def is not supported in a cell: make it an async def and await"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewritten:
    """A cell as the interpreter gets it, and the lines of the original that its lines come from."""

    code: str
    lines: dict[int, int] = field(default_factory=dict[int, int])
    source: tuple[str, ...] = ()


@cache
def prelude() -> str:
    """The definitions that a rewritten cell needs, once per interpreter."""
    return files("ramet.agent.cells").joinpath("asyncio.txt").read_text(encoding="utf-8")


def rewrite(code: str, *, always: bool = False) -> Rewritten | None:
    """The cell for an interpreter with the prelude; None if it can run as it is.

    `always`: an earlier cell was rewritten, so there may be tasks. What is not supported raises `MalformedAction`.
    """
    if not always and not CANDIDATE.search(code):
        return None
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None  # the interpreter reports it
    names = _module_names(tree)
    try:
        if not always and not any(_needs(node, names) for node in ast.walk(tree)):
            return None
        new = ast.fix_missing_locations(_Rewriter(names).visit(tree))
        text = f"{ast.unparse(new)}\n{END}"
        return Rewritten(code=text, lines=_line_map(new, text), source=tuple(code.split("\n")))
    except RecursionError:
        raise MalformedAction("the cell is nested too deeply") from None


def _module_names(tree: ast.Module) -> set[str]:
    """The names under which a cell knows the module."""
    imports = [alias for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    return {"asyncio", *(alias.asname or "asyncio" for alias in imports if alias.name == "asyncio")}


def _needs(node: ast.AST, names: set[str]) -> bool:
    """Whether the interpreter cannot run this by itself."""
    match node:
        case ast.AsyncWith() | ast.AsyncFor() | ast.Yield() | ast.YieldFrom() | ast.TryStar():
            return True
        case ast.comprehension(is_async=1) | ast.Name(id="ExceptionGroup" | "BaseExceptionGroup"):
            return True
        case ast.ImportFrom(module="asyncio", names=imported):
            return any(alias.name not in NATIVE for alias in imported)
        case ast.Import(names=imported):
            return any(alias.name == "asyncio" and alias.asname for alias in imported)
        case ast.Attribute(value=ast.Name(id=name), attr=attribute):
            return name in names and attribute not in NATIVE
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="gather"), keywords=keywords):
            return name in names and bool(keywords)
        case _:
            return False


def _line_map(tree: ast.AST, text: str) -> dict[int, int]:
    """For each line of the new text, the original line of the first node on it."""
    lines: dict[int, int] = {}
    code = ast.parse(text.removesuffix(END))
    old, new = ([node for node in ast.walk(whole) if isinstance(node, ast.stmt | ast.expr)] for whole in (tree, code))
    if [type(node) for node in old] != [type(node) for node in new]:
        return {}
    for before, after in zip(old, new, strict=True):
        lines.setdefault(after.lineno, before.lineno)
    return lines


class _Rewriter(ast.NodeTransformer):
    def __init__(self, names: set[str]) -> None:
        self.names = names
        self.in_def = False
        self.number = 0

    def _name(self, attribute: str) -> str:
        if attribute not in KNOWN:
            raise MalformedAction(
                f"asyncio.{attribute[:40]} is not supported in a cell; there are {', '.join(SUPPORTED)}"
            )
        return "_aio_asyncio_wait" if attribute == WHOLE else f"_aio_{attribute}"

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if isinstance(node.value, ast.Name) and node.value.id in self.names:
            return ast.copy_location(ast.Name(id=self._name(node.attr), ctx=node.ctx), node)
        return self.generic_visit(node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST | list[ast.stmt]:
        if node.module != "asyncio":
            return node
        return [
            ast.copy_location(_assign(alias.asname or alias.name, ast.Name(id=self._name(alias.name))), node)
            for alias in node.names
        ]

    def visit_Await(self, node: ast.Await) -> ast.AST:
        self.generic_visit(node)
        return ast.copy_location(_waiting(node.value), node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id == "_aio_run":
            if self.in_def:
                raise MalformedAction(RUN_IN_DEF)
            if len(node.args) != 1:
                raise MalformedAction("asyncio.run takes one coroutine: await it instead")
            return ast.copy_location(_waiting(node.args[0]), node)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._function(node, in_def=True)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self._function(node, in_def=False)

    def _function(self, node: ast.AST, *, in_def: bool) -> ast.AST:
        outer, self.in_def = self.in_def, in_def
        self.generic_visit(node)
        self.in_def = outer
        return node

    def visit_AsyncWith(self, node: ast.AsyncWith) -> list[ast.stmt]:
        self.generic_visit(node)
        body = node.body
        for item in reversed(node.items):
            body = self._entered(item, body, node)
        return body

    def _entered(self, item: ast.withitem, body: list[ast.stmt], node: ast.AST) -> list[ast.stmt]:
        """What `async with` stands for, with the body as it is."""
        self.number += 1
        n = self.number
        template = ast.parse(
            f"_aio_m{n} = 0\n"
            f"_aio_v{n} = await _aio_wait(_aio_m{n}.__aenter__())\n"
            f"_aio_ok{n} = True\n"
            "try:\n"
            "    pass\n"
            f"except BaseException as _aio_e{n}:\n"
            f"    _aio_ok{n} = False\n"
            f"    if not await _aio_wait(_aio_m{n}.__aexit__(type(_aio_e{n}), _aio_e{n}, None)):\n"
            "        raise\n"
            "finally:\n"
            f"    if _aio_ok{n}:\n"
            f"        await _aio_wait(_aio_m{n}.__aexit__(None, None, None))"
        ).body
        for made in (made for statement in template for made in ast.walk(statement)):
            if isinstance(made, ast.stmt | ast.expr):
                ast.copy_location(made, node)
        manager, entered, _, guarded = template
        if isinstance(manager, ast.Assign) and isinstance(entered, ast.Assign) and isinstance(guarded, ast.Try):
            manager.value = item.context_expr
            entered.targets = entered.targets if item.optional_vars is None else [item.optional_vars]
            guarded.body = body
        return template

    def visit_AsyncFor(self, node: ast.AsyncFor) -> ast.AST:
        self.generic_visit(node)
        self.number += 1
        name = f"_aio_next{self.number}"
        each = ast.Call(func=ast.Name(id="_aio_each"), args=[node.iter], keywords=[])
        first = ast.copy_location(ast.Assign(targets=[node.target], value=_waiting(ast.Name(id=name))), node)
        loop = ast.For(target=ast.Name(id=name), iter=each, body=[first, *node.body], orelse=node.orelse)
        return ast.copy_location(loop, node)

    def visit_comprehension(self, node: ast.comprehension) -> ast.AST:
        if node.is_async:
            raise MalformedAction(COMPREHENSIONS)
        return self.generic_visit(node)

    def visit_Yield(self, node: ast.Yield) -> ast.AST:
        raise MalformedAction(GENERATORS)

    def visit_YieldFrom(self, node: ast.YieldFrom) -> ast.AST:
        raise MalformedAction(GENERATORS)

    def visit_TryStar(self, node: ast.TryStar) -> ast.AST:
        raise MalformedAction(GROUPS)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id in ("ExceptionGroup", "BaseExceptionGroup"):
            raise MalformedAction(GROUPS)
        return node


def _assign(name: str, value: ast.expr) -> ast.stmt:
    return ast.Assign(targets=[ast.Name(id=name)], value=value)


def _waiting(value: ast.expr) -> ast.Await:
    return ast.Await(value=ast.Call(func=ast.Name(id="_aio_wait"), args=[value], keywords=[]))
