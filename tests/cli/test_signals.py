"""SIGTERM and SIGHUP end a command as Ctrl-C does."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import ramet
from ramet.config import to_toml
from ramet.store import RunDir
from ramet.store.checkpoints import checkpoint_step, latest
from tests.cli.test_main import Server, serving, start
from tests.fork_server import environment, installed
from tests.train import small

ENDLESS = ["steps=100000", "save_every=100000"]


def begin(cwd: Path, *words: str, ignored: Sequence[int] = ()) -> subprocess.Popen[str]:
    """Start a command in a group of its own, with these signals ignored, as nohup and shells that run scripts do."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in ignored}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    try:
        return subprocess.Popen(installed(*words), cwd=cwd, env=environment(), start_new_session=True, **pipes)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def begin_training(cwd: Path, *words: str, ignored: Sequence[int] = ()) -> subprocess.Popen[str]:
    """A training of many steps, three of which are done."""
    (cwd / "small.toml").write_text(to_toml(small.config(small.folder(cwd), "name=small", *ENDLESS)))
    process = begin(cwd, "train", "small.toml", *words, ignored=ignored)
    assert process.stdout is not None
    assert any("step 3" in line for line in process.stdout)
    return process


def assert_saved(cwd: Path, process: subprocess.Popen[str], number: signal.Signals) -> None:
    said, complaints = process.communicate()
    assert (process.returncode, complaints) == (128 + number, f"ramet: interrupted by {number.name}\n")
    assert "train --resume runs/small" in said
    run = RunDir.open(cwd / "runs" / "small")
    assert checkpoint_step(latest(run.path)) == len(run.metrics()) >= 3


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_training_is_saved_where_it_was(tmp_path: Path, number: signal.Signals) -> None:
    process = begin_training(tmp_path)
    process.send_signal(number)
    assert_saved(tmp_path, process, number)


def test_a_training_is_saved_where_it_was_if_all_its_processes_get_the_signal(tmp_path: Path) -> None:
    process = begin_training(tmp_path, "update.process=true")
    os.killpg(process.pid, signal.SIGTERM)
    assert_saved(tmp_path, process, signal.SIGTERM)


def test_control_c_is_one_line_if_workers_that_make_demonstrations_get_it_too(tmp_path: Path) -> None:
    model = small.folder(tmp_path)
    words = [f"model={model}", "task=arithmetic:train", "steps=100000", "save_every=100000", "trees_per_step=2"]
    process = begin(tmp_path, "warmstart", *words, "workers=1", "sampler.device=cpu")
    assert process.stdout is not None
    assert any("step 3" in line for line in process.stdout)
    os.killpg(process.pid, signal.SIGINT)
    said, complaints = process.communicate()
    assert (process.returncode, complaints) == (130, "ramet: interrupted\n")
    assert "warmstart --resume runs/warmstart" in said


def test_signals_that_are_ignored_at_the_start_stay_ignored_and_do_not_hold_up_another(tmp_path: Path) -> None:
    process = begin_training(tmp_path, ignored=[signal.SIGINT, signal.SIGHUP])
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGINT)
    assert process.stdout is not None
    assert any("step 5" in line for line in process.stdout)
    process.send_signal(signal.SIGTERM)
    assert_saved(tmp_path, process, signal.SIGTERM)


def test_the_unfinished_tree_of_a_run_is_stored(tmp_path: Path) -> None:
    with serving(Server()) as server:
        process = start(tmp_path, server)
        process.send_signal(signal.SIGTERM)
        said, complaints = process.communicate()
    assert (process.returncode, complaints) == (143, "ramet: interrupted by SIGTERM\n")
    assert "the tree so far is in runs/will-it-end  (" in said
    (tree,) = ramet.read_trees(tmp_path / "runs" / "will-it-end")
    assert tree.root.stop is ramet.Stop.CANCELLED


def test_a_server_is_shut_down_in_order_when_its_terminal_is_closed(tmp_path: Path) -> None:
    with serving(Server()) as server:
        words = ["--base-url", server.url, "--model", "tiny", "--dialect", "tools", "--port", "0"]
        process = begin(tmp_path, "serve", *words)
        assert process.stderr is not None
        assert any(line.startswith("trees ") for line in process.stderr)
        process.send_signal(signal.SIGHUP)
        _, said = process.communicate()
    assert process.returncode == 0
    assert "shutting down: 0 trees left" in said
