"""What is known about one input or output of a model: name, element type and shape."""

from dataclasses import dataclass

from tvm_ext.open_size import SizeRange

# What the elements of a tensor of strings are called; arrays hold them as Python's ``str``.
STRING = "str"


@dataclass(frozen=True)
class TensorSpec:
    """One input or output.

    Attributes
    ----------
    name : str
        The ONNX name.
    dtype : str
        Element type as TVM and NumPy spell it, for example ``float32``, and ``str``. What is no
        tensor has its whole type here, as ONNX Runtime spells it: ``seq(tensor(float))``.
    shape : tuple[int | str, ...]
        One entry per dimension: a size, or the name of a symbolic dimension. Empty for a scalar
        and for what is no tensor, ``("...",)`` for an output whose number of dimensions only the
        run knows.
    ranges : tuple[SizeRange | None, ...]
        One entry per dimension: the sizes that a symbolic dimension may have, None for any. Empty
        where no dimension has a range.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    ranges: tuple[SizeRange | None, ...] = ()

    @property
    def is_tensor(self) -> bool:
        """Whether this is a tensor, of numbers or strings: no sequence, map or optional."""
        return "(" not in self.dtype

    def describe(self) -> str:
        """One line for people: ``x: float32[1, 3, 'N', 224]``, ``x: float32['N' (1:8)]``."""
        if not self.is_tensor:
            return f"{self.name}: {self.dtype}"
        ranges = self.ranges or (None,) * len(self.shape)
        sizes = [
            repr(size) if allowed is None else f"{size!r} ({allowed})"
            for size, allowed in zip(self.shape, ranges, strict=True)
        ]
        return f"{self.name}: {self.dtype}[{', '.join(sizes)}]"
