"""Merge a LoRA adapter into the weights of its base model: W += alpha / r * B @ A, by name.

Done here and not by PEFT, because an adapter whose config names no target modules (some servers write such) would lose
most of its matrices there without an error. Here every matrix of the adapter is merged, or the first one without a
place is named.
"""

# pyright: standard

from __future__ import annotations

import io
import json
import math
import shutil
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ramet.errors import StoreError
from ramet.models.folders import load_model
from ramet.models.packages import check_packages

if TYPE_CHECKING:
    from torch import Tensor

CONFIG, WEIGHTS, INDEX = "adapter_config.json", "adapter_model.safetensors", "model.safetensors.index.json"
PREFIXES = ("base_model.model.", "base_model.")
A, B = ".lora_A.weight", ".lora_B.weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """Two matrices for every weight that an adapter changes, by the name of that weight."""

    scale: float
    pairs: Mapping[str, tuple[Tensor, Tensor]]  # A and B

    def delta(self, name: str) -> Tensor:
        """What is added to a weight."""
        a, b = self.pairs[name]
        return self.scale * (b.float() @ a.float())


def read_archive(archive: bytes) -> dict[str, bytes]:
    """The two files of an adapter in a .tar.gz. Paths in the archive are not used for anything."""
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:*") as opened:
            for member in opened:
                name = Path(member.name).name
                if name in (CONFIG, WEIGHTS) and member.isfile():
                    content = opened.extractfile(member)
                    found[name] = b"" if content is None else content.read()
    except (tarfile.TarError, OSError, EOFError) as error:
        raise StoreError(f"the server sent an adapter that is not a .tar.gz: {error}") from None
    missing = [name for name in (CONFIG, WEIGHTS) if name not in found]
    if missing:
        raise StoreError(f"the server sent an adapter without {missing[0]}")
    return found


def read_adapter(files: Mapping[str, bytes]) -> Adapter:
    """The matrices of an adapter, from the contents of its two files."""
    check_packages()
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        config: dict[str, Any] = json.loads(files[CONFIG])
        rank, alpha = int(config["r"]), float(config["lora_alpha"])
        tensors = load(files[WEIGHTS])
    except (ValueError, KeyError, TypeError, SafetensorError) as error:
        raise StoreError(f"the adapter cannot be read: {error}") from None
    names = [name.removesuffix(A) for name in tensors if name.endswith(A)]
    odd = set(tensors) - {name + end for name in names for end in (A, B)}
    if odd or any(name + B not in tensors for name in names):
        raise StoreError(f"the adapter has matrices that are no LoRA pair: {min(odd or names)}")
    pairs = {f"{_plain_name(name)}.weight": (tensors[name + A], tensors[name + B]) for name in names}
    return Adapter(scale=alpha / (math.sqrt(rank) if config.get("use_rslora") else rank), pairs=pairs)


def _plain_name(name: str) -> str:
    """The name a module has in the base model."""
    for prefix in PREFIXES:
        if name.startswith(prefix):
            return name.removeprefix(prefix)
    return name


def write_merged(base: Path, adapter: Adapter, into: Path) -> None:
    """The base model with the adapter merged in, as a Hugging Face folder with the same files. `into` exists."""
    from safetensors.torch import save_file

    merged: set[str] = set()
    for source in sorted(base.glob("*.safetensors")):
        weights, metadata = _read_weights(source)
        for name in adapter.pairs.keys() & weights.keys():
            weights[name] = _merged(name, weights[name], adapter)
            merged.add(name)
        save_file(weights, into / source.name, metadata=metadata or {"format": "pt"})
    missing = adapter.pairs.keys() - merged
    if missing:
        raise StoreError(f"the adapter changes {min(missing)}, which {base} does not have")
    copy_other_files(base, into)


def copy_other_files(base: Path, into: Path) -> None:
    """What a model folder has beside its weights: config, tokenizer, chat template. Nothing is overwritten."""
    has_weights = any(into.glob("*.safetensors"))
    for file in sorted(base.iterdir()):
        wanted = file.is_file() and file.suffix in (".json", ".jinja", ".txt", ".model")
        if wanted and not (into / file.name).exists() and (has_weights or file.name != INDEX):
            shutil.copyfile(file, into / file.name)


def _read_weights(file: Path) -> tuple[dict[str, Tensor], dict[str, str] | None]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="pt") as opened:
            return {name: opened.get_tensor(name) for name in opened.keys()}, opened.metadata()  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise StoreError(f"cannot read {file}: {error}") from None


def _merged(name: str, weight: Tensor, adapter: Adapter) -> Tensor:
    """In single precision, then rounded once to the precision of the weight."""
    delta = adapter.delta(name)
    if delta.shape != weight.shape:
        raise StoreError(f"the adapter's {name} is {tuple(delta.shape)}, that of the model {tuple(weight.shape)}")
    return (weight.float() + delta).to(weight.dtype)


def folder_logprobs(folder: Path, token_ids: Sequence[int], *, device: str | None = None) -> list[float]:
    """The log-probs of all tokens but the first, under the model in a folder."""
    import torch

    model: Any = load_model(folder, device=device)
    ids = torch.tensor([list(token_ids)], device=model.device)
    with torch.no_grad():
        logits = model(ids[:, :-1], use_cache=False).logits[0].float()
    chosen = logits.log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
    return chosen.cpu().tolist()
