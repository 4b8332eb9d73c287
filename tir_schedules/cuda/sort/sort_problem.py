"""What a kernel sorts, read from the call of TVM's sorting function for CPUs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import s_tir, tirx

from tvm_ext.tir_schedules.block_access import static_extent
from tvm_ext.tir_schedules.flat_views import is_compact, nodes
from tvm_ext.tir_schedules.template import NotMine

SORTED_TYPES = ("float32", "float64", "int32", "int64")

_FUNCTIONS = {"tvm.contrib.sort.topk", "tvm.contrib.sort.argsort", "tvm.contrib.sort.sort"}

# Positions are numbers of 31 bits, and the largest one is none.
_LONGEST = 2**31 - 2


@dataclass(frozen=True)
class SortProblem:
    """The best ``kept`` of every row, best first; of equals, the one that comes first.

    Attributes
    ----------
    source : buffer
        What is sorted.
    values, indices : buffer or None
        Where the sorted values go, and their places along the axis, if anybody wants them.
    before, length, after : int
        Sizes of the source in front of the axis, along it, and behind it.
    kept : int
        Elements of a row that are wanted.
    ascending : bool
        Whether the smallest is the best.
    """

    source: Any
    values: Any
    indices: Any
    before: int
    length: int
    after: int
    kept: int
    ascending: bool

    @property
    def rows(self) -> int:
        """How many rows are sorted."""
        return self.before * self.after

    @property
    def dtype(self) -> str:
        """Of what is sorted."""
        return str(self.source.dtype)


def can_sort(shape: Sequence[Any], axis: int, dtype: str) -> bool:
    """Whether tensors of a shape and a type are sorted along an axis by a kernel of ours."""
    sizes = [static_extent(size) for size in shape]
    if not sizes or any(not size for size in sizes) or dtype not in SORTED_TYPES:
        return False
    return (sizes[axis % len(sizes)] or 0) <= _LONGEST


def sort_of(func: tirx.PrimFunc) -> SortProblem | NotMine:
    """What ``func`` sorts, or why it is no sort."""
    call = _sorting_call(func)
    if call is None:
        return NotMine("the kernel sorts nothing")
    params = [param for param in func.params if isinstance(param.ty, tirx.BufferType)]
    if len(params) != len(func.params) or not all(is_compact(param) for param in params):
        return NotMine("a tensor of the sort has a size of the run, or gaps")
    source, *results = params
    options = list(call.args[1 + len(params) :])
    numbers = [static_extent(option) for option in options]
    what = str(call.args[0].value).rsplit(".", 1)[-1]
    axis, ascending = numbers[1 if what == "topk" else 0], numbers[-1]
    sizes = [static_extent(size) or 0 for size in source.shape]
    if axis is None or ascending is None or not can_sort(sizes, axis, str(source.dtype)):
        return NotMine("the sort is of a type or a shape that it is not written for")
    axis %= len(sizes)
    values, indices = _results(what, results)
    return SortProblem(
        source,
        values,
        indices,
        math.prod(sizes[:axis]),
        sizes[axis],
        math.prod(sizes[axis + 1 :]),
        static_extent(results[0].shape[axis]) or 0,
        bool(ascending),
    )


def _sorting_call(func: tirx.PrimFunc) -> Any:
    """The call that is all of the kernel."""
    if not isinstance(func.body, s_tir.SBlockRealize):
        return None
    calls = [
        call
        for call in nodes(func.body, tvm.ir.Call)
        if str(getattr(call.op, "name", "")).endswith("call_packed")
    ]
    if len(calls) != 1 or not isinstance(calls[0].args[0], tvm.ir.StringImm):
        return None
    return calls[0] if str(calls[0].args[0].value) in _FUNCTIONS else None


def _results(what: str, results: Sequence[Any]) -> tuple[Any, Any]:
    """The buffers of values and of places among a kernel's results."""
    if what == "sort":
        return results[0], None
    if what == "argsort":
        return None, results[0]
    if len(results) == 2:
        return results[0], results[1]
    raise ValueError("a TopK of values or of places alone")
