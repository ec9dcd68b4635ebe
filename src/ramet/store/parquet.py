"""Convert trees to Parquet rows, one per node, and back."""

# pyarrow ships no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportUnknownParameterType=false

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any

from ramet.budget import Budget
from ramet.config import build
from ramet.types import Judgement, Node, Piece, Refusal, State, Stop, Task, Tree, Turn, Usage, Verdict, clean

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA = 3
USAGE = tuple(Usage.__dataclass_fields__)


def arrow_schema() -> pa.Schema:
    """The columns of a tree file. Changing them needs a new `SCHEMA` number."""
    import pyarrow as pa

    refusal = pa.struct([("goal", pa.string()), ("reason", pa.string()), ("kind", pa.string())])
    turn = pa.struct(
        [
            ("tokens", pa.int64()),
            ("finish", pa.string()),
            ("started_s", pa.float64()),
            ("sampled_s", pa.float64()),
            ("closing", pa.string()),
            ("children", pa.list_(pa.int32())),
            ("refusals", pa.list_(refusal)),
            ("repairs", pa.int32()),
            ("faults", pa.int32()),
        ]
    )
    piece = pa.struct(
        [
            ("sampled", pa.bool_()),
            ("text", pa.string()),
            ("num_ids", pa.int32()),
            ("policy_version", pa.int64()),
            ("taught", pa.bool_()),
        ]
    )
    columns = [
        ("tree", pa.string()),
        ("node", pa.int32()),
        ("parent", pa.int32()),
        ("depth", pa.int32()),
        ("path", pa.list_(pa.int32())),
        ("goal", pa.string()),
        ("grant", pa.int64()),
        ("stop", pa.string()),
        ("answer", pa.string()),
        ("value", pa.string()),
        ("error", pa.string()),
        ("score", pa.float64()),
        ("verdict", pa.string()),
        ("verdict_reason", pa.string()),
        ("judgement", pa.string()),
        *[(name, pa.int64()) for name in USAGE],
        ("started_s", pa.float64()),
        ("ended_s", pa.float64()),
        ("num_turns", pa.int32()),
        ("num_refused", pa.int32()),
        ("turns", pa.list_(turn)),
        ("pieces", pa.list_(piece)),
        ("token_ids", pa.list_(pa.int32())),
        ("mask", pa.list_(pa.bool_())),
        ("logprobs", pa.list_(pa.float32())),
        # Fields of the tree: only on the row of its root.
        ("question", pa.string()),
        ("task_id", pa.string()),
        ("task", pa.string()),
        ("budget", pa.string()),
        ("dialect", pa.string()),
        ("seconds", pa.float64()),
    ]
    return pa.schema(columns, metadata={b"ramet.schema": str(SCHEMA).encode()})


def trees_to_table(trees: Sequence[Tree]) -> pa.Table:
    """One row per node of each tree."""
    import pyarrow as pa

    schema = arrow_schema()
    tokens = _token_columns([node for tree in trees for node in tree.nodes])
    others = pa.schema([field for field in schema if field.name not in tokens])
    table = pa.Table.from_pylist([row for tree in trees for row in _tree_rows(tree)], schema=others)
    columns = [tokens[name] if name in tokens else table.column(name) for name in schema.names]
    return pa.Table.from_arrays(columns, schema=schema)


def _tree_rows(tree: Tree) -> Iterable[dict[str, Any]]:
    """One row per node, without tokens; the fields of the tree are on the row of its root."""
    for node in tree.nodes:
        row = _row(node)
        row["tree"] = tree.id
        if node.parent is None:
            task = tree.task
            row |= {
                "question": clean(task.question),
                "task_id": clean(task.id),
                "task": clean(_json({"context": dict(task.context), "reference": task.reference})),
                "budget": json.dumps(asdict(tree.budget)),
                "dialect": tree.dialect,
                "seconds": tree.seconds,
            }
        yield row


def _row(node: Node) -> dict[str, Any]:
    return {
        "node": node.index,
        "parent": node.parent,
        "depth": node.depth,
        "path": node.path,
        "goal": _text(node.goal),
        "grant": node.grant,
        "stop": node.stop,
        "answer": _text(node.answer),
        "value": None if node.value is None else _text(_json(node.value)),
        "error": _text(node.error),
        "score": node.verdict and node.verdict.score,
        "verdict": node.verdict and node.verdict.how,
        "verdict_reason": node.verdict and _text(node.verdict.reason),
        "judgement": _judgement(node.verdict),
        **{name: getattr(node.usage, name) for name in USAGE},
        "started_s": node.started_s,
        "ended_s": node.ended_s,
        "num_turns": len(node.turns),
        "num_refused": sum(len(turn.refusals) for turn in node.turns),
        "turns": [_turn_row(turn) for turn in node.turns],
        "pieces": [
            {
                "sampled": piece.sampled,
                "text": _text(piece.text),
                "num_ids": len(piece.token_ids),
                "policy_version": piece.policy_version,
                "taught": piece.taught,
            }
            for piece in node.pieces
        ],
    }


