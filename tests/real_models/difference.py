"""How far what a model gives is from what ONNX Runtime gives, lists and dictionaries included."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

TOLERANCE = 1e-3


class Different(Exception):
    """Says what differs by more than rounding."""


def largest_difference(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> float:
    """Of all outputs, as a share of each one's largest magnitude.

    Raises
    ------
    Different
        An output is missing, of another type or shape, or further away than the tolerance.
    """
    missing = [name for name in wanted if name not in found]
    if missing:
        raise Different(f"'{missing[0]}' is missing")
    return max((_of_value(name, wanted[name], found[name]) for name in wanted), default=0.0)


def _of_value(name: str, wanted: Any, found: Any) -> float:
    if isinstance(wanted, np.ndarray):
        return _of_arrays(name, wanted, found)
    if isinstance(wanted, (Mapping, Sequence)) and not isinstance(wanted, (str, bytes)):
        return _of_containers(name, wanted, found)
    if isinstance(wanted, float):
        return _of_arrays(name, np.asarray(wanted), np.asarray(found, np.float64))
    if wanted != found:
        raise Different(f"'{name}' is {found!r}, in ONNX Runtime {wanted!r}")
    return 0.0


def _of_containers(name: str, wanted: Any, found: Any) -> float:
    kinds = [type(value).__name__ for value in (found, wanted)]
    if isinstance(wanted, Mapping) != isinstance(found, Mapping) or len(wanted) != len(found):
        raise Different(f"'{name}' is {kinds[0]}, in ONNX Runtime {kinds[1]} of {len(wanted)}")
    if isinstance(wanted, Mapping):
        if list(wanted) != list(found):
            raise Different(f"'{name}' has keys {list(found)}, in ONNX Runtime {list(wanted)}")
        pairs = [(wanted[key], found[key]) for key in wanted]
    else:
        pairs = list(zip(wanted, found, strict=True))
    return max((_of_value(name, *pair) for pair in pairs), default=0.0)


def _of_arrays(name: str, wanted: np.ndarray, found: Any) -> float:
    found = np.asarray(found)
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        kinds = [f"{array.dtype}{list(array.shape)}" for array in (found, wanted)]
        raise Different(f"'{name}' is {kinds[0]}, in ONNX Runtime {kinds[1]}")
    if wanted.dtype.kind != "f":
        different = int(np.count_nonzero(wanted != found))
        if different:
            raise Different(f"'{name}' differs in {different} of {wanted.size}")
        return 0.0
    return _of_floats(name, wanted.astype(np.float64), found.astype(np.float64))


def _of_floats(name: str, wanted: np.ndarray, found: np.ndarray) -> float:
    finite = np.isfinite(wanted)
    if not np.array_equal(wanted[~finite], found[~finite], equal_nan=True):
        raise Different(f"'{name}' has other values that are infinite or no numbers")
    wanted, found = wanted[finite], found[finite]
    if not np.isfinite(found).all():
        raise Different(f"'{name}' has values that are infinite or no numbers")
    magnitude = float(np.abs(wanted).max(initial=0.0))
    error = float(np.abs(wanted - found).max(initial=0.0))
    share = error / magnitude if magnitude else error
    if share > TOLERANCE:
        raise Different(f"'{name}' differs by {error:.3g} of {magnitude:.3g}")
    return share
