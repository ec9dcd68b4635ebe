"""A call that a deadline or an interrupt cancels leaves a cut turn: what it had brought, token for token."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

import ramet
from ramet.agent.options import TreeOptions
from ramet.agent.tree import TreeRun
from ramet.engine.scripted import Reply, WordTokenizer
from ramet.store import RunDir, read_trees
from ramet.tokens.render import CHATML, TokenRenderer
from ramet.types import Node, Prompt
from tests.agent.scripts import delegate, words
from tests.conftest import in_virtual_time


def run(script: Any, *, text_only: bool = False, dialect: str = "tools", **budget: Any) -> ramet.Tree:
    engine = ramet.ScriptedEngine(script, token_ids=not text_only)
    options = TreeOptions(engine=engine, budget=ramet.Budget(**budget), dialect=dialect)
    return in_virtual_time(TreeRun("root", options).run)


def counting(number: int) -> str:
    """A text of `number` tokens for the scripted engine, all different."""
    return " ".join(f"w{i}" for i in range(number))


def shape(node: Node) -> list[tuple[str, int]]:
    return [(turn.finish, turn.tokens) for turn in node.turns]


@pytest.mark.parametrize("text_only", [False, True])
def test_the_closing_call_reads_what_was_streamed_before_the_deadline(text_only: bool):
    """90 of 100 seconds for ordinary turns, at 10 tokens per second: 900 of 2,000 words have arrived."""
    read: list[str] = []

    def script(prompt: Prompt) -> Reply:
        if prompt.closing:
            read.append("".join(message.content for message in prompt.messages))
            return Reply(text="Answer: in time", rate=10)
        return Reply(text=counting(2000), rate=10)

    tree = run(script, text_only=text_only, seconds=100, tokens=100_000, window=100_000)
    assert shape(tree.root) == [("cut", 900), ("stop", 4)]
    assert tree.root.pieces[1].text == counting(900)
    assert counting(900) in read[0]
    assert "w900" not in read[0]
    assert (tree.answer, tree.root.stop) == ("in time", ramet.Stop.DEADLINE)
    assert tree.usage.tokens == 904


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_cut_turn_at_any_depth_has_the_ids_that_were_received(depth: int):
    """A node at depth d has 90% of the time of its parent's ordinary turns, and generates 10 tokens per second."""

    def script(prompt: Prompt) -> Reply:
        if prompt.depth < depth and not prompt.turn:
            return Reply(text=delegate(f"down {prompt.depth}"))
        return Reply(text="Answer: short" if prompt.closing or prompt.turn else counting(2000), rate=10)

    engine = ramet.ScriptedEngine(script)
    budget = ramet.Budget(seconds=100, tokens=100_000, window=100_000, depth=depth, reserve=20)
    tree = in_virtual_time(TreeRun("root", TreeOptions(engine=engine, budget=budget)).run)
    deepest = tree.nodes[-1]
    # Depth 0: 90 s. Depth 1: the child ends after 90 s and samples 81 s. Depth 2: 81 s, of them 72.9 s.
    received = [900, 810, 729][depth]
    assert (deepest.depth, shape(deepest)) == (depth, [("cut", received), ("stop", 3)])
    ids = tuple(engine.tokenizer.encode(counting(received), control=False))
    assert deepest.pieces[1].token_ids == ids
    assert deepest.token_ids == [token for piece in deepest.pieces for token in piece.token_ids]
    assert len(deepest.pieces[1].logprobs) == received
    assert tree.answer == "short"
    assert engine.generated == tree.usage.tokens


def test_the_closing_call_is_as_long_as_the_time_left_allows():
    """10 s left at 10 tokens per second, three quarters of them for tokens: 75."""

    def script(prompt: Prompt) -> Reply:
        return Reply(text=f"Answer: {counting(500)}" if prompt.closing else counting(2000), rate=10)

    tree = run(script, seconds=100, tokens=100_000, window=100_000, reserve=1000)
    assert shape(tree.root) == [("cut", 900), ("length", 75)]
    assert tree.answer == counting(73)  # without the two tokens of `Answer:`
    assert tree.seconds == pytest.approx(97.5)


def test_however_little_time_is_left_a_few_tokens_may_be_generated():
    """1 s left at 10 tokens per second is room for 7 tokens; 16 are always asked for, and 10 arrive."""

    def script(prompt: Prompt) -> Reply:
        return Reply(text=f"Answer: {counting(500)}" if prompt.closing else counting(2000), rate=10)

    tree = run(script, seconds=10, tokens=100_000, window=200_000, reserve=1000)
    assert shape(tree.root) == [("cut", 90), ("cut", 10)]
    assert tree.usage.lost_tokens == 100_000 - 1000 - 90 + 16 - 10
    assert (tree.answer, tree.root.stop) == (counting(8), ramet.Stop.DEADLINE)


