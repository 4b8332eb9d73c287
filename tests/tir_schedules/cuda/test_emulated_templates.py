"""CUDA code of every template: threads, barriers and instructions compute what the loops do."""

import numpy as np
import pytest
from cuda_kernels import scheduled
from emulated_kernels import assert_emulated, run_emulated
from lowering import f32, kernel_of
from matmul_kernels import f16, in_instructions, linear, product
from tvm import relax
from tvm.relax.op import nn

from tvm_ext.tir_schedules.cuda.elementwise import CudaElementwise
from tvm_ext.tir_schedules.cuda.matmul.contraction import CudaContraction
from tvm_ext.tir_schedules.cuda.row_reduction import RowReduction
from tvm_ext.tir_schedules.cuda.transpose import CudaTranspose
from tvm_ext.tir_schedules.template import Template

op = relax.op
SMALL = {"tile_rows": 32, "tile_columns": 32, "warp_rows": 16, "warp_columns": 32}

PRODUCTS = {
    "float16": (product(32, 48, 96, written="float16"), {**SMALL, "stages": 3}),
    "transposed": (product(32, 48, 64, a_transposed=True, b_transposed=True), SMALL),
    "bfloat16": (product(32, 48, 64, dtype="bfloat16", b_transposed=True), SMALL),
    "int8": (product(32, 48, 96, dtype="int8", total="int32", b_transposed=True), SMALL),
    "int8 across": (product(32, 48, 64, dtype="int8", total="int32"), SMALL),
    "padded": (product(45, 51, 77), SMALL),
    "predicated copies": (product(40, 56, 72), {**SMALL, "stages": 4, "tile_depth": 16}),
    "float32": (product(40, 36, 20, dtype="float32"), {"stages": 2}),
    "bias": (kernel_of(linear, f16(40, 64), f16(64, 48), f16(48)), {**SMALL, "stages": 2}),
}


def test_contractions() -> None:
    plain = {name: kernel for name, (kernel, _) in PRODUCTS.items()}
    decided = {name: in_instructions(kernel, **how) for name, (kernel, how) in PRODUCTS.items()}
    assert_emulated(plain, decided)


def tf32(x: np.ndarray, rounded: bool) -> np.ndarray:
    """float32 values without their last 13 bits, the nearest ones or cut off."""
    half_a_step = np.uint32(0x1000 if rounded else 0)
    return ((x.view("uint32") + half_a_step) & np.uint32(0xFFFFE000)).view("float32")


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


ROWS = {
    "warp": (lambda x: nn.softmax(x, 1), f32(9, 132)),
    "block": (lambda x: nn.softmax(x, 1), f32(2, 2050)),
    "columns": (lambda x: nn.softmax(x, 0), f32(37, 30)),
    "argmax": (lambda x: op.argmax(x, 1), f32(3, 700)),
    "layer norm": (lambda x, g, b: nn.layer_norm(x, g, b, [-1]), f32(2, 768), f32(768), f32(768)),
    "half": (lambda x: nn.softmax(x, 1), f16(3, 264)),
}
MOVES = {
    "plain": (op.permute_dims, f32(33, 45)),
    "int8": (op.permute_dims, ((33, 70), "int8")),
    "to nhwc": (lambda x: op.permute_dims(x, [0, 2, 3, 1]), f32(2, 17, 5, 7)),
    "with bias": (lambda x, b: nn.relu(op.add(op.permute_dims(x), b)), f32(40, 33), f32(40)),
}
POINTWISE = {
    "wide": (op.add, f32(13, 50, 12), f32(12)),
    "odd": (nn.gelu, f32(3, 7, 11)),
    "half": (op.multiply, f16(9, 24), f16(9, 24)),
    "int64": (op.add, ((5, 9), "int64"), ((5, 9), "int64")),
}


@pytest.mark.parametrize(
    ("template", "cases"),
    [(RowReduction(), ROWS), (CudaTranspose(), MOVES), (CudaElementwise(), POINTWISE)],
    ids=lambda value: getattr(value, "name", ""),
)
def test_kernels_of(template: Template, cases: dict[str, tuple]) -> None:
    plain = {name: kernel_of(expression, *specs) for name, (expression, *specs) in cases.items()}
    assert_emulated(plain, {name: scheduled(template, func) for name, func in plain.items()})
