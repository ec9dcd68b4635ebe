"""A taskset of verifiers.v1, whose tasks have rewards, as a taskset."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

import ramet
from ramet.tasks.registry import load_taskset

pytestmark = pytest.mark.peers

TASKSET = """
import verifiers.v1 as vf

class SumData(vf.TaskData):
    answer: str

class SumTask(vf.Task[SumData]):
    @vf.reward
    async def right(self, trace) -> float:
        if trace.last_reply == "boom":
            raise RuntimeError("no reward today")
        return float(trace.last_reply == self.data.answer)

class Sums(vf.Taskset[SumTask]):
    def load(self):
        for a in range(3):
            yield SumTask(SumData(prompt=f"What is {a} + {a}?", answer=str(2 * a)))

__all__ = ["Sums"]
"""

TOOLS = """
import verifiers.v1 as vf

class Scales(vf.State):
    weights: list[int] = []

class Weighing(vf.Toolset[vf.ToolsetConfig, Scales]):
    async def setup_task(self, task):
        self.unit = task.unit

    @vf.tool
    async def put(self, weight: int) -> str:
        "Put a weight on the scales."
        if weight < 0:
            raise ValueError("a weight is above 0")
        self.state.weights.append(weight)
        return f"{sum(self.state.weights)} {self.unit}"

class WeightData(vf.TaskData):
    answer: str
    unit: str

class WeightTask(vf.Task[WeightData, Scales]):
    @classmethod
    def toolsets(cls, config):
        return [Weighing(vf.ToolsetConfig())]

    @vf.reward
    async def right(self, trace) -> float:
        calls = [call.name for message in trace.assistant_messages for call in message.tool_calls or []]
        assert len(trace.tool_messages) == len(calls)
        return float(trace.last_reply == self.data.answer and sum(trace.state.weights) == 30 and len(calls) == 2)

class Weights(vf.Taskset[WeightTask]):
    def load(self):
        yield WeightTask(WeightData(prompt="Weigh 30.", answer="30 g", unit="g"))

__all__ = ["Weights"]
"""


@pytest.fixture(scope="module")
def taskset(tmp_path_factory: pytest.TempPathFactory) -> ramet.Taskset:
    file = tmp_path_factory.mktemp("verifiers") / "new_sums.py"
    file.write_text(TASKSET, encoding="utf-8")
    return load_taskset(f"verifiers:{file}")


def verdict(taskset: ramet.Taskset, answer: str) -> ramet.Verdict:
    task = taskset.task("all", 2)
    node = ramet.Node(index=0, parent=None, depth=0, path=(), goal=task.question, grant=1, answer=answer)
    found = taskset.verdict(task, taskset.world(task), node)
    assert found is not None
    return found


def test_tasks_are_taken_over_with_their_rewards(taskset: ramet.Taskset) -> None:
    assert taskset.size("all") == 3
    assert taskset.task("all", 2).question == "What is 2 + 2?"
    assert [verdict(taskset, text).score for text in ("4", "5")] == [1.0, 0.0]
    assert taskset.self_check(taskset.task("all", 0)) == (1.0, 0.0)


def test_a_reward_that_raises_gives_a_failed_verdict_with_the_reason(taskset: ramet.Taskset) -> None:
    found = verdict(taskset, "boom")
    assert found.score == 0.0
    assert found.reason.startswith("cannot be scored: TaskError")
    assert "no reward today" in found.reason


def test_a_file_without_a_taskset_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "empty.py").touch()
    with pytest.raises(ramet.ConfigError, match="has 0 tasksets, and no load_environment"):
        dict(load_taskset(f"verifiers:{tmp_path}/empty.py").splits)


def test_the_tools_of_toolsets_are_functions_and_share_the_state_of_one_tree(tmp_path: Path) -> None:
    (tmp_path / "weights.py").write_text(TOOLS, encoding="utf-8")
    taskset = load_taskset(f"verifiers:{tmp_path}/weights.py")
    task = taskset.task("all", 0)
    (name,) = taskset.world(task).functions
    assert name == "weighing_put"

    def put(weight: int) -> str:
        return f'<tool_call>{{"name": "{name}", "arguments": {{"weight": {weight}}}}}</tool_call>'

    def score(*turns: str) -> tuple[float, str]:
        engine = ramet.ScriptedEngine(lambda prompt: turns[prompt.turn])
        tree = anyio.run(lambda: ramet.play(taskset, task, ramet.TreeOptions(engine=engine)))
        assert tree.root.verdict is not None
        return tree.root.verdict.score, "\n".join(piece.text for piece in tree.root.pieces if not piece.sampled)

    for _ in range(2):
        found, read = score(put(10), put(20), "Answer: 30 g")
        assert found == 1.0, read
        assert "30 g" in read
    assert score(put(30), "Answer: 30 g")[0] == 0.0
    assert "a weight is above 0" in score(put(-1), "Answer: 30 g")[1]
