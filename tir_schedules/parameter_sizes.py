"""Sizes of parameters from which TVM concludes no more than they say."""

from typing import Any

import tvm
from tvm import tirx
from tvm.sym import detect_linear_equation
from tvm_ffi import structural_map

from tvm_ext.tir_schedules.analysis.buffer_access import nodes, static_extent


@tirx.transform.prim_func_pass(opt_level=0, name="FactorParameterSizes")
class FactorParameterSizes:
    """Sizes of parameters as multiples that begin where the parameter does.

    TVM's simplifications take each size of a parameter for non-negative, and conclude ``n >= 9``
    from ``8 * n - 9`` (``Analyzer::MarkGlobalNonNegValue`` forgets the factor): they leave out
    conditions that do not hold for an ``n`` from 2 to 8. They do not look into a factor.

    Before: ``y: Buffer((n * 8 - 9,))``
    After:  ``y: Buffer(((n - 2) * 8 + 7,))``

    Leaves alone: sizes of several variables, and those from which TVM concludes the right bound.

    Run before: StmtSimplify.
    """

    def transform_function(
        self, func: tirx.PrimFunc, _mod: tvm.IRModule, _ctx: tvm.transform.PassContext
    ) -> tirx.PrimFunc:
        """Kernels without such sizes stay as they are."""
        found = {param: _factored(param) for param in func.params if _is_misread(param)}
        if not found:
            return func
        params = [found.get(param, param) for param in func.params]
        body = structural_map(func.body, (tvm.ir.Var, lambda var: found.get(var, var)))
        return tirx.PrimFunc(params, body, func.ret_type, func.attrs)


def _is_misread(param: Any) -> bool:
    return isinstance(param.ty, tirx.BufferType) and any(map(_parts, param.shape))


def _parts(size: Any) -> tuple[Any, int, int] | None:
    """The variable, its factor and what is taken away where TVM concludes too much."""
    variables = {hash(var): var for var in nodes(size, tvm.ir.Var)}
    if len(variables) != 1:
        return None
    (var,) = variables.values()
    found = detect_linear_equation(size, [var])
    if len(found) == 0:
        return None
    factor, offset = map(static_extent, found)
    if factor is None or offset is None or factor < 2 or offset > -2:
        return None
    return var, factor, -offset


def _factored(param: Any) -> Any:
    shape = []
    for size in param.shape:
        if (parts := _parts(size)) is None:
            shape.append(size)
            continue
        var, factor, less = parts
        dtype, least = str(size.ty), -(-less // factor)
        whole = tirx.Mul(var - tirx.const(least, dtype), tirx.const(factor, dtype))
        shape.append(tirx.Add(whole, tirx.const(least * factor - less, dtype)))
    return tirx.decl_buffer(
        shape,
        param.dtype,
        param.name,
        strides=param.strides,
        elem_offset=param.elem_offset,
        scope=param.scope(),
        data_alignment=param.data_alignment,
        offset_factor=param.offset_factor,
    )
