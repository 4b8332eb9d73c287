"""What is known about an input or output: name, element type, and a shape with symbolic sizes."""

import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from tvm_ext.errors import InputError

# A size that a user leaves dynamic: named, bounded, or both.


_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


# Of an int64.
LARGEST = (1 << 63) - 1


@dataclass(frozen=True)
class SizeRange:
    """The sizes that a dimension may have in a run, both ends included."""

    low: int
    high: int = LARGEST

    def __contains__(self, size: int) -> bool:
        return self.low <= size <= self.high

    def __str__(self) -> str:
        return f"{self.low}:{self.high if self.has_end else ''}"

    @property
    def has_end(self) -> bool:
        """Whether somebody said how large a size may be."""
        return self.high < LARGEST

    @property
    def ends(self) -> tuple[int, int]:
        """The smallest and the largest size."""
        return self.low, self.high

    def nearest(self, size: int) -> int:
        """The allowed size that is closest to ``size``."""
        return max(self.low, min(size, self.high))


@dataclass(frozen=True)
class SymbolicSize:
    """A dimension whose size each run decides.

    Attributes
    ----------
    name : str
        Dimensions of the same name have the same size; empty where it shall keep the name that it
        has in the model.
    range : SizeRange or None
        Any size where None.
    """

    name: str = ""
    range: SizeRange | None = None


def parse_size(text: str) -> int | SymbolicSize:
    """``"224"``, a name ``"N"``, a range ``"224:640"``, a named range ``"N:224:640"`` or ``"?"``.

    Raises
    ------
    InputError
        The text has another form, a size is not positive, or a range is empty.
    """
    parts = [part.strip() for part in text.split(":")]
    name = parts.pop(0) if _NAME.fullmatch(parts[0]) or parts[0] == "?" else ""
    # isdecimal alone would take digits of other scripts.
    if all(part.isascii() and part.isdecimal() and int(part) > 0 for part in parts):
        sizes = [int(part) for part in parts]
        if len(sizes) == 2 and sizes[0] <= sizes[1]:
            return SymbolicSize(name.replace("?", ""), SizeRange(*sizes))
        if name and not sizes:
            return SymbolicSize(name.replace("?", ""))
        if len(sizes) == 1 and not name:
            return sizes[0]
    raise InputError(
        f"'{text}' is not a size; expected a positive integer (224), a name (N), a range "
        "(224:640) or a named range (N:1:8): use that form"
    )


# What the elements of a tensor of strings are called; arrays hold them as Python's ``str``.
STRING = "str"


