"""Analyses of Relax modules: operators, constants, kernel calls with their original nodes, and
what was left without a kernel.
"""

import functools
import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.sym import Analyzer

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.errors import REPORT_IT, ModelError
from tvm_ext.relay_passes.binding_rewriter import view_of
from tvm_ext.relay_passes.expressions import operator_name
from tvm_ext.relay_passes.spans import (
    all_bindings_of,
    describe_origin,
    origins_of,
    relax_bindings,
    relax_functions,
)
from tvm_ext.report.records import KernelCall, ModuleCounts
from tvm_ext.tensor_spec import InputShapes, freezing_hint, listed
from tvm_ext.tir_schedules.analysis.batch_item import batch_parts
from tvm_ext.tir_schedules.analysis.buffer_access import depends, nodes, static_extent
from tvm_ext.tir_schedules.statements import with_sizes

# Operators that the virtual machine runs itself, by prefix.
_RUN_BY_VM = (
    "relax.builtin.",
    "relax.call_",
    "relax.invoke_",
    "relax.memory.",
    "relax.null_value",
    "relax.reshape",
    "relax.shape_",
    "relax.tensor_to_shape",
    "relax.vm.",
)


def may_divide_by_zero(mod: tvm.IRModule) -> bool:
    """Whether a kernel divides integers by elements of a tensor, or by sizes that can be 0.

    A 0 there ends the process.
    """
    kernels = [func for func in mod.functions.values() if isinstance(func, tirx.PrimFunc)]
    return any(_divides_by_zero_at_some_size(func) for func in kernels)


def _divides_by_zero_at_some_size(func: tirx.PrimFunc) -> bool:
    divisors = [
        division.b
        for division in nodes(func.body, tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod)
        if "int" in str(division.ty.dtype) and not isinstance(division.b, tirx.IntImm)
    ]
    if not divisors:
        return False
    analyzer = Analyzer()
    shapes = [list(param.shape) if hasattr(param, "shape") else [param] for param in func.params]
    for size in (size for shape in shapes for size in shape if isinstance(size, tirx.Var)):
        analyzer.bind(size, tvm.ir.Range(1, 1 << 31))
    return any(
        nodes(divisor, tvm.ir.TensorLoad) or not analyzer.can_prove(divisor > 0)
        for divisor in divisors
    )


def sizes_from_data(mod: tvm.IRModule) -> bool:
    """Whether some size follows from elements of an input, not from sizes of the inputs alone."""
    return any(_takes_size_from_data(func) for func in relax_functions(mod).values())


def _takes_size_from_data(func: relax.Function) -> bool:
    sizes_in, variables_in = relax.analysis.definable_tir_vars_in_type, relax.analysis.free_vars
    bindings = all_bindings_of(func)
    inner = [binding.value for binding in bindings if isinstance(binding.value, relax.Function)]
    of_data = {param for function in (func, *inner) for param in function.params}
    known = {size for param in func.params for size in sizes_in(param.ty)}
    for binding in bindings:
        is_shape = operator_name(binding.value) == "relax.shape_of"
        is_of_data = not is_shape and bool(of_data.intersection(variables_in(binding.value)))
        if isinstance(binding, relax.MatchCast):
            sizes = set(sizes_in(binding.var.ty))
            if is_of_data and not sizes <= known:
                return True
            known |= sizes
        if is_of_data:
            of_data.add(binding.var)
    return False


def operator_counts(mod: tvm.IRModule) -> dict[str, int]:
    """How often each Relax operator is called, most frequent first."""
    names = (operator_name(binding.value) for binding in relax_bindings(mod))
    return dict(Counter(name.removeprefix("relax.") for name in names if name).most_common())


class ModuleCounter:
    """Counts what is in a module that changes from pass to pass."""

    def __init__(self) -> None:
        # By hash, with the function, which is the same as long as it is kept.
        self._counted: dict[int, tuple[relax.Function, int, int]] = {}
        # The same of variables: those of calls, with the bytes of their tensors.
        self._sized: dict[int, tuple[relax.Var, int]] = {}

    def counts(self, mod: tvm.IRModule) -> ModuleCounts:
        """Operators, kernels, and bytes of the tensors between them."""
        before, self._counted = self._counted, {}
        sized, self._sized = self._sized, {}
        operators = kernels = intermediate = 0
        for func in mod.functions.values():
            if not isinstance(func, relax.Function):
                kernels += isinstance(func, tirx.PrimFunc)
                continue
            # Of a model with loops and branches a pass changes few functions.
            counted = before.get(hash(func)) or (func, *self._operators_and_bytes(func, sized))
            self._counted[hash(func)] = counted
            operators += counted[1]
            intermediate += counted[2]
        return ModuleCounts(operators, kernels, intermediate)

    def _operators_and_bytes(
        self, func: relax.Function, sized: Mapping[int, tuple[relax.Var, int]]
    ) -> tuple[int, int]:
        operators = intermediate = 0
        for var, value in view_of(func).bound:
            if isinstance(value, relax.Call):
                key = hash(var)
                known = self._sized[key] = sized.get(key) or (var, _tensor_bytes(var.ty))
                operators += isinstance(value.op, tvm.ir.Op)
                intermediate += known[1]
        return operators, intermediate


