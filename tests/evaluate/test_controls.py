"""The controls split@K and chain: what each node reads, what is counted, and that the model decides nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

import ramet
from ramet.agent.options import TreeOptions
from ramet.errors import ConfigError
from ramet.evaluate import Evaluation, Record, evaluate
from ramet.evaluate.controls import play_control
from ramet.interfaces import TaskWorld
from ramet.store import RunDir, read_trees
from ramet.tasks.arithmetic import Arithmetic
from ramet.tasks.craft.plan import craft_calls, work_out
from ramet.tasks.craft.taskset import Craft
from ramet.tasks.craft.world import goal_for, parse_targets, targets_of
from ramet.tasks.expression import find_expression, parse
from ramet.tasks.expression_cuts import fill
from ramet.tasks.oracle import forms_of, write_tools
from ramet.tasks.registry import load_taskset
from ramet.tasks.split import Split
from ramet.types import Prompt, Task, Tree
from tests.agent.scripts import delegate
from tests.conftest import in_virtual_time

QUESTION = Task(question="Compute 1*2+3*4-5*6", id="arithmetic:eval/0")
SHAPE = re.compile(r"The value is (\S+), with")
PLAN = re.compile(r"^\(\S+\)\+\(\S+\)$", re.MULTILINE)  # the parts of a sum, like (1*2)+(3*4)+(-5*6)


def adder(prompt: Prompt) -> str:
    """Computes what a clone is asked, and puts the answers together in the root."""
    if prompt.depth:
        return f"Answer: {_value(prompt.goal)}"
    answers = [answer for message in prompt.messages[2:] if message.role == "user" for answer in _told(message.content)]
    if answers and (shape := SHAPE.search(prompt.messages[2].content)):
        return f"Answer: {parse(fill(shape[1], answers)).value()}"
    if answers and PLAN.search(prompt.messages[2].content):
        return f"Answer: {sum(map(int, answers))}"
    return f"Answer: {answers[-1] if answers else _value(prompt.goal)}"


def _value(goal: str) -> int:
    found = find_expression(goal)
    assert found is not None
    return found.value()


def _told(text: str) -> list[str]:
    return re.findall(r"^clone \d+\.\d+: (.*)$", text, re.MULTILINE)


def played(
    engine: ramet.ScriptedEngine, *, parts: int = 3, chained: bool = False, task: Task = QUESTION, **more: Any
) -> Tree:
    given: dict[str, Any] = {"budget": ramet.Budget(tokens=1000), "taskset": Arithmetic()} | more
    taskset = given.pop("taskset")
    options = TreeOptions(engine=engine, **given)
    return anyio.run(partial(play_control, taskset, task, options, parts=parts, chained=chained))


# A split.


def test_clones_get_the_parts_at_once_and_the_root_puts_their_answers_together() -> None:
    engine = ramet.ScriptedEngine(adder)
    tree = played(engine)
    assert [node.goal for node in tree.nodes[1:]] == ["Compute 1*2", "Compute 3*4", "Compute -5*6"]
    assert [node.answer for node in tree.nodes] == ["-16", "2", "12", "-30"]
    assert tree.root.verdict is not None
    assert tree.root.verdict.score == 1.0
    assert [turn.children for turn in tree.root.turns] == [[1, 2, 3], []]
    (last,) = [prompt for prompt in engine.prompts if prompt.depth == 0]
    assert "clone 1.1: 2\nclone 1.2: 12\nclone 1.3: -30" in last.last


def test_only_what_the_model_read_and_wrote_is_counted() -> None:
    engine = ramet.ScriptedEngine(adder)
    tree = played(engine)
    used = tree.usage
    assert used.tokens == engine.generated == sum(turn.tokens for node in tree.nodes for turn in node.turns)
    assert used.calls == len(engine.prompts) == 4
    assert used.prompt_tokens == sum(len(prompt.ids or ()) for prompt in engine.prompts)
    assert tree.root.turns[0].tokens == 0
    # The clones run in parallel: the longest of them, then the root.
    assert used.critical_path_tokens == tree.root.usage.tokens + max(node.usage.tokens for node in tree.nodes[1:])


def test_the_price_of_the_delegation_is_not_counted_either() -> None:
    prices = ramet.Prices(prompt=1.0, generated=2.0)
    engine = ramet.ScriptedEngine(adder)
    tree = played(engine, budget=ramet.Budget(tokens=1000, prices=prices, money=1.0))
    read = sum(len(prompt.ids or ()) for prompt in engine.prompts)
    assert tree.usage.cost == prices.cost(prompt=read, cached=0, generated=engine.generated)


def test_the_delegation_carries_no_loss() -> None:
    tree = played(ramet.ScriptedEngine(adder))
    assert [piece.taught for piece in tree.root.pieces if piece.sampled] == [False, True]


def test_neither_clones_nor_the_root_can_delegate_more() -> None:
    engine = ramet.ScriptedEngine(lambda prompt: delegate("Compute 1+1") if prompt.turn < 3 else "Answer: 7")
    tree = played(engine)
    assert len(tree.nodes) == 4
    refused = [refusal.kind for node in tree.nodes for turn in node.turns for refusal in turn.refusals]
    assert set(refused) == {"depth", "nodes"}


def test_equal_shares_are_lent_whatever_the_budget_says_about_nodes() -> None:
    budget = ramet.Budget(tokens=1000, nodes=1, depth=0, children=1, reserve=20)
    tree = played(ramet.ScriptedEngine(adder), budget=budget)
    assert [node.grant for node in tree.nodes] == [1000, 245, 245, 245]  # (1000 - 20) / (3 clones + the root)


def test_a_task_that_cannot_be_cut_is_answered_by_the_root_alone() -> None:
    tree = played(ramet.ScriptedEngine(adder), task=Task(question="Compute 12*7", id="arithmetic:eval/1"))
    assert len(tree.nodes) == 1
    assert tree.answer == "84"


def test_a_small_budget_is_shared_by_fewer_parts_instead_of_refusing_some() -> None:
    # 150 tokens less the reserve of 20 pay for three clones of 40 tokens each; 110 tokens for two; 90 for one.
    counts = {
        tokens: len(played(ramet.ScriptedEngine(adder), budget=ramet.Budget(tokens=tokens, reserve=20)).nodes)
        for tokens in (150, 110, 90)
    }
    assert counts == {150: 4, 110: 3, 90: 1}


# A chain.


def test_every_clone_of_a_chain_goes_on_from_the_answer_before() -> None:
    engine = ramet.ScriptedEngine(adder)
    tree = played(engine, chained=True)
    assert [node.goal for node in tree.nodes[1:]] == ["Compute 1*2", "Compute 2+3*4", "Compute 14-5*6"]
    assert [turn.children for turn in tree.root.turns] == [[1], [2], [3], []]
    assert tree.answer == "-16"
    assert tree.usage.critical_path_tokens == tree.usage.tokens == engine.generated


def test_a_negative_value_so_far_is_in_brackets() -> None:
    tree = played(ramet.ScriptedEngine(adder), parts=2, chained=True, task=Task(question="Compute 1-2*3-4*5"))
    assert [node.goal for node in tree.nodes[1:]] == ["Compute 1-2*3", "Compute (-5)-4*5"]


def read_texts(prompt: Prompt) -> str:
    """Counts the letters it has read, and the number of the answer so far."""
    if prompt.depth == 0:
        return f"Answer: {sum(map(int, _told(prompt.last)))}"
    before = re.search(r"before this one: (\d+)", prompt.messages[1].content)
    return f"Answer: {prompt.messages[1].content.count('Z') + int(before[1] if before else 0)}"


class Letters:
    """A taskset with texts and without a rule of its own."""

    name = "letters"
    about = "count"
    splits: Mapping[str, str] = {"eval": "one"}

    def size(self, split: str) -> int | None:
        return 1

    def task(self, split: str, index: int) -> Task:
        return Task(question="How many?", id="letters:eval/0", context={"a": "ZZ", "b": "y", "c": "ZZZ"}, reference="5")

    def world(self, task: Task) -> TaskWorld:
        return TaskWorld(task)

    def budget(self, task: Task) -> ramet.Budget:
        return ramet.Budget()

    def verdict(self, task: Task, world: Any, node: Any) -> ramet.Verdict:
        return ramet.Verdict(score=float(node.answer == task.reference), how="exact")

    def oracle(self, task: Task, *, delegate: bool, seed: int) -> Any:
        raise NotImplementedError

    def self_check(self, task: Task) -> tuple[float, float]:
        return 1.0, 0.0


def test_texts_are_dealt_out_with_the_same_question() -> None:
    task = Letters().task("eval", 0)
    tree = played(ramet.ScriptedEngine(read_texts), task=task, taskset=Letters())
    assert [node.answer for node in tree.nodes] == ["5", "2", "0", "3"]
    assert [node.goal.partition("\n")[0] for node in tree.nodes[1:]] == ["How many?"] * 3


def test_the_answer_so_far_follows_the_goal_of_a_part() -> None:
    task = Letters().task("eval", 0)
    tree = played(ramet.ScriptedEngine(read_texts), task=task, taskset=Letters(), chained=True)
    assert [node.answer for node in tree.nodes[1:]] == ["2", "2", "5"]
    assert "The answer so far, for the parts before this one: 2" in tree.nodes[2].goal


def counts(prompt: Prompt) -> str:
    """The answer of each clone is a list with a line for each name."""
    return "Answer: 9" if prompt.depth == 0 else "Answer: alice: 3\nbob: 4\nclone 1.1: none"


@pytest.mark.parametrize("dialect", ["tools", "tools-returns", "python"])
def test_an_answer_of_several_lines_is_handed_on_whole(dialect: str) -> None:
    tree = played(ramet.ScriptedEngine(counts), task=Letters().task("eval", 0), taskset=Letters(), chained=True,
                  dialect=dialect)  # fmt: skip
    for node in tree.nodes[2:]:
        assert "The answer so far, for the parts before this one: alice: 3\nbob: 4\nclone 1.1: none\n" in node.goal


def test_the_links_of_a_chain_share_what_is_left() -> None:
    budget = ramet.Budget(tokens=1000, reserve=20)
    tree = played(ramet.ScriptedEngine(read_texts), task=Letters().task("eval", 0), taskset=Letters(), chained=True,
                  budget=budget)  # fmt: skip
    left = 980
    grants: list[int] = []
    for place, node in enumerate(tree.nodes[1:]):
        grants.append(left // (3 - place + 1))
        left -= node.usage.tokens
    assert [node.grant for node in tree.nodes[1:]] == grants


@pytest.mark.parametrize("chained", [False, True])
def test_ingredients_are_made_by_clones_and_the_target_by_the_root(chained: bool) -> None:
    taskset = Craft()
    task = taskset.task("medium", 0)

    def crafter(prompt: Prompt) -> str:
        targets = parse_targets(prompt.goal, taskset.items.book.depths)
        made = [item for node in goals_of(taskset.split(task, 3)) for item in parse_targets(node, taskset.ways)]
        sums = work_out(taskset.ways, targets, made if prompt.depth == 0 else ())
        calls = "".join(write_tools(ramet.Move(does=(do,))) for do in craft_calls(taskset.ways, sums))
        is_first = prompt.turn == (0 if prompt.depth else len(prompt.messages) // 2 - 1)
        return calls if is_first and "crafted" not in prompt.last else "Answer: done"

    tree = played(ramet.ScriptedEngine(crafter), taskset=taskset, task=task, chained=chained,
                  budget=taskset.budget(task))  # fmt: skip
    assert [node.goal for node in tree.nodes[1:]] == goals_of(taskset.split(task, 3))
    assert all(node.verdict is not None and node.verdict.is_right for node in tree.nodes)
    assert goal_for(targets_of(task)) in tree.root.goal


def goals_of(split: Split) -> list[str]:
    return [ask.goal for ask in split.parts]


@pytest.mark.parametrize("dialect", ["tools", "python", "terse"])
@pytest.mark.parametrize("chained", [False, True])
def test_the_delegation_is_written_in_every_dialect(dialect: str, chained: bool) -> None:
    write, _ = forms_of(dialect)

    def model(prompt: Prompt) -> str:
        return write(ramet.Move(answer=str(_value(prompt.goal))))

    tree = in_virtual_time(lambda: play_control(
        Arithmetic(), QUESTION, TreeOptions(engine=ramet.ScriptedEngine(model), dialect=dialect),
        parts=3, chained=chained,
    ))  # fmt: skip
    assert len(tree.nodes) == 4
    assert [node.answer for node in tree.nodes[1:]] == (["2", "14", "-16"] if chained else ["2", "12", "-30"])
    assert not any(turn.faults or turn.refusals for node in tree.nodes for turn in node.turns)


def test_servers_without_a_tokenizer_are_supported() -> None:
    tree = played(ramet.ScriptedEngine(adder, token_ids=False), budget=ramet.Budget(tokens=1000, window=20_000))
    assert tree.answer == "-16"
    assert tree.usage.calls == 4


# In an evaluation.


def evaluated(*methods: str, tasks: Sequence[str] = ("arithmetic:eval",), **more: Any) -> Evaluation:
    given: dict[str, Any] = {"engine": ramet.ScriptedEngine(adder), "budgets": [300], "n": 6} | more
    return anyio.run(partial(evaluate, tasks, methods=methods, **given))


def test_controls_are_in_all_tables_with_their_costs() -> None:
    evaluation = evaluated("single", "split@3", "chain", "clones", budgets=[200, 400])
    (section,) = evaluation.sections()
    assert section.methods == ("single", "split@3", "chain", "clones")
    assert {comparison.cell[1] for comparison in section.method_comparisons} == {"split@3", "chain", "clones"}
    assert {area.method for area in section.areas} == {"single", "split@3", "chain", "clones"}
    by_method: dict[str, list[Record]] = {}
    for record in evaluation.records:
        by_method.setdefault(record.method, []).append(record)
    assert all(record.score == 1.0 for record in evaluation.records)
    assert max(record.nodes for record in by_method["split@3"]) == 4
    assert all(record.critical_path == record.generated for record in by_method["chain"])


def test_trees_of_controls_are_stored_and_resumed(tmp_path: Path) -> None:
    first = evaluated("split@3", into=tmp_path / "run")
    again = evaluated("split@3", into=tmp_path / "run", engine=ramet.ScriptedEngine(lambda _: "Answer: 0"))
    assert again.records == first.records
    trees = {tree.id: tree for tree in read_trees(RunDir.open(tmp_path / "run"))}
    for record in first.records:
        (name,) = record.trees
        assert trees[name].usage.tokens == record.generated
        assert trees[name].usage.prompt_tokens == record.prompt


def test_tasks_that_no_rule_cuts_are_refused_in_one_line() -> None:
    with pytest.raises(ConfigError) as error:
        evaluated("single", "split@4", tasks=["countdown:eval"])
    assert str(error.value) == (
        "split@4 cannot cut the tasks of countdown:eval: "
        "it can cut arithmetic, codes, craft, textcraft, aggregate, number_search, tasks with texts, and those of "
        "a taskset with a method split(task, parts)"
    )
    engine = ramet.ScriptedEngine(lambda _: "Answer: 1")
    assert evaluated("single", tasks=["countdown:eval"], n=1, engine=engine).records


def test_documents_are_dealt_out_in_an_evaluation() -> None:
    taskset = load_taskset("multihop")
    engine = ramet.ScriptedEngine(lambda _: "Answer: Rome")
    (record,) = evaluated("split@2", tasks=["multihop:eval"], engine=engine, n=1, budgets=[2000]).records
    texts = taskset.task("eval", 0).context
    read = [prompt.messages[1].content for prompt in engine.prompts if prompt.depth == 1]
    assert record.nodes == 3
    assert all(sum(text in content for content in read) == 1 for text in texts.values())
