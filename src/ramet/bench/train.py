"""The speed of training end to end: the real loop, with parts one after the other, overlapping, and in processes.

Every way of running (a lane) plays the same tasks with the same model in the same run of the benchmark, and is compared
with the first: collect, then learn, then collect. A model that has not been trained cannot act, so unless a trained one
is given, completions get the ids of demonstrations after the model has computed them (`train_engine`).

    python -m ramet.bench.train nano collect.processes=1
"""

# pyright: standard

from __future__ import annotations

import gc
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ramet.bench.random_models import RANDOM_MODELS, write_random_model
from ramet.bench.train_clock import Clock, ClockedBackend, ClockedRun, ClockedRunner, Seconds, clocked
from ramet.bench.train_engine import DemonstratedEngine, demonstrated_turns
from ramet.bench.train_memory import checkpoint_seconds, peak_gib, reset_peak
from ramet.bench.train_report import report
from ramet.config import load
from ramet.errors import ConfigError, RametError, did_you_mean
from ramet.models.folders import BUILTIN_MODELS, choose_device, model_folder
from ramet.recipes import recipe_file
from ramet.store import RunDir
from ramet.tokens.huggingface import load_renderer
from ramet.train.collect import step_attempts
from ramet.train.loop import TrainPlan, check_plan, rl_phase
from ramet.train.phase import continue_run, open_local
from ramet.train.players.settings import CollectConfig
from ramet.train.settings import TrainConfig

LANES = ("turns", "overlap", "processes")
WARM_STEPS = 1  # not measured: kernels are compiled, graphs captured
OVERLAP = 2  # of lanes with overlap, where the recipe has none
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """One way to run the same training."""

    kind: str  # of LANES
    name: str
    overlap: int
    processes: int


class Measured(RametError):
    """Ends a training whose measured steps are done."""


def bench(
    *,
    recipe: str | None = None,
    words: Sequence[str] = (),
    model: str | None = None,
    device: str | None = None,
    steps: int = 3,
    wanted: Sequence[str] = LANES,
    checkpoint: bool = False,
    json_to: Path | None = None,
) -> None:
    """Measure the wanted lanes; print one table. `checkpoint`: each also saves one and restores it."""
    for name in wanted:
        if name not in LANES:
            raise ConfigError(f"lanes: unknown name {name!r}: {did_you_mean(name, LANES)}")
    on_gpu = choose_device(device).type == "cuda"
    if recipe is None:
        recipe, words = ("craft-135m", words) if on_gpu else ("nano", ["tasks_per_step=6", *words])
    model = model or ("random-135m" if on_gpu else None)
    with _folder(model, recipe, words, device) as (folder, trained):
        config = _settings(recipe, words, folder, device)
        results: list[dict[str, Any]] = []
        for lane in (lane for lane in lanes(config) if lane.kind in wanted):
            measured = _measure(lane, config, steps=steps, trained=trained, checkpoint=checkpoint)
            results.append(asdict(lane) | measured)
            gc.collect()  # the next lane loads the model again
            sys.stderr.write(f"{lane.name}: {results[-1]['tokens_per_s']:,.0f} generated tokens/s\n")
    acts = "its own samples" if trained else "turns of demonstrations"
    title = f"{recipe} with {model or own_model(recipe, words)} on {choose_device(device)}: {steps} steps, {acts}"
    report(title, results, json_to=json_to)


def lanes(config: TrainConfig) -> list[Lane]:
    """Parts one after the other, then with overlap, then with trees in processes of their own."""
    overlap, processes = config.overlap or OVERLAP, config.collect.processes or 1
    return [
        Lane(kind="turns", name="one after the other", overlap=0, processes=0),
        Lane(kind="overlap", name=f"overlap={overlap}", overlap=overlap, processes=0),
        Lane(
            kind="processes",
            name=f"overlap={overlap} collect.processes={processes}",
            overlap=overlap,
            processes=processes,
        ),
    ]


def _settings(recipe: str, words: Sequence[str], folder: Path, device: str | None) -> TrainConfig:
    """The recipe without a supervised start, evaluation and checkpoints; weights hardly change."""
    fixed = ["warm.steps=0", "eval.every=0", "save_every=1000000", "update.learning_rate=1e-9", f"model={folder}"]
    place = [] if device is None else [f"sampler.device={device}"]
    config = load(TrainConfig, file=recipe_file(recipe), words=[*words, *fixed, *place])
    if config.loss.kind == "plain" and config.loss.ceiling is None:  # overlap needs importance weights
        config = replace(config, loss=replace(config.loss, kind="cispo"))
    stop = replace(config.stop, no_signal_steps=0, fraction=0.0, when="")
    return replace(config, demos={}, track=(), max_logprob_gap=1e9, minutes=None, refill=0, stop=stop)


