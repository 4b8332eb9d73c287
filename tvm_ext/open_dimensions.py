"""Which sizes of a model's inputs are open, and what a user types to freeze them."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from tvm_ext.tensor_spec import TensorSpec

InputShapes: TypeAlias = Mapping[str, Sequence[int | str]]
"""Sizes of inputs by name; a text is the name of a dimension that each run decides."""

_LISTED = 4
# Sizes to show in an example: of a batch, of an image's side, of anything else.
_BATCH, _PIXELS, _LENGTH = 1, 224, 16


def shapes_of(specs: Iterable[TensorSpec]) -> dict[str, tuple[int | str, ...]]:
    """The sizes of these inputs by name."""
    return {spec.name: spec.shape for spec in specs}


def open_names(shapes: InputShapes) -> list[str]:
    """Names of the open dimensions, in order and each once."""
    sizes = (size for shape in shapes.values() for size in shape)
    return list(dict.fromkeys(size for size in sizes if isinstance(size, str)))


def open_places(shapes: InputShapes, names: Iterable[str] | None = None) -> str:
    """``N of input 'x' and M of input 'y'``: where these dimensions are; all of them for None."""
    wanted = open_names(shapes) if names is None else list(names)
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
    """Which dimensions to freeze and what to type for it; empty where nothing is open.

    ``names`` are the dimensions that matter; all for None.
    """
    wanted = open_names(shapes) if names is None else list(names)
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
        f"freeze {open_places(shapes, wanted)}, for example {options} "
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
    """A usual size of an open dimension; a known one stays."""
    if isinstance(size, int):
        return size
    if axis == 0:
        return _BATCH
    return _PIXELS if rank >= 4 and axis >= 2 else _LENGTH
