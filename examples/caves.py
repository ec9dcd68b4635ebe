"""A taskset whose model calls a function: count the exits of a cave, room by room.

    python examples/caves.py
    ramet tasks check examples/caves.py:Caves
    ramet train examples/caves.toml
    ramet eval examples/caves.py:Caves --model runs/caves --methods single,vote@3,clones --budgets 1500,20000 -n 100

Every room has two doors or is an exit, and only `doors(room)` can find out which. A node that explores alone calls it
for every room, so a cave with more than about three exits overflows a small window. A node that delegates gives each
door to a clone and adds up. The split `deep` has more exits than any cave in training. docs/plugins.md has the results.
"""

import re
from string import ascii_lowercase, digits

from ramet import Ask, Budget, Dice, Do, Move, Task, Verdict, exact_match, in_eval

GOAL = re.compile(r"Exits from ([a-z0-9])")


def dig(dice, exits):
    """The first room, and the doors of every room; a room without doors is an exit."""
    names = iter(dice.shuffled(ascii_lowercase + digits))
    first = next(names)
    doors, ends = {first: []}, [first]
    while len(ends) < exits:
        room = ends.pop(dice.below(len(ends)))
        doors[room] = [next(names), next(names)]
        doors |= {new: [] for new in doors[room]}
        ends += doors[room]
    return first, doors


def count(doors, room):
    return sum(count(doors, behind) for behind in doors[room]) or 1


class Cave:
    """The world of one task: all nodes of a tree explore the same cave."""

    order_matters = False  # calls do not change anything, so trees can be forked

    def __init__(self, rooms):
        self.rooms, self.context = rooms, {}
        self.functions = {"doors": self.doors}

    def doors(self, room: str) -> str:
        """The rooms behind this one, or 'exit'."""
        return " ".join(self.rooms[room]) or "exit"


class Caves:
    name, about = "caves", "count the exits of a cave with doors(room)"
    splits = {"train": "caves with 2 to `most` exits", "eval": "never in train", "deep": "up to twice as many exits"}
    size_unit = "exits"

    def __init__(self, most: int = 6):
        self.most = most

    def sizes(self, split):
        return (self.most + 1, 2 * self.most) if split == "deep" else (2, self.most)

    def size_of(self, task):
        return float(self.right(task, task.question))

    def size(self, split):
        return None  # a generator, not a list

    def task(self, split, index):
        dice = Dice(self.name, split, index)
        while True:
            first, rooms = dig(dice, dice.between(*self.sizes(split)))
            if split == "deep" or in_eval(repr(rooms)) == (split == "eval"):
                return Task(id=f"{self.name}:{split}/{index}", question=f"Exits from {first}", reference=rooms)

    def world(self, task):
        return Cave(task.reference)

    def budget(self, task):
        return Budget(tokens=500_000, nodes=64, depth=16, turns=40, reserve=32)

    def right(self, task, goal):
        """The right answer to a goal; None if the goal names no room of the cave."""
        asked = GOAL.fullmatch(goal.strip())
        return str(count(task.reference, asked[1])) if asked and asked[1] in task.reference else None

    def verdict(self, task, world, node):
        right = self.right(task, node.goal)
        return Verdict(score=exact_match(node.answer, [right] if right else []), how="exact")

    def oracle(self, task, *, delegate, seed):
        return Explorer(delegate, (task.id, seed))

    def self_check(self, task):
        right = self.right(task, task.question)
        return exact_match(right, [right]), exact_match("0", [right])


class Explorer:
    """Explores alone, room by room, or gives each door to a clone. It knows only what `doors` returned."""

    def __init__(self, delegate, seed):
        self.delegate, self.seed = delegate, seed

    def move(self, view):
        room = GOAL.fullmatch(view.goal)[1]
        if self.delegate and (view.depth == 0 or Dice("cut", *self.seed, view.goal).chance(0.4)):
            return self.share(room, view.history)
        return self.alone(room, view.history)

    def share(self, room, history):
        """The first result is that of `doors`; then come the answers of the clones."""
        if not history or history[0] == ("exit",):
            return self.alone(room, history)
        if len(history) == 1:
            return Move(asks=tuple(Ask(goal=f"Exits from {behind}") for behind in history[0][0].split()))
        numbers = [int(text) for text in history[1] if text.isdigit()]
        if len(numbers) < 2:
            return Move(answer="Could not count: a clone did not answer.")
        return Move(thought=f"{'+'.join(map(str, numbers))}={sum(numbers)}", answer=str(sum(numbers)))

    def alone(self, room, history):
        found, rooms = 0, [room]
        for (result,) in history:
            rooms.pop()
            found += result == "exit"
            rooms += [] if result == "exit" else reversed(result.split())
        if not rooms:
            return Move(answer=str(found))
        note = f"{found}, then {' '.join(reversed(rooms))}" if history else ""
        return Move(thought=note, does=(Do(name="doors", arguments={"room": rooms[-1]}),))


def main(words=None) -> None:
    import anyio
    from common import choose_engine, options

    import ramet
    from ramet.tasks.oracle import script

    parser = options(__doc__)
    parser.add_argument("-n", type=int, default=5, help="number of tasks")
    chosen = parser.parse_args(words)
    found = anyio.run(ramet.validate, Caves(), "train")
    print(f"checked: {len(found.faults)} faults", *found.faults, sep="\n")

    async def measure() -> None:
        engine = choose_engine(chosen, script(Explorer(delegate=True, seed=(0,)), "tools"))
        done = await ramet.evaluate([Caves()], engine=engine, methods=["clones"], n=chosen.n)
        print(done.table())

    anyio.run(measure)


if __name__ == "__main__":
    main()
