"""Runs that are given another number of steps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import ramet
from ramet.config import find_settings, load
from ramet.errors import ConfigError
from ramet.store.checkpoints import checkpoint_path
from ramet.train.length import FREE, change_settings, length_notes, parse_length
from ramet.train.loop import resume, train
from ramet.train.settings import TrainConfig, WarmConfig
from tests.train import small
from tests.train.test_loop import bits, numbers


def test_a_lengthened_run_is_the_run_that_had_so_many_steps_from_the_beginning(tmp_path: Path) -> None:
    folder = small.folder(tmp_path)
    whole = train(small.config(folder, "steps=3"), runs=tmp_path)
    first = train(small.config(folder, "steps=1"), runs=tmp_path)
    assert bits(first) != bits(whole)
    lengthened = resume(first.path, steps=3)
    assert bits(lengthened) == bits(whole)
    assert numbers(lengthened) == numbers(whole)
    assert load(TrainConfig, file=first.path / "config.toml").steps == 3
    (change,) = json.loads((first.path / "meta.json").read_text())["lengthened"]
    assert (change["after"], change["from"], change["to"]) == (1, 1, 3)


def made(parent: Path, config: TrainConfig | WarmConfig, *, done: int) -> ramet.RunDir:
    kind = "train" if isinstance(config, TrainConfig) else "warmstart"
    run = ramet.RunDir.create(parent, kind, config=config, kind=kind)
    checkpoint_path(run.path, done).mkdir(parents=True)
    return run


def test_a_run_cannot_have_fewer_steps_than_it_has_done(tmp_path: Path) -> None:
    config = TrainConfig(steps=10)
    run = made(tmp_path, config, done=6)
    assert change_settings(run, config) is config
    assert change_settings(run, config, steps=6).steps == 6
    with pytest.raises(ConfigError, match=r"steps=5: .* has already done 6 steps"):
        change_settings(run, config, steps=5)
    assert change_settings(run, config, minutes=2.5).minutes == 2.5


@pytest.mark.parametrize(
    ("words", "note"),
    [
        ([], None),
        (["update.schedule=linear"], "the linear schedule of the learning rate now ends at step 20: step 6 has 0.075"),
        (["refill=2"], "some of them come again"),
    ],
)
def test_what_depends_on_the_number_of_steps_is_said(tmp_path: Path, words: list[str], note: str | None) -> None:
    """Linear from 0.1 over 20 steps: 0.075 after 5. Over 10 steps it would have been 0.05."""
    config = load(TrainConfig, words=["steps=10", "update.learning_rate=0.1", *words])
    run = made(tmp_path, config, done=5)
    notes = length_notes(run, TrainConfig, 20)
    assert length_notes(run, TrainConfig, None) == length_notes(run, TrainConfig, 10) == []
    assert (notes == []) if note is None else (note in notes[0])
    if "update.schedule=linear" in words:
        assert notes[0].endswith("instead of 0.05")


@pytest.mark.parametrize(
    ("given", "kind", "why"),
    [
        (
            {"rule": "average"},
            TrainConfig,
            "a resumed run keeps its rule (it may change steps, minutes, save_every, ",
        ),
        (
            {"rule": "average"},
            TrainConfig,
            "; for another one start a new run from it: "
            "ramet train runs/x/config.toml model=runs/x warm.steps=0 rule=...",
        ),
        ({"update": {"learning_rate": 1e-5}}, TrainConfig, "a resumed run keeps its update.learning_rate (it"),
        ({"minutes": 5}, WarmConfig, "unknown setting 'minutes'"),
        ({"seed": 1}, WarmConfig, "for another one start a new run from it: ramet warmstart runs/x/config.toml"),
        ({"sav_every": 1}, TrainConfig, "unknown setting 'sav_every': did you mean save_every?"),
        ({"collect": {"processes": 2}}, WarmConfig, "unknown setting 'collect'"),
        ({"steps": 0}, TrainConfig, "steps is a number from 1 up; got 0"),
        ({"steps": 1.5}, TrainConfig, "steps is a number from 1 up; got 1.5"),
        ({"steps": True}, TrainConfig, "got True"),
    ],
)
def test_other_settings_are_refused(given: dict[str, object], kind: type[TrainConfig], why: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_length(given, Path("runs/x"), kind)
    assert why in str(error.value)
    assert parse_length({"steps": 5}, Path("runs/x"), kind) == {"steps": 5}


def test_settings_on_which_nothing_that_is_learnt_depends_can_be_changed(tmp_path: Path) -> None:
    folder = small.folder(tmp_path)
    whole = train(small.config(folder, "steps=4"), runs=tmp_path)
    first = train(small.config(folder, "steps=2", "save_every=2"), runs=tmp_path)
    free = parse_length({"save_every": 1, "stop": {"window": 3}}, first.path, TrainConfig)
    assert free == {"settings": {"save_every": 1, "stop.window": 3}}
    resume(first.path, steps=4, **free)
    assert bits(first) == bits(whole)
    config = load(TrainConfig, file=first.path / "config.toml")
    assert (config.steps, config.save_every, config.stop.window) == (4, 1, 3)
    assert [checkpoint_path(first.path, step).is_dir() for step in (2, 3, 4)] == [False, True, True]
    (change,) = json.loads((first.path / "meta.json").read_text())["changed"]
    assert (change["after"], change["settings"]) == (2, {"save_every": 1, "stop.window": 3})


def test_a_setting_of_a_wrong_type_changes_nothing(tmp_path: Path) -> None:
    config = TrainConfig(steps=10)
    run = made(tmp_path, config, done=6)
    with pytest.raises(ConfigError, match="save_every is a number from 1 up; got 0"):
        change_settings(run, config, settings={"save_every": 0})
    assert load(TrainConfig, file=run.path / "config.toml") == config


@pytest.mark.parametrize("kind", [TrainConfig, WarmConfig])
def test_every_setting_that_can_be_changed_exists(kind: type[TrainConfig] | type[WarmConfig]) -> None:
    own = [name for name in FREE if name.partition(".")[0] in kind.__dataclass_fields__]
    assert [
        name for name in own if name not in [*find_settings(kind, name.rpartition(".")[2]), *kind.__dataclass_fields__]
    ] == []
