"""Weights of one process that another one reads in place: in a mapped file on a CPU, in the same memory on a GPU."""

# pyright: standard

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

IN_MEMORY = Path("/dev/shm")  # files there are not written to a disk
ALIGNED = 64  # bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a tensor lies in the file."""

    offset: int
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def size(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What another process needs to open the weights; it can be pickled. `on_gpu` or `places` is empty."""

    on_gpu: Mapping[str, tuple[Any, ...]]  # by name: how torch opens memory of another process
    places: Mapping[str, Place]  # by name, in the file
    file: str = ""

    def open(self) -> dict[str, Tensor]:
        """The tensors by name, while the process that shared them runs. Once: the file is removed."""
        opened = {name: rebuild(*args) for name, (rebuild, args) in self.on_gpu.items()}
        if self.places:
            flat = _mapped(self.file, _size(self.places))
            os.unlink(self.file)  # both processes have it mapped
            opened |= {name: _view(flat, place) for name, place in self.places.items()}
        return opened


def wait_for(*devices: torch.device) -> None:
    """Wait until these have done what they were given. Without a name, torch waits for the current GPU alone."""
    for device in {device for device in devices if device.type == "cuda"}:
        torch.cuda.synchronize(device)


def share(parameters: Mapping[str, nn.Parameter]) -> Shared:
    """Let another process read these parameters: what changes here in place changes there."""
    on_gpu = {name: one for name, one in parameters.items() if one.device.type == "cuda"}
    on_cpu = {name: one for name, one in parameters.items() if name not in on_gpu}
    places: dict[str, Place] = {}
    offset = 0
    for name, one in on_cpu.items():
        places[name] = Place(offset=offset, shape=tuple(one.shape), dtype=one.dtype)
        offset += -(-places[name].size // ALIGNED) * ALIGNED
    return Shared(on_gpu=_handles(on_gpu), places=places, file=_moved(on_cpu, places) if places else "")


def _handles(parameters: Mapping[str, nn.Parameter]) -> dict[str, tuple[Any, ...]]:
    from torch.multiprocessing.reductions import reduce_tensor

    return {name: reduce_tensor(one.detach()) for name, one in parameters.items()}


def _moved(parameters: Mapping[str, nn.Parameter], places: Mapping[str, Place]) -> str:
    """Move the parameters into a new file; returns its path."""
    folder = IN_MEMORY if os.access(IN_MEMORY, os.W_OK) else None
    handle, file = tempfile.mkstemp(prefix="ramet-weights-", dir=folder)
    os.close(handle)
    flat = _mapped(file, _size(places))
    with torch.no_grad():
        for name, one in parameters.items():
            view = _view(flat, places[name])
            view.copy_(one)
            one.data = view
    return file


def _size(places: Mapping[str, Place]) -> int:
    return max(place.offset + place.size for place in places.values())


def _mapped(file: str, size: int) -> Tensor:
    return torch.from_file(file, shared=True, size=size, dtype=torch.uint8)


def _view(flat: Tensor, place: Place) -> Tensor:
    return flat[place.offset : place.offset + place.size].view(place.dtype).view(place.shape)
