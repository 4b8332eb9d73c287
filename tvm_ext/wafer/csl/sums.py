"""Indices as sums of multiples of loop variables: parts of them, and their range."""

from collections.abc import Collection, Mapping
from typing import Any

from tvm_ext.tuning.mesh_analysis.affine import Affine, affine_of
from tvm_ext.wafer.csl.errors import NotCovered


def sum_of(index: Any, known: Mapping[int, Affine | None], of: str = "of a block") -> Affine:
    """An index as a sum; ``known`` has what each variable is, by the variable's hash.

    Raises NotCovered when it is none (it divides, or depends on data); ``of`` says whose it is.
    """
    found = affine_of(index, known)
    if found is None or found.others:
        raise NotCovered(f"an index {of} is no sum of multiples of the loops")
    return found


def part(index: Affine, loops: Collection[int]) -> Affine:
    """The terms of ``loops``, without the constant."""
    return Affine(0, {loop: factor for loop, factor in index.factors.items() if loop in loops})


def without(index: Affine, loops: Collection[int]) -> Affine:
    """All but the terms of ``loops``."""
    return index.plus(part(index, loops), -1)


def range_of(index: Affine, extents: Mapping[int, int]) -> tuple[int, int]:
    """The least and the greatest value while each loop goes from 0 below its extent."""
    ends = [factor * (extents[loop] - 1) for loop, factor in index.factors.items()]
    least = index.constant + sum(end for end in ends if end < 0)
    return least, index.constant + sum(end for end in ends if end > 0)
