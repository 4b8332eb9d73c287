"""Plans storage: one arena for what has a known size, and the report's figures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import mul
from typing import Any

import tvm
from tvm import relax, te, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.sym import Analyzer

from tvm_ext.compiler.compile_context import current_compilation
from tvm_ext.compiler.graph_analysis import weight_bytes
from tvm_ext.hardware.cpu.description import current_cpu
from tvm_ext.memory_planner import MemoryPlan
from tvm_ext.passes.in_place_results import in_place_results
from tvm_ext.passes.plan_record import buffer_names, function_plan
from tvm_ext.passes.storage_plan import CPU_ALIGNMENT, Home, Storage, planned_storage
from tvm_ext.passes.views_for_copies import views_for_copies
from tvm_ext.relay_passes.dataflow.buffer_lifetimes import (
    ALLOCATION,
    BufferLifetimes,
    buffer_lifetimes,
)
from tvm_ext.relay_passes.dataflow.sizes import element_bytes
from tvm_ext.relay_passes.expressions import (
    nominal_sizes,
    operator_name,
    sizes_of_params,
)
from tvm_ext.relay_passes.graph_pass import graph_pass
from tvm_ext.relay_passes.spans import (
    bindings_of,
    relax_bindings,
    relax_functions,
)
from tvm_ext.report.memory_plan import StoragePlan
from tvm_ext.report.records import MemoryRecord
from tvm_ext.tensor_spec import SizeRange
from tvm_ext.tir_schedules.analysis.buffer_access import static_extent
from tvm_ext.tir_schedules.cpu.tensor_start import tensor_start

# More bytes than an address reaches: such a buffer is left to the run, which says what is wrong.
_FAR = 2**48


@graph_pass
class ShareStorage:
    """Puts all buffers of known size into one arena, where those that live together are apart.

    Before: ``a = alloc_tensor((16,), "float32")``, then ``b = alloc_tensor((16,), "float32")``
    After:  ``s = alloc_storage(128)``, ``a = alloc_tensor(s, 0, (16,), "float32")``, then
            ``b = alloc_tensor(s, 64, (16,), "float32")``, ``tensor_start(b)``

    A size with a range counts as its largest. Buffers whose size a run decides share storages, each
    as large as the largest of its tensors in that run. With ``reuse`` false every value keeps
    storage of its own, which shows whether sharing is at fault. The figures go into the
    compilation's context.

    With ``in_place`` true a kernel writes into the memory of an operand that it is the last to
    read, where it reads for each element of its result only the same element of the operand.

    With ``views`` true the operands of a concatenation are written as parts of its result, and a
    slice is a view of its operand, where the parts lie one behind the other in memory.

    With ``poison`` true all bytes of the arena are set at its start, and those of a buffer behind
    its last use, to what is no number in floating point: whatever reads them wrongly then shows.

    Leaves alone: what a function returns, or a packed function may keep; sizes that are found in
    the middle of a run.

    Run after: CallTIRRewrite, which makes the allocations. Run before: LowerAllocTensor.
    """

    reuse: bool = True
    in_place: bool = True
    views: bool = True
    poison: bool = False

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Returns the module with planned storage."""
        ranges = _ranges()
        unplanned, _ = _allocated(mod, ALLOCATION, ranges)
        plans: list[MemoryPlan] = []
        if self.reuse:
            mod, plans = _share_storage(mod, ranges, self)
        planned, symbolic = _allocated(mod, "relax.memory.alloc_storage", ranges)
        left, left_symbolic = _allocated(mod, ALLOCATION, ranges)
        context = current_compilation()
        if context is not None:
            context.memory = MemoryRecord(
                planned_peak_bytes=planned + left,
                unplanned_bytes=unplanned,
                weights_bytes=weight_bytes(mod),
                dynamic=symbolic or left_symbolic,
                lower_bound_bytes=planned + left - sum(p.size - p.lower_bound for p in plans)
                or None,
                planner=", ".join(dict.fromkeys(plan.method for plan in plans)),
                limit=context.memory_limit,
            )
            context.storage_bytes = _storage_bytes(mod)
        return mod


def _ranges() -> Mapping[str, SizeRange]:
    context = current_compilation()
    return {} if context is None else context.ranges


