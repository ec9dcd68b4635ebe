"""An environment of verifiers 0.1, with a data set and a rubric, as a taskset."""

from __future__ import annotations

import anyio
import pytest

import ramet
from ramet.tasks.registry import load_taskset
from ramet.tasks.validate import validate

pytestmark = pytest.mark.peers

ENVIRONMENT = """
import verifiers as vf
from datasets import Dataset

def load_environment(most: int = 5, broken: bool = False):
    rows = Dataset.from_list([{"question": f"What is {a} + {a}?", "answer": str(2 * a)} for a in range(most)])
    parser = vf.XMLParser(["think", "answer"], answer_field="answer")

    def right(completion, answer, **kwargs):
        if broken:
            raise RuntimeError("no rubric today")
        return 2.0 * float((parser.parse_answer(completion) or "") == answer)

    rubric = vf.Rubric(funcs=[right], parser=parser)
    return vf.SingleTurnEnv(dataset=rows, rubric=rubric, parser=parser, system_prompt="Write <answer>N</answer>.")
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("verifiers") / "my_sums.py"
    file.write_text(ENVIRONMENT, encoding="utf-8")
    return f"verifiers:{file}"


def verdict(taskset: ramet.Taskset, answer: str) -> ramet.Verdict:
    task = taskset.task("train", 1)
    node = ramet.Node(index=0, parent=None, depth=0, path=(), goal=task.question, grant=1, answer=answer)
    found = taskset.verdict(task, taskset.world(task), node)
    assert found is not None
    return found


def test_rows_are_tasks_and_the_rubric_gives_the_verdict(place: str) -> None:
    taskset = load_taskset(place, args={"most": 3}, max_score=2.0)
    assert (taskset.name, taskset.size("train")) == ("verifiers:my_sums.py", 3)
    assert taskset.task("train", 1).question == "Write <answer>N</answer>.\n\nWhat is 1 + 1?"
    assert [verdict(taskset, text).score for text in ("<answer>2</answer>", "2", "<answer>3</answer>")] == [
        1.0,
        0.0,
        0.0,
    ]
    assert anyio.run(lambda: validate(taskset, "train", num_tasks=1)).faults == []


def test_a_reward_above_the_largest_is_cut_to_one(place: str) -> None:
    assert verdict(load_taskset(place), "<answer>2</answer>").score == 1.0


def test_what_a_reward_function_raises_is_the_reason_of_a_failed_verdict(place: str) -> None:
    found = verdict(load_taskset(place, args={"broken": True}), "<answer>2</answer>")
    assert (found.score, found.reason) == (0.0, "Error calling reward function right: no rubric today")


def test_an_environment_that_is_not_installed_is_one_line() -> None:
    with pytest.raises(ramet.ConfigError, match="no environment 'nothing-here' is installed"):
        dict(load_taskset("verifiers:nothing-here").splits)


def test_a_tree_is_graded_off_the_event_loop(place: str) -> None:
    taskset: ramet.Taskset = load_taskset(place)
    engine = ramet.ScriptedEngine(lambda prompt: "Answer: <answer>0</answer>")
    tree = anyio.run(lambda: ramet.play(taskset, taskset.task("train", 0), ramet.TreeOptions(engine=engine)))
    assert tree.root.verdict is not None
    assert tree.root.verdict.score == 1.0
