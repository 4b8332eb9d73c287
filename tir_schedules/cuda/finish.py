"""What every CUDA kernel needs in the end, whoever has scheduled it."""

import math
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.sym import Analyzer
from tvm_ffi import structural_map

from tvm_ext.tir_schedules.analysis.buffer_access import static_extent
from tvm_ext.tir_schedules.cuda.launch import ALL_REGISTERS
from tvm_ext.tir_schedules.statements import changed_block, changed_loop

# Indices of vectorised copies written so that TVM sees what holds for a whole vector.
#
# A copy of an operand whose rows are fused loops reads at ``k // 288`` and ``k % 288``, under
# conditions of both. For ``k = part * 176 + 4 * piece + lane``, TVM 0.27 does not see that they
# are the same for four lanes, and takes the vector apart: copies of 4 bytes, or none that is
# asynchronous. ``k // 4 // 72`` it simplifies.


def with_whole_vectors(body: tirx.Stmt) -> tirx.Stmt:
    """``body`` with divisions by multiples of a vector's length in two steps.

    Before: ``vectorized(4): x[k // 288, k % 288]`` with ``k = 4 * i + lane``
    After:  ``vectorized(4): x[k // 4 // 72, k // 4 % 72 * 4 + k % 4]``

    Leaves alone: variables of which TVM does not know that vectors of them are aligned.
    """
    return structural_map(body, (tirx.For, _rewritten))


def _rewritten(loop: tirx.For) -> tirx.For:
    realize, lanes = loop.body, static_extent(loop.extent) or 1
    vectorized = tirx.ForKind(loop.kind) == tirx.ForKind.VECTORIZED
    if not vectorized or lanes == 1 or not isinstance(realize, s_tir.SBlockRealize):
        return loop
    block = realize.block
    aligned = [
        iter_var.var
        for iter_var, value in zip(block.iter_vars, realize.iter_values, strict=True)
        if _is_aligned(value, loop.loop_var, lanes)
    ]
    body = block.body
    for variable in aligned:
        body = _in_two_steps(body, variable, lanes)
    if body.same_as(block.body):
        return loop
    changed = changed_block(block, body=body)
    again = s_tir.SBlockRealize(realize.iter_values, realize.predicate, changed)
    return changed_loop(loop, body=again)


def _is_aligned(value: tvm.ir.Expr, lane: tirx.Var, lanes: int) -> bool:
    """Whether an index is a multiple of ``lanes`` and the lane."""
    analyzer = Analyzer()
    analyzer.bind(lane, tvm.ir.Range(0, lanes))
    dtype = str(value.ty)
    rest = tirx.FloorMod(value, tirx.const(lanes, dtype)) - lane.astype(dtype)
    return static_extent(analyzer.simplify(rest)) == 0


def _in_two_steps(body: tirx.Stmt, variable: tirx.Var, lanes: int) -> tirx.Stmt:
    dtype = str(variable.ty)
    length = tirx.const(lanes, dtype)
    vector = tirx.FloorDiv(variable, length)

    def vectors_in(divisor: tvm.ir.Expr) -> Any:
        size = static_extent(divisor)
        return None if size is None or size % lanes or size == lanes else size // lanes

    def quotient(node: tirx.FloorDiv) -> tvm.ir.Expr:
        count = vectors_in(node.b) if node.a.same_as(variable) else None
        return node if count is None else tirx.FloorDiv(vector, tirx.const(count, dtype))

    def remainder(node: tirx.FloorMod) -> tvm.ir.Expr:
        count = vectors_in(node.b) if node.a.same_as(variable) else None
        if count is None:
            return node
        whole = tirx.FloorMod(vector, tirx.const(count, dtype))
        return whole * length + tirx.FloorMod(variable, length)

    def below(node: tirx.LT) -> tvm.ir.Expr:
        count = vectors_in(node.b) if node.a.same_as(variable) else None
        return node if count is None else tirx.LT(vector, tirx.const(count, dtype))

    for kind, rewrite in (
        (tirx.FloorDiv, quotient),
        (tirx.FloorMod, remainder),
        (tirx.LT, below),
    ):
        body = structural_map(body, (kind, rewrite))
    return body


# What TVM writes into ``__launch_bounds__``: how many blocks have to fit on a multiprocessor.
_MIN_BLOCKS = "tirx.launch_bounds_min_blocks_per_sm"


def _with_launch_bounds(body: tirx.Stmt) -> tirx.Stmt:
    """``body`` with the annotation ``ALL_REGISTERS`` as TVM wants to have it said."""
    return structural_map(body, (tirx.For, _bounded))


def _bounded(loop: tirx.For) -> tirx.For:
    if ALL_REGISTERS not in loop.annotations:
        return loop
    one = tirx.const(1, "int32")
    rest = {key: value for key, value in loop.annotations.items() if key != ALL_REGISTERS}
    body = tirx.AttrStmt(one, _MIN_BLOCKS, one, loop.body)
    return changed_loop(loop, body=body, annotations=rest)


# IEEE 754's infinity, with the exponent of bfloat16.
_INFINITY, _SIGN, _NAN = 0x7F80, 0x8000, 0x7FC0


def finished_for_cuda(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """``func`` with constants and bounds that CUDA code can spell."""
    body = _with_launch_bounds(tvm_ffi.structural_map(func.body, (tirx.FloatImm, _spelled)))
    body = with_whole_vectors(body)
    return func if body.same_as(func.body) else func.with_body(body)


def _spelled(value: tirx.FloatImm) -> tirx.Expr:
    """Infinity and NaN of bfloat16, for which TVM writes "inff" and "nanf", by their bits."""
    number = float(value.value)
    if math.isfinite(number) or str(value.ty) != "bfloat16":
        return value
    bits = _NAN if math.isnan(number) else _INFINITY + (_SIGN if number < 0 else 0)
    return tirx.reinterpret("bfloat16", tirx.const(bits, "uint16"))
