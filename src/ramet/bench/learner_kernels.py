"""Where the time of a GPU goes in a training step, by kind of kernel."""

# pyright: standard

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

import torch
from torch.profiler import ProfilerActivity, profile

# The first kind whose words occur in the name of a kernel counts.
KINDS = (
    ("attention", ("attend", "query_gradient", "key_gradient", "join_items")),
    ("matrix products", ("gemm", "nvjet", "cutlass", "cublas", "splitk")),
    ("compiled", ("triton_",)),
    ("copies", ("memcpy", "memset")),
)
OTHER = "other"


def kind_of(kernel: str) -> str:
    """What a kernel does, by its name.

    Example:
        kind_of("nvjet_sm90_tst_192x176_64x4_1x2_h_bz_coopB_TNT")  # "matrix products"
    """
    name = kernel.lower()
    return next((kind for kind, words in KINDS if any(word in name for word in words)), OTHER)


def kernel_times(work: Callable[[], object]) -> dict[str, float]:
    """Seconds of the GPU by kind of kernel, most first."""
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        work()
        torch.cuda.synchronize()
    times: Counter[str] = Counter()
    for event in found.key_averages():
        times[kind_of(event.key)] += event.device_time_total / 1e6
    return dict(times.most_common())


def kernel_line(times: Mapping[str, float], *, step_s: float) -> str:
    """One line about a step that took `step_s` seconds.

    Example:
        kernel_line({"attention": 0.3, "other": 0.1}, step_s=0.5)
        # "kernels run for 80% of the step: attention 75%, other 25%"
    """
    total = sum(times.values())
    shares = ", ".join(f"{kind} {seconds / total:.0%}" for kind, seconds in times.items()) if total else "none"
    return f"kernels run for {total / step_s:.0%} of the step: {shares}"
