"""Plans storage: sizes that have limits, liveness and reuse of buffers, the report's figures."""

from collections.abc import Collection, Mapping
from functools import reduce
from operator import mul

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.sym import Analyzer

from tvm_ext.compiler.compile_context import current_compilation
from tvm_ext.compiler.graph_analysis import weight_bytes
from tvm_ext.hardware.cpu.description import current_cpu
from tvm_ext.relay_passes.expressions import (
    nominal_sizes,
    operator_name,
    sizes_of_params,
    value_for,
)
from tvm_ext.relay_passes.graph_pass import graph_pass
from tvm_ext.relay_passes.spans import (
    bindings_of,
    relax_bindings,
    relax_functions,
    with_functions,
)
from tvm_ext.report.records import MemoryRecord
from tvm_ext.tensor_spec import SizeRange
from tvm_ext.tir_schedules.analysis.buffer_access import static_extent

# Storage whose only limit stands in the model is allocated in the run, where it would be large.
#
# A model that slices a dynamic dimension up to a billion makes one of ``min(1000000000, n)``
# elements, and TVM's planner reserves storage for the billion, times other dimensions of the run.
# Small limits are worth it: their storage is shared and allocated once.


MOST_RESERVED_BYTES = 2**24
# The largest value of what TVM knows no limit of.
_NO_LIMIT = 2**63 - 1


def without_far_limits(mod: tvm.IRModule, ranged: Collection[str]) -> tvm.IRModule:
    """``mod`` with tensors of their own in place of those on large storage of such a limit.

    Dimensions in ``ranged`` have limits that the user gave: theirs is what is asked for.
    """
    changed = {
        global_var: _LimitRewriter(far).visit_expr(func)
        for global_var, func in relax_functions(mod).items()
        if (far := _far_storages(func, ranged))
    }
    return with_functions(mod, changed)


def _far_storages(func: relax.Function, ranged: Collection[str]) -> set[relax.Var]:
    bindings = list(bindings_of(func))
    large = {
        binding.var
        for binding in bindings
        if operator_name(binding.value) == "relax.memory.alloc_storage"
        and _may_be_large(binding.value.args[0].values[0])
    }
    return large & {
        binding.value.args[0]
        for binding in bindings
        if operator_name(binding.value) == "relax.memory.alloc_tensor"
        and any(_is_limited(size, ranged) for size in binding.value.args[2].values)
    }


def _may_be_large(size: tirx.Expr) -> bool:
    """Of a number of bytes: storage whose size a run finds is as large as its tensors."""
    return (static_extent(Analyzer().simplify(size)) or 0) > MOST_RESERVED_BYTES


def _is_limited(size: tirx.Expr, ranged: Collection[str]) -> bool:
    """Whether a symbolic size has a limit that no range of a user gave."""
    if {var.name for var in tirx.analysis.undefined_vars(size)} <= set(ranged):
        return False
    return bool(Analyzer().const_int_bound(size).max_value < _NO_LIMIT)


@mutator
class _LimitRewriter(PyExprMutator):
    def __init__(self, far: set[relax.Var]) -> None:
        super().__init__()
        self._far = far

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        if binding.var not in self._far:
            super().visit_var_binding_(binding)

    def visit_call_(self, op: relax.Call) -> relax.Expr:
        if operator_name(op) != "relax.memory.alloc_tensor" or op.args[0] not in self._far:
            return super().visit_call_(op)
        return relax.op.builtin.alloc_tensor(op.args[2], op.args[3].value, 0)


# Storage whose size a run decides is allocated in few different sizes.
#
# TVM's virtual machine keeps what a run frees in a pool, and hands it out again for the same
# number of bytes only. A text model that meets a hundred lengths would hold the storage of each,
# and every new length would begin in memory that was never touched.


# The system gives a CPU's program memory as it is touched, so that storage may be twice too large.
# On a device all of it counts.
_CPU_STEPS = 1
_DEVICE_STEPS = 4


