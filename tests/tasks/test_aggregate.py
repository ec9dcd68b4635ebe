"""Aggregate: topics recognisable by their words, questions that add up over any pages, and an oracle that counts."""

from __future__ import annotations

import functools
import gzip
import hashlib
import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.budget import Budget
from ramet.engine.scripted import WORD
from ramet.errors import ConfigError
from ramet.tasks.aggregate.grammar import GRAMMAR, sentences
from ramet.tasks.aggregate.lines import Line, find_spans, labels_of, lines_in, named_lines, pages, truth
from ramet.tasks.aggregate.oracle import Counting
from ramet.tasks.aggregate.query import Query, add, count, decide, grade, hear, read_query, say
from ramet.tasks.aggregate.taskset import BRIEF_KINDS, QUESTIONS, Aggregate
from ramet.tasks.aggregate.working import scale_up, shown_lines, sums, tally
from ramet.tasks.oracle import Direct
from ramet.tasks.play import demonstrate
from ramet.tasks.registry import load_taskset
from ramet.tasks.validate import validate
from ramet.types import Node, Task, Tree

AGGREGATE = Aggregate()
SMALL = Aggregate(lines=(20, 60), long_lines=(100, 120), page=10)
TOPICS = ["cooking", "music", "pets"]

# Six requests and eight turns, small enough to count by hand.
REQUESTS = [
    Line("Date: 2024-01-05 || User: 111 || Instance: play a waltz with piano", "music"),
    Line("Date: 2024-01-09 || User: 222 || Instance: how much salt goes into goulash", "cooking"),
    Line("Date: 2024-02-01 || User: 111 || Instance: play a ballad with cello", "music"),
    Line("Date: 2024-02-11 || User: 333 || Instance: my puppy is afraid of the leash", "pets"),
    Line("Date: 2024-02-20 || User: 222 || Instance: record my violin playing a ballad", "music"),
    Line("Date: 2024-12-24 || User: 111 || Instance: can I make apple pie without butter", "cooking"),
]
TURNS = [
    Line("[1] MATT: Roll for it."),
    Line("[2] SAM: Me? A one."),
    Line("[3] MATT: Roll again? The dragon rolls: twenty."),
    Line("[4] SAM, LAURA: No! The dragon!"),
    Line("[5] MATT: Dragons never miss."),
    Line("[6] SAM: Is it dead?"),
    Line("[7] MATT: It is not."),
    Line("[8] CHRIS PERKINS: Roll on, dragon."),
]


def answers(question: str, lines: Sequence[Line] = REQUESTS) -> list[str]:
    query = read_query(question)
    assert query is not None, question
    return decide(query, count(query.part, lines), TOPICS)


def node(goal: str, answer: str | None, *, parent: int | None = 0) -> Node:
    return Node(index=1, parent=parent, depth=1, path=(0,), goal=goal, grant=1, answer=answer)


def known(taskset: Aggregate = SMALL) -> Task:
    """The first task whose topics include cooking."""
    tasks = (taskset.task("train", index) for index in range(100))
    return next(task for task in tasks if "cooking" in task.question)


def score(goal: str, answer: str | None, task: Task | None = None) -> float | None:
    task = task or known()
    verdict = SMALL.verdict(task, SMALL.world(task), node(goal, answer))
    assert verdict is None or verdict.how == "exact"
    return verdict and verdict.score


# The grammar.


def test_there_are_eight_topics_with_hundreds_of_sentences() -> None:
    assert len(GRAMMAR) == 8
    for topic in GRAMMAR:
        train, held_out = sentences(topic, held_out=False), sentences(topic, held_out=True)
        assert len(set(train + held_out)) == 6 * 7 * 7
        assert not set(train) & set(held_out)
        assert len(held_out) / 294 == pytest.approx(0.2, abs=0.07)


def test_every_sentence_has_words_that_only_its_topic_has() -> None:
    words = {
        topic: {
            word for held_out in (False, True) for text in sentences(topic, held_out=held_out) for word in text.split()
        }
        for topic in GRAMMAR
    }
    for topic in GRAMMAR:
        own = words[topic] - {word for other in GRAMMAR if other != topic for word in words[other]}
        for held_out in (False, True):
            for text in sentences(topic, held_out=held_out):
                assert len(own & set(text.split())) >= 2, text


def test_evaluation_uses_all_the_words_of_training() -> None:
    for topic, (_, ones, others) in GRAMMAR.items():
        text = " ".join(sentences(topic, held_out=True))
        assert all(word in text for word in (*ones, *others))


# Lines and pages.


def test_a_line_is_parsed() -> None:
    assert (REQUESTS[0].user, REQUESTS[0].month) == ("111", "2024-01")
    assert (TURNS[3].speakers, TURNS[3].speech) == (["SAM", "LAURA"], " No! The dragon!")
    assert TURNS[7].speakers == ["CHRIS PERKINS"]
    assert TURNS[2].speech == " Roll again? The dragon rolls: twenty."
    assert Line("[1] ALL - SAM - MATT: Yes").speakers == ["ALL", "SAM", "MATT"]
    odd = Line("nothing of the kind")
    assert (odd.user, odd.month, odd.speakers, odd.speech) == ("", "", [], "")