def _share_storage(
    mod: tvm.IRModule, ranges: Mapping[str, SizeRange], options: ShareStorage
) -> tuple[tvm.IRModule, list[MemoryPlan]]:
    """The module with planned storage, and the plans of its arenas."""
    found = _planning(mod, ranges, options)
    context = current_compilation()
    if context is not None:
        context.storage_plan = found.plan
    return found.written(), found.plans()


def _planning(
    mod: tvm.IRModule, ranges: Mapping[str, SizeRange], options: ShareStorage
) -> "_Planning":
    """The smaller of the plans with and without views."""
    found = _Planning(mod, ranges, options)
    if not options.views or current_cpu() is None:
        return found
    views = views_for_copies(mod, found.lives, found.sizes, CPU_ALIGNMENT)
    if views.same_as(mod):
        return found
    other = _Planning(views, ranges, options, found)
    # A part of a buffer keeps all of it alive, which may cost more than it saves.
    return other if other.arena_bytes() <= found.arena_bytes() else found


@dataclass(frozen=True)
class PlannedBytes:
    """What the values of a program take, as ``ShareStorage`` plans them.

    Attributes
    ----------
    total : int or None
        The planned peak; None where a run decides some size without a limit.
    arenas : dict of str to int
        The arena of each function, by its name.
    """

    total: int | None
    arenas: dict[str, int]


def bytes_by_tvm(mod: tvm.IRModule) -> int | None:
    """What the values take where TVM's StaticPlanBlockMemory plans the module for ShareStorage.

    None where a run decides sizes, or a function holds an If, on which that planner crashes
    (apache/tvm#20191).
    """
    if any(isinstance(binding.value, relax.If) for binding in relax_bindings(mod)):
        return None
    _, is_symbolic = _allocated(mod, ALLOCATION, {})
    if is_symbolic:
        return None
    planned = relax.transform.StaticPlanBlockMemory()(mod)
    storages, _ = _allocated(planned, "relax.memory.alloc_storage", {})
    left, _ = _allocated(planned, ALLOCATION, {})
    return storages + left


def planned_bytes(mod: tvm.IRModule) -> PlannedBytes:
    """What ``ShareStorage`` with its default options makes of a module, which is not changed."""
    ranges = _ranges()
    factory: Any = ShareStorage
    found = _planning(mod, ranges, factory.options_class())
    written = found.written()
    planned, symbolic = _allocated(written, "relax.memory.alloc_storage", ranges)
    left, left_symbolic = _allocated(written, ALLOCATION, ranges)
    total = None if symbolic or left_symbolic else planned + left
    return PlannedBytes(total, found.arenas())


class _Planning:
    """Of a module: the lifetimes and sizes of its buffers, and where each lies."""

    def __init__(
        self,
        mod: tvm.IRModule,
        ranges: Mapping[str, SizeRange],
        options: ShareStorage,
        without_views: "_Planning | None" = None,
    ) -> None:
        self._options = options
        self._without_views = without_views
        self._functions = relax_functions(mod)
        self.lives = buffer_lifetimes(mod)
        self.sizes = {
            variable: _sizes_of(func, self.lives[variable], _ranges_of(variable, ranges))
            for variable, func in self._functions.items()
        }
        within: Mapping[relax.Var, relax.Var] = {}
        if options.in_place and current_cpu() is not None:
            mod, within = in_place_results(mod, self.lives, self.sizes)
        self._mod, self._within = mod, within
        ends = {name: allowed.ends for name, allowed in ranges.items()}
        nominal = nominal_sizes(mod, ends) if "main" in mod else {}
        self._storages = {
            variable: planned_storage(sizes, self.lives[variable], within, nominal)
            for variable, sizes in self.sizes.items()
            if sizes
        }

    def plans(self) -> list[MemoryPlan]:
        """Of the arenas of all functions."""
        return [one.plan for one in self._storages.values() if one.plan is not None]

    def arena_bytes(self) -> int:
        """Of all arenas."""
        return sum(plan.size for plan in self.plans())

    def arenas(self) -> dict[str, int]:
        """The bytes of the arena of each function, by its name."""
        return {
            str(variable.name_hint): storage.plan.size
            for variable, storage in self._storages.items()
            if storage.plan is not None
        }

    def plan(self) -> StoragePlan:
        """Where each buffer lies, and for how long."""
        functions = [
            function_plan(
                self._mod,
                str(variable.name_hint),
                self._functions[variable],
                self.lives[variable],
                storage,
                self._within,
                most_bytes_of,
            )
            for variable, storage in self._storages.items()
        ]
        functions.sort(key=lambda one: one.name != "main")
        return StoragePlan(tuple(functions), self._views())

    def _views(self) -> tuple[str, ...]:
        """The nodes of what was a buffer before views were made."""
        if self._without_views is None:
            return ()
        found = []
        for variable, lives in self._without_views.lives.items():
            left = self.lives[variable].first
            names = buffer_names(self._without_views._functions[variable], lives)
            found += [name for buffer, name in names.items() if buffer not in left]
        return tuple(found)

    def written(self) -> tvm.IRModule:
        """The module with allocations of storages, and of tensors in them."""
        writer = _StorageWriter(self._mod)
        for variable, storage in self._storages.items():
            lives = self.lives[variable]
            changed = writer.rewritten(
                self._functions[variable], storage, lives, self._options.poison
            )
            writer.builder_.update_func(variable, changed)
        return writer.builder_.get()


