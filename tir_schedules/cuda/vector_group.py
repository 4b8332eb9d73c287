"""Code for neighbouring elements that one thread computes: 16-byte loads, arithmetic, one store.

Loads and the store are plain copies between memory and registers, so that what is computed in
between may be anything: it stays scalar, and each element has its own instructions in any case.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.sym import Analyzer

from tvm_ext.hardware.cuda.description import CudaDescription
from tvm_ext.tir_schedules.analysis.buffer_access import (
    depends,
    is_conditional,
    linear_form,
    nodes,
    slope,
    static_extent,
)
from tvm_ext.tir_schedules.analysis.guarded_loads import guarded_loads
from tvm_ext.tir_schedules.cuda.launch import Arrays, guarded, repeated
from tvm_ext.tir_schedules.statements import sequence

# Types of which CUDA code can move several in one instruction.
_VECTOR_TYPES = frozenset(
    f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)
) | {"float16", "bfloat16", "float32", "float64"}


@dataclass(frozen=True)
class Read:
    """A load with a number of elements side by side, and where it may be done.

    Attributes
    ----------
    load : tvm.ir.TensorLoad
        The load, of one element, in the variable of the lane.
    condition : tvm.ir.Expr or None
        Under which the value looks at it; None for always.
    """

    load: tvm.ir.TensorLoad
    condition: Any


class Lanes:
    """``width`` neighbouring elements of an assignment to a flat buffer.

    Parameters
    ----------
    store : tirx.BufferStore
        The assignment, with one index for each buffer.
    lane : tirx.Var
        The variable that counts the elements, from 0 to ``width``.
    ranges : sequence of (tirx.Var, int or tirx.Expr)
        The other variables of the assignment and their extents.
    """

    def __init__(
        self,
        store: tirx.BufferStore,
        lane: tirx.Var,
        width: int,
        ranges: Sequence[tuple[tirx.Var, Any]],
    ) -> None:
        self.lane, self.width = lane, width
        self.analyzer = Analyzer()
        for var, extent in [*ranges, (lane, width)]:
            self.analyzer.bind(var, tvm.ir.Range(0, extent))
        self.store = self._simplified(store)
        self.reads = self._reads()

    def fits(self) -> bool:
        """Whether the store and every load move whole vectors, or one element for all lanes."""
        if self.width == 1:
            return True
        return self.stores_vector() and not self.single_loads() and not self._branches_by_lane()

    def stores_vector(self) -> bool:
        """Whether the lanes are written by one store."""
        if self.width == 1 or self._in_registers:
            return True
        return self._is_vector(self.store.buffer, self.store.indices[0])

    def single_loads(self) -> list[tvm.ir.Expr]:
        """The loads that each lane does on its own, each once."""
        known = [read.load for read in self.reads]
        found: list[Any] = []
        for load in nodes(self.store.value, tvm.ir.TensorLoad):
            fixed = len(load.indices) == 1 and not depends(load.indices[0], self.lane)
            single = not is_vector_type(load.source) or is_local(load.source)
            if not fixed and not single and not any(same_load(load, o) for o in (*known, *found)):
                found.append(load)
        return found

    def code(self, arrays: Arrays, threads: Sequence[tuple[Any, int]]) -> tirx.Stmt:
        """The group's statements; its registers go to ``arrays``."""
        dtype = str(self.lane.ty)
        if self.width == 1:
            return self._at(self.store, tirx.const(0, dtype))
        staged = []
        statements = []
        for number, read in enumerate(self.reads):
            source = read.load.source
            held = arrays.registers(
                f"{source.name}_{number}", self.width, str(source.dtype), threads
            )
            staged.append((read.load, held))
            copy = self._vector(lambda i, h=held, r=read: h.put(i, self._at(r.load, i)))
            statements.append(guarded(read.condition, copy))
        if self._in_registers:
            value = _with_loads(self.store.value, staged, self.lane)
            store = tirx.BufferStore(self.store.buffer, value, self.store.indices)
            return sequence(
                [*statements, repeated(self.width, dtype, lambda i: self._at(store, i))]
            )
        result = arrays.registers("result", self.width, str(self.store.buffer.dtype), threads)

        def computed(i: tvm.ir.Expr) -> tirx.Stmt:
            return result.put(i, self._at(_with_loads(self.store.value, staged, self.lane), i))

        statements.append(repeated(self.width, dtype, computed))
        index = self.store.indices[0]
        buffer = self.store.buffer
        statements.append(
            self._vector(lambda i: tirx.BufferStore(buffer, result.at(i), [self._at(index, i)]))
        )
        return sequence(statements)

    @property
    def _in_registers(self) -> bool:
        return is_local(self.store.buffer)

    def _vector(self, body: Any) -> tirx.Stmt:
        return repeated(self.width, str(self.lane.ty), body, tirx.ForKind.VECTORIZED)

    def _at(self, node: Any, lane: tvm.ir.Expr) -> Any:
        same = self.lane.same_as
        return tvm_ffi.structural_map(node, (tvm.ir.Var, lambda v: lane if same(v) else v))

    def _simplified(self, store: tirx.BufferStore) -> tirx.BufferStore:
        value = self.analyzer.simplify(self._compared_as_one(store.value))
        return tirx.BufferStore(
            store.buffer, value, [self.analyzer.simplify(i) for i in store.indices]
        )

    def _compared_as_one(self, value: tvm.ir.Expr) -> tvm.ir.Expr:
        """Comparisons without the lane, where it makes no difference to them.

        A multiple of ``width`` plus the lane is below zero exactly when the multiple is.
        """

        def less(left: tvm.ir.Expr, right: tvm.ir.Expr) -> Any:
            if "int" not in str(left.ty) or not depends(left - right, self.lane):
                return None
            linear = linear_form(self.analyzer.simplify(left - right), [self.lane])
            step = static_extent(linear[0][0]) if linear else None
            if linear is None or step not in (1, -1):
                return None
            rest = self.analyzer.modular_set(linear[1])
            aligned = int(rest.coeff) % self.width == 0
            first = 0 if step == 1 else self.width - 1
            if not aligned or int(rest.base) % self.width != first:
                return None
            return linear[1] < tirx.const(0, str(left.ty))

        def visit(node: tvm.ir.Expr, mutator: Any) -> tvm.ir.Expr:
            strict = isinstance(node, tirx.LT | tirx.GT)
            left, right = (
                (node.a, node.b) if isinstance(node, tirx.LT | tirx.GE) else (node.b, node.a)
            )
            found = less(left, right)
            if found is None:
                return mutator.default_mutate(node)
            return found if strict else tirx.Not(found)

        kinds = (tirx.LT, tirx.GT, tirx.LE, tirx.GE)
        return tvm_ffi.structural_mutate(value, [(kind, visit) for kind in kinds])

    def _reads(self) -> list[Read]:
        """The loads of whole vectors, each once, with what guards them."""
        if self.width == 1:
            return []
        found: list[Read] = []
        for load, condition in guarded_loads(self.store.value, certain=True):
            if is_local(load.source):
                continue  # Registers already; TVM would make an array of vectors of theirs.
            if len(load.indices) != 1 or not self._is_vector(load.source, load.indices[0]):
                continue
            if condition is not None and depends(condition, self.lane):
                continue
            known = next((r for r in found if same_load(r.load, load)), None)
            if known is not None:
                found.remove(known)
                either = known.condition is None or condition is None
                condition = None if either else tirx.Or(known.condition, condition)
            found.append(Read(load, condition))
        return found

    def _is_vector(self, buffer: tirx.Buffer, index: tvm.ir.Expr) -> bool:
        if not is_vector_type(buffer):
            return False
        if slope(index, self.lane) != 1:
            return False
        rest = self.analyzer.modular_set(self._at(index, tirx.const(0, str(self.lane.ty))))
        return math.gcd(int(rest.coeff), int(rest.base)) % self.width == 0

    def _branches_by_lane(self) -> bool:
        calls = nodes(self.store.value, tvm.ir.Call)
        return any(is_conditional(call) and depends(call.args[0], self.lane) for call in calls)