def test_pages_are_named_by_their_lines() -> None:
    made = pages([f"line {number}" for number in range(1, 8)], 3)
    assert list(made) == ["lines 1-3", "lines 4-6", "lines 7-7"]
    assert made["lines 4-6"] == "line 4\nline 5\nline 6"


@given(st.integers(1, 40), st.integers(1, 12), st.integers(-2, 45), st.integers(-2, 45))
def test_any_range_of_lines_can_be_read_across_pages(number: int, size: int, first: int, last: int) -> None:
    texts = [f"line {i}" for i in range(1, number + 1)]
    task = Task(question="", context=pages(texts, size))
    found = lines_in(task, first, last, [])
    if 1 <= first <= last <= number:
        assert found == [Line(text) for text in texts[first - 1 : last]]
    else:
        assert found is None


def test_ranges_in_a_goal() -> None:
    assert find_spans("Count (lines 51-100)") == [(51, 100)]
    assert find_spans("Lines 1 to 50, lines 51–100; lines 1-50 again") == [(1, 50), (51, 100)]
    assert find_spans("all 200 lines") == []
    task = known()
    assert named_lines(task, "lines 1-10 and lines 5-12") is None  # overlapping lines
    assert named_lines(task, "lines 1-1000000") is None
    assert named_lines(task, "lines 9-3") is None
    assert len(named_lines(task, "lines 1-3 and lines 11-12") or []) == 5


# Questions, with answers counted by hand.


@pytest.mark.parametrize(
    ("question", "right"),
    [
        ("How many requests belong to the topic 'music'?", ["3"]),
        ("In the given lines, how many requests belong to the topic 'pets'?", ["1"]),
        ("How many of the requests by user 111 belong to the topic 'music'?", ["2"]),
        ("How many requests by user 333 belong to the topic 'music'?", ["0"]),
        ("How many requests dated in month 02 of 2024 belong to the topic 'music'?", ["2"]),
        ("How many requests dated in month 02 of 2023 belong to the topic 'music'?", ["0"]),
        ("How many requests dated in month 02 of 2024?", ["3"]),
        ("How many requests by user 111?", ["3"]),
        ("How many requests by user 222 dated in month 01 of 2024 belong to the topic 'cooking'?", ["1"]),
        ("Which topic is the most common?", ["music"]),
        ("Which topic is the least common?", ["pets"]),
        (
            "Is the topic 'music' more common than, less common than, or of the same frequency as 'pets'?",
            ["more common than"],
        ),
        (
            "Is the topic 'pets' more common than, less common than, or of the same frequency as 'music'?",
            ["less common than"],
        ),
        (
            "Is the topic 'pets' more common than, less common than, or of the same frequency as 'pets'?",
            ["same frequency as"],
        ),
        ("Which user has the most requests of the topic 'music'?", ["111"]),
        ("Which user has the most requests of the topic 'cooking'?", ["111", "222"]),  # a tie
        ("Which of the users 111 and 222 has more requests of the topic 'music'?", ["111"]),
        ("Which of the users 222 and 333 has more requests of the topic 'music'?", ["222"]),
        ("Which users have requests of the topic 'music'?", ["111", "222"]),
        ("Which users have requests dated in month 02 of 2024 of the topic 'cooking'?", []),
        ("How many requests belong to each topic?", ["cooking: 2", "music: 3", "pets: 1"]),
        ("How many requests of the topic 'music' does each user have?", ["111: 2", "222: 1"]),
    ],
)
def test_questions_about_requests(question: str, right: list[str]) -> None:
    assert answers(question) == right


@pytest.mark.parametrize(
    ("question", "right"),
    [
        ("How many turns carry SAM in their speaker label?", ["3"]),
        ("How many turns carry CHRIS PERKINS in their speaker label?", ["1"]),
        ("How many turns with SAM in the speaker label contain a question mark?", ["2"]),
        (
            "In how many turns does the exact word 'dragon' occur at least once in what is said "
            "(any case, whole words only, not counting the speaker label)?",
            ["3"],  # not the dragons of turn 5
        ),
        (
            "In the given lines, in how many turns does the exact word 'roll' occur at least once in what is said?",
            ["3"],
        ),
        ("Which speaker name is in the most speaker labels?", ["MATT"]),
        ("Leaving MATT aside, which speaker name is in the most speaker labels?", ["SAM"]),
        ("Does SAM have more turns than, fewer turns than, or as many turns as MATT?", ["fewer turns than"]),
        ("Does LAURA have more turns than, fewer turns than, or as many turns as CHRIS PERKINS?", ["as many turns as"]),
        ("How many turns labelled MATT alone come directly after a turn labelled SAM alone?", ["2"]),
        (
            "How many turns carry each name in their speaker label?",
            ["CHRIS PERKINS: 1", "LAURA: 1", "MATT: 4", "SAM: 3"],
        ),
        (
            "How many turns labelled MATT alone come directly after a turn labelled SAM alone, "
            "is the first turn labelled MATT alone, and is the last turn labelled SAM alone?",
            ["2, yes, no"],
        ),
    ],
)
def test_questions_about_turns(question: str, right: list[str]) -> None:
    assert answers(question, TURNS) == right


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Count the lines",
        "How many?",
        "How many requests of topic music?",
        "How many requests belong to the topic 'music' or to the topic 'pets'?",
        "How many requests belong to the topic 'music' on a Sunday?",
        "How many turns carry both MATT and SAM in their speaker label?",
        "Which topic is the second most common?",
        "Which topic is the most common? Which topic is the least common?",  # two questions
        "Is it raining?",
        "?" * 10**6,
        "How many requests " * 10**5 + "?",
    ],
)
def test_an_unknown_question_is_not_guessed(text: str) -> None:
    assert read_query(text) is None


