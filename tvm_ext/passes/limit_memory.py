"""A memory limit, met by another order of kernel calls and by calls that run again."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import tvm
from tvm import relax, tirx

from tvm_ext.compiler.backend import limit_bytes, threads_of
from tvm_ext.compiler.compile_context import current_compilation
from tvm_ext.compiler.kernel_arrays import largest_kernel_arrays
from tvm_ext.compiler.kernel_work import kernel_seconds, work_of_call
from tvm_ext.hardware.cost_model import cost_model
from tvm_ext.hardware.cpu.description import current_cpu
from tvm_ext.hardware.targets import current_description
from tvm_ext.memory_planner.program import KernelTraits, Program
from tvm_ext.memory_planner.rematerialize import fit_to_memory
from tvm_ext.passes.donate_params import donated, donated_places
from tvm_ext.passes.function_steps import FunctionSteps, function_steps, result_types
from tvm_ext.passes.share_storage import (
    PlannedBytes,
    most_bytes_of,
    most_extents,
    planned_bytes,
)
from tvm_ext.passes.storage_plan import alignment
from tvm_ext.relay_passes.dataflow.sizes import element_bytes
from tvm_ext.relay_passes.expressions import operator_name
from tvm_ext.relay_passes.graph_pass import graph_pass, record_applied, record_refusal
from tvm_ext.relay_passes.spans import (
    describe_origin,
    relax_bindings,
    relax_functions,
    with_functions,
)
from tvm_ext.report.records import MemoryLimitRecord
from tvm_ext.tir_schedules.analysis.copies import copies
from tvm_ext.tir_schedules.analysis.in_place import in_place_operands

_CALL_TIR_REWRITE = relax.transform.CallTIRRewrite()
# How often the search is asked for less where the plan of what it found is above its bound.
_ATTEMPTS = 4
_LEAST_STEP = 64


@graph_pass
class LimitMemory:
    """Reorders kernel calls, and computes values again, until all values fit into a memory limit.

    Before: ``a = k1(x)``, ``b = k2(x)``, ``c = k3(b)``, ``d = k4(c, a)``
    After:  ``b = k2(x)``, ``c = k3(b)``, ``a = k1(x)``, ``d = k4(c, a)``

    ``limit`` is in bytes and counts the values of a run, results among them, and what kernels
    allocate for themselves, but no weights; 0 is what is usual for the machine
    (``TVM_EXT_MEMORY_LIMIT``). Which values are computed again
    decides what that frees above the limit for the predicted time that it takes. Where the limit
    cannot be met, the program is left with as little as was found, and compiling it is refused.

    Leaves alone: programs that fit; calls of packed functions, and what stands on either side of
    them; sizes that a run decides without a limit.

    Run after: RemovePurityChecking. Run before: CallTIRRewrite.
    """

    limit: int = 0

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Returns ``mod`` itself where the limit is met without any change."""
        limit = limit_bytes(current_description(), self.limit or None)
        arrays = _array_bytes(mod)
        if not self.limit and _unplanned_bytes(mod) + arrays <= limit:
            return mod
        context = current_compilation()
        unscheduled = context.kernels if context is not None else None
        search = _Search(mod, limit, arrays, unscheduled or mod)
        best = search.best()
        record = search.record(best, is_asked=bool(self.limit))
        if context is not None:
            context.memory_limit = record
        if best.mod.same_as(mod):
            return mod
        sources = _call_sources(mod, best)
        if context is not None:
            context.call_sources = sources
        calls = _kernel_calls(mod)
        for number, count in Counter(sources).items():
            if count > 1:
                where = describe_origin(calls[number])
                record_applied("LimitMemory", where, "computed again where it is needed late")
        if record.is_reordered:
            record_applied("LimitMemory", "main", "kernel calls in another order")
        return best.mod


@dataclass(frozen=True)
class _Found:
    """A module and what it takes; ``copies`` has the variables of calls that run again."""

    mod: tvm.IRModule
    planned: PlannedBytes
    copies: Mapping[relax.Var, relax.Var]
    seconds: float = 0.0

    @property
    def total(self) -> int:
        """The planned bytes; of unknown ones there is no search."""
        return self.planned.total or 0


