"""Code review by clones: one clone per function, in parallel, and a summary by the root.

    python examples/review.py
    python examples/review.py src/ramet/budget.py --base-url http://127.0.0.1:8000/v1 --model my-model

The file is cut into its functions and classes with `ast`; each is a text that the root hands to a clone.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from pathlib import Path

from common import choose_engine, delegate, options, report

import ramet

QUESTION = "Review this code. Delegate every part to a clone, then list the findings, one per line."
SAMPLE = """
def add_item(item, items=[]):
    items.append(item)
    return items

def read_config(path):
    try:
        return open(path).read()
    except:
        return None

def mean(values):
    return sum(values) / len(values)
"""
RULES = {
    r"def \w+\(.*=\s*(\[\]|\{\})": "a mutable default argument is shared by all calls",
    r"except\s*:": "a bare except hides every error, also KeyboardInterrupt",
    r"open\([^)]*\)\.": "the file is never closed",
    r"/ len\(": "fails on an empty list",
}


def parts(source: str) -> dict[str, str]:
    """The functions and classes of a module by name."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    found = [node for node in ast.parse(source).body if isinstance(node, kinds)]
    return {node.name: ast.get_source_segment(source, node) or "" for node in found}


def scripted(prompt: ramet.Prompt) -> str:
    """A reviewer with four rules."""
    if prompt.depth == 0 and prompt.turn == 0:
        return "\n".join(delegate([f"Review {key}: correctness, errors, edge cases"], [key]) for key in prompt.keys)
    if prompt.depth == 0:
        found = re.findall(r"^clone \S+: (.+)$", prompt.last, re.MULTILINE)
        return "Answer: " + "\n".join(found)
    name = prompt.keys[0]
    found = [finding for rule, finding in RULES.items() if re.search(rule, prompt.last)]
    return f"Answer: {name}: {'; '.join(found) or 'no findings'}"


def main(words: Sequence[str] | None = None) -> None:
    parser = options(__doc__)
    parser.add_argument("file", nargs="?", type=Path, help="a Python file; without one, a sample with four mistakes")
    chosen = parser.parse_args(words)
    texts = parts(SAMPLE if chosen.file is None else chosen.file.read_text(encoding="utf-8"))
    tree = ramet.run_sync(
        ramet.Task(question=QUESTION, context=texts),
        engine=choose_engine(chosen, scripted),
        budget=ramet.Budget(tokens=chosen.tokens, nodes=len(texts) + 1, depth=1, seconds=600),
    )
    report(tree)


if __name__ == "__main__":
    main()
