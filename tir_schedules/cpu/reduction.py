"""Reductions over any axes, with what comes before and after for the same output element."""

import math
from dataclasses import dataclass

import tvm
from tvm import s_tir, tirx
from tvm.s_tir.schedule import LoopRV, SBlockRV, ScheduleError

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.tir_schedules.analysis.buffer_access import (
    kernel_blocks,
    reduction_blocks,
    schedule_of,
)
from tvm_ext.tir_schedules.analysis.row_kernel import (
    RowKernel,
    is_reduction_only,
    with_joined_loops,
)
from tvm_ext.tir_schedules.analysis.row_reader import (
    PRODUCT,
    hoisted,
    read_rows,
    refuse_early,
    refuse_rows,
)
from tvm_ext.tir_schedules.cpu.parallel_vectorize import distinct, largest_divisor, worth_threads
from tvm_ext.tir_schedules.cpu.row_code import rows_nest, with_body
from tvm_ext.tir_schedules.cpu.row_decision import (
    decide_rows,
    is_symbolic,
    operations,
    refuse_symbolic,
)
from tvm_ext.tir_schedules.inlining import inlined_schedule
from tvm_ext.tir_schedules.reducers import rfactor
from tvm_ext.tir_schedules.statements import sequence
from tvm_ext.tir_schedules.template import DEFAULT_DECISIONS, Decisions


@dataclass
class CpuReduction:
    """Sums, means, extrema, positions of extrema, variances, global pooling.

    Attributes
    ----------
    products : bool
        Whether it takes matmuls and GEMVs as well, for which other templates are to be asked
        first.
    """

    products: bool = False
    name: str = "reduction"
    machine_type = CpuDescription

    def apply(
        self, func: tirx.PrimFunc, machine: CpuDescription, decisions: Decisions
    ) -> s_tir.Schedule:
        """See ``Template.apply``."""
        refuse_early(schedule_of(func))
        sch = inlined_schedule(func)
        blocks = [sch.get(block) for block in kernel_blocks(sch)]
        kernel = read_rows(blocks, func.params, symbolic_rows=True, symbolic_columns=True)
        if not is_reduction_only(kernel):
            raise NotApplicable("a block works on every element of a reduced row")
        self._refuse(kernel)
        refuse_symbolic(kernel)
        parts = 1 if is_symbolic(kernel) else decide_parts(sch, kernel, machine, decisions)
        kernels, between = _in_parts(sch, func, parts) or ([kernel], [])
        # Joined loops are right in flat addresses only, to which TVM cuts arrays of the kernel.
        join = all(len(buffer.shape) <= 1 for buffer in between)
        stages = [hoisted(with_joined_loops(stage) if join else stage) for stage in kernels]
        # What combines partial results is small.
        nests = [
            rows_nest(stage, decide_rows(stage, machine, asked))
            for stage, asked in zip(stages, (decisions, DEFAULT_DECISIONS), strict=False)
        ]
        return s_tir.Schedule(with_body(func, sequence(nests), between))

    def _refuse(self, kernel: RowKernel) -> None:
        try:
            refuse_rows(kernel, most_mixed=0)
        except NotApplicable as refusal:
            if not self.products or refusal.reason != PRODUCT:
                raise


def decide_parts(
    sch: s_tir.Schedule, kernel: RowKernel, machine: CpuDescription, decisions: Decisions
) -> int:
    """Into how many parts each row is cut for threads, or a few more; 1 for none.

    The default heuristic: rows are cut when they alone do not occupy all cores. Asks for other
    ``parts`` where there are few rows; how these run is then asked for the parts of rows.
    """
    rows = decide_rows(kernel, machine)
    tiles = kernel.count
    if rows.across:
        tiles = -(-tiles // (rows.lanes * min(rows.registers, 8)))
    length = _reduced_length(sch)

    def cut(parts: int) -> int:
        return _cut(length, parts)

    cores = machine.cores
    work = operations(kernel, rows.across, rows.lanes)
    few = tiles < cores and worth_threads(machine, work, rows.lanes)
    default = cores if few and cut(cores) > 1 else 1
    counts = [n * cores for n in (1, 2, 4)] if cores > 1 and tiles < 2 * cores else []
    fitting = [n for n in counts if cut(n) > 1 and length >= n * rows.lanes]
    return decisions.pick("parts", distinct([1, *fitting], default, cut), default)


def _in_parts(
    sch: s_tir.Schedule, func: tirx.PrimFunc, parts: int
) -> tuple[list[RowKernel], list[tvm.ir.Var]] | None:
    """Partial results of parts of the rows, then their combination; and where the former wait."""
    partial = _partial(sch, reduction_blocks(sch)[0], parts) if parts > 1 else None
    if partial is None:
        return None
    stmts = [sch.get(block) for block in kernel_blocks(sch)]
    stage = next(i for i, s in enumerate(stmts) if s.same_as(sch.get(partial))) + 1
    between = [write.source for write in sch.get(partial).writes]
    outside = [*func.params, *between]
    try:
        return [read_rows(part, outside) for part in (stmts[:stage], stmts[stage:])], between
    except NotApplicable:
        return None


def _reduced_length(sch: s_tir.Schedule) -> int:
    """Steps of the only reduction; 1 when it is not the only one."""
    reductions = reduction_blocks(sch)
    pairs = _loops_and_kinds(sch, reductions[0]) if len(reductions) == 1 else []
    reducing = [loop for loop, kind in pairs if kind == tirx.IterVar.CommReduce]
    return math.prod(int(sch.get(loop).extent) for loop in reducing)


def _cut(length: int, parts: int) -> int:
    """In how many equal parts a row of ``length`` is cut for ``parts`` or a few more; or 1."""
    count = largest_divisor(length, 4 * parts)
    return count if count >= parts else 1


def _loops_and_kinds(sch: s_tir.Schedule, block: SBlockRV) -> list[tuple[LoopRV, int]]:
    """The loops of a block with the kind of iteration of each; none where they are not one each."""
    loops = list(sch.get_loops(block))
    kinds = [iter_var.iter_type for iter_var in sch.get(block).iter_vars]
    return list(zip(loops, kinds, strict=True)) if len(loops) == len(kinds) else []


def _partial(sch: s_tir.Schedule, block: SBlockRV, parts: int) -> SBlockRV | None:
    """Cuts the loops that reduce into ``parts``, or a few more."""
    pairs = _loops_and_kinds(sch, block)
    reducing = [loop for loop, kind in pairs if kind == tirx.IterVar.CommReduce]
    sch.reorder(*(loop for loop, kind in pairs if kind == tirx.IterVar.DataPar), *reducing)
    fused = sch.fuse(*reducing) if len(reducing) > 1 else reducing[0]
    count = _cut(int(sch.get(fused).extent), parts)
    for other in kernel_blocks(sch):
        if not sch.get_loops(other):
            # TVM cannot put the partial results before a block without a loop.
            sch.add_unit_loop(other)
    outer, _ = sch.split(fused, factors=[count, None])
    try:
        return rfactor(sch, block, outer, 0)
    except ScheduleError:
        return None
