"""Products to schedule, and how they are checked: described loops for numbers, or code."""

from typing import Any

from cuda_kernels import assert_numbers, scheduled
from machines import GPU
from tvm import relax, te, tirx

from tvm_ext.hardware.cuda.description import CudaDescription
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


def convolution(x: relax.Expr, w: relax.Expr, b: relax.Expr, **options: object) -> relax.Expr:
    summed = relax.op.nn.conv2d(
        x, w, data_layout="NHWC", kernel_layout="OHWI", out_layout="NHWC", **options
    )
    return relax.op.nn.relu(summed + b)


def calls(source: str, name: str) -> int:
    """Lines of code that begin with ``name``."""
    return sum(line.strip().startswith(name) for line in source.splitlines())


def hard_swish(x: relax.Expr) -> relax.Expr:
    three, six = relax.const(3.0, "float16"), relax.const(6.0, "float16")
    return x * relax.op.clip(x + three, 0, 6) / six


def gate(rows: int) -> tirx.PrimFunc:
    """The product is broadcast over an image."""
    a, b = te.placeholder((rows, 64), "float32", "a"), te.placeholder((64, 32), "float32", "b")
    x = te.placeholder((rows, 32, 3, 12), "float32", "x")
    k = te.reduce_axis((0, 64), "k")
    c = te.compute((rows, 32), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), "c")
    g = te.compute(c.shape, lambda i, j: tirx.sigmoid(c[i, j]), "g")
    y = te.compute(x.shape, lambda n, i, h, w: x[n, i, h, w] * g[n, i], "y")
    return te.create_prim_func([a, b, x, y])
