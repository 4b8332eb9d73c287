"""What the copying thread of a block does: query, keys and values to shared memory."""

from typing import Any

from tvm import tirx

from tvm_ext.tir_schedules.cuda.attention.attention_scores import INDEX, number
from tvm_ext.tir_schedules.cuda.warp_group_attention.group_ring import GroupRing, flipped
from tvm_ext.tir_schedules.cuda.warp_group_attention.group_tiles import GroupTiles
from tvm_ext.tir_schedules.cuda.warp_group_attention.head_boxes import HeadBoxes
from tvm_ext.tir_schedules.cuda.warp_groups import warp_group_instructions as hopper
from tvm_ext.tir_schedules.cuda.warp_groups.tensor_map import new_tensor_map
from tvm_ext.tir_schedules.statements import sequence


class GroupCopies:
    """The tensor maps, and the copies of all tiles of a block."""

    def __init__(self, tiles: GroupTiles, ring: GroupRing) -> None:
        self.tiles, self.ring, self.layout = tiles, ring, ring.layout
        problem = tiles.problem
        operands = {"query": problem.query, "keys": problem.key, "values": problem.value}
        self.boxes = {name: HeadBoxes.of(tensor) for name, tensor in operands.items()}
        self.maps = {name: new_tensor_map(f"map_{name}") for name in operands}

    def on_host(self) -> list[tirx.Stmt]:
        """Makes the tensor maps."""
        made = [statement for _, statement in self.maps.values()]
        sizes = {"query": self.tiles.tiles.rows}
        for name, boxes in self.boxes.items():
            positions = sizes.get(name, self.tiles.tiles.keys)
            made.append(boxes.encoded(self.maps[name][0], positions))
        return made

    def prefetched(self) -> list[tirx.Stmt]:
        """Brings the tensor maps near."""
        return [hopper.prefetch_map(var) for var, _ in self.maps.values()]

    def statements(self, block: Any) -> tirx.Stmt:
        """All copies."""
        walk = self.tiles.over_tiles(block, self._tile)
        return sequence([self.ring.nothing_passed(), walk])

    def _tile(self, turn: Any) -> tirx.Stmt:
        tiles, layout = self.tiles, self.layout
        zero = tirx.const(0, "uint32")
        parity = tirx.truncmod(turn.astype("uint32"), tirx.const(2, "uint32"))
        first = tiles.tile * number(tiles.tiles.rows)
        query = self._copied("query", zero, parity, layout.query_bytes, first)
        step, one = tirx.Var("step", INDEX), number(1)
        # A stage of keys is free before one of values: values of a tile come after the next keys.
        both = sequence([self._stage("keys", step + one), self._stage("values", step)])
        walk = tirx.For(step, number(0), tiles.steps - one, tirx.ForKind.SERIAL, both)
        return sequence(
            [
                *query,
                self._stage("keys", number(0)),
                walk,
                self._stage("values", tiles.steps - one),
                self.ring.passed(tiles.steps),
            ]
        )

    def _stage(self, name: str, step: Any) -> tirx.Stmt:
        """The copies of a tile of keys or values."""
        stage, parity, binds = self.ring.at(step)
        nbytes = self.layout.key_bytes if name == "keys" else self.layout.value_bytes
        position = step * number(self.tiles.tiles.keys)
        return sequence([binds, *self._copied(name, stage, parity, nbytes, position)])

    def _copied(
        self, name: str, stage: Any, parity: Any, nbytes: int, position: Any
    ) -> list[tirx.Stmt]:
        """Waits until a stage is free, and starts the copies to it."""
        tiles, ring, boxes = self.tiles, self.ring, self.boxes[name]
        full = ring.full(name, stage)
        found = [
            hopper.barrier_wait(ring.empty(name, stage), flipped(parity)),
            hopper.barrier_expect(full, nbytes),
        ]
        head = tiles.head if name == "query" else tiles.key_head
        size = nbytes // boxes.count
        for box in range(boxes.count):
            to = ring.start(name, stage) + tirx.const(box * size, "uint32")
            at = boxes.at(box, position, b=tiles.batch, h=head)
            found.append(hopper.copy_box(to, self.maps[name][0], at, full))
        return found
