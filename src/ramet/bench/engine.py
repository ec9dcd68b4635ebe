"""Tokens a second of this package's engine and of others, on the same work, in the same run.

`python -m ramet.bench.engine` is `ramet bench engine` for machines that have torch and transformers but little else.
"""

# pyright: standard

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ramet.bench.engine_lanes import Broken, EngineEnded, Lane, Outside, check
from ramet.bench.engine_peers import Setting
from ramet.bench.engine_report import Row, facts_of, show
from ramet.bench.workload import Workload, flat, recorded, trees
from ramet.errors import ConfigError, EngineError, RametError

NEEDS = {"ramet": "torch", "generate": "transformers", "continuous": "transformers", "vllm": "vllm"}
WORKLOADS = ("flat", "tree")
LOGPROBS = {"both": (False, True), "with": (True,), "without": (False,)}
DTYPES = ("float32", "bfloat16", "float16")
PAGE = 16  # calls are counted in whole pages when the caches are sized
WARM_CALLS = 6  # where nothing is built for sizes; what is gets the whole workload once
# Models with random weights: speed does not depend on what a model has learnt.
RANDOM: dict[str, dict[str, Any]] = {
    "random-135m": {
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "vocab_size": 49152,
        "max_position_embeddings": 8192,
    },
    "random-tiny": {
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "vocab_size": 512,
        "max_position_embeddings": 4096,
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much work.

    `batch` sequences of `prompt` and `new` tokens; `trees` whose nodes begin with the same `system` tokens and answer
    with at most `longest`. Each engine passes over it `repeat` times.
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
    """What was asked for. `sizes` holds those that were given; the others are the usual ones for the device.

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


Say = Callable[[str], None]


def measure(
    lanes: Sequence[Lane],
    workloads: Sequence[Workload],
    *,
    logprobs: Sequence[bool] = (False, True),
    repeat: int = 1,
    warm_calls: Mapping[str, int] | None = None,
    say: Say = lambda _: None,
    keep: Callable[[Sequence[Row]], None] = lambda _: None,
) -> list[Row]:
    """Time every lane on every workload, in turns, after a pass to warm up, which may be shorter: see `warm_calls`.
    `keep` gets all rows as they are after every pass.

    Each pass has ids of its own, so that no cache answers from an earlier one. A row that failed, or that did other
    work than was recorded, has an error instead of a number.
    """
    rows = {
        (lane.name, work.name, asked): Row(
            engine=lane.name, workload=work.name, logprobs=asked, generated_tokens=work.shape().generated_tokens
        )
        for work in workloads
        for asked in logprobs
        for lane in lanes
    }
    for number in range(repeat + 1):
        for asked in logprobs:
            for work in workloads:
                for lane in lanes:
                    warm = (warm_calls or {}).get(lane.name, len(work.calls))
                    chosen = work.first(warm) if number == 0 else work
                    say(f"{lane.name}: {work.name}, {'warming up' if number == 0 else f'{number} of {repeat}'}")
                    _pass(lane, chosen.shifted(2 * number + asked), rows[lane.name, work.name, asked], keep=number > 0)
                    keep(list(rows.values()))
    return list(rows.values())


def _pass(lane: Lane, workload: Workload, row: Row, *, keep: bool) -> None:
    if row.error is not None:
        return
    try:
        timing = lane.time(workload, logprobs=row.logprobs)
        check(workload, timing, logprobs=row.logprobs)
    except EngineError as error:
        row.error = str(error)
        row.facts = {"log": error.log} if isinstance(error, EngineEnded) else {}
        return
    if keep:
        row.seconds.append(timing.seconds)
        row.facts = timing.facts
        if timing.peak_bytes is not None:
            row.peak_bytes = max(row.peak_bytes or 0, timing.peak_bytes)


def bench(options: Options, *, json_to: Path | None = None) -> bool:
    """Measure and print one table for each workload; False when some row has no number."""
    from rich.console import Console

    device, dtype = _place(options)
    sizes = Sizes(**asdict(ON_GPU if device.startswith("cuda") else ON_CPU) | dict(options.sizes))
    names, workloads = _engines(options), _workloads(options, sizes)
    console = Console(stderr=str(json_to) == "-", highlight=False)
    with console.status("loading") as status, _folder(options.model, dtype) as folder:
        setting = Setting(
            folder=folder,
            device=device,
            dtype=dtype,
            cache_tokens=options.cache_tokens or max(work.room(PAGE) for work in workloads),
            longest=max(work.shape().longest for work in workloads),
            batch=sizes.batch,
            threads=options.threads,
        )
        asked = asdict(options) | {"device": device, "dtype": dtype, "engines": names, "sizes": asdict(sizes)}
        asked["cache_tokens"] = setting.cache_tokens
        kept: list[Row] = []

        def keep(rows: Sequence[Row]) -> None:
            kept[:] = sorted(rows, key=lambda row: (row.workload, row.logprobs, names.index(row.engine)))
            if json_to is not None and str(json_to) != "-":
                json_to.write_text(_as_json(facts_of(kept, workloads, options=asked)))

        say: Say = status.update if console.is_terminal else lambda text: console.print(text, style="dim")
        with contextlib.suppress(KeyboardInterrupt):  # what was measured by then is shown
            _run_lanes(names, options, setting, workloads, sizes.repeat, say=say, keep=keep)
    facts = facts_of(kept, workloads, options=asked)
    if str(json_to) == "-":
        sys.stdout.write(_as_json(facts))
    show(console, facts)
    return bool(kept) and all(row.seconds and row.error is None for row in kept)


def _as_json(facts: Mapping[str, Any]) -> str:
    return json.dumps(facts, indent=1, default=str) + "\n"


def _run_lanes(
    names: list[str],
    options: Options,
    setting: Setting,
    workloads: list[Workload],
    repeat: int,
    *,
    say: Say,
    keep: Callable[[Sequence[Row]], None],
) -> None:
    """All engines at once, in turns; or one after the other, where memory does not hold all of them."""
    # On a GPU kernels and graphs are made for the sizes that come; `generate` makes none.
    warm = dict.fromkeys(("generate",) if setting.device.startswith("cuda") else names, WARM_CALLS)
    asked = LOGPROBS[options.logprobs]
    rows: list[Row] = []
    for group in [names] if options.alternate else [[name] for name in names]:
        with contextlib.ExitStack() as stack:
            lanes: list[Lane] = []
            for name in group:
                say(f"{name}: loading")
                lanes.append(stack.enter_context(contextlib.closing(_lane(name, setting, options.limit_s))))
            done = list(rows)
            rows += measure(
                lanes,
                workloads,
                logprobs=asked,
                repeat=repeat,
                warm_calls=warm,
                say=say,
                keep=lambda new, done=done: keep([*done, *new]),
            )


def _lane(name: str, setting: Setting, limit_s: float) -> Lane:
    try:
        return Outside(name, setting, limit_s=limit_s)
    except EngineError as error:
        return Broken(name, error)


def _place(options: Options) -> tuple[str, str]:
    """Device and number format: what was asked for, or what is usual here."""
    try:
        import torch
    except ImportError:
        raise ConfigError("engines run on torch and transformers: pip install 'ramet[train]'") from None
    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    dtype = options.dtype or ("bfloat16" if device.startswith("cuda") else "float32")
    if device != "cpu" and not torch.cuda.is_available():
        raise ConfigError(f"engines are measured on cpu or cuda, and torch sees no GPU here; got {device!r}")
    if dtype not in DTYPES:
        raise ConfigError(f"dtype is one of {', '.join(DTYPES)}; got {dtype!r}")
    return device, dtype


def _engines(options: Options) -> list[str]:
    """Those asked for, or those that can be imported."""
    wanted = list(NEEDS) if options.engines is None else list(options.engines)
    unknown = [name for name in wanted if name not in NEEDS]
    if unknown or not wanted:
        raise ConfigError(f"engines are {', '.join(NEEDS)}; got {', '.join(unknown) or 'none'}")
    missing = [name for name in wanted if find_spec(NEEDS[name]) is None]
    if missing and options.engines is not None:
        raise ConfigError(f"{missing[0]} cannot be measured: there is no {NEEDS[missing[0]]} here")
    return [name for name in wanted if name not in missing]


def _workloads(options: Options, sizes: Sizes) -> list[Workload]:
    if options.logprobs not in LOGPROBS:
        raise ConfigError(f"log-probs are asked for {', '.join(LOGPROBS)}; got {options.logprobs!r}")
    if not options.workloads or not set(options.workloads) <= set(WORKLOADS):
        raise ConfigError(f"workloads are {', '.join(WORKLOADS)}; got {', '.join(options.workloads) or 'none'}")
    found: list[Workload] = []
    if "flat" in options.workloads:
        found.append(flat(batch=sizes.batch, prompt=sizes.prompt, new=sizes.new, seed=options.seed))
    if "tree" in options.workloads and options.run is not None:
        from ramet.store import read_trees

        found.append(recorded(read_trees(options.run)))
    elif "tree" in options.workloads:
        found.append(trees(count=sizes.trees, system=sizes.system, longest=sizes.longest, seed=options.seed))
    return found


@contextlib.contextmanager
def _folder(model: str, dtype: str) -> Iterator[Path]:
    """Where the model's files are; one with random weights is written first, so that all engines load the same."""
    if model not in RANDOM:
        from ramet.models.folders import model_folder

        found = model_folder(model)
        if not (found / "config.json").is_file():
            raise ConfigError(f"no model at {model!r}: give a Hugging Face folder, smollm2 or {', '.join(RANDOM)}")
        yield found
        return
    with tempfile.TemporaryDirectory(prefix="ramet-bench-") as folder:
        write_random(model, Path(folder), dtype)
        yield Path(folder)


def write_random(model: str, folder: Path, dtype: str) -> None:
    """A model's configuration and weights, the same ones every time."""
    import torch
    from safetensors.torch import save_file
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(**RANDOM[model], tie_word_embeddings=True, architectures=["LlamaForCausalLM"], dtype=dtype)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made: Any = LlamaForCausalLM(config).to(getattr(torch, dtype))
    weights = {name: value for name, value in made.state_dict().items() if name != "lm_head.weight"}  # tied
    config.save_pretrained(folder)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


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
    """The command without the package's own: nothing but the standard library reads its words."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a time limit ends it like Ctrl-C: nothing is lost
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