class _Search:
    """For a program of a module that meets a limit, or needs as little as can be found."""

    def __init__(self, mod: tvm.IRModule, limit: int, arrays: int, kernels: tvm.IRModule) -> None:
        # No order and no copy changes what kernels allocate for themselves.
        self._arrays = arrays
        self._limit = max(limit - arrays, 0)
        self._asked = limit
        self._traits = _Traits(mod, kernels)
        self._first = _found(mod, {})
        # By function: what a call needs alone, and the predicted time of all calls.
        self._bounds: dict[str, int] = {}
        self._seconds: dict[str, float] = {}

    def best(self) -> _Found:
        """The program that is to be compiled."""
        best = self._first
        if best.planned.total is None:
            record_refusal("LimitMemory", "main", "a run decides how much memory its values take")
            return best
        # The second time for the least that is possible.
        for limit in (self._limit, 0):
            if best.total <= self._limit:
                break
            found = self._all_fitted(limit)
            best = found if found.total < best.total else best
        return best

    def record(self, best: _Found, is_asked: bool) -> MemoryLimitRecord:
        """What the report says of the program that was found."""
        total = sum(self._seconds.values())
        sources = _call_sources(self._first.mod, best)
        saved = sum(self._first.planned.arenas[name] - low for name, low in self._bounds.items())
        return MemoryLimitRecord(
            limit_bytes=self._asked,
            is_asked=is_asked,
            unlimited_bytes=self._first.total + self._arrays,
            bound_bytes=self._first.total - saved + self._arrays,
            calls_again=len(sources) - len(set(sources)),
            is_reordered=_is_reordered(sources),
            predicted_slowdown=best.seconds / total if total else 0.0,
        )

    def _all_fitted(self, limit: int) -> _Found:
        """With the functions that need most first."""
        current = self._first
        arenas = current.planned.arenas
        for name in sorted(arenas, key=lambda one: -arenas[one]):
            if current.total <= self._limit:
                break
            current = self._fitted(current, name, limit)
        return current

    def _fitted(self, given: _Found, name: str, limit: int) -> _Found:
        """With a function that needs no more than is left for it of the limit."""
        variable = next(one for one in relax_functions(given.mod) if one.name_hint == name)
        steps = self._read(given.mod[variable])
        self._bounds[name] = min(steps.program.lower_bound, given.planned.arenas[name])
        self._seconds[name] = steps.program.seconds
        best, goal = given, limit - (given.total - given.planned.arenas[name])
        for _ in range(_ATTEMPTS):
            goal = max(goal, steps.program.lower_bound)
            fitted = fit_to_memory(steps.program, goal)
            if fitted is steps.program:
                break
            found = self._with_function(given, variable, steps, fitted)
            best = found if found.total < best.total else best
            if best.total <= self._limit or fitted.peak > goal:
                break
            # The plan is above its bound.
            goal -= max(_LEAST_STEP, found.total - self._limit)
        return best

    def _read(self, func: relax.Function) -> FunctionSteps:
        return function_steps(
            func,
            self._traits.kernels,
            self._traits.of_call,
            most_bytes_of,
            alignment(),
            has_views=current_cpu() is not None,
            donated=donated_places(func) if current_cpu() is not None else {},
        )

    def _with_function(
        self,
        given: _Found,
        variable: tvm.ir.GlobalVar,
        steps: FunctionSteps,
        fitted: Program,
    ) -> _Found:
        func, copied = steps.written(fitted)
        # Of a copy of a copy, the first call.
        sources = {new: given.copies.get(old, old) for new, old in copied.items()}
        mod = with_functions(given.mod, {variable: func})
        more = fitted.seconds - steps.program.seconds
        return _found(mod, {**given.copies, **sources}, given.seconds + more)


def _found(
    mod: tvm.IRModule, copies: Mapping[relax.Var, relax.Var], seconds: float = 0.0
) -> _Found:
    # What is given away has no memory of its own for the results that take it.
    planned = planned_bytes(donated(_CALL_TIR_REWRITE(mod)).mod)
    return _Found(mod, planned, copies, seconds)


