"""The ring of stages in shared memory through which operands pass, and its barriers.

Each stage has the tiles of both operands and two barriers: "full" ends a phase when the copies'
bytes have come, "empty" when every multiplying warp is done reading.
"""

from dataclasses import dataclass
from typing import Any

from tvm import tirx

from tvm_ext.tir_schedules.cuda.warp_groups import warp_group_instructions as hopper
from tvm_ext.tir_schedules.cuda.warp_groups.warp_group_tiles import GroupTiles
from tvm_ext.tir_schedules.statements import sequence

_WARPS = hopper.WARP_GROUP // 32


@dataclass(frozen=True)
class Ring:
    """Where everything of the ring is.

    Attributes
    ----------
    base : tirx.Var
        uint32, where shared memory begins as instructions name it.
    tiles : GroupTiles
        Sizes.
    """

    base: tirx.Var
    tiles: GroupTiles

    def prepared(self) -> list[tirx.Stmt]:
        """What one thread does before all others begin: barriers as they are at first."""
        found = []
        for number in range(self.tiles.stages):
            stage = tirx.const(number, "int32")
            readers = self.tiles.multiplying * _WARPS
            found.append(hopper.barrier_init(self.barrier("full", stage), 1))
            found.append(hopper.barrier_init(self.barrier("empty", stage), readers))
        return found

    def at(self, step: Any) -> tuple[Any, Any, tirx.Stmt]:
        """Stage and parity of its phase at a block's ``step``, an int32, as variables."""
        stage, parity = tirx.Var("stage", "int32"), tirx.Var("parity", "uint32")
        turns = step // self.tiles.stages
        binds = [
            tirx.Bind(stage, step % self.tiles.stages),
            tirx.Bind(parity, (turns % 2).astype("uint32")),
        ]
        return stage, parity, sequence(binds)

    def before(self, stage: Any) -> Any:
        """The stage of the step before."""
        return (stage + self.tiles.stages - 1) % self.tiles.stages

    def operand(self, stage: Any, index: int) -> Any:
        """Where the tile of an operand begins in shared memory."""
        size = tirx.const(self.tiles.stage_bytes, "uint32")
        offset = tirx.const(index * self.tiles.first_bytes, "uint32")
        return self.base + stage.astype("uint32") * size + offset

    def barrier(self, kind: str, stage: Any) -> Any:
        """Where a barrier is: after all stages, the full ones before the empty ones."""
        stages = self.tiles.stages
        first = stages * self.tiles.stage_bytes + (8 * stages if kind == "empty" else 0)
        return self.base + tirx.const(first, "uint32") + stage.astype("uint32") * 8

    def released(self, stage: Any, lane: Any, condition: Any) -> tirx.Stmt:
        """One thread of each warp says that the warp is done with ``stage``."""
        wanted = tirx.EQ(lane, tirx.const(0, str(lane.ty)))
        if condition is not None:
            wanted = tirx.And(wanted, condition)
        return hopper.barrier_arrive(self.barrier("empty", stage), wanted.astype("uint32"))
