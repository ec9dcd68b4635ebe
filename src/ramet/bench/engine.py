"""Tokens per second of this engine and of others, on the same work, in the same run.

`python -m ramet.bench.engine` is `ramet bench engine` with few dependencies besides torch and transformers.
"""

# pyright: standard

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ramet.bench.engine_lanes import EngineEnded, FailedLane, Lane, Subprocess, check
from ramet.bench.engine_peers import Setting
from ramet.bench.engine_report import Row, bench_facts, show
from ramet.bench.random_models import RANDOM_MODELS, write_random_model
from ramet.bench.workload import Workload, flat, recorded, trees
from ramet.errors import ConfigError, EngineError, RametError, did_you_mean

PACKAGES = {"ramet": "torch", "generate": "transformers", "continuous": "transformers", "vllm": "vllm"}
WORKLOADS = ("flat", "tree")
LOGPROBS = {"both": (False, True), "with": (True,), "without": (False,)}
DTYPES = ("float32", "bfloat16", "float16")
PAGE = 16  # caches are sized in whole pages per call
WARM_CALLS = 6  # enough where nothing is compiled per size; otherwise the whole workload is the warm-up


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The sizes of the workloads.

    Flat: `batch` sequences of `prompt` and `new` tokens. Tree: `trees` whose nodes share `system` tokens, with answers
    of at most `longest`. Each engine runs them `repeat` times.
    """

    batch: int
    prompt: int
    new: int
    trees: int
    system: int
    longest: int
    repeat: int


ON_CPU = Sizes(batch=8, prompt=64, new=32, trees=1, system=64, longest=48, repeat=2)
ON_GPU = Sizes(batch=256, prompt=256, new=128, trees=64, system=200, longest=200, repeat=3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of the command. `sizes` overrides the defaults for the device.

    `engines` None: all that can be imported. `run` is a run directory whose trees are the tree workload.
    """

    model: str = "random-135m"
    device: str | None = None
    dtype: str | None = None
    engines: tuple[str, ...] | None = None
    workloads: tuple[str, ...] = WORKLOADS
    logprobs: str = "both"
    sizes: Mapping[str, int] = field(default_factory=dict[str, int])
    run: Path | None = None
    cache_tokens: int | None = None
    threads: int | None = None
    seed: int = 0
    alternate: bool = True
    limit_s: float = 600.0


OnProgress = Callable[[str], None]


def measure(
    lanes: Sequence[Lane],
    workloads: Sequence[Workload],
    *,
    logprobs: Sequence[bool] = (False, True),
    repeat: int = 1,
    warm_calls: Mapping[str, int] | None = None,
    on_progress: OnProgress = lambda _: None,
    on_rows: Callable[[Sequence[Row]], None] = lambda _: None,
) -> list[Row]:
    """Time every lane on every workload, alternating, after a warm-up pass (of `warm_calls` calls if given).

    `on_rows` gets all rows after every pass. Each pass has its own token ids, so that no cache helps a later pass. Rows
    that failed, or whose work differs from the recorded work, have an error instead of a number.
    """
    rows = {
        (lane.name, work.name, with_logprobs): Row(
            engine=lane.name, workload=work.name, logprobs=with_logprobs, generated_tokens=work.shape().generated_tokens
        )
        for work in workloads
        for with_logprobs in logprobs
        for lane in lanes
    }
    for number in range(repeat + 1):
        for with_logprobs in logprobs:
            for work in workloads:
                for lane in lanes:
                    warm = (warm_calls or {}).get(lane.name, len(work.calls))
                    chosen = work.first(warm) if number == 0 else work
                    on_progress(f"{lane.name}: {work.name}, {'warming up' if number == 0 else f'{number} of {repeat}'}")
                    _pass(
                        lane,
                        chosen.shifted(2 * number + with_logprobs),
                        rows[lane.name, work.name, with_logprobs],
                        timed=number > 0,
                    )
                    on_rows(list(rows.values()))
    return list(rows.values())


