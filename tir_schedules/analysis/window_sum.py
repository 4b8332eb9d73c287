"""Recognises kernels that combine a window of their input for each result: convolution, pooling."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.s_tir.schedule import SBlockRV
from tvm.sym import Analyzer

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.tir_schedules.analysis.buffer_access import (
    among,
    constant_parameter,
    count_calls,
    depends,
    element_bytes,
    is_data_parallel,
    kernel_blocks,
    nodes,
    operands_of,
    reduction_blocks,
    same_block,
    slope,
    static_extent,
    writer_of,
)
from tvm_ext.tir_schedules.analysis.loop_nest import substitute
from tvm_ext.tir_schedules.inlining import inline_blocks

# The tensors that a sum over windows reads, and how far its loops move in them.


@dataclass(frozen=True)
class OperandDimension:
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
    index: tvm.ir.Expr
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

    def _moved(self, var: tirx.Var, iterations: int) -> int:
        step = slope(self.index, var)
        if step is not None:
            return abs(step * iterations)
        # Groups of channels: a division, which is not linear.
        zero = {one: _constant(0, one) for one in (*self.results.values(), *self.sums.values())}
        first, last = (
            substitute(self.index, {**zero, var: _constant(at, var)}) for at in (0, iterations)
        )
        return abs(static_extent(Analyzer().simplify(last - first)) or 0)


def _constant(value: int, like: tvm.ir.Expr) -> tvm.ir.Expr:
    return tirx.const(value, str(like.ty))


@dataclass(frozen=True)
class WindowOperand:
    """A parameter that is summed over.

    Attributes
    ----------
    buffer : Any
        The parameter.
    dims : tuple[OperandDimension, ...]
        Its dimensions.
    is_constant : bool
        Whether it is the same in every call.
    padding : SBlockRV or None
        The block that copies it with a border, or in another form, for the sum to read.
    """

    buffer: tirx.Buffer
    dims: tuple[OperandDimension, ...]
    is_constant: bool = False
    padding: SBlockRV | None = None

    @property
    def element_bytes(self) -> int:
        """Bytes of one element."""
        return element_bytes(self.buffer)

    def is_moved_by(self, loop: int) -> bool:
        """Whether a loop of the result moves it."""
        return any(loop in dim.results for dim in self.dims)


def window_operands(
    sch: s_tir.Schedule, block: SBlockRV, follows: Sequence[int | None]
) -> tuple[WindowOperand, WindowOperand | None]:
    """What is read by windows, and the largest of the rest. Raises NotApplicable."""
    stmt = sch.get(block)
    windowed: list[WindowOperand] = []
    others: list[WindowOperand] = []
    for region in operands_of(stmt):
        operand = _operand(sch, block, region, follows)
        if operand is None:
            continue
        slides = any(_slides(dim.min, stmt) for dim in region.region)
        (windowed if slides else others).append(operand)
    if len(windowed) != 1:
        raise NotApplicable(f"{len(windowed)} tensors are read by windows; expected one")
    sizes = [(len(one.dims), number) for number, one in enumerate(others)]
    return windowed[0], others[max(sizes)[1]] if sizes else None


def has_positions(sch: s_tir.Schedule, block: SBlockRV, operand: WindowOperand) -> bool:
    """Whether a window has more than one position."""
    extents = {v.var: static_extent(v.dom.extent) for v in sch.get(block).iter_vars}
    slid = [dim for dim in operand.dims if dim.sums and dim.results]
    return any(extents[var] != 1 for dim in slid for var in dim.results.values())


def _operand(
    sch: s_tir.Schedule, block: SBlockRV, region: tvm.ir.TensorRegion, follows: Sequence[int | None]
) -> WindowOperand | None:
    """The parameter behind what the sum reads; None if it is computed from several."""
    stmt = sch.get(block)
    buffer, indices = region.source, [dim.min for dim in region.region]
    padding = writer_of(sch, block, buffer)
    if padding is not None:
        made = sch.get(padding)
        loads = nodes(made.body, tvm.ir.TensorLoad)
        if len(loads) != 1 or len(made.iter_vars) != len(indices):
            return None
        names = {v.var: index for v, index in zip(made.iter_vars, indices, strict=True)}
        buffer, indices = loads[0].source, [substitute(i, names) for i in loads[0].indices]
    func = sch.mod["main"]
    if not among(buffer, func.params):
        return None
    dims = [
        _dimension(static_extent(size) or 1, index, stmt, follows)
        for size, index in zip(buffer.shape, indices, strict=True)
    ]
    known = all(dim is not None for dim in dims)
    if not known:
        return None
    is_constant = constant_parameter(func, buffer) is not None
    return WindowOperand(buffer, tuple(d for d in dims if d is not None), is_constant, padding)


def _dimension(
    size: int, index: tvm.ir.Expr, stmt: s_tir.SBlock, follows: Sequence[int | None]
) -> OperandDimension | None:
    """None where an index depends on data."""
    results: dict[int, Any] = {}
    sums: dict[int, Any] = {}
    spatial, summed = 0, 0
    for iter_var in stmt.iter_vars:
        moves = depends(index, iter_var.var)
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
    return None if depends_on_data else OperandDimension(size, index, results, sums)


def _slides(index: tvm.ir.Expr, stmt: s_tir.SBlock) -> bool:
    """Whether an index moves with the result and along a sum at once."""
    kinds = {v.iter_type for v in stmt.iter_vars if depends(index, v.var)}
    return len(kinds) > 1


@dataclass(frozen=True)
class WindowSum:
    """A kernel with one sum (or maximum) over windows of one input.

    Attributes
    ----------
    block : SBlockRV
        The block that sums.
    result : SBlockRV
        The block that writes the kernel's result; ``block`` itself if nothing follows it.
    before, between : tuple[SBlockRV, ...]
        Blocks before the sum that are not an operand's ``padding``, and between it and the result,
        in program order.
    extents : tuple[int, ...]
        Of the result's loops.
    follows : tuple[int | None, ...]
        For each loop of the sum that is not summed, the result's loop with the same iterations;
        None for one with a single iteration, whose result is read by all.
    sums : tuple[int, ...]
        Extents of the summed loops, in order.
    input : WindowOperand
        What is read by windows.
    weights : WindowOperand or None
        The largest other operand.
    """

    block: SBlockRV
    result: SBlockRV
    before: tuple[SBlockRV, ...]
    between: tuple[SBlockRV, ...]
    extents: tuple[int, ...]
    follows: tuple[int | None, ...]
    sums: tuple[int, ...]
    input: WindowOperand
    weights: WindowOperand | None

    @property
    def ends_in_sum(self) -> bool:
        """Whether nothing follows the sum."""
        return self.result is self.block

    @property
    def channels(self) -> int | None:
        """The longest summed loop along which no window slides; None where there is none."""
        moved = [dim for dim in self.input.dims if len(dim.sums) == 1 and not dim.results]
        loops = [loop for dim in moved for loop in dim.sums if self.sums[loop] > 1]
        return max(loops, key=lambda loop: self.sums[loop], default=None)


def window_sum_of(sch: s_tir.Schedule) -> WindowSum:
    """What ``sch`` holds, all but padding inlined. Raises NotApplicable where it is no such sum."""
    inline_blocks(sch, keep=lambda block: _pads_a_sum(sch, block))
    for block in kernel_blocks(sch):
        if _pads_a_sum(sch, block):
            _inline_producers(sch, block)
    blocks, sums = kernel_blocks(sch), reduction_blocks(sch)
    if len(sums) != 1:
        raise NotApplicable(f"{len(sums)} blocks sum; expected one sum over windows")
    if len(sch.get_output_blocks("root")) != 1:
        raise NotApplicable("it has several results")
    position = next(i for i, one in enumerate(blocks) if same_block(sch, one, sums[0]))
    block, result = blocks[position], blocks[-1]
    if sch.get(block).init is None:
        raise NotApplicable("its sum has no start")
    between = tuple(blocks[position + 1 : -1])
    follows = _followed(sch, block, result, between)
    operands = window_operands(sch, block, follows)
    if operands[1] is None and not has_positions(sch, block, operands[0]):
        raise NotApplicable("its window is the whole input")
    made = [one.padding for one in operands if one is not None and one.padding is not None]
    before = [
        one for one in blocks[:position] if not any(same_block(sch, one, pad) for pad in made)
    ]
    return WindowSum(
        block,
        result,
        tuple(before),
        between,
        tuple(_extents(sch, result, tirx.IterVar.DataPar)),
        tuple(follows),
        tuple(_extents(sch, block, tirx.IterVar.CommReduce)),
        *operands,
    )


def _pads_a_sum(sch: s_tir.Schedule, block: SBlockRV) -> bool:
    """Whether a block branches, and a sum reads it: inlined, it would branch for each element."""
    consumers = sch.get_consumers(block)
    serial = any(not is_data_parallel(sch, consumer) for consumer in consumers)
    return serial and count_calls(sch.get(block).body) > 0


def _inline_producers(sch: s_tir.Schedule, padding: SBlockRV) -> None:
    """Makes one copy of two: of one that spreads elements apart, and one that pads them."""
    for producer in sch.get_producers(padding):
        if len(sch.get_consumers(producer)) == 1 and is_data_parallel(sch, producer):
            _inline_producers(sch, producer)
            sch.compute_inline(producer)


def _extents(sch: s_tir.Schedule, block: SBlockRV, kind: int) -> list[int]:
    found = [v.dom.extent for v in sch.get(block).iter_vars if v.iter_type == kind]
    return [static_extent(extent) or 0 for extent in found]


def _followed(
    sch: s_tir.Schedule, block: SBlockRV, result: SBlockRV, between: Sequence[SBlockRV]
) -> list[int | None]:
    """For each spatial loop of the sum the result's loop that it follows."""
    for one in (block, result):
        refusal = _refusal(sch, one)
        if refusal is not None:
            raise NotApplicable(refusal)
    written = sch.get(result).writes[0].region
    own = [v.var for v in sch.get(result).iter_vars if v.iter_type == tirx.IterVar.DataPar]
    if len(written) != len(own) or not all(
        d.min.same_as(v) for d, v in zip(written, own, strict=True)
    ):
        raise NotApplicable("a result is not written in the order of its loops")
    loops: dict[Any, int | None] = {var: loop for loop, var in enumerate(own)}
    if result is block:
        return list(range(len(own)))
    for producer in (*reversed(between), block):
        found = _through(sch, producer, loops)
        loops.update(found)
    return [loops[v.var] for v in sch.get(block).iter_vars if v.iter_type == tirx.IterVar.DataPar]


