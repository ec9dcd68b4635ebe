"""The kernels of log-probs over a vocabulary, compiled for a GPU that need not be there: `make test-kernels`."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.kernels, pytest.mark.filterwarnings("ignore:::triton")]

SIZES = {"SIZE": 49152, "BLOCK": 4096, "NEIGHBOURS": 16}
INDICES = {"slots": "*i64", "tokens": "*i64", "offsets": "*i64", "first_target": "i32", "first_slot": "i32"}


@pytest.mark.parametrize("kernel", ["_sum_up", "_spread", "_mark"])
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("architecture", [89, 90])
def test_kernels_compile(kernel: str, dtype: str, architecture: int) -> None:
    import triton  # pyright: ignore[reportMissingImports]
    from triton.backends.compiler import GPUTarget  # pyright: ignore[reportMissingImports]
    from triton.compiler import ASTSource  # pyright: ignore[reportMissingImports]

    from ramet.train.local import head_kernels

    function = getattr(head_kernels, kernel)
    kinds = {**dict.fromkeys(SIZES, "constexpr"), **INDICES, "logits": f"*{dtype}", "scale": "fp32"}
    arguments = {name: kinds.get(name, "*fp32") for name in function.arg_names}
    sizes = {name: size for name, size in SIZES.items() if name in arguments}
    made = triton.compile(
        ASTSource(fn=function, signature=arguments, constexprs=sizes),
        target=GPUTarget("cuda", architecture, 32),
        options={"num_warps": 1 if kernel == "_mark" else 8},
    )
    assert made.asm["cubin"]
