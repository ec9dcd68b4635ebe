"""The files of experiments/ are commands that exist with settings that exist, and the script that runs them resumes."""

from __future__ import annotations

import importlib.util
import math
import re
import shlex
import signal
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer

from ramet.cli.main import app
from ramet.config import load
from ramet.evaluate.settings import EvaluateConfig
from ramet.recipes import recipe_file
from ramet.store.checkpoints import latest
from ramet.train.loop import resolve_plan
from ramet.train.settings import TrainConfig
from tests.cli.test_main import Server, serving
from tests.waiting import PATIENCE_S, until

FOLDER = Path(__file__).parent.parent / "experiments"
FILES = sorted(FOLDER.glob("*.toml"))


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("experiments_run", FOLDER / "run.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = made
    spec.loader.exec_module(made)
    yield made
    del sys.modules[spec.name]


def test_a_file_of_every_kind_is_found() -> None:
    assert {file.stem for file in FILES} >= {"craft", "arithmetic", "multihop", "aggregate", "codes", "speed"}


def test_names_in_braces_are_filled_in_from_the_inside(script: ModuleType) -> None:
    used: set[str] = set()
    values = {"seed": "2", "clones-2": "runs/clones-2", "pages": "-n {number}", "number": "5"}
    assert script.fill("eval {pages} {clones-{seed}} {other}", values, used=used) == "eval -n 5 runs/clones-2 {other}"
    assert used == {"seed", "clones-2", "pages", "number", "other"}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_job_is_a_command_whose_options_and_settings_exist(
    script: ModuleType, file: Path, tmp_path: Path
) -> None:
    jobs = script.read_experiment(file, into=tmp_path, values={"data": "DATA", "model": "smollm2"})
    names = [job.name for job in jobs]
    assert len(set(names)) == len(names)
    assert all(job.needs <= set(names) - {job.name} for job in jobs)
    for job in {re.sub(r"\d+", "", job.name): job for job in jobs}.values():  # seeds differ in a number only
        kind, *words = job.command
        given = parsed(kind, words)
        if kind == "train":
            check_training(given)
        if kind == "eval":
            load(EvaluateConfig, words=[word for word in given["words"] if "=" in word])


@cache
def whole_command() -> Any:
    """`ramet` with all its verbs: to build it takes longer than to read a command line with it."""
    return typer.main.get_command(app)


def parsed(kind: str, words: list[str]) -> dict[str, Any]:
    """The parameters of a command, as the command line reads them."""
    command = whole_command()
    context = command.make_context("ramet", [kind, *words], resilient_parsing=False)
    name, command, rest = command.resolve_command(context, context._protected_args + context.args)
    while hasattr(command, "resolve_command"):
        context = command.make_context(name, rest, parent=context)
        name, command, rest = command.resolve_command(context, context._protected_args + context.args)
    return command.make_context(name, rest, parent=context).params


def check_training(given: dict[str, Any]) -> None:
    flags = {} if given["data"] is None else {"taskset.data": given["data"]}
    config = load(TrainConfig, file=recipe_file(given["recipe"]), words=given["settings"], flags=flags)
    if given["data"] is None:
        resolve_plan(config)


NANO = """
[words]
tiny = "tasks_per_step=2 group_size=2 sampler.max_batch=8"

[[job]]
name = "start"
run = "ramet train nano {tiny} steps=1 warm.steps=1 warm.trees_per_step=4"

[[job]]
name = "eval-{seed}"
each = {seed = [3]}
run = "ramet eval codes:eval --model {start} --methods single --budgets 60 -n 1 --seed {seed}"
"""


@pytest.fixture
def server() -> Iterator[Server]:
    with serving(Server()) as server:
        yield server


def test_a_job_cut_off_by_the_time_is_resumed_jobs_run_in_order_and_what_is_done_is_not_repeated(
    script: ModuleType, tmp_path: Path, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    file, into, packed = tmp_path / "nano.toml", tmp_path / "runs", tmp_path / "nano.tar.gz"
    served = f"{{start}} engine.kind=http --base-url {server.url} --window 400"  # to load the model would take seconds
    file.write_text(NANO.replace("steps=1 warm.steps=1", "steps=100000 warm.steps=1").replace("{start}", served))
    (job,) = script.read_experiment(file, into=into, values={})[:1]
    into.mkdir()
    lanes = script.Lanes([job], lanes=1, deadline=math.inf, stop_s=PATIENCE_S)

    def end_time() -> None:
        until(lambda: steps_of(job.folder) > 0)
        lanes.deadline = 0.0

    clock = threading.Thread(target=end_time)
    clock.start()
    assert lanes.run() == 3
    clock.join()
    assert "stopped start" in capsys.readouterr().out
    assert latest(job.folder) is not None
    assert not job.done.exists()

    # The same commands again. One more step is enough: the run is made shorter, because a job is resumed as it is.
    before = steps_of(job.folder)
    config = job.folder / "config.toml"
    config.write_text(re.sub(r"(?m)^steps = 100000$", f"steps = {before + 1}", config.read_text()))
    words = [str(file), "--into", str(into), "--lanes", "2"]
    assert script.main([*words, "--only", "start"]) == 0
    assert steps_of(job.folder) == before + 1
    assert f"$ ramet train --resume {job.folder}" in job.log.read_text()
    assert not (into / "eval-3").exists()
    assert script.main([*words, "--only", "eval-3"]) == 0
    assert script.main([*words, "--pack", str(packed)]) == 0
    printed = capsys.readouterr().out
    assert printed.count("start start") == printed.count("start eval-3") == 1
    assert "2 of 2 jobs done" in printed
    with tarfile.open(packed) as tar:
        kept = set(tar.getnames())
    assert {
        "start.log",
        "start/metrics.jsonl",
        "start/warm/metrics.jsonl",
        "eval-3.log",
        "eval-3/records.parquet",
    } <= kept
    assert any(name.startswith("start/trees/step-") for name in kept)
    assert not any("checkpoints" in name for name in kept)


def test_a_job_is_interrupted_also_where_the_script_runs_in_the_background_and_ignores_ctrl_c(
    script: ModuleType, tmp_path: Path, server: Server
) -> None:
    server.reply = None  # the job waits for it until it is interrupted
    run = f"ramet eval arithmetic:eval --model tiny --base-url {server.url} --window 4000 --methods single -n 1"
    (tmp_path / "one.toml").write_text(f'[[job]]\nname = "waits"\nrun = "{run}"\n')
    (job,) = script.read_experiment(tmp_path / "one.toml", into=tmp_path, values={})
    lanes = script.Lanes([job], lanes=1, deadline=math.inf, stop_s=PATIENCE_S)

    def end_time() -> None:
        until(lambda: server.asked.is_set() or bool(lanes.tries))
        lanes.deadline = 0.0

    clock = threading.Thread(target=end_time)
    clock.start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert lanes.run() == 3
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    clock.join()
    assert "ramet: interrupted" in job.log.read_text()


def test_a_job_that_fails_is_tried_twice_and_those_that_need_it_are_left_out(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "broken.toml"
    file.write_text(NANO.replace("steps=1 warm.steps=1", "stepz=1"))
    assert script.main([str(file), "--into", str(tmp_path / "runs")]) == 1
    printed = capsys.readouterr().out
    assert printed.count("failed start (exit code 2): ramet: unknown setting 'stepz'") == 2
    assert "not started: eval-3 waits for start" in printed
    assert "0 of 2 jobs done" in printed


def test_jobs_of_several_files_share_lanes_and_one_that_runs_alone_comes_last(
    script: ModuleType, tmp_path: Path
) -> None:
    order = tmp_path / "order"
    note = f"import sys; open({str(order)!r}, 'a').write(sys.argv[1] + chr(10))"

    class Noted(script.Job):
        """Notes when it begins and when it ends."""

        def start(self) -> subprocess.Popen[bytes]:
            name = self.key.relative_to(tmp_path)
            commands = [shlex.join([sys.executable, "-c", note, f"{event} {name}"]) for event in ("begin", "end")]
            return subprocess.Popen(["sh", "-c", " && ".join(commands)])

    def job(folder: str, name: str, *, needs: tuple[str, ...] = (), alone: bool = False) -> Any:
        place = tmp_path / folder / name
        place.mkdir(parents=True)
        return Noted(name=name, command=(), folder=place, needs=frozenset(needs), alone=alone)

    jobs = [job("a", "quiet", alone=True), job("a", "x"), job("b", "x"), job("b", "y", needs=("x",))]
    assert script.Lanes(jobs, lanes=3, deadline=math.inf).run() == 0
    events = order.read_text().splitlines()
    assert sorted(events[:-2]) == ["begin a/x", "begin b/x", "begin b/y", "end a/x", "end b/x", "end b/y"]
    assert events.index("begin b/y") > events.index("end b/x")
    assert events[-2:] == ["begin a/quiet", "end a/quiet"]


def test_a_job_that_failed_beside_others_is_tried_again_when_one_of_them_has_ended(
    script: ModuleType, tmp_path: Path
) -> None:
    """As if the memory of a GPU were short: `small` fails while `large` runs, which ends when `small` has failed."""
    full, failed = tmp_path / "full", tmp_path / "failed"
    commands = {
        "large": f"touch {full}; while [ ! -e {failed} ]; do sleep 0.05; done; sleep 1; rm {full}",
        "small": f"until [ -e {full} -o -e {failed} ]; do sleep 0.05; done; "
        f"if [ -e {full} ]; then touch {failed}; false; fi",
    }

    class Shell(script.Job):
        def start(self) -> subprocess.Popen[bytes]:
            return subprocess.Popen(["sh", "-c", commands[self.name]])

    (tmp_path / "runs").mkdir()
    jobs = [Shell(name=name, command=(), folder=tmp_path / "runs" / name, needs=frozenset()) for name in commands]
    lanes = script.Lanes(jobs, lanes=2, deadline=math.inf)
    assert lanes.run() == 0
    assert [lanes.tries.get(job.key, 0) for job in jobs] == [0, 1]


def test_jobs_that_are_chosen_bring_those_they_need(script: ModuleType, tmp_path: Path) -> None:
    files = [tmp_path / "one.toml", tmp_path / "two.toml"]
    for file in files:
        file.write_text(NANO)
    jobs = [job for file in files for job in script.read_experiment(file, into=tmp_path / file.stem, values={})]
    assert [job.key.relative_to(tmp_path) for job in script.choose(jobs, ["eval-3"])] == [
        Path("one/start"),
        Path("one/eval-3"),
        Path("two/start"),
        Path("two/eval-3"),
    ]
    assert [job.name for job in script.choose(jobs, ["start"])] == ["start", "start"]


def test_files_of_one_group_share_the_jobs_that_both_have(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grouped = NANO.replace("[words]", 'group = "nano"\n[words]')
    (tmp_path / "one.toml").write_text(grouped)
    (tmp_path / "two.toml").write_text(grouped.replace("[3]", "[3, 4]"))
    files = [str(tmp_path / "one.toml"), str(tmp_path / "two.toml")]
    assert script.main([*files, "--into", "R", "--list"]) == 0
    commands = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in commands] == ["name=start", "R/nano/eval-3", "R/nano/eval-4"]
    (tmp_path / "two.toml").write_text(grouped.replace("steps=1", "steps=2"))
    with pytest.raises(SystemExit, match="two different jobs are called R/nano/start"):
        script.main([*files, "--into", "R", "--list"])


def steps_of(run: Path) -> int:
    file = run / "metrics.jsonl"
    return file.read_text().count("\n") if file.exists() else 0


def test_a_name_that_is_nothing_is_an_error_with_the_jobs_there_are(script: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "unknown.toml"
    file.write_text(NANO.replace("{start}", "{begin}"))
    with pytest.raises(SystemExit, match=r"eval-3: \{begin\} is neither a job nor a word; jobs: start, eval-3"):
        script.main([str(file), "--list"])


@pytest.mark.parametrize(
    ("file", "said"),
    [
        (NANO.replace("eval-{seed}", "start"), "two jobs have the same name: start, start"),
        (NANO + '[[job]]\nname = "x"\n', r"every \[\[job\]\] has a name and a run"),
        (NANO.replace("group_size=2", "{tiny}"), "words name each other in a circle"),
        (NANO.replace("ramet eval", "eval"), "a command begins with ramet and one of train, eval, report, bench"),
        ("[[job", "nano.toml: "),
    ],
)
def test_a_wrong_file_is_one_line(script: ModuleType, tmp_path: Path, file: str, said: str) -> None:
    (tmp_path / "nano.toml").write_text(file)
    with pytest.raises(SystemExit, match=said):
        script.main([str(tmp_path / "nano.toml"), "--list"])


@pytest.mark.parametrize("words", [["--only", "nothing"], ["--lanes", "0"]])
def test_wrong_words_end_with_code_two(script: ModuleType, tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "nano.toml").write_text(NANO)
    with pytest.raises(SystemExit) as raised:
        script.main([str(tmp_path / "nano.toml"), "--list", *words])
    assert raised.value.code == 2
