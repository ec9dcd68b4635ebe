"""Tasks of inspect_ai as a taskset, and ramet as its solver."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import anyio
import pytest

import ramet
from ramet.tasks.registry import load_taskset
from ramet.tasks.validate import validate

pytestmark = pytest.mark.peers

EVALS = '''
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import Score, accuracy, choice, match, scorer
from inspect_ai.solver import generate, multiple_choice, use_tools
from inspect_ai.tool import tool

@tool
def double():
    async def execute(number: int):
        """Twice a number.

        Args:
            number: The number.
        """
        return 2 * number
    return execute

@task
def sums(most: int = 4):
    samples = [Sample(input=f"What is {a} + {a}?", target=str(2 * a)) for a in range(most)]
    return Task(dataset=samples, solver=[use_tools(double()), generate()], scorer=match(numeric=True))

@task
def capitals():
    samples = [Sample(input="The capital of France?", choices=["Rome", "Paris", "Oslo"], target="B")]
    return Task(dataset=samples, solver=multiple_choice(), scorer=choice())

@scorer(metrics=[accuracy()])
def bad(seconds):
    async def score(state, target):
        import time
        time.sleep(seconds)
        raise KeyError("nothing here")
    return score

@task
def broken(seconds: float = 0.0):
    return Task(dataset=[Sample(input="x?", target="1")], scorer=[bad(seconds), match()])

@task
def boxed():
    return Task(dataset=[Sample(input="x?", target="1", sandbox="docker")], scorer=match())
'''

SOLVE = """
import sys
from inspect_ai import eval
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from inspect_ai.solver import SolverSpec, chain, use_tools
import ramet

DELEGATE = '<tool_call>{"name": "delegate", "arguments": {"goals": ["Say 1", "Say 2"]}}</tool_call>'
DOUBLE = '<tool_call>{"name": "double", "arguments": {"number": 2}}</tool_call>'

def reply(messages, tools, tool_choice, config):
    assert config.max_tokens <= 500
    asked = messages[1].text
    text = "Answer: done" if "Say" in asked else DELEGATE if len(messages) == 2 else DOUBLE if len(messages) == 4 else (
        "Answer: 4" if "4" in messages[-1].text else "Answer: lost")
    output = ModelOutput.from_content("mockllm", text)
    output.usage = ModelUsage(input_tokens=50, output_tokens=len(text.split()), total_tokens=50 + len(text.split()))
    return output

sys.path.insert(0, ".")
from evals import double, sums
model = get_model("mockllm/model", custom_outputs=reply)
solver = chain(use_tools(double()), ramet.inspect_solver(tokens=500, nodes=4, depth=1))
(log,) = eval(sums(), solver=solver, model=model, limit=(2, 3), display="none", log_dir="logs")
sample = log.samples[0]
print(log.status, sample.scores["match"].value, sample.metadata["ramet"]["nodes"], sample.metadata["ramet"]["tokens"])
print(sample.output.usage.output_tokens, sum(used.output_tokens for used in log.stats.model_usage.values()))
print(sample.output.completion)
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inspect")
    (folder / "evals.py").write_text(EVALS, encoding="utf-8")
    (folder / "solve.py").write_text(SOLVE, encoding="utf-8")
    return folder


def verdict(taskset: ramet.Taskset, answer: str) -> ramet.Verdict:
    task = taskset.task("eval", 0)
    node = ramet.Node(index=0, parent=None, depth=0, path=(), goal=task.question, grant=1, answer=answer)
    found = taskset.verdict(task, taskset.world(task), node)
    assert found is not None
    return found


def test_samples_are_tasks_and_the_scorer_gives_the_verdict(place: Path) -> None:
    taskset = load_taskset(f"inspect:{place}/evals.py@sums", args={"most": 3})
    assert taskset.name == "inspect:evals.py@sums"
    assert (dict(taskset.splits), taskset.size("eval")) == ({"eval": "3 rows"}, 3)
    assert taskset.task("eval", 2).id == "inspect:evals.py@sums:eval/2"
    assert [verdict(taskset, text).score for text in ("0", "the sum is 0", "5")] == [1.0, 1.0, 0.0]
    assert anyio.run(lambda: validate(taskset, "eval", num_tasks=1)).faults == []


