"""A scripted tree that shows what the runtime does, without a model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import anyio

from ramet.agent.options import TreeOptions
from ramet.agent.tree import TreeRun
from ramet.budget import Budget
from ramet.engine.scripted import Reply, ScriptedEngine
from ramet.store import RunDir
from ramet.terminal.console import command, out
from ramet.terminal.query import print_query
from ramet.terminal.trees import run_and_store
from ramet.types import Prompt

QUESTION = "Plan one day in Oslo for a family of four: transport, sights, food, and the cost."
WORDS = "the ferry leaves from pier two and the tram from the square in front of the town hall "

EXPLANATION = """
What happened: the root split the work among clones, which ran in parallel; one clone split its part again;
one grant was refused, because 20 tokens are too few for an answer; one clone used up its grant and still gave
a partial answer, from the reserve that every node has. No limit was exceeded.
"""
QUERY = (
    "select depth, count(*) as nodes, sum(tokens) as tokens, sum(num_refused) as refused, "
    "count(*) filter (stop = 'answered') as answered from nodes group by depth order by depth"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TourConfig:
    """The settings that the run directory of the tour names."""

    question: str
    budget: Budget


def delegate(goals: Sequence[str], tokens: Sequence[int | None]) -> str:
    """A call to delegate, as the tools dialect writes it."""
    arguments = {"goals": list(goals), "tokens": list(tokens)}
    return f"<tool_call>{json.dumps({'name': 'delegate', 'arguments': arguments})}</tool_call>"


def script(prompt: Prompt) -> Reply:
    """The reply of the scripted model, by goal and turn."""
    if prompt.depth == 0:
        return _root(prompt)
    if prompt.goal == "Sights for one day" and prompt.turn == 0:
        goals = ["Sights indoors, in case of rain", "Sights outdoors"]
        return Reply(text=f"Two kinds of weather, two lists. {delegate(goals, [None, None])}", seconds=1.0)
    if prompt.goal.startswith("Transport") and not prompt.closing:
        return Reply(text="First every timetable: " + WORDS * 60, seconds=4.0)  # uses up its grant
    answers = {
        "Transport": "Day tickets for zone 1; ferry to Bygdøy from pier two. Timetables not checked.",
        "Sights indoors": "The Fram museum and the new library.",
        "Sights outdoors": "The opera's roof, then the sculpture park.",
        "Sights": "Morning: opera roof and library. Afternoon: Fram museum.",
        "Food": "Lunch at the food hall, waffles on the ferry pier.",
    }
    answer = next(text for start, text in answers.items() if prompt.goal.startswith(start))
    return Reply(text=f"Answer: {answer}", seconds=1.5)


def _root(prompt: Prompt) -> Reply:
    if prompt.turn == 0:
        goals = ["Transport for four in Oslo", "Sights for one day", "Food near the sights", "Cost of it all"]
        return Reply(text=f"These parts are independent. {delegate(goals, [300, 900, None, 20])}", seconds=1.0)
    return Reply(
        text="Answer: Day tickets, opera roof, library, lunch at the food hall, ferry to the Fram museum. "
        "The cost was not added up: plan about 2,500 kroner, unchecked.",
        seconds=1.0,
    )


def tour(runs: Path, *, pace: float) -> None:
    """Run the tree, show it, and query its run directory."""

    def paced(prompt: Prompt) -> Reply:
        reply = script(prompt)
        return Reply(text=reply.text, seconds=reply.seconds * pace)

    budget = Budget(tokens=3000, nodes=12, depth=2, seconds=60)
    out.print("A scripted model, the real runtime: 3,000 tokens, 12 nodes, 2 levels.\n", style="bold")
    tree_run = TreeRun(QUESTION, TreeOptions(engine=ScriptedEngine(paced), budget=budget))
    run_dir = RunDir.create(runs, "tour", config=TourConfig(question=QUESTION, budget=budget))
    anyio.run(partial(run_and_store, tree_run, run_dir))
    out.print(EXPLANATION)
    out.print(f'$ {command()} sql {run_dir.path} "{QUERY}"', style="dim")
    print_query(run_dir.path, QUERY)
    out.print(f"Next: {command()} show {run_dir.path} --node 1   ·   {command()} run --help")
