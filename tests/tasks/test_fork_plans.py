"""A fork uses what its run used: functions, MCP servers and clone models; or one line says what is missing."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

import ramet
from ramet.agent.recording import ForkPoint
from ramet.engine.scripted import WordTokenizer
from ramet.engine.settings import EngineConfig
from ramet.inputs.open import as_stored, open_world
from ramet.inputs.settings import RunConfig
from ramet.store import RunDir
from ramet.tasks.forking import resolve_fork
from ramet.tasks.question import plan_question
from ramet.tokens.render import TokenRenderer
from tests.inputs import servers

RENDERER = TokenRenderer(WordTokenizer())
ENGINE = {"engine.kind": "http", "engine.model": "any"}
LOOK = '''
{declared}

def look(word: str) -> str:
    """Look something up."""
    return f"it is {{word}}"
'''


def turns(*texts: str) -> Any:
    return ramet.ScriptedEngine(lambda prompt: texts[prompt.turn], renderer=RENDERER)


def called(name: str, argument: str) -> str:
    return f'<tool_call>{{"name": "{name}", "arguments": {argument}}}</tool_call>'


def record(folder: Path, engine: Any, **settings: Any) -> Path:
    """A run directory with the tree of a question, as `ramet run` writes it."""
    config = RunConfig(question="What is it?", **settings)
    plan = plan_question(config, {})

    async def run() -> ramet.Tree:
        async with open_world(config, {}, plan.world) as world:
            return await ramet.run(plan.task, engine=engine, world=world)

    tree = anyio.run(run)
    made = RunDir.create(folder, "run", config=as_stored(config))
    made.write([tree])
    return made.path


def fork(run: Path, engine: Any, *, turn: int, **flags: Any) -> ramet.Tree:
    plan = resolve_fork(run, None, ForkPoint(node=0, turn=turn), flags={**ENGINE, **flags})

    async def grow() -> ramet.Tree:
        async with plan.open(engine, None) as forked:
            return await forked.run()

    return anyio.run(grow)


@pytest.mark.parametrize("declared", ["order_matters = False", ""])
def test_functions_are_found_from_any_folder_and_called_again_if_they_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, declared: str
) -> None:
    (tmp_path / "tools.py").write_text(LOOK.format(declared=declared), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    look = called("look", '{"word": "red"}')
    run = record(tmp_path, turns(look, "Answer: red"), functions=("tools.py",))
    monkeypatch.chdir("/")
    whole = fork(run, turns(look, "Answer: again"), turn=0)  # no call comes before the first turn
    assert whole.answer == "again"
    later = partial(fork, run, turns(look, "Answer: other"), turn=1)
    if declared:
        assert later().answer == "other"
    else:
        with pytest.raises(ramet.ForkError, match="nothing declares that calls of look can be repeated"):
            later()
    (tmp_path / "tools.py").unlink()
    with pytest.raises(ramet.ConfigError, match=f"no such file: {tmp_path}/tools.py"):
        later()


def test_mcp_servers_have_to_be_named_again_and_tools_that_only_read_are_called_again(tmp_path: Path) -> None:
    command = servers.write(tmp_path, "reading.py", READING)
    tell = called("tell", '{"name": "Ada"}')
    run = record(tmp_path, turns(tell, "Answer: told"), mcp=(command,))
    with pytest.raises(ramet.ConfigError, match=r"give them again, like --mcp 'python\S* reading.py'"):
        fork(run, turns(), turn=1)
    forked = fork(run, turns("", "Answer: told again"), turn=1, mcp=[command])
    assert forked.answer == "told again"
    assert "Hello, Ada!" in "".join(piece.text for piece in forked.root.pieces)


READING = '''
from mcp.server.mcpserver import MCPServer
from mcp_types import ToolAnnotations

server = MCPServer("reading")


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def tell(name: str) -> str:
    """A greeting."""
    return f"Hello, {name}!"


server.run()
'''


def test_an_address_is_stored_in_full_and_the_clone_model_is_the_runs(tmp_path: Path) -> None:
    clone = EngineConfig(model="small", base_url="http://127.0.0.1:9/v1")
    config = RunConfig(question="What?", mcp=("http://host/mcp?key=x",), clone=clone)
    tree = anyio.run(lambda: ramet.run("What?", engine=turns("Answer: that")))
    made = RunDir.create(tmp_path, "run", config=as_stored(config))
    made.write([tree])
    point = ForkPoint(node=0, turn=0)
    plan = resolve_fork(made.path, None, point, flags=ENGINE)
    assert plan.config.mcp == ("http://host/mcp",)
    assert (plan.config.clone.model, plan.config.clone.base_url) == ("small", "http://127.0.0.1:9/v1")
    other = resolve_fork(made.path, None, point, flags={**ENGINE, "clone.model": "tiny"})
    assert other.config.clone.model == "tiny"
    with pytest.raises(ramet.ConfigError, match=r"clone needs clone\.model"):
        resolve_fork(made.path, None, point, flags={**ENGINE, "clone.model": ""})
