"""Where the checkpoints of a run are. Finding one needs no torch.

checkpoints/step-000010/  config.json  model.safetensors  tokenizer.json ...  learner.safetensors
"""

from __future__ import annotations

from pathlib import Path

STATE = "learner.safetensors"  # optimiser state and full-precision weights, beside the model's own files


def checkpoint_path(run: Path, step: int) -> Path:
    """The folder of the checkpoint after `step` steps, whether or not it exists."""
    return run / "checkpoints" / f"step-{step:06d}"


def list_checkpoints(run: Path) -> list[Path]:
    """All complete checkpoints of a run, oldest first."""
    return sorted(folder for folder in (run / "checkpoints").glob("step-*") if folder.is_dir())


def latest(run: Path) -> Path | None:
    """The newest checkpoint of a run; None when it has none yet."""
    folders = list_checkpoints(run)
    return folders[-1] if folders else None


def checkpoint_step(checkpoint: Path | None) -> int:
    """The number of steps a checkpoint was written after; 0 for None.

    Example:
        checkpoint_step(Path("runs/nano/checkpoints/step-000090"))  # 90
    """
    return 0 if checkpoint is None else int(checkpoint.name.removeprefix("step-"))
