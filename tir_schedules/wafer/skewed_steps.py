"""Steps whose order differs from PE to PE, so that tiles can be handed on around a ring.

TVM's primitives cannot turn the order of a loop by an amount that depends on other loops, so the
finished kernel is rewritten: in each step, a PE takes another part of the sum, and each part once.
"""

from tvm import tirx
from tvm_ffi import structural_map

from tvm_ext.tir_schedules.analysis.buffer_access import nodes
from tvm_ext.tir_schedules.analysis.loop_nest import substitute
from tvm_ext.tir_schedules.statements import changed_loop
from tvm_ext.tir_schedules.wafer.annotations import COLUMN, MESH_AXIS, ROW

# On a loop: the order of its steps, by number.
ORDER = "tvm_ext.step_order"

IN_ORDER = 0
CANNON = 1
INTERLEAVED = 2


def with_skewed_steps(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """``func`` with the steps of its annotated loops in the order that the annotation names.

    CANNON: PE (i, j) begins with part i + j and goes on in order: each part moves to the next PE of
    the row and column, and from the last to the first (L. E. Cannon, "A cellular computer to
    implement the Kalman filter algorithm", 1969). INTERLEAVED: the same on a ring that goes out
    over the even PEs and back over the odd ones, so that no two neighbours of the ring are more
    than two hops apart (C. He et al., "WaferLLM", OSDI 2025, MeshGEMM).
    """
    loops = nodes(func.body, tirx.For)
    # The innermost loop of an axis numbers the PEs of one product.
    lines = {str(one.annotations.get(MESH_AXIS, "")): one.loop_var for one in loops}

    def transposed(loop: tirx.For) -> tirx.For:
        order = int(loop.annotations.get(ORDER, IN_ORDER))
        if order == IN_ORDER:
            return loop
        part = _part(order, loop.loop_var, loop.extent, lines[ROW], lines[COLUMN])
        notes = {key: value for key, value in loop.annotations.items() if key != ORDER}
        body = substitute(loop.body, {loop.loop_var: part})
        return changed_loop(loop, body=body, annotations=notes)

    return func.with_body(structural_map(func.body, (tirx.For, transposed)))


def _part(order: int, step: tirx.Expr, count: tirx.Expr, i: tirx.Expr, j: tirx.Expr) -> tirx.Expr:
    """Which part of the sum PE (i, j) takes in a step."""
    if order == CANNON:
        return tirx.floormod(step + i + j, count)
    place = tirx.floormod(step + _ring_place(i, count) + _ring_place(j, count), count)
    return tirx.Select(2 * place < count, 2 * place, 2 * (count - 1 - place) + 1)


def _ring_place(pe: tirx.Expr, count: tirx.Expr) -> tirx.Expr:
    """Where a PE of a line is on the interleaved ring."""
    half = tirx.floordiv(pe, 2)
    return tirx.Select(tirx.floormod(pe, 2) == 0, half, count - 1 - half)
