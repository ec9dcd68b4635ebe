"""Analyse a log that is longer than any window: the model cuts it in a sandboxed cell and gives clones the pieces.

    python examples/logs.py
    python examples/logs.py /var/log/syslog --question "Which errors occur, and how often?" \
        --base-url http://127.0.0.1:8000/v1 --model my-model

In the dialect `python` a text is a variable: its length costs no tokens. Clones see only their piece.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from common import choose_engine, options, report

import ramet

QUESTION = "How many requests failed, by service?"
SPLIT = """\
<python>
import asyncio
lines = context["log"].splitlines()
pieces = ["\\n".join(lines[i:i + 500]) for i in range(0, len(lines), 500)]
counts = await asyncio.gather(*[delegate(f"Count failed requests by service, piece {i}", context=piece, returns=dict)
                                for i, piece in enumerate(pieces)])
total = {}
for count in counts:
    for service, number in count.items():
        total[service] = total.get(service, 0) + number
finish(total)
</python>"""
COUNT = """\
<python>
count = {}
for line in context.splitlines():
    if " status=5" in line:
        service = line.split("service=")[1].split(" ")[0]
        count[service] = count.get(service, 0) + 1
finish(count)
</python>"""


def make_log(lines: int = 4000) -> str:
    """A log with about one failed request in fifty."""
    dice = random.Random(0)
    services = ("auth", "cart", "search")
    return "\n".join(
        f"2026-01-01T00:{i // 60 % 60:02}:{i % 60:02} service={dice.choice(services)} "
        f"status={'503' if dice.random() < 0.02 else '200'} ms={dice.randrange(5, 900)}"
        for i in range(lines)
    )


def scripted(prompt: ramet.Prompt) -> str:
    return SPLIT if prompt.depth == 0 else COUNT


def main(words: Sequence[str] | None = None) -> None:
    parser = options(__doc__)
    parser.add_argument("file", nargs="?", type=Path, help="a log; without one, 4,000 invented lines")
    parser.add_argument("--question", default=QUESTION)
    chosen = parser.parse_args(words)
    log = make_log() if chosen.file is None else chosen.file.read_text(encoding="utf-8", errors="replace")
    print(f"{len(log):,} characters, {log.count(chr(10)) + 1:,} lines")
    tree = ramet.run_sync(
        ramet.Task(question=chosen.question, context={"log": log}),
        engine=choose_engine(chosen, scripted),
        budget=ramet.Budget(tokens=chosen.tokens, nodes=64, depth=2, children=32, seconds=600),
        dialect="python",
    )
    report(tree)


if __name__ == "__main__":
    main()