def _pass(lane: Lane, workload: Workload, row: Row, *, timed: bool) -> None:
    if row.error is not None:
        return
    try:
        timing = lane.time(workload, logprobs=row.logprobs)
        check(workload, timing, logprobs=row.logprobs)
    except EngineError as error:
        row.error = str(error)
        row.facts = {"log": error.log} if isinstance(error, EngineEnded) else {}
        return
    if timed:
        row.seconds.append(timing.seconds)
        row.facts = timing.facts
        if timing.peak_bytes is not None:
            row.peak_bytes = max(row.peak_bytes or 0, timing.peak_bytes)


def bench(options: Options, *, json_to: Path | None = None) -> bool:
    """Measure and print one table per workload; False when a row has no number."""
    from rich.console import Console

    device, dtype = _device_and_dtype(options)
    sizes = Sizes(**asdict(ON_GPU if device.startswith("cuda") else ON_CPU) | dict(options.sizes))
    names, workloads = _engines(options), _workloads(options, sizes)
    console = Console(stderr=str(json_to) == "-", highlight=False)
    with console.status("loading") as status, _folder(options.model, device=device, dtype=dtype) as folder:
        setting = Setting(
            folder=folder,
            device=device,
            dtype=dtype,
            cache_tokens=options.cache_tokens or max(work.room(PAGE) for work in workloads),
            longest=max(work.shape().longest for work in workloads),
            batch=sizes.batch,
            threads=options.threads,
        )
        resolved = asdict(options) | {"device": device, "dtype": dtype, "engines": names, "sizes": asdict(sizes)}
        resolved["cache_tokens"] = setting.cache_tokens
        measured: list[Row] = []

        def on_rows(rows: Sequence[Row]) -> None:
            measured[:] = sorted(rows, key=lambda row: (row.workload, row.logprobs, names.index(row.engine)))
            if json_to is not None and str(json_to) != "-":
                json_to.write_text(_as_json(bench_facts(measured, workloads, options=resolved)))

        on_progress: OnProgress = (
            status.update if console.is_terminal else lambda text: console.print(text, style="dim")
        )
        with contextlib.suppress(KeyboardInterrupt):  # show what was measured so far
            _run_lanes(names, options, setting, workloads, sizes.repeat, on_progress=on_progress, on_rows=on_rows)
    facts = bench_facts(measured, workloads, options=resolved)
    if str(json_to) == "-":
        sys.stdout.write(_as_json(facts))
    show(console, facts)
    return bool(measured) and all(row.seconds and row.error is None for row in measured)


def _as_json(facts: Mapping[str, Any]) -> str:
    return json.dumps(facts, indent=1, default=str) + "\n"


def _run_lanes(
    names: list[str],
    options: Options,
    setting: Setting,
    workloads: list[Workload],
    repeat: int,
    *,
    on_progress: OnProgress,
    on_rows: Callable[[Sequence[Row]], None],
) -> None:
    """All engines loaded at once, alternating; or one after the other, where memory is too small for all."""
    # On a GPU kernels and graphs are compiled per size, except in `generate`.
    warm = dict.fromkeys(("generate",) if setting.device.startswith("cuda") else names, WARM_CALLS)
    rows: list[Row] = []
    for group in [names] if options.alternate else [[name] for name in names]:
        with contextlib.ExitStack() as stack:
            lanes: list[Lane] = []
            for name in group:
                on_progress(f"{name}: loading")
                lanes.append(stack.enter_context(contextlib.closing(_lane(name, setting, options.limit_s))))
            done = list(rows)
            rows += measure(
                lanes,
                workloads,
                logprobs=LOGPROBS[options.logprobs],
                repeat=repeat,
                warm_calls=warm,
                on_progress=on_progress,
                on_rows=lambda new, done=done: on_rows([*done, *new]),
            )


def _lane(name: str, setting: Setting, limit_s: float) -> Lane:
    try:
        return Subprocess(name, setting, limit_s=limit_s)
    except EngineError as error:
        return FailedLane(name, error)


