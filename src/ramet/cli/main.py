"""The `ramet` command. Each verb parses its words and calls one function; heavy imports wait until then."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, cast

import typer

from ramet.cli.evaluate import evaluate
from ramet.cli.options import ApiKey, DataPath, Json, Options, Recipe, Resume, RunPath, Runs, Settings
from ramet.cli.report import report
from ramet.errors import RametError

app = typer.Typer(
    help="Run language models that split their work among clones of themselves, under budgets that hold.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
tasks_app = typer.Typer(help="Look at tasksets: what there is, samples with their oracle's tree, checks.")
app.add_typer(tasks_app, name="tasks")
bench_app = typer.Typer(help="Measure speed, beside other frameworks in the same run.", no_args_is_help=True)
app.add_typer(bench_app, name="bench")

# Base of every complaint about flags. A typer with its own click and one with the real click have it in the same place.
CliError = cast(type[Exception], typer.BadParameter.__mro__[2])

INTERRUPTED = 130


def main() -> None:
    """Entry point: every foreseeable mistake is one line and exit code 2."""
    try:
        code = app(standalone_mode=False)
        if code == INTERRUPTED:  # typer may have turned Ctrl-C into an exit code
            _fail("interrupted")
    except CliError as error:
        message = cast(typer.BadParameter, error).format_message() + _accepted(error)
        code = _fail(message or "see ramet --help")
    except RametError as error:
        code = _fail(str(error))
    except (KeyboardInterrupt, typer.Abort):
        code = _fail("interrupted", code=INTERRUPTED)
    sys.exit(code if isinstance(code, int) else 0)


def _accepted(error: Exception) -> str:
    """The commands there are, for somebody who named another."""
    context = getattr(error, "ctx", None)
    if context is None or not str(error).startswith("No such command"):
        return ""
    return f" There are {', '.join(context.command.list_commands(context))}."


def _fail(message: str, *, code: int = 2) -> int:
    sys.stderr.write(f"ramet: {' '.join(message.split())}\n")
    return code


def _version(wanted: bool) -> None:
    if wanted:
        import ramet

        typer.echo(f"ramet {ramet.__version__}")
        raise typer.Exit


@app.callback()
def _root(  # pyright: ignore[reportUnusedFunction]
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    del version


@app.command()
def run(
    question: Annotated[str, typer.Argument(help="What to ask; or a task, NAME:SPLIT/INDEX, like craft:hard/17.")],
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Any other setting, like budget.turns=4.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="A TOML file with settings.")] = None,
    engine: Annotated[str | None, typer.Option(help="http: an OpenAI-compatible server. local: this process.")] = None,
    base_url: Annotated[str | None, typer.Option(help="The server's address (http://127.0.0.1:8000/v1).")] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="Its name on the server. smollm2, or a folder with config.json, is loaded into this process unless "
            "--engine or --base-url names a server."
        ),
    ] = None,
    api_key: ApiKey = None,
    tokenizer: Annotated[
        str | None, typer.Option(help="Folder with tokenizer.json, .gguf file or smollm2: exact token ids.")
    ] = None,
    tokens: Annotated[int | None, typer.Option(help="Generated tokens of the whole tree (4000).")] = None,
    nodes: Annotated[int | None, typer.Option(help="Agents in the tree, the root included (16).")] = None,
    depth: Annotated[int | None, typer.Option(help="Levels below the root (3).")] = None,
    seconds: Annotated[float | None, typer.Option(help="Wall clock of the whole tree (no limit).")] = None,
    dialect: Annotated[
        str | None, typer.Option(help="How the model writes actions: tools (default) or python.")
    ] = None,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy (0.7).")] = None,
    seed: Annotated[int | None, typer.Option(help="Of the sampling; some servers ignore it.")] = None,
    show_budget: Annotated[bool | None, typer.Option(help="Tell the model what it has left.")] = None,
    data: DataPath = None,
    runs: Annotated[Path, typer.Option(help="Where run directories go.")] = Path("runs"),
    json: Json = False,
) -> None:
    """Answer QUESTION with a tree of clones, shown live, within a budget that holds.

    Example: ramet run "Compare Rome and Oslo" --model my-model --tokens 4000 --nodes 16 --depth 3 --seconds 60

    Without a server: ramet run "What is the capital of France?" --model smollm2
    """
    from ramet.cli import commands
    from ramet.config import RunConfig, load

    flags = {
        "engine.kind": engine,
        "engine.base_url": base_url,
        "engine.model": model,
        "engine.tokenizer": tokenizer,
        "budget.tokens": tokens,
        "budget.nodes": nodes,
        "budget.depth": depth,
        "budget.seconds": seconds,
        "dialect": dialect,
        "temperature": temperature,
        "seed": seed,
        "show_budget": show_budget,
        "question": question,
        "taskset.data": data,
    }
    given = {key: value for key, value in flags.items() if value is not None}
    resolved = load(RunConfig, file=config, words=settings or [], flags=given)
    work = commands.work_of(resolved)
    if work is not None:  # the task's own budget, with what was said laid over it
        base = {"budget": commands.budget_of(work)}
        resolved = load(RunConfig, file=config, words=settings or [], flags=given, base=base)
    commands.run(resolved, work, api_key=api_key, runs=runs, as_json=json)


@app.command()
def show(
    run: RunPath,
    tree: Annotated[str | None, typer.Option(help="Only the tree whose id starts so.")] = None,
    node: Annotated[int | None, typer.Option(help="Everything this node was given and said.")] = None,
    json: Json = False,
) -> None:
    """Draw the trees of a RUN directory, or print one node's whole context."""
    from ramet.cli import commands

    commands.show(run, tree_id=tree, node=node, as_json=json)


