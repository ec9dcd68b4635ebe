"""The controls `split@K` and `chain`: the task is cut by a fixed rule, and the model decides nothing about it.

The root's delegation is written for it, in the words and the dialect in which a model would write it, and costs
nothing; from then on the model acts. So a control is an ordinary tree: children borrow from the same ledger, nodes are
graded in the same way, and the last turns of the root, which has all answers in view, give the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

from ramet.agent.options import TreeOptions
from ramet.budget import Budget
from ramet.engine.scripted import ScriptedEngine
from ramet.interfaces import Ask, Caching, Engine, Move, NodeObserver, Taskset, TaskWorld
from ramet.tasks.oracle import forms_of
from ramet.tasks.play import play
from ramet.tasks.split import Split, split_task
from ramet.tokens.render import HIDDEN_TOKENS_PER_MESSAGE, Renderer, TokenRenderer
from ramet.types import Completion, Meter, Prompt, Task, Tree

SO_FAR = "The answer so far, for the parts before this one: {}\nAnswer for those parts and this one together."
ENDLESS = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The delegation of a root: all parts at once, or one after another with the answer so far."""

    split: Split
    chained: bool
    carries: bool  # whether the answer so far is passed on; else the state of the world or the root keeps it
    tokens: int  # that the parts of a chain share with the root

    @property
    def turns(self) -> int:
        return len(self.goals) if self.chained else 1

    @property
    def goals(self) -> Sequence[str]:
        asks = self.split.parts
        return [ask.goal for ask in asks] if self.split.steps is None else self.split.steps

    def move(self, turn: int, answers: Sequence[str], *, spent: int) -> Move:
        """The planned move of this turn, after these answers and tokens."""
        thought = self.split.combine if turn == 0 else ""
        if not self.chained:
            return Move(thought=thought, asks=self.split.parts)
        share = max(1, (self.tokens - spent) // (self.turns - turn + 1))
        return Move(thought=thought if self.split.steps is None else "", asks=(self._link(turn, answers, share),))

    def _link(self, turn: int, answers: Sequence[str], tokens: int) -> Ask:
        """The ask for one part of a chain."""
        goal, answer = self.goals[turn], answers[-1] if answers else None
        if self.split.steps is not None:
            return Ask(goal=goal.replace("{}", f"({answer})" if (answer or "").startswith("-") else answer or ""))
        if answer is not None and self.carries:
            goal = f"{goal}\n\n{SO_FAR.format(answer)}"
        return Ask(goal=goal, context=self.split.parts[turn].context, tokens=tokens)


def planned_budget(budget: Budget, *, parts: int, chained: bool) -> Budget:
    """The budget with room for exactly the planned clones, one level of them, and for the planned turns."""
    turns = budget.turns + (parts if chained else 1)
    return replace(budget, nodes=parts + 1, depth=1, children=max(budget.children, parts), turns=turns)


async def play_control(taskset: Taskset, task: Task, options: TreeOptions, *, parts: int, chained: bool) -> Tree:
    """Play a task that is cut into `parts` parts, or into as many as the budget pays for and the rule finds.

    A task that cannot be cut is played by the root alone.
    """
    budget = options.budget or taskset.budget(task)
    affordable = (budget.tokens - budget.answer_tokens) // budget.smallest_grant
    parts = min(parts, affordable)
    split = split_task(taskset, task, parts) if parts > 1 else Split()
    number = len(split.steps) if chained and split.steps is not None else len(split.parts)
    if number < 2:
        return await play(taskset, task, replace(options, budget=replace(budget, nodes=1, depth=0)))
    # In terse, goals are all that nodes read: the root puts the answers together.
    carries = options.dialect != "terse" and not isinstance(taskset.world(task), NodeObserver)
    budget = planned_budget(budget, parts=number, chained=chained)
    plan = Plan(split=split, chained=chained, carries=carries, tokens=budget.tokens - budget.answer_tokens)
    engine = PlannedEngine(options.engine, plan, dialect=cast(str, options.dialect))
    world = options.world if split.texts is None else TaskWorld(replace(task, context=split.texts))
    allowed = {"allow_same_goal": True, "allow_impossible": True}  # parts are given as they were planned
    options = replace(options, engine=engine, budget=budget, world=world, **allowed)
    tree = await play(taskset, task, options)
    engine.uncount(tree)
    return tree


class PlannedEngine:
    """An engine for one tree: the first turns of the root are planned, all others are sampled from `inner`."""

    def __init__(self, inner: Engine, plan: Plan, *, dialect: str) -> None:
        self.inner = inner
        self.plan = plan
        self.renderer: Renderer = inner.renderer
        self.spent = 0  # tokens generated so far
        self._write, self._parse = forms_of(dialect)
        self._planned: list[Completion] = []

    async def sample(
        self,
        prompt: Prompt,
        *,
        max_tokens: int,
        stop: Sequence[str] = (),
        temperature: float = 1.0,
        seed: int | None = None,
        meter: Meter | None = None,
    ) -> Completion:
        if prompt.depth == 0 and prompt.turn < self.plan.turns and not prompt.closing:
            return await self._plan(prompt, stop)
        completion = await self.inner.sample(
            prompt, max_tokens=max_tokens, stop=stop, temperature=temperature, seed=seed, meter=meter
        )
        self.spent += completion.num_tokens
        return completion

    def ended(self, node_id: str) -> None:
        if isinstance(self.inner, Caching):
            self.inner.ended(node_id)

    def uncount(self, tree: Tree) -> None:
        """Take the planned turns out of what the root used: no model was called for them."""
        usage, prompt = tree.root.usage, sum(turn.prompt_tokens or 0 for turn in self._planned)
        usage.calls -= len(self._planned)
        usage.prompt_tokens -= prompt
        usage.cost -= tree.budget.prices.cost(prompt=prompt, cached=0, generated=0)

    async def _plan(self, prompt: Prompt, stop: Sequence[str]) -> Completion:
        """The planned turn, written as a model would write it. It generates no tokens and is never trained on."""
        results = [self._parse(message) for message in prompt.messages[2:] if message.role == "user"]
        answers = [text for texts in results for text in texts]
        text = self._write(self.plan.move(prompt.turn, answers, spent=self.spent))
        exact = self.renderer if isinstance(self.renderer, TokenRenderer) else None
        writer = ScriptedEngine(lambda _: text, token_ids=exact is not None, renderer=exact)
        written = await writer.sample(prompt, max_tokens=ENDLESS, stop=stop)
        completion = replace(written, num_tokens=0, taught=False, prompt_tokens=self._size(prompt, text))
        self._planned.append(completion)
        return completion

    def _size(self, prompt: Prompt, text: str) -> int:
        """Tokens before this turn; without a tokenizer an upper bound for them and the turn itself."""
        if prompt.ids is not None:
            return len(prompt.ids)
        texts = [message.content for message in prompt.messages] + [text]
        return sum(len(text.encode()) + HIDDEN_TOKENS_PER_MESSAGE for text in texts)
