"""The speed of a training step: rows that share a prompt, packed into a trie against padded.

All modes get the same rows and tokens per micro-batch, after a check that packed and padded agree on this device. On a
GPU the model has the size of SmolLM2-135M, elsewhere it is smaller; weights are random.

    python -m ramet.bench.learner --prompts 512 1024 4096
"""

# pyright: standard

from __future__ import annotations

import argparse
import copy
import dataclasses
import gc
import json
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from ramet.bench.learner_kernels import kernel_line, kernel_times
from ramet.errors import ConfigError, did_you_mean
from ramet.models.folders import choose_device
from ramet.train.local.forward import row_logprobs
from ramet.train.local.gradients import forward_backward
from ramet.train.local.policy import Policy, prepare
from ramet.train.loss import Loss
from ramet.train.metrics import Stats
from ramet.train.rows import Row

Facts = dict[str, Any]
WIDE = 200  # columns when the output is not a terminal
TOLERANCE = 1e-2  # float32 kernels may round products
# recomputed: packed with gradient checkpointing; compiled: packed with compiled layers
MODES = ("plain", "padded", "packed", "recomputed", "compiled")
SHAPES: dict[str, dict[str, Any]] = {
    "135m": {
        "vocab_size": 49152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
    },
    "5m": {
        "vocab_size": 4096,
        "hidden_size": 256,
        "intermediate_size": 768,
        "num_hidden_layers": 5,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
    },
}


def make_model(shape: str, device: torch.device, dtype: torch.dtype) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(**SHAPES[shape], max_position_embeddings=16384, tie_word_embeddings=True)
    return LlamaForCausalLM(config).to(device, dtype)  # pyright: ignore[reportArgumentType] (one of its overloads)