def _tensor_bytes(ty: tvm.ir.Type) -> int:
    if isinstance(ty, relax.TupleType):
        return sum(_tensor_bytes(inner) for inner in ty.fields[:])
    shape = ty.shape if isinstance(ty, relax.TensorType) else None
    if not isinstance(shape, relax.ShapeExpr):
        return 0
    elements = math.prod(static_extent(size) or 1 for size in shape.values[:])
    return elements * _element_bytes(str(ty.dtype))


@functools.cache
def _element_bytes(dtype: str) -> int:
    return (tvm.DataType(dtype).bits + 7) // 8


def weight_bytes(mod: tvm.IRModule) -> int:
    """Bytes of all distinct tensor constants."""
    seen: dict[int, int] = {}

    def visit(node: relax.Expr) -> None:
        if isinstance(node, tvm.ir.GenericConst) and hasattr(node.value, "shape"):
            data = node.value
            bits = tvm.DataType(str(data.dtype)).bits
            seen[hash(data)] = (math.prod(int(size) for size in data.shape) * bits + 7) // 8

    for func in relax_functions(mod).values():
        relax.analysis.post_order_visit(func, visit)
    return sum(seen.values())


# The kernels of a program of fewer are machine code together with what calls them: setting up LLVM
# for an object takes as long as code for a small kernel.
_FEW_KERNELS = 8


def has_few_kernels(mod: tvm.IRModule) -> bool:
    """Whether a program is small enough for all its kernels to be one piece of code."""
    return sum(isinstance(func, tirx.PrimFunc) for func in mod.functions.values()) < _FEW_KERNELS


def require_lowered(mod: tvm.IRModule, label: str, inputs: InputShapes) -> None:
    """Raises ModelError that names the nodes for which no kernel was made.

    ``inputs`` are the sizes of the model's inputs.
    """
    left: list[str] = []
    for binding in relax_bindings(mod):
        name = operator_name(binding.value)
        if not name or name.startswith(_RUN_BY_VM):
            continue
        if binding.value.op.get_attr("FCallPacked") is not None:
            continue
        left.append(describe_origin(binding.var))
    if left:
        nodes = listed([f"'{node}'" for node in dict.fromkeys(left)])
        raise ModelError(
            f"{label}: no kernel can be made for the nodes {nodes}; expected operators whose sizes "
            f"are known: {freezing_hint(inputs) or 'export the model without them'}, or {REPORT_IT}"
        )


# Which kernel is called for which original nodes.


_CALL_TIR = tvm.ir.Op.get("relax.call_tir")


@tvm.instrument.pass_instrument
class FusionObserver:
    """Counts kernel calls right before fusion."""

    def __init__(self) -> None:
        self.kernel_calls = 0

    def run_before_pass(self, mod: tvm.IRModule, info: tvm.transform.PassInfo) -> None:
        """Called by TVM before each pass."""
        if info.name == "FuseOps":
            self.kernel_calls = len(kernel_calls(mod))


def kernel_calls(mod: tvm.IRModule) -> list[KernelCall]:
    """Every kernel call of ``mod``, in the order of a run, with the nodes that it computes."""
    calls = []
    for binding in relax_bindings(mod):
        value = binding.value
        if not isinstance(value, relax.Call) or not _CALL_TIR.same_as(value.op):
            continue
        kernel = value.args[0]
        if isinstance(mod[kernel], tirx.PrimFunc):
            calls.append(KernelCall(str(kernel.name_hint), origins_of(binding.var)))
    return calls


# Batches whose items a program computes each by itself.


def independent_items(mod: tvm.IRModule) -> str:
    """Name of the dimension of ``main``'s inputs and outputs along which their items are computed
    one by one: a run of some items gives what a run of more gives for them. Empty if there is none.

    ``mod`` is lowered: ``main`` calls kernels, which have no schedules yet.
    """
    main = mod["main"]
    params = [param.ty for param in main.params]
    results = list(getattr(main.ret_ty, "fields", [main.ret_ty]))
    sizes = [_outermost(ty) for ty in params]
    size = next((one for one in sizes if isinstance(one, tirx.Var)), None)
    if size is None or not all(_has_items(ty, size) or not _mentions(ty, size) for ty in params):
        return ""
    if not all(_has_items(ty, size) for ty in results):
        return ""
    items = _Items(mod, size)
    return str(size.name) if all(map(items.are_apart_in, _used_bindings(main))) else ""


