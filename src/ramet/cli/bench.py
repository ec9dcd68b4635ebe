"""`ramet bench` with `runtime`, `learner`, `engine`, `train`, `serve` and `view`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ramet.cli.options import Json

app = typer.Typer(help="Measure speed, next to other frameworks in the same run.", no_args_is_help=True)

Device = Annotated[str | None, typer.Option(help="cpu, cuda or cuda:1; by default a GPU if there is one.")]


@app.command("runtime")
def runtime(
    fanout: Annotated[int, typer.Option(min=1, max=64, help="Children per node.")] = 4,
    depth: Annotated[int, typer.Option(min=1, max=12, help="Levels below the root.")] = 4,
    open_nodes: Annotated[int, typer.Option(min=0, help="Also keep this many nodes open at once.")] = 5000,
    repeat: Annotated[int, typer.Option(min=1, help="Repetitions per framework; the best counts.")] = 5,
    python: Annotated[
        Path | None,
        typer.Option(help="Python of an environment that has the other frameworks (rlms, openai-agents, ...)."),
    ] = None,
    json: Json = False,
) -> None:
    """Overhead per node of running a tree, next to rlms, openai-agents, langgraph and smolagents where installed."""
    from ramet.bench.runtime import bench

    bench(fanout=fanout, depth=depth, open_nodes=open_nodes, repeat=repeat, python=python, as_json=json)


@app.command("learner")
def learner(
    prompts: Annotated[str, typer.Option(help="Lengths of the shared prompts, in tokens.")] = "512,1024,4096",
    answer: Annotated[int, typer.Option(min=2, help="Longest answer, in tokens.")] = 256,
    group: Annotated[int, typer.Option(min=1, help="Rows that share a prompt.")] = 8,
    system: Annotated[int, typer.Option(min=0, help="Tokens that all prompts begin with.")] = 0,
    tokens: Annotated[int | None, typer.Option(min=64, help="Tokens per micro-batch; GPU: 32768, CPU: 4608.")] = None,
    modes: Annotated[str | None, typer.Option(help="Any of plain,padded,packed,recomputed,compiled.")] = None,
    shape: Annotated[str | None, typer.Option(help="Model size: 135m (default on a GPU) or 5m.")] = None,
    device: Device = None,
    repeat: Annotated[int | None, typer.Option(min=1, help="Steps per mode; the best counts. GPU: 3, CPU: 1.")] = None,
    kernels: Annotated[bool, typer.Option("--kernels", help="On a GPU: shares of its time by kind of kernel.")] = False,
    json: Json = False,
) -> None:
    """Tokens/s and memory of a training step: groups packed by their shared prompt, against padded ones."""
    from ramet.models.packages import check_packages

    check_packages()
    from ramet.bench.learner import bench, parse_numbers

    bench(
        prompts=parse_numbers(prompts),
        answer=answer,
        group=group,
        system=system,
        tokens=tokens,
        modes=None if modes is None else modes.split(","),
        shape=shape,
        device=device,
        repeat=repeat,
        kernels=kernels,
        as_json=json,
    )


@app.command("engine")
def engine(
    model: Annotated[
        str, typer.Option(help="smollm2, a Hugging Face folder, random-4b, random-135m or random-tiny.")
    ] = "random-135m",
    device: Device = None,
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16 or float16.")] = None,
    engines: Annotated[
        str | None, typer.Option(help="Any of ramet,generate,continuous,vllm; all installed ones by default.")
    ] = None,
    workloads: Annotated[str, typer.Option(help="flat, tree, or both.")] = "flat,tree",
    logprobs: Annotated[str, typer.Option(help="with, without, or both.")] = "both",
    batch: Annotated[
        int | None, typer.Option(min=1, help="Sequences in the flat workload and in a padded batch.")
    ] = None,
    prompt: Annotated[int | None, typer.Option(min=1, help="Prompt tokens per flat sequence.")] = None,
    new: Annotated[int | None, typer.Option(min=1, help="Generated tokens per flat sequence.")] = None,
    trees: Annotated[int | None, typer.Option(min=1, help="Trees in the tree workload.")] = None,
    system: Annotated[int | None, typer.Option(min=1, help="Tokens that all prompts of a tree share.")] = None,
    longest: Annotated[int | None, typer.Option(min=16, help="Tokens of the longest answer in a tree.")] = None,
    run: Annotated[Path | None, typer.Option(help="Use the trees of this run directory instead.")] = None,
    cache_tokens: Annotated[
        int | None, typer.Option(min=1, help="Size of each cache, in tokens; large enough for all calls by default.")
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads per engine; its own default.")] = None,
    repeat: Annotated[int | None, typer.Option(min=1, help="Passes per engine; the best counts.")] = None,
    seed: Annotated[int, typer.Option(help="Random seed of prompts and tree shapes.")] = 0,
    alternate: Annotated[bool, typer.Option(help="Keep all engines loaded and alternate between them.")] = True,
    limit_s: Annotated[float, typer.Option(min=1, help="Time limit of one pass, and of loading, in seconds.")] = 600.0,
    json: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write all numbers as JSON; - is standard output.")
    ] = None,
) -> None:
    """Tokens/s of this engine, transformers' generate and continuous batching, and vLLM where installed.

    Default sizes are small on a CPU and larger on a GPU. Engines that did unequal work are not compared.
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