def _ranges_of(
    variable: tvm.ir.GlobalVar, ranges: Mapping[str, SizeRange]
) -> Mapping[str, SizeRange]:
    """Users give ranges for inputs of the model."""
    return ranges if variable.name_hint == "main" else {}


def _sizes_of(
    func: relax.Function, lives: BufferLifetimes, ranges: Mapping[str, SizeRange]
) -> dict[relax.Var, tirx.Expr | int]:
    """The bytes of each buffer that can be planned, which are known before the function runs."""
    known = set(sizes_of_params(func))
    found: dict[relax.Var, tirx.Expr | int] = {}
    for binding in bindings_of(func):
        shape = _plannable(binding)
        if shape is None or binding.var in lives.escaped:
            continue
        nbytes = _most_bytes(shape, _element_bytes(binding), ranges)
        if nbytes is not None:
            if nbytes < _FAR:
                found[binding.var] = nbytes
        elif all(known.issuperset(_variables(size)) for size in shape):
            element = tirx.const(_element_bytes(binding), "int64")
            found[binding.var] = reduce(mul, shape, element)
    return found


def _plannable(binding: relax.VarBinding) -> Sequence[tirx.Expr] | None:
    """The sizes of an allocation in a device's ordinary memory."""
    if operator_name(binding.value) != ALLOCATION:
        return None
    shape, _, device, scope = binding.value.args[:4]
    ordinary = static_extent(device) == 0 and str(scope.value) == "global"
    return shape.values[:] if ordinary and isinstance(shape, relax.ShapeExpr) else None


def most_bytes_of(ty: tvm.ir.Type) -> int:
    """Bytes of a tensor of this type at the largest sizes; 0 where these have no limit."""
    if isinstance(ty, relax.TupleType):
        return sum(map(most_bytes_of, ty.fields[:]))
    shape = ty.shape if isinstance(ty, relax.TensorType) else None
    if not isinstance(shape, relax.ShapeExpr) or ty.dtype is None:
        return 0
    return _most_bytes(shape.values[:], element_bytes(str(ty.dtype)), _ranges()) or 0


def most_extents(ty: tvm.ir.Type) -> tuple[int, ...] | None:
    """The largest sizes of a tensor of this type; None where one has no limit."""
    shape = ty.shape if isinstance(ty, relax.TensorType) else None
    if not isinstance(shape, relax.ShapeExpr):
        return None
    found = [_largest(size, _ranges()) for size in shape.values[:]]
    known = tuple(size for size in found if size is not None)
    return known if len(known) == len(found) else None


def _most_bytes(
    shape: Sequence[tirx.Expr], element: int, ranges: Mapping[str, SizeRange]
) -> int | None:
    total = element
    for size in shape:
        extent = _largest(size, ranges)
        if extent is None:
            return None
        total *= extent
    return total


