"""Classes of one's own: found by reference, checked, reported in one line where they are wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

import ramet
from ramet import plugins
from ramet.agent.dialects import make_dialect
from ramet.config import load
from ramet.credit import load_rule
from ramet.engine.open import open_engine
from ramet.engine.settings import EngineConfig
from ramet.evaluate.session import resolve_eval_config, run_evaluation
from ramet.inputs.settings import RunConfig
from ramet.tasks.play import demonstrate
from ramet.tasks.provenance import plugin_facts
from ramet.tasks.question import RunPlan, resolve_run
from ramet.tasks.registry import find_task, load_taskset, parse_spec
from ramet.tasks.worlds import make_world, with_world
from ramet.train.settings import TrainConfig
from tests.plugin_files import write_documented, write_plugins


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a plug-in of every kind in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return write_plugins(tmp_path)


def complaint(reference: str, kind: str = "taskset") -> str:
    with pytest.raises(ramet.ConfigError, match=r"^.+\Z") as caught:
        plugins.make(reference, kind)
    return str(caught.value)


def test_every_kind_of_plugin_is_made_from_its_file(folder: Path) -> None:
    assert load_taskset("my_tasks.py:Backwards", most=3).task("train", 0).question.startswith("Say in reverse")
    assert load_taskset("my_tasks.py:READY").most == 3  # type: ignore[attr-defined]
    assert load_rule("my_rule.py:Plain", {"scale": 2.0}).scale == 2.0  # type: ignore[attr-defined]
    assert make_dialect("my_dialect.py:Plainer").name == "plainer"
    world = make_world("my_world.py:Library", ramet.Task(question="why?"))
    assert (world.context["note"], world.functions["shout"]("ok")) == ("about 4 letters", "OK")
    engine = open_engine(EngineConfig(kind="my_engine.py:Reverser", model="m", options={"prefix": "Answer: so "}))
    tree = anyio.run(lambda: ramet.run("Say: a b", engine=engine))  # type: ignore[arg-type]
    assert tree.answer == "so b a"


def test_a_mistake_in_a_reference_is_one_line_that_names_it(folder: Path) -> None:
    (folder / "syntax.py").write_text("x = 1\nclass X(:\n")
    (folder / "late.py").write_text("def f():\n    return zork\nf()\n")
    (folder / "leaves.py").write_text("import sys\nsys.exit(3)\n")
    (folder / "half.py").write_text("class Half:\n    name = 'half'\n    def size(self, split): return None\n")
    assert complaint("nothing.py:X") == "nothing.py:X: no such file: nothing.py"
    assert complaint("syntax.py:X").startswith("syntax.py:X: SyntaxError in syntax.py, line 2: ")
    assert complaint("late.py:X") == "late.py:X: NameError in late.py, line 2: name 'zork' is not defined"
    assert complaint("leaves.py:X").startswith("leaves.py:X: SystemExit in leaves.py, line 2")
    assert "did you mean Backwards?" in complaint("my_tasks.py:Bakwards")
    missing = "it has no task, no world, no budget, no verdict, no oracle, no self_check"
    assert complaint("half.py:Half") == f"half.py:Half is not a taskset: {missing}"
    assert complaint("no_such_package.x:Y") == "no_such_package.x:Y: no module 'no_such_package' in this environment"
    assert "is not a rule: it has no credit" in complaint("my_tasks.py:Backwards", "rule")
    assert "write folder/file.py:Name" in complaint("folder/file:X")


def test_an_exception_that_passes_through_a_plugin_is_one_line_that_names_its_file(folder: Path) -> None:
    (folder / "broken.py").write_text("import json\n\ndef f(text):\n    return json.loads(text)\n")
    function = plugins.load("broken.py:f", "function")
    with pytest.raises(json.JSONDecodeError) as caught:
        function("{")
    assert (plugins.mistake(caught.value) or "").startswith("JSONDecodeError in broken.py, line 4: Expecting property")
    group = ExceptionGroup("two", [ExceptionGroup("one", [caught.value]), KeyError("x")])
    assert plugins.mistake(group) == plugins.mistake(caught.value)


def test_an_exception_from_elsewhere_is_no_mistake_of_a_plugin(folder: Path) -> None:
    with pytest.raises(json.JSONDecodeError) as caught:
        json.loads("{")
    assert plugins.mistake(caught.value) is None


def test_options_of_a_plugin_are_checked_like_those_of_a_taskset(folder: Path) -> None:
    with pytest.raises(ramet.ConfigError, match="has no option 'mots': did you mean most"):
        load_taskset("my_tasks.py:Backwards", mots=3)
    with pytest.raises(
        ramet.ConfigError, match=r"taskset.most of my_tasks.py:Backwards: input should be a valid integer"
    ):
        load_taskset("my_tasks.py:Backwards", most="many")
    with pytest.raises(ramet.ConfigError, match="is an object, so it takes no options"):
        load_taskset("my_tasks.py:READY", most=4)
    with pytest.raises(ramet.ConfigError, match=r"did you mean credit.scale"):
        load_rule("my_rule.py:Plain", {"scal": 2.0})


def test_a_spec_of_a_plugin_has_a_colon_of_its_own_and_may_leave_out_the_split(folder: Path) -> None:
    assert parse_spec("pkg.mod:Name:eval") == ("pkg.mod:Name", "eval")
    assert parse_spec("verifiers:gsm8k") == ("verifiers:gsm8k", "")
    assert parse_spec("inspect:evals.py@sums:eval") == ("inspect:evals.py@sums", "eval")
    assert find_task("my_tasks.py:Backwards:eval/3", {})[1].id == "backwards:eval/3"
    assert find_task("my_tasks.py:Backwards/3", {})[1].id == "backwards:train/3"
    for wrong in ("craft", "my_tasks.py:", ":train", "craft:hard/3"):
        with pytest.raises(ramet.ConfigError, match=r"write NAME:SPLIT|craft needs a split"):
            parse_spec(wrong)


def test_a_recipe_names_files_beside_it_and_a_command_names_files_of_its_folder(folder: Path) -> None:
    recipes = folder / "recipes"
    recipes.mkdir()
    (recipes / "mine.toml").write_text('task = "../my_tasks.py:Backwards"\nrule = "my_rule.py:Plain"\n')
    config = load(TrainConfig, file=recipes / "mine.toml", words=["dialect=my_dialect.py:Plainer"])
    assert config.task == f"{folder.resolve()}/my_tasks.py:Backwards"
    assert config.rule == f"{recipes.resolve()}/my_rule.py:Plain"
    assert config.dialect == f"{folder.resolve()}/my_dialect.py:Plainer"
    assert load(RunConfig, words=["question=see a.py: it fails", "dialect=tools"]).question == "see a.py: it fails"


def test_a_changed_file_is_another_module_and_an_unchanged_one_is_the_same(folder: Path) -> None:
    first = plugins.load("my_tasks.py:Backwards", "taskset")
    assert plugins.load(str(folder / "my_tasks.py:Backwards"), "taskset") is first
    before = plugins.fingerprint("my_tasks.py:Backwards", "taskset")
    with (folder / "my_tasks.py").open("a") as file:
        file.write("\n# changed\n")
    assert plugins.load("my_tasks.py:Backwards", "taskset") is not first
    assert plugins.fingerprint("my_tasks.py:Backwards", "taskset") != before


def test_an_object_has_a_reference_within_its_block_only(folder: Path) -> None:
    found = load_taskset("my_tasks.py:Backwards")
    with plugins.holding(found, "taskset") as one, plugins.holding(found, "taskset") as other:
        assert (one, other) == ("object:Backwards", "object:Backwards-2")
        assert load_taskset(one) is found
        assert parse_spec(f"{one}:eval") == (one, "eval")
    with pytest.raises(ramet.ConfigError, match="Backwards is a taskset that a Python program passed in"):
        load_taskset("object:Backwards")


def test_a_world_of_ones_own_replaces_that_of_a_taskset(folder: Path) -> None:
    arithmetic = load_taskset("arithmetic")
    changed = with_world(arithmetic, "my_world.py:Library")
    task = arithmetic.task("train", 0)
    assert list(changed.world(task).functions) == ["shout"]
    assert list(arithmetic.world(task).functions) == []
    assert with_world(arithmetic, "") is arithmetic


def question(*words: str, text: str = "why?") -> RunPlan:
    return resolve_run(words=words, flags={"question": text, "engine.model": "m"})


def test_a_world_of_ones_own_is_joined_with_the_texts_and_functions_of_a_question(folder: Path) -> None:
    (folder / "tools.py").write_text("def add(a: int, b: int) -> int:\n    return a + b\n")
    (folder / "a.md").write_text("Oslo")
    own = "world=my_world.py:Library"
    joined = question(own, "functions=['tools.py']", "context=['a.md']").world
    assert joined is not None
    assert (list(joined.functions), joined.context) == (["shout", "add"], {"a.md": "Oslo", "note": "about 4 letters"})
    alone = question(own)
    assert alone.world is not None
    assert (list(alone.world.functions), alone.task.context) == (["shout"], {})
    assert question("context=['a.md']").world is None
    task = question(own, text="arithmetic:eval/0")
    assert task.world is not None
    assert list(task.world.functions) == ["shout"]


def test_worlds_that_do_not_fit_together_are_one_line(folder: Path) -> None:
    (folder / "tools.py").write_text("def shout(word: str) -> str:\n    return word\n")
    with pytest.raises(
        ramet.ConfigError, match=r"two functions are named shout: in .*my_world.py:Library and in tools.py"
    ):
        question("world=my_world.py:Library", "functions=['tools.py']")
    with pytest.raises(ramet.ConfigError, match="functions goes with a question in plain text"):
        question("world=my_world.py:Library", "functions=['tools.py']", text="arithmetic:eval/0")
    with pytest.raises(ramet.ConfigError, match="has no Libary: did you mean Library"):
        question("world=my_world.py:Libary")


def test_settings_of_built_in_engines_are_refused_for_one_of_ones_own(folder: Path) -> None:
    with pytest.raises(ramet.ConfigError, match=r"engine.concurrency has no effect on my_engine.py:Reverser"):
        EngineConfig(kind="my_engine.py:Reverser", concurrency=2)
    with pytest.raises(ramet.ConfigError, match=r"did you mean tinker\?"):
        EngineConfig(kind="tinkr")
    with pytest.raises(ramet.ConfigError, match=r"engine.options are for an engine of your own, and this is tinker"):
        EngineConfig(kind="tinker", options={"a": 1})
    assert plugin_facts(RunConfig()) == {}


def test_oracles_demonstrate_in_a_dialect_that_can_write_their_moves(folder: Path) -> None:
    taskset = load_taskset("my_tasks.py:Backwards")
    tree = anyio.run(lambda: demonstrate(taskset, taskset.task("train", 0), dialect="my_dialect.py:Plainer"))
    assert (tree.root.verdict, tree.dialect) == (ramet.Verdict(score=1.0, how="exact"), "my_dialect.py:Plainer")


def test_a_question_names_a_task_of_a_file_and_its_plugins_are_recorded(folder: Path) -> None:
    words = ["world=my_world.py:Library", "engine.kind=my_engine.py:Reverser"]
    plan = resolve_run(words=words, flags={"question": "my_tasks.py:Backwards:eval/1", "engine.model": "m"})
    assert plan.task.id == "backwards:eval/1"
    facts = plan.plugins()["plugins"]
    assert sorted((fact["kind"], Path(fact["reference"]).name) for fact in facts) == [
        ("engine", "my_engine.py:Reverser"),
        ("taskset", "my_tasks.py:Backwards"),
        ("world", "my_world.py:Library"),
    ]
    assert plugin_facts(RunConfig()) == {}


def test_an_evaluation_takes_files_and_starts_anew_when_one_has_changed(folder: Path) -> None:
    words = ["my_tasks.py:Backwards", "engine.kind=my_engine.py:Reverser", "engine.model=m", "num_tasks=2"]
    first, run = run_evaluation(*resolve_eval_config([*words, "methods=['single']"]))
    assert [record.score for record in first.records] == [1.0, 1.0]
    assert first.records[0].task == "backwards:eval/0"
    (folder / "my_tasks.py").write_text((folder / "my_tasks.py").read_text() + "\n# changed\n")
    _, other = run_evaluation(*resolve_eval_config([*words, "methods=['single']"]))
    assert other.path != run.path
    with pytest.raises(ramet.ConfigError, match=r"the file of .*my_tasks.py:Backwards has changed"):
        run_evaluation(*resolve_eval_config([*words, "methods=['single']"]), into=run.path)


def test_objects_are_evaluated_from_python(folder: Path) -> None:
    engine = plugins.make("my_engine.py:Reverser", "engine")
    taskset, dialect = load_taskset("my_tasks.py:Backwards"), make_dialect("tools")

    async def evaluate() -> ramet.evaluate.Evaluation:  # type: ignore[name-defined]
        return await ramet.evaluate([taskset], engine=engine, methods=["single"], n=2, dialect=dialect)

    assert [record.score for record in anyio.run(evaluate).records] == [1.0, 1.0]


# Entry points, of a package in a folder of its own.


def write_package(folder: Path) -> Path:
    """A package as `pip install --target` leaves it."""
    site = folder / "site"
    (site / "wordplay").mkdir(parents=True)
    for name in ("tasks", "rule", "dialect", "engine"):
        text = (folder / f"my_{name}.py").read_text(encoding="utf-8")
        (site / "wordplay" / f"{name}.py").write_text(text, encoding="utf-8")
    (site / "wordplay" / "__init__.py").touch()
    info = site / "wordplay-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: wordplay\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[ramet.tasksets]\nbackwards = wordplay.tasks:Backwards\nbroken = wordplay.nothing:X\n"
        "[ramet.rules]\nplain = wordplay.rule:Plain\n"
        "[ramet.dialects]\nplainer = wordplay.dialect:Plainer\n"
        "[ramet.engines]\nreverser = wordplay.engine:Reverser\n"
    )
    return site


def test_a_package_offers_plugins_by_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(write_package(folder)))
    assert load_taskset("backwards").name == "backwards"
    assert find_task("backwards:eval/2", {})[1].id == "backwards:eval/2"
    assert load_rule("plain").scale == 1.0  # type: ignore[attr-defined]
    assert make_dialect("plainer").name == "plainer"
    assert EngineConfig(kind="reverser").kind == "reverser"
    assert len(plugins.fingerprint("backwards", "taskset")) == 64
    with pytest.raises(ramet.ConfigError, match="did you mean backwards"):
        load_taskset("backward")
    with pytest.raises(ramet.ConfigError, match=r"wordplay.nothing:X: no module 'wordplay.nothing'"):
        load_taskset("broken")


def test_the_command_lists_and_checks_the_taskset_of_a_package(folder: Path) -> None:
    paths = os.pathsep.join([str(write_package(folder)), *(path for path in sys.path if path)])
    environment = {**os.environ, "PYTHONPATH": paths}

    def command(*words: str) -> str:
        words = (sys.executable, "-m", "ramet", *words)
        return subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout

    facts = {fact["name"]: fact["about"] for fact in json.loads(command("tasks", "--json"))}
    assert facts["backwards"] == "say words in reverse order"
    assert "no module 'wordplay.nothing'" in facts["broken"]
    assert "backwards:train  1 task, 6 trees (0 delegating): no faults" in command(
        "tasks", "check", "backwards", "-n", "1"
    )


# The documentation.


def test_every_file_of_the_documentation_is_a_plugin(folder: Path) -> None:
    write_documented(folder)
    names = {"tasks": "Backwards", "rule": "Plain", "dialect": "Plainer", "engine": "Reverser"}
    for stem, name in names.items():
        assert plugins.make(f"my_{stem}.py:{name}", "taskset" if stem == "tasks" else stem) is not None
    assert make_world("my_world.py:Library", ramet.Task(question="?")).functions["shout"]("a") == "A"
