"""Recognises kernels that combine a window of their input for each result: convolution, pooling."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import s_tir, tirx
from tvm.s_tir.schedule import SBlockRV

from tvm_ext.tir_schedules.block_access import static_extent
from tvm_ext.tir_schedules.inlining import (
    count_calls,
    inline_blocks,
    is_data_parallel,
    kernel_blocks,
    reduction_blocks,
)
from tvm_ext.tir_schedules.template import NotMine
from tvm_ext.tir_schedules.wafer.window_operands import Operand, has_positions, window_operands


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
    input : Operand
        What is read by windows.
    weights : Operand or None
        The largest other operand.
    """

    block: SBlockRV
    result: SBlockRV
    before: tuple[SBlockRV, ...]
    between: tuple[SBlockRV, ...]
    extents: tuple[int, ...]
    follows: tuple[int | None, ...]
    sums: tuple[int, ...]
    input: Operand
    weights: Operand | None

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


def window_sum_of(sch: s_tir.Schedule) -> WindowSum | NotMine:
    """What ``sch`` holds, after everything but padding was inlined."""
    inline_blocks(sch, keep=lambda block: _pads_a_sum(sch, block))
    for block in kernel_blocks(sch):
        if _pads_a_sum(sch, block):
            _inline_producers(sch, block)
    blocks, sums = kernel_blocks(sch), reduction_blocks(sch)
    if len(sums) != 1:
        return NotMine(f"{len(sums)} blocks sum; expected one sum over windows")
    if len(sch.get_output_blocks("root")) != 1:
        return NotMine("it has several results")
    position = next(i for i, one in enumerate(blocks) if _same(sch, one, sums[0]))
    block, result = blocks[position], blocks[-1]
    if sch.get(block).init is None:
        return NotMine("its sum has no start")
    between = tuple(blocks[position + 1 : -1])
    follows = _followed(sch, block, result, between)
    if isinstance(follows, NotMine):
        return follows
    operands = window_operands(sch, block, follows)
    if isinstance(operands, NotMine):
        return operands
    if operands[1] is None and not has_positions(sch, block, operands[0]):
        return NotMine("its window is the whole input")
    made = [one.padding for one in operands if one is not None and one.padding is not None]
    before = [one for one in blocks[:position] if not any(_same(sch, one, pad) for pad in made)]
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


def _same(sch: s_tir.Schedule, one: SBlockRV, other: SBlockRV) -> bool:
    return bool(sch.get(one).same_as(sch.get(other)))


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
) -> list[int | None] | NotMine:
    """For each spatial loop of the sum the result's loop that it follows."""
    for one in (block, result):
        refusal = _refusal(sch, one)
        if refusal is not None:
            return NotMine(refusal)
    written = sch.get(result).writes[0].region
    own = [v.var for v in sch.get(result).iter_vars if v.iter_type == tirx.IterVar.DataPar]
    if len(written) != len(own) or not all(
        d.min.same_as(v) for d, v in zip(written, own, strict=True)
    ):
        return NotMine("a result is not written in the order of its loops")
    loops: dict[Any, int | None] = {var: loop for loop, var in enumerate(own)}
    if result is block:
        return list(range(len(own)))
    for producer in (*reversed(between), block):
        found = _through(sch, producer, loops)
        if isinstance(found, NotMine):
            return found
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
) -> dict[Any, int | None] | NotMine:
    """The result's loops that the loops of ``producer`` follow, from where its result is read."""
    stmt = sch.get(producer)
    own = [v for v in stmt.iter_vars if v.iter_type == tirx.IterVar.DataPar]
    written = stmt.writes[0]
    if len(own) != len(written.region):
        return NotMine("a sum is not written in the order of its loops")
    found: dict[Any, int | None] = {}
    for consumer in sch.get_consumers(producer):
        region = next(r for r in sch.get(consumer).reads if r.source.same_as(written.source)).region
        for iter_var, dim in zip(own, region, strict=True):
            loop = next((p for var, p in loops.items() if var.same_as(dim.min)), None)
            single = static_extent(iter_var.dom.extent) == 1
            if (loop is None and not single) or static_extent(dim.extent) != 1:
                return NotMine("what follows the sum does not go element by element")
            if found.get(iter_var.var, loop) != loop:
                return NotMine("what follows the sum reads it in two ways")
            found[iter_var.var] = loop
    return found