@mutator
class _StorageWriter(PyExprMutator):
    """Writes the allocations of storages, and of tensors in them."""

    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self._storage = Storage()
        self._allocated: dict[int, relax.Var] = {}
        self._first: dict[relax.Var, list[int]] = {}
        self._dead: dict[relax.Var, list[Home]] = {}
        self._filler: tvm.ir.GlobalVar | None = None
        self._starter: tvm.ir.GlobalVar | None = None
        self._on_cpu = current_cpu() is not None
        self._poisons = False

    def rewritten(
        self, func: relax.Function, storage: Storage, lives: BufferLifetimes, poison: bool
    ) -> relax.Function:
        """The function with these storages; each comes ahead of what holds its first tensor."""
        self._storage, self._allocated, self._poisons = storage, {}, poison
        self._first = _first_uses(func, storage)
        self._dead = _free_after(storage, lives) if poison else {}
        return self.visit_expr(func)

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        self._before(binding)
        home = self._storage.homes.get(binding.var)
        if home is None:
            super().visit_var_binding_(binding)
        else:
            tensor = self._tensor(home, binding.value.args[0], binding.value.args[1].value)
            super().visit_var_binding_(relax.VarBinding(binding.var, tensor))
            self._begin(home, self.visit_expr(binding.var))
        self._after(binding)

    def visit_match_cast_(self, binding: relax.MatchCast) -> None:
        super().visit_match_cast_(binding)
        self._after(binding)

    def _before(self, binding: relax.Binding) -> None:
        for number in self._first.get(binding.var, ()):
            size = self._storage.sizes[number]
            made = relax.op.memory.alloc_storage(relax.ShapeExpr([size]), 0, "global", "uint8")
            self._allocated[number] = self.builder_.emit(made, "storage")
            if self._poisons:
                self._fill(Home(number, 0, size))

    def _after(self, binding: relax.Binding) -> None:
        for home in self._dead.get(binding.var, ()):
            self._fill(home)

    def _tensor(self, home: Home, shape: relax.Expr, dtype: Any) -> relax.Expr:
        storage = self._allocated[home.storage]
        tensor = relax.op.memory.alloc_tensor(storage, home.offset, shape, dtype)
        if self._on_cpu or home.is_at_start():
            return tensor
        # Kernels take a tensor that begins where its data begin.
        return relax.op.memory.ensure_zero_offset(self.builder_.emit(tensor, "placed"))

    def _begin(self, home: Home, tensor: relax.Expr) -> None:
        """The same for a CPU, whose programs may change a tensor before it is used."""
        if not self._on_cpu or home.is_at_start():
            return
        if self._starter is None:
            self._starter = self.builder_.add_func(tensor_start(), "tensor_start")
        self.builder_.emit(self._starter(tensor))

    def _fill(self, home: Home) -> None:
        """Sets all bits of what is not used."""
        unused = self._tensor(home, relax.ShapeExpr([home.size]), "uint8")
        tensor = self.builder_.emit(unused, "unused")
        self._begin(home, tensor)
        if self._filler is None:
            self._filler = self.builder_.add_func(_filler(), "fill_with_nan")
        self.builder_.emit(self._filler(tensor))


def _first_uses(func: relax.Function, storage: Storage) -> dict[relax.Var, list[int]]:
    """The storages that the function's own bindings need first, for a tensor of the branch too."""
    found: dict[relax.Var, list[int]] = {}
    seen: set[int] = set()
    for block in func.body.blocks[:]:
        for binding in block.bindings[:]:
            for var in _allocating(binding):
                home = storage.homes.get(var)
                if home is not None and home.storage not in seen:
                    seen.add(home.storage)
                    found.setdefault(binding.var, []).append(home.storage)
    return found


def _allocating(binding: relax.Binding) -> list[relax.Var]:
    """The variables of a binding, those of the branches of an If included."""
    if not isinstance(binding.value, relax.If):
        return [binding.var]
    sides = (binding.value.true_branch, binding.value.false_branch)
    return [
        var
        for side in sides
        for block in side.blocks[:]
        for inner in block.bindings[:]
        for var in _allocating(inner)
    ]


def _free_after(storage: Storage, lives: BufferLifetimes) -> dict[relax.Var, list[Home]]:
    """What is free in the arena behind each binding, by its variable."""
    return {var: storage.ends[at] for var, at in lives.places.items() if at in storage.ends}


def _filler() -> tirx.PrimFunc:
    """A kernel that sets all bits of its argument: what is no number for floating point."""
    size = tirx.Var("size", "int64")
    out = te.create_prim_func([te.compute((size,), lambda _: tirx.const(255, "uint8"), "unused")])
    return out.with_attr("tirx.noalias", True)


def _variables(size: tirx.Expr) -> list[tirx.Var]:
    return list(tirx.analysis.undefined_vars(size))


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
