"""Checkpoints: Hugging Face folders, with the state for an exact continuation beside the model.

    checkpoints/step-000010/  config.json  model.safetensors  tokenizer.json ...  learner.safetensors

A folder is written under a temporary name, flushed and renamed, so it is complete or absent. An older one is deleted
only when the newer one exists.
"""

# pyright: standard

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from ramet.errors import StoreError
from ramet.store.atomic import atomic_folder
from ramet.store.checkpoints import STATE, checkpoint_path, delete_old, latest, list_checkpoints
from ramet.train.local.learner import Learner, state_dict
from ramet.train.local.learner import load_state as restore
from ramet.train.local.policy import Policy

TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json")


def save(learner: Learner, run: Path, *, step: int, tokenizer: Path, keep: int) -> Path:
    """Write the checkpoint after `step` steps, then delete all but the newest `keep`.

    `tokenizer` is a folder whose tokenizer files are copied beside the model.
    """
    folder = checkpoint_path(run, step)
    if folder.is_dir():  # the checkpoint of a step always has the same weights
        return folder
    try:
        with atomic_folder(folder) as partial:
            write_model(learner.policy, partial, tokenizer=tokenizer)
            save_file(state_dict(learner), partial / STATE, metadata={"step": str(step)})
    except (OSError, SafetensorError) as error:
        before = latest(run)
        kept = "there is no older one" if before is None else f"the last one is {before}"
        raise StoreError(f"cannot save {folder}: {' '.join(str(error).split())}; {kept}") from None
    delete_old(run, keep)
    return folder


def load_state(learner: Learner, folder: Path) -> int:
    """Restore the learner from a checkpoint; returns the number of steps it was written after."""
    try:
        with safe_open(folder / STATE, framework="pt") as opened:
            step = int((opened.metadata() or {})["step"])
        state = load_file(folder / STATE)
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise StoreError(f"cannot read {folder / STATE}: {' '.join(str(error).split())}; {_without(folder)}") from None
    restore(learner, state)
    return step


def _without(folder: Path) -> str:
    """What a run resumes from without this checkpoint."""
    older = [one for one in list_checkpoints(folder.parents[1]) if one.name < folder.name]
    return f"without this folder the run resumes from {older[-1].name if older else 'its beginning'}"


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