@graph_pass
class RoundStorage:
    """Rounds the bytes of storage of symbolic size up, to a few sizes for each power of two.

    More bytes than an address reaches, which 64 bits may not hold either, become so many that no
    machine has them. With ``rounding`` false that is all that is done.

    Leaves alone: storage of known size.

    Run after: sizes that are known are filled in. Run before: VMShapeLower, which computes them.
    """

    rounding: bool = True

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Returns the module with rounded sizes."""
        steps = _CPU_STEPS if current_cpu() is not None else _DEVICE_STEPS
        steps = steps if self.rounding else 0
        functions = relax_functions(mod).items()
        return with_functions(mod, {var: _Rounder(steps).visit_expr(f) for var, f in functions})


@mutator
class _Rounder(PyExprMutator):
    def __init__(self, steps: int) -> None:
        super().__init__()
        self._steps = steps

    def visit_call_(self, op: relax.Call) -> relax.Expr:
        if operator_name(op) != "relax.vm.alloc_storage":
            return super().visit_call_(op)
        # A number may be written as a product of several.
        size = Analyzer().simplify(op.args[0].values[0])
        if static_extent(size) is not None:
            return op
        size = limited(size)
        shape = relax.ShapeExpr([rounded_up(size, self._steps) if self._steps else size])
        return relax.Call(op.op, [shape, *op.args[1:]], op.attrs, op.ty_args)


def limited(size: tirx.Expr) -> tirx.Expr:
    """``size``, an int64 without negative parts, or 2**48 where it is larger or overflows."""
    limit = 1 << 48
    is_far = _approximate(size) > tirx.const(float(limit), "float64")
    return tirx.Select(is_far, tirx.const(limit, "int64"), size)


def _approximate(size: tirx.Expr) -> tirx.Expr:
    """The same in floating point, which does not overflow."""
    if type(size) in (tirx.Add, tirx.Sub, tirx.Mul, tirx.Max, tirx.Min):
        return type(size)(_approximate(size.a), _approximate(size.b))
    return size.astype("float64")


def rounded_up(size: tirx.Expr, steps: int) -> tirx.Expr:
    """``size``, an int64, or the next of ``steps`` sizes between two powers of two; a power of two.

    Sizes of at most ``steps`` bytes become ``steps``.
    """
    at_least = tirx.max(size, tirx.const(steps, "int64"))
    # One step is the highest power of two in (size - 1), over the number of steps.
    highest = 63 - tirx.clz(tirx.max(at_least - 1, tirx.const(steps, "int64")))
    step = tirx.shift_left(tirx.const(1, "int64"), highest - (steps.bit_length() - 1))
    return tirx.bitwise_and(at_least + step - 1, -step)


@graph_pass
class BoundSizes:
    """Notes the ranges of symbolic sizes, which users gave, where TVM's planner reads them.

    Before: ``main(x: Tensor((n, 4)))``
    After:  the same with ``tir_var_upper_bound = {"n": 8}``

    What depends on sizes with ranges alone gets storage for the largest one, which all share.

    Leaves alone: sizes without a range.

    Run before: ShareStorage.
    """

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Returns ``mod`` itself when there are no ranges."""
        return _with_ranges(mod, _ranges())


@graph_pass
class ShareStorage:
    """Lets tensors whose lives do not overlap share storage, and counts the bytes.

    Before: ``a = alloc_tensor(...)``, ``b = alloc_tensor(...)``, each with storage of its own
    After:  ``s = alloc_storage(...)``, ``a = alloc_tensor(s, ...)``, ``b = alloc_tensor(s, ...)``

    Sizes that a run decides are no obstacle: storage is as large as the largest of its tensors in
    that run. With ``reuse`` false every value keeps storage of its own, which shows whether sharing
    is at fault. The figures go into the compilation's context.

    Leaves alone: functions with branches, and storage whose only limit stands in the model.

    Run after: CallTIRRewrite, which makes the allocations. Run before: LowerAllocTensor.
    """

    reuse: bool = True

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Returns the module with planned storage."""
        ranges = _ranges()
        unplanned, _ = _allocated(mod, "relax.builtin.alloc_tensor", ranges)
        if self.reuse:
            mod = without_far_limits(_share_storage(mod, ranges), ranges)
        planned, symbolic = _allocated(mod, "relax.memory.alloc_storage", ranges)
        left, left_symbolic = _allocated(mod, "relax.builtin.alloc_tensor", ranges)
        context = current_compilation()
        if context is not None:
            context.memory = MemoryRecord(
                planned_peak_bytes=planned + left,
                unplanned_bytes=unplanned,
                weights_bytes=weight_bytes(mod),
                dynamic=symbolic or left_symbolic,
            )
            context.storage_bytes = _storage_bytes(mod)
        return mod


def _ranges() -> Mapping[str, SizeRange]:
    context = current_compilation()
    return {} if context is None else context.ranges


_CHECKS = ("vm.builtin.match_shape", "vm.builtin.check_tensor_info")


@graph_pass
class DropResultChecks:
    """Drops the checks that VMShapeLower writes behind the last value of a function.

    Results have the sizes that they were allocated with; checking them anew takes a tenth of the
    time of a program of one small kernel.

    Leaves alone: checks of inputs, and of what a function calls in between.

    Run after: VMShapeLower.
    """

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Returns the module without these checks."""
        functions = relax_functions(mod).items()
        return with_functions(mod, {var: _without_result_checks(f) for var, f in functions})