def _token_columns(nodes: Sequence[Node]) -> dict[str, pa.Array]:
    """One list per node: its token ids, which of them it sampled, and their log-probs, null where there are none.

    Tokens are most of what a tree holds, so these columns are made from flat arrays and not value by value.
    """
    import numpy as np
    import pyarrow as pa

    pieces = [piece for node in nodes for piece in node.pieces]
    sizes = np.array([len(piece.token_ids) for piece in pieces], dtype=np.int64)
    ends = np.cumsum([0, *(sum(len(piece.token_ids) for piece in node.pieces) for node in nodes)], dtype=np.int32)
    logprobs = chain.from_iterable(piece.logprobs or repeat(0.0, len(piece.token_ids)) for piece in pieces)
    unknown = np.repeat([not piece.logprobs for piece in pieces], sizes).astype(bool)
    flat = {
        "token_ids": pa.array(np.fromiter(chain.from_iterable(piece.token_ids for piece in pieces), np.int32)),
        "mask": pa.array(np.repeat([piece.sampled for piece in pieces], sizes).astype(bool)),
        "logprobs": pa.array(np.fromiter(logprobs, np.float32), mask=unknown),
    }
    return {name: pa.ListArray.from_arrays(pa.array(ends), values) for name, values in flat.items()}


def _judgement(verdict: Verdict | None) -> str | None:
    """Where a judge's verdict comes from, as JSON."""
    return None if verdict is None or verdict.judgement is None else _text(_json(asdict(verdict.judgement)))


def _verdict(row: dict[str, Any]) -> Verdict | None:
    if row["score"] is None:
        return None
    judgement = row.get("judgement")  # files of earlier versions have no such column
    return Verdict(
        score=row["score"],
        how=row["verdict"],
        reason=row["verdict_reason"],
        judgement=None if judgement is None else Judgement(**json.loads(judgement)),
    )


def _turn_row(turn: Turn) -> dict[str, Any]:
    row = {name: getattr(turn, name) for name in Turn.__dataclass_fields__}
    row["refusals"] = [
        {"goal": _text(refusal.goal), "reason": _text(refusal.reason), "kind": refusal.kind}
        for refusal in turn.refusals
    ]
    return row


def _text(text: str | None) -> str | None:
    """Text that UTF-8 can encode: models write lone surrogates."""
    return None if text is None else clean(text)


def _json(value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, default=repr)
    except (TypeError, ValueError, RecursionError):  # keys that are not strings, circular references
        return json.dumps(repr(value), ensure_ascii=False)


def tree_from_rows(rows: list[dict[str, Any]]) -> Tree:
    """The tree that these rows were made from."""
    root = rows[0]
    task = json.loads(root["task"])
    return Tree(
        id=root["tree"],
        task=Task(question=root["question"], id=root["task_id"], context=task["context"], reference=task["reference"]),
        budget=build(Budget, json.loads(root["budget"])),
        dialect=root["dialect"],
        nodes=[_node(row) for row in rows],
        seconds=root["seconds"],
    )


def _node(row: dict[str, Any]) -> Node:
    return Node(
        index=row["node"],
        parent=row["parent"],
        depth=row["depth"],
        path=tuple(row["path"]),
        goal=row["goal"],
        grant=row["grant"],
        state=State.ENDED,
        stop=None if row["stop"] is None else Stop(row["stop"]),
        answer=row["answer"],
        value=None if row["value"] is None else json.loads(row["value"]),
        error=row["error"],
        pieces=list(_pieces(row)),
        turns=[_turn(turn) for turn in row["turns"]],
        usage=Usage(**{name: row[name] for name in USAGE}),
        verdict=_verdict(row),
        started_s=row["started_s"],
        ended_s=row["ended_s"],
    )


def _turn(row: dict[str, Any]) -> Turn:
    closing = None if row["closing"] is None else Stop(row["closing"])
    refusals = [Refusal(**refusal) for refusal in row["refusals"]]
    fields: dict[str, Any] = row | {"closing": closing, "refusals": refusals}
    return Turn(**fields)


def _pieces(row: dict[str, Any]) -> Iterator[Piece]:
    start = 0
    for piece in row["pieces"]:
        end = start + piece["num_ids"]
        logprobs = row["logprobs"][start:end]
        yield Piece(
            sampled=piece["sampled"],
            text=piece["text"],
            token_ids=tuple(row["token_ids"][start:end]),
            logprobs=() if None in logprobs else tuple(logprobs),
            policy_version=piece["policy_version"],
            taught=piece["taught"],
        )
        start = end
