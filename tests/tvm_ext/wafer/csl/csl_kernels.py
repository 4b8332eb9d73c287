"""Kernels for the tests of code for the machine, scheduled for small grids."""

from tvm import s_tir, te, tirx

from tvm_ext.hardware.targets import resolve_target
from tvm_ext.tir_schedules.apply_template import apply_template
from tvm_ext.tir_schedules.decisions import Chosen
from tvm_ext.tir_schedules.wafer.annotations import COLUMN, MESH_AXIS, ROW, VECTOR
from tvm_ext.tir_schedules.wafer.matmul import MeshMatmul

SUMMA = 0


def machine(rows=8, columns=8):
    return resolve_target("wse2").with_grid(rows, columns)


def product(m, n, k, dtype="float32", epilogue=True):
    """Relu(A @ B), or A @ B."""
    a = te.placeholder((m, k), name="A", dtype=dtype)
    b = te.placeholder((k, n), name="B", dtype=dtype)
    over = te.reduce_axis((0, k), name="k")
    c = te.compute((m, n), lambda i, j: te.sum(a[i, over] * b[over, j], axis=over), name="C")
    if not epilogue:
        return te.create_prim_func([a, b, c])
    zero = tirx.const(0, dtype)
    d = te.compute((m, n), lambda i, j: te.max(c[i, j], zero), name="D")
    return te.create_prim_func([a, b, d])


def summa(func, **decisions):
    """The kernel as the template schedules it with some decisions."""
    chosen = Chosen({"algorithm": SUMMA, **decisions}, lenient=True)
    return apply_template(MeshMatmul(), func, machine(), chosen).func


def elementwise(function, shape, dtypes=("float32",), out=None):
    """A kernel whose result is ``function`` of the elements of its operands."""
    names = [f"x{number}" for number in range(len(dtypes))]
    operands = [te.placeholder(shape, d, n) for n, d in zip(names, dtypes, strict=True)]
    result = te.compute(shape, lambda *at: function(*(x[at] for x in operands)), name="y")
    return te.create_prim_func([*operands, result])


def over_mesh(func, rows, columns, vector=True):
    """A kernel of one block over two dimensions, cut over a grid by hand."""
    sch = s_tir.Schedule(func)
    block = sch.get_sblock("y")
    loops = sch.get_loops(block)
    outer, inner = [], []
    for loop, count, axis in zip(loops[:2], (rows, columns), (ROW, COLUMN), strict=True):
        extent = int(sch.get(loop).extent)
        one, other = sch.split(loop, factors=[count, -(-extent // count)])
        sch.annotate(one, MESH_AXIS, axis)
        outer.append(one)
        inner.append(other)
    sch.reorder(*outer, *inner, *loops[2:])
    if vector:
        sch.annotate([*inner, *loops[2:]][-1], VECTOR, 1)
    return sch.mod["main"]