@dataclass(frozen=True)
class TensorSpec:
    """The name, type and shape of one input or output.

    Attributes
    ----------
    name : str
        The name in the ONNX model.
    dtype : str
        The element type as TVM and NumPy spell it, for example ``float32``; ``str`` for strings. A
        value that is not a tensor has its whole type here, as ONNX Runtime spells it, for example
        ``seq(tensor(float))``.
    shape : tuple[int | str, ...]
        One entry per dimension: its size, or the name of a symbolic dimension. The shape is empty
        for a scalar and for a value that is not a tensor. It is ``("...",)`` for an output whose
        number of dimensions is only known in the run.
    ranges : tuple[SizeRange | None, ...]
        One entry per dimension: the sizes that a symbolic dimension may have, or None for any
        size. The tuple is empty if no dimension has a range.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    ranges: tuple[SizeRange | None, ...] = ()

    @property
    def is_tensor(self) -> bool:
        """Whether this is a tensor of numbers or strings, and not a sequence, map or optional."""
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

    def of_shape(self, shape: Sequence[int] | None) -> "TensorSpec":
        """Returns a copy with the sizes of one run. A value that is not a tensor stays as it is."""
        if not self.is_tensor or shape is None:
            return self
        return replace(self, shape=tuple(int(size) for size in shape), ranges=())


# The floating-point types in their order of precision.


FLOATS_WIDEST_FIRST = ("float64", "float32", "float16", "bfloat16")


def narrowest_float(*dtypes: str) -> str:
    """The least precise of the floating-point types among ``dtypes``; "" when there is none."""
    floats = [dtype for dtype in dtypes if dtype in FLOATS_WIDEST_FIRST]
    return max(floats, key=FLOATS_WIDEST_FIRST.index, default="")


# Which sizes of a model's inputs are dynamic, and what a user types to freeze them.


InputShapes: TypeAlias = Mapping[str, Sequence[int | str]]
"""Sizes of inputs by name; a text is the name of a dimension that each run decides."""

_LISTED = 4
# Sizes to show in an example: of a batch, of an image's side, of anything else.
_BATCH, _PIXELS, _LENGTH = 1, 224, 16


def shapes_of(specs: Iterable[TensorSpec]) -> dict[str, tuple[int | str, ...]]:
    """The sizes of these inputs by name."""
    return {spec.name: spec.shape for spec in specs}


def symbolic_names(shapes: InputShapes) -> list[str]:
    """Names of the dynamic dimensions, in order and each once."""
    sizes = (size for shape in shapes.values() for size in shape)
    return list(dict.fromkeys(size for size in sizes if isinstance(size, str)))


def symbolic_places(shapes: InputShapes, names: Iterable[str] | None = None) -> str:
    """``N of input 'x' and M of input 'y'``: where these dimensions are; all of them for None."""
    wanted = symbolic_names(shapes) if names is None else list(names)
    found: dict[str, str] = {}
    for name, shape in shapes.items():
        for axis, size in enumerate(shape):
            if not _open(size) or size not in wanted or size in found:
                continue
            # A name that was made up for a nameless dimension says nothing.
            named = f"axis {axis}" if size == f"{name}_{axis}" else str(size)
            found[str(size)] = f"{named} of input '{name}'"
    return listed(list(found.values()))


def freezing_hint(shapes: InputShapes, names: Iterable[str] | None = None) -> str:
    """Which dimensions to freeze and what to type for it; empty where nothing is dynamic.

    ``names`` are the dimensions that matter; all for None.
    """
    wanted = symbolic_names(shapes) if names is None else list(names)
    concerned = {
        name: [example_size(size, axis, len(shape)) for axis, size in enumerate(shape)]
        for name, shape in shapes.items()
        if any(_open(size) and size in wanted for size in shape)
    }
    if not concerned:
        return ""
    shown = dict(list(concerned.items())[:_LISTED])
    options = " ".join(
        "--input-shape " + shlex.quote(f"{name}={','.join(map(str, sizes))}")
        for name, sizes in shown.items()
    )
    python = ", ".join(f'"{name}": {sizes}' for name, sizes in shown.items())
    return (
        f"freeze {symbolic_places(shapes, wanted)}, for example {options} "
        f"(Python: input_shapes={{{python}}})"
    )


def listed(texts: Sequence[str]) -> str:
    """``a, b and c``; of many the first few."""
    more = len(texts) - _LISTED
    if more > 0:
        return f"{', '.join(texts[:_LISTED])} and {more} more"
    return " and ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)


def _open(size: int | str) -> bool:
    return isinstance(size, str)


def example_size(size: int | str, axis: int, rank: int) -> int:
    """A usual size of a dynamic dimension; a known one stays."""
    if isinstance(size, int):
        return size
    if axis == 0:
        return _BATCH
    return _PIXELS if rank >= 4 and axis >= 2 else _LENGTH


def resized(
    specs: Sequence[TensorSpec], axes: Sequence[int | None], change: Callable[[int], int]
) -> tuple[TensorSpec, ...]:
    """The tensors with another size along these axes, of those that have one; sizes are known."""
    made = []
    for spec, axis in zip(specs, axes, strict=True):
        shape = list(spec.shape)
        if axis is not None:
            shape[axis] = change(int(shape[axis]))
        made.append(replace(spec, shape=tuple(shape)))
    return tuple(made)
