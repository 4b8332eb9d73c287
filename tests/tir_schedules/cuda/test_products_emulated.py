"""Products run as CUDA code: barriers, asynchronous copies, alignment, several kernels."""

from emulated_kernels import assert_emulated
from gpu_kernels import scheduled
from lowering import kernel_of
from matrix_products import f16, product
from test_contraction import hard_swish
from test_following_kernels import gate
from tvm import relax, tirx

from tvm_ext.tir_schedules.cuda.products.contraction import Contraction
from tvm_ext.tir_schedules.cuda.products.matrix_vector import MatrixVector
from tvm_ext.tir_schedules.decisions import Chosen
from tvm_ext.tir_schedules.template import Template

TILES = {"tile_rows": 32, "tile_columns": 32, "warp_rows": 16, "warp_columns": 32}
SHORT = {"stages": 2, "tile_depth": 16}


def block(x: relax.Expr, w: relax.Expr, b: relax.Expr, r: relax.Expr) -> relax.Expr:
    return hard_swish(relax.op.matmul(x, w) + b) + r


def check(*cases: tuple[Template, tirx.PrimFunc, dict[str, int]]) -> None:
    plain = {str(number): func for number, (_, func, _) in enumerate(cases)}
    found = {
        str(number): scheduled(template, func, decisions=Chosen(decided))
        for number, (template, func, decided) in enumerate(cases)
    }
    assert_emulated(plain, found)


def test_products_in_parts_in_groups_and_of_odd_sizes():
    odd = product(45, 41, 100, written="float16")
    check(
        (Contraction(), odd, {**TILES, **SHORT, "splits": 3}),
        (Contraction(), odd, {**TILES, "stage_a": 1, "stage_b": 1}),
        (Contraction(), product(100, 48, 64), {**TILES, **SHORT, "group": 2, "splits": 2}),
        (Contraction(), product(70, 72, 48, dtype="float32"), {"stages": 3, "splits": 2}),
    )


def test_what_follows_products():
    linear = kernel_of(block, f16(40, 100), f16(100, 48), f16(48), f16(40, 48))
    check((Contraction(), linear, {}), (MatrixVector(), gate(1), {}))


def test_matrix_times_vector():
    check(
        (MatrixVector(), product(1, 264, 200, written="float16"), {}),
        (MatrixVector(), product(1, 101, 77, b_turned=True), {}),
        (MatrixVector(), product(1, 72, 64, dtype="int8", total="int32", b_turned=True), {}),
    )
