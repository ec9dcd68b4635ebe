"""A research question over files: clones read one file each, the root combines what they found.

    python examples/research.py
    python examples/research.py --base-url http://127.0.0.1:8000/v1 --model my-model \
        --question "Which limits can a budget have?" docs/design.md docs/credit.md

The root sees only the names of the files and hands each of them to a clone. So the files together may be far longer
than the window of one node.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from common import choose_engine, delegate, options, report

import ramet

DOCS = Path(__file__).resolve().parent.parent / "docs"
FILES = [DOCS / name for name in ("concepts.md", "reliability.md", "security.md")]
QUESTION = "What happens to a node that runs out of tokens?"


def scripted(prompt: ramet.Prompt) -> str:
    """A model that knows one strategy: a clone per file; a clone quotes the sentence with most words of the goal."""
    if prompt.depth == 0 and prompt.turn == 0:
        question = prompt.goal
        return "\n".join(delegate([f"{question} (only from {key})"], [key]) for key in prompt.keys)
    if prompt.depth == 0:
        found = re.findall(r"^clone \S+: (.+)$", prompt.last, re.MULTILINE)
        return "Answer: " + " | ".join(found)
    return f"Answer: {best_sentence(prompt.goal, prompt.last)}"


def best_sentence(goal: str, text: str) -> str:
    wanted = {word for word in re.findall(r"\w+", goal.lower()) if len(word) > 3}
    parts = [" ".join(part.split()) for part in re.split(r"(?<=[.!?])\s+|\n\n", text)]
    sentences = [part for part in parts if part.endswith(".")]  # no headings, and not the goal itself
    return max(sentences, key=lambda part: len(wanted & set(re.findall(r"\w+", part.lower()))))


def main(words: Sequence[str] | None = None) -> None:
    parser = options(__doc__)
    parser.add_argument("--question", default=QUESTION)
    parser.add_argument("files", nargs="*", type=Path, default=FILES)
    chosen = parser.parse_args(words)
    texts = {file.name: file.read_text(encoding="utf-8") for file in chosen.files}
    tree = ramet.run_sync(
        ramet.Task(question=chosen.question, context=texts),
        engine=choose_engine(chosen, scripted),
        budget=ramet.Budget(tokens=chosen.tokens, nodes=2 * len(texts) + 1, depth=2, window=32_768, seconds=600),
    )
    report(tree)


if __name__ == "__main__":
    main()
