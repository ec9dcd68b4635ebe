"""The benchmark of training: what it measures adds up, and what it says follows from the numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ramet.bench.random_models import RANDOM_MODELS, write_random_model
from ramet.bench.train import Lane, bench, lanes
from ramet.bench.train_clock import Seconds
from ramet.bench.train_report import PARTS, limit, report, shares
from ramet.config import load
from ramet.errors import ConfigError
from ramet.models.folders import load_model
from ramet.train.settings import TrainConfig

SPENT: dict[str, Any] = dict.fromkeys(PARTS, 0.1) | {"wall": 2.0, "tokens": 1000, "steps": 10}


def result(*, overlap: int = 2, processes: int = 0, own_learner: bool = False, **seconds: float) -> dict[str, Any]:
    return {"overlap": overlap, "processes": processes, "own_learner": own_learner, "seconds": SPENT | seconds}


def test_shares_are_parts_of_the_wall_time() -> None:
    assert shares(SPENT) == dict.fromkeys(PARTS, pytest.approx(0.05))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (result(overlap=0), "take turns"),
        (result(loop=1.0, engine=0.7), "try collect.processes"),
        (result(loop=0.9, engine=0.8, processes=2), "more overlap does not help"),
        (result(learning=1.9), "learning"),
        (result(processes=1, players=1.8), "more collect.processes"),
        (
            result(processes=1, own_learner=True, players=1.8, learning=1.0),
            "the device",
        ),  # its time is not the players'
        (result(tokens=300), "few requests (30)"),
        (result(), "the device"),
    ],
)
def test_what_limits_a_lane_follows_from_its_shares(given: dict[str, Any], said: str) -> None:
    assert said in limit(given)


def test_a_difference_of_sums_is_taken_field_by_field() -> None:
    assert Seconds(wall=5.0, tokens=70) - Seconds(wall=2.0, tokens=30) == Seconds(wall=3.0, tokens=40)


def test_the_table_has_the_times_of_a_gpu_only_where_there_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    gpu = {"prompts": 500, "decoding": 0.3, "decoding_steps": 100, "reading": 1.0, "reading_steps": 200}
    facts = {"name": "overlap=2", "tokens_per_s": 500.0, "peak_gib": None}
    report("on a GPU", [result(**gpu) | facts], json_to=None)
    shown = capsys.readouterr().out
    assert "prompt tokens read per token                   │ 0.50" in shown
    assert "GPU: ms per step that decodes; that also reads │ 3.0; 5.0" in shown
    report("on a CPU", [result(**gpu | {"reading_steps": 0}) | facts], json_to=None)
    assert "ms per step" not in capsys.readouterr().out


def test_lanes_are_compared_with_parts_one_after_the_other() -> None:
    assert lanes(load(TrainConfig, words=["collect.processes=3"])) == [
        Lane(kind="turns", name="one after the other", overlap=0, processes=0),
        Lane(kind="overlap", name="overlap=2", overlap=2, processes=0),
        Lane(kind="processes", name="overlap=2 collect.processes=3", overlap=2, processes=3),
    ]


@pytest.mark.slow
def test_all_lanes_run_and_their_parts_are_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["tasks_per_step=2", "group_size=2", "overlap=1"]
    bench(recipe="nano", words=words, device="cpu", steps=1, json_to=tmp_path / "bench.json")
    found = json.loads((tmp_path / "bench.json").read_text())
    assert found["title"] == "nano with nano on cpu: 1 steps, turns of demonstrations"
    assert [lane["overlap"] for lane in found["results"]] == [0, 1, 1]
    assert found["results"][0]["times_first"] == 1
    for lane in found["results"]:
        spent = lane["seconds"]
        assert spent["tokens"] > 0
        assert spent["steps"] > 0
        assert spent["prompts"] > 0
        assert spent["reading_steps"] == 0  # a CPU computes a step when it is launched
        assert 0 < spent["storing"] + spent["credit"] <= spent["process"]
        assert lane["limit"]
    assert found["results"][2]["seconds"]["players"] > 0
    assert "generated tokens/s" in capsys.readouterr().out


def test_one_lane_with_a_checkpoint_that_is_saved_and_restored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["tasks_per_step=2", "group_size=2"]
    file = tmp_path / "bench.json"
    bench(recipe="nano", words=words, device="cpu", steps=1, wanted=["turns"], checkpoint=True, json_to=file)
    (lane,) = json.loads(file.read_text())["results"]
    assert lane["kind"] == "turns"
    assert lane["save_s"] > 0
    assert lane["restore_s"] > 0
    assert 0.003 < lane["checkpoint_gb"] < 0.02  # a third of a million weights, their float32 copies and two moments
    assert lane["peak_gib"] is None  # no GPU
    assert "to save it, to restore it" in capsys.readouterr().out


def test_an_unknown_lane_is_named_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"lanes: unknown name 'turn': did you mean turns\?"):
        bench(recipe="nano", wanted=["turn"])


def test_a_random_model_has_the_shape_and_class_of_a_known_one(tmp_path: Path) -> None:
    small = {"num_hidden_layers": 1, "hidden_size": 64, "intermediate_size": 64, "vocab_size": 64}
    write_random_model(tmp_path, RANDOM_MODELS["random-4b"] | small, dtype="bfloat16")
    model = load_model(tmp_path, device="cpu")
    assert type(model).__name__ == "Qwen3ForCausalLM"
    assert model.config.num_attention_heads * model.config.head_dim == 4096


def test_a_model_that_is_not_there_is_one_clear_error() -> None:
    with pytest.raises(ConfigError, match="random-135m"):
        bench(recipe="nano", model="nowhere")