@app.command()
def sql(run: RunPath, query: Annotated[str, typer.Argument(help="SQL, read by DuckDB.")], json: Json = False) -> None:
    """Ask a RUN directory in SQL: nodes (a row a node), trees (a row a tree), metrics; of an evaluation, records.

    Example: ramet sql runs/my-run "select depth, count(*), avg(tokens) from nodes group by depth"
    """
    from ramet.cli import commands

    commands.sql(run, query, as_json=json)


@app.command()
def demo(
    settings: Settings = None,
    runs: Annotated[Path, typer.Option(help="Where the run directory goes.")] = Path("runs"),
    number: Annotated[int, typer.Option("-n", help="Tasks per measurement.", min=20)] = 200,
) -> None:
    """Train a very small model from nothing to delegate, and measure it: about ten minutes on two CPU cores.

    Interrupted, the same command goes on. Settings are laid over the recipe nano.
    """
    from ramet.demo.demo import demo as run_demo

    run_demo(runs, words=settings or [], number=number)


@app.command()
def tour(
    runs: Annotated[Path, typer.Option(help="Where the run directory goes.")] = Path("runs"),
    pace: Annotated[float, typer.Option(help="Seconds per scripted second; 0 does not wait.")] = 1.0,
) -> None:
    """Run a scripted tree (no model needed): delegation, parallel clones, a refused grant, a partial answer."""
    from ramet.demo.tour import tour as run_tour

    run_tour(runs, pace=pace)


@app.command()
def train(
    recipe: Recipe = None,
    settings: Settings = None,
    resume: Resume = None,
    runs: Runs = Path("runs"),
    data: DataPath = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only check the settings, all but the weights, and print them in full.")
    ] = False,
    json: Json = False,
) -> None:
    """Train a model to delegate: play groups of trees, credit every node, update, again.

    Without a recipe or settings it lists the recipes that come with it.

    Example: ramet train arithmetic-135m steps=50 budget.tokens=[200,900] show_budget=true

    A run that was interrupted or killed goes on with ramet train --resume runs/arithmetic-135m
    """
    from ramet.cli import train_commands

    train_commands.train(recipe, settings or [], resume=resume, runs=runs, data=data, check=check, as_json=json)


