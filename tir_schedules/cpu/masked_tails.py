"""Vectors that reach beyond a border: masked loads and stores where TVM would go lane by lane.

A tile of 16 columns at the end of 197 has 5. TVM turns a condition that differs between the lanes
of a vector into a loop over them. Here the condition becomes a mask of the vector's loads and its
store: full vectors throughout, and memory beyond the border is not touched.
"""

import functools
from collections.abc import Sequence
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.tirx.op import masked_load, masked_store
from tvm_ffi import (
    StructuralMutator,
    WalkResult,
    structural_map,
    structural_mutate,
    structural_walk,
)

from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.tir_schedules.analysis.buffer_access import (
    among,
    conjuncts,
    depends,
    is_conditional,
    nodes,
    slope,
    static_extent,
)
from tvm_ext.tir_schedules.analysis.loop_nest import substitute
from tvm_ext.tir_schedules.cpu.parallel_vectorize import COMPARISONS
from tvm_ext.tir_schedules.statements import stack_array

# Of two linear sides, whether they hold in all lanes is decided by the first and the last.
_BOUNDS = (tirx.LT, tirx.LE, tirx.GT, tirx.GE)


def has_masked_memory(machine: CpuDescription) -> bool:
    """Whether the instruction set has masked loads and stores; LLVM writes branches elsewhere."""
    return machine.architecture == "x86_64" and machine.vector_bits >= 256


def with_masked_tails(func: tirx.PrimFunc, plain_in_full: bool = False) -> tirx.PrimFunc:
    """``func``, scheduled, with masks for the conditions of its vectorised loops.

    ``plain_in_full``: a store has no mask where all lanes hold. With AVX2 one with a mask takes
    some 60 cycles on AMD's Zen 3, and all tiles have the code of the last one: a quarter of the
    time of a product of 256 steps.

    Leaves alone: conditions that are not linear in the loop; loads under one that take other than
    consecutive elements, or look their place up; divisions of integers, which stop the program in
    a lane that has no divisor; results that stay in the kernel.
    """

    def rewritten(loop: tirx.For) -> tirx.Stmt:
        if loop.kind != tirx.ForKind.VECTORIZED:
            return loop
        return _masked(loop, func, plain_in_full) or loop

    body = structural_map(func.body, (tirx.For, rewritten))
    return func if body.same_as(func.body) else func.with_body(body)


def _masked(loop: tirx.For, func: tirx.PrimFunc, plain_in_full: bool) -> tirx.Stmt | None:
    """The vectorised loop over one assignment, with masks; None where that is not possible."""
    realize, lanes = loop.body, static_extent(loop.extent)
    if lanes is None or lanes < 2 or static_extent(loop.min) != 0:
        return None
    if not isinstance(realize, s_tir.SBlockRealize):
        return None
    block = realize.block
    store = block.body
    if not isinstance(store, tirx.BufferStore) or block.init is not None:
        return None
    values = {v.var: value for v, value in zip(block.iter_vars, realize.iter_values, strict=True)}
    vector = _Vector(loop.loop_var, lanes, func.params)
    differing, same = vector.terms(realize.predicate)
    indices = [substitute(index, values) for index in store.indices]
    value = vector.masked(substitute(store.value, values), differing)
    last = vector.store(store.buffer, value, indices, differing, plain_in_full)
    if vector.refused or not (differing or vector.loads):
        return None
    statement = tirx.SeqStmt([*vector.declarations, *vector.loads, *last])
    for condition in same:
        statement = tirx.IfThenElse(condition, statement, None)
    return statement


