"""Comparing engines: equal work or no number; and the peers really do what their rows claim."""

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

from ramet.bench.engine import Options, bench, measure, write_random
from ramet.bench.engine_lanes import Broken, EngineEnded, Inside, Outside
from ramet.bench.engine_peers import ContinuousPeer, Done, GeneratePeer, Peer, RametPeer, Setting, in_waves
from ramet.bench.engine_report import facts_of, show
from ramet.bench.workload import Call, Progress, Workload, flat, trees
from ramet.errors import ConfigError, EngineError
from ramet.models.folders import load_model

FLAT = flat(batch=3, prompt=5, new=4)
TREE = trees(count=1, system=20, longest=16)


class Exact:
    """Says zeros, as many as were recorded; `spoil` may change what it did for each call."""

    def __init__(self, spoil: Callable[[int, Done], Done] = lambda _, done: done) -> None:
        self.spoil = spoil
        self.facts: dict[str, Any] = {"version": "1"}
        self.prompts: list[list[list[int]]] = []

    def prepare(self, *, logprobs: bool) -> None:
        """Nothing to prepare."""

    def run(self, workload: Workload, *, logprobs: bool) -> list[Done]:
        progress = Progress(workload)
        done: list[Done] = []
        self.prompts.append([])
        for index, call in enumerate(workload.calls):
            prompt = progress.prompt(index)
            self.prompts[-1].append(prompt)
            said = [0] * call.new_tokens
            progress.end(index, said)
            chances = [-1.0] * call.new_tokens if logprobs else None
            done.append(self.spoil(index, Done(prompt_tokens=len(prompt), token_ids=said, logprobs=chances)))
        return done

    def close(self) -> None:
        """Nothing to put away."""


class Failing(Exact):
    def run(self, workload: Workload, *, logprobs: bool) -> list[Done]:
        raise EngineError("out of memory")


def one_short(index: int, done: Done) -> Done:
    return replace(done, token_ids=done.token_ids[:-1]) if index == 1 else done


# Equal work.


def test_an_engine_that_says_one_token_less_is_refused_and_the_others_are_compared() -> None:
    lanes = [Inside("generate", Exact()), Inside("short", Exact(one_short)), Inside("ramet", Exact())]
    rows = measure(lanes, [FLAT], logprobs=[False], repeat=2)
    assert [row.error for row in rows] == [None, "unequal work: call 1 said 3 tokens, 4 recorded", None]
    assert [row.tokens_per_s is None for row in rows] == [False, True, False]
    assert [len(row.seconds) for row in rows] == [2, 0, 2]


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda _, done: replace(done, prompt_tokens=4), "call 0 read 4 tokens, 5 recorded"),
        (lambda _, done: replace(done, token_ids=[*done.token_ids, 9]), "call 0 said 5 tokens, 4 recorded"),
        (lambda _, done: replace(done, logprobs=None), "call 0 came with 0 log-probs of 4"),
        (lambda _, done: replace(done, logprobs=done.logprobs[:-1]), "call 0 came with 3 log-probs of 4"),
        (lambda _, done: replace(done, logprobs=[float("nan")] * 4), "call 0 came with 0 log-probs of 4"),
        (lambda _, done: replace(done, logprobs=[-1, -1, 0.5, -1]), "call 0 came with 3 log-probs of 4"),
    ],
    ids=["other prompt", "one more token", "no log-probs", "one log-prob less", "not a number", "above certainty"],
)
def test_work_that_is_not_the_recorded_work_has_no_speed(spoil: Callable[[int, Done], Done], complaint: str) -> None:
    (row,) = measure([Inside("other", Exact(spoil))], [FLAT], logprobs=[True])
    assert row.error == f"unequal work: {complaint}"
    assert row.tokens_per_s is None