def _used_bindings(func: relax.Function) -> list[relax.Binding]:
    """What decides the results of a function, and the sizes that it asks for."""
    used: set[relax.Var] = set(relax.analysis.free_vars(func.body.body))
    found = []
    for binding in reversed(list(all_bindings_of(func))):
        if binding.var in used or isinstance(binding, relax.MatchCast):
            used.update(relax.analysis.free_vars(binding.value))
            found.append(binding)
    return found


def _outermost(ty: tvm.ir.Type) -> tirx.Expr | None:
    shape = getattr(ty, "shape", None)
    return shape[0] if isinstance(shape, relax.ShapeExpr) and len(shape) else None


def _has_items(ty: tvm.ir.Type, size: tirx.Var) -> bool:
    """Whether the first dimension is the size, and no other depends on it."""
    first = _outermost(ty)
    return first is not None and first.same_as(size) and not depends(list(ty.shape)[1:], size)


def _mentions(value: Any, size: tirx.Var) -> bool:
    """Whether the shape of a tensor, or of one of a tuple, may depend on the size."""
    if isinstance(value, relax.TupleType):
        return any(_mentions(one, size) for one in value.fields)
    shape = getattr(value, "shape", None)
    return not isinstance(shape, relax.ShapeExpr) or depends(list(shape), size)


class _Items:
    """Tells of values of a program whether the items of a batch are apart in them."""

    def __init__(self, mod: tvm.IRModule, size: tirx.Var) -> None:
        self._mod, self._size = mod, size
        # By kernel and the variable that stands for the batch in it.
        self._known: dict[tuple[str, tirx.Var], bool] = {}

    def are_apart_in(self, binding: relax.Binding) -> bool:
        """Whether a value has the items along one dimension, and no item decides another."""
        value = binding.value
        if isinstance(binding, relax.MatchCast):
            types = value.ty, binding.ty
            # A number that is asked of the whole batch is another one for a part of it.
            return all(_has_items(ty, self._size) for ty in types) or not any(
                _mentions(ty, self._size) for ty in types
            )
        name = operator_name(value)
        if name == "relax.reshape":
            return _keeps_items(value.args[0].ty, value.ty, self._size)
        if name == "relax.call_tir":
            results = getattr(value.ty_args[0], "fields", value.ty_args[:1])
            given = [_extents_of(one) for one in (*value.args[1], *results)]
            known = [extents for extents in given if extents is not None]
            is_kernel = isinstance(self._mod[value.args[0]], tirx.PrimFunc)
            return is_kernel and len(known) == len(given) and self._in_kernel(value, known)
        views = relax.Var | relax.Tuple | relax.TupleGetItem | relax.ShapeExpr
        return isinstance(value, views | tvm.ir.GenericConst)

    def _in_kernel(self, call: relax.Call, given: list[list[Any]]) -> bool:
        """Whether a kernel that gets tensors of these sizes, and numbers, goes item by item."""
        func = self._mod[call.args[0]]
        if not any(depends(extents, self._size) for extents in given):
            return True
        own: dict[tirx.Var, Any] = {}
        for param, extents in zip(func.params, given, strict=True):
            for variable, extent in zip(getattr(param, "shape", [param]), extents, strict=True):
                if isinstance(variable, tirx.Var) and depends(extent, self._size):
                    own.setdefault(variable, extent)
        if len(own) > 1:
            # Sizes with names of their own that are multiples of one.
            return _goes_by_item(with_sizes(func, own), self._size)
        (variable,) = own
        key = str(call.args[0].name_hint), variable
        if key not in self._known:
            self._known[key] = _goes_by_item(func, variable)
        return self._known[key]


def _goes_by_item(func: tirx.PrimFunc, size: tirx.Var) -> bool:
    try:
        return bool(batch_parts(func, size))
    except NotApplicable:
        return False


def _keeps_items(before: tvm.ir.Type, after: tvm.ir.Type, size: tirx.Var) -> bool:
    """Whether a reshape leaves the items where they are: along the outermost dimension, or inside
    of the same others.
    """
    ends = []
    for shape in map(_extents_of, (before, after)):
        axes = [axis for axis, extent in enumerate(shape or []) if depends(extent, size)]
        if shape is None or len(axes) > 1:
            return False
        around = shape[: axes[0]] if axes else []
        ends.append(None if all(static_extent(n) == 1 for n in around) else shape[: axes[0] + 1])
    if ends == [None, None]:
        return True
    return None not in ends and tvm_ffi.structural_equal(*map(relax.ShapeExpr, ends))


def _extents_of(argument: relax.Expr | tvm.ir.Type) -> list[Any] | None:
    """The sizes of a tensor, or a number itself; None for others."""
    ty = argument if isinstance(argument, tvm.ir.Type) else argument.ty
    if isinstance(ty, relax.TensorType):
        return list(ty.shape) if isinstance(ty.shape, relax.ShapeExpr) else None
    return [argument] if isinstance(ty, tvm.ir.PrimType) else None
