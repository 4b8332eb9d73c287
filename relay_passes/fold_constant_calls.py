"""Computes at compile time what depends on constants only."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_ext.hardware.tvm_compat import without_scope_marks
from tvm_ext.relay_passes.binding_rewriter import GraphView, view_of
from tvm_ext.relay_passes.expressions import (
    constant_value,
    operator_name,
    static_extents,
)
from tvm_ext.relay_passes.graph_pass import graph_pass, record_applied
from tvm_ext.relay_passes.layout_graph import blocks_of
from tvm_ext.relay_passes.legalize_ops import legalize_ops
from tvm_ext.relay_passes.max_and_min import with_constants_first
from tvm_ext.relay_passes.spans import describe_origin, relax_functions

NAME = "FoldConstantCalls"

_CALL_TIR = tvm.ir.Op.get("relax.call_tir")

# Kernels without a schedule that run once; the default level takes longer to compile than to run.
_TARGET = tvm.target.Target({"kind": "llvm", "opt-level": 1})

# Elements of a result: of tables that are computed from little, and of what is computed from
# nothing, which is cheaper to make than to store.
_MOST_ELEMENTS = 1 << 22
_MOST_OF_NOTHING = 1024

# Operators whose results have one right rounding.
_ARITHMETIC = {
    "relax.add": np.add,
    "relax.subtract": np.subtract,
    "relax.multiply": np.multiply,
    "relax.divide": np.divide,
    "relax.negative": np.negative,
    "relax.sqrt": np.sqrt,
}
_INTEGERS = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))

# Operators of quantisation.
_ROUNDINGS = frozenset({"relax.round", "relax.clip", "relax.astype"})


@graph_pass
class FoldConstantCalls:
    """Replaces calls whose operands are all constants by their results.

    Before: ``w = permute_dims(W)``; ``y = matmul(x, w)``
    After:  ``y = matmul(x, W')`` with the constant ``W' = W.T``
    So are sizes that are taken from a shape whose other sizes a run decides.

    Views, casts and arithmetic are computed here, the rest by its kernels, built together. TVM's
    FoldConstant lowers every operator of a module to see whether its result can be computed, and
    starts the code generator for each one that can.

    Leaves alone: functions that are fused already; operators without a kernel; results much larger
    than what they are computed from, and more than a few elements from nothing.

    Run after: import, and passes that leave operators on constants. Run before: passes that want
    constants as weights, and fusion.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Returns ``mod`` itself when there is nothing to compute."""
        # A part of a tuple that was computed is known in the next round only.
        while (folded := _fold_once(mod)) is not None:
            mod = folded
        return mod


def _fold_once(mod: tvm.IRModule) -> tvm.IRModule | None:
    folded = {
        global_var: values
        for global_var, func in relax_functions(mod).items()
        if (values := _folded_values(mod, func))
    }
    if not folded:
        return None
    writer = _LiteralWriter(mod)
    for global_var, values in folded.items():
        writer.values = values
        writer.builder_.update_func(global_var, writer.visit_expr(mod[global_var]))
    return writer.builder_.get()


def _folded_values(mod: tvm.IRModule, func: relax.Function) -> dict[relax.Var, relax.Expr]:
    """By variable of ``func``: the literal that it turns out to be."""
    if sizes := _known_sizes(func):
        for var in sizes:
            record_applied(NAME, describe_origin(var), "a size that is known")
        return sizes
    candidates = _constant_bindings(func)
    wanted = [var for var in candidates if not isinstance(var.ty, relax.TupleType)]
    values = _evaluated(view_of(func), wanted) if wanted else {}
    if wanted and not values:
        # Kernels for what is left when the next round finds nothing that NumPy gives.
        needed = _without_numpy(candidates)
        inner = [var for var in wanted if hash(var) in needed]
        some = {var: value for var, value in candidates.items() if hash(var) in needed}
        values = _by_kernels(mod, some, inner) or _by_kernels(mod, candidates, wanted)
    for var in values:
        if isinstance(candidates[var], relax.Call):
            record_applied(NAME, describe_origin(var), "computed at compile time")
    return values


def _without_numpy(candidates: Mapping[relax.Var, relax.Expr]) -> set[int]:
    """By hash: what does not wait for an operator that NumPy computes once its operands are known.

    That takes no time, and an operator with a number in it is a kernel for each number.
    """
    waiting: set[int] = set()
    for var, value in candidates.items():
        operands = value.args[:] if isinstance(value, relax.Call) else [value]
        is_numpys = operator_name(value) in _ARITHMETIC.keys() | _ROUNDINGS
        if is_numpys or any(hash(one) in waiting for one in _leaves(operands)):
            waiting.add(hash(var))
    return {hash(var) for var in candidates} - waiting


def _leaves(values: Sequence[relax.Expr]) -> Iterator[relax.Expr]:
    for value in values:
        if isinstance(value, relax.Tuple):
            yield from _leaves(value.fields[:])
        elif isinstance(value, relax.TupleGetItem):
            yield value.tuple_value
        else:
            yield value


def _by_kernels(
    mod: tvm.IRModule, bindings: Mapping[relax.Var, relax.Expr], wanted: list[relax.Var]
) -> dict[relax.Var, relax.Expr]:
    results = _computed(mod, bindings, wanted) if wanted else []
    return {v: r for v, r in zip(wanted, results, strict=True) if r is not None}


def _known_sizes(func: relax.Function) -> dict[relax.Var, relax.Expr]:
    """Those that are taken from a shape of which a run decides others only."""
    shapes: dict[relax.Var, np.ndarray] = {}
    found: dict[relax.Var, relax.Expr] = {}
    for block in blocks_of(func.body):
        for binding in block.bindings[:]:
            call: Any = binding.value
            name = operator_name(call)
            if name == "relax.shape_to_tensor" and call.args[0].ty.values is not None:
                shapes[binding.var] = np.array(list(call.args[0].ty.values), dtype=object)
            elif name == "relax.take" and call.args[0] in shapes:
                sizes = _taken(shapes[call.args[0]], call.args[1])
                if sizes is not None:
                    found[binding.var] = relax.const(sizes, str(binding.var.ty.dtype))
    return found


def _taken(shape: np.ndarray, places: relax.Expr) -> np.ndarray | None:
    """The numbers at constant places; None where one of them is none."""
    if not isinstance(places, tvm.ir.GenericConst):
        return None
    indices = places.value.numpy()
    if indices.size and (indices.min() < 0 or indices.max() >= shape.size):
        return None
    taken = shape[indices]
    sizes = list(taken.flat) if isinstance(taken, np.ndarray) else [taken]
    if not all(isinstance(size, tirx.IntImm) for size in sizes):
        return None
    return np.array([int(size) for size in sizes], dtype=np.int64).reshape(indices.shape)


def _evaluated(view: GraphView, variables: list[relax.Var]) -> dict[relax.Var, relax.Expr]:
    """Views, casts, shapes and arithmetic of constants: nearly all there is.

    Building a kernel takes a hundred times as long as these.
    """
    found: dict[relax.Var, relax.Expr] = {}
    for var in variables:
        sizes = view.call(var, "relax.tensor_to_shape")
        array = constant_value(view, var if sizes is None else sizes.args[0])
        if array is None:
            array = _arithmetic(view, var, found)
        if array is None:
            array = _rounded(view, var, found)
        if array is not None and sizes is not None:
            found[var] = relax.ShapeExpr([int(size) for size in array])
        elif array is not None:
            found[var] = relax.const(np.asarray(array, order="C"), str(var.ty.dtype))
    return found


def _arithmetic(
    view: GraphView, var: relax.Var, known: Mapping[relax.Var, relax.Expr]
) -> np.ndarray | None:
    """The result of an operator that NumPy rounds as a kernel does, where nothing is repeated."""
    call = view.call(var, *_ARITHMETIC)
    if call is None or str(var.ty.dtype) not in ("float32", "float64"):
        return None
    operands = [constant_value(view, known.get(operand, operand)) for operand in call.args]
    arrays = [array for array in operands if array is not None]
    if len(arrays) < len(operands):
        return None
    if np.broadcast(*arrays).size > max(array.size for array in arrays):
        return None
    with np.errstate(all="ignore"):
        return np.asarray(_ARITHMETIC[call.op.name](*arrays))


def _rounded(
    view: GraphView, var: relax.Var, known: Mapping[relax.Var, relax.Expr]
) -> np.ndarray | None:
    """The result of an operator of quantisation, for numbers on which all agree about it."""
    call = view.call(var, *_ROUNDINGS)
    array = None if call is None else constant_value(view, known.get(call.args[0], call.args[0]))
    if call is None or array is None or array.dtype != np.float32 or not np.isfinite(array).all():
        return None
    if call.op.name == "relax.round":
        return np.rint(array)
    if call.op.name == "relax.clip":
        return _clipped(array, call.args[1:])
    dtype = str(var.ty.dtype)
    if dtype not in _INTEGERS or not array.size:
        return None
    limits = np.iinfo(dtype)
    fits = limits.min <= float(array.min()) and float(array.max()) <= limits.max
    return array.astype(dtype) if fits else None


def _clipped(array: np.ndarray, bounds: Sequence[relax.Expr]) -> np.ndarray | None:
    if not all(isinstance(bound, tirx.FloatImm | tirx.IntImm) for bound in bounds):
        return None
    low, high = (np.float32(bound.value) for bound in bounds)
    # Of zeros with two signs a kernel may return either.
    zeros = [*array[array == 0], *(bound for bound in (low, high) if bound == 0)]
    is_clear = len({bool(np.signbit(zero)) for zero in zeros}) < 2
    return np.clip(array, low, high) if is_clear and low <= high else None


def _constant_bindings(func: relax.Function) -> dict[relax.Var, relax.Expr]:
    """The bindings that depend on constants only, in program order."""
    found: dict[relax.Var, relax.Expr] = {}
    if func.attrs is not None and "Primitive" in func.attrs:
        return found
    for block in blocks_of(func.body):
        for binding in block.bindings[:]:
            if isinstance(binding, relax.VarBinding) and _is_constant(binding.value, found):
                found[binding.var] = binding.value
    return found


def _is_constant(value: relax.Expr, known: Mapping[relax.Var, relax.Expr]) -> bool:
    if isinstance(value, relax.Var):
        return value in known
    if isinstance(value, relax.Call):
        return isinstance(value.op, tvm.ir.Op) and all(
            _is_constant(a, known) for a in value.args[:]
        )
    if isinstance(value, relax.Tuple):
        return all(_is_constant(field, known) for field in value.fields)
    if isinstance(value, relax.TupleGetItem):
        return _is_constant(value.tuple_value, known)
    if isinstance(value, relax.ShapeExpr):
        return all(isinstance(extent, tirx.IntImm) for extent in value.values[:])
    return not isinstance(value, relax.If | relax.Function | relax.ExternFunc | relax.SeqExpr)


def _computed(
    mod: tvm.IRModule, bindings: Mapping[relax.Var, relax.Expr], wanted: list[relax.Var]
) -> list[relax.Expr | None]:
    """The values of ``wanted``, by their kernels; None where one of those cannot run here."""
    lowered = _lowered(mod, bindings, wanted)
    func = lowered["constants"]
    known = _ComputedVariables(lowered)
    for block in func.body.blocks:
        for binding in block.bindings:
            known.look_at(binding.var, binding.value)
    return known.values_of(GraphView(func).value(func.body.body).fields)


def _lowered(
    mod: tvm.IRModule, bindings: Mapping[relax.Var, relax.Expr], wanted: list[relax.Var]
) -> tvm.IRModule:
    """A module of the kernels and of a function "constants", which returns ``wanted``."""
    all_wanted = relax.Tuple(wanted)
    result = relax.Var("result", all_wanted.ty)
    pairs = [*bindings.items(), (result, all_wanted)]
    block = relax.DataflowBlock([relax.VarBinding(var, value) for var, value in pairs])
    func = relax.Function([], relax.SeqExpr([block], result), result.ty)
    kernels = {g: f for g, f in mod.functions.items() if isinstance(f, tirx.PrimFunc)}
    alone = tvm.IRModule({**kernels, tvm.ir.GlobalVar("constants"): func})
    return legalize_ops()(alone)


class _ComputedVariables:
    """Which variables can be computed, and their values, from kernels that are built together."""

    def __init__(self, mod: tvm.IRModule) -> None:
        self._mod = mod
        self._bound: dict[relax.Var, relax.Expr] = {}
        self._values: dict[relax.Var, Any] = {}

    def look_at(self, var: relax.Var, value: relax.Expr) -> None:
        """Notes the next binding, if it can be computed."""
        if self._is_kernel_call(value, var) if isinstance(value, relax.Call) else self._has(value):
            self._bound[var] = value

    def values_of(self, wanted: Sequence[relax.Expr]) -> list[relax.Expr | None]:
        """Constants, None for what cannot be computed."""
        calls = [value for value in self._bound.values() if isinstance(value, relax.Call)]
        names = {str(call.args[0].name_hint) for call in calls}
        kernels = {
            name: _as_in_programs(self._mod[name]).with_attr("global_symbol", name)
            for name in names
        }
        library = tirx.build(tvm.IRModule(kernels), target=_TARGET) if kernels else {}
        for var, value in self._bound.items():
            if isinstance(value, relax.Call):
                types = _tensor_types(var.ty)
                results = [tvm.runtime.empty(static_extents(ty), str(ty.dtype)) for ty in types]
                operands = [self._value(argument) for argument in value.args[1].fields]
                library[str(value.args[0].name_hint)](*operands, *results)
                self._values[var] = results if isinstance(var.ty, relax.TupleType) else results[0]
            else:
                self._values[var] = self._value(value)
        return [relax.const(self._value(one)) if self._has(one) else None for one in wanted]

    def _is_kernel_call(self, call: relax.Call, var: relax.Var) -> bool:
        return (
            call.op == _CALL_TIR
            and len(call.args) == 2
            and all(self._has(argument) for argument in call.args[1].fields)
            and _is_worth_keeping(call, _tensor_types(var.ty))
        )

    def _has(self, value: relax.Expr) -> bool:
        if isinstance(value, relax.Tuple):
            return all(self._has(field) for field in value.fields)
        if isinstance(value, relax.TupleGetItem):
            return self._has(value.tuple_value)
        return isinstance(value, tvm.ir.GenericConst) or value in self._bound

    def _value(self, value: relax.Expr) -> Any:
        if isinstance(value, relax.Tuple):
            return [self._value(field) for field in value.fields]
        if isinstance(value, relax.TupleGetItem):
            return self._value(value.tuple_value)[int(value.index)]
        return value.value if isinstance(value, tvm.ir.GenericConst) else self._values[value]


def _as_in_programs(kernel: tirx.PrimFunc) -> tirx.PrimFunc:
    """The kernel as a compilation finishes it: NaN gives what it gives in the run."""
    return with_constants_first(without_scope_marks(kernel))


def _is_worth_keeping(call: relax.Call, results: Sequence[relax.TensorType]) -> bool:
    """Whether results have known sizes, and are not much larger than what they come from."""
    sizes = [_elements(ty) for ty in results]
    read = sum(_elements(argument.ty) or 0 for argument in call.args[1].fields)
    most = max(_MOST_ELEMENTS, 4 * read) if call.args[1].fields else _MOST_OF_NOTHING
    return all(size is not None for size in sizes) and sum(size or 0 for size in sizes) <= most


def _elements(ty: relax.TensorType) -> int | None:
    """How many elements a tensor has; None where that is not known."""
    extents = static_extents(ty)
    return None if extents is None else math.prod(extents)


def _tensor_types(ty: tvm.ir.Type) -> list[relax.TensorType]:
    return list(ty.fields) if isinstance(ty, relax.TupleType) else [ty]


@mutator
class _LiteralWriter(PyExprMutator):
    """Puts ``values`` where their variables are used, and drops the bindings."""

    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self.values: dict[relax.Var, relax.Expr] = {}

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        if binding.var not in self.values:
            super().visit_var_binding_(binding)

    def visit_var_(self, var: relax.Var) -> relax.Expr:
        return self.values[var] if var in self.values else super().visit_var_(var)

    def visit_dataflow_var_(self, var: relax.DataflowVar) -> relax.Expr:
        return self.values[var] if var in self.values else super().visit_dataflow_var_(var)
