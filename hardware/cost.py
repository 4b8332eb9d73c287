"""The question every cost model answers: what does this work cost on that machine?"""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Work:
    """What a kernel does, in numbers that do not depend on a machine.

    Raises ValueError for a negative amount or a fraction outside its range.
    """

    flops: float
    """Arithmetic operations; a multiply-add is two."""
    bytes: float
    """Bytes read from and written to tensors, each tensor counted once."""
    dtype: str = "float32"
    """Type the arithmetic is done on."""
    vector_fraction: float = 1.0
    """Share of the vector lanes that hold useful values, above 0 and at most 1."""

    def __post_init__(self) -> None:
        if self.flops < 0 or self.bytes < 0:
            raise ValueError(
                f"work of {self.flops} operations on {self.bytes} bytes; expected 0 or more of each"
            )
        if not 0 < self.vector_fraction <= 1:
            raise ValueError(
                f"vector_fraction is {self.vector_fraction}; expected above 0 and at most 1"
            )


class CostModel(Protocol):
    """Estimates times. Its answers are modelled, never measured, and must be shown as such."""

    def seconds(self, work: Work) -> float:
        """Time in seconds of one kernel that does ``work`` and nothing else."""
        ...

    def conversion_seconds(self, nbytes: float) -> float:
        """Time in seconds to rewrite a tensor of ``nbytes`` bytes in another layout."""
        ...