ADDITIVE = [
    "How many requests belong to the topic 'music'",
    "How many requests by user 111 dated in month 02 of 2024 belong to the topic 'music'",
    "Which users have requests of the topic 'music'",
    "How many requests belong to each topic",
    "How many requests of the topic 'cooking' does each user have",
]
OVER_TURNS = [
    "How many turns carry SAM in their speaker label",
    "How many turns labelled MATT alone come directly after a turn labelled SAM alone",
    "How many turns carry each name in their speaker label",
]


@given(st.data())
def test_the_parts_of_any_split_add_up_to_the_whole(data: st.DataObject) -> None:
    about_turns = data.draw(st.booleans())
    lines = data.draw(st.lists(st.sampled_from(TURNS if about_turns else REQUESTS), min_size=1, max_size=20))
    query = read_query(f"{data.draw(st.sampled_from(OVER_TURNS if about_turns else ADDITIVE))}?")
    assert query is not None
    edges = sorted(data.draw(st.sets(st.integers(1, max(1, len(lines) - 1)), max_size=4)) - {len(lines)})
    chunks = [lines[a:b] for a, b in zip([0, *edges], [*edges, len(lines)], strict=True)]
    said = [say(query.part, count(query.part, chunk)) for chunk in chunks]
    total = add(query.part, [hear(query.part, text) for text in said])
    assert decide(query, total, TOPICS) == decide(query, count(query.part, lines), TOPICS)


@pytest.mark.parametrize("question", [*QUESTIONS.values()])
def test_every_question_and_its_part_can_be_parsed(question: str) -> None:
    asked = question.format(topic="music", other="pets", user="111", second="222", month="02", year="2024")
    query = read_query(f"{asked}?")
    assert query is not None
    assert query.text[1:] == asked[1:]
    part = read_query(f"In the given lines, {query.part.text}? (lines 1-6)")
    assert part == query.part
    assert part.part == part


def test_a_question_needs_known_topics() -> None:
    music = Query("count", ("", "", "", "music"))
    assert music.fits(TOPICS)
    assert not music.fits(["pets"])
    assert not music.fits([])
    assert Query("turns", ("SAM",)).fits([])
    assert Query("count", ("111", "", "", "")).fits([])
    assert not Query("most").fits([])


# Grades.


@pytest.mark.parametrize(
    ("kind", "accepted", "answer", "right"),
    [
        ("number", ["7"], "7", 1.0),
        ("number", ["7"], "There are 9.", 0.5625),  # 0.75 squared
        ("number", ["7"], "6", 0.75),
        ("number", ["7"], "7 of 10", 0.75**3),  # the last number counts
        ("number", ["1234"], "1,234", 1.0),
        ("number", ["7"], "seven", 0.0),
        ("number", ["7"], "", 0.0),
        ("number", ["7"], "9" * 10**6, 0.0),
        ("number", ["7"], "9" * 20, 0.0),
        ("number", ["7"], None, 0.0),
        ("label", ["kitchen and dining"], " Kitchen and Dining. ", 1.0),
        ("label", ["kitchen and dining"], "'kitchen and dining'", 1.0),
        ("label", ["kitchen and dining"], "kitchen", 0.0),
        ("label", ["travel"], "the topic is travel", 0.0),
        ("label", ["111", "222"], "222", 1.0),
        ("label", ["more common than"], "more common than", 1.0),
        ("label", ["same frequency as"], "Of the same frequency as.", 1.0),  # as in the question
        ("label", ["same frequency as"], "the same frequency as", 1.0),
        ("label", ["of the same frequency as"], "same frequency as", 1.0),
        ("label", ["same frequency as"], "the same frequency", 1.0),
        ("label", ["more common than"], "More common.", 1.0),
        ("label", ["fewer turns than"], "fewer turns", 1.0),
        ("label", ["more common than"], "less common", 0.0),
        ("label", ["same frequency as"], "not of the same frequency as", 0.0),
        ("label", ["more common than"], "of the same frequency as", 0.0),
        ("label", ["2, yes, no"], "2, yes, no", 1.0),
        ("label", ["2, yes, no"], "2, no, no", 0.0),
        ("label", ["travel"], None, 0.0),
        ("list", ["111", "222"], "222, 111", 1.0),
        ("list", ["111", "222"], "111 and 222", 1.0),
        ("list", ["111", "222"], "[111; 222]", 1.0),
        ("list", ["111", "222"], "111\n222", 1.0),
        ("list", ["111", "222"], "- 111\n- 222", 1.0),
        ("list", ["111", "222"], "1. 111\n2. 222", 1.0),
        ("list", ["111", "222"], "111, and 222", 1.0),
        ("list", ["111", "222"], "222", 2 / 3),
        ("list", ["111", "222"], "111, 222, 333", 4 / 5),
        ("list", ["111", "222"], "none", 0.0),
        ("list", ["111", "222"], "111, 111, 111", 2 / 3),  # repeats count once
        ("list", ["kitchen and dining: 3", "travel: 1"], "Travel: 1, Kitchen and dining: 3", 1.0),
        ("list", ["kitchen and dining: 3", "travel: 1"], "kitchen and dining: 3, travel: 2", 1 / 2),
        ("list", ["kitchen and dining: 3", "travel: 1"], "- **Kitchen and dining**: 3\n- **Travel**:1", 1.0),
        ("list", ["kitchen and dining: 3", "travel: 1"], "travel: 1 and kitchen and dining: 3", 1.0),
        ("list", ["kitchen and dining: 3", "travel: 1"], "{'travel': 1, 'kitchen and dining': 3}", 1.0),
        ("list", ["travel: 1"], "banking: 0, travel: 1", 1.0),  # zero counts are ignored
        ("list", [], "none", 1.0),
        ("list", [], "111", 0.0),
        ("list", [], "", 0.0),
        ("list", [], None, 0.0),
    ],
)
def test_grades_computed_by_hand(kind: Any, accepted: list[str], answer: str | None, right: float) -> None:
    assert grade(kind, accepted, answer) == pytest.approx(right)


