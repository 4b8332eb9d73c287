"""Symbolic sizes: decisions are taken for a nominal size, and hold for every size of a run."""

from typing import Any

import tvm
from tvm import tirx
from tvm.sym import Analyzer
from tvm_ffi import structural_map

from tvm_ext.tir_schedules.block_access import static_extent
from tvm_ext.tir_schedules.template import NotMine

NOMINAL = 16
"""What a symbolic size, such as a batch, is taken for where tiles are chosen."""


def nominal_extent(extent: Any) -> int:
    """An extent with every symbolic size in it at its nominal value."""
    known = static_extent(extent)
    if known is not None:
        return known

    def size(variable: tvm.ir.Var) -> tirx.IntImm:
        return tirx.IntImm(str(variable.ty), NOMINAL)

    return static_extent(Analyzer().simplify(structural_map(extent, (tvm.ir.Var, size)))) or 1


def with_nominal_sizes(func: tirx.PrimFunc) -> tirx.PrimFunc | NotMine:
    """The kernel for nominal sizes: ``func`` itself when all of its sizes are known.

    TVM 0.27 specialises sizes that are one variable, none that is computed of others.
    """
    known = {}
    for parameter in func.params:
        if not isinstance(parameter.ty, tirx.BufferType):
            continue
        if any(static_extent(size) is None for size in parameter.shape):
            if any(not isinstance(size, tirx.IntImm | tvm.ir.Var) for size in parameter.shape):
                return NotMine("a size is computed of others in the run")
            shape = [tirx.IntImm("int64", nominal_extent(size)) for size in parameter.shape]
            known[parameter] = tirx.decl_buffer(shape, str(parameter.dtype), parameter.name)
    return func.specialize(known) if known else func
