"""`ramet train` and `ramet warmstart` in a process of their own."""

from __future__ import annotations

import json
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

import ramet
from ramet.config import load, to_toml
from ramet.recipes import describe, recipe_file, recipe_names
from ramet.store import RunDir
from ramet.store.checkpoints import checkpoint_path, latest
from ramet.train.loop import check_plan
from ramet.train.settings import TrainConfig, WarmConfig
from tests.cli.test_main import call, complaint, printed
from tests.fork_server import command, environment, installed
from tests.plugin_files import write_plugins
from tests.train import small


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small.folder(tmp_path_factory.mktemp("cli"))


@pytest.fixture
def recipe(tmp_path: Path, folder: Path) -> str:
    file = tmp_path / "small.toml"
    file.write_text(to_toml(small.config(folder, "name=small")))
    return str(file)


def test_a_run_prints_one_line_per_step_and_can_be_queried_afterwards(tmp_path: Path, recipe: str) -> None:
    said = printed(tmp_path, "train", recipe, "steps=2", "eval.every=2", "eval.num_tasks=2")
    lines = said.splitlines()
    assert lines[0] == "runs/small"
    for word in ("step 1", "reward", "success", "delegated", "tokens"):
        assert word in lines[1]
    assert "eval success" in lines[2]
    assert "runs/small/checkpoints/step-000002" in lines[3]
    assert json.loads(printed(tmp_path, "sql", "runs/small", "select count(*) as steps from metrics", "--json")) == [
        {"steps": 2}
    ]


@pytest.mark.parametrize("verb", ["train", "warmstart"])
def test_resuming_a_run_that_is_complete_needs_neither_its_model_nor_its_server(tmp_path: Path, verb: str) -> None:
    backend = {"kind": "tinker", "base_url": "http://127.0.0.1:1"}
    kind: type[TrainConfig | WarmConfig] = TrainConfig if verb == "train" else WarmConfig
    config = load(kind, flags={"steps": 2, "model": "gone", "task": "codes:train", "backend": backend})
    run = RunDir.create(tmp_path, "done", config=config, kind=verb)
    checkpoint_path(run.path, 2).mkdir(parents=True)
    run.log({"step": 0})
    run.log({"step": 1})
    done = subprocess.run(
        command(verb, "--resume", "done"), cwd=tmp_path, env=environment(), capture_output=True, text=True, check=True
    )
    assert done.stderr.startswith("ramet: done has done all its steps (2); to lengthen it: ")
    assert done.stderr.endswith(f"ramet {verb} --resume done steps=4\n")
    assert "done/checkpoints/step-000002" in done.stdout


