"""The ring of stages in shared memory through which operands pass, and its barriers.

Each stage has the tiles of both operands and two barriers: "full" ends a phase when the copies'
bytes have come, "empty" when every multiplying warp is done reading: those of all blocks of a
cluster, since copies of the operand that they share go to all of them.
"""

from dataclasses import dataclass
from typing import Any

from tvm import tirx

from tvm_ext.tir_schedules.cuda.warp_groups import cluster_instructions as cluster
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
            readers = self.tiles.cluster * self.tiles.multiplying * _WARPS
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

    def free(self, stage: Any, parity: Any) -> tirx.Stmt:
        """Waits until ``stage`` may be written, in all blocks that get a part of it."""
        several = cluster if self.tiles.cluster > 1 else hopper
        before = tirx.const(1, "uint32") - parity
        return several.barrier_wait(self.barrier("empty", stage), before)

    def released(self, stage: Any, lane: Any, condition: Any) -> tirx.Stmt:
        """One thread of each warp says that the warp is done with ``stage``.

        In a cluster one for each block: a block's copies also go to the others.
        """
        blocks, barrier = self.tiles.cluster, self.barrier("empty", stage)
        wanted = tirx.LT(lane, tirx.const(blocks, str(lane.ty)))
        if condition is not None:
            wanted = tirx.And(wanted, condition)
        if blocks > 1:
            return cluster.barrier_arrive(barrier, lane.astype("uint32"), wanted.astype("uint32"))
        return hopper.barrier_arrive(barrier, wanted.astype("uint32"))
