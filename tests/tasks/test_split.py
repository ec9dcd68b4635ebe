"""Tasks cut by fixed rules: parts worked out by hand, and nothing lost or doubled."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.interfaces import Ask
from ramet.tasks.aggregate.taskset import Aggregate
from ramet.tasks.arithmetic import Arithmetic
from ramet.tasks.codes import Codes, last_digit, pattern_in, split_pattern
from ramet.tasks.craft.parts import split_targets
from ramet.tasks.craft.plan import Way, Ways
from ramet.tasks.craft.taskset import Craft
from ramet.tasks.craft.world import goal_for
from ramet.tasks.expression import parse
from ramet.tasks.expression_cuts import chain_steps, fill, split_expression
from ramet.tasks.number_search import NumberSearch
from ramet.tasks.registry import load_taskset
from ramet.tasks.split import Split, SplitsTask, can_split, chunks, cut_texts, deal_texts, split_task, splittable
from ramet.types import Task

EXPRESSIONS = st.integers(0, 400).map(lambda index: Arithmetic().task("eval", index).question.removeprefix("Compute "))


def goals(split: Split) -> list[str]:
    return [ask.goal for ask in split.parts]


def shape_of(split: Split) -> str:
    """What combines the answers, with a ? for each."""
    shape = split.combine.removeprefix("The value is ").partition(",")[0]
    for goal in goals(split):
        shape = shape.replace(f"({goal.removeprefix('Compute ')})", "?", 1)
    return shape


# Chunks.


def test_chunks_are_consecutive_and_of_nearly_equal_weight() -> None:
    assert chunks([1, 1, 1, 1], 2) == [range(2), range(2, 4)]
    assert chunks([9, 1, 1], 2) == [range(1), range(1, 3)]
    assert chunks([1, 1], 5) == [range(1), range(1, 2)]
    assert chunks([], 3) == []


@given(st.lists(st.integers(0, 50), max_size=30), st.integers(1, 12))
def test_every_item_is_in_one_chunk(weights: list[int], parts: int) -> None:
    found = chunks(weights, parts)
    assert [place for chunk in found for place in chunk] == list(range(len(weights)))
    assert len(found) <= parts


# Expressions.


@pytest.mark.parametrize(
    ("text", "parts", "asked", "shape"),
    [
        ("1*2+3*4-5*6", 3, ["1*2", "3*4", "-5*6"], "?+?+?"),  # a part keeps its sign
        ("1*2-3*4+5*6", 2, ["1*2", "-3*4+5*6"], "?+?"),
        ("1-2-3+4-5-6-7+8", 4, ["1-2", "-3+4", "-5-6", "-7+8"], "?+?+?+?"),
        ("(1+2)*(3+4)-5*6", 3, ["1+2", "3+4", "5*6"], "(?*?)-?"),  # fewer terms than parts: a sign stays outside
        ("2*3*(4+5)", 2, ["2*3", "4+5"], "?*?"),
        ("7+8*9", 4, [], ""),  # 8*9 alone would be nearly everything
        ("12", 4, [], ""),
    ],
)
def test_an_expression_is_cut_at_its_top_level_operators(text: str, parts: int, asked: list[str], shape: str) -> None:
    split = split_expression(parse(text), parts)
    assert goals(split) == [f"Compute {part}" for part in asked]
    assert shape_of(split) == shape


@given(EXPRESSIONS, st.integers(2, 8))
def test_the_parts_of_an_expression_put_together_have_its_value(text: str, parts: int) -> None:
    split = split_expression(parse(text), parts)
    assert len(split.parts) <= parts
    if split.parts:
        values = [str(parse(goal.removeprefix("Compute ")).value()) for goal in goals(split)]
        assert parse(fill(shape_of(split), values)).value() == parse(text).value()


def test_the_answers_of_parts_of_a_sum_are_combined_as_in_demonstrations() -> None:
    """A control whose sentence a trained model has never seen would fail for that reason alone."""
    assert split_expression(parse("6+9-1-4-5+3"), 2).combine == "(6+9-1)+(-4-5+3)"


def test_a_chain_goes_from_left_to_right_with_the_value_so_far() -> None:
    assert chain_steps(parse("1*2+3*4-5"), 2) == ("Compute 1*2", "Compute {}+3*4-5")
    assert chain_steps(parse("2*3*4*5"), 2) == ("Compute 2*3", "Compute {}*4*5")
    assert chain_steps(parse("12"), 3) == ()


@given(EXPRESSIONS, st.integers(2, 8))
def test_the_last_value_of_a_chain_is_that_of_the_expression(text: str, parts: int) -> None:
    steps = chain_steps(parse(text), parts)
    value = ""
    for step in steps:
        value = str(parse(step.removeprefix("Compute ").replace("{}", f"({value})")).value())
    assert not steps or int(value) == parse(text).value()


# Codes, ranges, ingredients.


def test_the_pattern_with_the_most_codes_is_halved() -> None:
    patterns = [pattern_in(goal) for goal in goals(split_pattern("1??", 3))]
    assert patterns == ["100", "101", "11?"]
    assert split_pattern("101", 4) == Split()


@given(st.integers(0, 200), st.integers(2, 9))
def test_the_parts_of_a_pattern_add_up(index: int, parts: int) -> None:
    task = Codes().task("train", index)
    found = [pattern_in(goal) or "" for goal in goals(Codes().split(task, parts))]
    if found:
        assert sum(last_digit(part) for part in found) % 10 == last_digit(pattern_in(task.question) or "")


def test_a_range_is_cut_into_equal_ranges() -> None:
    taskset = NumberSearch()
    task = Task(question="Guess the correct number between 1 and 9.")
    assert goals(taskset.split(task, 3)) == [
        "Guess the correct number between 1 and 3.",
        "Guess the correct number between 4 and 6.",
        "Guess the correct number between 7 and 9.",
    ]


def test_ingredients_are_dealt_out_with_the_numbers_that_are_needed() -> None:
    ways: Ways = {
        "a": Way(takes={"ore": 3}, makes=1),
        "b": Way(takes={"ore": 1}, makes=1),
        "c": Way(takes={"b": 2, "a": 1, "ore": 1}, makes=1),
    }
    split = split_targets(ways, {"c": 2}, 4)
    assert goals(split) == [goal_for({"b": 4}), goal_for({"a": 2})]
    assert split.combine == "What the parts make is for 2x c."
    assert split_targets(ways, {"c": 2}, 2) == split
    assert split_targets(ways, {"b": 2}, 2) == Split()  # from base materials only


def test_the_clone_goals_of_a_crafting_task_are_fewer_than_the_parts_if_it_has_fewer_ingredients() -> None:
    taskset = Craft()
    split = taskset.split(taskset.task("hard", 0), 2)
    assert len(split.parts) == 2
    assert len(taskset.split(taskset.task("hard", 0), 50).parts) < 10


# Texts.


def test_texts_are_dealt_out_in_order_and_in_equal_parts() -> None:
    texts = {name: name * 100 for name in "abcd"}
    split = deal_texts(Task(question="Who?", context=texts), 2)
    assert [ask.context for ask in split.parts] == [("a", "b"), ("c", "d")]
    assert split.parts[0].goal.startswith("Who?\n\nYou have part 1 of 2 of the texts.")
    assert split.texts is None


def test_long_texts_are_cut_into_pieces_where_there_are_too_few() -> None:
    cut = cut_texts({"a": "x " * 200, "b": "y"}, 3)
    assert list(cut) == ["a (part 1 of 2)", "a (part 2 of 2)", "b"]
    assert cut["a (part 1 of 2)"] + " " + cut["a (part 2 of 2)"] == "x " * 200
    assert cut_texts({"a": "too short", "b": "y"}, 3) == {"a": "too short", "b": "y"}


@given(st.lists(st.text("ab \n", max_size=900), min_size=1, max_size=5), st.integers(2, 6))
def test_no_word_of_a_text_is_lost(texts: list[str], parts: int) -> None:
    context = {f"t{place}": text for place, text in enumerate(texts)}
    split = deal_texts(Task(question="?", context=context), parts)
    if split.parts:
        handed = [(split.texts or context)[key] for ask in split.parts for key in ask.context]
        assert " ".join(handed).split() == " ".join(texts).split()


def test_lines_are_counted_page_by_page() -> None:
    taskset = Aggregate()
    task = taskset.task("train", 0)
    split = taskset.split(task, 2)
    spans = [re.findall(r"\(lines (\d+)-(\d+)\)", goal)[0] for goal in goals(split)]
    assert spans[0][0] == "1"
    assert int(spans[1][0]) == int(spans[0][1]) + 1
    assert {key for ask in split.parts for key in ask.context} == set(task.context)


# Which tasksets.


@pytest.mark.parametrize("name", ["arithmetic", "codes", "craft", "aggregate", "number_search"])
def test_a_taskset_with_a_rule_uses_it(name: str) -> None:
    taskset = load_taskset(name)
    assert isinstance(taskset, SplitsTask)
    task = taskset.task("train", 1)
    assert can_split(taskset, task)
    assert split_task(taskset, task, 3) == taskset.split(task, 3)


def test_documents_are_dealt_out_and_puzzles_cannot_be_cut() -> None:
    multihop, countdown = load_taskset("multihop"), load_taskset("countdown")
    task = multihop.task("train", 0)
    split = split_task(multihop, task, 2)
    assert [key for ask in split.parts for key in ask.context] == list(task.context)
    assert all(isinstance(ask, Ask) and ask.goal.startswith(task.question) for ask in split.parts)
    assert not can_split(countdown, countdown.task("train", 0))
    assert splittable() == ["arithmetic", "codes", "craft", "textcraft", "aggregate", "number_search"]
