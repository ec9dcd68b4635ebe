"""Comparing engines: only equal work gets a number, and the peers do the recorded work."""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from ramet.bench.engine import Options, bench, measure
from ramet.bench.engine_lanes import EngineEnded, FailedLane, InProcess, Subprocess
from ramet.bench.engine_peers import CallResult, ContinuousPeer, GeneratePeer, Peer, RametPeer, Setting, in_waves
from ramet.bench.engine_report import bench_facts, show
from ramet.bench.random_models import RANDOM_MODELS, write_random_model
from ramet.bench.workload import Call, Progress, Workload, flat, trees
from ramet.errors import ConfigError, EngineError
from ramet.models.folders import load_model

pytestmark = pytest.mark.slow

FLAT = flat(batch=3, prompt=5, new=4)
TREE = trees(count=1, system=20, longest=16)


class Exact:
    """Samples the recorded number of zeros; `spoil` may change the result of each call."""

    def __init__(self, spoil: Callable[[int, CallResult], CallResult] = lambda _, done: done) -> None:
        self.spoil = spoil
        self.facts: dict[str, Any] = {"version": "1"}
        self.prompts: list[list[list[int]]] = []

    def prepare(self, *, logprobs: bool) -> None:
        """Nothing to prepare."""

    def run(self, workload: Workload, *, logprobs: bool) -> list[CallResult]:
        progress = Progress(workload)
        done: list[CallResult] = []
        self.prompts.append([])
        for index, call in enumerate(workload.calls):
            prompt = progress.prompt(index)
            self.prompts[-1].append(prompt)
            sampled = [0] * call.new_tokens
            progress.end(index, sampled)
            logprob_list = [-1.0] * call.new_tokens if logprobs else None
            done.append(
                self.spoil(index, CallResult(prompt_tokens=len(prompt), token_ids=sampled, logprobs=logprob_list))
            )
        return done

    def close(self) -> None:
        """Nothing to close."""


class Failing(Exact):
    def run(self, workload: Workload, *, logprobs: bool) -> list[CallResult]:
        raise EngineError("out of memory")


def one_short(index: int, done: CallResult) -> CallResult:
    return replace(done, token_ids=done.token_ids[:-1]) if index == 1 else done


# Equal work.


def test_an_engine_that_samples_a_token_too_few_is_refused_and_the_others_are_compared() -> None:
    lanes = [InProcess("generate", Exact()), InProcess("short", Exact(one_short)), InProcess("ramet", Exact())]
    rows = measure(lanes, [FLAT], logprobs=[False], repeat=2)
    assert [row.error for row in rows] == [None, "unequal work: call 1 sampled 3 tokens, 4 recorded", None]
    assert [row.tokens_per_s is None for row in rows] == [False, True, False]
    assert [len(row.seconds) for row in rows] == [2, 0, 2]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda _, done: replace(done, prompt_tokens=4), "call 0 read 4 tokens, 5 recorded"),
        (lambda _, done: replace(done, token_ids=[*done.token_ids, 9]), "call 0 sampled 5 tokens, 4 recorded"),
        (lambda _, done: replace(done, logprobs=None), "call 0 has 0 of 4 log-probs"),
        (lambda _, done: replace(done, logprobs=done.logprobs[:-1]), "call 0 has 3 of 4 log-probs"),
        (lambda _, done: replace(done, logprobs=[float("nan")] * 4), "call 0 has 0 of 4 log-probs"),
        (lambda _, done: replace(done, logprobs=[-1, -1, 0.5, -1]), "call 0 has 3 of 4 log-probs"),
    ],
    ids=["other prompt", "one more token", "no log-probs", "one log-prob less", "not a number", "above 0"],
)
def test_work_other_than_the_recorded_work_gets_no_number(
    spoil: Callable[[int, CallResult], CallResult], message: str
) -> None:
    (row,) = measure([InProcess("other", Exact(spoil))], [FLAT], logprobs=[True])
    assert row.error == f"unequal work: {message}"
    assert row.tokens_per_s is None


