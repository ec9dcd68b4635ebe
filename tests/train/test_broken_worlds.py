"""A world that cannot work ends a run, which keeps what it learnt."""

from __future__ import annotations

from pathlib import Path

import pytest

from ramet.errors import ConfigError
from ramet.store import RunDir
from ramet.store.checkpoints import list_checkpoints
from ramet.train.loop import train
from ramet.train.phase import open_local
from ramet.types import Prompt
from tests.agent.scripts import call, delegate
from tests.train import small
from tests.train.test_decisions import ScriptedBackend

BROKEN = """
from ramet.errors import ConfigError
from ramet.tasks.arithmetic import Arithmetic

class World:
    context = {}

    def __init__(self, index):
        self.index, self.functions = index, {"look": self.look}

    def look(self):
        if self.index >= 4:  # from the third step on
            raise ConfigError("the database is missing")
        return "7"

class Broken(Arithmetic):
    def world(self, task):
        return World(int(task.id.rpartition("/")[2]))
"""


@pytest.mark.parametrize("overlap", ["overlap=0", "overlap=1", "overlap_by=groups"])
@pytest.mark.parametrize("where", ["root", "clone"])
def test_its_config_error_is_raised_as_itself_and_the_run_is_saved(tmp_path: Path, where: str, overlap: str) -> None:
    def script(prompt: Prompt) -> str:
        if prompt.turn:
            return f"Answer: {prompt.last}"
        return call("look") if prompt.depth or where == "root" else delegate("look it up")

    (tmp_path / "broken.py").write_text(BROKEN)
    words = [f"task={tmp_path}/broken.py:Broken:train", "group_size=2", "save_every=100", "max_logprob_gap=1e9"]
    words += [overlap, "overlap=1"] if overlap == "overlap_by=groups" else [overlap]
    budget = {"tokens": 2000, "nodes": 3, "depth": 1, "window": 900}
    config = small.config(small.folder(tmp_path), *words, budget=budget)
    with pytest.raises(ConfigError, match=r"^the database is missing$"):
        train(config, runs=tmp_path, open_backend=lambda given: ScriptedBackend(open_local(given), script))
    run = RunDir.open(tmp_path / "train")
    assert 1 <= len(run.metrics()) <= 2
    assert [path.name for path in list_checkpoints(run.path)] == [f"step-{len(run.metrics()):06d}"]