def test_without_a_measured_speed_the_closing_call_is_not_shortened():
    """The first call has brought nothing when time is up."""

    def script(prompt: Prompt) -> Reply:
        return Reply(
            text=f"Answer: {counting(50)}" if prompt.closing else words(2), seconds=0 if prompt.closing else 99
        )

    tree = run(script, seconds=10, reserve=1000)
    assert shape(tree.root) == [("stop", 52)]


def test_a_clone_without_a_call_of_its_own_uses_the_speed_of_the_tree():
    """The root's call: 4 tokens in 0.4 s. The clone's first call brings nothing in its 81 s."""

    def script(prompt: Prompt) -> Reply:
        if prompt.depth:
            return Reply(text=counting(400), rate=10 if prompt.closing else 0.01)
        return Reply(text=delegate("part") if not prompt.turn else "Answer: done", rate=10)

    tree = run(script, seconds=100, tokens=100_000, window=100_000, depth=1, reserve=1000)
    asked = tree.root.turns[0].tokens
    seconds = 0.9 * 100 - 0.1 * asked  # of the clone: until the root's reserve begins
    speed = asked / (0.1 * asked + 0.9 * seconds)  # of the tree: its second call brought none in that time
    assert shape(tree.nodes[1]) == [("length", max(16, int(0.75 * 0.1 * seconds * speed)))]


@pytest.mark.parametrize(("dialect", "text", "answer"), [
    ("tools", "so far 42 or", "so far 42 or"),
    ("tools", "thinking Answer: 42 because", "42 because"),
    ("terse", "= 42\n> more", "42"),
    ("python", "Answer: 42 because", "42 because"),
    ("python", "<python>\nfinish(42)", None),
])  # fmt: skip
def test_the_answer_in_a_closing_turn_that_was_cut_off(dialect: str, text: str, answer: str | None):
    """The text has arrived when time is up, 10 s after the closing call began. A cell is not run any more."""
    length = len(ramet.ScriptedEngine(str).tokenizer.encode(text, control=False))

    def script(prompt: Prompt) -> Reply:
        if not prompt.closing:
            return Reply(text="x", seconds=3600)
        return Reply(text=f"{text} {words(1000)}", rate=(length + 0.5) / 10)

    tree = run(script, dialect=dialect, seconds=100, tokens=10_000, reserve=2000, window=100_000)
    assert tree.root.turns[-1].finish == "cut"
    assert tree.root.pieces[-1].text == text
    assert (tree.answer, tree.root.stop) == (answer, ramet.Stop.DEADLINE)


def cut_twice(streamed: str, closing: str, *, dialect: str = "tools") -> ramet.Tree:
    """A turn and a closing call, both cut by the deadline after `streamed` and `closing`: 90 s and 10 s for them."""
    sizes = [len(ramet.ScriptedEngine(str).tokenizer.encode(text, control=False)) for text in (streamed, closing)]

    def script(prompt: Prompt) -> Reply:
        if prompt.closing:
            return Reply(text=f"{closing} {words(1000)}", rate=(sizes[1] + 0.5) / 10)
        return Reply(text=f"{streamed} {words(1000)}", rate=(sizes[0] + 0.5) / 90)

    tree = run(script, dialect=dialect, seconds=100, tokens=20_000, reserve=2000, window=100_000)
    assert [turn.finish for turn in tree.root.turns] == ["cut", "cut"]
    assert [piece.text for piece in tree.root.pieces if piece.sampled] == [streamed, closing]
    return tree


@pytest.mark.parametrize(("streamed", "closing", "answer"), [
    (counting(300), "Once upon", counting(300)),  # two words do not replace a page
    ("one two", "a longer text than that", "a longer text than that"),
    ("one two", "six ten", "six ten"),  # as long: the later one
    (counting(300), "Answer: 42", "42"),
    (counting(300), "I think. Answer: 4", "4"),
    (counting(300), "Answer:", counting(300)),  # a mark without an answer
    (counting(300), "Ans", counting(300)),
    ("Answer: 42 because of", "let me say it in many more words", "42 because of"),
    ("Answer: the sea was calm and", "Answer: the", "the sea was calm and"),
    ("Answer: 7", "Answer: 42 it is", "42 it is"),
    ("<think> " + counting(300), "so", "so"),  # thoughts are no answer while there is another text
    ("so", "<think> " + counting(5), "so"),
    ("<think> one", "<think> one two", "one two"),
    ("<think> one </think> it is", "<think> one two three four", "it is"),
])  # fmt: skip
def test_of_two_texts_that_were_cut_the_marked_or_longer_one_is_the_answer(streamed: str, closing: str, answer: str):
    tree = cut_twice(streamed, closing)
    assert (tree.answer, tree.root.stop) == (answer, ramet.Stop.DEADLINE)


