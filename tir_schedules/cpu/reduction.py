"""Reductions over any axes, with what comes before and after for the same output element."""

from dataclasses import dataclass

from tvm import s_tir, tirx

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.tir_schedules.analysis.buffer_access import kernel_blocks, schedule_of
from tvm_ext.tir_schedules.analysis.row_kernel import (
    RowKernel,
    is_reduction_only,
    with_joined_loops,
    with_plain_addresses,
)
from tvm_ext.tir_schedules.analysis.row_parts import split_rows
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
        parts = 1 if is_symbolic(kernel) else decide_parts(kernel, machine, decisions)
        kernels = _in_parts(kernel, parts)
        between = [store.buffer for stage in kernels[:-1] for store in stage.blocks[-1].stores]
        stages = [hoisted(with_joined_loops(stage)) for stage in kernels]
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


def decide_parts(kernel: RowKernel, machine: CpuDescription, decisions: Decisions) -> int:
    """Into how many parts each row is cut for threads, or a few more; 1 for none.

    The default heuristic: rows are cut when they alone do not occupy all cores. Asks for other
    ``parts`` where there are few rows; how these run is then asked for the parts of rows.
    """
    rows = decide_rows(kernel, machine)
    tiles = kernel.count
    if rows.across:
        tiles = -(-tiles // (rows.lanes * min(rows.registers, 8)))
    length = _reduced_length(kernel)

    def cut(parts: int) -> int:
        return _cut(length, parts)

    cores = machine.cores
    work = operations(kernel, rows.across, rows.lanes)
    few = tiles < cores and worth_threads(machine, work, rows.lanes)
    default = cores if few and cut(cores) > 1 else 1
    counts = [n * cores for n in (1, 2, 4)] if cores > 1 and tiles < 2 * cores else []
    fitting = [n for n in counts if cut(n) > 1 and length >= n * rows.lanes]
    return decisions.pick("parts", distinct([1, *fitting], default, cut), default)


def _in_parts(kernel: RowKernel, parts: int) -> list[RowKernel]:
    """What gives partial results of parts of the rows, and what combines them; or the kernel."""
    count = _cut(_reduced_length(kernel), parts) if parts > 1 else 1
    try:
        split = split_rows(kernel, count, parts_first=True) if count > 1 else [kernel]
    except NotApplicable:
        return [kernel]
    return [with_plain_addresses(stage) for stage in split]


def _reduced_length(kernel: RowKernel) -> int:
    """Steps of the only reduction; 1 when it is not the only one."""
    reductions = [block for block in kernel.blocks if block.starts]
    return int(reductions[0].length) if len(reductions) == 1 else 1


def _cut(length: int, parts: int) -> int:
    """In how many equal parts a row of ``length`` is cut for ``parts`` or a few more; or 1."""
    count = largest_divisor(length, 4 * parts)
    return count if count >= parts else 1
