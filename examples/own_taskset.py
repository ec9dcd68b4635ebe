"""A taskset of your own: checked, evaluated, and ready for training.

    python examples/own_taskset.py
    python examples/own_taskset.py --base-url http://127.0.0.1:8000/v1 --model my-model -n 20
    ramet tasks check examples/own_taskset.py:Products
    ramet eval examples/own_taskset.py:Products --model my-model

Each task is a range of numbers: multiply the digits of every number in it, add up, and give the last digit. A range is
as short for many numbers as for few, and can be split, so clones pay off when it is long. docs/tutorial.md trains a
model on it. Without a model, the taskset's own oracle plays.
"""

import re

from ramet import Ask, Budget, Dice, Move, Task, TaskWorld, Verdict, exact_match, in_eval

LOW, HIGH = 10, 59
RANGE = re.compile(r"Compute (\d\d)-(\d\d)")


def bounds(goal):
    """The range of a goal; None if it has none."""
    found = RANGE.fullmatch(goal.strip())
    return (int(found[1]), int(found[2])) if found else None


def product(number):
    return (number // 10) * (number % 10) % 10


def last_digit(first, last):
    return str(sum(map(product, range(first, last + 1))) % 10)


class Products:
    """Multiply the digits of every number in a range, add up, give the last digit."""

    name, about = "products", "add up the products of the digits of all numbers in a range"
    splits = {"train": "ranges of 2 to `most` numbers", "eval": "never in train", "long": "twice as many numbers"}

    def __init__(self, most: int = 20):  # an option: taskset.most=10
        self.most = most

    def sizes(self, split):
        return (self.most + 1, 2 * self.most) if split == "long" else (2, self.most)

    def size_of(self, task):
        first, last = bounds(task.question)
        return last - first + 1

    def size(self, split):
        return None  # a generator, not a list

    def task(self, split, index):
        dice, goal = Dice(self.name, split, index), ""  # the same numbers on every machine
        while not goal or (split != "long" and in_eval(goal) != (split == "eval")):
            size = dice.between(*self.sizes(split))
            first = dice.between(LOW, HIGH + 1 - size)
            goal = f"Compute {first}-{first + size - 1}"
        return Task(id=f"{self.name}:{split}/{index}", question=goal)

    def world(self, task):
        return TaskWorld(task)  # no functions and no texts

    def budget(self, task):
        return Budget(tokens=50_000, nodes=128, depth=8, reserve=32)

    def verdict(self, task, world, node):
        """Every node is graded by its own goal, so clones are graded exactly too."""
        asked = bounds(node.goal)
        right = asked is not None and exact_match(node.answer, [last_digit(*asked)])
        return Verdict(score=float(right), how="exact")

    def oracle(self, task, *, delegate, seed):
        return Adder(delegate, (task.id, seed))

    def self_check(self, task):
        right = last_digit(*bounds(task.question))
        return exact_match(right, [right]), exact_match("none", [right])


class Adder:
    """Demonstrates both ways: number by number, or two clones with a part each."""

    def __init__(self, delegate, seed):
        self.delegate, self.seed = delegate, seed

    def move(self, view):
        first, last = bounds(view.goal)
        dice = Dice("cut", *self.seed, view.goal)
        if not self.delegate or first == last or (view.depth and not dice.chance(0.3)):
            return self.alone(first, last)
        if view.turn == 0:
            middle = (first + last) // 2
            return Move(asks=(Ask(goal=f"Compute {first}-{middle}"), Ask(goal=f"Compute {middle + 1}-{last}")))
        digits = [text for text in view.history[0] if text.isdigit()]
        if len(digits) < 2:
            return self.alone(first, last)  # a clone was refused or failed
        total = sum(map(int, digits)) % 10
        return Move(thought=f"{'+'.join(digits)}={total}", answer=str(total))

    def alone(self, first, last):
        lines = [f"{number}:{product(number)}={last_digit(first, number)}" for number in range(first, last + 1)]
        return Move(thought="\n".join(lines), answer=last_digit(first, last))


def main(words=None) -> None:
    from pathlib import Path

    import anyio
    from common import choose_engine, options

    import ramet
    from ramet.tasks.oracle import script

    parser = options(__doc__)
    parser.add_argument("-n", type=int, default=5, help="number of tasks")
    chosen = parser.parse_args(words)
    taskset = ramet.load_taskset(f"{Path(__file__).resolve()}:Products")  # as `task=FILE:Products` does
    found = anyio.run(ramet.validate, taskset, "train")
    print(f"checked: {len(found.faults)} faults", *found.faults, sep="\n")

    async def measure() -> None:
        engine = choose_engine(chosen, script(Adder(delegate=True, seed=(0,)), "tools"))
        done = await ramet.evaluate([taskset], engine=engine, methods=["single", "clones"], n=chosen.n)
        print(done.table())

    anyio.run(measure)


if __name__ == "__main__":
    main()
