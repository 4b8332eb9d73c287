"""How much memory the values of a program take over time, before storage is planned.

After each binding the bytes of all values that are alive (``liveness``), where the most are alive,
and for sizes that a run decides the formula of that most. A call of a function counts what is alive
in it at its own peak besides. ``relax.analysis.estimate_memory_usage`` adds up what a planned
program allocates; here nothing is planned or fused yet, so that this is what a planner starts from.
"""

import functools
import operator
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.sym import Analyzer

from tvm_ext.relay_passes.dataflow.liveness import alias_sources, live_ranges
from tvm_ext.relay_passes.dataflow.sizes import element_bytes
from tvm_ext.relay_passes.expressions import nominal_sizes, value_for
from tvm_ext.relay_passes.spans import all_bindings_of, relax_functions


@dataclass(frozen=True)
class MemoryUsage:
    """Bytes of live values of a function.

    Attributes
    ----------
    after : tuple of int
        Bytes alive while each binding is computed: operands that are used later or here, and its
        result. For sizes that a run decides, of nominal ones.
    peak, place : int
        The most, and which binding it is at; 0 and -1 in a function without bindings.
    formula : str
        The bytes there as a formula of symbolic sizes; a function that is called there stands in
        it for its own peak.
    is_complete : bool
        False where a tensor has a shape that is not known, or a function calls itself: then more
        may be alive.
    """

    after: tuple[int, ...]
    peak: int
    place: int
    formula: str
    is_complete: bool


def memory_usage(
    mod: tvm.IRModule, ranges: Mapping[str, tuple[int, int]] | None = None
) -> dict[str, MemoryUsage]:
    """The memory use of every function of a module, by its name; weights are not counted."""
    usage = _Usage(mod, ranges or {})
    for name in usage.functions:
        usage.of(name)
    return usage.known


class _Usage:
    def __init__(self, mod: tvm.IRModule, ranges: Mapping[str, tuple[int, int]]) -> None:
        self.functions = {str(var.name_hint): func for var, func in relax_functions(mod).items()}
        self.known: dict[str, MemoryUsage] = {}
        self._sizes = nominal_sizes(mod, ranges) if "main" in self.functions else {}
        self._running: set[str] = set()
        # By the structure of a number of bytes: it, and its value for nominal sizes.
        self._values: dict[Any, tuple[Any, int]] = {}

    def of(self, name: str) -> MemoryUsage | None:
        """The memory use of a function; None where it is being found, as of one that recurs."""
        if name in self._running or name not in self.functions:
            return None
        if name not in self.known:
            self._running.add(name)
            self.known[name] = self._found(self.functions[name])
            self._running.discard(name)
        return self.known[name]

    def _found(self, func: relax.Function) -> MemoryUsage:
        ranges = live_ranges(func)
        bindings = all_bindings_of(func)
        starts: list[list[Any]] = [[] for _ in range(len(bindings) + 1)]
        ends: list[list[Any]] = [[] for _ in range(len(bindings) + 1)]
        is_complete = True
        inside = [("", 0)] * len(bindings)
        owners = [(hash(param), param.ty) for param in func.params[:]]
        for place, binding in enumerate(bindings):
            if not alias_sources(binding):
                owners.append((hash(binding.var), binding.var.ty))
            callee = getattr(binding.value, "op", None)
            if isinstance(callee, tvm.ir.GlobalVar):
                called = self.of(str(callee.name_hint))
                inside[place] = str(callee.name_hint), 0 if called is None else called.peak
                is_complete &= called is not None and called.is_complete
        for key, ty in owners:
            held = ranges[key]
            parts, has_all = self._bytes(ty)
            is_complete &= has_all
            starts[max(held.first, 0)] += parts
            if held.last < len(bindings):
                ends[held.last] += parts
        return self._swept(starts, ends, inside, is_complete)

    def _swept(
        self,
        starts: list[list[Any]],
        ends: list[list[Any]],
        inside: list[tuple[str, int]],
        is_complete: bool,
    ) -> MemoryUsage:
        alive: Counter[Any] = Counter()
        total, after = 0, []
        peak, place, at_peak = 0, -1, dict(alive)
        for position, (_, called) in enumerate(inside):
            alive.update(starts[position])
            total += sum(self._values[key][1] for key in starts[position])
            after.append(total + called)
            if total + called > peak:
                peak, place = total + called, position
                # Few different sizes are alive at a time.
                at_peak = {key: count for key, count in alive.items() if count}
            alive.subtract(ends[position])
            total -= sum(self._values[key][1] for key in ends[position])
        callee = inside[place][0] if place >= 0 else ""
        formula = self._formula(at_peak) + (f" + {callee}" if callee else "")
        return MemoryUsage(tuple(after), peak, place, formula, is_complete)

    def _formula(self, alive: Mapping[Any, int]) -> str:
        whole: Any = tirx.const(0, "int64")
        for key, count in alive.items():
            whole = whole + self._values[key][0] * count
        # TVM prints the type of each number.
        return re.sub(r"T\.int64\((-?\d+)\)", r"\1", str(Analyzer().canonical_simplify(whole)))

    def _bytes(self, ty: tvm.ir.Type) -> tuple[list[Any], bool]:
        """Keys of the sizes of all tensors of a type, and whether all have one."""
        if isinstance(ty, relax.TupleType):
            found = [self._bytes(field) for field in ty.fields[:]]
            return [key for keys, _ in found for key in keys], all(known for _, known in found)
        if not isinstance(ty, relax.TensorType):
            return [], True
        if not isinstance(ty.shape, relax.ShapeExpr) or ty.dtype is None:
            return [], False
        number, symbols = element_bytes(str(ty.dtype)), []
        for extent in ty.shape.values[:]:
            if isinstance(extent, tirx.IntImm):
                number *= int(extent)
            else:
                symbols.append(extent)
        # Numbers first, so that sizes that are alike look alike.
        size: Any = functools.reduce(operator.mul, symbols, tirx.const(number, "int64"))
        key = int(size.value) if isinstance(size, tirx.IntImm) else tvm_ffi.StructuralKey(size)
        if key not in self._values:
            value = key if isinstance(key, int) else value_for(size, self._sizes)
            self._values[key] = size, max(value or 0, 0)
        return [key], True
