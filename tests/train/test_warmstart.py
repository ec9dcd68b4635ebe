"""A supervised start: demonstrations in the model's own tokens, every sampled token and no other."""

from __future__ import annotations

import json
from itertools import compress
from pathlib import Path
from typing import Any

import anyio
import pytest

import ramet
from ramet.agent.options import TreeOptions
from ramet.budget import Budget
from ramet.config import load
from ramet.engine.scripted import Reply, ScriptedEngine
from ramet.errors import ConfigError, TrainError
from ramet.store import RunDir
from ramet.store.checkpoints import latest
from ramet.tasks.arithmetic import Arithmetic
from ramet.tasks.craft.taskset import Craft
from ramet.tasks.oracle import script
from ramet.tasks.play import demonstrate, play
from ramet.tokens.huggingface import load_renderer
from ramet.tokens.render import TokenRenderer
from ramet.train.loop import train
from ramet.train.replay import replay, uses_tokens_of
from ramet.train.settings import WarmConfig
from ramet.train.warmstart import demonstrations, filter_by_score, good_trees, resume_warmstart, rows_to_copy, warmstart
from ramet.types import Prompt, Tree
from tests.train import small
from tests.train.test_loop import Stopped, bits

TASKS = Arithmetic(operators=2, digits=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small.folder(tmp_path_factory.mktemp("warmstart"))


@pytest.fixture(scope="module")
def renderer(folder: Path) -> TokenRenderer:
    return load_renderer(folder)


def config(folder: Path, *words: str) -> WarmConfig:
    options = {"operators": 2, "digits": 1}
    known = {"taskset": options, "steps": 6, "trees_per_step": 4, "save_every": 2, "update": {"learning_rate": 0.01}}
    return load(WarmConfig, words=words, base={"model": str(folder), "sampler": {"device": "cpu"}} | known)


def elsewhere(task: int, *, token_ids: bool = True, engine: ScriptedEngine | None = None) -> Tree:
    """The oracle's tree in the tokens of somebody else, or in none."""
    question = TASKS.task("train", task)
    oracle = script(TASKS.oracle(question, delegate=True, seed=task), "tools")
    speaker = engine or ScriptedEngine(oracle, token_ids=token_ids)

    async def one() -> Tree:
        return await play(TASKS, question, TreeOptions(engine=speaker))

    return anyio.run(one)


def shown(renderer: TokenRenderer, **more: Any) -> Tree:
    async def one() -> Tree:
        return await demonstrate(TASKS, TASKS.task("train", 3), renderer=renderer, **more)

    return anyio.run(one)


@pytest.mark.parametrize("dialect", ["tools", "python"])
def test_a_demonstration_is_in_the_model_s_own_tokens_and_ends_its_turns_as_the_model_does(
    renderer: TokenRenderer, dialect: str
) -> None:
    tree = shown(renderer, dialect=dialect)
    assert len(tree.nodes) > 1
    assert tree.root.verdict is not None
    assert tree.root.verdict.score == 1
    assert uses_tokens_of(renderer, tree)
    for node in tree.nodes:
        assert node.pieces[0].token_ids == renderer.open(*_opening(node.pieces[0].text)).token_ids
        said = [piece for piece in node.pieces if piece.sampled]
        ends = [piece.token_ids[-1] == renderer.end_of_turn for piece in said]
        assert ends == [True] * len(said) if dialect == "tools" else said[-1].text.endswith("</python>")


def _opening(text: str) -> tuple[str, str]:
    system, _, user = text.partition("<|im_end|>\n<|im_start|>user\n")
    return system.removeprefix("<|im_start|>system\n"), user.removesuffix("<|im_end|>\n<|im_start|>assistant\n")


def test_rows_to_copy_are_every_sampled_token_and_no_other(renderer: TokenRenderer) -> None:
    tree = shown(renderer)
    rows = rows_to_copy([tree])
    assert [row.node for row in rows] == [node.index for node in tree.nodes]
    for row, node in zip(rows, tree.nodes, strict=True):
        assert (row.advantage, row.weight, row.logprobs) == (1.0, 1.0, None)
        copied = renderer.tokenizer.decode(list(compress(row.token_ids, row.mask)))
        assert copied == "".join(piece.text + "<|im_end|>" for piece in node.pieces if piece.sampled)


def with_mistakes(renderer: TokenRenderer, number: int) -> list[Tree]:
    craft = Craft(style="uniform", mistakes=1.0)
    budget = Budget(tokens=100_000, nodes=128, depth=6, turns=12, window=50_000, parent_share=0.25)

    async def play_all() -> list[Tree]:
        tasks = [craft.task("train_easy", index) for index in range(number)]
        return [await demonstrate(craft, task, renderer=renderer, budget=budget) for task in tasks]

    return anyio.run(play_all)


def test_mistakes_of_a_demonstrator_are_read_and_not_copied(renderer: TokenRenderer) -> None:
    trees = with_mistakes(renderer, 6)
    assert any(not piece.taught for tree in trees for node in tree.nodes for piece in node.pieces)
    for tree in trees:
        for row in rows_to_copy([tree]):
            pieces = tree.nodes[row.node].pieces
            copied = renderer.tokenizer.decode(list(compress(row.token_ids, row.mask)))
            assert copied == "".join(piece.text + "<|im_end|>" for piece in pieces if piece.sampled and piece.taught)
            assert list(row.token_ids) == tree.nodes[row.node].token_ids


def test_mistakes_are_still_known_when_a_tree_is_said_again(renderer: TokenRenderer) -> None:
    (theirs,) = with_mistakes(renderer, 1)

    async def again() -> Tree | None:
        return await replay(theirs, renderer=renderer, taskset=Craft())

    ours = anyio.run(again)
    assert ours is not None
    marks = [[piece.taught for piece in node.pieces] for node in theirs.nodes]
    assert False in [mark for node in marks for mark in node]
    assert [[piece.taught for piece in node.pieces] for node in ours.nodes] == marks


def test_demonstrations_that_report_a_failure_are_learnt_from_if_that_is_wanted(renderer: TokenRenderer) -> None:
    right = shown(renderer)
    failed = elsewhere(3, engine=ScriptedEngine(lambda _: "Answer: Could not do it"))
    cut = elsewhere(3, engine=ScriptedEngine(lambda _: Reply(text="word " * 5000)))
    trees = [right, failed, cut]
    assert filter_by_score(trees, least=1.0, source="here") == [right]
    assert filter_by_score(trees, least=1.0, source="here", honest_failures=True) == [right, failed]


def test_a_share_of_demonstrations_delegates_and_the_same_ones_each_time(folder: Path, renderer: TokenRenderer) -> None:
    def delegating(*words: str) -> list[bool]:
        given = config(folder, *words)
        return [len(tree.nodes) > 1 for tree in anyio.run(demonstrations, TASKS, "train", given, renderer, range(30))]

    half = delegating()
    assert 5 < sum(half) < 25
    assert delegating() == half
    assert delegating("seed=1") != half
    assert not any(delegating("delegate=0"))
    assert sum(delegating("delegate=1")) > 25  # here and there the oracle finds nothing to hand out


def test_demonstrations_delegate_when_needed_where_one_chain_does_not_fit_into_the_budget(
    folder: Path, renderer: TokenRenderer
) -> None:
    sums = Arithmetic(operators=24, digits=1, symbols="+-", brackets=False, working="rewrites", style="uniform")

    def right(tokens: str, delegate: str) -> dict[str, tuple[bool, bool]]:
        """Whether each demonstration delegates, and whether it is right."""
        given = config(folder, f"budget.tokens={tokens}", f"delegate={delegate}")
        trees = anyio.run(demonstrations, sums, "train", given, renderer, range(12))
        return {tree.id: (len(tree.nodes) > 1, bool(good_trees([tree], least=1.0))) for tree in trees}

    alone, clones, shown = (right("[300,900]", delegate) for delegate in ("0", "1", "when_needed"))
    fits = {name for name, (_, good) in alone.items() if good}
    assert 2 < len(fits) < 10
    assert shown == {name: alone[name] if name in fits else clones[name] for name in shown}
    assert sum(good for _, good in shown.values()) > len(fits)
    assert set(right("5000", "when_needed").values()) == {(False, True)}


@pytest.mark.parametrize("word", ["delegate=sometimes", "delegate=1.5", "delegate=-0.1"])
def test_which_demonstrations_delegate_is_a_share_or_when_needed(folder: Path, word: str) -> None:
    with pytest.raises(ConfigError, match="when_needed"):
        config(folder, word)


def test_the_model_learns_what_it_is_shown_and_training_can_begin_there(tmp_path: Path, folder: Path) -> None:
    run = warmstart(config(folder, "steps=30"), runs=tmp_path)
    losses = [record["loss"] for record in run.metrics()]
    assert losses[0] > 5
    assert losses[-1] < 0.6 * losses[0]
    assert {record["score"] for record in run.metrics()} == {1.0}
    assert {record["logprob_gap"] for record in run.metrics()} == {None}
    newest = latest(run.path)
    assert newest is not None
    begun = train(small.config(newest, "steps=1"), runs=tmp_path)
    assert len(begun.metrics()) == 1


def test_a_warm_start_that_stopped_goes_on_to_the_same_bits(tmp_path: Path, folder: Path) -> None:
    whole = warmstart(config(folder), runs=tmp_path / "whole")

    def stop(record: dict[str, Any]) -> None:
        if record["step"] == 2:
            raise Stopped

    with pytest.raises(Stopped):
        warmstart(config(folder), runs=tmp_path / "stopped", on_step=stop)
    assert bits(resume_warmstart(tmp_path / "stopped" / "warmstart")) == bits(whole)


# Trees of another model.


@pytest.mark.parametrize("token_ids", [True, False], ids=["other ids", "text alone"])
def test_a_tree_of_another_model_is_said_again_in_this_one_s_tokens(renderer: TokenRenderer, token_ids: bool) -> None:
    theirs = elsewhere(3, token_ids=token_ids)
    assert not uses_tokens_of(renderer, theirs)

    async def again() -> Tree | None:
        return await replay(theirs, renderer=renderer, taskset=TASKS)

    ours = anyio.run(again)
    assert ours is not None
    assert uses_tokens_of(renderer, ours)
    assert [node.answer for node in ours.nodes] == [node.answer for node in theirs.nodes]
    assert [node.verdict for node in ours.nodes] == [node.verdict for node in theirs.nodes]
    direct = shown(renderer, seed=3)
    assert [node.token_ids for node in ours.nodes] == [node.token_ids for node in direct.nodes]


def test_a_tree_is_said_again_with_the_instructions_of_this_model_s_prompt(renderer: TokenRenderer) -> None:
    async def again() -> Tree | None:
        return await replay(elsewhere_tree, renderer=renderer, taskset=TASKS, instructions="Be brief.")

    elsewhere_tree = elsewhere(3, token_ids=False)
    ours = anyio.run(again)
    assert ours is not None
    assert all("\n\nBe brief." in node.pieces[0].text for node in ours.nodes)


def test_a_node_that_was_cut_short_is_not_shown(renderer: TokenRenderer) -> None:
    cut = elsewhere(3, engine=ScriptedEngine(lambda _: Reply(text="word " * 5000)))

    async def again() -> Tree | None:
        return await replay(cut, renderer=renderer, taskset=TASKS)

    assert anyio.run(again) is None


@pytest.mark.parametrize("allowed", [False, True])
def test_a_goal_is_refused_again_only_if_it_was_refused_before(renderer: TokenRenderer, allowed: bool) -> None:
    def passes_on(prompt: Prompt) -> str:
        call = json.dumps({"name": "delegate", "arguments": {"goals": [f"Please: {prompt.goal}"]}})
        return "Answer: 1" if prompt.turn else f"<tool_call>{call}</tool_call>"

    async def twice() -> tuple[Tree, Tree | None]:
        options = TreeOptions(engine=ScriptedEngine(passes_on), allow_same_goal=allowed)
        theirs = await play(TASKS, TASKS.task("train", 3), options)
        return theirs, await replay(theirs, renderer=renderer, taskset=TASKS)

    theirs, ours = anyio.run(twice)
    assert ours is not None
    assert len(ours.nodes) == len(theirs.nodes) == (4 if allowed else 1)  # as deep as the task allows


def test_trees_of_a_run_directory_are_learnt_from(tmp_path: Path, folder: Path) -> None:
    theirs = RunDir.create(tmp_path, "theirs")
    theirs.write([elsewhere(number, token_ids=False) for number in range(3)])
    run = warmstart(config(folder, f"run={theirs.path}", "steps=4", "trees_per_step=2"), runs=tmp_path)
    assert [record["trees"] for record in run.metrics()] == [2] * 4
    assert run.metrics()[-1]["loss"] < run.metrics()[0]["loss"]


def test_trees_that_did_not_score_are_not_shown(tmp_path: Path, folder: Path) -> None:
    wrong = elsewhere(3, engine=ScriptedEngine(lambda _: "Answer: none"))
    right = elsewhere(3)
    assert filter_by_score([wrong, right], least=1.0, source="here") == [right]
    with pytest.raises(TrainError, match=r"nothing to learn from; see elsewhere$"):
        filter_by_score([wrong], least=1.0, source="here", advice="; see elsewhere")
    theirs = RunDir.create(tmp_path, "theirs")
    theirs.write([wrong])
    with pytest.raises(TrainError, match=r"none of the 1 trees of .* scored 1 or more: nothing to learn from"):
        warmstart(config(folder, f"run={theirs.path}"), runs=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_limits_that_ended_all_demonstrations_are_named() -> None:
    async def short(number: int) -> Tree:
        taskset = Arithmetic(operators=4, digits=2)
        return await demonstrate(taskset, taskset.task("train", number), budget=Budget(tokens=12), delegate=False)

    trees = [anyio.run(short, number) for number in range(2)]
    reason = r"nothing to learn from \(2 ended by budget: are the limits of budget too tight\?\)"
    with pytest.raises(TrainError, match=reason):
        filter_by_score(trees, least=1.0, source="the oracle")


def test_a_run_that_is_not_there_is_told(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(ramet.StoreError, match="is not a run directory"):
        warmstart(config(folder, f"run={tmp_path}"), runs=tmp_path)
    with pytest.raises(ConfigError, match="arithmetic has no split 'nowhere'"):
        warmstart(config(folder, "task=arithmetic:nowhere"), runs=tmp_path)
