"""Kernels for the tests of code for the machine, scheduled for small grids."""

import tvm
from tvm import s_tir, te, tirx
from unoptimised import built

from tvm_ext.hardware.targets import resolve_target
from tvm_ext.tir_schedules.apply_template import apply_template
from tvm_ext.tir_schedules.template import FixedDecisions
from tvm_ext.tir_schedules.wafer.annotations import COLUMN, MESH_AXIS, ROW, VECTOR
from tvm_ext.tir_schedules.wafer.elementwise import WaferElementwise
from tvm_ext.wafer.csl.model_kernel import scheduled_as_summa


def machine(rows=8, columns=8):
    return resolve_target("wse2").with_grid(rows, columns)


def product(m, n, k, dtype="float32", relu=True):
    """Relu(A @ B) as D, or A @ B as C."""
    a = te.placeholder((m, k), name="A", dtype=dtype)
    b = te.placeholder((k, n), name="B", dtype=dtype)
    over = te.reduce_axis((0, k), name="k")
    c = te.compute((m, n), lambda i, j: te.sum(a[i, over] * b[over, j], axis=over), name="C")
    if not relu:
        return te.create_prim_func([a, b, c])
    zero = tirx.const(0, dtype)
    d = te.compute((m, n), lambda i, j: te.max(c[i, j], zero), name="D")
    return te.create_prim_func([a, b, d])


def matmul(func, **decisions):
    """The kernel as the template for products schedules it, with some decisions."""
    return scheduled_as_summa(func, machine(), decisions)


def elementwise(function, shape=(10, 14), dtypes=("float32",)):
    """A kernel whose result, y, is ``function`` of the elements of x0, x1, ..."""
    operands = [te.placeholder(shape, d, f"x{number}") for number, d in enumerate(dtypes)]
    result = te.compute(shape, lambda *at: function(*(x[at] for x in operands)), name="y")
    return te.create_prim_func([*operands, result])


def over_mesh(func, rows=3, columns=4, block="y"):
    """A kernel of one block whose first two dimensions are cut over a grid by hand."""
    sch = s_tir.Schedule(func)
    loops = sch.get_loops(sch.get_sblock(block))
    outer, inner = [], []
    for loop, count, axis in zip(loops[:2], (rows, columns), (ROW, COLUMN), strict=True):
        extent = int(sch.get(loop).extent)
        one, other = sch.split(loop, factors=[count, -(-extent // count)])
        sch.annotate(one, MESH_AXIS, axis)
        outer.append(one)
        inner.append(other)
    sch.reorder(*outer, *inner, *loops[2:])
    sch.annotate([*inner, *loops[2:]][-1], VECTOR, 1)
    return sch.mod["main"]


def broadcast_sum(shapes, grid=(3, 4)):
    """y of 10x14, the sum of x0, x1, ...; operands of other ``shapes`` are sent to all PEs."""
    operands = [te.placeholder(shape, "float32", f"x{n}") for n, shape in enumerate(shapes)]

    def element(x, place):
        sizes = [int(size) for size in x.shape]
        return x[tuple(p if s > 1 else 0 for p, s in zip(place[-len(sizes) :], sizes, strict=True))]

    def total(*place):
        first, *others = (element(x, place) for x in operands)
        return sum(others, first)

    func = te.create_prim_func([*operands, te.compute((10, 14), total, name="y")])
    return apply_template(WaferElementwise(), func, machine(*grid), FixedDecisions({})).func


def on_cpu(func, arrays):
    """The kernel's last parameter, computed by TVM on this machine."""
    tensors = [tvm.runtime.tensor(array) for array in arrays]
    built({"main": func})["main"](*tensors)
    return tensors[-1].numpy()
