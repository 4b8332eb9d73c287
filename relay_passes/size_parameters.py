"""Puts sizes that a fused function takes one by one to those that it takes as a shape.

FuseOps passes the sizes that kernels read as parameters of their own, and those that stand in
shapes only together in one shape. TVM 0.27's FuseTIR fails on functions with both.
"""

from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax
from tvm_ffi import structural_map


@dataclass(frozen=True)
class _Moved:
    """Positions of a function's parameters: single sizes, and the shape."""

    sizes: tuple[int, ...]
    shape: int

    def replaced(self, values: list[Any], shape: Any) -> list[Any]:
        """Parameters or arguments with ``shape`` in place of all of them."""
        pairs = enumerate(values)
        return [shape if i == self.shape else v for i, v in pairs if i not in self.sizes]


def sizes_in_one_shape(mod: tvm.IRModule) -> tvm.IRModule:
    """``mod`` with such functions and all calls of them changed; itself where there are none."""
    moved = {
        global_var: found
        for global_var, func in mod.functions.items()
        if isinstance(func, relax.Function) and (found := _moved(func)) is not None
    }
    if not moved:
        return mod
    builder, renewed = relax.BlockBuilder(), {}
    for global_var, found in moved.items():
        # The variable has the type of its function: a new one for another type.
        name = str(global_var.name_hint)
        func = _changed(mod[global_var], found)
        renewed[name] = (found, builder.add_func(func, name), func)

    def call(old: relax.Call) -> relax.Call:
        name = str(old.op.name_hint) if isinstance(old.op, tvm.ir.GlobalVar) else ""
        if name not in renewed:
            return old
        found, global_var, _ = renewed[name]
        sizes = [*old.args[found.shape].values, *(old.args[i] for i in found.sizes)]
        arguments = found.replaced(list(old.args), relax.ShapeExpr(sizes))
        return relax.Call(global_var, arguments, old.attrs, old.ty_args, old.span)

    functions = {global_var: func for _, global_var, func in renewed.values()}
    for global_var, func in mod.functions.items():
        if str(global_var.name_hint) not in renewed:
            is_relax = isinstance(func, relax.Function)
            functions[global_var] = structural_map(func, (relax.Call, call)) if is_relax else func
    # Gives the new calls their types.
    return relax.transform.Normalize()(tvm.IRModule(functions, attrs=mod.attrs))


def _moved(func: relax.Function) -> _Moved | None:
    if "Primitive" not in (func.attrs or {}):
        return None
    kinds = [type(param.ty) for param in func.params]
    sizes = tuple(i for i, kind in enumerate(kinds) if kind is tvm.ir.PrimType)
    shapes = [i for i, kind in enumerate(kinds) if kind is relax.ShapeType]
    return _Moved(sizes, shapes[0]) if sizes and shapes else None


def _changed(func: relax.Function, moved: _Moved) -> relax.Function:
    shape = func.params[moved.shape]
    sizes = [*shape.ty.values, *(func.params[i] for i in moved.sizes)]
    together = relax.Var(shape.name, relax.ShapeType(sizes))
    params = moved.replaced(list(func.params), together)
    return relax.Function(params, func.body, func.ret_ty, func.is_pure, func.attrs, func.span)