def test_a_missing_result_is_refused() -> None:
    class Forgetful(Exact):
        def run(self, workload: Workload, *, logprobs: bool) -> list[CallResult]:
            return super().run(workload, logprobs=logprobs)[:-1]

    (row,) = measure([InProcess("forgetful", Forgetful())], [FLAT], logprobs=[False])
    assert row.error == "unequal work: 2 calls were answered, 3 recorded"


def test_an_engine_that_fails_does_not_stop_the_others() -> None:
    broken = FailedLane("vllm", EngineError("it did not start"))
    rows = measure([InProcess("failing", Failing()), broken, InProcess("ramet", Exact())], [TREE], logprobs=[False])
    assert [row.error for row in rows] == ["out of memory", "it did not start", None]


def test_every_pass_has_prompts_that_no_earlier_pass_has_cached() -> None:
    peer = Exact()
    measure([InProcess("ramet", peer)], [TREE, FLAT], repeat=3)
    assert len(peer.prompts) == 2 * 2 * (3 + 1)
    of_trees = [prompts[0] for prompts in peer.prompts if len(prompts) == len(TREE.calls)]
    assert len({prompt[0] for prompt in of_trees}) == len(of_trees) == 8


def test_the_warm_up_may_be_shorter_than_the_workload() -> None:
    peer = Exact()
    measure([InProcess("ramet", peer)], [TREE], logprobs=[True], repeat=2, warm_calls={"ramet": 2})
    assert [len(prompts) for prompts in peer.prompts] == [2, len(TREE.calls), len(TREE.calls)]


def test_waves_are_split_into_batches_and_wait_for_the_previous_wave() -> None:
    sizes: list[int] = []

    def batch(prompts: list[list[int]], calls: list[Call]) -> list[CallResult]:
        sizes.append(len(calls))
        assert [call.new_tokens for call in calls] == sorted(call.new_tokens for call in calls)
        return [
            CallResult(prompt_tokens=len(prompt), token_ids=[1] * call.new_tokens)
            for prompt, call in zip(prompts, calls, strict=True)
        ]

    workload = trees(count=4)
    done = in_waves(workload, batch, limit=3)
    assert max(sizes) == 3
    assert [result.prompt_tokens for result in done] == workload.prompt_tokens()


# Output.


def drawn(rows: Sequence[Any]) -> tuple[dict[str, Any], str]:
    options = {
        "device": "cpu",
        "dtype": "float32",
        "model": "random-tiny",
        "sizes": {"repeat": 1},
        "cache_tokens": 1000,
    }
    facts = bench_facts(rows, [FLAT, TREE], options=options)
    page = io.StringIO()
    show(Console(file=page, width=120), facts)
    return facts, page.getvalue()


def test_speeds_are_shown_relative_to_generate_on_the_same_work() -> None:
    rows = measure([InProcess("ramet", Exact()), InProcess("generate", Exact())], [FLAT, TREE])
    for row in rows:
        row.seconds = [4.0, 2.0 if row.engine == "generate" else 0.5]
    facts, page = drawn(rows)
    assert [row["times_generate"] for row in facts["results"]] == [4.0, 1.0] * 4
    assert facts["results"][0]["tokens_per_s"] == 12 / 0.5
    assert "flat: 3 calls, 15 prompt tokens" in page
    assert "tree: 1 tree," in page
    assert "4.00" in page
    assert json.loads(json.dumps(facts))["workloads"]["tree"]["calls"] == len(TREE.calls)


def test_a_refused_row_is_shown_with_its_reason() -> None:
    rows = measure(
        [InProcess("short", Exact(one_short)), InProcess("generate", Exact())], [FLAT, TREE], logprobs=[False]
    )
    facts, page = drawn(rows)
    assert facts["results"][0]["tokens_per_s"] is None
    assert facts["results"][0]["times_generate"] is None
    assert "refused" in page
    assert "short, flat without log-probs: unequal work: call 1 sampled 3 tokens, 4 recorded" in page


# The peers.


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    folder = tmp_path_factory.mktemp("random-tiny")
    write_random_model(folder, RANDOM_MODELS["random-tiny"], dtype="float32")
    room = max(TREE.room(16), FLAT.room(16))
    return Setting(
        folder=folder, device="cpu", dtype="float32", cache_tokens=room, longest=TREE.shape().longest, batch=4
    )