class _Traits:
    """What the search has to know of kernels, each looked at once."""

    def __init__(self, mod: tvm.IRModule, unscheduled: tvm.IRModule) -> None:
        self.kernels = {
            variable: func
            for variable, func in mod.functions.items()
            if isinstance(func, tirx.PrimFunc)
        }
        self._unscheduled = {
            str(variable.name_hint): func
            for variable, func in unscheduled.functions.items()
            if isinstance(func, tirx.PrimFunc)
        }
        self._costs = cost_model(current_description())
        self._known: dict[tvm.ir.GlobalVar, KernelTraits] = {}

    def of_call(self, call: relax.Call) -> KernelTraits:
        """Those of the kernel that is called; of a kernel without fixed sizes, at the largest."""
        kernel = call.args[0]
        if kernel not in self._known:
            self._known[kernel] = self._look_at(kernel, call)
        return self._known[kernel]

    def _look_at(self, kernel: tvm.ir.GlobalVar, call: relax.Call) -> KernelTraits:
        func = self.kernels[kernel]
        operands, types = call.args[1].fields[:], result_types(call)
        name, count = str(kernel.name_hint), len(operands)
        seconds = self._seconds(name, func, [*(one.ty for one in operands), *types])
        if current_cpu() is None or len(func.params) != count + len(types):
            return KernelTraits(name, seconds)
        in_place = [
            (number, tuple(place for place in found if place < count))
            for number in range(len(types))
            if (found := in_place_operands(func, count + number))
        ]
        return KernelTraits(
            name, seconds, tuple(one for one in in_place if one[1]), _moved(func, count, types)
        )

    def _seconds(self, name: str, func: tirx.PrimFunc, types: list[tvm.ir.Type]) -> float:
        """Predicted time of a call: that of its work, as ``explain`` and a profile have it."""
        plain = self._unscheduled.get(name, func)
        work = work_of_call(plain, [most_extents(ty) for ty in types])
        return kernel_seconds(plain, self._costs) if work is None else self._costs.seconds(work)


def _moved(
    func: tirx.PrimFunc, count: int, types: list[tvm.ir.Type]
) -> tuple[tuple[int, int], ...]:
    """Where each operand of a kernel that only copies lies in its result, if views can do that."""
    found = copies(func) if len(types) == 1 else None
    if found is None or found.result != count or len(found.distances) != count:
        return ()
    element = element_bytes(str(types[0].dtype))
    moved = tuple((place, at * element) for place, at in found.distances.items())
    return () if any(at % alignment() for _, at in moved) else moved


def _array_bytes(mod: tvm.IRModule) -> int:
    """What the kernels of the program that is compiled allocate for themselves, on all threads."""
    context = current_compilation()
    if context is None or context.kernels is None:
        return 0
    return largest_kernel_arrays(context, context.kernels, mod).bytes_on(
        threads_of(context.machine)
    )


def _unplanned_bytes(mod: tvm.IRModule) -> int:
    """Bytes of all values of a module that kernels compute, as far as they are known."""
    return sum(
        most_bytes_of(binding.var.ty)
        for binding in relax_bindings(mod)
        if operator_name(binding.value) == "relax.call_tir"
    )


def _kernel_calls(mod: tvm.IRModule) -> list[relax.Var]:
    """The variables of all kernel calls, in the order of ``graph_analysis.kernel_calls``."""
    return [
        binding.var
        for binding in relax_bindings(mod)
        if operator_name(binding.value) == "relax.call_tir"
    ]


def _call_sources(mod: tvm.IRModule, best: _Found) -> list[int]:
    """For each kernel call of the program found, its number among those of ``mod``."""
    numbers = {variable: number for number, variable in enumerate(_kernel_calls(mod))}
    return [numbers[best.copies.get(one, one)] for one in _kernel_calls(best.mod)]


def _is_reordered(sources: list[int]) -> bool:
    """Whether calls that run once run in another order."""
    counts = Counter(sources)
    once = [one for one in sources if counts[one] == 1]
    return once != sorted(once)
