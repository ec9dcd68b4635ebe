"""`ramet eval` in another process, with a real server on loopback or a local model."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ramet.engine.settings import EngineConfig
from ramet.evaluate import read_records
from ramet.evaluate.items import Trained
from ramet.evaluate.model import Model, find_model, weights_hash
from ramet.evaluate.session import EvalRun, resolve_eval_config
from ramet.evaluate.settings import EvaluateConfig
from ramet.evaluate.suite.definition import find_suite
from ramet.evaluate.suite.run import resolve_suite
from ramet.store import RunDir, read_trees
from tests.cli.test_main import KEY, Server, call, complaint, printed, serving
from tests.fork_server import environment, installed
from tests.waiting import until

NOWHERE = "http://127.0.0.1:1/v1"  # a port of the system, at which nothing listens


class Tiring(Server):
    """A server that stops answering after a number of requests."""

    def __init__(self) -> None:
        self.most = 10**9
        super().__init__()

    @property
    def reply(self) -> str | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        return "Answer: 7" if len(self.bodies) <= self.most else None

    @reply.setter
    def reply(self, value: str | None) -> None:
        del value


@pytest.fixture
def server() -> Iterator[Tiring]:
    with serving(Tiring()) as server:
        yield server


def words(server: Tiring, *more: str) -> list[str]:
    base = ["eval", "arithmetic:eval", "taskset.operators=1", "taskset.digits=1", "--model", "tiny"]
    return [*base, "--base-url", server.url, *more]


def run_in(folder: Path) -> Path:
    (found,) = (folder / "runs").iterdir()
    return found


# Tables.


def test_a_server_with_one_model_needs_no_name_and_the_run_has_it(tmp_path: Path, server: Tiring) -> None:
    """The name is asked for before the run directory is chosen: with --model it is the same evaluation."""
    command = [word for word in words(server, "-n", "2", "--budgets", "100") if word not in ("--model", "tiny")]
    assert "4 of 4 items" in printed(tmp_path, *command)
    assert json.loads((run_in(tmp_path) / "meta.json").read_text())["model"] == "tiny"
    asked = len(server.bodies)
    printed(tmp_path, *command, "--model", "tiny")
    assert (len(server.bodies), len(list((tmp_path / "runs").iterdir()))) == (asked, 1)


def test_a_suite_on_a_server_with_one_model_needs_no_name(tmp_path: Path, server: Tiring) -> None:
    flags = {"engine.base_url": server.url}
    plan = resolve_suite(find_suite("suite:delegation-1"), "quick", flags=flags, runs=tmp_path)
    assert plan == resolve_suite(
        find_suite("suite:delegation-1"), "quick", flags=flags | {"engine.model": "tiny"}, runs=tmp_path
    )
    assert {config.engine.model for config in plan.configs.values()} == {"tiny"}
    assert plan.folder.name.startswith("delegation-1-quick-tiny-")


def test_a_model_on_a_server_is_evaluated_and_its_numbers_can_be_traced(tmp_path: Path, server: Tiring) -> None:
    command = words(server, "--methods", "single,vote@2,clones", "--budgets", "100,200", "-n", "5", "--api-key", KEY)
    output = printed(tmp_path, *command)
    run = run_in(tmp_path)
    assert output.splitlines()[0] == f"runs/{run.name}"
    assert "30 of 30 items, 6 of 6 cells" in output
    rows = [line.split() for line in output.splitlines() if line.startswith(("single", "vote@2", "clones "))]
    assert [row[:3] for row in rows[:6]] == [
        [method, budget, "5"] for method in ("single", "vote@2", "clones") for budget in ("100", "200")
    ]
    meta = json.loads((run / "meta.json").read_text())
    assert (meta["kind"], meta["model"], meta["server"], meta["seed"]) == ("eval", "tiny", server.url, 0)
    assert meta["command"].startswith("ramet eval arithmetic:eval")
    assert server.keys[0] == f"Bearer {KEY}"
    assert not any(KEY.encode() in file.read_bytes() for file in run.rglob("*") if file.is_file())
    assert meta["hardware"]["cores"] >= 1
    records = read_records(run)
    names = {tree.id for tree in read_trees(run)}
    assert {name for record in records for name in record.trees} == names
    asked = printed(tmp_path, "sql", str(run), "select sum(generated) as used from records", "--json")
    assert json.loads(asked) == [{"used": sum(record.generated for record in records)}]
    shown = printed(tmp_path, "show", str(run), "--tree", records[0].trees[0], "--json")
    (tree,) = json.loads(shown)
    assert tree["usage"]["tokens"] == records[0].generated


def test_what_is_odd_about_a_server_is_one_line_on_standard_error(tmp_path: Path, server: Tiring) -> None:
    command = words(server, "--methods", "single", "--budgets", "100", "-n", "1", "--json", "--model", "other")
    done = call(tmp_path, *command)
    note = f"'other' is requested, although it is not among the models that {server.url} lists: tiny"
    assert done.stderr == f"ramet: {note}\n"
    assert json.loads(done.stdout)["records"]


def test_a_finished_evaluation_prints_its_table_again_without_the_model(tmp_path: Path, server: Tiring) -> None:
    command = words(server, "-n", "3")
    before = printed(tmp_path, *command)
    asked = len(server.bodies)
    server.closing.set()
    server.shutdown()
    server.server_close()
    again = printed(tmp_path, *command)
    assert len(server.bodies) == asked
    assert again in before
    assert "accuracy" in again
    assert "How wrong answers ended\n  single, 3 trees: answered 3\n  clones, 3 trees: answered 3\n" in again
    page = run_in(tmp_path) / "report" / "index.html"
    assert again.splitlines()[-1] == str(page.relative_to(tmp_path))
    assert "Clones and single differ on none of 3 items" in page.read_text(encoding="utf-8")


def test_a_directory_is_named_after_the_tasks_and_the_model_and_earlier_names_are_found(tmp_path: Path) -> None:
    (tmp_path / "products.py").write_text("class Products: pass\n")
    checkpoint = tmp_path / "after" / "checkpoints" / "step-000005"
    checkpoint.mkdir(parents=True)
    (checkpoint / "config.json").write_text("{}")
    (checkpoint / "model.safetensors").touch()
    local = EngineConfig(kind="local", model=str(checkpoint))
    tasks = (f"{tmp_path}/products.py:Products", f"{tmp_path}/products.py:Products:long")
    found = EvalRun.locate(EvaluateConfig(tasks=tasks, engine=local), runs=tmp_path, into=None)
    assert found.path.name == f"eval-products-long-after-{found.key[:8]}"
    server = EvaluateConfig(tasks=("craft:hard",), engine=EngineConfig(model="Qwen/Qwen3-4B"))
    found = EvalRun.locate(server, runs=tmp_path, into=None)
    assert found.path.name == f"eval-craft-hard-qwen3-4b-{found.key[:8]}"
    earlier = tmp_path / f"eval-craft-hard-{found.key[:8]}"
    earlier.mkdir()
    assert EvalRun.locate(server, runs=tmp_path, into=None).path == earlier


def test_json_has_everything(tmp_path: Path, server: Tiring) -> None:
    facts = json.loads(printed(tmp_path, *words(server, "-n", "4", "--methods", "single,best@2", "--json")))
    assert len(facts["records"]) == 8
    (section,) = facts["sections"]
    assert [(cell["method"], cell["oracle"]) for cell in section["cells"]] == [("single", False), ("best@2", True)]
    right = sum(record["score"] == 1 for record in facts["records"] if record["method"] == "single")
    assert section["cells"][0]["accuracy"]["value"] == right / 4
    assert facts["config"]["engine"]["model"] == "tiny"
    assert facts["run"] == f"runs/{run_in(tmp_path).name}"


def test_another_seed_has_another_directory_and_is_refused_in_the_same_one(tmp_path: Path, server: Tiring) -> None:
    printed(tmp_path, *words(server, "-n", "2"))
    printed(tmp_path, *words(server, "-n", "2", "--seed", "1"))
    assert len(list((tmp_path / "runs").iterdir())) == 2
    printed(tmp_path, *words(server, "-n", "2", "--into", "here"))
    assert (tmp_path / "here" / "records.parquet").exists()
    shutil.rmtree(tmp_path / "runs")
    output = complaint(tmp_path, *words(server, "-n", "2", "--into", "here", "--seed", "1"))
    assert "here was made with other settings (seed): give another --into" in output


def test_a_judge_is_used_where_the_settings_name_one(tmp_path: Path, server: Tiring) -> None:
    (tmp_path / "mine.jsonl").write_text('{"question": "Say something nice.", "answer": "anything nice"}\n')
    command = ["eval", "jsonl:all", "taskset.file=mine.jsonl", "taskset.check=judge", "--methods", "single"]
    command += ["--model", "tiny", "--base-url", server.url, "--json", "--runs", "judged"]
    assert "needs a judge" in complaint(tmp_path, *command)
    assert "the judge gave no verdict on its root" in complaint(tmp_path, *command, "judge.model=tiny")


# Resuming.


def start(folder: Path, server: Tiring, *more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        installed(*words(server, *more)),
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_killed_evaluation_loses_at_most_a_chunk_and_resumes(tmp_path: Path, server: Tiring) -> None:
    server.most = 70
    command = ["--methods", "single", "-n", "90"]
    process = start(tmp_path, server, *command)
    until(lambda: any(tmp_path.glob("runs/*/records.parquet")))
    process.send_signal(signal.SIGKILL)
    process.communicate()
    run = run_in(tmp_path)
    kept = read_records(run)
    assert 0 < len(kept) <= 70  # a chunk has 64 items, or those of 20 seconds
    assert {tree.id for tree in read_trees(run)} == {name for record in kept for name in record.trees}
    assert "answered" in printed(tmp_path, "show", str(run))
    server.most, asked = 10**9, len(server.bodies)
    output = printed(tmp_path, *words(server, *command))
    assert "90 of 90 items" in output
    assert len(server.bodies) - asked == 90 - len(kept)
    assert len(read_records(run)) == 90


def test_an_interrupted_evaluation_keeps_finished_items_and_can_be_resumed(tmp_path: Path, server: Tiring) -> None:
    server.most = 9
    command = ["--methods", "single", "-n", "20", "concurrency=2"]
    process = start(tmp_path, server, *command)
    until(lambda: len(server.bodies) >= 11)
    process.send_signal(signal.SIGINT)
    out, error = process.communicate()
    assert (process.returncode, error) == (130, "ramet: interrupted\n")
    assert "Run the same command again to resume." in out
    assert len(read_records(run_in(tmp_path))) == 9
    server.most = 10**9
    assert "20 of 20 items" in printed(tmp_path, *words(server, *command))


def test_finished_items_are_kept_when_the_server_fails(tmp_path: Path, server: Tiring) -> None:
    server.status = 400
    done = call(tmp_path, *words(server, "-n", "2"))
    assert done.returncode == 2
    assert "run the same command again to resume" in done.stderr
    assert len(done.stderr.splitlines()) == 1


# Errors.


@pytest.mark.parametrize(
    ("given", "output"),
    [
        (["craft:hard"], "which model? give --model"),
        (["--model", "m"], "which tasks? write NAME:SPLIT"),
        (["craft:hard", "--model", "m", "--base-url", NOWHERE], f"cannot reach {NOWHERE}"),
        (["craft:hrd", "--model", "m"], "did you mean hard"),
        (["craft:hard", "--model", "m", "tasks=5"], "the number of tasks is num_tasks=N, or -n N"),
        (["craft:hard", "--model", "m", "--methods", "singel"], "unknown method 'singel': accepted are single"),
        (["craft:hard", "--model", "m", "--budgets", "1k"], "--budgets is whole numbers separated by commas"),
        (["craft:hard", "--model", "m", "--budgets", "4", "--methods", "vote@8"], "vote@8 grows 8 trees"),
        (["craft:hard", "--model", "m", "--trained", "x"], "trained is LEAST:MOST"),
        (["craft:hard", "--model", "m", "--window", "0"], "budget.window is a whole number from 1 up"),
        (["craft:hard", "--model", "m", "--dialect", "pyton"], "unknown dialect"),
        (["craft:hard", "--model", "m", "nods=3"], "unknown setting 'nods'"),
        (["math:eval", "--model", "m"], "give --data"),
    ],
)
def test_an_error_is_one_line(tmp_path: Path, given: list[str], output: str) -> None:
    assert output in complaint(tmp_path, "eval", *given)


# Models.


def trained_run(parent: Path, name: str, *, kind: str, checkpoint: bool = True, **settings: Any) -> Path:
    """The run directory of a training, without weights."""
    run = RunDir.create(parent, name, kind=kind)
    lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items() if not isinstance(value, dict))
    tables = [(key, value) for key, value in settings.items() if isinstance(value, dict)]
    lines += "".join(
        f"[{key}]\n" + "".join(f"{one} = {json.dumps(held)}\n" for one, held in value.items()) for key, value in tables
    )
    (run.path / "config.toml").write_text(lines)
    if checkpoint:
        for step in (5, 10):
            (run.path / "checkpoints" / f"step-{step:06d}").mkdir(parents=True)
    return run.path


def test_a_run_directory_gives_its_newest_checkpoint_and_its_training_range(tmp_path: Path) -> None:
    first = trained_run(tmp_path, "warm", kind="warmstart", task="arithmetic:train", taskset={"operators": [1, 2]})
    start_ = str(first / "checkpoints" / "step-000010")
    more = {"task": "arithmetic:train", "taskset": {"operators": [2, 4]}, "model": start_}
    second = trained_run(tmp_path, "rl", kind="train", **more)
    model = find_model(str(second))
    assert model.name == str(second / "checkpoints" / "step-000010")
    assert model.trained == [Trained("arithmetic", 2, 4), Trained("arithmetic", 1, 2)]
    assert (find_model(start_).name, find_model(start_).trained) == (start_, [Trained("arithmetic", 1, 2)])
    assert find_model("smollm2") == Model(name="smollm2", trained=[], settings={})


def test_a_model_brings_the_settings_of_its_training(tmp_path: Path) -> None:
    settings = {"task": "arithmetic:train", "dialect": "terse", "show_budget": True}
    options = {"operators": [1, 2], "digits": 1}
    budget = {"tokens": [50, 90], "nodes": 3, "turns": [2, 4]}
    run = trained_run(tmp_path, "rl", kind="train", **settings, taskset=options, budget=budget)
    same, other = find_model(str(run), ["arithmetic:long"]), find_model(str(run), ["arithmetic:long", "craft:easy"])
    assert same.settings == {"dialect": "terse", "show_budget": True, "budget": {"nodes": 3}, "taskset": options}
    assert other.settings == {"dialect": "terse", "show_budget": True, "budget": {"nodes": 3}}


def test_a_model_that_a_file_names_brings_them_too(tmp_path: Path) -> None:
    run = trained_run(tmp_path, "rl", kind="train", task="arithmetic:train", dialect="terse", budget={"nodes": 3})
    file = tmp_path / "eval.toml"
    file.write_text(f'tasks = ["arithmetic:long"]\nbudget = {{nodes = 5}}\nengine = {{model = "{run}"}}\n')
    config, model = resolve_eval_config([], file=file)
    assert (config.dialect, config.budget, model.taken_over) == ("terse", {"nodes": 5}, ("dialect=terse",))
    assert config.engine.model == model.name == str(run / "checkpoints" / "step-000010")


def test_an_evaluation_prints_what_it_takes_over_from_the_training_of_its_model(tmp_path: Path) -> None:
    from tests.train import small

    model = small.folder(tmp_path)
    config = small.config(model, "name=small", "budget.path_tokens=35", "budget.nodes=3")
    run = RunDir.create(tmp_path, "small", config=config, kind="train")
    shutil.copytree(model, run.path / "checkpoints" / "step-000004")
    command = ["eval", "arithmetic:eval", "--model", str(run.path), "--methods", "clones", "--budgets", "40", "-n", "1"]
    output = printed(tmp_path, *command, "budget.nodes=2", OMP_NUM_THREADS=os.environ["OMP_NUM_THREADS"])
    (line,) = [line for line in output.splitlines() if line.startswith("from the training: ")]
    assert "budget.path_tokens=35" in line
    assert "budget.nodes" not in line
    assert "budget.tokens" not in line


def test_a_warm_start_counts_as_training(tmp_path: Path) -> None:
    run = trained_run(tmp_path, "both", kind="train", task="craft:train", warm={"steps": 3, "task": "craft:train_easy"})
    assert find_model(str(run)).trained == [Trained("craft", 4, 6), Trained("craft", 2, 3)]


def test_a_training_range_without_its_files_is_unknown(tmp_path: Path) -> None:
    run = trained_run(tmp_path, "far", kind="train", task="multihop:musique_train", taskset={"data": "/nowhere"})
    assert find_model(str(run)).trained == [Trained("multihop", -math.inf, math.inf, "musique")]


def test_a_run_without_a_model_is_refused(tmp_path: Path) -> None:
    bare = trained_run(tmp_path, "young", kind="train", checkpoint=False, task="arithmetic:train")
    other = RunDir.create(tmp_path, "question")
    assert "has no checkpoint yet" in complaint(tmp_path, "eval", "craft:easy", "--model", str(bare))
    assert "holds no model" in complaint(tmp_path, "eval", "craft:easy", "--model", str(other.path))


def test_the_hash_covers_only_the_weights(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    before = weights_hash(tmp_path)
    (tmp_path / "learner.safetensors").write_bytes(b"optimiser")
    (tmp_path / "config.json").write_text("{}")
    assert weights_hash(tmp_path) == before
    (tmp_path / "model.safetensors").write_bytes(b"weighted")
    assert weights_hash(tmp_path) != before


def test_a_trained_model_is_evaluated_from_its_run_directory(tmp_path: Path) -> None:
    from tests.train import small

    model = small.folder(tmp_path)
    config = small.config(model, "name=small")
    run = RunDir.create(tmp_path, "small", config=config, kind="train")
    shutil.copytree(model, run.path / "checkpoints" / "step-000004")
    command = ["eval", "arithmetic:eval", "--model", str(run.path), "--methods", "single,clones", "--budgets", "40"]
    command += ["-n", "6", "taskset.operators=[1,2]", "engine.device=cpu", "--json"]
    facts = json.loads(printed(tmp_path, *command, OMP_NUM_THREADS=os.environ["OMP_NUM_THREADS"]))
    assert {record["beyond"] for record in facts["records"] if record["size"] == 1} == {False}
    assert {record["beyond"] for record in facts["records"] if record["size"] == 2} == {True}
    assert all(record["generated"] <= 40 for record in facts["records"])
    assert facts["meta"]["model_sha256"] == weights_hash(model)
    assert facts["meta"]["hardware"]["torch"]
    assert (facts["config"]["budget"]["reserve"], facts["config"]["taskset"]["digits"]) == (4, 1)
    os.utime(run.path / "checkpoints" / "step-000004" / "model.safetensors", (1, 1))
    assert "made with other settings (the model has changed)" in call(tmp_path, *command, "--into", facts["run"]).stderr