def test_choices_are_listed_and_marked_by_their_letter(place: Path) -> None:
    taskset = load_taskset(f"inspect:{place}/evals.py@capitals")
    assert "\nB) Paris\n" in taskset.task("eval", 0).question
    assert [verdict(taskset, text).score for text in ("B", "The answer is (B).", "A", "Paris")] == [1.0, 1.0, 0.0, 0.0]


def test_a_scorer_that_raises_or_hangs_gives_a_failed_verdict_with_the_reason(place: Path) -> None:
    taskset = load_taskset(f"inspect:{place}/evals.py@broken")
    assert verdict(taskset, "1") == ramet.Verdict(
        score=0.0, how="exact", reason="cannot be scored: KeyError: 'nothing here'"
    )
    slow = load_taskset(f"inspect:{place}/evals.py@broken", args={"seconds": 600.0}, seconds=2.0)
    assert verdict(slow, "1").reason == "cannot be scored: it took more than 2 s"
    assert verdict(load_taskset(f"inspect:{place}/evals.py@broken", scorer="match"), "1").score == 1.0


def test_what_does_not_exist_or_needs_a_sandbox_is_one_line(place: Path) -> None:
    for name, message in (
        ("sum", "did you mean sums"),
        ("boxed", "sample 0 of evals.py@boxed needs a sandbox"),
    ):
        with pytest.raises(ramet.ConfigError, match=message):
            load_taskset(f"inspect:{place}/evals.py@{name}").task("eval", 0)
    with pytest.raises(ramet.ConfigError, match="inspect has no task 'no_package/nothing'"):
        dict(load_taskset("inspect:no_package/nothing").splits)


def test_ramet_solves_a_sample_with_a_tree_and_reports_its_usage(place: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(
        [sys.executable, "solve.py"], cwd=place, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    state, usage, answer = done.stdout.strip().splitlines()
    assert state.split()[:3] == ["success", "C", "3"]
    own, counted = usage.split()
    assert state.split()[3] == own == counted
    assert answer == "4"


COMMAND = (
    "eval evals.py@sums --solver ramet/tree -S tokens=500 -S nodes=4 --model openai-api/local/my-model "
    "--log-format json --log-dir own --display none"
)


class Server(ThreadingHTTPServer):
    """An OpenAI-compatible server that adds the numbers of the last question; alone, it only delegates."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["messages"]
        numbers = re.findall(r"(\d+) \+ (\d+)", asked[1]["content"])
        text = f"Answer: {sum(map(int, numbers[-1]))}"
        if len(asked) == 2 and "delegate" in asked[0]["content"] and "What is" in asked[1]["content"]:
            goals = json.dumps(["Add " + " + ".join(numbers[-1])])
            text = f'<tool_call>{{"name": "delegate", "arguments": {{"goals": {goals}}}}}</tool_call>'
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 50, "completion_tokens": 3, "total_tokens": 53}
        facts = {"id": "1", "object": "chat.completion", "created": 0, "model": "my-model"}
        data = json.dumps({**facts, "choices": [choice], "usage": usage}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        del format, args


def test_inspect_finds_the_solver_on_its_own_command_line(place: Path) -> None:
    with Server() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/v1"
        done = subprocess.run(
            [Path(sys.executable).with_name("inspect"), *COMMAND.split()],
            cwd=place,
            env={**os.environ, "LOCAL_BASE_URL": url, "LOCAL_API_KEY": "none"},
            capture_output=True,
            text=True,
            timeout=600,
        )
        server.shutdown()
    assert done.returncode == 0, done.stdout + done.stderr
    (file,) = (place / "own").glob("*.json")
    log = json.loads(file.read_text(encoding="utf-8"))
    assert (log["status"], log["eval"]["solver"]) == ("success", "ramet/tree")
    assert [sample["scores"]["match"]["value"] for sample in log["samples"]] == ["C"] * 4
    used = [sample["metadata"]["ramet"] for sample in log["samples"]]
    assert [(one["nodes"], one["tokens"]) for one in used] == [(2, 9)] * 4  # three calls of three tokens