def make_rows(*, prompt: int, answer: int, group: int, num_groups: int, vocabulary: int, system: int = 0) -> list[Row]:
    """Groups of rows with a shared prompt and answers of `answer` / 2 to `answer` trained tokens.

    The first `system` tokens of all prompts are the same.
    """
    dice = random.Random(prompt)
    rows: list[Row] = []
    for task in range(num_groups):
        common = random.Random(vocabulary)
        shared = tuple(common.randrange(vocabulary) for _ in range(system))
        shared += tuple(dice.randrange(vocabulary) for _ in range(prompt - system))
        for member in range(group):
            answer_ids = tuple(dice.randrange(vocabulary) for _ in range(dice.randint(answer // 2, answer)))
            rows.append(
                Row(
                    token_ids=shared + answer_ids,
                    mask=(False,) * prompt + (True,) * len(answer_ids),
                    logprobs=None,
                    advantage=dice.uniform(-1, 1),
                    tree_id=f"{task}.{member}",
                    group=str(task),
                )
            )
    return rows


def make_policy(mode: str, model: LlamaForCausalLM) -> Policy:
    """The policy for a mode. `plain` pads and keeps all logits, as a simple training loop does."""
    policy = prepare(
        copy.deepcopy(model),
        packed=mode not in ("plain", "padded"),
        checkpointing=mode == "recomputed",
        compiled=mode == "compiled",
    )
    return dataclasses.replace(policy, head=None) if mode == "plain" else policy


def check(device: torch.device) -> Facts:
    """Compare packed with padded in float32 on this device; raises if they differ."""
    model = make_model("5m", device, torch.float32)
    scale = 1 if device.type == "cuda" else 0.1  # GPU kernels have blocks of 128 tokens
    lengths = {"prompt": int(200 * scale), "answer": int(120 * scale)}
    rows = make_rows(**lengths, group=3, num_groups=3, vocabulary=SHAPES["5m"]["vocab_size"])
    results: list[tuple[torch.Tensor, torch.Tensor]] = []
    for mode in ("padded", "packed", "recomputed"):
        policy = make_policy(mode, model)
        step(policy, rows, tokens=4096)
        gradient = torch.cat([parameter.grad.flatten() for parameter in policy.trained if parameter.grad is not None])
        with torch.no_grad():
            results.append((row_logprobs(policy, rows).logprobs, gradient))
    logprobs = max(float((results[0][0] - other[0]).abs().max()) for other in results[1:])
    gradients = max(float((results[0][1] - other[1]).norm() / results[0][1].norm()) for other in results[1:])
    if logprobs > TOLERANCE or gradients > TOLERANCE:
        raise AssertionError(f"packed and padded differ: log-probs by {logprobs:.1e}, gradients by {gradients:.1e}")
    return {"logprobs": logprobs, "gradients": gradients}


def measure(
    mode: str, model: LlamaForCausalLM, rows: Sequence[Row], *, tokens: int, repeat: int, kernels: bool = False
) -> Facts:
    """The best of `repeat` steps, after one warm-up step. With `kernels`, also what the GPU does in one more."""
    policy = make_policy(mode, model)
    step(policy, rows, tokens=tokens)
    reset_peak(policy.device)
    best, stats = min((step(policy, rows, tokens=tokens) for _ in range(repeat)), key=lambda done: done[0])
    return {
        "mode": mode,
        "rows": stats.num_rows,
        "batches": stats.num_batches,
        "seconds": best,
        "row_tokens_per_s": stats.num_tokens / best,
        "read_tokens_per_s": stats.num_read / best,
        "trained_tokens_per_s": stats.num_trained / best,
        "peak_gib": peak_gib(policy.device),
        "kernels": kernel_times(lambda: step(policy, rows, tokens=tokens)) if kernels else None,
    }


def step(policy: Policy, rows: Sequence[Row], *, tokens: int) -> tuple[float, Stats]:
    """The seconds and statistics of the gradient of one optimiser step."""
    policy.model.zero_grad(set_to_none=True)
    started = time.perf_counter()
    stats = forward_backward(policy, rows, loss=Loss(kind="plain"), micro_batch_tokens=tokens)
    if policy.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started, stats


def reset_peak(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    elif Path("/proc/self/clear_refs").exists():
        Path("/proc/self/clear_refs").write_text("5")


def peak_gib(device: torch.device) -> float | None:
    """Peak memory since the last reset, of the GPU or of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated() / 2**30
    status = Path("/proc/self/status")
    return int(status.read_text().partition("VmHWM:")[2].split()[0]) / 2**20 if status.exists() else None


def bench(
    *,
    prompts: Sequence[int] = (512, 1024, 4096),
    answer: int = 256,
    group: int = 8,
    system: int = 0,
    tokens: int | None = None,
    repeat: int | None = None,
    modes: Sequence[str] | None = None,
    shape: str | None = None,
    device: str | None = None,
    kernels: bool = False,
    as_json: bool = False,
) -> None:
    """Measure every mode with every prompt length; print one table, and with `kernels` a line about each."""
    from rich.console import Console

    place = choose_device(device)
    on_gpu = place.type == "cuda"
    dtype = torch.bfloat16 if on_gpu else torch.float32
    shape = check_names("shape", [shape or ("135m" if on_gpu else "5m")], SHAPES)[0]
    tokens = tokens or (32768 if on_gpu else 4608)
    repeat = repeat or (3 if on_gpu else 1)
    modes = check_names("modes", modes or MODES[: None if on_gpu else -1], MODES)  # the last one is for a GPU
    if kernels and not on_gpu:
        raise ConfigError(f"--kernels counts the time of a GPU's kernels; this runs on {place.type}")
    if system >= min(prompts):
        raise ConfigError(
            f"system: the tokens that all prompts begin with are fewer than {min(prompts):,}; got {system:,}"
        )
    if max(prompts) + answer > tokens:
        raise ConfigError(f"a row of {max(prompts) + answer:,} tokens does not fit into a micro-batch of {tokens:,}")
    console = Console(stderr=as_json)
    if not console.is_terminal:
        console = Console(stderr=as_json, width=WIDE)
    results: list[Facts] = []
    with console.status("comparing packed with padded") as status:
        agreement = check(place)
        model = make_model(shape, place, dtype)
        for prompt in prompts:
            groups = max(1, round(tokens / (prompt + group * answer * 3 / 4)))  # about one packed micro-batch
            vocabulary = SHAPES[shape]["vocab_size"]
            shape_of_rows = {"prompt": prompt, "answer": answer, "group": group, "system": system}
            rows = make_rows(**shape_of_rows, num_groups=groups, vocabulary=vocabulary)
            for mode in modes:
                status.update(f"measuring {mode}: {len(rows)} rows, prompts of {prompt:,} tokens")
                facts = measure(mode, model, rows, tokens=tokens, repeat=repeat, kernels=kernels)
                results.append(facts | {"prompt": prompt})
    title = f"{shape} {dtype} on {place}, groups of {group}, {tokens:,} tokens per micro-batch"
    if as_json:
        sys.stdout.write(json.dumps({"title": title, "agreement": agreement, "results": results}, indent=1) + "\n")
        return
    console.print(_table(title, results))
    for row in results:
        if row["kernels"] is not None:
            line = kernel_line(row["kernels"], step_s=row["seconds"])
            console.print(f"{row['mode']}, prompts of {row['prompt']:,}: {line}")
    console.print(
        f"packed against padded in float32: log-probs within {agreement['logprobs']:.0e}, "
        f"gradients within {agreement['gradients']:.0e} of their norm"
    )


def check_names(option: str, names: Sequence[str], known: Sequence[str] | dict[str, Any]) -> list[str]:
    """The names, or a `ConfigError` for an unknown one."""
    for name in names:
        if name not in known:
            raise ConfigError(f"{option}: unknown name {name!r}: {did_you_mean(name, known)}")
    return list(names)


def parse_numbers(text: str) -> list[int]:
    """Positive whole numbers, separated by commas.

    Example:
        parse_numbers("512,1024")  # [512, 1024]
    """
    parts = text.split(",")
    if not all(part.strip().isdigit() and int(part) for part in parts):
        raise ConfigError(f"prompts must be positive whole numbers, separated by commas; got {text!r}")
    return [int(part) for part in parts]


def _table(title: str, results: Sequence[Facts]) -> Any:
    from rich.table import Table

    heads = (
        "prompt",
        "rows",
        "mode",
        "batches",
        "row tokens/s",
        "read tokens/s",
        "trained/s",
        f"times {baseline_mode(results)}",
        "peak GiB",
    )
    table = Table(*heads, title=title)
    against = baseline_mode(results)
    first = {row["prompt"]: row["seconds"] for row in results if row["mode"] == against}
    for row in results:
        peak = row["peak_gib"]
        table.add_row(
            f"{row['prompt']:,}",
            str(row["rows"]),
            row["mode"],
            str(row["batches"]),
            f"{row['row_tokens_per_s']:,.0f}",
            f"{row['read_tokens_per_s']:,.0f}",
            f"{row['trained_tokens_per_s']:,.0f}",
            f"{first[row['prompt']] / row['seconds']:.2f}",
            "" if peak is None else f"{peak:.1f}",
        )
    return table


def baseline_mode(results: Sequence[Facts]) -> str:
    """The mode that others are compared with: padded, if it was measured."""
    measured = [row["mode"] for row in results]
    return "padded" if "padded" in measured else measured[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, nargs="+", default=[512, 1024, 4096])
    parser.add_argument("--answer", type=int, default=256, help="longest answer, in tokens")
    parser.add_argument("--group", type=int, default=8, help="rows that share a prompt")
    parser.add_argument("--system", type=int, default=0, help="tokens that all prompts begin with")
    parser.add_argument("--tokens", type=int, help="tokens per micro-batch")
    parser.add_argument("--repeat", type=int)
    parser.add_argument("--modes", nargs="+", choices=MODES)
    parser.add_argument("--shape", choices=SHAPES)
    parser.add_argument("--device")
    parser.add_argument("--kernels", action="store_true", help="on a GPU: shares of its time by kind of kernel")
    parser.add_argument("--json", dest="as_json", action="store_true")
    bench(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()
