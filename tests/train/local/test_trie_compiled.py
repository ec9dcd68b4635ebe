"""The kernels of attention over a trie, compiled for GPUs that need not be there: `make test-kernels`."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ramet.train.local import trie_op

pytestmark = [pytest.mark.kernels, pytest.mark.filterwarnings("ignore:::triton")]

KERNELS = ("attend", "query_gradient", "key_gradient")
SHARED_MEMORY = {89: 99 * 1024, 90: 227 * 1024}  # bytes per block: an RTX 4090 has the least of those in use, an H200
SINGLE = {"sums", "deltas", "key_parts", "value_parts"}
TABLES = {"ends", "offsets", "fulls", "blocks", "items", "whole", "slots"}
MODEL = {"queries", "keys", "values", "out", "grads", "changes"}


def kind_of(name: str, dtype: str) -> str:
    """The type of an argument of a kernel."""
    if name.isupper():
        return "constexpr"
    for names, kind in ((SINGLE, "*fp32"), (TABLES, "*i32"), (MODEL, f"*{dtype}"), ({"scale", "factor"}, "fp32")):
        if name in names:
            return kind
    return "i32"


def compiled(kernel: str, *, size: int, dtype: torch.dtype, architecture: int) -> Any:
    import triton  # pyright: ignore[reportMissingImports]
    from triton.backends.compiler import GPUTarget  # pyright: ignore[reportMissingImports]
    from triton.compiler import ASTSource  # pyright: ignore[reportMissingImports]

    function = getattr(trie_op._kernels(), kernel)
    launch = getattr(trie_op._launches(size, dtype), kernel)
    name = {torch.bfloat16: "bf16", torch.float32: "fp32"}[dtype]
    sizes = {"SHARED": 3, "SIZE": size, "WIDE": size, "BLOCK": trie_op.BLOCK, "ROWS": launch.rows, "STEP": launch.step}
    arguments = {argument: kind_of(argument, name) for argument in function.arg_names}
    aligned = {
        (place,): [["tt.divisibility", 16]]
        for place, kind in enumerate(arguments.values())
        if kind not in ("constexpr", "fp32")
    }
    return triton.compile(
        ASTSource(fn=function, signature=arguments, constexprs=sizes, attrs=aligned),
        target=GPUTarget("cuda", architecture, 32),
        options={"num_warps": launch.warps, "num_stages": launch.stages},
    )


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    ("architecture", "size", "dtype"),
    [
        (90, 64, torch.bfloat16),
        (90, 128, torch.bfloat16),
        (89, 64, torch.bfloat16),
        (89, 128, torch.bfloat16),
        (89, 256, torch.bfloat16),
        (89, 128, torch.float32),
        (89, 256, torch.float32),
    ],
    ids=str,
)
def test_kernels_fit_the_memory_of_a_multiprocessor(
    kernel: str, architecture: int, size: int, dtype: torch.dtype
) -> None:
    made = compiled(kernel, size=size, dtype=dtype, architecture=architecture)
    assert 0 < made.metadata.shared <= SHARED_MEMORY[architecture]
