"""Loops that fill with one bfloat16 or 8-bit float: left to LLVM to make vectors of.

TVM turns narrow floats into integers after it has made vectors, and does not look at a scalar that
it has repeated for all lanes: no code can be generated for such a store.
"""

from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm_ffi import structural_map, structural_walk

from tvm_ext.tir_schedules.analysis.buffer_access import nodes


@tirx.transform.prim_func_pass(opt_level=0, name="SerialNarrowFills")
class SerialNarrowFills:
    """Vectorised loops that store a narrow float which no lane changes become plain loops.

    Before: ``for lane in vectorized(16): y[i * 16 + lane] = x[i]``
    After:  ``for lane in range(16): y[i * 16 + lane] = x[i]``
    """

    def transform_function(
        self, func: tirx.PrimFunc, _mod: tvm.IRModule, _ctx: tvm.transform.PassContext
    ) -> tirx.PrimFunc:
        """Kernels of other types stay as they are."""
        if not any(_is_narrow(store.value.ty) for store in nodes(func.body, tirx.BufferStore)):
            return func
        return func.with_body(structural_map(func.body, (tirx.For, _serial)))


def _serial(loop: tirx.For) -> tirx.For:
    if loop.kind != tirx.ForKind.VECTORIZED or not _fills(loop):
        return loop
    return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, loop.body)


def _fills(loop: tirx.For) -> bool:
    """Whether a narrow float is stored whose value is the same in all iterations."""
    changing = {loop.loop_var}
    found = False

    def visit(node: Any) -> None:
        nonlocal found
        if isinstance(node, s_tir.SBlockRealize):
            for axis, value in zip(node.block.iter_vars, node.iter_values, strict=True):
                if _reads(value, changing):
                    changing.add(axis.var)
        elif isinstance(node, tirx.Bind) and _reads(node.value, changing):
            changing.add(node.var)
        elif isinstance(node, tirx.BufferStore):
            found = found or (_is_narrow(node.value.ty) and not _reads(node.value, changing))

    structural_walk(loop.body, visit, order="pre")
    return found


def _reads(expr: tvm.ir.Expr, variables: set[tirx.Var]) -> bool:
    return any(var in variables for var in tirx.analysis.undefined_vars(expr))


def _is_narrow(ty: Any) -> bool:
    return str(ty).removeprefix("T.").startswith(("bfloat16", "float8"))
