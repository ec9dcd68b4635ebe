"""Playing a task: every node gets a verdict that says where it comes from."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from functools import partial
from typing import Any

import anyio
import pytest

import ramet
from ramet.agent.dialects.tools import ToolsDialect
from ramet.agent.options import TreeOptions
from ramet.errors import ConfigError
from ramet.interfaces import Ask, Do, Move, NodeJudge, Result, TaskWorld, View, World
from ramet.store import RunDir, read_trees
from ramet.tasks.arithmetic import Arithmetic
from ramet.tasks.judge import Judge
from ramet.tasks.oracle import parse_terse, parse_tools, script, write_python, write_terse, write_tools
from ramet.tasks.play import demonstrate, play
from ramet.tasks.registry import TASKSETS, check_index, find_task, load_taskset, parse_range
from ramet.tasks.validate import dialects_for, tree_faults, validate
from ramet.types import Message, Node, Prompt, Task, Verdict
from tests.agent.scripts import delegate

TASK = Task(id="arithmetic:test/0", question="Compute 2*3+4", reference=10)


def played(script_: object, *, judge: NodeJudge | None = None) -> ramet.Tree:
    engine = ramet.ScriptedEngine(script_)  # pyright: ignore[reportArgumentType]
    return anyio.run(partial(play, Arithmetic(), TASK, TreeOptions(engine=engine, judge=judge)))


def two_children(prompt: Prompt) -> str:
    """One child gets an expression, the other a goal that has no exact check."""
    if prompt.depth:
        return "Answer: 6" if "2*3" in prompt.goal else "Answer: fine"
    return delegate("Compute 2*3", "Think of something nice") if prompt.turn == 0 else "Answer: 10"


def test_a_node_gets_an_exact_verdict_if_its_goal_can_be_checked_else_that_of_the_root():
    root, sum_, words = (node.verdict for node in played(two_children).nodes)
    assert root is not None
    assert sum_ is not None
    assert words is not None
    assert (root.score, root.how) == (1.0, "exact")
    assert (sum_.score, sum_.how) == (1.0, "exact")
    assert (words.score, words.how, words.reason) == (1.0, "root", "this goal has no exact check")


def test_a_judge_is_asked_only_about_goals_without_an_exact_check():
    engine = ramet.ScriptedEngine(lambda prompt: '{"score": 0.5, "reason": "half"}')
    verdict = played(two_children, judge=Judge(engine)).nodes[2].verdict
    assert verdict is not None
    assert (verdict.score, verdict.how) == (0.5, "judge")
    assert len(engine.prompts) == 1


def test_without_a_verdict_of_the_judge_a_node_gets_that_of_the_root():
    judge = Judge(ramet.ScriptedEngine(lambda prompt: "who knows"))
    verdict = played(two_children, judge=judge).nodes[2].verdict
    assert verdict is not None
    assert (verdict.score, verdict.how, verdict.reason) == (1.0, "root", "the judge gave no verdict")


class Generous(Arithmetic):
    """A taskset of a user with a mistake in its verdicts."""

    def __init__(self, score: Any) -> None:
        super().__init__()
        self.score = score

    def verdict(self, task: Task, world: World, node: Node) -> Verdict | None:
        return Verdict(score=self.score, how="exact")


class Strict:
    """A judge of a user with a mistake in its verdicts."""

    async def verdict(self, node: Node, tree: ramet.Tree) -> Verdict | None:
        return Verdict(score=-3.0, how="judge")


@pytest.mark.parametrize("score", [7.0, -0.5, 1.001, math.nan, math.inf, "1", None])
def test_a_score_of_a_taskset_that_is_not_from_0_to_1_is_an_error_that_names_both(score: Any):
    options = TreeOptions(engine=ramet.ScriptedEngine(lambda prompt: "Answer: 10"))
    said = f"arithmetic gave node 0 of arithmetic:test/0 the score {score!r}: a score is a number from 0 to 1"
    with pytest.raises(ConfigError, match=re.escape(said)):
        anyio.run(play, Generous(score), TASK, options)


@pytest.mark.parametrize("score", [0, 1, True, 0.5, 1 + 1e-12, -1e-12])
def test_a_score_from_0_to_1_up_to_rounding_is_accepted(score: Any):
    options = TreeOptions(engine=ramet.ScriptedEngine(lambda prompt: "Answer: 10"))
    verdict = anyio.run(play, Generous(score), TASK, options).root.verdict
    assert verdict is not None
    assert verdict.score == score


def test_a_score_of_a_judge_that_is_not_from_0_to_1_is_an_error_that_names_both():
    with pytest.raises(ConfigError, match=r"the judge Strict gave node 2 of arithmetic:test/0 the score -3\.0"):
        played(two_children, judge=Strict())


@pytest.mark.parametrize("score", ["7", "-1", "NaN", "Infinity", "1e400", '"high"', "[1]", "null"])
def test_a_model_that_judges_with_a_score_that_is_none_gave_no_verdict(score: str):
    judge = Judge(ramet.ScriptedEngine(lambda prompt: f'{{"reason": "so", "score": {score}}}'))
    verdict = played(two_children, judge=judge).nodes[2].verdict
    assert verdict is not None
    assert (verdict.how, verdict.reason) == ("root", "the judge gave no verdict")


def test_budget_and_world_are_those_of_the_taskset_unless_the_options_name_others():
    taskset = Arithmetic()
    options = TreeOptions(engine=ramet.ScriptedEngine(lambda prompt: "Answer: 10"))
    assert anyio.run(play, taskset, TASK, options).budget == taskset.budget(TASK)
    world = TaskWorld(Task(question="q", context={"hint": "6 + 4"}))
    tree = anyio.run(play, taskset, TASK, replace(options, budget=ramet.Budget(tokens=900), world=world))
    assert tree.budget == ramet.Budget(tokens=900)
    assert "- hint" in tree.root.pieces[0].text


def test_verdicts_are_stored_with_the_tree(tmp_path):
    tree = played(two_children)
    run = RunDir.create(tmp_path, "graded")
    run.write([tree])
    (again,) = read_trees(run)
    assert [node.verdict for node in again.nodes] == [node.verdict for node in tree.nodes]


# Oracles.


class Chain:
    """An oracle that asks two clones and joins their answers."""

    def move(self, view: View) -> Move:
        if view.depth:
            return Move(answer=f"did {view.goal}")
        if view.turn == 0:
            return Move(thought="First look.", asks=(Ask(goal="a"), Ask(goal='it\'s "b"', tokens=300)))
        return Move(answer=" and ".join(view.history[0]))


@pytest.mark.parametrize("dialect", ["tools", "python", "terse"])
def test_an_oracle_moves_the_same_in_every_dialect(dialect: str):
    engine = ramet.ScriptedEngine(script(Chain(), dialect))
    tree = anyio.run(partial(ramet.run, "q", engine=engine, dialect=dialect))
    assert tree.answer == 'did a and did it\'s "b"'
    assert [node.goal for node in tree.nodes] == ["q", "a", 'it\'s "b"']


def test_moves_in_tools_and_python():
    move = Move(thought="t", does=(Do(name="f", arguments={"x": 1}),), asks=(Ask(goal="g", context=("k",)),))
    assert write_tools(move) == (
        't\n<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>\n'
        '<tool_call>{"name": "delegate", "arguments": {"goals": ["g"], "context": ["k"]}}</tool_call>'
    )
    assert "parts = [f(x=1)]\nparts += await asyncio.gather(delegate('g', context=['k']))" in write_python(move)
    assert write_python(Move(answer="it's")) == '<python>\nfinish("it\'s")\n</python>'


def test_moves_in_terse():
    asks = (Ask(goal="g", context=("k", "Two Words")), Ask(goal="h\ni", tokens=300))
    assert write_terse(Move(thought="t", asks=asks)) == "t\n> g @k @Two Words\n> h\n| i #300"
    assert write_terse(Move(thought="1+2=3", answer="3")) == "1+2=3\n= 3"
    does = (Do(name="f", arguments={"x": 1, "on": True, "text": "a, b"}), Do(name="g"))
    assert write_terse(Move(thought="t", does=does, asks=asks[:1])) == "t\n$ f 1, true, a, b\n$ g\n> g @k @Two Words"
    with pytest.raises(ConfigError, match="only its last argument may contain"):
        write_terse(Move(does=(Do(name="f", arguments={"text": "a, b", "x": 1}),)))


def test_results_in_terse_are_parsed():
    assert parse_terse(Message("user", "< 5\n< one\n| two\n..\n\n#300 4")) == ("5", "one\ntwo")
    assert parse_terse(Message("user", "?\n\n!")) == ()


def test_an_oracle_cannot_write_an_unknown_dialect():
    with pytest.raises(ConfigError, match="tools, native, python, terse"):
        script(Chain(), "rust")


def test_validate_finds_a_wrong_self_check():
    class Broken(Arithmetic):
        def self_check(self, task: Task) -> tuple[float, float]:
            return 0.5, 1.0

    report = anyio.run(partial(validate, Broken(), "train", num_tasks=1))
    assert report.faults == ["arithmetic:train/0: the right answer scores 0.5, a wrong one 1.0"]


def test_validate_finds_an_oracle_that_is_wrong():
    tree = played(lambda prompt: "Answer: 11")
    (fault,) = tree_faults(tree, delegate=False)
    assert fault.startswith("node 0 scores 0.1")


def test_validate_names_the_reason_of_a_refusal_and_what_was_read_after_a_fault():
    def careless(prompt: Prompt) -> str:
        calls = [delegate("Compute 2*3+4"), '<tool_call>{"name": "zork", "arguments": {}}</tool_call>', "Answer: 10"]
        return calls[prompt.turn]

    assert [fault.partition(";")[0] for fault in tree_faults(played(careless), delegate=False)] == [
        "node 0 was refused a child, 'Compute 2*3+4': this is your own goal: ask for smaller parts of your goal, or do "
        "it yourself",
        "node 0 had a fault in turn 1: <|im_end|> <|im_start|>user <tool_response> zork: there is no tool 'zork'",
    ]


@pytest.mark.parametrize("delegate", [False, True])
def test_an_oracle_that_calls_functions_demonstrates_in_terse(delegate: bool):
    taskset = load_taskset("number_search")
    tree = anyio.run(partial(demonstrate, taskset, taskset.task("train", 1), dialect="terse", delegate=delegate))
    assert tree_faults(tree, delegate=delegate) == []
    assert any("$ guess " in piece.text for node in tree.nodes for piece in node.pieces if piece.sampled)


def test_what_a_taskset_raises_is_a_fault_that_names_file_and_line():
    class Broken(Arithmetic):
        def verdict(self, task: Task, world: object, node: ramet.Node) -> ramet.Verdict | None:  # pyright: ignore
            return super().verdict(task, world, [][node.index])  # pyright: ignore

    report = anyio.run(partial(validate, Broken(), "train", num_tasks=2))
    assert (report.tasks, report.trees, len(report.faults)) == (2, 0, 12)
    assert report.faults[0].startswith("arithmetic:train/0 (tools, alone): IndexError in test_play.py, line ")
    assert report.faults[0].endswith(": list index out of range (grading node 0 of arithmetic:train/0)")


def test_an_oracle_whose_move_was_cut_off_has_nothing_more_to_say():
    taskset = load_taskset("number_search")
    task = taskset.task("train", 3)
    budget = replace(taskset.budget(task), tokens=100, turns=5, reserve=16)
    tree = anyio.run(partial(demonstrate, taskset, task, dialect="python", delegate=False, budget=budget))
    assert tree.root.stop is ramet.Stop.BUDGET
    assert tree.root.verdict is not None
    assert tree.root.verdict.score == 0


def test_an_oracle_that_raises_before_anything_was_cut_off_is_an_error():
    class Confused:
        def move(self, view: View) -> Move:
            raise LookupError(view.goal)

    with pytest.raises(LookupError, match="root"):
        script(Confused(), "tools")(Prompt(messages=[], ids=None, goal="root"))


def test_a_demonstration_is_an_ordinary_tree():
    taskset = Arithmetic()
    tree = anyio.run(partial(demonstrate, taskset, taskset.task("train", 1)))
    assert len(tree.nodes) > 1
    assert all(node.verdict is not None and node.verdict.score == 1.0 for node in tree.nodes)
    assert all(len(node.token_ids) == len(node.mask) > 0 for node in tree.nodes)


# Finding tasks.


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("arithmetic", "write NAME:SPLIT/INDEX"),
        ("arithmetic:train", "write NAME:SPLIT/INDEX"),
        ("arithmetic:train/-1", "write NAME:SPLIT/INDEX"),
        ("arithmetic:trian/1", "did you mean train"),
        ("arithmatic:train/1", "did you mean arithmetic"),
    ],
)
def test_a_task_that_does_not_exist_names_what_does(spec: str, words: str):
    with pytest.raises(ConfigError, match=words):
        find_task(spec, {})


def test_an_unknown_option_names_the_nearest():
    with pytest.raises(ConfigError, match="did you mean operators"):
        load_taskset("arithmetic", operatrs=3)


@pytest.mark.parametrize("option", ["seed", "digits", "operators", "value_digits"])
def test_true_is_no_number(option: str):
    with pytest.raises(ConfigError, match=option):
        load_taskset("arithmetic", **{option: True})


def test_true_is_accepted_where_an_option_is_true_or_false():
    assert load_taskset("arithmetic", brackets=True, state_size=True).task("train", 0).question


def test_an_index_past_the_end_is_refused():
    taskset = load_taskset("craft")
    size = taskset.size("hard")
    assert size is not None
    with pytest.raises(ConfigError, match=f"has tasks 0 to {size - 1}, not {size}"):
        check_index(taskset, "hard", size)


@pytest.mark.parametrize("value", ["x", [3], [5, 3], [0, 2], 1.5, [1, 2, 3], True, [True, 3]])
def test_an_invalid_range_is_refused(value: object):
    with pytest.raises(ConfigError, match="operators"):
        parse_range(value, name="operators")


def test_every_taskset_in_the_registry_can_be_loaded_or_says_what_it_needs():
    for name in TASKSETS:
        try:
            taskset = load_taskset(name)
        except ConfigError as error:
            assert "give" in str(error), name  # noqa: PT017
        else:
            assert taskset.name == name
            assert taskset.about
            assert taskset.splits


@pytest.mark.parametrize(
    ("name", "spoken"),
    [
        ("arithmetic", ["tools", "python", "terse"]),
        ("number_search", ["tools", "python", "terse"]),
        ("craft", ["tools", "python"]),
    ],
)
def test_a_task_is_played_in_terse_only_if_the_arguments_of_its_functions_fit_a_line(name: str, spoken: list[str]):
    taskset = load_taskset(name)
    split = next(iter(taskset.splits))
    assert dialects_for(taskset, taskset.task(split, 0)) == spoken


def test_lines_of_answers_that_look_like_labels_are_no_results_of_their_own() -> None:
    results = [
        Result("look", "a shelf"),
        Result("count", "7"),
        Result("clone 2.1", "alice: 3\nbob: 4"),
        Result("clone 2.2", "clone 2.1: refused\nnote: carol: 5"),
        Result("delegate", "at most 4 calls"),
    ]
    message = Message("user", ToolsDialect().results(results))
    assert parse_tools(message) == tuple(result.text for result in results)
