"""Chosen trees as one HTML file: the same page with its data inside, to be mailed or kept. It needs no server."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ramet.errors import ConfigError, StoreError
from ramet.store.facts import finite
from ramet.types import clean
from ramet.view.api import Api
from ramet.view.app import static_files
from ramet.view.catalog import Catalog

ENTRY = "app.js"
IMPORT = re.compile(r'^import (\{[^}]*\}) from "\./(\w+\.js)";\n', re.MULTILINE)
EXPORT = re.compile(r"^export (?:async )?(?:function|const|class) (\w+)", re.MULTILINE)
MAX_TREES = 200
TWO_TREES = "select tree from trees limit 2"


def export(runs: Sequence[Path], trees: Sequence[str]) -> str:
    """The page with these trees of the first run that has them; without ids, the only tree of the runs.

    Ids may be cut short if they stay unambiguous.
    """
    api = Api(Catalog(runs))
    if len(trees) > MAX_TREES:
        raise ConfigError(f"one file holds at most {MAX_TREES} trees; got {len(trees)}")
    try:
        places = [find_tree(api, tree) for tree in trees] or [_only_tree(api)]
        return page(dict(_answers(api, places)), title=f"ramet: {', '.join(tree for _, tree in places)[:80]}")
    finally:
        api.close()


def find_tree(api: Api, tree: str) -> tuple[str, str]:
    """The run and the whole id of a tree."""
    for name in api.catalog.runs():
        index = api.index(api.path({"run": name}))
        known = index.rows("select tree from trees where starts_with(tree, ?) order by tree limit 9", [tree])
        ids = [row["tree"] for row in known]
        if tree in ids or len(ids) == 1:
            return name, tree if tree in ids else ids[0]
        if ids:
            raise StoreError(f"several trees begin with {tree!r}: {', '.join(ids)}")
    raise StoreError(f"no run has a tree {tree!r}")


def _only_tree(api: Api) -> tuple[str, str]:
    names = list(api.catalog.runs())
    found = [(name, row["tree"]) for name in names for row in api.index(api.path({"run": name})).rows(TWO_TREES, [])]
    if len(found) != 1:
        raise ConfigError("which trees? give --tree ID, once per tree")
    return found[0]


def _answers(api: Api, places: Sequence[tuple[str, str]]) -> Iterator[tuple[str, Any]]:
    """What the page will ask for, as a table from questions to answers."""
    names = list(dict.fromkeys(run for run, _ in places))
    listed = {run: [tree for name, tree in places if name == run] for run in names}
    cards = api.answer("runs", {})["runs"]
    yield "runs?", {"runs": [card for card in cards if card["id"] in names]}
    for run in names:
        known = api.answer("run", {"run": run})
        yield f"run?run={run}", known | {"path": "", "fork": {"possible": False, "why": "this page is a file"}}
        index = api.index(api.path({"run": run}))
        rows = [row for tree in listed[run] for row in index.named(tree)]
        yield f"trees?run={run}", {"total": len(rows), "offset": 0, "rows": rows}
    for run, tree in places:
        found = api.answer("tree", {"run": run, "tree": tree})
        yield f"tree?run={run}&tree={tree}", found | {"fork": {"possible": False, "why": "this page is a file"}}
        yield f"credit?run={run}&tree={tree}", api.answer("credit", {"run": run, "tree": tree})
        for node in found["nodes"]:
            asked = {"run": run, "tree": tree, "node": str(node["index"])}
            yield f"node?run={run}&tree={tree}&node={node['index']}", api.answer("node", asked | {"tokens": "1"})


def page(answers: dict[str, Any], *, title: str) -> str:
    """One HTML file with script, style and data inside. Its policy allows nothing else."""
    files = {name: data.decode() for name, data in static_files().items()}
    script, style = bundle(files), files["style.css"]
    data = clean(json.dumps(finite(answers), ensure_ascii=False, separators=(",", ":"))).replace("<", "\\u003c")
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_escape(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        '<div id="page"></div>\n'
        f'<script type="application/json" id="data">{data}</script>\n'
        f'<script type="module">{script}</script>\n</body>\n</html>\n'
    )


def bundle(files: dict[str, str]) -> str:
    """The modules as one script: each a function that returns what it exports, after those that it imports."""
    order: list[str] = []

    def add(name: str) -> None:
        if name in order:
            return
        for _, needed in IMPORT.findall(files[name]):
            add(needed)
        order.append(name)

    add(ENTRY)
    script = "\n".join(_as_function(name, files[name]) for name in order)
    if "</script" in script.lower():
        raise AssertionError("the script of the page would end too early")
    return script


def _as_function(name: str, text: str) -> str:
    """A module as one statement: `const module_a = (() => { ...; return { what, it, exports }; })();`."""
    exports = ", ".join(EXPORT.findall(text))
    body = IMPORT.sub(lambda found: f"const {found[1]} = {_module(found[2])};\n", text)
    body = EXPORT.sub(lambda found: found[0].removeprefix("export "), body)
    return f"const {_module(name)} = (() => {{\n{body}return {{ {exports} }};\n}})();"


def _module(file: str) -> str:
    return "module_" + file.removesuffix(".js")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
