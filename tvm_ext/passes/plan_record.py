"""What a plan of storage is in words of the model: nodes, kernel calls, bytes."""

import bisect
from collections.abc import Callable, Mapping

import tvm
from tvm import relax, tirx

from tvm_ext.passes.storage_plan import Storage
from tvm_ext.relay_passes.dataflow.buffer_lifetimes import ALLOCATION, BufferLifetimes
from tvm_ext.relay_passes.expressions import operator_name
from tvm_ext.relay_passes.spans import bindings_of, describe_origin, origins_of
from tvm_ext.report.memory_plan import FunctionPlan, PlannedTensor
from tvm_ext.tir_schedules.analysis.buffer_access import static_extent


def function_plan(
    mod: tvm.IRModule,
    name: str,
    func: relax.Function,
    lives: BufferLifetimes,
    storage: Storage,
    within: Mapping[relax.Var, relax.Var],
    bytes_of: Callable[[tvm.ir.Type], int],
) -> FunctionPlan:
    """The plan of a function whose buffers live so and lie in these storages.

    ``within`` has those that are written over another one; ``bytes_of`` gives the bytes of a
    tensor of the type.
    """
    calls = _Calls(mod, func, lives)
    found = []
    for buffer, home in storage.homes.items():
        first, last = calls.of(buffer)
        held = within.get(buffer)
        sizes = calls.shapes[buffer].values[:]
        extents = [size if (known := static_extent(size)) is None else known for size in sizes]
        dtype = str(buffer.ty.dtype)
        found.append(
            PlannedTensor(
                name=calls.name(buffer),
                type=f"{'x'.join(map(str, extents)) or 'scalar'} {dtype}",
                size=bytes_of(relax.TensorType(sizes, dtype)),
                storage=home.storage,
                offset=home.offset if isinstance(home.offset, int) else None,
                first=first,
                last=last,
                in_place_of=calls.name(held) if held is not None else "",
            )
        )
    found.sort(key=lambda one: (one.first, one.last))
    plan = storage.plan
    size, bound = (plan.size, plan.lower_bound) if plan is not None else (None, None)
    return FunctionPlan(name, calls.nodes(), tuple(found), size, bound, calls.kernels())


def buffer_names(func: relax.Function, lives: BufferLifetimes) -> dict[relax.Var, str]:
    """The ONNX nodes that compute what is in each buffer of a function, by its variable."""
    known: dict[relax.Var, relax.Var] = {}
    for variable in lives.names:
        named = lives.named(variable)
        if len(named) == 1 and origins_of(variable):
            known.setdefault(named.pop(), variable)
    return {buffer: describe_origin(known.get(buffer, buffer)) for buffer in lives.first}


class _Calls:
    """The kernel calls of a function, by whose numbers its buffers live."""

    def __init__(self, mod: tvm.IRModule, func: relax.Function, lives: BufferLifetimes) -> None:
        bindings = bindings_of(func)
        self.shapes = {
            binding.var: binding.value.args[0]
            for binding in bindings
            if operator_name(binding.value) == ALLOCATION
        }
        self._kernels = {
            lives.places[binding.var]: str(binding.value.op.name_hint)
            for binding in bindings
            if isinstance(binding.value, relax.Call)
            and isinstance(binding.value.op, tvm.ir.GlobalVar)
            and isinstance(mod[binding.value.op], tirx.PrimFunc)
        }
        self._places = list(self._kernels)
        self._lives = lives
        self._names = buffer_names(func, lives)

    def name(self, buffer: relax.Var) -> str:
        """The ONNX nodes that compute what is in a buffer."""
        return self._names.get(buffer, str(buffer.name))

    def nodes(self) -> tuple[str, ...]:
        """Of each call the ONNX nodes of what it writes first, or the kernel's name."""
        written: dict[int, str] = {}
        for buffer, place in self._lives.used.items():
            written.setdefault(place, self.name(buffer))
        return tuple(written.get(place, kernel) for place, kernel in self._kernels.items())

    def kernels(self) -> tuple[str, ...]:
        """The kernel of each call."""
        return tuple(self._kernels.values())

    def of(self, buffer: relax.Var) -> tuple[int, int]:
        """The calls that write a buffer first and that need it last."""
        used = self._lives.used.get(buffer, self._lives.first[buffer])
        first = min(bisect.bisect_left(self._places, used), max(0, len(self._places) - 1))
        last = bisect.bisect_right(self._places, self._lives.last[buffer]) - 1
        return first, max(first, last)
