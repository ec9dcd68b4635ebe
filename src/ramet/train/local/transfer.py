"""Numbers from the host to the device of a model.

A plain copy to a GPU waits until the GPU has done everything before it. A copy from pinned memory only joins its queue,
so the host prepares the next micro-batch while the GPU works on the last one.
"""

# pyright: standard

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def to_device(
    values: Sequence[float] | np.ndarray | Tensor, device: torch.device, *, dtype: torch.dtype | None = None
) -> Tensor:
    """The values as a tensor on `device`. On a GPU they arrive there before any later operation of this thread."""
    given = values if isinstance(values, Tensor) else np.asarray(values)  # torch reads lists ten times as slowly
    made = torch.as_tensor(given, dtype=dtype)
    return made.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else made.to(device)
