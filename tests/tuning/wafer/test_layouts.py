"""Where the parameters of a scheduled kernel lie."""

from tvm import te

from tvm_ext.hardware.targets import resolve_target
from tvm_ext.tir_schedules.apply_template import ScheduledKernel, apply_template
from tvm_ext.tir_schedules.template import FixedDecisions
from tvm_ext.tir_schedules.wafer.gemv import WaferGemv
from tvm_ext.tir_schedules.wafer.matmul import WaferMatmul
from tvm_ext.tuning.wafer.cost_model import read_program


def product(rows, columns, summed):
    a = te.placeholder((rows, summed), name="A")
    b = te.placeholder((summed, columns), name="B")
    k = te.reduce_axis((0, summed), name="k")
    c = te.compute((rows, columns), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    return te.create_prim_func([a, b, c])


def program(func, template, **decisions):
    scheduled = apply_template(template, func, resolve_target("mesh16"), FixedDecisions(decisions))
    assert isinstance(scheduled, ScheduledKernel), scheduled
    return read_program(scheduled.func)


def test_operands_and_result_of_a_product_are_cut_in_both_dimensions():
    found = program(product(24, 40, 32), WaferMatmul(), algorithm=0, rows=8, columns=10)
    assert (found.rows, found.columns) == (8, 10)
    a, b, c = (found.homes[position] for position in range(3))
    assert (a.shape, a.axes, a.pieces) == ((24, 32), ("row", "column"), (3, 4))
    assert (b.shape, b.axes, b.pieces) == ((32, 40), ("row", "column"), (4, 4))
    assert (c.axes, c.pieces, c.rows, c.columns) == (("row", "column"), (3, 4), 8, 10)
    assert {one.tensor: one.shard_bytes for one in (a, b, c)} == found.shards


def test_a_vector_lies_in_one_column_and_the_sum_in_one_row():
    found = program(product(1, 48, 64), WaferGemv(), rows=16, columns=12)
    vector, matrix, result = (found.homes[position] for position in range(3))
    # Sent along the rows from its first PEs; the partial results are added up in the first row.
    assert (vector.axes, vector.rows, vector.columns) == (("-", "row"), 16, 1)
    assert (matrix.axes, matrix.rows, matrix.columns) == (("row", "column"), 16, 12)
    assert (result.axes, result.rows, result.columns) == (("-", "column"), 1, 12)
