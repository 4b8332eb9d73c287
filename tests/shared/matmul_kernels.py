"""Products to schedule, and how they are checked: described loops for numbers, or code."""

from typing import Any

from cuda_kernels import assert_numbers, scheduled
from machines import GPU
from tvm import relax, te, tirx

from tvm_ext.hardware.description import CudaDescription
from tvm_ext.tir_schedules.cuda.matmul.contraction import CudaContraction
from tvm_ext.tir_schedules.template import FixedDecisions


def f16(*shape: int) -> tuple[tuple[int, ...], str]:
    return shape, "float16"


def product(
    rows: int,
    columns: int,
    steps: int,
    *,
    dtype: str = "float16",
    total: str = "float32",
    written: str = "",
    a_transposed: bool = False,
    b_transposed: bool = False,
    batch: tuple[int, ...] = (),
) -> tirx.PrimFunc:
    """A product, added up in ``total``; a transposed operand has K first (A) or last (B)."""
    a = te.placeholder((*batch, *((steps, rows) if a_transposed else (rows, steps))), dtype, "a")
    b = te.placeholder(
        (*batch, *((columns, steps) if b_transposed else (steps, columns))), dtype, "b"
    )
    k = te.reduce_axis((0, steps), "k")

    def element(*at: Any) -> Any:
        *outer, i, j = at
        x = a[(*outer, *((k, i) if a_transposed else (i, k)))]
        y = b[(*outer, *((j, k) if b_transposed else (k, j)))]
        return te.sum(x.astype(total) * y.astype(total), axis=k)

    c = te.compute((*batch, rows, columns), element, "c")
    if written:
        c = te.compute(c.shape, lambda *at: c[at].astype(written), "written")
    return te.create_prim_func([a, b, c])


def linear(x: relax.Expr, w: relax.Expr, b: relax.Expr) -> relax.Expr:
    return relax.op.nn.relu(relax.op.matmul(x, w) + b)


def check_numbers(func: tirx.PrimFunc, **decided: int) -> None:
    """Compares the kernel, scheduled with the instructions described, to the one given."""
    described = scheduled(CudaContraction(described=True), func, decisions=FixedDecisions(decided))
    assert_numbers({"kernel": func}, {"kernel": described})


def in_instructions(
    func: tirx.PrimFunc, machine: CudaDescription = GPU, **decided: int
) -> tirx.PrimFunc:
    """The kernel as it is built for a GPU."""
    return scheduled(CudaContraction(), func, machine, FixedDecisions(decided))