@app.command()
def warmstart(
    recipe: Recipe = None,
    settings: Settings = None,
    resume: Resume = None,
    runs: Runs = Path("runs"),
    data: DataPath = None,
    json: Json = False,
) -> None:
    """Teach a model by demonstrations: a taskset's oracle (task=NAME:SPLIT), or the trees of a run (run=DIR).

    Example: ramet warmstart task=craft:easy steps=100 delegate=0.5
    """
    from ramet.cli import train_commands

    train_commands.warmstart(recipe, settings or [], resume=resume, runs=runs, data=data, as_json=json)


app.command("eval")(evaluate)
app.command("report")(report)


@tasks_app.callback(invoke_without_command=True)
def tasks(context: typer.Context, json: Json = False) -> None:
    """List the tasksets, one line each."""
    if context.invoked_subcommand is None:
        from ramet.cli import task_commands

        task_commands.listing(as_json=json)


@tasks_app.command("show")
def tasks_show(
    name: Annotated[str, typer.Argument(help="A taskset: ramet tasks lists them.")],
    options: Options = None,
    split: Annotated[str | None, typer.Option(help="Which part of it; the first one unless said.")] = None,
    number: Annotated[int, typer.Option("-n", min=1, help="How many.")] = 3,
    start: Annotated[int, typer.Option(min=0, help="From which index on.")] = 0,
    dialect: Annotated[str, typer.Option(help="How the oracle writes: tools or python.")] = "tools",
    data: DataPath = None,
    json: Json = False,
) -> None:
    """Print tasks of a taskset, each with the tree its oracle grows.

    Example: ramet tasks show arithmetic --split long -n 2
    """
    from ramet.cli import task_commands

    taskset = task_commands.taskset_of(name, options or [], data)
    task_commands.show(taskset, split, number=number, start=start, dialect=dialect, as_json=json)


@tasks_app.command("check")
def tasks_check(
    name: Annotated[str, typer.Argument(help="A taskset: ramet tasks lists them.")],
    options: Options = None,
    split: Annotated[str | None, typer.Option(help="Which part of it; all of them unless said.")] = None,
    number: Annotated[int, typer.Option("-n", min=1, help="How many of each.")] = 5,
    data: DataPath = None,
) -> None:
    """Check a taskset: right scores 1, wrong does not, and its oracle wins in both dialects, alone and delegating."""
    from ramet.cli import task_commands

    taskset = task_commands.taskset_of(name, options or [], data)
    if not task_commands.check(taskset, split, number=number):
        raise typer.Exit(1)


@bench_app.command("runtime")
def bench_runtime(
    fanout: Annotated[int, typer.Option(min=1, max=64, help="Children per node.")] = 4,
    depth: Annotated[int, typer.Option(min=1, max=12, help="Levels below the root.")] = 4,
    open_nodes: Annotated[int, typer.Option(min=0, help="Also hold this many nodes open at once.")] = 5000,
    repeat: Annotated[int, typer.Option(min=1, help="Runs each; the best counts.")] = 5,
    python: Annotated[
        Path | None, typer.Option(help="Another Python that has the peers installed (rlms, openai-agents, ...).")
    ] = None,
    json: Json = False,
) -> None:
    """Overhead per node of running a tree, beside rlms, openai-agents, langgraph and smolagents where importable."""
    from ramet.bench.runtime import bench

    bench(fanout=fanout, depth=depth, open_nodes=open_nodes, repeat=repeat, python=python, as_json=json)


