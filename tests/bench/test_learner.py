"""The learner's benchmark measures the same work in every mode."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from ramet.bench.learner import MODES, bench, make_policy, make_rows, measure, step
from ramet.errors import ConfigError
from tests.cli.test_main import complaint
from tests.train.tiny import VOCABULARY, gradients, largest_difference, model

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:::torch")]


def test_every_mode_computes_the_same_gradient_and_packing_reads_fewer_tokens() -> None:
    rows = make_rows(prompt=20, answer=4, group=4, num_groups=2, vocabulary=VOCABULARY)
    found, reads = {}, {}
    for mode in MODES:
        policy = make_policy(mode, model("llama"))
        _, stats = step(policy, rows, tokens=100)
        found[mode], reads[mode] = gradients(policy), stats.num_read
    assert all(largest_difference(found["plain"], found[mode]) < 1e-9 for mode in MODES)
    assert reads["packed"] < reads["padded"] / 2


def test_all_prompts_begin_with_the_same_tokens_if_asked_to() -> None:
    rows = make_rows(prompt=20, answer=4, group=2, num_groups=3, vocabulary=VOCABULARY, system=12)
    assert len({row.token_ids[:12] for row in rows}) == 1
    assert len({row.token_ids[:20] for row in rows}) == 3


def test_speeds_are_in_tokens_per_second() -> None:
    rows = make_rows(prompt=20, answer=4, group=4, num_groups=2, vocabulary=VOCABULARY)
    facts = measure("packed", model("llama"), rows, tokens=100, repeat=1)
    assert facts["rows"] == 8
    assert facts["row_tokens_per_s"] * facts["seconds"] == pytest.approx(sum(len(row.read) for row in rows))
    assert facts["trained_tokens_per_s"] * facts["seconds"] == pytest.approx(sum(row.num_trained for row in rows))


def test_the_benchmark_reports_how_well_packed_and_padded_agree(capsys: pytest.CaptureFixture[str]) -> None:
    bench(prompts=[8], answer=2, group=2, tokens=64, repeat=1, modes=["packed"], device="cpu", as_json=True)
    facts = json.loads(capsys.readouterr().out)
    assert facts["agreement"]["logprobs"] < 1e-4
    assert facts["agreement"]["gradients"] < 1e-4
    assert [row["prompt"] for row in facts["results"]] == [8]


def test_the_table_has_speeds_relative_to_padding_and_memory(capsys: pytest.CaptureFixture[str]) -> None:
    bench(prompts=[24, 32], answer=4, tokens=256, modes=["padded", "packed"], device="cpu")
    message = " ".join(capsys.readouterr().out.split())
    for word in ("times", "padded", "peak", "row", "packed against padded in float32"):
        assert word in message


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (
            {"modes": ["packd"]},
            "modes: unknown name 'packd': did you mean packed? (accepted: plain, padded, packed, recomputed, compiled)",
        ),
        ({"prompts": [512], "tokens": 600}, "a row of 768 tokens does not fit into a micro-batch of 600"),
        ({"prompts": [64], "system": 64}, "system: the tokens that all prompts begin with are fewer than 64; got 64"),
        ({"shape": "7b"}, "shape: unknown name '7b': accepted: 135m, 5m"),
        ({"kernels": True, "device": "cpu"}, "--kernels counts the time of a GPU's kernels; this runs on cpu"),
        ({"device": "tpu"}, "device is cpu, cuda, cuda:1 or mps; got 'tpu'"),
    ],
)
def test_an_invalid_option_is_a_one_line_error(wanted: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        bench(**wanted)


def test_an_invalid_number_on_the_command_line_is_a_one_line_error(tmp_path: Path) -> None:
    message = complaint(tmp_path, "bench", "learner", "--prompts", "512,a")
    assert "prompts must be positive whole numbers, separated by commas; got '512,a'" in message
