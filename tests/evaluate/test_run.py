"""An evaluation from Python: its records, what they depend on, and how it resumes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

import ramet
from ramet.errors import ConfigError, EngineError, Lasting
from ramet.evaluate import Evaluation, Record, evaluate, read_records
from ramet.evaluate.costs import tree_costs
from ramet.evaluate.journal import FILE, Journal, write_records
from ramet.evaluate.run import missing_jobs, plan_jobs
from ramet.evaluate.settings import EvaluateConfig
from ramet.store import RunDir, read_trees
from ramet.tasks.arithmetic import Arithmetic, Calculator
from ramet.tasks.judge import Judge
from ramet.tasks.oracle import script
from ramet.tasks.registry import load_taskset
from ramet.types import Completion, Prompt
from tests.conftest import in_virtual_time
from tests.evaluate.trees import answered, record

SPLIT = "arithmetic:eval"
EASY = {"operators": [1, 3], "digits": 1}


def solver(prompt: Prompt) -> str:
    """Solves every expression, by delegation if it may."""
    may = "delegate(" in prompt.messages[0].content
    return script(Calculator(delegate=may, dice_seed=("test",)), "tools")(prompt)


class Drawing(ramet.ScriptedEngine):
    """Answers with a number that depends on the seed, and records the seeds of every task."""

    def __init__(self) -> None:
        super().__init__(lambda prompt: f"Answer: {self.seed % 3}")
        self.seed = 0
        self.seeds: dict[str, list[int]] = {}

    async def sample(self, prompt: Prompt, *, seed: int | None = None, **more: Any) -> Completion:
        self.seed = seed or 0
        self.seeds.setdefault(prompt.goal, []).append(self.seed)
        return await super().sample(prompt, seed=seed, **more)


class Failing(ramet.ScriptedEngine):
    """An engine that fails after a number of calls."""

    def __init__(self, after: int) -> None:
        super().__init__(solver)
        self.after = after

    async def sample(self, prompt: Prompt, **more: Any) -> Completion:
        if len(self.prompts) >= self.after:
            raise EngineError("the server is gone")
        return await super().sample(prompt, **more)


def evaluated(*methods: str, engine: ramet.ScriptedEngine | None = None, **more: Any) -> Evaluation:
    """By default on expressions of one to three operators."""
    given: dict[str, Any] = {"budgets": [300], "n": 6, "taskset": EASY} | more
    given = {"methods": methods or ["single"], "engine": engine or ramet.ScriptedEngine(solver)} | given
    return anyio.run(partial(evaluate, [SPLIT], **given))


# What is recorded.


def test_every_item_of_every_cell_has_a_record_in_order() -> None:
    evaluation = evaluated("single", "vote@2", budgets=[200, 300], n=3)
    ids = [f"{SPLIT}/{i}" for i in range(3)]
    assert [(one.method, one.budget, one.task) for one in evaluation.records] == [
        (method, budget, task) for method in ("single", "vote@2") for budget in (200, 300) for task in ids
    ]
    assert all(one.score == 1.0 for one in evaluation.records)


def test_single_and_votes_never_delegate_and_clones_do() -> None:
    evaluation = evaluated(
        "single", "vote@3", "best@2", "clones", "clones/1", "clones/0", budgets=[2000], n=8, taskset={}
    )
    depths = {
        method: [one.depth for one in evaluation.records if one.method == method]
        for method in evaluation.config.methods
    }
    assert depths["single"] == depths["vote@3"] == depths["best@2"] == depths["clones/0"] == [0] * 8
    assert max(depths["clones"]) > 1
    assert max(depths["clones/1"]) == 1


def test_a_record_adds_up_all_trees_of_its_item_and_they_are_stored(tmp_path: Path) -> None:
    evaluation = evaluated("vote@3", "clones", into=tmp_path / "kept")
    run = RunDir.open(tmp_path / "kept")
    trees = {tree.id: tree for tree in read_trees(run)}
    assert len(trees) == 6 * 3 + 6
    for one in evaluation.records:
        costs = [tree_costs(trees[name]) for name in one.trees]
        assert one.generated == sum(cost.generated for cost in costs)
        assert one.critical_path == max(cost.critical_path for cost in costs)
        assert one.nodes == sum(cost.nodes for cost in costs)
        assert {trees[name].task.id for name in one.trees} == {one.task}
    assert "vote@3.300.arithmetic:eval/0.2" in trees
    assert sorted(read_records(run), key=repr) == sorted(evaluation.records, key=repr)


def test_without_budgets_every_task_has_the_one_it_declares() -> None:
    evaluation = evaluated("single", budgets=[], n=2)
    assert [one.budget for one in evaluation.records] == [None, None]
    assert "task's own" in evaluation.table()


def test_dollars_are_counted_by_a_price_table() -> None:
    evaluation = evaluated("single", n=2, budget={"prices": {"prompt": 1.0, "generated": 2.0}})
    for one in evaluation.records:
        assert one.dollars == pytest.approx((one.prompt + 2 * one.generated) / 1e6)


def test_records_hold_sizes_and_whether_they_are_beyond_training() -> None:
    evaluation = evaluated("single", n=20, trained="1:2")
    assert {(one.size, one.bucket, one.beyond) for one in evaluation.records} == {
        (1, "1", False),
        (2, "2", False),
        (3, "3", True),
    }


def test_the_table_has_cells_and_comparisons() -> None:
    lines = evaluated("single", "clones", budgets=[1000]).table().splitlines()
    assert lines[1].split()[:4] == ["method", "budget", "items", "accuracy"]
    assert lines[2].split()[:6] == ["single", "1,000", "6", "100%", "[61,", "100]"]
    assert any("clones − single" in line and "differ" in line for line in lines)


def test_a_taskset_object_can_be_evaluated_without_registration() -> None:
    class Mine(Arithmetic):
        name = "mine"

    own = Mine(operators=2, digits=1)
    evaluation = anyio.run(partial(evaluate, [(own, "eval"), SPLIT], engine=ramet.ScriptedEngine(solver), n=2))
    assert [one.task for one in evaluation.records[:4]] == ["mine:eval/0", "mine:eval/1", f"{SPLIT}/0", f"{SPLIT}/1"]
    assert [section.title for section in evaluation.sections()] == ["mine:eval", SPLIT]


# What the numbers of a cell depend on.


def seeds(*methods: str, budgets: Sequence[int] = (300,), n: int = 3, seed: int = 0) -> dict[str, list[int]]:
    engine = Drawing()
    evaluated(*methods, engine=engine, budgets=list(budgets), n=n, seed=seed)
    return engine.seeds


def test_a_cell_does_not_depend_on_what_else_is_evaluated() -> None:
    alone = evaluated("vote@3", engine=Drawing(), n=3)
    among = evaluated("single", "vote@3", "clones", engine=Drawing(), budgets=[200, 300], n=5)
    wanted = {one.task for one in alone.records}
    same = [one for one in among.records if (one.method, one.budget) == ("vote@3", 300) and one.task in wanted]
    assert [(one.task, one.answer, one.score, one.trees) for one in same] == [
        (one.task, one.answer, one.score, one.trees) for one in alone.records
    ]


def test_every_tree_has_its_own_seed() -> None:
    drawn = seeds("single", "vote@3", "best@2", budgets=[200, 300])
    every = [seed for drawn_seeds in drawn.values() for seed in drawn_seeds]
    assert len(every) == len(set(every)) == 3 * 2 * (1 + 3 + 2)
    other = [seed for drawn_seeds in seeds("single", seed=1).values() for seed in drawn_seeds]
    assert not set(every) & set(other)


def test_concurrency_does_not_change_the_records() -> None:
    one, many = (evaluated("vote@3", engine=Drawing(), concurrency=number) for number in (1, 64))
    assert [(r.task, r.answer) for r in one.records] == [(r.task, r.answer) for r in many.records]


def test_at_most_concurrency_trees_run_in_parallel() -> None:
    engine = ramet.ScriptedEngine(lambda prompt: ramet.Reply(text="Answer: 1", seconds=1.0))
    settings: dict[str, Any] = {"methods": ["vote@4"], "concurrency": 3, "n": 5}
    in_virtual_time(partial(evaluate, [SPLIT], engine=engine, **settings))
    assert engine.most_running == 3


# Resuming.


def test_items_finished_before_a_failure_are_kept_and_not_run_again(tmp_path: Path) -> None:
    whole = evaluated("single", "clones")
    run = tmp_path / "broken"
    engine = Failing(after=7)
    with pytest.raises(EngineError, match=r"the server is gone · finished items are kept in .*broken: run the same"):
        evaluated("single", "clones", engine=engine, into=run, concurrency=2)
    kept = read_records(run)
    assert 0 < len(kept) < 12
    engine.prompts.clear()
    engine.after = 10**9
    evaluation = evaluated("single", "clones", engine=engine, into=run, concurrency=2)
    done = {(one.method, one.task) for one in kept}
    assert len({prompt.node_id for prompt in engine.prompts if prompt.depth == 0}) == 12 - len(done)

    def facts(records: Sequence[Record]) -> list[tuple[Any, ...]]:
        return [(one.method, one.task, one.score, one.generated, one.trees) for one in records]

    assert facts(evaluation.records) == facts(whole.records)
    names = [tree.id for tree in read_trees(run)]
    assert sorted(names) == sorted(name for one in evaluation.records for name in one.trees)


class Refusing(ramet.ScriptedEngine):
    """An engine that refuses the goals of some tasks."""

    def __init__(self, *refused: str, lasting: Lasting | None = None) -> None:
        super().__init__(solver)
        self.refused, self.lasting = set(refused), lasting

    async def sample(self, prompt: Prompt, **more: Any) -> Completion:
        if prompt.goal in self.refused:
            raise EngineError("the content is filtered", lasting=self.lasting)
        return await super().sample(prompt, **more)


def questions(*places: int) -> list[str]:
    taskset = load_taskset("arithmetic", **EASY)
    return [taskset.task("eval", place).question for place in places]


def test_an_item_in_which_the_engine_fails_is_left_out_and_tried_again(tmp_path: Path) -> None:
    whole, run = evaluated("single", "vote@3"), tmp_path / "refused"
    engine = Refusing(*questions(2))
    evaluation = evaluated("single", "vote@3", engine=engine, into=run)
    assert [(one.method, one.task, one.error) for one in evaluation.failures] == [
        ("single", "arithmetic:eval/2", "the content is filtered"),
        ("vote@3", "arithmetic:eval/2", "the content is filtered"),
    ]
    assert len(evaluation.records) == len(whole.records) - 2
    assert all(one.task != "arithmetic:eval/2" for one in evaluation.records)
    assert [cell["items"] for cell in evaluation.facts()["sections"][0]["cells"]] == [5, 5]
    engine.prompts.clear()
    engine.refused.clear()
    again = evaluated("single", "vote@3", engine=engine, into=run)
    assert {prompt.goal for prompt in engine.prompts} == set(questions(2))
    assert (len(again.records), again.failures) == (len(whole.records), ())
    assert not (run / "failed.json").exists()


def test_items_that_failed_before_come_last(tmp_path: Path) -> None:
    engine = Refusing(*questions(0))
    evaluated("single", engine=engine, into=tmp_path / "run")
    config = EvaluateConfig(tasks=(SPLIT,), taskset=EASY, num_tasks=8, methods=("single",), budgets=(300,))
    missing = missing_jobs(plan_jobs(config), Journal(RunDir.open(tmp_path / "run")))
    assert [job.item.task.id for job in missing] == [f"{SPLIT}/{place}" for place in (6, 7, 0)]


@pytest.mark.parametrize(
    ("lasting", "asked"),
    [
        (None, 5),  # five in a row
        ("rejected", 1),
        ("unreachable", 1),
    ],
)
def test_an_evaluation_ends_early_where_the_rest_would_fail_too(
    tmp_path: Path, lasting: Lasting | None, asked: int
) -> None:
    engine = Refusing(*questions(*range(6)), lasting=lasting)
    expected = rf"arithmetic:eval/{asked - 1} \(single\): the content is filtered · finished"
    with pytest.raises(EngineError, match=expected):
        evaluated("single", engine=engine, into=tmp_path / "run", concurrency=1)


def test_an_evaluation_in_which_every_item_fails_is_an_error(tmp_path: Path) -> None:
    engine = Refusing(*questions(0, 1))
    with pytest.raises(EngineError, match=r"arithmetic:eval/0 \(single\): the content is filtered"):
        evaluated("single", engine=engine, into=tmp_path / "run", n=2)


def test_trees_without_records_are_overwritten(tmp_path: Path) -> None:
    """A process killed between the two files of a chunk leaves such trees."""
    run = RunDir.create(tmp_path, "torn")
    journal = Journal(run)
    journal.add(record("single", "a", 1.0, trees=("a",)), [answered("1", name="a")])
    journal.flush()
    run.write([answered("2", name="b")], name="chunk-000001")
    again = Journal(RunDir.open(run.path))
    assert [one.task for one in again.records] == ["a"]
    again.add(record("single", "c", 1.0, trees=("c",)), [answered("3", name="c")])
    again.flush()
    assert [tree.id for tree in read_trees(run)] == ["a", "c"]
    assert [one.task for one in read_records(run)] == ["a", "c"]


def test_records_are_read_as_they_were_written(tmp_path: Path) -> None:
    odd = record("best@3", "a\nb", 0.25, answer="caf\ud800é", budget=None, size=2.5, dollars=0.5, trees=("x", "y"))
    write_records(tmp_path / FILE, [odd, record("single", "b", 1.0, answer=None)])
    first, second = read_records(tmp_path)
    assert first.answer == "caf\N{REPLACEMENT CHARACTER}é"
    assert (first.budget, first.size, first.dollars, first.trees) == (None, 2.5, 0.5, ("x", "y"))
    assert second.answer is None


def test_the_error_for_a_broken_records_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"half")
    with pytest.raises(ramet.StoreError, match=r"cannot read .*records.parquet: .+\Z"):
        read_records(tmp_path)


def test_a_judge_grades_answers_that_the_taskset_cannot(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text('{"question": "Say something nice.", "answer": "anything nice"}\n')
    asked = {
        "taskset": {"file": str(file), "check": "judge"},
        "engine": ramet.ScriptedEngine(lambda prompt: "Answer: a"),
    }
    judge = Judge(ramet.ScriptedEngine(lambda prompt: '{"reason": "nice", "score": 0.5}'))
    evaluation = anyio.run(partial(evaluate, ["jsonl:all"], n=1, judge=judge, **asked))
    assert [one.score for one in evaluation.records] == [0.5, 0.5]
    with pytest.raises(ConfigError, match="needs a judge"):
        anyio.run(partial(evaluate, ["jsonl:all"], n=1, **asked))


# Errors.


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"budgets": [0]}, "from 1 up"),
        ({"budgets": [5, 5]}, "each once"),
        ({"n": 0}, "num_tasks is a whole number"),
        ({"concurrency": 0}, "concurrency is a whole number"),
        ({"temperature": -1.0}, "temperature is a number from 0 to 2"),
        ({"temperature": 9.0}, "temperature is a number from 0 to 2; got 9.0"),
        ({"methods": ["vote@3"], "temperature": 0.0}, "vote@3 needs a temperature above 0"),
        ({"trained": "3"}, "LEAST:MOST"),
        ({"trained": "5:3"}, "smaller size first"),
        ({"budget": {"tokens": 3}}, "give --budgets"),
        ({"budget": {"nods": 3}}, "did you mean budget.nodes"),
        ({"taskset": {"operatrs": 3}}, "did you mean operators"),
        ({"dialct": "tools"}, "did you mean dialect"),
        ({"dialect": "toolz"}, "unknown dialect"),
        ({"budget": {"window": 40}}, "arithmetic:eval/0: the task needs a window"),
    ],
)
def test_the_error_for_a_wrong_setting_is_one_line(more: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        evaluated("single", **more)
    assert "\n" not in str(caught.value)


def test_a_training_range_is_refused_if_the_taskset_has_no_sizes(tmp_path: Path) -> None:
    assert load_taskset("gym").name == "gym"
    with pytest.raises(ConfigError, match="gym:eval has no sizes"):
        anyio.run(partial(evaluate, ["gym:eval"], engine=ramet.ScriptedEngine(solver), trained="1:2"))