@contextmanager
def _folder(model: str | None, recipe: str, words: Sequence[str], device: str | None) -> Iterator[tuple[Path, bool]]:
    """The model's folder, and whether the model is trained. Random ones have the recipe's tokenizer."""
    own = own_model(recipe, words)
    if model is None or model in BUILTIN_MODELS:
        yield model_folder(model or own), (model or own) == "smollm2"
        return
    if model not in RANDOM_MODELS:
        path = Path(model)
        if not (path / "config.json").is_file():
            raise ConfigError(f"no model at {model!r}: give a model folder, or one of {', '.join(RANDOM_MODELS)}")
        yield path, True
        return
    with tempfile.TemporaryDirectory(prefix="ramet-bench-") as made:
        tokenizer, folder = model_folder(own), Path(made)
        known = load_renderer(tokenizer).tokenizer.vocab_size
        made_on = choose_device(device)
        dtype = "bfloat16" if made_on.type == "cuda" else "float32"
        shape = RANDOM_MODELS[model]
        shape = shape | {"vocab_size": max(known, shape["vocab_size"])}
        write_random_model(folder, shape, dtype=dtype, device=str(made_on))
        for name in TOKENIZER_FILES:
            if (tokenizer / name).is_file():
                (folder / name).write_bytes((tokenizer / name).read_bytes())
        yield folder, False


def own_model(recipe: str, words: Sequence[str]) -> str:
    """The model that the recipe names."""
    return load(TrainConfig, file=recipe_file(recipe), words=words).model


def _measure(lane: Lane, config: TrainConfig, *, steps: int, trained: bool, checkpoint: bool) -> dict[str, Any]:
    """Seconds and tokens from the end of the warm-up to that of the last measured step.

    With overlap, the first steps begin all at once, and so do not count. More steps are planned than measured, so that
    as many are under way at the end.
    """
    warm = WARM_STEPS + lane.overlap
    config = replace(
        config,
        steps=warm + steps + lane.overlap,
        overlap=lane.overlap,
        overlap_by=config.overlap_by if lane.overlap else "steps",
        max_age=config.max_age if lane.overlap else None,
        max_trees=config.max_trees if lane.overlap else None,
        collect=CollectConfig(processes=lane.processes),
    )
    taken: list[Seconds] = []
    reset_peak()
    with tempfile.TemporaryDirectory(prefix="ramet-bench-") as runs:
        extra = _run(config, Path(runs), taken, last=warm + steps, trained=trained, checkpoint=checkpoint)
    spent = taken[warm + steps - 1] - taken[warm - 1]
    peak = None if config.update.process else peak_gib()  # torch counts that of this process only
    return {
        "seconds": asdict(spent),
        "tokens_per_s": spent.tokens / spent.wall,
        "peak_gib": peak,
        "own_learner": config.update.process,
        **extra,
    }


def _run(
    config: TrainConfig, runs: Path, taken: list[Seconds], *, last: int, trained: bool, checkpoint: bool
) -> dict[str, float]:
    """Train until the last measured step; seconds of a checkpoint, if one is wanted."""
    plan, clock = check_plan(config), Clock()
    backend: Any = open_local(config)
    backend.engine.runner = ClockedRunner(backend.engine.runner, clock)  # pyright: ignore[reportAttributeAccessIssue]
    counts = backend.engine.stats
    engine: Any = backend.engine if trained else _demonstrated(plan, backend)
    run = ClockedRun(RunDir.create(runs, "bench", config=config, kind="train").path, clock)

    def on_step(record: dict[str, Any]) -> None:
        del record
        taken.append(clock.now(counts))
        if len(taken) == last:
            raise Measured

    def phase(opened: Any) -> Any:
        made = rl_phase(plan, run, opened)
        return replace(made, lesson=clocked(made.lesson, clock, "credit"))

    opened: Any = ClockedBackend(backend, engine, clock)
    with closing(backend):
        with suppress(Measured):
            continue_run(phase, opened, run, on_step=on_step)
        return checkpoint_seconds(backend, run.path, step=last) if checkpoint else {}


def _demonstrated(plan: TrainPlan, backend: Any) -> DemonstratedEngine:
    config = plan.config
    attempts = [
        attempt
        for step in range(config.steps)
        for attempt in step_attempts(plan.taskset, plan.split, replace(config, group_size=1), step=step)
    ]
    turns = demonstrated_turns(plan.taskset, attempts, config, backend.renderer)
    return DemonstratedEngine(backend.engine, turns, backend.renderer)


if __name__ == "__main__":
    given = [word for word in sys.argv[1:] if "=" not in word]
    bench(recipe=given[0] if given else None, words=[word for word in sys.argv[1:] if "=" in word])
