"""Reductions taken apart: minima and maxima that start from infinity too."""

import math

import pytest
import tvm
from tvm import s_tir, te, tirx
from tvm.s_tir.schedule import ScheduleError

from tvm_ext.tir_schedules.analysis.buffer_access import reduction_blocks
from tvm_ext.tir_schedules.reducers import rfactor

EXTREMA = [(tirx.min, math.inf), (tirx.max, -math.inf)]


def along_rows(extremum, start: float) -> s_tir.Schedule:
    """A minimum or maximum along rows, whose start is infinity as in imported models."""
    reducer = te.comm_reducer(lambda a, b: extremum(a, b), lambda dtype: tirx.const(start, dtype))
    x, k = te.placeholder((4, 32), "float32", "x"), te.reduce_axis((0, 32))
    y = te.compute((4,), lambda i: reducer(x[i, k], axis=k), "y")
    return s_tir.Schedule(te.create_prim_func([x, y]))


@pytest.mark.parametrize(("extremum", "start"), EXTREMA)
def test_partial_results_start_from_infinity(extremum, start: float) -> None:
    sch = along_rows(extremum, start)
    block = reduction_blocks(sch)[0]
    _, lanes = sch.split(sch.get_loops(block)[1], factors=[None, 8])
    rfactor(sch, block, lanes, 1)
    found = [sch.get(block).init.value.value for block in reduction_blocks(sch)]
    assert found == [start, start]


@pytest.mark.parametrize(("extremum", "start"), EXTREMA)
def test_what_cannot_be_taken_apart_stays(extremum, start: float) -> None:
    sch = along_rows(extremum, start)
    before = sch.mod
    block = reduction_blocks(sch)[0]
    with pytest.raises(ScheduleError):
        rfactor(sch, block, sch.get_loops(block)[0], 0)
    tvm.ir.assert_structural_equal(sch.mod, before)