def test_an_answer_too_few_is_refused() -> None:
    class Forgetful(Exact):
        def run(self, workload: Workload, *, logprobs: bool) -> list[Done]:
            return super().run(workload, logprobs=logprobs)[:-1]

    (row,) = measure([Inside("forgetful", Forgetful())], [FLAT], logprobs=[False])
    assert row.error == "unequal work: 2 calls were answered, 3 recorded"


def test_an_engine_that_fails_does_not_stop_the_others() -> None:
    broken = Broken("vllm", EngineError("it did not start"))
    rows = measure([Inside("failing", Failing()), broken, Inside("ramet", Exact())], [TREE], logprobs=[False])
    assert [row.error for row in rows] == ["out of memory", "it did not start", None]


def test_no_pass_finds_its_prompts_in_a_cache_that_an_earlier_one_filled() -> None:
    peer = Exact()
    measure([Inside("ramet", peer)], [TREE, FLAT], repeat=3)
    assert len(peer.prompts) == 2 * 2 * (3 + 1)
    of_trees = [prompts[0] for prompts in peer.prompts if len(prompts) == len(TREE.calls)]
    assert len({prompt[0] for prompt in of_trees}) == len(of_trees) == 8


def test_warming_up_may_be_shorter_than_the_work() -> None:
    peer = Exact()
    measure([Inside("ramet", peer)], [TREE], logprobs=[True], repeat=2, warm_calls={"ramet": 2})
    assert [len(prompts) for prompts in peer.prompts] == [2, len(TREE.calls), len(TREE.calls)]


def test_waves_are_no_larger_than_a_batch_and_wait_for_the_wave_before() -> None:
    sizes: list[int] = []

    def batch(prompts: list[list[int]], calls: list[Call]) -> list[Done]:
        sizes.append(len(calls))
        assert [call.new_tokens for call in calls] == sorted(call.new_tokens for call in calls)
        return [
            Done(prompt_tokens=len(prompt), token_ids=[1] * call.new_tokens)
            for prompt, call in zip(prompts, calls, strict=True)
        ]

    workload = trees(count=4)
    done = in_waves(workload, batch, limit=3)
    assert max(sizes) == 3
    assert [one.prompt_tokens for one in done] == workload.prompt_tokens()


# What is printed.


def drawn(rows: Sequence[Any]) -> tuple[dict[str, Any], str]:
    options = {
        "device": "cpu",
        "dtype": "float32",
        "model": "random-tiny",
        "sizes": {"repeat": 1},
        "cache_tokens": 1000,
    }
    facts = facts_of(rows, [FLAT, TREE], options=options)
    page = io.StringIO()
    show(Console(file=page, width=120), facts)
    return facts, page.getvalue()


def test_speeds_are_told_as_ratios_to_generate_at_the_same_work() -> None:
    rows = measure([Inside("ramet", Exact()), Inside("generate", Exact())], [FLAT, TREE])
    for row in rows:
        row.seconds = [4.0, 2.0 if row.engine == "generate" else 0.5]
    facts, page = drawn(rows)
    assert [one["times_generate"] for one in facts["results"]] == [4.0, 1.0] * 4
    assert facts["results"][0]["tokens_per_s"] == 12 / 0.5
    assert "flat: 3 calls, 15 prompt tokens" in page
    assert "tree: 1 tree," in page
    assert "4.00" in page
    assert json.loads(json.dumps(facts))["workloads"]["tree"]["calls"] == len(TREE.calls)


def test_a_refused_row_is_shown_as_refused_with_its_reason() -> None:
    rows = measure([Inside("short", Exact(one_short)), Inside("generate", Exact())], [FLAT, TREE], logprobs=[False])
    facts, page = drawn(rows)
    assert facts["results"][0]["tokens_per_s"] is None
    assert facts["results"][0]["times_generate"] is None
    assert "refused" in page
    assert "short, flat without log-probs: unequal work: call 1 said 3 tokens, 4 recorded" in page


