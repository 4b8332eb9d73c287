"""Reductions over any axes, with what comes before and after for the same output element."""

from dataclasses import dataclass

from tvm import s_tir, tirx
from tvm.s_tir.schedule import SBlockRV, ScheduleError

from tvm_ext.hardware.description import CpuDescription
from tvm_ext.tir_schedules.llvm.inlining import inline_blocks, is_data_parallel, kernel_blocks
from tvm_ext.tir_schedules.llvm.loop_nest import largest_divisor, worth_threads
from tvm_ext.tir_schedules.llvm.row_code import sequence, with_body
from tvm_ext.tir_schedules.llvm.row_decision import (
    RowDecision,
    decide_rows,
    is_reduction_only,
    operations,
)
from tvm_ext.tir_schedules.llvm.row_hoist import hoisted
from tvm_ext.tir_schedules.llvm.row_kernel import RowKernel
from tvm_ext.tir_schedules.llvm.row_nest import rows_nest
from tvm_ext.tir_schedules.llvm.row_reader import read_rows
from tvm_ext.tir_schedules.llvm.row_refusals import PRODUCT, refuse_early, refuse_rows
from tvm_ext.tir_schedules.template import Machine, NotMine


@dataclass(frozen=True)
class ReductionDecision:
    """How a reduction runs.

    Attributes
    ----------
    rows : RowDecision
        How the elements that are reduced to one result, and those results, run.
    parts : int
        Into how many parts each row is cut for threads, when there are too few rows for them; the
        partial results are combined afterwards. 1 for none.
    """

    rows: RowDecision
    parts: int


@dataclass
class Reduction:
    """Sums, means, extrema, positions of extrema, variances, global pooling.

    Attributes
    ----------
    products : bool
        Whether it takes products of matrices and vectors as well, for which other templates are to
        be asked first.
    """

    products: bool = False
    name: str = "reduction"

    def apply(
        self, func: tirx.PrimFunc, machine: Machine, decision: ReductionDecision | None = None
    ) -> s_tir.Schedule | NotMine:
        """See ``Template.apply``; without ``decision`` it is ``decide_reduction``."""
        if not isinstance(machine, CpuDescription):
            return NotMine("the target is not a CPU")
        sch = s_tir.Schedule(func)
        refusal = refuse_early(sch)
        if refusal is not None:
            return refusal
        inline_blocks(sch)
        kernel = read_rows([sch.get(block) for block in kernel_blocks(sch)], func.params)
        if isinstance(kernel, NotMine):
            return kernel
        if not is_reduction_only(kernel):
            return NotMine("a block works on every element of a reduced row")
        refusal = self._refuse(kernel)
        if refusal is not None:
            return refusal
        decision = decision or decide_reduction(kernel, machine)
        if decision.parts > 1:
            scheduled = _in_parts(sch, func, machine, decision)
            if scheduled is not None:
                return scheduled
        nest = rows_nest(hoisted(kernel), decision.rows)
        return s_tir.Schedule(with_body(func, nest))

    def _refuse(self, kernel: RowKernel) -> NotMine | None:
        refusal = refuse_rows(kernel, most_mixed=0)
        return None if self.products and refusal is PRODUCT else refusal


def decide_reduction(kernel: RowKernel, machine: CpuDescription) -> ReductionDecision:
    """The closed-form choice: rows are cut when they alone do not occupy all cores."""
    rows = decide_rows(kernel, machine)
    tiles = kernel.count
    if rows.across:
        tiles = -(-tiles // (rows.lanes * min(rows.registers, 8)))
    work = operations(kernel, rows.across, rows.lanes)
    few = tiles < machine.cores and worth_threads(machine, work, rows.lanes)
    return ReductionDecision(rows, machine.cores if few else 1)


def _in_parts(
    sch: s_tir.Schedule, func: tirx.PrimFunc, machine: CpuDescription, decision: ReductionDecision
) -> s_tir.Schedule | None:
    """Partial results of parts of the rows on threads, then their combination."""
    blocks = kernel_blocks(sch)
    reductions = [block for block in blocks if not is_data_parallel(sch, block)]
    partial = _partial(sch, reductions[0], decision.parts) if len(reductions) == 1 else None
    if partial is None:
        return None
    stmts = [sch.get(block) for block in kernel_blocks(sch)]
    stage = next(i for i, s in enumerate(stmts) if s.same_as(sch.get(partial))) + 1
    between = [write.source for write in sch.get(partial).writes]
    outside = [*func.params, *between]
    nests = []
    for part in (stmts[:stage], stmts[stage:]):
        kernel = read_rows(part, outside)
        if isinstance(kernel, NotMine):
            return None
        rows = decide_rows(kernel, machine)
        nests.append(rows_nest(hoisted(kernel), rows))
    return s_tir.Schedule(with_body(func, sequence(nests), between))


def _partial(sch: s_tir.Schedule, block: SBlockRV, parts: int) -> SBlockRV | None:
    """Cuts the loops that reduce into ``parts``, or a few more; None where they do not divide."""
    loops = list(sch.get_loops(block))
    kinds = [iter_var.iter_type for iter_var in sch.get(block).iter_vars]
    if len(loops) != len(kinds):
        return None
    pairs = list(zip(loops, kinds, strict=True))
    reducing = [loop for loop, kind in pairs if kind == tirx.IterVar.CommReduce]
    sch.reorder(*(loop for loop, kind in pairs if kind == tirx.IterVar.DataPar), *reducing)
    fused = sch.fuse(*reducing) if len(reducing) > 1 else reducing[0]
    count = largest_divisor(int(sch.get(fused).extent), 4 * parts)
    if count < parts:
        return None
    for other in kernel_blocks(sch):
        if not sch.get_loops(other):
            # TVM cannot put the partial results before a block without a loop.
            sch.add_unit_loop(other)
    outer, _ = sch.split(fused, factors=[count, None])
    try:
        return sch.rfactor(outer, 0)
    except ScheduleError:
        return None
