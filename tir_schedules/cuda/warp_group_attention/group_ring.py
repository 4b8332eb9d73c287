"""The ring of stages through which keys and values come, and its barriers."""

from typing import Any

from tvm import tirx

from tvm_ext.tir_schedules.cuda.launch import Arrays
from tvm_ext.tir_schedules.cuda.warp_group_attention.group_shape import GroupLayout
from tvm_ext.tir_schedules.cuda.warp_groups import warp_group_instructions as hopper
from tvm_ext.tir_schedules.statements import sequence

_WARPS = hopper.WARP_GROUP // 32


class GroupRing:
    """Places in shared memory, from ``base`` on, and what threads have passed of the ring.

    The query, and every stage of keys and of values, has two barriers: "full" ends a phase when
    the copies' bytes have come, "empty" when every multiplying warp is done reading.
    """

    def __init__(self, layout: GroupLayout, arrays: Arrays) -> None:
        self.layout = layout
        self.base = tirx.Var("base", "uint32")
        self._passed = arrays.registers("passed", 1, "uint32", ())
        stages = layout.tiles.stages
        # Byte of the first stage, bytes of a stage, number of the first barrier.
        self._places = {
            "query": (0, 0, 0),
            "keys": (layout.keys_start, layout.key_bytes, 2),
            "values": (layout.values_start, layout.value_bytes, 2 + 2 * stages),
        }

    def prepared(self) -> list[tirx.Stmt]:
        """Makes all barriers."""
        arrivals = self.layout.tiles.groups * _WARPS
        found = []
        for what, stages in (("query", 1), ("keys", None), ("values", None)):
            for stage in range(stages or self.layout.tiles.stages):
                at = _unsigned(stage)
                found.append(hopper.barrier_init(self.full(what, at), 1))
                found.append(hopper.barrier_init(self.empty(what, at), arrivals))
        return found

    def full(self, what: str, stage: Any) -> Any:
        """Where the barrier is that waits for copies."""
        return self._barrier(what, stage, 0)

    def empty(self, what: str, stage: Any) -> Any:
        """Where the barrier is that waits for readers."""
        return self._barrier(what, stage, 1)

    def start(self, what: str, stage: Any) -> Any:
        """Where a tile begins."""
        first, size, _ = self._places[what]
        return self.base + _unsigned(first) + stage * _unsigned(size)

    def nothing_passed(self) -> tirx.Stmt:
        """Before the first tile of rows."""
        return self._passed.put(tirx.const(0, "int32"), _unsigned(0))

    def passed(self, steps: Any) -> tirx.Stmt:
        """After a tile of rows that looked at so many tiles of keys."""
        zero = tirx.const(0, "int32")
        return self._passed.put(zero, self._passed.at(zero) + steps.astype("uint32"))

    def at(self, step: Any) -> tuple[Any, Any, tirx.Stmt]:
        """Stage and parity of a step of the present tile of rows, as variables."""
        stage, parity = tirx.Var("stage", "uint32"), tirx.Var("parity", "uint32")
        place = self._passed.at(tirx.const(0, "int32")) + step.astype("uint32")
        stages = _unsigned(self.layout.tiles.stages)
        binds = [
            tirx.Bind(stage, tirx.truncmod(place, stages)),
            tirx.Bind(parity, tirx.truncmod(tirx.truncdiv(place, stages), _unsigned(2))),
        ]
        return stage, parity, sequence(binds)

    def released(self, what: str, stage: Any, lane: Any) -> tirx.Stmt:
        """One thread of each warp says that the warp is done reading."""
        first = tirx.EQ(lane, tirx.const(0, "int32"))
        return hopper.barrier_arrive(self.empty(what, stage), first.astype("uint32"))

    def _barrier(self, what: str, stage: Any, kind: int) -> Any:
        first = self.layout.barriers_start + 8 * (self._places[what][2] + kind)
        return self.base + _unsigned(first) + stage * _unsigned(16)


def flipped(parity: Any) -> Any:
    """The parity of the phase before."""
    return _unsigned(1) - parity


def _unsigned(value: int) -> Any:
    return tirx.const(value, "uint32")
