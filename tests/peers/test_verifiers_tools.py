"""Environments of verifiers 0.1 with tools or several turns: what a tree does in them, and what the rubric sees."""

from __future__ import annotations

import gc
import json
from functools import partial
from pathlib import Path
from typing import Any, cast

import anyio
import pytest

import ramet
from ramet.tasks.peers.sessions import Sessions
from ramet.tasks.peers.taskset import PeerTasks
from ramet.tasks.peers.verifiers import SESSIONS
from ramet.tasks.registry import load_taskset

pytestmark = pytest.mark.peers

ENVIRONMENT = """
import json
import os
import time

import verifiers as vf
from datasets import Dataset

ROWS = Dataset.from_list([{"question": f"Weigh thing {n}.", "answer": str(10 * n)} for n in range(1, 4)])


def weigh(thing: int) -> int:
    "The weight of a thing."
    if thing == 13:
        raise ValueError("there is no thing 13")
    return 10 * thing


async def hang() -> str:
    "Never returns."
    time.sleep(600)


def sleep() -> str:
    "Takes long."
    time.sleep(600)


def crash() -> str:
    "Ends the process."
    os._exit(1)


def right(completion, answer, state):
    calls = [call for message in completion for call in (getattr(message, "tool_calls", None) or [])]
    results = [message.content for message in completion if message.role == "tool"]
    assert len(calls) == len(results), "every call has its result"
    assert len(state["trajectory"]) == len(calls) + 1
    with open(os.environ["SEEN"], "a") as file:
        seen = [[call.name, json.loads(call.arguments)] for call in calls]
        file.write(json.dumps([seen, results, completion[-1].content]) + chr(10))
    return float(completion[-1].content == answer and answer in results)


class Counting(vf.StatefulToolEnv):
    "Counts the weights of one rollout; the model does not see the argument `state`."

    def __init__(self, **options):
        super().__init__(tools=[], **options)
        self.add_tool(self.put, args_to_skip=["scales"])

    async def setup_state(self, state):
        state["scales"] = []

    def update_tool_args(self, tool_name, tool_args, messages, state, **kwargs):
        return {**tool_args, "scales": state["scales"]}

    def put(self, weight: int, scales: list) -> str:
        "Put a weight on the scales."
        scales.append(weight)
        return f"{sum(scales)} in all"


class Guessing(vf.MultiTurnEnv):
    "Says higher or lower."

    async def env_response(self, messages, state, **kwargs):
        guess, answer = int(messages[-1].content), int(state["answer"])
        if guess == answer:
            state["final_env_response"] = [{"role": "user", "content": "right"}]
            return state["final_env_response"]
        return [{"role": "user", "content": "higher" if guess < answer else "lower"}]


def guessed(completion, answer):
    said = [message.content for message in completion]
    return 1.0 if said[-2:] == [answer, "right"] else 0.25 * (said[-1] == answer)


def load_environment(kind="tools"):
    scales = vf.Rubric(funcs=[lambda state: float(sum(state["scales"]) == 30)])
    made = {
        "tools": lambda: vf.ToolEnv(tools=[weigh, hang, sleep, crash], rubric=vf.Rubric(funcs=[right]), dataset=ROWS),
        "stateful": lambda: Counting(rubric=scales, dataset=ROWS),
        "turns": lambda: Guessing(rubric=vf.Rubric(funcs=[guessed]), dataset=ROWS, max_turns=3),
    }
    if kind == "group":
        return vf.EnvGroup(envs=[made["tools"](), made["turns"]()], env_names=["tools", "turns"])
    return made[kind]()
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("seen") / "seen.jsonl"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, seen: Path) -> str:
    file = tmp_path_factory.mktemp("verifiers") / "my_tools.py"
    file.write_text(ENVIRONMENT.replace('os.environ["SEEN"]', repr(str(seen))), encoding="utf-8")
    return f"verifiers:{file}"


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def play(taskset: ramet.Taskset, *turns: str, index: int = 0, goals: dict[str, list[str]] | None = None) -> ramet.Tree:
    """The tree of a script: the turns of the root, and those of clones by goal."""
    scripts = {**(goals or {}), "": list(turns)}

    def reply(prompt: ramet.Prompt) -> str:
        name = prompt.goal if prompt.goal in scripts else ""
        return scripts[name][prompt.turn]

    task = taskset.task("train", index)
    options = ramet.TreeOptions(engine=ramet.ScriptedEngine(reply))
    return anyio.run(lambda: ramet.play(taskset, task, options))


def score(tree: ramet.Tree) -> float:
    assert tree.root.verdict is not None, tree
    return tree.root.verdict.score


def read(tree: ramet.Tree, node: int = 0) -> str:
    return "\n".join(piece.text for piece in tree.nodes[node].pieces if not piece.sampled)


def test_tools_are_functions_and_the_rubric_sees_the_calls_of_all_nodes(place: str, seen: Path) -> None:
    taskset = load_taskset(place)
    delegate = call("delegate", goals=["Weigh it"])
    weigh = {"Weigh it": [call("weigh", thing=1), "Answer: 10"]}
    tree = play(taskset, delegate, call("weigh", thing=2), "Answer: 10", goals=weigh)
    assert score(tree) == 1.0
    calls, results, answer = json.loads(seen.read_text(encoding="utf-8").splitlines()[-1])
    assert calls == [["weigh", {"thing": 1}], ["weigh", {"thing": 2}]]
    assert (results, answer) == (["10", "20"], "10")
    assert "The weight of a thing." in read(tree)
    assert score(play(taskset, "Answer: 10")) == 0.0  # right, but it was never weighed


def test_what_a_tool_raises_is_text_for_the_node(place: str) -> None:
    tree = play(load_taskset(place), call("weigh", thing=13), call("weigh"), "Answer: none")
    assert "there is no thing 13" in read(tree)
    assert "thing" in tree.nodes[0].pieces[-2].text  # the argument that is missing


def test_a_tool_that_hangs_is_text_for_the_node_and_its_sibling_goes_on(place: str) -> None:
    taskset = load_taskset(place, call_s=2.0)
    goals = {"Sleep": [call("sleep"), "Answer: tired"], "Weigh": [call("weigh", thing=1), "Answer: 10"]}
    tree = play(taskset, call("delegate", goals=["Sleep", "Weigh"]), "Answer: 10", goals=goals)
    assert "error: no result within 2 seconds" in read(tree, 1)
    assert [node.answer for node in tree.nodes] == ["10", "tired", "10"]
    assert score(tree) == 1.0


def test_a_tool_that_ends_or_blocks_the_process_loses_its_own_tree_only(place: str) -> None:
    taskset = cast(PeerTasks, load_taskset(place, call_s=2.0))
    taskset.sessions = Sessions(SESSIONS.module, library="verifiers", extra="verifiers", ping_s=1.0)
    for tool, text in (("crash", "the process of the environment ended"), ("hang", "no result within 2 seconds")):
        tree = play(taskset, call("weigh", thing=1), call(tool), call("weigh", thing=1), "Answer: 10")
        assert text in read(tree)
        assert "what was done before is lost" in read(tree)
        assert tree.root.verdict is not None
        assert tree.root.verdict.reason.startswith("cannot be scored: the process of the environment was started again")
        assert score(play(taskset, call("weigh", thing=1), "Answer: 10")) == 1.0


def test_the_state_of_a_rollout_belongs_to_one_tree(place: str) -> None:
    taskset = load_taskset(place, args={"kind": "stateful"})
    (function,) = taskset.world(taskset.task("train", 0)).functions.values()
    assert [*function.schema["properties"]] == ["weight"]  # pyright: ignore[reportFunctionMemberAccess]
    turns = (call("put", weight=10), call("put", weight=20), "Answer: done")
    for _ in range(2):
        tree = play(taskset, *turns)
        assert "30 in all" in read(tree)
        assert score(tree) == 1.0
    assert score(play(taskset, call("put", weight=10), "Answer: done")) == 0.0


def test_an_environment_of_several_turns_is_a_function_that_sends_a_message(place: str) -> None:
    taskset = load_taskset(place, args={"kind": "turns"})
    tree = play(taskset, call("send", message="5"), call("send", message="10"), call("send", message="1"), "Answer: ok")
    assert "higher" in read(tree)
    assert "right\n(The environment has ended: it takes no more messages.)" in read(tree)
    assert score(tree) == 1.0
    assert score(play(taskset, call("send", message="5"), "Answer: 10")) == 0.25  # the answer is the last message
    four = [call("send", message="5")] * 4
    assert "has ended" in read(play(taskset, *four, "Answer: 10"))  # max_turns=3


def test_a_row_of_a_group_has_the_tools_of_its_environment(place: str) -> None:
    taskset = load_taskset(place, args={"kind": "group"})
    names = [[*taskset.world(taskset.task("train", index)).functions] for index in (0, 3)]
    assert names == [["weigh", "hang", "sleep", "crash"], ["send"]]
    assert score(play(taskset, call("weigh", thing=1), "Answer: 10")) == 1.0
    assert score(play(taskset, call("send", message="10"), "Answer: ok", index=3)) == 1.0


def test_a_tree_without_a_verdict_ends_its_session(place: str) -> None:
    taskset = load_taskset(place)
    world = taskset.world(taskset.task("train", 0))
    assert anyio.run(partial(world.functions["weigh"], thing=3)) == "30"
    session = world._session  # pyright: ignore[reportAttributeAccessIssue]
    del world
    gc.collect()
    assert score(play(taskset, call("weigh", thing=1), "Answer: 10")) == 1.0
    with pytest.raises(ramet.RametError, match="what was done before is lost"):
        SESSIONS.call("call_tool", session, "weigh", {"thing": 3}, seconds=30)