def _device_and_dtype(options: Options) -> tuple[str, str]:
    """The device and dtype: as given, or the default for this machine."""
    try:
        import torch
    except ImportError:
        raise ConfigError("the engine benchmark needs torch and transformers: pip install 'ramet[train]'") from None
    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    dtype = options.dtype or ("bfloat16" if device.startswith("cuda") else "float32")
    if device != "cpu" and not torch.cuda.is_available():
        raise ConfigError(f"device must be cpu, because torch sees no GPU here; got {device!r}")
    _check_names("dtype", [dtype], DTYPES)
    return device, dtype


def _check_names(option: str, names: Sequence[str], known: Iterable[str]) -> None:
    if not names:
        raise ConfigError(f"{option} is empty: {did_you_mean('', known)}")
    for name in names:
        if name not in known:
            raise ConfigError(f"{option}: unknown name {name!r}: {did_you_mean(name, known)}")


def _engines(options: Options) -> list[str]:
    """The engines given, or all that can be imported."""
    wanted = list(PACKAGES) if options.engines is None else list(options.engines)
    _check_names("engines", wanted, PACKAGES)
    missing = [name for name in wanted if find_spec(PACKAGES[name]) is None]
    if missing and options.engines is not None:
        raise ConfigError(f"engine {missing[0]} needs {PACKAGES[missing[0]]}, which is not installed")
    return [name for name in wanted if name not in missing]


def _workloads(options: Options, sizes: Sizes) -> list[Workload]:
    _check_names("logprobs", [options.logprobs], LOGPROBS)
    _check_names("workloads", options.workloads, WORKLOADS)
    workloads: list[Workload] = []
    if "flat" in options.workloads:
        workloads.append(flat(batch=sizes.batch, prompt=sizes.prompt, new=sizes.new, seed=options.seed))
    if "tree" in options.workloads and options.run is not None:
        from ramet.store import read_trees

        workloads.append(recorded(read_trees(options.run)))
    elif "tree" in options.workloads:
        workloads.append(trees(count=sizes.trees, system=sizes.system, longest=sizes.longest, seed=options.seed))
    return workloads


@contextlib.contextmanager
def _folder(model: str, *, device: str, dtype: str) -> Iterator[Path]:
    """The folder of the model. A random model is written first, so that all engines load the same weights."""
    if model not in RANDOM_MODELS:
        from ramet.models.folders import model_folder

        path = model_folder(model)
        if not (path / "config.json").is_file():
            raise ConfigError(
                f"no model at {model!r}: give a Hugging Face folder, smollm2 or {', '.join(RANDOM_MODELS)}"
            )
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="ramet-bench-") as folder:
        write_random_model(Path(folder), RANDOM_MODELS[model], dtype=dtype, device=device)
        yield Path(folder)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m ramet.bench.engine", description="See ramet bench engine --help.")

    def names(text: str) -> tuple[str, ...]:
        return tuple(text.split(","))

    words = dict.fromkeys(("model", "device", "dtype", "logprobs"), str) | {"engines": names, "workloads": names}
    words |= {"run": Path, "cache_tokens": int, "threads": int, "seed": int, "limit_s": float}
    for word, kind in words.items():
        parser.add_argument(f"--{word.replace('_', '-')}", type=kind, default=argparse.SUPPRESS)
    for size in fields(Sizes):
        parser.add_argument(f"--{size.name}", type=int, default=argparse.SUPPRESS)
    parser.add_argument("--alternate", action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, default=None)
    return parser


def main() -> int:
    """The command line with only the standard library."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM ends it like Ctrl-C, with the results so far
    given = vars(_parser().parse_args())
    json_to = given.pop("json")
    sizes = {size.name: given.pop(size.name) for size in fields(Sizes) if size.name in given}
    try:
        return 0 if bench(Options(**given, sizes=sizes), json_to=json_to) else 1
    except RametError as error:
        sys.stderr.write(f"ramet: {error}\n")
        return 2


if __name__ == "__main__":
    sys.exit(main())
