"""Kernels whose parameters have their sizes written as their calls write them, in one order."""

import re
from collections.abc import Iterator
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_ext.relay_passes.expressions import operator_name
from tvm_ext.relay_passes.graph_pass import OPAQUE
from tvm_ext.relay_passes.spans import all_bindings_of, relax_bindings, relax_functions

# TVM 0.27 takes the sizes that a kernel needs, and that are none of its arrays' own, out of a set:
# they come in another order for each kernel, and in each process.


def sizes_in_order(mod: tvm.IRModule) -> tvm.IRModule:
    """``mod`` with kernels that are given their sizes in the order in which their arrays name them.

    Kernels that compute the same are one then, and they are numbered in the order of their calls: a
    model that is compiled twice has the same kernels.
    """
    kernels = [func for func in mod.functions.values() if isinstance(func, tirx.PrimFunc)]
    if not any(len(_numbers_of(kernel)) > 1 for kernel in kernels):
        return mod
    functions, names = relax_functions(mod), _called_plainly(mod)
    kept = {name: func for name, func in mod.functions.items() if name not in names}
    builder = relax.BlockBuilder(tvm.IRModule(kept, attrs=mod.attrs))
    taken = {str(name.name_hint) for name in mod.functions}
    ordered: dict[tvm.ir.GlobalVar, tuple[tvm.ir.GlobalVar, list[int]]] = {}
    for name in names:
        kernel, order = _in_order(mod[name])
        plain = _without_number(str(name.name_hint), taken)
        ordered[name] = builder.add_func(kernel, plain), order

    def called(call: tvm.ir.Call) -> tvm.ir.Call:
        if operator_name(call) != "relax.call_tir" or call.args[0] not in ordered:
            return call
        name, order = ordered[call.args[0]]
        given = call.args[1].fields
        arguments = relax.Tuple([given[place] for place in order[: len(given)]])
        made = [name, arguments, *call.args[2:]]
        return builder.normalize(relax.Call(call.op, made, call.attrs, call.ty_args, call.span))

    for name, func in functions.items():
        builder.update_func(name, tvm_ffi.structural_map(func, (tvm.ir.Call, called)))
    return builder.get()


def _called_plainly(mod: tvm.IRModule) -> dict[tvm.ir.GlobalVar, None]:
    """The kernels of this module alone, in the order of their calls, which are all of one kind."""
    found: dict[tvm.ir.GlobalVar, None] = {}
    others: set[tvm.ir.GlobalVar] = set()
    for binding in relax_bindings(mod):
        call = binding.value
        if not isinstance(call, relax.Call):
            continue
        if operator_name(call) == "relax.call_tir":
            found[call.args[0]] = None
        else:
            others |= {one for one in call.args if isinstance(one, tvm.ir.GlobalVar)}
    for kernel in mod.functions.values():
        if isinstance(kernel, tirx.PrimFunc):
            tvm_ffi.structural_walk(kernel.body, (tvm.ir.GlobalVar, others.add))
    private = [name for name in found if "global_symbol" not in (mod[name].attrs or {})]
    return {name: None for name in private if name not in others}


def _numbers_of(kernel: tirx.PrimFunc) -> list[int]:
    """The places of the parameters that are no arrays."""
    return [n for n, param in enumerate(kernel.params) if not hasattr(param.ty, "shape")]


def _in_order(kernel: tirx.PrimFunc) -> tuple[tirx.PrimFunc, list[int]]:
    """The kernel, and which of the old parameters each of its new ones is."""
    params, numbers = list(kernel.params), _numbers_of(kernel)
    if len(numbers) < 2:
        return kernel, list(range(len(params)))
    sizes = [size for param in params for size in getattr(param.ty, "shape", ())]
    read = [var for size in sizes for var in tirx.analysis.undefined_vars(size)]
    tvm_ffi.structural_walk(kernel.body, (tirx.Var, read.append))
    first = {var: place for place, var in reversed(list(enumerate(read)))}
    moved = sorted(numbers, key=lambda place: first.get(params[place], len(read)))
    order = list(range(len(params)))
    for place, old in zip(numbers, moved, strict=True):
        order[place] = old
    mixed = [params[place] for place in order]
    return tirx.PrimFunc(mixed, kernel.body, kernel.ret_type, kernel.attrs, kernel.span), order


def _without_number(name: str, taken: set[str]) -> str:
    """The name that TVM has numbered, if another one has it."""
    plain = re.sub(r"\d+$", "", name)
    return plain if plain in taken else name