@pytest.mark.parametrize("workload", [FLAT, TREE], ids=["flat", "tree"])
@pytest.mark.parametrize("make", [RametPeer, GeneratePeer, ContinuousPeer])
def test_every_engine_does_the_recorded_work_with_the_log_probs_of_the_model(
    make: Callable[[Setting], Peer], workload: Workload, setting: Setting
) -> None:
    peer = make(setting)
    peer.prepare(logprobs=True)
    done = peer.run(workload, logprobs=True)
    (row,) = measure([InProcess("peer", peer)], [workload], logprobs=[False])
    peer.close()
    assert row.error is None
    model = load_model(setting.folder, device="cpu", dtype="float32")
    progress = Progress(workload)
    for index, result in enumerate(done):
        prompt, sampled = progress.prompt(index), list(result.token_ids)
        progress.end(index, sampled)
        with torch.no_grad():
            logits = model(torch.tensor([prompt + sampled])).logits[0, len(prompt) - 1 : -1]
        expected = logits.log_softmax(-1).gather(1, torch.tensor(sampled)[:, None])[:, 0]
        assert result.prompt_tokens == len(prompt)
        assert result.logprobs is not None
        torch.testing.assert_close(torch.tensor(list(result.logprobs)), expected, atol=1e-4, rtol=0)


# The command.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            Options(engines=("ramet", "xyz")),
            "engines: unknown name 'xyz': accepted: ramet, generate, continuous, vllm",
        ),
        (Options(workloads=("bush",)), "workloads: unknown name 'bush': accepted: flat, tree"),
        (Options(logprobs="always"), "logprobs: unknown name 'always': accepted: both, with, without"),
        (Options(dtype="int4"), "dtype: unknown name 'int4': accepted: float32, bfloat16, float16"),
        (Options(model="nowhere/at/all"), "no model at 'nowhere/at/all'"),
    ],
    ids=["engine", "workload", "log-probs", "dtype", "model"],
)
def test_an_unknown_name_is_an_error_that_lists_the_accepted_ones(options: Options, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        bench(options)


def test_an_engine_that_cannot_start_reports_the_reason_and_leaves_no_process(setting: Setting, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="it is not a Hugging Face model folder"):
        Subprocess("generate", replace(setting, folder=tmp_path), limit_s=120)
    with pytest.raises(EngineEnded, match="nonesuch ended: KeyError: 'nonesuch'") as ended:
        Subprocess("nonesuch", setting, limit_s=120)
    assert "Traceback" in ended.value.log
    with pytest.raises(EngineError, match="generate took more than 0 s"):
        Subprocess("generate", setting, limit_s=0)
    assert multiprocessing.active_children() == []


def test_the_command_needs_few_packages_besides_torch_and_transformers(tmp_path: Path) -> None:
    for name in ("pydantic", "duckdb", "pyarrow", "pydantic_monty", "json_repair", "typer"):
        (tmp_path / f"{name}.py").write_text(f"raise ImportError('{name} is not installed')")
    given = {"batch": 2, "prompt": 4, "new": 3, "trees": 1, "system": 8, "longest": 16, "repeat": 1}
    sizes = [word for name, size in given.items() for word in (f"--{name}", str(size))]
    command = [
        sys.executable,
        "-m",
        "ramet.bench.engine",
        "--model",
        "random-tiny",
        "--engines",
        "ramet",
        *sizes,
    ]
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2] / "src")])
    out = tmp_path / "out.json"
    done = subprocess.run(
        [*command, "--json", str(out)],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": path},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    facts = json.loads(out.read_text())
    assert facts["command"].startswith("ramet bench engine --model random-tiny --engines ramet --batch 2")
    kinds = [(row["workload"], row["logprobs"]) for row in facts["results"]]
    assert kinds == [("flat", False), ("flat", True), ("tree", False), ("tree", True)]
    assert all(row["tokens_per_s"] > 0 and len(row["seconds"]) == 1 for row in facts["results"])
    assert "tree: 1 tree," in done.stdout