# The peers.


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    folder = tmp_path_factory.mktemp("random-tiny")
    write_random("random-tiny", folder, "float32")
    room = max(TREE.room(16), FLAT.room(16))
    return Setting(
        folder=folder, device="cpu", dtype="float32", cache_tokens=room, longest=TREE.shape().longest, batch=4
    )


@pytest.mark.parametrize("workload", [FLAT, TREE], ids=["flat", "tree"])
@pytest.mark.parametrize("make", [RametPeer, GeneratePeer, ContinuousPeer])
def test_every_engine_does_the_recorded_work_and_its_log_probs_are_the_models(
    make: Callable[[Setting], Peer], workload: Workload, setting: Setting
) -> None:
    peer = make(setting)
    peer.prepare(logprobs=True)
    done = peer.run(workload, logprobs=True)
    (row,) = measure([Inside("peer", peer)], [workload], logprobs=[False])
    peer.close()
    assert row.error is None
    model = load_model(setting.folder, device="cpu", dtype="float32")
    progress = Progress(workload)
    for index, one in enumerate(done):
        prompt, said = progress.prompt(index), list(one.token_ids)
        progress.end(index, said)
        with torch.no_grad():
            logits = model(torch.tensor([prompt + said])).logits[0, len(prompt) - 1 : -1]
        right = logits.log_softmax(-1).gather(1, torch.tensor(said)[:, None])[:, 0]
        assert one.prompt_tokens == len(prompt)
        assert one.logprobs is not None
        torch.testing.assert_close(torch.tensor(list(one.logprobs)), right, atol=1e-4, rtol=0)


# The command.


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (Options(engines=("ramet", "llama")), "engines are ramet, generate, continuous, vllm; got llama"),
        (Options(workloads=("bush",)), "workloads are flat, tree; got bush"),
        (Options(logprobs="maybe"), "log-probs are asked for both, with, without; got 'maybe'"),
        (Options(dtype="int4"), "dtype is one of float32, bfloat16, float16; got 'int4'"),
        (Options(model="nowhere/at/all"), "no model at 'nowhere/at/all'"),
    ],
    ids=["engine", "workload", "log-probs", "dtype", "model"],
)
def test_a_word_that_is_not_known_is_one_line_that_names_those_that_are(options: Options, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        bench(options)


@pytest.mark.slow
def test_an_engine_that_cannot_start_says_why_and_leaves_nothing_behind(setting: Setting, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="it is not a Hugging Face model folder"):
        Outside("generate", replace(setting, folder=tmp_path), limit_s=120)
    with pytest.raises(EngineEnded, match="nonesuch ended: KeyError: 'nonesuch'") as ended:
        Outside("nonesuch", setting, limit_s=120)
    assert "Traceback" in ended.value.log
    with pytest.raises(EngineError, match="generate took more than 0 s"):
        Outside("generate", setting, limit_s=0)
    assert multiprocessing.active_children() == []


@pytest.mark.slow
def test_the_command_needs_little_more_than_torch_and_transformers(tmp_path: Path) -> None:
    for name in ("pydantic", "duckdb", "pyarrow", "pydantic_monty", "json_repair", "typer"):
        (tmp_path / f"{name}.py").write_text(f"raise ImportError('there is no {name} here')")
    given = {"batch": 2, "prompt": 4, "new": 3, "trees": 1, "system": 8, "longest": 16, "repeat": 1}
    sizes = [word for name, size in given.items() for word in (f"--{name}", str(size))]
    words = [
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
        [*words, "--json", str(out)], capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path}, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    facts = json.loads(out.read_text())
    assert facts["command"].startswith("ramet bench engine --model random-tiny --engines ramet --batch 2")
    kinds = [(one["workload"], one["logprobs"]) for one in facts["results"]]
    assert kinds == [("flat", False), ("flat", True), ("tree", False), ("tree", True)]
    assert all(one["tokens_per_s"] > 0 and len(one["seconds"]) == 1 for one in facts["results"])
    assert "tree: 1 tree," in done.stdout
