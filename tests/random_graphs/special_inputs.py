"""Inputs for random graphs: ordinary numbers, other sizes, and numbers that are special."""

import random
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from dynamic_sizes import SIZES, inputs_of
from onnx import numpy_helper

ORDINARY = "ordinary"
# What is strewn over ordinary numbers, by the name of the kind of input.
_STREWN: dict[str, tuple[float, ...]] = {
    "NaN": (np.nan,),
    "infinities": (np.inf, -np.inf),
    "zeros": (0.0, -0.0),
    "denormals": (1e-40, -1e-40, 2e-45),
}
KINDS = (ORDINARY, *_STREWN)


@dataclass(frozen=True)
class Draw:
    """Inputs of one run, the kind of their numbers, and the sizes of the dynamic dimensions."""

    kind: str
    sizes: dict[str, int]
    arrays: dict[str, np.ndarray]


def draws(
    model: onnx.ModelProto,
    built: Mapping[str, np.ndarray],
    sizes: Mapping[str, int],
    count: int,
    rng: random.Random,
) -> list[Draw]:
    """So many inputs: the first as the graph was built with, then two ordinary ones of three.

    ``sizes`` are the dynamic sizes that it was built with; every other input has others.
    """
    found = [Draw(ORDINARY, dict(sizes), inputs_of(built, model, sizes))]
    special = [kind for kind in KINDS if kind != ORDINARY]
    for place in range(1, count):
        chosen = {n: rng.choice(SIZES) for n in sizes} if place % 2 else dict(sizes)
        kind = special[place // 3 % len(special)] if place % 3 == 0 else ORDINARY
        numbers = np.random.default_rng(rng.randrange(1 << 32))
        arrays = inputs_of(built, model, chosen)
        drawn = {name: _drawn(array, numbers) for name, array in arrays.items()}
        if kind != ORDINARY:
            drawn = {name: _strewn(array, kind, numbers) for name, array in drawn.items()}
        found.append(Draw(kind, chosen, drawn))
    return found


def _drawn(array: np.ndarray, numbers: np.random.Generator) -> np.ndarray:
    """Other numbers of the same type and shape."""
    if array.dtype == np.bool_:
        return np.asarray(numbers.integers(0, 2, array.shape)).astype(array.dtype)
    if array.dtype.kind in "iu":
        low = 0 if array.dtype.kind == "u" or not array.ndim else -5
        return np.asarray(numbers.integers(low, 6, array.shape)).astype(array.dtype)
    width = numbers.choice((0.5, 2.0, 8.0))
    return np.asarray(numbers.uniform(-width, width, array.shape)).astype(array.dtype)


def _strewn(array: np.ndarray, kind: str, numbers: np.random.Generator) -> np.ndarray:
    """The array with special numbers at one place, at some, or at half of them."""
    if array.dtype.kind != "f":
        return array
    share = numbers.choice((0.0, 0.1, 0.5))
    where = np.asarray(numbers.random(array.shape) < share)
    if array.size and not where.any():
        where.flat[numbers.integers(array.size)] = True
    values = numbers.choice(np.array(_STREWN[kind]), array.shape)
    return np.where(where, values, array).astype(array.dtype)


def moved_model(model: onnx.ModelProto, sign: int) -> onnx.ModelProto:
    """The model with what it stores moved in the same way."""
    found = onnx.ModelProto()
    found.CopyFrom(model)
    stored = list(found.graph.initializer)
    stored += [one.t for n in found.graph.node if n.op_type == "Constant" for one in n.attribute]
    for tensor in stored:
        array = moved({"": numpy_helper.to_array(tensor)}, sign)[""]
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return found


def moved(arrays: Mapping[str, np.ndarray], sign: int) -> dict[str, np.ndarray]:
    """The inputs with each float moved by a millionth of itself, or by a step of its type."""
    found = {}
    for name, array in arrays.items():
        if array.dtype.kind != "f":
            found[name] = array
            continue
        step = max(1e-6, float(np.finfo(array.dtype).eps))
        with np.errstate(invalid="ignore", under="ignore"):
            found[name] = (array * (1 + sign * step)).astype(array.dtype)
    return found
