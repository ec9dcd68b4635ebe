"""Kernels are told apart by their names, and their times are shares of a step."""

from __future__ import annotations

import pytest

from ramet.bench.learner_kernels import kernel_line, kind_of


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        ("key_gradient", "attention"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", "matrix products"),
        ("nvjet_sm90_tst_192x176_64x4_1x2_h_bz_coopB_TNT", "matrix products"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu>", "matrix products"),
        ("triton_per_fused__to_copy_add_div_expand_mul_pow_sum_view_1", "compiled"),
        ("Memcpy DtoD (Device -> Device)", "copies"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>", "other"),
    ],
)
def test_a_kernel_is_of_the_kind_that_its_name_says(kernel: str, kind: str) -> None:
    assert kind_of(kernel) == kind


def test_the_line_has_the_share_of_the_step_and_of_every_kind() -> None:
    line = kernel_line({"attention": 0.3, "other": 0.1}, step_s=0.5)
    assert line == "kernels run for 80% of the step: attention 75%, other 25%"
    assert kernel_line({}, step_s=0.5) == "kernels run for 0% of the step: none"
