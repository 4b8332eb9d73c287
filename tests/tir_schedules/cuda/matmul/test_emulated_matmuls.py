"""Products run as CUDA code: barriers, asynchronous copies, alignment, several kernels."""

from cuda_kernels import scheduled
from emulated_kernels import assert_emulated
from lowering import kernel_of
from matmul_kernels import f16, gate, hard_swish, product
from tvm import relax, te, tirx

from tvm_ext.tir_schedules.cuda.matmul.contraction import CudaContraction
from tvm_ext.tir_schedules.cuda.matmul.gemv import Gemv
from tvm_ext.tir_schedules.template import FixedDecisions, Template

TILES = {"tile_rows": 32, "tile_columns": 32, "warp_rows": 16, "warp_columns": 32}
SHORT = {"stages": 2, "tile_depth": 16}


def block(x: relax.Expr, w: relax.Expr, b: relax.Expr, r: relax.Expr) -> relax.Expr:
    return hard_swish(relax.op.matmul(x, w) + b) + r


def check(*cases: tuple[Template, tirx.PrimFunc, dict[str, int]]) -> None:
    plain = {str(number): func for number, (_, func, _) in enumerate(cases)}
    found = {
        str(number): scheduled(template, func, decisions=FixedDecisions(decided))
        for number, (template, func, decided) in enumerate(cases)
    }
    assert_emulated(plain, found)


def test_products_in_parts_in_groups_and_of_odd_sizes():
    odd = product(45, 41, 100, written="float16")
    check(
        (CudaContraction(), odd, {**TILES, **SHORT, "splits": 3}),
        (CudaContraction(), odd, {**TILES, "stage_a": 1, "stage_b": 1}),
        (CudaContraction(), product(100, 48, 64), {**TILES, **SHORT, "group": 2, "splits": 2}),
        (CudaContraction(), product(70, 72, 48, dtype="float32"), {"stages": 3, "splits": 2}),
    )


def test_what_follows_products():
    linear = kernel_of(block, f16(40, 100), f16(100, 48), f16(48), f16(40, 48))
    check((CudaContraction(), linear, {}), (Gemv(), gate(1), {}))


def capitals() -> tirx.PrimFunc:
    """A product whose second operand, "B", is read by rows and its first by columns."""
    b, a = te.placeholder((48, 64), "float16", "B"), te.placeholder((64, 40), "float16", "A_B")
    k = te.reduce_axis((0, 64), "k")

    def element(i: tirx.Var, j: tirx.Var) -> tirx.Expr:
        return te.sum(a[k, j].astype("float32") * b[i, k].astype("float32"), axis=k)

    return te.create_prim_func([b, a, te.compute((48, 40), element, "C")])


def rows_with_bias(x: relax.Expr, w: relax.Expr, b: relax.Expr) -> relax.Expr:
    summed = relax.op.matmul(x, w, out_dtype="float32")
    return relax.op.astype(relax.op.nn.relu(summed + b), "float16")


def test_names_in_capitals_and_values_that_neighbours_share():
    bias = kernel_of(rows_with_bias, f16(32, 64), f16(64, 48), ((32, 1), "float32"))
    check((CudaContraction(), capitals(), TILES), (CudaContraction(), bias, TILES))


def test_matrix_times_vector():
    check(
        (Gemv(), product(1, 264, 200, written="float16"), {}),
        (Gemv(), product(1, 101, 77, b_transposed=True), {}),
        (Gemv(), product(1, 72, 64, dtype="int8", total="int32", b_transposed=True), {}),
    )