def is_local(buffer: tirx.Buffer) -> bool:
    """Whether every thread has its own copy of a buffer."""
    return str(buffer.scope()) == "local"


def is_vector_type(buffer: tirx.Buffer) -> bool:
    """Whether CUDA code can move several elements of a buffer in one instruction."""
    return str(buffer.dtype) in _VECTOR_TYPES


def vector_widths(store: tirx.BufferStore, machine: CudaDescription) -> list[int]:
    """Elements of the widest type at hand that fit in 16 bytes, and halves of that down to 1."""
    loads = nodes(store.value, tvm.ir.TensorLoad)
    dtypes = [str(store.buffer.dtype), *(str(load.source.dtype) for load in loads)]
    lanes = [machine.vector_lanes(dtype) for dtype in dtypes if dtype in _VECTOR_TYPES]
    return powers_down(min(lanes) if dtypes[0] in _VECTOR_TYPES else 1)


def powers_down(widest: int) -> list[int]:
    """``widest``, a power of two, its half, and so on down to 1."""
    return powers_up(widest)[::-1]


def powers_up(most: int) -> list[int]:
    """Powers of two from 1 to ``most``."""
    return [1 << n for n in range(max(1, most).bit_length())]


def power_above(value: int) -> int:
    """The smallest power of two that is not below ``value``."""
    return 1 << max(0, value - 1).bit_length()


def same_load(load: tvm.ir.TensorLoad, other: tvm.ir.TensorLoad) -> bool:
    """Whether two loads read the same element."""
    return load.source.same_as(other.source) and tvm_ffi.structural_equal(
        list(load.indices), list(other.indices), map_free_vars=False
    )


def _with_loads(
    value: tvm.ir.Expr, staged: Sequence[tuple[Any, Any]], lane: tirx.Var
) -> tvm.ir.Expr:
    def replaced(load: tvm.ir.TensorLoad, mutator: Any) -> tvm.ir.Expr:
        held = next((array for other, array in staged if same_load(load, other)), None)
        return mutator.default_mutate(load) if held is None else held.at(lane)

    return tvm_ffi.structural_mutate(value, [(tvm.ir.TensorLoad, replaced)])
