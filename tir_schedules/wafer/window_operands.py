"""The tensors that a sum over windows reads, and how far its loops move in them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.s_tir.schedule import SBlockRV
from tvm.sym import Analyzer

from tvm_ext.tir_schedules.block_access import constant_parameter, operands_of, static_extent
from tvm_ext.tir_schedules.flat_views import nodes
from tvm_ext.tir_schedules.nest import slope, substitute
from tvm_ext.tir_schedules.template import NotMine


@dataclass(frozen=True)
class Dimension:
    """One dimension of an operand, and what its index moves with.

    Attributes
    ----------
    size : int
        Of the tensor.
    index : Expr
        In the iteration variables of the sum.
    results, sums : Mapping[int, tirx.Var]
        The variables that move it, by the position of the result's loop, and of the summed one.
    """

    size: int
    index: Any
    results: Mapping[int, Any]
    sums: Mapping[int, Any]

    def span(self, tiles: Sequence[int], sums: Sequence[int]) -> int:
        """Elements from the first to the last that these iterations of the loops read."""
        moved = sum(self._moved(var, tiles[loop] - 1) for loop, var in self.results.items())
        moved += sum(self._moved(var, sums[loop] - 1) for loop, var in self.sums.items())
        return min(self.size, moved + 1)

    def advance(self, loop: int, count: int) -> int:
        """Elements from the first of ``count`` iterations of a result's loop to the next such."""
        return self._moved(self.results[loop], count)

    def _moved(self, var: Any, iterations: int) -> int:
        step = slope(self.index, var)
        if step is not None:
            return abs(step * iterations)
        # Groups of channels: a division, which is not linear.
        zero = {one: _constant(0, one) for one in (*self.results.values(), *self.sums.values())}
        first, last = (
            substitute(self.index, {**zero, var: _constant(at, var)}) for at in (0, iterations)
        )
        return abs(static_extent(Analyzer().simplify(last - first)) or 0)


def _constant(value: int, like: Any) -> Any:
    return tirx.const(value, str(like.ty))


@dataclass(frozen=True)
class Operand:
    """A parameter that is summed over.

    Attributes
    ----------
    buffer : Any
        The parameter.
    dims : tuple[Dimension, ...]
        Its dimensions.
    is_constant : bool
        Whether it is the same in every call.
    padding : SBlockRV or None
        The block that copies it with a border, or in another form, for the sum to read.
    """

    buffer: Any
    dims: tuple[Dimension, ...]
    is_constant: bool = False
    padding: SBlockRV | None = None

    @property
    def element_bytes(self) -> int:
        """Bytes of one element."""
        return max(1, tvm.DataType(str(self.buffer.dtype)).bits // 8)

    def is_moved_by(self, loop: int) -> bool:
        """Whether a loop of the result moves it."""
        return any(loop in dim.results for dim in self.dims)


def window_operands(
    sch: s_tir.Schedule, block: SBlockRV, follows: Sequence[int | None]
) -> tuple[Operand, Operand | None] | NotMine:
    """What is read by windows, and the largest of the rest."""
    stmt = sch.get(block)
    windowed: list[Operand] = []
    others: list[Operand] = []
    for region in operands_of(stmt):
        operand = _operand(sch, block, region, follows)
        if operand is None:
            continue
        slides = any(_slides(dim.min, stmt) for dim in region.region)
        (windowed if slides else others).append(operand)
    if len(windowed) != 1:
        return NotMine(f"{len(windowed)} tensors are read by windows; expected one")
    sizes = [(len(one.dims), number) for number, one in enumerate(others)]
    return windowed[0], others[max(sizes)[1]] if sizes else None


def has_positions(sch: s_tir.Schedule, block: SBlockRV, operand: Operand) -> bool:
    """Whether a window has more than one position."""
    extents = {v.var: static_extent(v.dom.extent) for v in sch.get(block).iter_vars}
    slid = [dim for dim in operand.dims if dim.sums and dim.results]
    return any(extents[var] != 1 for dim in slid for var in dim.results.values())


def _operand(
    sch: s_tir.Schedule, block: SBlockRV, region: Any, follows: Sequence[int | None]
) -> Operand | None:
    """The parameter behind what the sum reads; None if it is computed from several."""
    stmt = sch.get(block)
    buffer, indices = region.source, [dim.min for dim in region.region]
    padding = None
    producers = [
        one for one in sch.get_producers(block) if sch.get(one).writes[0].source.same_as(buffer)
    ]
    if producers:
        padding = producers[0]
        made = sch.get(padding)
        loads = nodes(made.body, tvm.ir.TensorLoad)
        if len(loads) != 1 or len(made.iter_vars) != len(indices):
            return None
        names = {v.var: index for v, index in zip(made.iter_vars, indices, strict=True)}
        buffer, indices = loads[0].source, [substitute(i, names) for i in loads[0].indices]
    func = sch.mod["main"]
    if not any(buffer.same_as(one) for one in func.params):
        return None
    dims = [
        _dimension(static_extent(size) or 1, index, stmt, follows)
        for size, index in zip(buffer.shape, indices, strict=True)
    ]
    known = all(dim is not None for dim in dims)
    if not known:
        return None
    is_constant = constant_parameter(func, buffer) is not None
    return Operand(buffer, tuple(d for d in dims if d is not None), is_constant, padding)


def _dimension(size: int, index: Any, stmt: Any, follows: Sequence[int | None]) -> Dimension | None:
    """None where an index depends on data."""
    used = nodes(index, tvm.ir.Var)
    results: dict[int, Any] = {}
    sums: dict[int, Any] = {}
    spatial, summed = 0, 0
    for iter_var in stmt.iter_vars:
        moves = any(iter_var.var.same_as(var) for var in used)
        if iter_var.iter_type == tirx.IterVar.DataPar:
            loop = follows[spatial]
            if moves and loop is not None:
                results[loop] = iter_var.var
            spatial += 1
        else:
            if moves:
                sums[summed] = iter_var.var
            summed += 1
    depends_on_data = nodes(index, tvm.ir.TensorLoad)
    return None if depends_on_data else Dimension(size, index, results, sums)


def _slides(index: Any, stmt: Any) -> bool:
    """Whether an index moves with the result and along a sum at once."""
    used = nodes(index, tvm.ir.Var)
    kinds = {v.iter_type for v in stmt.iter_vars if any(v.var.same_as(var) for var in used)}
    return len(kinds) > 1
