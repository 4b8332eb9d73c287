"""Runs in which dimensions of one name have several sizes.

Exporters use one name for several things, and ONNX Runtime looks at sizes only where operators need
them to be equal. A program has one variable for a name, so such a run needs another program.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tvm_ext.errors import InputError
from tvm_ext.tensor_spec import TensorSpec


class ContradictingSizesError(InputError):
    """A dimension has another size in an input than another one of its name had before."""


class ContradictingSizesWarning(UserWarning):
    """The model was compiled once more, with dimensions of one name taken for different ones."""


def shapes_named_apart(
    specs: Sequence[TensorSpec], inputs: Mapping[str, Any]
) -> dict[str, list[int | str]]:
    """The shapes to compile with so that ``inputs``, arrays by name, can be run.

    The first size of a name keeps it; each other size gets a name, after the first input with it.
    """
    first: dict[str, int] = {}
    names: dict[tuple[str, int], str] = {}
    taken = {size for spec in specs for size in spec.shape if isinstance(size, str)}
    shapes: dict[str, list[int | str]] = {}
    for spec in specs:
        if not spec.is_tensor:
            continue
        shape: list[int | str] = []
        sizes = zip(spec.shape, inputs[spec.name].shape, strict=True)
        for axis, (wanted, size) in enumerate(sizes):
            name = wanted
            if isinstance(wanted, str) and first.setdefault(wanted, size) != size:
                own = _free_name(f"{wanted}_of_{spec.name}", taken)
                name = names.setdefault((wanted, size), own)
                taken.add(name)
            allowed = spec.ranges[axis] if spec.ranges else None
            shape.append(name if allowed is None else f"{name}:{allowed}")
        shapes[spec.name] = shape
    return shapes


def _free_name(wanted: str, taken: set[str]) -> str:
    # What is no letter or digit has a meaning in the text of a size.
    name = "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in wanted)
    while name in taken:
        name += "_"
    return name
