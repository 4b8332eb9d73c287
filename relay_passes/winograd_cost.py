"""Modelled time of a convolution computed by Winograd's algorithm."""

from dataclasses import dataclass
from typing import Protocol

from tvm_ext.hardware.cost import Work
from tvm_ext.relay_passes.winograd_compute import WinogradForm
from tvm_ext.relay_passes.winograd_transforms import Matrix

# Rows of the matrices for points p and -p share half of their sums.
_SHARED = 0.6


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
    form : WinogradForm
        Sides of tile and kernel.
    tiles : int
        Tiles of outputs, cut ones included.
    inputs, outputs : int
        Channels; outputs as computed, padding included.
    """

    form: WinogradForm
    tiles: int
    inputs: int
    outputs: int

    @classmethod
    def of(
        cls, form: WinogradForm, batch: int, sides: tuple[int, int], inputs: int, outputs: int
    ) -> "WinogradWork":
        """For ``batch`` outputs of ``sides`` height and width."""
        rows, columns = (-(-side // step) for side, step in zip(sides, form.tile, strict=True))
        return cls(form, batch * rows * columns, inputs, outputs)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the transformed weights, float32."""
        return 4 * self.form.positions * self.inputs * self.outputs

    def seconds(self, machine: Seconds) -> float:
        """Modelled time of the transforms and the products."""
        positions, channels = self.form.positions, self.inputs + self.outputs
        products = Work(
            flops=2.0 * positions * self.tiles * self.inputs * self.outputs,
            bytes=self.weight_bytes + 2 * 4 * positions * self.tiles * channels,
        )
        read_and_written = self.form.tile[0] * self.form.tile[1] * channels
        transforms = Work(
            flops=2.0 * self.tiles * self._transform_instructions,
            bytes=4 * self.tiles * read_and_written,
        )
        return machine.seconds(products) + machine.seconds(transforms)

    @property
    def _transform_instructions(self) -> float:
        """Arithmetic, loads and stores of both transforms, of one tile and all its channels."""
        rows, columns = self.form.sides
        there = 2 * self.form.positions + (
            _terms(rows.input) * columns.inputs + _terms(columns.input) * rows.inputs
        )
        back = (
            self.form.positions
            + rows.outputs * columns.outputs
            + (_terms(rows.output) * columns.inputs + _terms(columns.output) * rows.outputs)
        )
        return there * self.inputs + back * self.outputs


def _terms(matrix: Matrix) -> float:
    """Multiply-adds to apply a matrix to one vector of tile elements."""
    if len(matrix) == 1:
        return 0.0
    return _SHARED * sum(factor != 0 for row in matrix for factor in row)
