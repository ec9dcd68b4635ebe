"""Checkpoints: a Hugging Face folder each, with what an exact continuation needs beside it.

    checkpoints/step-000010/  config.json  model.safetensors  tokenizer.json ...  learner.safetensors

A folder is written aside, brought onto the disk and renamed, so it is whole or not there. An older one goes only when
the newer one is there.
"""

# pyright: standard

from __future__ import annotations

import os
import shutil
import uuid
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from ramet.errors import StoreError
from ramet.train.local.learner import Learner, put_back, state_of
from ramet.train.local.policy import Policy

STATE = "learner.safetensors"
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json")


def save(learner: Learner, run: Path, *, step: int, tokenizer: Path, keep: int) -> Path:
    """Write what the learner is after `step` steps, then drop all but the last `keep`.

    `tokenizer` is a folder whose tokenizer files go with the model.
    """
    folder = folder_at(run, step)
    if folder.is_dir():  # a checkpoint of this step is a checkpoint of these weights
        return folder
    aside = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        aside.mkdir(parents=True)
        write_model(learner.policy, aside, tokenizer=tokenizer)
        save_file(state_of(learner), aside / STATE, metadata={"step": str(step)})
        _flush(aside)
        aside.rename(folder)
        _sync(folder.parent)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(aside, ignore_errors=True)
        before = latest(run)
        kept = "there is no older one" if before is None else f"the last one is {before}"
        raise StoreError(f"cannot save {folder}: {' '.join(str(error).split())}; {kept}") from None
    _thin_out(folder.parent, keep)
    return folder


def folder_at(run: Path, step: int) -> Path:
    """Where the checkpoint after so many steps is, or would be."""
    return run / "checkpoints" / f"step-{step:06d}"


def latest(run: Path) -> Path | None:
    """The newest checkpoint of a run; None when it has none yet."""
    found = _folders(run / "checkpoints")
    return found[-1] if found else None


def load_state(learner: Learner, folder: Path) -> int:
    """Make the learner what it was when `folder` was written; returns the number of steps it had done."""
    try:
        with safe_open(folder / STATE, framework="pt") as opened:
            step = int((opened.metadata() or {})["step"])
        state = load_file(folder / STATE)
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise StoreError(f"cannot read {folder / STATE}: {error}") from None
    put_back(learner, state)
    learner.done = step
    return step


def write_model(policy: Policy, folder: Path, *, tokenizer: Path) -> None:
    """The model as a folder that `AutoModelForCausalLM.from_pretrained` and `LocalEngine` load, adapters merged in."""
    weights = _merged(policy)
    core = policy.core
    tied = {name for name, _ in core.named_parameters(remove_duplicate=False)} - {n for n, _ in core.named_parameters()}
    save_file(
        {name: one for name, one in weights.items() if name not in tied}, folder / "model.safetensors", {"format": "pt"}
    )
    _write_config(core, folder)
    for name in TOKENIZER:
        if (tokenizer / name).is_file():
            shutil.copyfile(tokenizer / name, folder / name)


def _merged(policy: Policy) -> dict[str, Tensor]:
    """Weights by the names the plain model has, each in memory of its own."""
    if policy.model is policy.core:
        return {name: one.detach().cpu().clone() for name, one in policy.core.state_dict().items()}
    from peft.tuners.lora import LoraLayer

    weights: dict[str, Tensor] = {}
    with torch.no_grad():
        for name, one in policy.core.state_dict().items():
            if ".lora_" not in name:
                weights[name.replace(".base_layer", "")] = one.detach().cpu().clone()
        for name, module in policy.core.named_modules():
            if isinstance(module, LoraLayer):
                for adapter in module.active_adapters:
                    delta: Tensor = cast(Any, module).get_delta_weight(adapter)
                    weights[f"{name}.weight"] += delta.to(weights[f"{name}.weight"])
    return weights


def _write_config(model: PreTrainedModel, folder: Path) -> None:
    config = type(model.config).from_dict(model.config.to_dict())
    config.architectures = [type(model).__name__]
    config.dtype = model.dtype
    config.save_pretrained(folder)
    if model.generation_config is not None:
        model.generation_config.save_pretrained(folder)


def _folders(parent: Path) -> list[Path]:
    return sorted(folder for folder in parent.glob("step-*") if folder.is_dir())


def _thin_out(parent: Path, keep: int) -> None:
    """Old checkpoints are renamed before they are removed, so that half of one is never taken for a whole one."""
    for old in _folders(parent)[:-keep]:
        old.rename(old.with_name(f".{old.name}.{uuid.uuid4().hex[:8]}.tmp"))
    for left in parent.glob(".*.tmp"):
        shutil.rmtree(left, ignore_errors=True)


def _flush(folder: Path) -> None:
    for file in folder.iterdir():
        with file.open("rb") as opened:
            os.fsync(opened.fileno())


def _sync(folder: Path) -> None:
    place = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(place)
    finally:
        os.close(place)