# Verdicts.


def test_a_clone_is_graded_by_the_lines_its_goal_names() -> None:
    task = known()
    topics = labels_of(task)
    cooking = topics[10:20].count("cooking")
    asked = "In the given lines, how many requests belong to the topic 'cooking'? (lines 11-20)"
    assert score(asked, str(cooking)) == 1.0
    assert score(asked, f"I count {cooking + 1}") == 0.75
    assert score(asked, None) == 0.0
    # Lines may be parts of pages, in several ranges.
    few = topics[2:5].count("cooking") + topics[13:17].count("cooking")
    assert score("How many requests belong to the topic 'cooking'? (lines 3-5 and lines 14-17)", str(few)) == 1.0
    tally = Counter(topics[10:20])
    said = ", ".join(f"{topic}: {number}" for topic, number in tally.items())
    assert score("How many requests belong to each topic? (lines 11-20)", said) == 1.0
    assert score("How many requests belong to each topic? (lines 11-20)", "cooking: 99") == 0.0


@pytest.mark.parametrize(
    "goal",
    [
        "Count them.",
        "How many requests belong to the topic 'cooking'?",  # which lines
        "How many requests belong to the topic 'astronomy'? (lines 1-10)",
        "How many requests belong to the topic 'cooking'? (lines 1-999)",
        "How many of them are funny? (lines 1-10)",
    ],
)
def test_a_goal_that_cannot_be_checked_has_no_verdict(goal: str) -> None:
    assert score(goal, "3") is None


def test_any_right_answer_of_a_tie_counts() -> None:
    task = Task(
        question="",
        context=pages([line.text for line in REQUESTS], 10),
        reference={"kind": "number", "answer": "1", "topics": TOPICS, "labels": [1, 0, 1, 2, 1, 0]},
    )
    asked = "Which topic is the most common? (lines 1-2)"
    assert score(asked, "music", task) == 1.0
    assert score(asked, "cooking", task) == 1.0
    assert score(asked, "pets", task) == 0.0
    assert score("Which user has the most requests of the topic 'pets'? (lines 1-2)", "none", task) == 1.0


def test_the_root_is_graded_by_its_answer() -> None:
    for index in range(20):
        task = SMALL.task("eval", index)
        kind, accepted = truth(task)
        right = SMALL.verdict(task, SMALL.world(task), node("", ", ".join(accepted) or "none", parent=None))
        silent = SMALL.verdict(task, SMALL.world(task), node("", None, parent=None))
        assert right is not None
        assert silent is not None
        assert (right.score, right.how, silent.score) == (1.0, "exact", 0.0), kind


# The generator.


def test_tasks_have_the_requested_size_and_every_kind_of_question_occurs() -> None:
    kinds: Counter[str] = Counter()
    sizes: list[int] = []
    for index in range(300):
        task = AGGREGATE.task("train", index)
        query = read_query(task.question)
        assert query is not None
        month_or_user = "month" if query.names[1:2] > ("",) else "user" if query.names[:1] > ("",) else "count"
        kinds[month_or_user if query.kind == "count" else query.kind] += 1
        sizes.append(len(labels_of(task)))
        assert f"lists {sizes[-1]} user requests" in task.question
        assert all(text.count("\n") == 49 for text in list(task.context.values())[:-1])
    assert set(kinds) == set(QUESTIONS)
    assert min(kinds.values()) > 15
    assert min(sizes) >= 100
    assert max(sizes) <= 400
    assert sum(sizes) / 300 == pytest.approx(250, abs=20)


@pytest.mark.parametrize("split", ["train", "eval", "long"])
def test_every_line_is_a_sentence_of_its_topic_and_split(split: str) -> None:
    task = AGGREGATE.task(split, 0)
    lines = "\n".join(task.context.values()).split("\n")
    assert len(lines) == len(labels_of(task)) == (2000 if split == "long" else len(lines))
    for line, topic in zip(lines, labels_of(task), strict=True):
        head, _, sentence = line.partition(" || Instance: ")
        assert re.fullmatch(r"Date: 2024-(0[1-9]|1[0-2])-([01]\d|2[0-8]) \|\| User: \d{5}", head)
        assert sentence in sentences(topic, held_out=split != "train")