def test_an_interrupted_run_prints_how_to_resume_it(tmp_path: Path, recipe: str) -> None:
    process = subprocess.Popen(
        command("train", recipe, "steps=100000", "save_every=100000"),
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert any("step 3" in line for line in process.stdout)
    process.send_signal(signal.SIGINT)
    said, complaints = process.communicate()
    assert process.returncode == 130
    assert "train --resume runs/small" in said
    assert complaints == "ramet: interrupted\n"
    run = RunDir.open(tmp_path / "runs" / "small")
    steps = [record["step"] for record in run.metrics()]
    assert steps == list(range(len(steps)))
    assert len(list(ramet.read_trees(run))) in (12 * len(steps), 12 * (len(steps) + 1))


def test_a_warm_start_as_json_is_one_line_per_step(tmp_path: Path, folder: Path) -> None:
    words = [
        f"model={folder}",
        "taskset.operators=2",
        "taskset.digits=1",
        "sampler.device=cpu",
        "steps=3",
        "trees_per_step=2",
    ]
    said = printed(tmp_path, "warmstart", *words, "--json", start=installed)
    assert [json.loads(line)["step"] for line in said.splitlines()] == [0, 1, 2]
    assert latest(tmp_path / "runs" / "warmstart") is not None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train", "nowhere"], "no recipe 'nowhere': give a TOML file or a built-in recipe; ramet train lists them"),
        (["train", "arithmetic-315m"], "no recipe 'arithmetic-315m': did you mean arithmetic-135m?"),
        (["train", "nowhere.toml"], "there is no file nowhere.toml: give a TOML file or a built-in recipe"),
        (["train", "nano.tml"], "there is no file nano.tml: did you mean nano?"),
        (["train", "stpes=3"], "unknown setting 'stpes': did you mean steps?"),
        (["train", "nano", "--steps", "3"], "No such option: --steps (Possible options: --help); settings have no "),
        (["train", "nano", "--lr", "3"], "; settings have no dashes: write update.learning_rate=VALUE"),
        (["train", "nano", "task=codes"], "codes needs a split: codes:train, codes:eval, codes:long, codes:longer"),
        (["train", "nano", "model=org/name"], "; nothing is downloaded: hf download org/name --local-dir name"),
        (["train", "update.rate=1e-5"], "unknown setting 'update.rate': did you mean update.learning_rate?"),
        (["train", "nano", "options.digits=1"], "unknown setting 'options.digits': did you mean taskset.digits?"),
        (["train", "group_size=1"], "group_size=1: rao compares the trees of one task; give group_size=2 or more"),
        (["train", "--resume", "nowhere"], "nowhere is not a run directory"),
        (["train", "steps=3", "--resume", "nowhere"], "nowhere is not a run directory"),
        (["train", "model=nowhere"], "no model at 'nowhere'"),
        (["warmstart"], "say what to learn from: ramet warmstart task=NAME:SPLIT (demonstrations of its oracle; "),
        (["demo", "rule=roa"], "unknown credit rule 'roa': did you mean rao?"),
        (["warmstart", "loss.kind=ppo"], "a supervised start has no ratios"),
        (["warmstart", "run=nowhere"], "nowhere is not a run directory"),
    ],
)
def test_a_training_that_cannot_start_is_one_line(tmp_path: Path, words: list[str], said: str) -> None:
    assert said in complaint(tmp_path, *words)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one row in every file that a recipe reads."""
    made = tmp_path_factory.mktemp("data")
    page = {"title": "a", "text": "b", "supporting": True}
    row = {"question": "2+2?", "answer": "4", "context": [page], "meta": {}}
    for name in (
        "2wiki_train",
        "2wiki_eval",
        "math_train_l5",
        "math_hard_test_l5",
        "crd3_counts_train",
        "crd3_counts_eval",
    ):
        (made / f"{name}.jsonl").write_text(json.dumps(row) + "\n")
    return made


@pytest.mark.parametrize("name", recipe_names())
def test_built_in_recipes_name_only_what_exists(tmp_path: Path, data: Path, name: str) -> None:
    config = load(TrainConfig, file=recipe_file(name))
    reads = config.task in ("multihop:2wiki_train", "math:math_train_l5", "aggregate:crd3_train")
    check_plan(replace(config, taskset=config.taskset | ({"data": str(data)} if reads else {})))
    assert config.name == name
    assert len(describe(name)) > 40


def test_check_prints_all_settings_and_loads_no_model(tmp_path: Path, data: Path) -> None:
    said = printed(tmp_path, "train", "selfcest-2wiki-4b", "steps=30", "--check", "--data", str(data))
    (tmp_path / "again.toml").write_text(said)
    config = load(TrainConfig, file=tmp_path / "again.toml")
    assert (config.steps, config.credit, config.taskset) == (
        30,
        {"clone_weight": "ratio", "call_count": "published"},
        {"data": str(data)},
    )
    assert json.loads(printed(tmp_path, "train", str(tmp_path / "again.toml"), "--check", "--json"))["steps"] == 30
    assert not (tmp_path / "runs").exists()
    assert "reads 2wiki_train from a data folder" in complaint(tmp_path, "train", "selfcest-2wiki-4b", "--check")


def test_a_check_in_which_the_oracle_is_never_right_prints_the_settings_and_exits_with_1(tmp_path: Path) -> None:
    done = call(tmp_path, "train", "nano", "budget.tokens=60", "--check", "--json")
    assert (done.returncode, json.loads(done.stdout)["budget"]["tokens"]) == (1, 60)
    assert done.stderr == (
        "ramet: the oracle of codes:train is right in none of 5 tasks (2 stopped by budget); "
        "see ramet tasks check codes:train\n"
    )


@pytest.mark.parametrize("name", ["craft-135m", "selfcest-2wiki-4b"])
def test_the_single_variant_of_a_recipe_is_checked_and_printed(tmp_path: Path, data: Path, name: str) -> None:
    task = load(TrainConfig, file=recipe_file(name)).task
    words = ["--data", str(data)] if task.startswith(("math", "multihop:2wiki")) else []
    config = json.loads(printed(tmp_path, "train", name, "--single", "--check", "--json", *words))
    assert (config["name"], config["budget"]["depth"], config["budget"]["nodes"]) == (f"{name}-single", 0, 1)


def test_a_resumed_run_cannot_become_single(tmp_path: Path) -> None:
    said = complaint(tmp_path, "train", "--resume", "runs/x", "--single")
    assert "a resumed run keeps its settings: give only --resume RUN" in said


def test_a_warm_up_that_is_longer_than_the_training_is_a_warning(tmp_path: Path) -> None:
    done = call(tmp_path, "train", "nano", "steps=4", "warm.steps=10", "--check")
    assert done.stderr.splitlines() == [
        "ramet: warm.update.warmup_steps=50 is longer than warm.steps=10: the learning rate ends at 0.0006",
        "ramet: update.warmup_steps=5 is longer than steps=4: the learning rate ends at 0.00024",
    ]
    assert done.returncode == 0


@pytest.mark.parametrize(("words", "warned"), [([], True), (["budget.window=128"], False)])
def test_a_window_that_the_oracle_of_another_task_fills_is_a_warning(
    tmp_path: Path, words: list[str], warned: bool
) -> None:
    write_plugins(tmp_path)
    short = ("task=my_tasks.py:Backwards", "steps=1", "warm.steps=0", "tasks_per_step=1", "group_size=2")
    done = call(tmp_path, "train", "nano", *short, "update.warmup_steps=0", *words)
    assert done.returncode == 0
    assert [line.partition("; ")[0] for line in done.stderr.splitlines()] == warned * [
        "ramet: backwards:train/0: its oracle is stopped by window, not right, with 1 node and 14 of 1,500 tokens"
    ]


@pytest.mark.parametrize(
    ("words", "warned"),
    [
        (["credit.clone_cost=0.03"], True),
        (["credit.clone_cost=0.03", "credit.normalise=false"], False),
        ([], False),
    ],
)
def test_a_price_with_normalised_advantages_is_a_warning(tmp_path: Path, words: list[str], warned: bool) -> None:
    done = call(tmp_path, "train", "nano", "rule=selfcest", *words, "--check")
    assert done.returncode == 0
    assert ("ramet: a price with credit.normalise=true" in done.stderr) == warned


def test_a_resumed_run_takes_no_recipe(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("steps = 2\n")
    said = complaint(tmp_path, "train", "mine.toml", "--resume", "runs/x")
    assert "a resumed run has its own settings: leave 'mine.toml' out" in said


def test_a_checkpoint_in_place_of_a_run_is_answered_with_the_run(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path / "mine", "x", kind="train")
    (run.path / "checkpoints" / "step-000002").mkdir(parents=True)
    said = complaint(tmp_path, "train", "--resume", "mine/x/checkpoints/step-000002")
    assert "it has no meta.json; did you mean mine/x, which it is in?" in " ".join(said.split())


def test_without_a_recipe_the_built_in_ones_are_listed(tmp_path: Path) -> None:
    lines = printed(tmp_path, "train").splitlines()
    assert [line.split()[0] for line in lines if " train RECIPE " not in line and line] == recipe_names()
    assert json.loads(printed(tmp_path, "train", "--json"))["craft-135m"] == describe("craft-135m")


def test_the_papers_settings_are_the_papers() -> None:
    """Numbers from the two papers and their code, as the recipes have to say them."""
    rao, sums, maths = (
        load(TrainConfig, file=recipe_file(name))
        for name in ("rao-craft-4b", "selfcest-arithmetic-4b", "selfcest-math-4b")
    )
    assert (rao.tasks_per_step, rao.group_size, rao.overlap, rao.update.learning_rate) == (16, 8, 3, 3e-6)
    assert (rao.loss.kind, rao.loss.bounds) == ("cispo", (0.0, 5.0))
    assert (rao.budget["depth"], rao.budget["turns"], rao.budget["window"]) == (6, 25, 8192)
    assert rao.eval.budget["depth"] == 12
    assert (sums.tasks_per_step, sums.group_size, sums.update.learning_rate, sums.update.warmup_steps) == (
        32,
        4,
        6e-7,
        10,
    )
    assert (sums.loss.kind, sums.loss.bounds, sums.loss.dual_clip, sums.loss.kl) == ("ppo", (0.8, 1.2), 3.0, 5e-4)
    assert sums.credit == {"clone_weight": "ratio", "call_count": "published"}
    costs = {"clone_share": 0.4, "call_cost": 0.0, "length_cap": 0.5, "floor": 0.0}
    assert maths.credit == {"clone_weight": "ratio"} | costs
