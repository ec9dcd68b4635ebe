"""Other data sets are beyond training: two small files, and the splits of tasksets with several data sets."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ramet.evaluate import Record
from ramet.evaluate.items import Trained, load_tasksets, select_items
from ramet.evaluate.model import find_model
from ramet.evaluate.tables import make_section
from ramet.store import RunDir
from ramet.tasks.registry import load_taskset
from ramet.tasks.sources import HasSources, file_source, named_source, source_of
from ramet.train.settings import TrainConfig
from tests.report.samples import records


def write_rows(file: Path, *questions: str) -> Path:
    """A data file with pages, as multi-hop questions and the user's own files have them."""
    rows: list[dict[str, Any]] = [
        {
            "question": f"{question}?",
            "answer": "Rome",
            "context": [{"title": "a", "text": "b", "supporting": True}],
            "meta": {},
        }
        for question in questions
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def trained_run(parent: Path, **settings: Any) -> str:
    run = RunDir.create(parent, "run", kind="train", config=TrainConfig(**settings))
    (run.path / "checkpoints" / "step-000005").mkdir(parents=True)
    return str(run.path)


def beyond(model: str, spec: str, **options: Any) -> set[bool]:
    items = select_items(load_tasksets([spec], options), num_tasks=9, trained=find_model(model).trained)
    return {item.beyond for item in items}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for name in ("2wiki_train", "2wiki_eval", "musique_eval"):
        write_rows(tmp_path / f"{name}.jsonl", f"first of {name}", f"second of {name}")
    return tmp_path


def test_a_model_trained_on_one_data_set_is_beyond_training_on_another(data: Path) -> None:
    model = trained_run(data, task="multihop:2wiki_train", taskset={"data": str(data)})
    assert find_model(model).trained[0].source == "2wiki"
    assert beyond(model, "multihop:2wiki_eval", data=str(data)) == {False}
    assert beyond(model, "multihop:musique_eval", data=str(data)) == {True}
    assert beyond(model, "multihop:eval") == {True}  # invented worlds


def test_a_supervised_start_on_another_data_set_counts(data: Path) -> None:
    write_rows(data / "musique_train.jsonl", "one")
    warm = {"steps": 3, "task": "multihop:musique_train"}
    model = trained_run(data, task="multihop:2wiki_train", taskset={"data": str(data)}, warm=warm)
    assert {trained.source for trained in find_model(model).trained} == {"2wiki", "musique"}
    assert beyond(model, "multihop:musique_eval", data=str(data)) == {False}


def test_the_data_set_is_known_even_if_its_files_are_not_here(tmp_path: Path) -> None:
    model = trained_run(tmp_path, task="multihop:2wiki_train", taskset={"data": "/nowhere"})
    assert find_model(model).trained == [Trained("multihop", -math.inf, math.inf, "2wiki")]


def test_files_of_your_own_are_compared_by_content(tmp_path: Path) -> None:
    one, other = (write_rows(tmp_path / f"{name}.jsonl", *(f"{name} {i}" for i in range(20))) for name in ("a", "b"))
    copy = Path(shutil.copy(one, tmp_path / "copy.jsonl"))
    model = trained_run(tmp_path, task="jsonl:train", taskset={"file": str(one)})
    assert beyond(model, "jsonl:eval", file=str(one)) == {False}
    assert beyond(model, "jsonl:eval", file=str(copy)) == {False}
    assert beyond(model, "jsonl:eval", file=str(other)) == {True}
    assert file_source(tmp_path / "gone.jsonl") == "gone.jsonl"


def test_larger_sizes_of_the_same_data_set_are_still_beyond() -> None:
    known = Trained("multihop", 2, 3, "2wiki")
    assert known.covers("multihop", 3, "2wiki")
    assert not known.covers("multihop", 4, "2wiki")
    assert not known.covers("multihop", 3, "musique")
    assert not known.covers("multihop", 3, None)
    assert Trained("multihop", 2, 3).covers("multihop", 3, "musique")  # not known: as the sizes say
    assert Trained(None, 2, 3).covers("multihop", 3, "musique")  # from --trained 2:3


@pytest.mark.parametrize(
    ("name", "sources"),
    [
        ("multihop", {"train": "generated", "2wiki_eval": "2wiki", "musique_train": "musique"}),
        ("search", {"long": "generated", "2wiki_eval": "2wiki"}),
        ("aggregate", {"eval": "generated", "clinc_train": "clinc", "crd3_eval": "crd3"}),
        ("countdown", {"eval": "generated", "data_train": "data"}),
        ("number_search", {"eval": "generated", "data_eval": "data"}),
        ("math", {"train": "gsm8k", "gsm8k_test": "gsm8k", "math_train_l5": "math", "math500": "math"}),
        ("textcraft", {"train": "minecraft", "eval": "minecraft", "synth_eval": "synth"}),
        ("gym", {"train": "chain_sum"}),
    ],
)
def test_splits_know_their_data_set(name: str, sources: dict[str, str]) -> None:
    taskset = load_taskset(name)
    assert isinstance(taskset, HasSources)
    assert {split: taskset.source(split) for split in sources} == sources


def test_tasksets_of_one_kind_have_no_data_sets() -> None:
    assert source_of(load_taskset("arithmetic"), "eval") is None
    assert named_source("hotpotqa_train") == "hotpotqa"


def test_items_of_another_data_set_are_compared_separately() -> None:
    def mixed(method: str, scores: str) -> list[Record]:
        others = records(method, 100, scores, beyond=True)
        return records(method, 100, scores) + [replace(one, task=f"other {one.task}") for one in others]

    section = make_section({"": mixed("single", "0011") + mixed("clones", "1111")})
    assert [comparison.part for comparison in section.method_comparisons] == [
        "all items", "within training", "beyond training",
    ]  # fmt: skip
