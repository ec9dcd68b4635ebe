"""Where the checkpoints of a run are. Finding one needs no torch.

    checkpoints/step-000010/  config.json  model.safetensors  tokenizer.json ...  learner.safetensors
    best/checkpoints/step-000007/  the same without learner.safetensors
    best/best.json                 its step and value

`best` has the layout of a run, so a folder that ends in `best` names a model wherever a run does.
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from ramet.errors import StoreError
from ramet.store.atomic import temporary_name, write_text

WARM = "warm"  # the run directory of a supervised start, inside that of its run
STATE = "learner.safetensors"  # optimiser state and full-precision weights, beside the model's own files
NAME = re.compile(r"step-\d+")  # of the folder of a checkpoint


def checkpoint_path(run: Path, step: int) -> Path:
    """The folder of the checkpoint after `step` steps, whether or not it exists."""
    return run / "checkpoints" / f"step-{step:06d}"


def list_checkpoints(run: Path) -> list[Path]:
    """All complete checkpoints of a run, oldest first. Other folders beside them, such as copies, are left alone."""
    folders = (run / "checkpoints").glob("step-*")
    return sorted(
        (folder for folder in folders if NAME.fullmatch(folder.name) and folder.is_dir()), key=checkpoint_step
    )


def latest(run: Path) -> Path | None:
    """The newest checkpoint of a run; None when it has none yet."""
    folders = list_checkpoints(run)
    return folders[-1] if folders else None


def newest_model(run: Path) -> Path | None:
    """The newest checkpoint of a run, or of its supervised start while it has none of its own."""
    return latest(run) or latest(run / WARM)


def checkpoint_step(checkpoint: Path | None) -> int:
    """The number of steps a checkpoint was written after; 0 for None.

    Example:
        checkpoint_step(Path("runs/nano/checkpoints/step-000090"))  # 90
    """
    return 0 if checkpoint is None else int(checkpoint.name.removeprefix("step-"))


def remove_checkpoint(checkpoint: Path) -> None:
    """Delete a checkpoint if it exists. It is renamed first, so that half of one is never taken for a complete one."""
    if checkpoint.is_dir():
        leftover = checkpoint.rename(temporary_name(checkpoint))
        shutil.rmtree(leftover, ignore_errors=True)


def delete_old(run: Path, keep: int) -> None:
    """Delete all but the newest `keep`, renamed first, so that half of one is never taken for a complete one."""
    for old in list_checkpoints(run)[:-keep]:
        old.rename(temporary_name(old))
    for leftover in (run / "checkpoints").glob(".*.tmp"):
        shutil.rmtree(leftover, ignore_errors=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """The best model of a run so far: after how many steps, and its value in the evaluation."""

    step: int
    value: float


def best_folder(run: Path) -> Path:
    """Where the best model of a run is kept, whether or not it exists."""
    return run / "best"


def read_best(run: Path) -> Best | None:
    """The best model of a run; None when none was kept yet."""
    path = best_folder(run) / "best.json"
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
        return Best(step=int(known["step"]), value=float(known["value"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(f"cannot read {path}: {error}") from None


def write_best(run: Path, best: Best) -> None:
    """Record the best model, after its checkpoint was saved. The optimiser state beside it is removed."""
    folder = best_folder(run)
    try:
        (checkpoint_path(folder, best.step) / STATE).unlink(missing_ok=True)
        write_text(folder / "best.json", json.dumps(asdict(best)) + "\n")
    except OSError as error:
        raise StoreError(f"cannot write {folder}: {error}") from None
