"""Results that are written into the memory of an operand that nobody needs any more."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import tvm
from tvm import relax, tirx

from tvm_ext.relay_passes.dataflow.buffer_lifetimes import BufferLifetimes
from tvm_ext.relay_passes.dataflow.sizes import same_bytes
from tvm_ext.relay_passes.spans import bindings_of, relax_functions, with_functions
from tvm_ext.tir_schedules.analysis.in_place import in_place_operands, written_in_place


@dataclass(frozen=True)
class _KernelCall:
    """A call of a kernel in a function with these lifetimes, some of whose buffers are planned."""

    call: relax.Call
    place: int
    lives: BufferLifetimes
    planned: Collection[relax.Var]

    def argument(self, position: int) -> relax.Var | None:
        """The planned buffer that an argument is, in all its length, where it surely is one."""
        argument = self.call.args[position]
        named = self.lives.named(argument)
        if len(named) != 1:
            return None
        (buffer,) = named
        if buffer not in self.planned:
            return None
        return buffer if same_bytes(buffer.ty, argument.ty) else None

    def is_result(self, position: int) -> bool:
        """Whether an argument is a buffer that nothing was written to before."""
        buffer = self.argument(position)
        return buffer is not None and self.lives.used[buffer] == self.place

    def ends_at(self, position: int) -> bool:
        """Whether an argument is a buffer that this call is the last to read, once."""
        buffer = self.argument(position)
        if buffer is None or self.lives.last[buffer] != self.place or self.is_result(position):
            return False
        return sum(buffer in self.lives.named(argument) for argument in self.call.args) == 1


def in_place_results(
    mod: tvm.IRModule,
    lives: Mapping[tvm.ir.GlobalVar, BufferLifetimes],
    planned: Mapping[tvm.ir.GlobalVar, Collection[relax.Var]],
    allowed: Mapping[relax.Var, relax.Var] | None = None,
) -> tuple[tvm.IRModule, dict[relax.Var, relax.Var]]:
    """The module with kernels that write in place, and the operand whose memory each result has.

    A kernel is changed where every call of it allows that: the operand is needed nowhere else
    afterwards, and no other argument of the call is the same memory. ``allowed`` are the operands
    that results may lie in, if not all.
    """
    calls: dict[tvm.ir.GlobalVar, list[_KernelCall]] = {}
    for variable, func in relax_functions(mod).items():
        for binding in bindings_of(func):
            call = binding.value
            callee = call.op if isinstance(call, relax.Call) else None
            if isinstance(callee, tvm.ir.GlobalVar) and isinstance(mod[callee], tirx.PrimFunc):
                own = lives[variable]
                made = _KernelCall(call, own.places[binding.var], own, planned[variable])
                calls.setdefault(callee, []).append(made)
    changed: dict[tvm.ir.GlobalVar, tirx.PrimFunc] = {}
    within: dict[relax.Var, relax.Var] = {}
    for kernel, found in calls.items():
        func = mod[kernel]
        for result, operand in _pairs(func, found, allowed):
            func = changed[kernel] = written_in_place(func, result, operand)
            within.update({one.argument(result): one.argument(operand) for one in found})
    return with_functions(mod, changed), within


def _pairs(
    func: tirx.PrimFunc,
    calls: list[_KernelCall],
    allowed: Mapping[relax.Var, relax.Var] | None,
) -> list[tuple[int, int]]:
    """The results of a kernel, with the operands whose memory they take in every call."""
    places = range(len(func.params))
    if any(len(one.call.args) != len(places) for one in calls):
        return []
    results = [place for place in places if all(one.is_result(place) for one in calls)]
    ending = [place for place in places if all(one.ends_at(place) for one in calls)]
    pairs: list[tuple[int, int]] = []
    for result in results if ending else ():
        free = [place for place in ending if place not in {taken for _, taken in pairs}]
        if allowed is not None:
            free = [place for place in free if _are_allowed(calls, result, place, allowed)]
        operands = [place for place in in_place_operands(func, result) if place in free]
        if operands:
            pairs.append((result, operands[0]))
    return pairs


def _are_allowed(
    calls: list[_KernelCall],
    result: int,
    operand: int,
    allowed: Mapping[relax.Var, relax.Var],
) -> bool:
    return all(allowed.get(one.argument(result)) == one.argument(operand) for one in calls)