@app.command("train")
def train(
    recipe: Annotated[
        str | None, typer.Argument(help="Recipe by name or file; craft-135m on a GPU, elsewhere nano.")
    ] = None,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Its settings, like overlap=3 or collect.processes=2."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="A model folder; random-4b, random-135m (default on a GPU) or random-tiny: turns are demonstrations."
        ),
    ] = None,
    device: Device = None,
    steps: Annotated[int, typer.Option(min=1, help="Measured steps per lane.")] = 3,
    lanes: Annotated[str, typer.Option(help="turns, overlap, processes, or several.")] = "turns,overlap,processes",
    checkpoint: Annotated[bool, typer.Option("--checkpoint", help="Also save a checkpoint and restore it.")] = False,
    json: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write all numbers as JSON; - is standard output.")
    ] = None,
) -> None:
    """Generated tokens/s of training end to end: parts one after the other, overlapping, trees in other processes.

    Shows what each thread computes and what limits the run.
    """
    from ramet.models.packages import check_packages

    check_packages()
    from ramet.bench.train import bench

    given = [word for word in (recipe, *(words or ())) if word is not None]
    named = given.pop(0) if given and "=" not in given[0] else None
    bench(
        recipe=named,
        words=given,
        model=model,
        device=device,
        steps=steps,
        wanted=lanes.split(","),
        checkpoint=checkpoint,
        json_to=json,
    )


@app.command("serve")
def serve(
    requests: Annotated[int, typer.Option(min=0, help="Requests in all; 0: none.")] = 10_000,
    at_once: Annotated[int, typer.Option(min=1, help="Trees at once.")] = 200,
    disconnects: Annotated[int, typer.Option(min=0, help="Disconnects in each of six situations; 0: none.")] = 40,
    rounds: Annotated[int, typer.Option(min=0, help="Rounds of the comparison of overheads; 0: none.")] = 5,
    python: Annotated[
        Path | None, typer.Option(help="Python of an environment that has litellm[proxy], to compare with its proxy.")
    ] = None,
    json: Json = False,
) -> None:
    """`ramet serve` under load with a scripted model; how soon trees end after their clients; overhead next to LiteLLM.

    Exit code 1 if a request was lost or doubled, or a budget was not exact.
    """
    from ramet.serve.server import check_packages

    check_packages()
    from ramet.bench.serve import bench

    if not bench(
        requests=requests, at_once=at_once, disconnects=disconnects, rounds=rounds, python=python, as_json=json
    ):
        raise typer.Exit(1)


@app.command("view")
def view(
    trees: Annotated[int, typer.Option(min=1, help="Trees of the run that is opened.")] = 100_000,
    nodes: Annotated[int, typer.Option(min=1, help="Nodes of the large tree.")] = 2000,
    repeat: Annotated[int, typer.Option(min=1, help="Passes; the best counts.")] = 3,
    json: Json = False,
) -> None:
    """How long the viewer takes to open a large run and to draw a large tree, and what following a run costs."""
    from ramet.view.server import check_packages

    check_packages()
    from ramet.bench.view import bench

    bench(trees=trees, nodes=nodes, repeat=repeat, as_json=json)