@pytest.mark.parametrize(("streamed", "closing", "answer"), [
    ("= 42\nworking it out once more", "wor", "42"),
    ("working it out", "= 4", "4"),
    ("= 12345", "= 1", "12345"),
])  # fmt: skip
def test_in_terse_an_answer_line_is_the_mark(streamed: str, closing: str, answer: str):
    assert cut_twice(streamed, closing, dialect="terse").answer == answer


@pytest.mark.parametrize(("closing", "answer"), [
    ("six", "six"),  # ended by itself
    (f"six {words(1000)}", counting(900)),  # cut after 75 tokens, which is what fits the time left
    (f"Answer: six {words(1000)}", None),
])  # fmt: skip
def test_a_closing_call_that_ends_by_itself_has_the_answer_and_one_that_its_cap_cuts_is_compared(
    closing: str, answer: str | None
):
    def script(prompt: Prompt) -> Reply:
        return Reply(text=closing if prompt.closing else counting(2000), rate=10)

    tree = run(script, seconds=100, tokens=100_000, window=100_000, reserve=1000)
    assert tree.root.turns[-1].finish == ("stop" if closing == "six" else "length")
    assert tree.answer == (answer or f"six {words(72)}")


@pytest.mark.parametrize(("closing", "answer"), [
    ("so", "the first part\nthe second part"),
    ("Answer: 42", "42"),
    ("", "the first part\nthe second part"),
])  # fmt: skip
def test_two_words_of_a_cut_closing_call_do_not_replace_the_answers_of_clones(closing: str, answer: str):
    """The clones answer at once; the root's next call brings nothing in 90 s, and its closing call is cut."""
    length = len(ramet.ScriptedEngine(str).tokenizer.encode(closing, control=False))

    def script(prompt: Prompt) -> Reply:
        if prompt.depth:
            return Reply(text=f"Answer: the {prompt.goal} part")
        if not prompt.turn:
            return Reply(text=delegate("first", "second"))
        if prompt.closing and closing:
            return Reply(text=f"{closing} {words(1000)}", rate=(length + 0.5) / 10)
        return Reply(text="x", seconds=3600)

    tree = run(script, seconds=100, tokens=20_000, reserve=2000, window=100_000, depth=1)
    assert (tree.answer, tree.root.stop) == (answer, ramet.Stop.DEADLINE)


def test_if_both_deadlines_pass_at_once_what_was_streamed_is_the_answer():
    """After 80 of 100 s the clock jumps to 180 s, as if the event loop had been blocked: the node is not asked."""
    clock = trio.testing.MockClock(autojump_threshold=0)
    engine = ramet.ScriptedEngine(lambda prompt: Reply(text=counting(2000), rate=10))
    options = TreeOptions(engine=engine, budget=ramet.Budget(seconds=100, tokens=100_000, window=100_000))
    tree_run = TreeRun("root", options)

    async def work() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(tree_run.run)
            await anyio.sleep(80.05)
            clock.jump(100)

    anyio.run(work, backend="trio", backend_options={"clock": clock})
    assert shape(tree_run.tree.root) == [("cut", 1800)]
    assert (tree_run.tree.answer, tree_run.tree.root.stop) == (counting(1800), ramet.Stop.DEADLINE)


def test_a_node_with_one_turn_in_all_is_still_asked_for_its_answer():
    def script(prompt: Prompt) -> Reply:
        closing = len(prompt.messages) > 2
        return Reply(text="Answer: 7" if closing else counting(2000), rate=10)

    tree = run(script, seconds=100, turns=1, tokens=100_000, window=100_000, reserve=1000)
    assert shape(tree.root) == [("cut", 900), ("stop", 3)]
    assert (tree.answer, tree.root.stop) == ("7", ramet.Stop.DEADLINE)


def test_a_run_that_is_cancelled_stores_what_was_streamed(tmp_path: Path):
    engine = ramet.ScriptedEngine(lambda prompt: Reply(text=counting(1000), rate=10))
    run = TreeRun("root", TreeOptions(engine=engine, budget=ramet.Budget(tokens=5000, window=100_000)))

    async def work() -> None:
        with anyio.move_on_after(20):
            await run.run()

    in_virtual_time(work)
    store = RunDir.create(tmp_path, "cut")
    store.write([run.tree])
    (stored,) = read_trees(store)
    assert stored.root.pieces[1].text == counting(200)
    assert stored.root.pieces[1].token_ids == run.tree.root.pieces[1].token_ids
    assert (shape(stored.root), stored.root.stop) == ([("cut", 200)], ramet.Stop.CANCELLED)
    assert stored.answer is None


