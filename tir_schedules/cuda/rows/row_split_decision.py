"""Whether rows are so few and so long that several blocks share one, and how many."""

from tvm_ext.hardware.description import GpuDescription
from tvm_ext.tir_schedules.block_access import element_bytes
from tvm_ext.tir_schedules.cuda.rows.row_decision import ROW_REGISTERS, runs_across
from tvm_ext.tir_schedules.cuda.rows.row_split import split_rows
from tvm_ext.tir_schedules.decisions import CLOSED_FORM, Decisions
from tvm_ext.tir_schedules.rows.row_kernel import RowBlock, RowKernel, loads_of
from tvm_ext.tir_schedules.template import NotMine

# Blocks of a multiprocessor that are at work at the same time, of the threads that long rows get.
_BLOCKS_OF_SM = 2

# Estimate: what one multiprocessor gets of L2's bandwidth, in shares, when others leave it alone.
_SHARES_OF_SM = 2

# Elements of a row below which a part is not worth a block.
_FEWEST_ELEMENTS = 1024

_MOST_SPLITS = 1024


def decide_splits(
    kernel: RowKernel, machine: GpuDescription, decisions: Decisions = CLOSED_FORM
) -> int:
    """Parts of every row; 1 where a block takes whole rows.

    In closed form the sooner of the two: one block reads a row at what a multiprocessor alone gets
    of L2, or all multiprocessors read it at the bandwidth of memory, once for every launch, and
    there are launches to start. Asks for ``splits``, where rows are long enough to be cut.
    """
    most = min(_MOST_SPLITS, kernel.length // _FEWEST_ELEMENTS)
    options = [1 << n for n in range(max(1, most).bit_length())]
    if len(options) == 1:
        return 1
    launches = split_rows(kernel, options[-1])
    if isinstance(launches, NotMine):
        return 1
    # A block takes as many rows as a warp has threads where these are neighbours.
    rows = machine.warp_size if runs_across(kernel) else 1
    wanted = max(1, _BLOCKS_OF_SM * machine.sms * rows // kernel.count)
    best = max(n for n in options if n <= wanted)
    each = [_row_bytes(block) for block in kernel.blocks]
    # Rows that fit stay in registers after the first pass.
    fits = kernel.length <= ROW_REGISTERS * machine.max_threads_per_block
    row = max(each) if fits else sum(each)
    waves = -(-kernel.count // (rows * machine.sms))
    share = _SHARES_OF_SM * machine.l2_gbs * 1e9 / machine.sms
    whole = waves * min(rows, kernel.count) * row / share
    passes = kernel.count * sum(each)
    parts = passes / machine.bandwidth(passes)
    parts += (len(launches) - 1) * machine.kernel_overhead_us * 1e-6
    return decisions.pick("splits", options, best if parts < whole else 1)


def _row_bytes(block: RowBlock) -> int:
    """Bytes of one row that a block moves, every operand once for each of its elements."""
    if not block.columns:
        return 0
    own = [store.buffer for store in block.stores] if block.starts else []
    loads = [load.source for store in block.stores for load in loads_of(store.value)]
    moved = [source for source in loads if not any(source.same_as(b) for b in own)]
    moved += [] if block.starts else [store.buffer for store in block.stores]
    return block.length * sum(element_bytes(buffer) for buffer in moved)
