"""Ways to damage what a model is run with, each drawn from one generator."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
from mutations import ODD, ODD_FLOATS

Inputs = dict[Any, Any]
Mutation = Callable[[Inputs, random.Random], None]

_DTYPES = ("float32", "float64", "float16", "int64", "int32", "int8", "uint8", "uint64", "bool")
_SIZES = (0, 0, 1, 2, 3, 5, 17, 33, 1000)


def _drawn(inputs: Inputs, draw: random.Random) -> tuple[Any, Any]:
    """An input's name, and its array."""
    name = draw.choice(list(inputs))
    return name, inputs[name]


def _odd_value(dtype: np.dtype, draw: random.Random) -> Any:
    """A number from far away, or one near to usual indices; wrapped around to fit the type."""
    if dtype.kind == "f":
        return np.float64(draw.choice(ODD_FLOATS)).astype(dtype)
    number = draw.choice((*ODD, *range(-4, 5)))
    return np.array(number & ((1 << 64) - 1), np.uint64).astype(dtype)


# Values ------------------------------------------------------------------------------------------


def odd_element(inputs: Inputs, draw: random.Random) -> None:
    """One number is from far away, infinite or none."""
    name, array = _drawn(inputs, draw)
    if array.size and array.dtype.kind in "fiub":
        array = array.copy()
        array.reshape(-1)[draw.randrange(array.size)] = _odd_value(array.dtype, draw)
        inputs[name] = array


def odd_elements(inputs: Inputs, draw: random.Random) -> None:
    """All numbers of an input are from far away."""
    name, array = _drawn(inputs, draw)
    if array.dtype.kind in "fiub":
        drawn = [_odd_value(array.dtype, draw) for _ in range(array.size)]
        inputs[name] = np.array(drawn, array.dtype).reshape(array.shape)


def same_element(inputs: Inputs, draw: random.Random) -> None:
    """All numbers of an input are the same one from far away."""
    name, array = _drawn(inputs, draw)
    if array.dtype.kind in "fiub":
        inputs[name] = np.full(array.shape, _odd_value(array.dtype, draw))


# Types and sizes ---------------------------------------------------------------------------------


def other_type(inputs: Inputs, draw: random.Random) -> None:
    """Another element type, or the other order of bytes."""
    name, array = _drawn(inputs, draw)
    dtype = draw.choice((*_DTYPES, array.dtype.newbyteorder(">"), "object", "str"))
    with np.errstate(all="ignore"):
        inputs[name] = array.astype(dtype)


def other_size(inputs: Inputs, draw: random.Random) -> None:
    """One axis is shorter, longer or empty."""
    name, array = _drawn(inputs, draw)
    if array.ndim:
        shape = list(array.shape)
        shape[draw.randrange(array.ndim)] = draw.choice(_SIZES)
        inputs[name] = np.resize(array, shape) if array.size else np.zeros(shape, array.dtype)


def other_sizes(inputs: Inputs, draw: random.Random) -> None:
    """The same axis of all inputs that have it is shorter, longer or empty."""
    axis, size = draw.randrange(4), draw.choice(_SIZES)
    for name, array in inputs.items():
        if array.ndim > axis and array.size:
            shape = list(array.shape)
            shape[axis] = size
            inputs[name] = np.resize(array, shape)


def other_rank(inputs: Inputs, draw: random.Random) -> None:
    """One axis more or less."""
    name, array = _drawn(inputs, draw)
    inputs[name] = array[None] if draw.random() < 0.5 or not array.ndim else array.reshape(-1)


# Memory ------------------------------------------------------------------------------------------


def strided(inputs: Inputs, draw: random.Random) -> None:
    """Elements that do not follow each other in memory."""
    name, array = _drawn(inputs, draw)
    kind = draw.randrange(4)
    if kind == 0:
        inputs[name] = np.asfortranarray(array)
    elif kind == 1 and array.ndim:
        inputs[name] = np.repeat(array, 2, axis=-1)[..., ::2]
    elif kind == 2 and array.ndim:
        inputs[name] = array[::-1]
    elif array.size:
        inputs[name] = np.broadcast_to(array.reshape(-1)[0], array.shape)


def misaligned(inputs: Inputs, draw: random.Random) -> None:
    """An address that is no multiple of the elements' size, or of a vector's."""
    name, array = _drawn(inputs, draw)
    offset = draw.choice((1, 2, array.itemsize))
    memory = np.zeros(array.nbytes + offset, np.uint8)[offset:]
    if array.dtype.kind in "fiub":
        inputs[name] = memory.view(array.dtype).reshape(array.shape)
        inputs[name][...] = array


def read_only(inputs: Inputs, draw: random.Random) -> None:
    """Memory that may not be written to."""
    name, array = _drawn(inputs, draw)
    array = array.copy()
    array.flags.writeable = False
    inputs[name] = array


# Objects -----------------------------------------------------------------------------------------


def no_array(inputs: Inputs, draw: random.Random) -> None:
    """Something else than an array."""
    name, array = _drawn(inputs, draw)
    others: tuple[Any, ...] = (None, "text", 1.5, array.tolist(), [[1], [2, 3]], {}, object(), int)
    inputs[name] = draw.choice((*others, np.ma.masked_array(array, np.ones(array.shape, bool))))


def other_names(inputs: Inputs, draw: random.Random) -> None:
    """An input is missing, there is one too many, or a name is none."""
    name, array = _drawn(inputs, draw)
    kind = draw.randrange(3)
    if kind:
        del inputs[name]
    if kind != 1:
        inputs[draw.choice(("more", "", 0, None, (1, 2), 1.5))] = array


# The last ones leave something that the others cannot read.
MUTATIONS: tuple[Mutation, ...] = (
    *(odd_element, odd_element, odd_elements, same_element, same_element),
    *(other_type, other_size, other_sizes, other_sizes, other_rank),
    *(strided, misaligned, read_only),
)
LAST_MUTATIONS: tuple[Mutation, ...] = (no_array, other_names)


def damaged_inputs(
    inputs: dict[str, np.ndarray], draw: random.Random
) -> tuple[dict[Any, Any], str]:
    """Inputs after a few mutations, and the names of these."""
    changed, names = dict(inputs), []
    mutations = draw.choices(MUTATIONS, k=draw.choice((1, 1, 1, 2)))
    if draw.random() < 0.1:
        mutations = [draw.choice(LAST_MUTATIONS)]
    for mutation in mutations:
        mutation(changed, draw)
        names.append(mutation.__name__)
    return changed, "+".join(names)