def _refusal(sch: s_tir.Schedule, block: SBlockRV) -> str | None:
    """Why the loops of a block are not those of results, with the sums behind them."""
    iter_vars = list(sch.get(block).iter_vars)
    kinds = [v.iter_type for v in iter_vars]
    if len(sch.get_loops(block)) != len(kinds) or not kinds:
        return "a block has other loops than iteration variables"
    if not set(kinds) <= {tirx.IterVar.DataPar, tirx.IterVar.CommReduce}:
        return "a loop is neither parallel nor a sum"
    spatial = kinds.count(tirx.IterVar.DataPar)
    if tirx.IterVar.CommReduce in kinds[:spatial]:
        return "its sums are outside of its results"
    if not all(static_extent(v.dom.extent) for v in iter_vars):
        return "an extent is not known, or nothing"
    return None


def _through(
    sch: s_tir.Schedule, producer: SBlockRV, loops: Mapping[Any, int | None]
) -> dict[Any, int | None]:
    """The result's loops that the loops of ``producer`` follow, from where its result is read."""
    stmt = sch.get(producer)
    own = [v for v in stmt.iter_vars if v.iter_type == tirx.IterVar.DataPar]
    written = stmt.writes[0]
    if len(own) != len(written.region):
        raise NotApplicable("a sum is not written in the order of its loops")
    found: dict[Any, int | None] = {}
    for consumer in sch.get_consumers(producer):
        region = next(r for r in sch.get(consumer).reads if r.source.same_as(written.source)).region
        for iter_var, dim in zip(own, region, strict=True):
            loop = next((p for var, p in loops.items() if var.same_as(dim.min)), None)
            single = static_extent(iter_var.dom.extent) == 1
            if (loop is None and not single) or static_extent(dim.extent) != 1:
                raise NotApplicable("what follows the sum does not go element by element")
            if found.get(iter_var.var, loop) != loop:
                raise NotApplicable("what follows the sum reads it in two ways")
            found[iter_var.var] = loop
    return found
