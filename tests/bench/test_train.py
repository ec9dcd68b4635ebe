"""The benchmark of training: what it measures adds up, and what it says follows from the numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ramet.bench.train import Lane, bench, lanes
from ramet.bench.train_clock import Seconds
from ramet.bench.train_report import PARTS, limit, shares
from ramet.config import load
from ramet.errors import ConfigError
from ramet.train.settings import TrainConfig

SPENT: dict[str, Any] = dict.fromkeys(PARTS, 0.1) | {"wall": 2.0, "tokens": 1000, "steps": 10}


def result(*, overlap: int = 2, processes: int = 0, **seconds: float) -> dict[str, Any]:
    return {"overlap": overlap, "processes": processes, "seconds": SPENT | seconds}


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
        (result(tokens=300), "few requests (30)"),
        (result(), "the device"),
    ],
)
def test_what_limits_a_lane_follows_from_its_shares(given: dict[str, Any], said: str) -> None:
    assert said in limit(given)


def test_a_difference_of_sums_is_taken_field_by_field() -> None:
    assert Seconds(wall=5.0, tokens=70) - Seconds(wall=2.0, tokens=30) == Seconds(wall=3.0, tokens=40)


def test_lanes_are_compared_with_parts_one_after_the_other() -> None:
    assert lanes(load(TrainConfig, words=["collect.processes=3"])) == [
        Lane(name="one after the other", overlap=0, processes=0),
        Lane(name="overlap=2", overlap=2, processes=0),
        Lane(name="overlap=2 collect.processes=3", overlap=2, processes=3),
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
        assert 0 < spent["storing"] + spent["credit"] <= spent["process"]
        assert lane["limit"]
    assert found["results"][2]["seconds"]["players"] > 0
    assert "generated tokens/s" in capsys.readouterr().out


def test_a_model_that_is_not_there_is_one_clear_error() -> None:
    with pytest.raises(ConfigError, match="random-135m"):
        bench(recipe="nano", model="nowhere")