def _without_result_checks(func: relax.Function) -> relax.Function:
    *before, last = func.body.blocks
    bindings = list(last.bindings)
    while bindings and _is_check(bindings[-1].value) and bindings[-1].var != func.body.body:
        bindings.pop()
    body = relax.SeqExpr([*before, relax.BindingBlock(bindings)], func.body.body)
    return relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs)


def _is_check(value: relax.Expr) -> bool:
    called = getattr(value, "op", None)
    name = called.global_symbol if isinstance(called, relax.ExternFunc) else ""
    return isinstance(value, relax.TupleGetItem) or name in _CHECKS


def _with_ranges(mod: tvm.IRModule, ranges: Mapping[str, SizeRange]) -> tvm.IRModule:
    """The module with the annotations that TVM's planner reads."""
    if not ranges:
        return mod
    bounds = {
        "tir_var_upper_bound": {name: allowed.high for name, allowed in ranges.items()},
        "tir_var_lower_bound": {name: allowed.low for name, allowed in ranges.items()},
    }
    return with_functions(mod, {mod.get_global_var("main"): mod["main"].with_attrs(bounds)})


def _share_storage(mod: tvm.IRModule, ranges: Mapping[str, SizeRange]) -> tvm.IRModule:
    """Plans storage of all functions but those with branches.

    TVM's planner lets one branch use storage that only the other one allocates, which ends the
    process (apache/tvm#20191).
    """
    branching = {
        global_var: func
        for global_var, func in relax_functions(mod).items()
        if any(isinstance(binding.value, relax.If) for binding in bindings_of(func))
    }
    ends = {name: allowed.ends for name, allowed in ranges.items()}
    nominal = {name: size for name, size in nominal_sizes(mod, ends).items() if name not in ranges}
    planned = _planned_for(mod, ranges, nominal) or _planned_for(mod, ranges, {}) or mod
    return with_functions(planned, branching)


def _planned_for(
    mod: tvm.IRModule, ranges: Mapping[str, SizeRange], nominal: Mapping[str, int]
) -> tvm.IRModule | None:
    """Planned as if the sizes without a range were ``nominal``, as TVM shares known ones only."""
    bounds = {**ranges, **{name: SizeRange(0, size) for name, size in nominal.items()}}
    planned = _planned_by_tvm(_with_ranges(mod, bounds))
    if planned is None or not nominal:
        return planned
    main = _StorageOfTheRun(planned["main"], nominal).rewritten()
    attrs = mod["main"].attrs
    main = relax.Function(main.params, main.body, main.ret_ty, main.is_pure, attrs, main.span)
    planned = with_functions(planned, {planned.get_global_var("main"): main})
    # Those that got none share where they have the same size.
    return _planned_by_tvm(planned) or planned


def _planned_by_tvm(mod: tvm.IRModule) -> tvm.IRModule | None:
    """None where TVM cannot count the bytes: a slice up to 10**9 of each of three dynamic
    dimensions may have more than 64 bits hold. Such values get storage of their own, of the size
    that each run finds.
    """
    try:
        return relax.transform.StaticPlanBlockMemory()(mod)
    except (tvm.error.InternalError, ValueError) as error:
        if "exceeds range of int64" not in str(error):
            raise
        return None


