"""Modelled time of a 3x3 convolution computed by Winograd's algorithm."""

from dataclasses import dataclass
from typing import Protocol

from tvm_ext.hardware.cost import Work
from tvm_ext.relay_passes.winograd_compute import OUTPUT_TILE, POSITIONS

# Vector instructions, arithmetic, loads and stores, of the two transforms for one tile and as many
# channels as a vector has lanes: 36 loads, 12 transforms of six elements, 36 stores; and 36 loads,
# 10 transforms of six elements to four, 16 stores.
INPUT_INSTRUCTIONS = 216
OUTPUT_INSTRUCTIONS = 142


class Seconds(Protocol):
    """What is asked of a machine."""

    def seconds(self, work: Work) -> float:
        """Time of one kernel that does ``work``, modelled, in seconds."""
        ...


@dataclass(frozen=True)
class WinogradWork:
    """What the algorithm does for one convolution.

    Attributes
    ----------
    tiles : int
        Tiles of 4x4 outputs, cut ones included.
    inputs, outputs : int
        Channels; outputs as computed, padding included.
    """

    tiles: int
    inputs: int
    outputs: int

    @classmethod
    def of(cls, batch: int, sides: tuple[int, int], inputs: int, outputs: int) -> "WinogradWork":
        """For ``batch`` outputs of ``sides`` height and width."""
        rows, columns = (-(-side // OUTPUT_TILE) for side in sides)
        return cls(batch * rows * columns, inputs, outputs)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the transformed weights, float32."""
        return 4 * POSITIONS * self.inputs * self.outputs

    def seconds(self, machine: Seconds) -> float:
        """Modelled time of the transforms and the products."""
        channels = self.inputs + self.outputs
        products = Work(
            flops=2.0 * POSITIONS * self.tiles * self.inputs * self.outputs,
            bytes=self.weight_bytes + 2 * 4 * POSITIONS * self.tiles * channels,
        )
        transforms = Work(
            flops=2.0 * self.tiles * self._transform_instructions,
            bytes=4 * 16 * self.tiles * channels,
        )
        return machine.seconds(products) + machine.seconds(transforms)

    @property
    def _transform_instructions(self) -> int:
        return INPUT_INSTRUCTIONS * self.inputs + OUTPUT_INSTRUCTIONS * self.outputs
