"""`ramet run` with a model in its own process."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

import ramet
from tests.cli.test_main import Server, call, complaint, printed, server

__all__ = ["server"]  # the fixture


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--model", "nowhere", "--engine", "local"], "no model at 'nowhere': give a folder"),
        (["--model", "smollm2", "engine.tries=2"], "engine.tries is for engine.kind=http, and this is local"),
        (["--model", "m", "engine.device=cpu"], "engine.device is for engine.kind=local, and this is http"),
        (["--model", "m", "--engine", "local", "--base-url", "http://host/v1"], "engine.base_url is for"),
        (["--engine", "local"], "which model? give --model NAME"),
        (["--model", "smollm2", "--dialect", "pyton"], "unknown dialect 'pyton'"),
        (["--model", "smollm2", "engine.dtype=int3"], "got 'int3'"),
    ],
)
def test_a_local_run_that_cannot_begin_is_one_line(tmp_path: Path, words: list[str], said: str) -> None:
    assert said in complaint(tmp_path, "run", "q", *words)


def test_a_judge_that_cannot_be_found_is_one_line(tmp_path: Path) -> None:
    words = ["arithmetic:train/0", "--model", "smollm2", "judge.model=huge"]
    assert "judge.model 'huge' is not on this machine: give judge.base_url" in complaint(tmp_path, "run", *words)


def test_a_device_that_does_not_exist_is_one_line(tmp_path: Path, smollm2: Path) -> None:
    words = ["q", "--model", str(smollm2), "engine.device=cuda:99"]
    assert "there is no device 'cuda:99'" in complaint(tmp_path, "run", *words)


def test_a_model_name_with_a_server_is_looked_up_on_the_server(tmp_path: Path, server: Server) -> None:
    done = call(tmp_path, "run", "q", "--model", "smollm2", "--base-url", server.url)
    assert done.returncode == 0, done.stderr
    assert f"'smollm2' is requested, although it is not among the models that {server.url} lists: tiny" in done.stderr


def test_top_p_and_top_k_go_to_the_server(tmp_path: Path, server: Server) -> None:
    words = ["run", "q", "--base-url", server.url, "--model", "tiny", "--dialect", "tools"]
    printed(tmp_path, *words)
    printed(tmp_path, *words, "engine.top_p=0.9", "engine.top_k=20")
    assert [body.get("top_p") for body in server.bodies] == [None, 0.9]
    assert [body.get("top_k") for body in server.bodies] == [None, 20]


@pytest.mark.slow
def test_smollm2_answers_without_a_server(tmp_path: Path, smollm2: Path) -> None:
    words = ["--model", "smollm2", "--tokens", "60", "--nodes", "2", "--temperature", "0", "--json"]
    question = "What is the capital of France?"
    facts = json.loads(printed(tmp_path, "run", question, *words, RAMET_CACHE=str(smollm2.parent)))
    assert "Paris" in facts["answer"]
    assert facts["usage"]["tokens"] <= 60
    config = tomllib.loads((tmp_path / facts["run"] / "config.toml").read_text())
    assert (config["engine"]["kind"], config["engine"]["model"]) == ("local", "smollm2")
    (tree,) = ramet.read_trees(tmp_path / facts["run"])
    said = next(piece for piece in tree.root.pieces if piece.sampled)
    assert len(said.token_ids) == len(said.logprobs) > 0


def test_a_judge_has_a_key_of_its_own_and_leaves_its_verdicts_in_the_run(tmp_path: Path, server: Server) -> None:
    (tmp_path / "mine.jsonl").write_text('{"question": "Say something nice.", "answer": "anything nice"}\n')
    command = ["eval", "jsonl:all", "taskset.file=mine.jsonl", "taskset.check=judge", "--methods", "single"]
    command += ["--model", "tiny", "--base-url", server.url, "engine.tries=2", "--json"]
    server.reply = '{"reason": "nice", "score": 0.5}'
    own = ["judge.model=tiny", f"judge.base_url={server.url}", "--into", "own"]
    (record,) = json.loads(printed(tmp_path, *command, *own, RAMET_JUDGE_API_KEY="its-key"))["records"]
    assert record["score"] == 0.5
    assert server.keys[-1] == "Bearer its-key"
    assert '"reason": "nice"' in (tmp_path / "own" / "judge.jsonl").read_text()
    assert "its-key" not in "".join(file.read_text() for file in (tmp_path / "own").glob("*.*l"))


@pytest.mark.slow
def test_a_local_model_is_judged_by_a_server(tmp_path: Path, server: Server, smollm2: Path) -> None:
    (tmp_path / "mine.jsonl").write_text('{"question": "Capital of France?", "answer": "Paris"}\n')
    server.reply = '{"reason": "close enough", "score": 0.5}'
    task = ["jsonl:all/0", "taskset.file=mine.jsonl", "taskset.check=judge", "--tokens", "60", "--nodes", "1", "--json"]
    judge = ["judge.model=tiny", f"judge.base_url={server.url}"]
    facts = json.loads(printed(tmp_path, "run", *task, *judge, "--model", str(smollm2), "engine.window=4096"))
    judgement = facts["verdict"].pop("judgement")
    assert facts["verdict"] == {"score": 0.5, "how": "judge", "reason": "close enough"}
    assert (judgement["model"], judgement["reply"]) == ("tiny", server.reply)
    assert [body["model"] for body in server.bodies] == ["tiny"]