def test_a_tree_can_be_forked_at_a_cut_turn_and_not_after_it():
    def script(prompt: Prompt) -> Reply:
        return Reply(text="Answer: late" if prompt.closing else counting(2000), rate=10)

    engine = ramet.ScriptedEngine(script)
    budget = ramet.Budget(seconds=100, tokens=100_000, window=100_000)
    tree = in_virtual_time(TreeRun("root", TreeOptions(engine=engine, budget=budget)).run)
    engine.script = lambda _: "Answer: another"

    async def fork_at(turn: int) -> ramet.Tree:
        return await ramet.fork(tree, node=0, turn=turn, engine=engine)

    assert in_virtual_time(lambda: fork_at(0)).answer == "another"
    with pytest.raises(ramet.ForkError, match="because of the deadline"):
        in_virtual_time(lambda: fork_at(1))


@settings(max_examples=60)
@given(
    rate=st.sampled_from([0.5, 3, 40, 1000]),
    seconds=st.sampled_from([0.5, 7, 60]),
    cancel=st.sampled_from([None, 0.3, 5, 40]),
    tokens=st.sampled_from([40, 300, 5000]),
    depth=st.integers(0, 2),
    text_only=st.booleans(),
)
def test_with_cut_turns_no_budget_is_exceeded_and_nothing_is_counted_twice(
    rate: float, seconds: float, cancel: float | None, tokens: int, depth: int, text_only: bool
):
    def script(prompt: Prompt) -> Reply:
        wide = prompt.depth < depth and not prompt.turn
        return Reply(text=delegate("a", "b") if wide else counting(300), rate=rate)

    engine = ramet.ScriptedEngine(script, token_ids=not text_only)
    budget = ramet.Budget(tokens=tokens, seconds=seconds, depth=depth, window=20_000)
    run = TreeRun("root", TreeOptions(engine=engine, budget=budget))

    async def work() -> None:
        with anyio.move_on_after(cancel):
            await run.run()

    in_virtual_time(work)
    used = run.tree.usage
    assert used.tokens == engine.generated
    assert used.tokens + used.lost_tokens + run.ledger.tokens == tokens
    assert run.ledger.open == 0
    for node in run.tree.nodes:
        assert sum(turn.tokens for turn in node.turns) == node.usage.tokens
        assert len([piece for piece in node.pieces if piece.sampled]) == len(node.turns)
        assert node.usage.peak_window <= budget.window


@pytest.mark.parametrize(("dialect", "draft"), [("tools", delegate("north")), ("terse", "\n> north\n")])
def test_what_looks_like_a_call_in_thoughts_that_were_cut_off_is_not_carried_out(dialect: str, draft: str):
    def script(prompt: Prompt) -> str:
        return "= 42" if prompt.turn else f"<think>Maybe {draft} or rather {words(1000)}"

    tree = run(script, dialect=dialect, tokens=2000, node_tokens=900)
    assert [turn.finish for turn in tree.root.turns] == ["length", "stop"]
    assert (len(tree.nodes), tree.root.turns[0].faults) == (1, 1)


THINKING = replace(CHATML, before_assistant=f"{CHATML.before_assistant}<think>\n")  # as templates of reasoning models


@pytest.mark.parametrize(
    ("first", "finish", "nodes"),
    [
        (f"Maybe {delegate('north')} or rather {words(1000)}", "length", 1),  # a draft in thoughts that were cut off
        (f"Maybe {delegate('north')} or rather</think>{delegate('south')}", "stop", 2),
    ],
)
def test_a_turn_is_read_with_the_mark_of_thoughts_that_its_template_wrote(first: str, finish: str, nodes: int):
    def script(prompt: Prompt) -> str:
        return "</think>Answer: 42" if prompt.depth or prompt.turn else first

    engine = ramet.ScriptedEngine(script, renderer=TokenRenderer(WordTokenizer(), THINKING))
    tree = ramet.run_sync("root", engine=engine, budget=ramet.Budget(tokens=9000, node_tokens=900, window=9000))
    assert [turn.finish for turn in tree.root.turns] == [finish, "stop"]
    assert [node.goal for node in tree.nodes[1:]] == ["south"] * (nodes - 1)
    assert tree.answer == "42"


def test_the_answer_of_a_closing_call_that_only_thought_is_its_thoughts():
    tree = run(lambda _: f"<think>{words(1000, 'hm')}", tokens=600)
    assert tree.root.turns[-1].finish == "length"
    assert (tree.answer or "").split()[:3] == ["hm", "hm", "hm"]
