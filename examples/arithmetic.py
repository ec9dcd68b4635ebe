"""Train a model on arithmetic: demonstrations first, then reward, then a measurement on unseen expressions.

    python examples/arithmetic.py                                   # seconds: a few steps, to see that everything works
    python examples/arithmetic.py --warm 600 --steps 60 --trees 64            # about half an hour on one CPU core
    python examples/arithmetic.py --model smollm2 --steps 50        # SmolLM2-135M; needs a GPU

Training needs the weights, so `--model` is `nano` (made from scratch), `smollm2`, a run or a folder. A server that
trains is the setting `backend.kind=tinker` (docs/scale-out.md).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from typing import Any

import anyio

import ramet
from ramet.store.checkpoints import list_checkpoints

BUDGET = {"tokens": 600, "nodes": 12, "depth": 3, "window": 200, "reserve": 8}


def show(row: dict[str, Any]) -> None:
    print(", ".join(f"{name} {row[name]:.3g}" for name in ("step", "loss", "success", "delegated") if name in row))


def train(chosen: argparse.Namespace) -> ramet.RunDir:
    print("demonstrations, then reward:")
    return ramet.train(
        model=chosen.model,
        task="arithmetic:train",
        taskset={"operators": [2, 4], "digits": 1},
        dialect="terse",
        steps=chosen.steps,
        tasks_per_step=chosen.trees // 4,
        group_size=4,
        temperature=0.7,
        budget=BUDGET,
        credit={"clone_cost": 0.03},
        warm={"steps": chosen.warm, "trees_per_step": chosen.trees, "update": {"learning_rate": 3e-3}},
        runs=chosen.runs,
        on_step=show,
    )


async def measure(model: str, tasks: int) -> None:
    limits = {name: value for name, value in BUDGET.items() if name != "tokens"}
    done = await ramet.evaluate(
        ["arithmetic:eval"],
        engine=ramet.LocalEngine(model),
        dialect="terse",
        budgets=[BUDGET["tokens"]],
        n=tasks,
        budget=limits,
        taskset={"operators": [2, 4], "digits": 1},
    )
    print(done.table())


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="nano", help="nano, smollm2, a run or a folder")
    parser.add_argument("--warm", type=int, default=3, help="steps on demonstrations")
    parser.add_argument("--steps", type=int, default=2, help="steps by reward")
    parser.add_argument("--trees", type=int, default=8, help="trees per step")
    parser.add_argument("--runs", default="runs", help="folder of run directories")
    chosen = parser.parse_args(words)
    run = train(chosen)
    anyio.run(partial(measure, str(list_checkpoints(run.path)[-1]), 8 if chosen.steps < 10 else 200))
    print(f"ramet run 'Compute 3+4*5' --model {run.path}")


if __name__ == "__main__":
    main()
