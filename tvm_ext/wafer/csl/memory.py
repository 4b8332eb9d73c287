"""The arrays of one PE in xDSL's csl dialect."""

from dataclasses import dataclass
from typing import Any

from tvm_ext.tuning.mesh_analysis.affine import Affine
from tvm_ext.wafer.csl.body import Body
from tvm_ext.wafer.csl.errors import NotCovered
from tvm_ext.wafer.csl.kernel import ELEMENT_BYTES, MeshKernel, assignments_of
from tvm_ext.wafer.csl.names import Names
from tvm_ext.wafer.csl.values import Load, Tensor

# Offsets of descriptors are signed integers of 16 bits.
_MOST_ELEMENTS = (1 << 15) - 1


class Memory:
    """Declares arrays.

    Parameters
    ----------
    kernel : MeshKernel
        Whose tiles they are.
    declarations : Body
        The part of the program before its functions.
    names : Names
        Of the program.

    Attributes
    ----------
    arrays : dict[Tensor, list]
        Those of the tiles: two, for even and odd steps, where one is filled while one is read.
    bytes : int
        Of all arrays so far.
    """

    def __init__(self, kernel: MeshKernel, declarations: Body, names: Names) -> None:
        self.kernel = kernel
        self.bytes = 0
        self.arrays: dict[Tensor, list[Any]] = {}
        self._declarations = declarations
        self._names = names
        self._spares: dict[tuple[int, str], Any] = {}
        loops = [one.loops for one in assignments_of(kernel.items) if one.loops]
        self._longest = max((one[-1].extent for one in loops), default=1)
        twice = kernel.double_buffered
        for tensor, tile in kernel.tiles.items():
            both = [f"{tensor.name}_even", f"{tensor.name}_odd"]
            self.arrays[tensor] = [
                self._declare(name, tile.elements, tensor.dtype)
                for name in (both if tensor in twice else [tensor.name])
            ]

    def spare(self, number: int, dtype: str) -> Any:
        """An array for values in between, the same one for the same number and type."""
        if (number, dtype) not in self._spares:
            name = f"spare{number}_{'f32' if dtype == 'float32' else 'f16'}"
            self._spares[number, dtype] = self._declare(name, self._longest, dtype)
        return self._spares[number, dtype]

    def _declare(self, name: str, elements: int, dtype: str) -> Any:
        if elements > _MOST_ELEMENTS:
            raise NotCovered(
                f"the tile of {name} has {elements} elements, more than the {_MOST_ELEMENTS} that "
                "a descriptor reaches"
            )
        self.bytes += elements * ELEMENT_BYTES[dtype]
        return self._declarations.array(self._names.unique(name), elements, dtype)


@dataclass(frozen=True)
class View:
    """A memory as the steps of one parity see it, 0 or 1."""

    memory: Memory
    parity: int = 0

    def array(self, tensor: Tensor) -> Any:
        """The array of a tensor."""
        arrays = self.memory.arrays[tensor]
        return arrays[self.parity % len(arrays)]

    def offset(self, load: Load) -> Affine:
        """Where an element lies in its array: elements from the start."""
        return self.memory.kernel.tiles[load.tensor].offset(load.indices)
