"""CUDA code of every template: threads, barriers and instructions compute what the loops do."""

import numpy as np
import pytest
from cuda_kernels import scheduled
from emulated_kernels import assert_emulated, run_emulated
from lowering import kernel_of
from matmul_kernels import in_instructions, product
from template_cases import MATMULS, POINTWISE, ROWS, TRANSPOSES, tf32

from tvm_ext.tir_schedules.cuda.elementwise import CudaElementwise
from tvm_ext.tir_schedules.cuda.matmul.contraction import CudaContraction
from tvm_ext.tir_schedules.cuda.row_reduction import RowReduction
from tvm_ext.tir_schedules.cuda.transpose import CudaTranspose
from tvm_ext.tir_schedules.template import Template


def test_contractions() -> None:
    plain = {name: kernel for name, (kernel, _) in MATMULS.items()}
    decided = {name: in_instructions(kernel, **how) for name, (kernel, how) in MATMULS.items()}
    assert_emulated(plain, decided)


@pytest.mark.parametrize("b_transposed", [False, True])
def test_operands_are_rounded_to_tf32_with_half_the_error_of_cutting_off(
    b_transposed: bool,
) -> None:
    kernel = product(32, 32, 40, dtype="float32", b_transposed=b_transposed)
    generator = np.random.default_rng(0)
    a, b = (generator.normal(size=size).astype("float32") for size in ((32, 40), (40, 32)))
    decided = scheduled(CudaContraction(tf32=True), kernel)
    given = np.ascontiguousarray(b.T) if b_transposed else b
    *_, found = run_emulated(decided, a, given, np.zeros((32, 32), "float32"))
    np.testing.assert_allclose(found, tf32(a, True) @ tf32(b, True), atol=1e-5)
    exact = a.astype("float64") @ b
    cut_off = np.abs(tf32(a, False).astype("float64") @ tf32(b, False) - exact)
    assert np.abs(found - exact).mean() < 0.55 * cut_off.mean()


@pytest.mark.parametrize(
    ("template", "cases"),
    [(RowReduction(), ROWS), (CudaTranspose(), TRANSPOSES), (CudaElementwise(), POINTWISE)],
    ids=lambda value: getattr(value, "name", ""),
)
def test_kernels_of(template: Template, cases: dict[str, tuple]) -> None:
    plain = {name: kernel_of(expression, *specs) for name, (expression, *specs) in cases.items()}
    assert_emulated(plain, {name: scheduled(template, func) for name, func in plain.items()})
