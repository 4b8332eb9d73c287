"""Reads a scan from loops: a value that is carried along one of them and combined at every step."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx
from tvm.sym import detect_linear_equation

from tvm_ext.tir_schedules.block_access import static_extent
from tvm_ext.tir_schedules.flat_views import FlatViews, flattened, nodes
from tvm_ext.tir_schedules.nest import substitute
from tvm_ext.tir_schedules.rows.row_kernel import Axis, product
from tvm_ext.tir_schedules.rows.row_reader import simplifier
from tvm_ext.tir_schedules.template import NotMine

# Operators in any order of which the result is the same, but for rounding.
_OPERATIONS = (tirx.Add, tirx.Mul, tirx.Max, tirx.Min)


@dataclass(frozen=True)
class ScanKernel:
    """``carried = operation(carried, term)`` along one axis, for every row.

    Attributes
    ----------
    rows : tuple[Axis, ...]
        The loops over independent scans, outermost first.
    position : Axis
        The loop along which the value is carried.
    carried : buffer
        What holds the value, one element.
    start : tvm.ir.Expr
        Its value in front of the first step.
    operation : type
        The class of the operator.
    term : tvm.ir.Expr
        What a step adds, in the variables of the axes.
    before, after : tuple[tirx.BufferStore, ...]
        Results that see the value without, and with, the term of their own position.
    strides : tuple[int, ...]
        By how much the address of the first result moves with each of the rows and the position.
    """

    rows: tuple[Axis, ...]
    position: Axis
    carried: Any
    start: Any
    operation: Any
    term: Any
    before: tuple[tirx.BufferStore, ...]
    after: tuple[tirx.BufferStore, ...]
    strides: tuple[int, ...]

    @property
    def count(self) -> int:
        """Number of scans."""
        return product(axis.extent for axis in self.rows)

    @property
    def length(self) -> int:
        """Steps of a scan."""
        return self.position.extent

    @property
    def dtype(self) -> str:
        """Of the carried value."""
        return str(self.carried.dtype)

    @property
    def index_dtype(self) -> str:
        """Of the variables of all loops."""
        return str(self.position.var.ty)

    @property
    def runs_across(self) -> bool:
        """Whether neighbours in memory belong to neighbouring scans, not to neighbouring steps."""
        *rows, position = self.strides
        return abs(position) != 1 and bool(rows) and rows[-1] == 1

    @property
    def identity(self) -> Any:
        """What the operation combines with any value without changing it."""
        if self.operation in (tirx.Max, tirx.Min):
            lowest = self.operation is tirx.Max
            if "float" in self.dtype:
                return tirx.const(-math.inf if lowest else math.inf, self.dtype)
            return (tirx.min_value if lowest else tirx.max_value)(self.dtype)
        return tirx.const(1 if self.operation is tirx.Mul else 0, self.dtype)


def scan_of(body: tirx.Stmt) -> ScanKernel | NotMine:
    """The scan that ``body``, loops without blocks, computes; or why it is none."""
    rows, inner = _nest(body)
    if not isinstance(inner, tirx.SeqStmt) or len(inner.seq) != 3:
        return NotMine("the kernel is no scan: it carries no value along a loop")
    alloc, first, loop = inner.seq
    if (
        not isinstance(alloc, tirx.AllocBuffer)
        or not isinstance(first, tirx.BufferStore)
        or not isinstance(loop, tirx.For)
        or not first.buffer.same_as(alloc.buffer)
    ):
        return NotMine("the kernel is no scan: it carries no value along a loop")
    axes = [_axis(one) for one in (*rows, loop)]
    if product(static_extent(size) or 0 for size in alloc.buffer.shape) != 1 or None in axes:
        return NotMine("the sizes of the scan are known in the run only, or nothing")
    *outer, position = [axis for axis in axes if axis is not None]
    return _of_steps(tuple(outer), position, alloc.buffer, first, loop.body)


def _of_steps(
    rows: tuple[Axis, ...], position: Axis, carried: Any, first: tirx.BufferStore, body: tirx.Stmt
) -> ScanKernel | NotMine:
    steps = list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]
    if not all(isinstance(step, tirx.BufferStore) for step in steps):
        return NotMine("a step of the scan holds more than stores")
    places = [i for i, step in enumerate(steps) if step.buffer.same_as(carried)]
    if len(places) != 1 or len(steps) < 2:
        return NotMine("the carried value changes several times in a step")
    (at,) = places
    update = steps[at].value
    sides = (update.a, update.b) if isinstance(update, _OPERATIONS) else ()
    terms = [side for side in sides if not _loads(side, carried)]
    if len(terms) != 1 or not all(_is_load(s, carried) or s.same_as(terms[0]) for s in sides):
        return NotMine("the carried value is not combined by one operator of any order")
    stores = [*steps[:at], *steps[at + 1 :]]
    written = [store.buffer for store in stores]
    if any(_loads(part, buffer) for part in (terms[0], first.value) for buffer in written):
        return NotMine("the scan reads what it writes")
    found = [_strides(store, [*rows, position]) for store in stores]
    if any(not _one_to_one(strides, [*rows, position]) for strides in found):
        return NotMine("results of the scan are not one element for each step")
    simplify = simplifier([*rows, position])
    return ScanKernel(
        rows,
        position,
        carried,
        first.value,
        type(update),
        simplify(terms[0]),
        tuple(steps[:at]),
        tuple(steps[at + 1 :]),
        tuple(found[0] or ()),
    )


def _nest(body: tirx.Stmt) -> tuple[list[tirx.For], tirx.Stmt]:
    loops: list[tirx.For] = []
    while isinstance(body, tirx.For):
        if static_extent(body.extent) == 1:
            body = substitute(body.body, {body.loop_var: body.min})
            continue
        loops.append(body)
        body = body.body
    return loops, body


def _axis(loop: tirx.For) -> Axis | None:
    extent = static_extent(loop.extent)
    return Axis(loop.loop_var, extent) if extent and static_extent(loop.min) == 0 else None


def _is_load(value: Any, buffer: Any) -> bool:
    return isinstance(value, tvm.ir.TensorLoad) and value.source.same_as(buffer)


def _loads(value: Any, buffer: Any) -> bool:
    return any(load.source.same_as(buffer) for load in nodes(value, tvm.ir.TensorLoad))


def _strides(store: tirx.BufferStore, axes: Sequence[Axis]) -> list[int] | None:
    """Elements by which a result's address moves with each axis."""
    own = tirx.BufferStore(store.buffer, tirx.const(0, str(store.buffer.dtype)), store.indices)
    flat = flattened(own, FlatViews())
    if flat is None:
        return None
    address = simplifier(axes)(flat.indices[0])
    found = []
    for axis in axes:
        linear = detect_linear_equation(address, [axis.var])
        step = static_extent(linear[0]) if len(linear) == 2 else None
        if step is None:
            return None
        found.append(step)
    return found


def _one_to_one(strides: list[int] | None, axes: Sequence[Axis]) -> bool:
    """Whether every combination of steps has an address of its own."""
    if strides is None:
        return False
    reach = 1
    for stride, axis in sorted(zip(strides, axes, strict=True), key=lambda pair: abs(pair[0])):
        if axis.extent > 1 and abs(stride) < reach:
            return False
        reach += abs(stride) * (axis.extent - 1)
    return True
