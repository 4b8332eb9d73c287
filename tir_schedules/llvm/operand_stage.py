"""A copy of an operand that is written piece by piece, right before register tiles read it."""

from dataclasses import dataclass

from tvm import s_tir
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvm_ext.tir_schedules.block_access import static_extent
from tvm_ext.tir_schedules.llvm.loop_nest import REGISTERS_PER_VECTOR_LOOP, vector_length


@dataclass(frozen=True)
class OperandStage:
    """The block that writes the copy, and what is computed between two pieces of it.

    Attributes
    ----------
    block : SBlockRV
        Writes the copy.
    axis : int
        Spatial loop of the reduction that is cut.
    tiles : int
        Register tiles along it that are computed between two pieces.
    per_column : bool
        Whether a piece holds the columns of one register tile only.
    """

    block: SBlockRV
    axis: int
    tiles: int
    per_column: bool = False


def write_stage(sch: s_tir.Schedule, stage: OperandStage, loop: LoopRV, lanes: int) -> None:
    """Moves the copy into ``loop``, where it writes what one iteration reads, in vectors."""
    sch.compute_at(stage.block, loop, preserve_unit_loops=True)
    innermost = sch.get_loops(stage.block)[-1]
    extent = static_extent(sch.get(innermost).extent) or 1
    length = vector_length(extent, lanes, REGISTERS_PER_VECTOR_LOOP)
    if length > 1:
        _, vector = sch.split(innermost, factors=[None, length])
        sch.vectorize(vector)
