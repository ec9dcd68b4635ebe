"""Checkpoints of a run whose weights are on a server: Hugging Face folders, with the way back beside the model.

    checkpoints/step-000010/  config.json  model.safetensors  tokenizer.json ...  tinker.json  adapter/

`model.safetensors` is the base model with the adapter merged in, so a checkpoint is a model like any other.
`tinker.json` names the state on the server, weights and optimiser, from which the run continues exactly. `adapter/` is
the adapter alone. With `backend.merge=false` the folder has no merged weights.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ramet.errors import StoreError
from ramet.store.atomic import atomic_folder
from ramet.store.checkpoints import checkpoint_path, delete_old

RECORD = "tinker.json"
MAX_MERGE_GAP = 0.05  # mean difference of log-probs between the merged model and the server; bfloat16 has 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """Where the weights of a checkpoint come from."""

    step: int
    state: str  # tinker:// path of weights and optimiser
    base_model: str  # its name on the server
    base: str  # its folder on this machine
    rank: int
    server: str
    sdk: str


def read_saved(folder: Path) -> Saved | None:
    """The record in a checkpoint; None for a folder that has none, like any model from elsewhere."""
    file = folder / RECORD
    if not file.is_file():
        return None
    try:
        known: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return Saved(**known)
    except (OSError, ValueError, TypeError) as error:
        raise StoreError(f"cannot read {file}: {error}") from None


def write_checkpoint(
    run: Path, saved: Saved, files: Mapping[str, bytes], *, tokenizer: Path, merge: bool, keep: int
) -> Path:
    """Write the checkpoint after `saved.step` steps, then delete all but the newest `keep`."""
    folder = checkpoint_path(run, saved.step)
    try:
        with atomic_folder(folder) as temporary:
            _fill(temporary, saved, files, tokenizer=tokenizer, merge=merge)
    except OSError as error:
        raise StoreError(f"cannot save {folder}: {' '.join(str(error).split())}") from None
    delete_old(run, keep)
    return folder


def _fill(folder: Path, saved: Saved, files: Mapping[str, bytes], *, tokenizer: Path, merge: bool) -> None:
    from ramet.models.adapter import copy_other_files, read_adapter, write_merged

    inner = folder / "adapter"
    inner.mkdir()
    for name, content in files.items():
        (inner / name).write_bytes(content)
    if merge:
        write_merged(Path(saved.base), read_adapter(files), folder)
    (folder / RECORD).write_text(json.dumps(asdict(saved), indent=2) + "\n", encoding="utf-8")
    copy_other_files(tokenizer, folder)
