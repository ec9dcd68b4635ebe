"""A credit rule of your own, used in training.

    python examples/own_rule.py
    python examples/own_rule.py --model runs/demo/warm --steps 30
    ramet train model=nano task=codes:train dialect=terse rule=examples/own_rule.py:Thrifty credit.price=0.05

The rule: a node earns its own score, less a price for every clone that it started. Its advantage is how much more it
earned than the average node of its depth in the same group of trees.

Training needs the weights, so `--model` is `nano` (made from scratch), `smollm2`, a run or a folder. A server that
trains is the setting `backend.kind=tinker` (docs/scale-out.md).
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ramet import Credit, Credits, Group, Node, make_credits


@dataclass(frozen=True)
class Thrifty:
    price: float = 0.03  # a setting: credit.price=0.05

    def credit(self, groups: Sequence[Group]) -> Credits:
        credits: dict[tuple[str, int], Credit] = {}
        for group in groups:
            by_depth: dict[int, list[tuple[tuple[str, int], float]]] = defaultdict(list)
            for tree in group.trees:
                for node in tree.nodes:
                    by_depth[node.depth].append(((tree.id, node.index), self.reward(node)))
            for earned in by_depth.values():
                mean = sum(reward for _, reward in earned) / len(earned)
                for key, reward in earned:
                    credits[key] = Credit(reward=reward, baseline=mean, advantage=reward - mean, weight=1.0)
        return make_credits(groups, credits)

    def reward(self, node: Node) -> float:
        score = 0.0 if node.verdict is None else node.verdict.score
        return score - self.price * sum(len(turn.children) for turn in node.turns)


def main(words: Sequence[str] | None = None) -> None:
    import ramet

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="nano", help="nano, smollm2, a run or a folder")
    parser.add_argument("--steps", type=int, default=2, help="10 or more: with as many trees as the recipe nano")
    parser.add_argument("--runs", default="runs", help="folder of run directories")
    chosen = parser.parse_args(words)
    small = chosen.steps < 10
    print("demonstrations, then reward:" if chosen.model == "nano" else "reward:")
    ramet.train(
        model=chosen.model,
        task="codes:train",
        dialect="terse",
        rule=f"{Path(__file__).resolve()}:Thrifty",
        steps=chosen.steps,
        tasks_per_step=4 if small else 48,
        group_size=4 if small else 8,
        temperature=0.7,
        budget={"tokens": 1500, "nodes": 40, "depth": 8, "window": 64, "reserve": 4},
        warm={"steps": 4 if chosen.model == "nano" else 0, "trees_per_step": 8},
        runs=chosen.runs,
        on_step=show,
    )


def show(row: dict[str, Any]) -> None:
    print(", ".join(f"{name} {row[name]:.3g}" for name in ("step", "reward", "success", "delegated") if name in row))


if __name__ == "__main__":
    main()