class _Vector:
    """One vectorised loop while it is rewritten.

    ``loads`` fill arrays with masked vectors, and go before the loop, which reads the arrays.
    ``refused`` says that a condition or an address has no form as a vector.
    """

    def __init__(self, lane: tirx.Var, lanes: int, params: Sequence[Any]) -> None:
        self.lane = lane
        self.lanes = lanes
        self.declarations: list[tirx.Stmt] = []
        self.loads: list[tirx.Stmt] = []
        self.refused = False
        self._params = params

    def terms(self, condition: tvm.ir.Expr) -> tuple[list[Any], list[Any]]:
        """What all has to hold: the parts that differ between lanes, and the others."""
        parts = [
            part
            for part in conjuncts(condition)
            if not (isinstance(part, tirx.IntImm) and part.value)
        ]
        differing = [part for part in parts if depends(part, self.lane)]
        return differing, [part for part in parts if not depends(part, self.lane)]

    def masked(self, value: tvm.ir.Expr, conditions: Sequence[tvm.ir.Expr]) -> tvm.ir.Expr:
        """``value`` with its loads masked by ``conditions`` and by the branches around them.

        Loads whose conditions are the same in all lanes stay as they are.
        """
        around = list(conditions)
        in_branch = False

        def call(node: tvm.ir.Call, mutator: StructuralMutator) -> tvm.ir.Expr:
            nonlocal around, in_branch
            if not is_conditional(node):
                return mutator.default_mutate(node)
            condition, *values = node.args
            self.refused |= bool(nodes(condition, tvm.ir.TensorLoad))
            outside = around, in_branch
            chosen = []
            for part, holds in zip(values, (condition, tirx.Not(condition)), strict=True):
                around, in_branch = [*outside[0], holds], True
                chosen.append(mutator.mutate(part))
            around, in_branch = outside
            # Both sides are computed: their loads are masked, which a division would not be.
            choose = tirx.Select if depends(condition, self.lane) else tirx.if_then_else
            return choose(condition, *chosen)

        def load(node: tvm.ir.TensorLoad, mutator: StructuralMutator) -> tvm.ir.Expr:
            # Where all lanes share the conditions, a branch is faster: 1.2 times, in a convolution
            # by Winograd's algorithm on a CPU with AVX2.
            if not any(depends(condition, self.lane) for condition in around):
                return mutator.default_mutate(node)
            self.refused |= any(nodes(index, tvm.ir.TensorLoad) for index in node.indices)
            if not among(node.source, self._params):
                return self._own(node, in_branch)
            if any(depends(index, self.lane) for index in node.indices):
                return self._load(node, self._mask(around))
            self.refused |= in_branch
            return node

        self.refused |= _divides_integers(value)
        return structural_mutate(value, [(tvm.ir.Call, call), (tvm.ir.TensorLoad, load)])

    def store(
        self,
        buffer: tirx.Buffer,
        value: tvm.ir.Expr,
        indices: Sequence[tvm.ir.Expr],
        conditions: Sequence[tvm.ir.Expr],
        plain_in_full: bool,
    ) -> list[tirx.Stmt]:
        """The loop that computes ``value``, and stores it where ``conditions`` hold."""
        if not conditions:
            return [self._loop(tirx.BufferStore(buffer, value, list(indices)))]
        self.refused |= not among(buffer, self._params)
        array = self._array(str(value.ty))
        whole = tirx.BufferLoad(array, [self._ramp(0)])
        mask = self._mask(conditions)
        masked: tirx.Stmt = tirx.Evaluate(
            masked_store(buffer, whole, *self._vector_indices(indices), mask)
        )
        full = self._all_lanes(conditions) if plain_in_full else None
        if full is not None:
            plain = tirx.BufferStore(buffer, whole, self._vector_indices(indices))
            masked = tirx.IfThenElse(full, plain, masked)
        computed = self._loop(tirx.BufferStore(array, value, [self.lane]))
        return [computed, masked]

    def _loop(self, body: tirx.Stmt) -> tirx.Stmt:
        zero, end = (tirx.const(n, str(self.lane.ty)) for n in (0, self.lanes))
        return tirx.For(self.lane, zero, end, tirx.ForKind.VECTORIZED, body)

    def _load(self, node: tvm.ir.TensorLoad, mask: tvm.ir.Expr) -> tvm.ir.Expr:
        array = self._array(str(node.ty))
        indices = self._vector_indices(node.indices)
        value = masked_load(f"{node.ty}x{self.lanes}", node.source, *indices, mask)
        self.loads.append(tirx.BufferStore(array, value, [self._ramp(0)]))
        return tirx.BufferLoad(array, [self.lane])

    def _own(self, node: tvm.ir.TensorLoad, in_branch: bool) -> tvm.ir.TensorLoad:
        """An array of the kernel is read as it is, if whole vectors fit into it.

        TVM makes it as small as the accesses that it knows allow; masked ones it does not know.
        """
        size = static_extent(node.source.shape[-1])
        self.refused |= in_branch or size is None or size % self.lanes != 0
        return node

    def _array(self, dtype: str) -> tirx.Buffer:
        array, declaration = stack_array(self.lanes, dtype, f"vector{len(self.declarations)}")
        self.declarations.append(declaration)
        return array

    def _ramp(self, first: Any) -> tvm.ir.Expr:
        dtype = str(self.lane.ty)
        base = tirx.const(first, dtype) if isinstance(first, int) else first
        return tirx.Ramp(base, tirx.const(1, dtype), self.lanes)

    def _vector_indices(self, indices: Sequence[tvm.ir.Expr]) -> list[tvm.ir.Expr]:
        *outer, last = indices
        across = any(depends(index, self.lane) for index in outer)
        self.refused |= across or slope(last, self.lane) != 1
        return [*outer, self._ramp(self._at_first_lane(last))]

    def _at_first_lane(self, expr: tvm.ir.Expr) -> tvm.ir.Expr:
        return substitute(expr, {self.lane: tirx.const(0, str(self.lane.ty))})

    def _mask(self, conditions: Sequence[tvm.ir.Expr]) -> tvm.ir.Expr:
        *rest, mask = [self._lanes_of(condition) for condition in conditions]
        for other in rest:
            mask = tirx.And(other, mask)
        return mask

    def _all_lanes(self, conditions: Sequence[tvm.ir.Expr]) -> tvm.ir.Expr | None:
        """What holds where all lanes do, of linear bounds: those that the first and last meet."""
        if not all(isinstance(part, _BOUNDS) for part in conditions):
            return None
        ends = [tirx.const(n, str(self.lane.ty)) for n in (0, self.lanes - 1)]
        bounds = [substitute(part, {self.lane: end}) for part in conditions for end in ends]
        return functools.reduce(tirx.And, bounds)

    def _lanes_of(self, expr: tvm.ir.Expr) -> tvm.ir.Expr:
        """The vector of what ``expr`` is in each lane."""
        if not depends(expr, self.lane):
            return tirx.Broadcast(expr, self.lanes)
        if isinstance(expr, tirx.Not):
            return tirx.Not(self._lanes_of(expr.a))
        if isinstance(expr, (tirx.And, tirx.Or, *COMPARISONS)):
            return type(expr)(self._lanes_of(expr.a), self._lanes_of(expr.b))
        step = slope(expr, self.lane)
        self.refused |= step is None
        stride = tirx.const(step or 0, str(expr.ty))
        return tirx.Ramp(self._at_first_lane(expr), stride, self.lanes)


def _divides_integers(value: tvm.ir.Expr) -> bool:
    """Whether integers are divided by anything but numbers, other than for an address."""
    found: list[Any] = []

    def look(node: Any) -> Any:
        if isinstance(node, tvm.ir.TensorLoad):
            return WalkResult.SKIP
        if isinstance(node, (tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod)):
            found.append(node)
        return None

    # By a number, which is never 0: the index of a loop that was fused with others.

    structural_walk(value, look, order="pre")
    return any("int" in str(node.ty) and static_extent(node.b) is None for node in found)