def test_no_sentence_of_evaluation_is_in_training() -> None:
    def said(split: str) -> set[str]:
        tasks = [AGGREGATE.task(split, index) for index in range(10)]
        lines = [line for task in tasks for text in task.context.values() for line in text.split("\n")]
        return {line.rpartition(" || Instance: ")[2] for line in lines}

    assert not said("train") & (said("eval") | said("long"))
    assert len(said("train")) > 500


def test_the_answer_follows_from_the_lines() -> None:
    for index in range(60):
        task = SMALL.task("train", index)
        query = read_query(task.question)
        assert query is not None
        lines = lines_in(task, 1, len(labels_of(task)), labels_of(task))
        assert lines is not None
        held = task.reference
        assert isinstance(held, dict)
        accepted = decide(query, count(query.part, lines), held["topics"])
        assert truth(task) == (query.answers_with, accepted)
        assert len(accepted) == 1 or query.answers_with == "list"


def test_tasks_are_the_same_on_every_machine() -> None:
    digests = {
        split: hashlib.sha256(
            repr(
                [
                    (task.question, task.reference, list(task.context.items()))
                    for task in (AGGREGATE.task(split, index) for index in range(50 if split != "long" else 5))
                ]
            ).encode()
        ).hexdigest()[:16]
        for split in ("train", "eval", "long")
    }
    assert digests == {"train": "a663eed3d10e5d21", "eval": "1f97da907619bc3a", "long": "879850533d4a881e"}


def test_a_task_can_have_a_single_line() -> None:
    tiny = Aggregate(lines=1, long_lines=2, topics=2, users=1, page=1)
    for index in range(20):
        assert len(tiny.task("train", index).context) == 1
        assert len(tiny.task("long", index).context) == 2


def test_lines_per_page_can_be_a_range_which_changes_nothing_but_the_pages() -> None:
    taskset = Aggregate(lines=(20, 60), page=(5, 10))
    tasks = [taskset.task("train", index) for index in range(40)]
    found = {next(iter(task.context.values())).count("\n") + 1 for task in tasks}
    assert found == {5, 6, 7, 8, 9, 10}
    for index, task in enumerate(tasks):
        other = Aggregate(lines=(20, 60), page=7).task("train", index)
        assert "\n".join(task.context.values()) == "\n".join(other.context.values())
        assert (task.question, task.reference) == (other.question, other.reference)