@bench_app.command("learner")
def bench_learner(
    prompts: Annotated[str, typer.Option(help="Lengths of the shared prompts, in tokens.")] = "512,1024,4096",
    answer: Annotated[int, typer.Option(min=2, help="Longest answer, in tokens.")] = 256,
    group: Annotated[int, typer.Option(min=1, help="Rows that share a prompt.")] = 8,
    tokens: Annotated[int | None, typer.Option(min=64, help="A micro-batch: 32768 on a GPU, else 4608.")] = None,
    modes: Annotated[str | None, typer.Option(help="Of plain,padded,packed,recomputed; all unless said.")] = None,
    shape: Annotated[str | None, typer.Option(help="135m or 5m: the larger on a GPU unless said.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1; the GPU if there is one.")] = None,
    repeat: Annotated[int | None, typer.Option(min=1, help="Steps each, of which the best counts: 3, or 1.")] = None,
    json: Json = False,
) -> None:
    """Tokens/s and memory of learning: groups packed by their shared prompt against padded, in one run."""
    from ramet.models.folders import check_packages

    check_packages("")
    from ramet.bench.learner import bench, numbers

    bench(
        prompts=numbers(prompts),
        answer=answer,
        group=group,
        tokens=tokens,
        modes=None if modes is None else modes.split(","),
        shape=shape,
        device=device,
        repeat=repeat,
        as_json=json,
    )


@bench_app.command("engine")
def bench_engine(
    model: Annotated[
        str, typer.Option(help="smollm2, a Hugging Face folder, random-135m or random-tiny.")
    ] = "random-135m",
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1; the GPU if there is one.")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16 or float16.")] = None,
    engines: Annotated[str | None, typer.Option(help="Of ramet,generate,continuous,vllm; all importable ones.")] = None,
    workloads: Annotated[str, typer.Option(help="flat, tree, or both.")] = "flat,tree",
    logprobs: Annotated[str, typer.Option(help="with, without, or both.")] = "both",
    batch: Annotated[
        int | None, typer.Option(min=1, help="Sequences of the flat workload, and in a padded batch.")
    ] = None,
    prompt: Annotated[int | None, typer.Option(min=1, help="Tokens in each of their prompts.")] = None,
    new: Annotated[int | None, typer.Option(min=1, help="Tokens each of them generates.")] = None,
    trees: Annotated[int | None, typer.Option(min=1, help="Trees of the tree workload.")] = None,
    system: Annotated[int | None, typer.Option(min=1, help="Tokens all their nodes begin with.")] = None,
    longest: Annotated[int | None, typer.Option(min=16, help="Tokens of the longest answer in them.")] = None,
    run: Annotated[Path | None, typer.Option(help="Take the trees of this run directory instead.")] = None,
    cache_tokens: Annotated[int | None, typer.Option(min=1, help="Room in each cache; enough for all calls.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Of each engine on a CPU; as many as it likes.")] = None,
    repeat: Annotated[int | None, typer.Option(min=1, help="Passes each; the best counts.")] = None,
    seed: Annotated[int, typer.Option(help="For prompts and the shapes of trees.")] = 0,
    alternate: Annotated[bool, typer.Option(help="Keep all engines loaded and let them take turns.")] = True,
    limit_s: Annotated[float, typer.Option(min=1, help="The longest that one pass, or loading, may take.")] = 600.0,
    json: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write all numbers; - is standard output.")
    ] = None,
) -> None:
    """Tokens/s of this engine, transformers' generate and continuous batching, and vLLM where importable.

    Sizes are small on a CPU and larger on a GPU unless given. Engines that did unequal work are not compared.
    """
    from ramet.bench.engine import Options, bench

    sizes = {"batch": batch, "prompt": prompt, "new": new, "trees": trees, "system": system, "longest": longest}
    options = Options(
        model=model,
        device=device,
        dtype=dtype,
        engines=tuple(engines.split(",")) if engines is not None else None,
        workloads=tuple(workloads.split(",")),
        logprobs=logprobs,
        sizes={name: size for name, size in (sizes | {"repeat": repeat}).items() if size is not None},
        run=run,
        cache_tokens=cache_tokens,
        threads=threads,
        seed=seed,
        alternate=alternate,
        limit_s=limit_s,
    )
    if not bench(options, json_to=json):
        raise typer.Exit(1)
