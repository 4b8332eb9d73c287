"""What is known about one input or output of a model: name, element type and shape."""

from dataclasses import dataclass


@dataclass(frozen=True)
class TensorSpec:
    """One input or output.

    Attributes
    ----------
    name : str
        The ONNX name.
    dtype : str
        Element type as TVM and NumPy spell it, for example ``float32``.
    shape : tuple[int | str, ...]
        One entry per dimension: a size, or the name of a symbolic dimension. Empty for a scalar.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]

    def describe(self) -> str:
        """One line for people: ``x: float32[1, 3, 'N', 224]``."""
        return f"{self.name}: {self.dtype}[{', '.join(repr(size) for size in self.shape)}]"
