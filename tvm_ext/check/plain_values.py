"""Strings, sequences and maps as arrays by name, which are compared one by one."""

from collections.abc import Mapping
from typing import Any

import numpy as np


def plain_arrays(values: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """One array for each tensor in the values.

    A sequence ``q`` gives ``q[0]``, ``q[1]`` and so on, and its length. Maps, one or a sequence of
    them, give an array of their values, by rising key, and one of the keys. None gives a word.
    """
    found: dict[str, np.ndarray] = {}
    for name, value in values.items():
        found |= _plain(name, value)
    return found


def _plain(name: str, value: Any) -> dict[str, np.ndarray]:
    if value is None:
        return {name: np.array("no element", object)}
    if isinstance(value, dict):
        return _of_maps(name, [value])
    if not isinstance(value, list):
        return {name: np.asarray(value)}
    if value and all(isinstance(one, dict) for one in value):
        return _of_maps(name, value)
    found = {f"length of {name}": np.array(len(value))}
    for place, one in enumerate(value):
        found |= _plain(f"{name}[{place}]", one)
    return found


def _of_maps(name: str, maps: list[dict[Any, Any]]) -> dict[str, np.ndarray]:
    keys = [key for one in maps for key in sorted(one)]
    values = np.array([one[key] for one in maps for key in sorted(one)])
    # Python has one kind of float: the maps of ONNX hold those of 32 bits.
    numbers = values.astype(np.float32) if values.dtype.kind == "f" else values
    return {f"keys of {name}": np.array([str(key) for key in keys], object), name: numbers}