def test_kinds_can_be_chosen() -> None:
    only = Aggregate(lines=(20, 30), kinds=["most", "least"])
    asked = {read_query(only.task("train", index).question) for index in range(30)}
    assert {query.kind for query in asked if query is not None} == {"most", "least"}
    assert read_query(Aggregate(lines=20, kinds="users").task("train", 0).question) is not None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lines": (0, 5)}, "lines must be a range from 1 up"),
        ({"lines": (9, 5)}, "lines must be a range from 1 up, the smaller first"),
        ({"topics": (1, 3)}, "topics must be a range from 2 up"),
        ({"topics": (3, 9)}, "topics must be at most 8"),
        ({"page": 0}, "page must be a range from 1 up"),
        ({"kinds": []}, "kinds must be some of count, user"),
        ({"kinds": ["median"]}, "kinds must be some of count, user"),
        ({"users": "few"}, "users must be a whole number or a range"),
        ({"wording": "breif"}, "no wording 'breif'.*brief"),
        ({"working": "line"}, "no working 'line'.*lines"),
        ({"clone_lines": 0}, "clone_lines is a whole number, 1 or more; got 0"),
        ({"wording": "brief", "kinds": ["users"]}, "kinds with brief wording must be some of count, most"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_taskset("aggregate", **options)


def test_options_that_leave_no_task_are_an_error() -> None:
    with pytest.raises(ConfigError, match="leave no question with one answer for train"):
        Aggregate(lines=1, users=1, kinds="more_user").task("train", 0)


# The oracle.


def shown(taskset: Aggregate, task: Task, *, dialect: str = "tools", delegate: bool = True, seed: int = 0) -> Tree:
    return anyio.run(functools.partial(demonstrate, taskset, task, dialect=dialect, delegate=delegate, seed=seed))


@pytest.mark.parametrize("split", ["train", "eval", "long"])
def test_the_oracle_is_right_alone_and_delegating_in_every_dialect(split: str) -> None:
    report = anyio.run(functools.partial(validate, AGGREGATE, split, num_tasks=5))
    assert report.faults == []
    assert report.delegating == 15


@pytest.mark.parametrize("kind", list(QUESTIONS))
def test_the_oracle_is_right_on_every_kind_of_question(kind: str) -> None:
    small = Aggregate(lines=(8, 40), page=5, kinds=[kind])
    report = anyio.run(functools.partial(validate, small, "train", num_tasks=3, seed=1))
    assert report.faults == []
    assert report.delegating == 9


@pytest.mark.parametrize("dialect", ["tools", "python"])
def test_two_hundred_thousand_tokens_are_counted_by_many_clones(dialect: str) -> None:
    huge = Aggregate(lines=9000, kinds=["most"])
    task = huge.task("eval", 0)
    assert sum(len(WORD.findall(text)) for text in task.context.values()) >= 200_000
    tree = shown(huge, task, dialect=dialect)
    assert len(tree.nodes) > 50
    assert {one.verdict and one.verdict.score for one in tree.nodes} == {1.0}
    # No window was near the size of the whole text.
    assert tree.usage.peak_window < 20_000


def test_every_line_is_counted_once_by_the_clones_of_a_node() -> None:
    sizes: set[int] = set()
    depths: set[int] = set()
    for index in range(12):
        task = AGGREGATE.task("train", index)
        tree = shown(AGGREGATE, task)
        depths.add(tree.depth)
        for one in tree.nodes:
            parts = [find_spans(child.goal)[0] for child in tree.children(one.index)]
            if parts:
                whole = (1, len(labels_of(task))) if one.parent is None else find_spans(one.goal)[0]
                covered = [number for a, b in parts for number in range(a, b + 1)]
                assert covered == list(range(whole[0], whole[1] + 1))
                sizes |= {b - a + 1 for a, b in parts}
    assert {50, 100, 150, 200} <= sizes
    assert depths == {1, 2}


def test_the_splits_of_the_oracle_vary_with_its_seed() -> None:
    task = AGGREGATE.task("train", 1)
    goals = {tuple(one.goal for one in shown(AGGREGATE, task, seed=seed).nodes) for seed in range(6)}
    assert len(goals) > 1


def test_a_node_sees_the_pages_it_was_given_and_no_labels() -> None:
    task = AGGREGATE.task("train", 0)
    first = task.context["lines 1-50"].split("\n")[0]
    for dialect in ("tools", "python"):
        for delegate in (False, True):
            tree = shown(AGGREGATE, task, dialect=dialect, delegate=delegate)
            opening = tree.root.pieces[0].text
            assert "lines 1-50" in opening
            assert first not in opening  # the root sees keys only; in python the text is a variable
            for one in tree.nodes:
                given_to = one.pieces[0].text
                assert "labels" not in given_to
                assert "reference" not in given_to
                if one.parent is not None and dialect == "tools":
                    a, b = find_spans(one.goal)[0]
                    texts = "\n".join(task.context.values()).split("\n")
                    assert all(text in given_to for text in texts[a - 1 : b])
                    assert given_to.count(" || Instance: ") == b - a + 1


def test_the_right_solution_scores_one_and_a_wrong_one_less() -> None:
    for index in range(60):
        right, wrong = SMALL.self_check(SMALL.task("train", index))
        assert right == 1.0
        assert wrong < 1.0


# Brief wording, and counting line by line.

BRIEF = Aggregate(lines=(7, 24), page=6, topics=(2, 4), wording="brief", working="lines", clone_lines=6)


def test_brief_lines_are_a_number_and_a_request() -> None:
    task = BRIEF.task("eval", 0)
    topics, number = labels_of(task), 0
    for text in task.context.values():
        for place, line in enumerate(text.split("\n"), start=1):
            head, _, sentence = line.partition(" ")
            assert head == str(place)
            assert sentence in sentences(topics[number], held_out=True)
            number += 1
    assert number == len(topics)


def test_brief_questions_list_the_topics_only_if_they_name_none() -> None:
    asked: dict[str, str] = {}
    for index in range(40):
        task = BRIEF.task("train", index)
        query = read_query(task.question)
        assert query is not None
        asked[query.kind] = task.question
    assert set(asked) == set(BRIEF_KINDS)
    assert [kind for kind, text in sorted(asked.items()) if "The topics are '" in text] == ["least", "most"]


@pytest.mark.parametrize("kind", BRIEF_KINDS)
def test_the_oracle_counts_line_by_line_on_every_brief_kind(kind: str) -> None:
    brief = Aggregate(lines=(7, 24), page=6, kinds=kind, wording="brief", working="lines", clone_lines=6)
    report = anyio.run(functools.partial(validate, brief, "train", num_tasks=3, seed=1))
    assert report.faults == []
    assert report.delegating == 9


def test_each_page_goes_to_one_clone_and_the_sum_is_written_out() -> None:
    brief = Aggregate(lines=(18, 18), page=6, topics=3, kinds="count", wording="brief", working="lines", clone_lines=6)
    task = brief.task("train", 0)
    tree = shown(brief, task)
    assert [list(one.texts) for one in tree.nodes[1:]] == [["lines 1-6"], ["lines 7-12"], ["lines 13-18"]]
    first, second, third = (int(one.answer or "") for one in tree.nodes[1:])
    added = f"{first} + {second} = {first + second}, {first + second} + {third} = {first + second + third}"
    assert tree.root.pieces[-1].text == f"{added}\nAnswer: {first + second + third}"
    query = read_query(task.question)
    assert query is not None
    # A clone writes the topic, six lines and its answer, which is the last count.
    begun, *written = tree.nodes[1].pieces[-1].text.split("\n")
    assert begun == f"{query.topics[0]} 0"
    topics, so_far = labels_of(task)[:6], 0
    for number, (line, topic) in enumerate(zip(written, topics, strict=False), start=1):
        so_far += topic == query.topics[0]
        assert line == (f"{number} {topic} {so_far}" if topic == query.topics[0] else f"{number} {topic}")
    assert written[6:] == [f"Answer: {so_far}"]


def test_a_node_that_was_given_the_beginning_of_its_pages_counts_that_and_scales_it_up() -> None:
    brief = Aggregate(lines=60, page=20, topics=2, kinds="count", wording="brief", working="lines")
    task = brief.task("train", 0)
    budget = Budget(tokens=2000, nodes=1, depth=0, window=700, reserve=40)
    tree = anyio.run(functools.partial(demonstrate, brief, task, delegate=False, budget=budget))
    opening = tree.root.pieces[0].text
    given = shown_lines(opening[: opening.rindex("bytes in all)") + len("bytes in all)")])
    assert list(given) == list(task.context)
    assert 0 < sum(given.values()) < 60
    query, topics = read_query(task.question), labels_of(task)
    assert query is not None
    seen = [
        topics[start + place]
        for start, number in zip((0, 20, 40), given.values(), strict=True)
        for place in range(number)
    ]
    found = seen.count(query.topics[0])
    expected = (2 * found * 60 + len(seen)) // (2 * len(seen))
    assert tree.root.pieces[-1].text.endswith(
        f"{found} in {len(seen)} of 60 lines: {found} * 60 / {len(seen)} = {expected}\nAnswer: {expected}"
    )


def test_a_page_that_was_cut_shows_its_whole_lines_only() -> None:
    opening = "Count.\n\n[lines 1-2]\n1 a\n2 b\n\n[lines 3-5]\n1 c\n2 d … (1,011 bytes in all)\n\nYou have 9 tokens."
    assert shown_lines(opening) == {"lines 3-5": 1}
    assert shown_lines("[lines 1-2]\n1 … (40 bytes in all)") == {"lines 1-2": 0}
    assert shown_lines("Context keys:\n- lines 1-2") == {}


def test_tallies_and_sums_worked_out_by_hand() -> None:
    total: Counter[str] = Counter()
    music = Query("count", ("", "", "", "music"))
    written = tally(music, list(enumerate(REQUESTS, start=1)), total)
    assert written == ["1 music 1", "2 cooking", "3 music 2", "4 pets", "5 music 3", "6 cooking"]
    assert total == Counter({"": 3})
    assert tally(Query("each_topic"), [(7, REQUESTS[1]), (8, REQUESTS[5])], Counter()) == ["7 cooking 1", "8 cooking 2"]
    assert tally(Query("turns", ("SAM",)), [(1, TURNS[0]), (2, TURNS[1])], Counter()) == ["1 no", "2 yes 1"]
    assert sums([Counter({"": 3}), Counter({"": 0}), Counter({"": 8})]) == ["3 + 0 = 3, 3 + 8 = 11"]
    assert sums([Counter(a=1), Counter(a=2, b=1)]) == ["a: 1 + 2 = 3", "b: 0 + 1 = 1"]
    assert scale_up(Counter({"": 5}), seen=4, lines=10) == ("5 in 4 of 10 lines: 5 * 10 / 4 = 13", Counter({"": 13}))


# Data files.


def clinc_row(question: str, answer: str, answer_type: str, **meta: Any) -> dict[str, Any]:
    about = (
        "The context lists 6 user requests, one per line, each belonging to exactly one of these topics: "
        "'cooking and dining', 'music', 'pets'. The topic is not shown and must be judged from the request itself."
    )
    labels = {"labels": ["cooking_and_dining", "music", "pets"], "item_labels": [1, 0, 1, 2, 1, 0]}
    text = "\n".join(line.text for line in REQUESTS)
    return {
        "id": "clinc_aggregate-eval-0",
        "question": f"{about} {question}",
        "answer": answer,
        "context": [{"title": "requests", "text": text, "supporting": True}],
        "meta": {"dataset": "clinc_aggregate", "task": "x", "answer_type": answer_type, "items": 6} | labels | meta,
    }


def crd3_row(question: str, answer: str, answer_type: str) -> dict[str, Any]:
    about = "The context is an excerpt of 8 numbered turns from a role-playing game transcript."
    return {
        "question": f"{about} {question}",
        "answer": answer,
        "context": [{"title": "C1E001 turns 1-8", "text": "\n".join(line.text for line in TURNS), "supporting": True}],
        "meta": {"dataset": "crd3_counts", "task": "x", "answer_type": answer_type, "turns": 8},
    }


def write(folder: Path, name: str, rows: Sequence[Any]) -> Path:
    with gzip.open(folder / f"{name}.jsonl.gz", "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    return folder


def test_rows_of_requests_become_tasks_that_the_oracle_solves(tmp_path: Path) -> None:
    rows = [
        clinc_row("How many requests belong to the topic 'cooking and dining'? Answer with one number.", "2", "number"),
        clinc_row("Which topic is the most common? Answer with the topic name.", "music", "label"),
        clinc_row("Which user has the most requests of the topic 'music'? Answer with the user id.", "111", "user"),
        clinc_row(
            "Is the topic 'pets' more common than, less common than, or of the same frequency as 'music'? "
            "Answer with one of: more common than, less common than, same frequency as.",
            "less common than",
            "comparison",
        ),
    ]
    taskset = Aggregate(page=2, data=write(tmp_path, "clinc_aggregate_eval", rows))
    assert taskset.size("clinc_eval") == 4
    task = taskset.task("clinc_eval", 0)
    assert list(task.context) == ["lines 1-2", "lines 3-4", "lines 5-6"]
    assert task.question == rows[0]["question"]
    assert isinstance(taskset.oracle(task, delegate=True, seed=0), Counting)
    report = anyio.run(functools.partial(validate, taskset, "clinc_eval"))
    assert (report.tasks, report.faults, report.delegating) == (4, [], 12)
    tree = shown(taskset, task)
    assert {one.verdict and one.verdict.how for one in tree.nodes} == {"exact"}
    assert "supporting" not in tree.root.pieces[0].text


def test_rows_of_turns_become_tasks_that_the_oracle_solves(tmp_path: Path) -> None:
    rows = [
        crd3_row("How many turns carry SAM in their speaker label? Answer with one number.", "3", "number"),
        crd3_row("Leaving MATT aside, which speaker name is in the most speaker labels?", "SAM", "label"),
        crd3_row("How many turns labelled MATT alone come directly after a turn labelled SAM alone?", "2", "number"),
        crd3_row("How many turns with SAM in the speaker label contain a question mark?", "2", "number"),
        crd3_row(
            "Does SAM have more turns than, fewer turns than, or as many turns as MATT?",
            "fewer turns than",
            "comparison",
        ),
    ]
    taskset = Aggregate(page=2, data=write(tmp_path, "crd3_counts_train", rows))
    report = anyio.run(functools.partial(validate, taskset, "crd3_train"))
    assert (report.tasks, report.faults, report.delegating) == (5, [], 15)
    tree = shown(taskset, taskset.task("crd3_train", 2))
    assert {one.verdict and one.verdict.how for one in tree.nodes} == {"exact"}


def test_without_labels_only_the_root_can_be_graded(tmp_path: Path) -> None:
    rows = [
        clinc_row("Which topic is the most common?", "music", "label", labels=None, item_labels=None),
        clinc_row("Which topic is the strangest?", "pets", "label"),
        clinc_row("Which topic is the most common?", "pets", "label"),  # contradicts its lines
    ]
    taskset = Aggregate(data=write(tmp_path, "clinc_aggregate_train", rows))
    for index in range(3):
        assert isinstance(taskset.oracle(taskset.task("clinc_train", index), delegate=True, seed=0), Direct)
    unlabelled = taskset.task("clinc_train", 0)
    assert score("Which topic is the most common? (lines 1-2)", "music", unlabelled) is None
    assert score("How many requests by user 111? (lines 1-6)", "3", unlabelled) == 1.0  # needs no label
    report = anyio.run(functools.partial(validate, taskset, "clinc_train"))
    assert report.faults == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"answer": 7}, r"clinc_aggregate_train\.jsonl\.gz, line 2: field 'answer' is int; str is wanted"),
        ({"answer": "many"}, r"clinc_aggregate_train\.jsonl\.gz, row 2: field 'answer' must be a whole number"),
        ({"context": "text"}, r"line 2: field 'context' is str; list is wanted"),
        ({"context": [{"title": "x"}]}, r"line 2: entries of field 'context' must have a title and a text"),
        ({"meta": []}, r"line 2: field 'meta' is list; dict is wanted"),
        ({"meta": {"labels": ["a"], "item_labels": [0]}}, r"row 2: field 'meta\.item_labels' must have the index"),
        ({"meta": {"labels": ["a"], "item_labels": [0, 0, 0, 0, 0, 1]}}, r"row 2: field 'meta\.item_labels'"),
        ({"meta": {"labels": ["a"], "item_labels": ["a"] * 6}}, r"row 2: field 'meta\.item_labels'"),
    ],
)
def test_a_bad_row_names_file_line_and_field(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    good = clinc_row("How many requests belong to the topic 'pets'?", "1", "number")
    taskset = Aggregate(data=write(tmp_path, "clinc_aggregate_train", [good, good | change]))
    with pytest.raises(ConfigError, match=message):
        taskset.task("clinc_train", 1)


def test_without_data_the_generator_works_and_data_splits_name_what_is_missing() -> None:
    with pytest.raises(ConfigError, match="aggregate reads crd3_counts_eval from a data folder: give --data PATH"):
        AGGREGATE.task("crd3_eval", 0)
    with pytest.raises(ConfigError, match="aggregate reads clinc_aggregate_train from a data folder"):
        AGGREGATE.size("clinc_train")


@pytest.mark.parametrize(
    "opening",
    [
        "Count.\n\n[lines 1-3]\none\n\nthree\n\n[lines 4-6]\nfour\n\nsi … (10 bytes in all)\n\nYou have 7 tokens.",
        "Count.\n@lines 1-3\none\n\nthree\n@lines 4-6\nfour\n\nsi … (10 bytes in all)\n\n#7",
    ],
    ids=["tools", "terse"],
)
def test_lines_of_a_page_that_was_cut_are_counted_with_empty_ones(opening: str) -> None:
    assert shown_lines(opening) == {"lines 4-6": 2}