# TVM 0.27's FuseTIR compares the sizes of a kernel with those of its arguments term by term. Where
# one says ``n + min(n, 4)`` and the other ``min(n, 4) + n``, it takes ``n`` for ``min(n, 4)`` and
# puts the one for the other without end, until the stack is full; of ``m * n`` and ``n * m`` it
# takes either for the other.


def sizes_as_called(mod: tvm.IRModule) -> tvm.IRModule:
    """``mod`` with kernels whose parameters have their sizes as each call of them writes them.

    A kernel that cannot say its sizes in that way is marked opaque, and stays out of groups.
    """
    writer = _Writer(mod)
    for global_var, func in relax_functions(mod).items():
        if any(_kernel_like(mod, binding.value) for binding in all_bindings_of(func)):
            writer.builder_.update_func(global_var, writer.visit_expr(func))
    return writer.builder_.get()


@mutator
class _Writer(PyExprMutator):
    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self.mod = mod

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        kernel = _kernel_like(self.mod, call)
        if kernel is None:
            return super().visit_call_(call)
        name = self.builder_.add_func(kernel, str(call.args[0].name_hint))
        rest = [self.visit_expr(arg) for arg in call.args[1:]]
        return self.builder_.normalize(
            relax.Call(call.op, [name, *rest], call.attrs, call.ty_args, call.span)
        )


def _kernel_like(mod: tvm.IRModule, call: relax.Expr) -> tirx.PrimFunc | None:
    """The kernel of a call with the sizes of its arguments; None where it has them already."""
    if operator_name(call) != "relax.call_tir":
        return None
    kernel = mod[call.args[0]]
    known = _known_sizes(kernel, call)
    shapes = {}
    for param, sizes in _shapes(kernel, call):
        pairs = zip(param.ty.shape, sizes, strict=True)
        if not all(_is_written(own, given, known) for own, given in pairs):
            shapes[param] = sizes
    if not shapes:
        return None
    own = {size: var for var, size in known.items() if isinstance(size, tirx.Var)}
    read = (var for s in shapes.values() for one in s for var in tirx.analysis.undefined_vars(one))
    if not set(read) <= set(own) or any(map(_has_own_layout, shapes)):
        return kernel.with_attr("op_pattern", OPAQUE)
    params = {
        param: _like(param, [_with(size, own) for size in sizes]) for param, sizes in shapes.items()
    }
    return tvm_ffi.structural_map(kernel, (tirx.Var, lambda var: params.get(var, var)))


def _known_sizes(kernel: tirx.PrimFunc, call: relax.Call) -> dict[tirx.Var, tirx.Expr]:
    """What the variables of a kernel stand for: sizes that it is given, or that arrays have."""
    scalars = (p for p in zip(kernel.params, call.args[1].fields, strict=False) if not _is_array(p))
    known = dict(scalars)
    for param, sizes in _shapes(kernel, call):
        for own, given in zip(param.ty.shape, sizes, strict=True):
            if isinstance(own, tirx.Var):
                known.setdefault(own, given)
    return known


def _is_array(pair: tuple[tirx.Var, Any]) -> bool:
    return hasattr(pair[0].ty, "shape")


def _shapes(kernel: tirx.PrimFunc, call: relax.Call) -> Iterator[tuple[tirx.Var, list[Any]]]:
    """Each array that a kernel is given or fills, with the sizes that the call says."""
    result = call.ty_args[0]
    results = result.fields if isinstance(result, relax.TupleType) else [result]
    types = [*(argument.ty for argument in call.args[1].fields), *results]
    for param, ty in zip(kernel.params, types, strict=False):
        shape = getattr(ty, "shape", None)
        if isinstance(shape, relax.ShapeExpr) and hasattr(param.ty, "shape"):
            yield param, list(shape.values)


def _is_written(own: tirx.Expr, given: tirx.Expr, known: dict[Any, Any]) -> bool:
    if isinstance(own, tirx.IntImm):
        return isinstance(given, tirx.IntImm)
    return bool(tvm_ffi.structural_equal(_with(own, known), given))


def _with(size: tirx.Expr, values: dict[Any, Any]) -> tirx.Expr:
    return tvm_ffi.structural_map(size, (tirx.Var, lambda var: values.get(var, var)))


def _has_own_layout(buffer: tirx.Var) -> bool:
    return bool(len(buffer.ty.strides)) or buffer.ty.layout is not None


def _like(buffer: tirx.Var, sizes: list[Any]) -> tirx.Var:
    ty = buffer.ty
    return tirx.decl_buffer(
        sizes,
        ty.dtype,
        buffer.name,
        elem_offset=ty.elem_offset,
        scope=ty.storage_scope,
        data_alignment=ty.data_alignment,
        offset_factor=ty.offset_factor,
        layout=None,
    )
