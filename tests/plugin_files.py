"""Files of plug-ins that tests write into a folder: a taskset, a rule, a world, a dialect and an engine."""

from __future__ import annotations

import re
from pathlib import Path

TASKS = """
from ramet import Budget, Dice, Direct, Task, TaskWorld, Verdict, exact_match, in_eval

WORDS = ["red", "oak", "sun", "ice", "fox", "jam", "sea", "elm"]

def backwards(goal):
    return " ".join(reversed(goal.rpartition(": ")[2].split()))

class Backwards:
    name, about = "backwards", "say words in reverse order"
    splits = {"train": "unlimited", "eval": "never in train"}

    def __init__(self, most: int = 6):
        self.most = most

    def size(self, split): return None
    def world(self, task): return TaskWorld(task)
    def budget(self, task): return Budget(tokens=1000, nodes=4, depth=2)

    def task(self, split, index):
        dice, words = Dice(self.name, split, index), ""
        while not words or in_eval(words) != (split == "eval"):
            words = " ".join(dice.sample(WORDS, dice.between(3, self.most)))
        return Task(id=f"{self.name}:{split}/{index}", question=f"Say in reverse order: {words}")

    def verdict(self, task, world, node):
        return Verdict(score=exact_match(node.answer, [backwards(node.goal)]), how="exact")

    def oracle(self, task, *, delegate, seed):
        return Direct(backwards(task.question))

    def self_check(self, task):
        right = backwards(task.question)
        return exact_match(right, [right]), exact_match("something else", [right])

READY = Backwards(most=3)
"""

RULE = """
from dataclasses import dataclass
from ramet import Credit, make_credits

@dataclass(frozen=True)
class Plain:
    scale: float = 1.0

    def credit(self, groups):
        nodes = [(tree, node) for group in groups for tree in group.trees for node in tree.nodes]
        return make_credits(groups, {(tree.id, node.index): self.one(node.verdict.score) for tree, node in nodes})

    def one(self, score):
        return Credit(reward=score, baseline=-1.0, advantage=self.scale * (score + 1), weight=1.0)
"""

WORLD = '''
class Library:
    def __init__(self, task):
        self.context = {"note": f"about {len(task.question)} letters"}
        self.functions = {"shout": self.shout}

    def shout(self, word: str) -> str:
        """The word in capitals."""
        return word.upper()
'''

DIALECT = """
from ramet import TerseDialect
from ramet.tasks.oracle import parse_terse, write_terse

class Plainer(TerseDialect):
    name = "plainer"
    def write_move(self, move): return write_terse(move)
    def read_results(self, message): return parse_terse(message)
"""

ENGINE = """
from ramet import ScriptedEngine

class Reverser:
    def __init__(self, prefix: str = "Answer: "):
        self.inner = ScriptedEngine(lambda prompt: prefix + self.answer(prompt.goal), token_ids=False)
        self.renderer = self.inner.renderer

    def answer(self, goal):
        return " ".join(reversed(goal.rpartition(": ")[2].split()))

    async def sample(self, prompt, **options):
        return await self.inner.sample(prompt, **options)
"""


def write_plugins(folder: Path) -> Path:
    """All of them in one folder."""
    for name, text in (("tasks", TASKS), ("rule", RULE), ("world", WORLD), ("dialect", DIALECT), ("engine", ENGINE)):
        (folder / f"my_{name}.py").write_text(text, encoding="utf-8")
    return folder


PAGE = Path(__file__).parent.parent / "docs" / "plugins.md"


def write_documented(folder: Path) -> Path:
    """The plug-ins of the documentation instead."""
    page = PAGE.read_text(encoding="utf-8")
    for name, text in re.findall(r"`(my_\w+\.py)`.*?^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE):
        (folder / name).write_text(text, encoding="utf-8")
    return folder