@mutator
class _StorageOfTheRun(PyExprMutator):
    """Gives storage that was planned for nominal sizes the size of its largest tensor in a run.

    Who shares it follows from when tensors live, whatever their sizes. A tensor whose size is not
    known at the run's start, since data decide a part of it, gets none here.
    """

    def __init__(self, func: relax.Function, nominal: Mapping[str, int]) -> None:
        super().__init__()
        self._func, self._nominal = func, nominal
        self._known = set(sizes_of_params(func))
        tensors: dict[relax.Var, list[tirx.Expr]] = {}
        for binding in bindings_of(func):
            if operator_name(binding.value) == "relax.memory.alloc_tensor":
                storage, _, shape = binding.value.args[:3]
                nbytes = tirx.const(_element_bytes(binding), "int64")
                tensors.setdefault(storage, []).append(reduce(mul, shape.values, nbytes))
        # What only sizes with ranges decide stays as large as the ranges allow.
        self._open = {
            storage: [size for size in found if self._is_known(size)]
            for storage, found in tensors.items()
            if any(str(var.name) in nominal for size in found for var in _variables(size))
        }

    def rewritten(self) -> relax.Function:
        """The function with these sizes."""
        return self.visit_expr(self._func)

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        call = binding.value
        sizes = self._open.get(binding.var)
        if sizes is None:
            super().visit_var_binding_(binding)
        elif sizes:
            shape = relax.ShapeExpr([_largest_of(sizes, self._nominal)])
            changed = relax.Call(call.op, [shape, *call.args[1:]], call.attrs, call.ty_args)
            super().visit_var_binding_(relax.VarBinding(binding.var, changed))

    def visit_call_(self, op: relax.Call) -> relax.Expr:
        if operator_name(op) != "relax.memory.alloc_tensor" or op.args[0] not in self._open:
            return super().visit_call_(op)
        if all(map(self._is_known, op.args[2].values)):
            return super().visit_call_(op)
        return relax.op.builtin.alloc_tensor(op.args[2], op.args[3].value, 0)

    def _is_known(self, size: tirx.Expr) -> bool:
        return all(var in self._known for var in _variables(size))


def _variables(size: tirx.Expr) -> list[tirx.Var]:
    return list(tirx.analysis.undefined_vars(size))


# Of a dimension, so that products of several can be compared.
_LARGEST_SIZE = 2**40


def _largest_of(sizes: list[tirx.Expr], nominal: Mapping[str, int]) -> tirx.Expr:
    """The largest of ``sizes``, each once, without those that one of them is never less than."""
    analyzer = Analyzer()
    for var in {v for size in sizes for v in tirx.analysis.undefined_vars(size)}:
        analyzer.bind(var, tvm.ir.Range(0, _LARGEST_SIZE))
    distinct = {tvm_ffi.StructuralKey(one): one for one in map(analyzer.simplify, sizes)}
    first, *others = sorted(distinct.values(), key=lambda one: -(value_for(one, nominal) or 0))
    left = [one for one in others if not analyzer.can_prove(first >= one)]
    return reduce(tirx.Max, left, first)


def _allocated(
    mod: tvm.IRModule, operator: str, ranges: Mapping[str, SizeRange]
) -> tuple[int, bool]:
    """Bytes that calls of ``operator`` allocate at most, and whether some size has no limit."""
    total, symbolic = 0, False
    for binding in relax_bindings(mod):
        if operator_name(binding.value) != operator:
            continue
        elements = 1
        for size in binding.value.args[0].values:
            extent = _largest(size, ranges)
            symbolic = symbolic or extent is None
            # At least one: the figure is a lower bound.
            elements *= extent if extent is not None else 1
        total += elements * _element_bytes(binding)
    return total, symbolic


def _storage_bytes(mod: tvm.IRModule) -> tirx.Expr | None:
    """Bytes of all storage, where sizes of inputs alone decide them."""
    known = set(sizes_of_params(mod["main"]))
    total: tirx.Expr = tirx.const(0, "int64")
    for binding in relax_bindings(mod):
        is_storage = operator_name(binding.value) == "relax.memory.alloc_storage"
        if not is_storage and operator_name(binding.value) != "relax.builtin.alloc_tensor":
            continue
        size = reduce(mul, binding.value.args[0].values, tirx.const(1, "int64"))
        if not known.issuperset(_variables(size)):
            return None
        total = total + size * _element_bytes(binding)
    return Analyzer().canonical_simplify(total)


def _largest(size: tirx.Expr, ranges: Mapping[str, SizeRange]) -> int | None:
    """The largest value of a size; None where a run decides it without a limit."""
    extent = static_extent(size)
    if extent is not None or not ranges:
        return extent
    analyzer = Analyzer()
    for var in tirx.analysis.undefined_vars(size):
        allowed = ranges.get(var.name)
        if allowed is None:
            return None
        analyzer.bind(var, tvm.ir.Range(allowed.low, allowed.high + 1))
    return int(analyzer.const_int_bound(size).max_value)


def _element_bytes(binding: relax.VarBinding) -> int:
    """Storage is sized in bytes, a tensor in elements of its type."""
    ty = binding.var.ty
    if not isinstance(ty, relax.TensorType):
        return 1
    return (tvm.DataType(str(ty.dtype)).bits + 7) // 8
