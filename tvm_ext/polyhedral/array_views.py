"""Arrays that a kernel declares as views of others."""

from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx
from tvm_ffi import structural_equal

from tvm_ext.polyhedral.affine_expressions import NotAffine
from tvm_ext.tir_schedules.analysis.buffer_access import (
    flat_address,
    is_compact,
    nodes,
    static_extent,
)
from tvm_ext.tir_schedules.statements import buffer_data_operator


@dataclass(frozen=True)
class View:
    """A declared array that lies in another one.

    Attributes
    ----------
    base : tirx.Buffer
        The other array.
    start : list
        The indices of the view's first element there.
    is_part : bool
        Whether an element of the view has the sum of its own indices and ``start`` for indices; if
        not, that holds of the addresses only.
    """

    base: Any
    start: list[Any]
    is_part: bool


def views_in(body: Any) -> dict[int, View]:
    """The views that a kernel declares of arrays without gaps, by the hash of the view."""
    found: dict[int, View] = {}
    for declared in nodes(body, tirx.DeclBuffer):
        place = _place_of_view(declared.data)
        if place is None:
            continue
        (base, start), own = place, declared.buffer
        is_known = is_compact(base, True) and is_compact(own, True)
        if is_known and str(own.dtype) == str(base.dtype):
            found[hash(own)] = View(base, start, _is_part(own, base, start))
    return found


def _place_of_view(data: Any) -> tuple[Any, list[Any]] | None:
    """The array and the indices in it where the memory of a view begins; None if not known."""
    if not isinstance(data, tvm.ir.Call):
        return None
    if data.op.same_as(buffer_data_operator()):
        base = data.args[0]
        return base, [tirx.const(0, "int64")] * len(base.shape)
    first = data.args[0] if str(getattr(data.op, "name", "")) == "tirx.address_of" else None
    return (first.source, list(first.indices)) if isinstance(first, tvm.ir.TensorLoad) else None


def _is_part(own: Any, base: Any, start: list[Any]) -> bool:
    """Whether a view is whole rows of its base: one index of these, and all of what is inside."""
    if len(own.shape) != len(base.shape):
        return False
    inside = 0
    for size, whole, first in zip(own.shape[::-1], base.shape[::-1], start[::-1], strict=True):
        if not structural_equal(size, whole) or static_extent(first) != 0:
            break
        inside += 1
    return all(
        static_extent(size) == 1 for size in own.shape[: max(len(own.shape) - inside - 1, 0)]
    )


def address_in(buffer: Any, indices: list[Any]) -> Any:
    """The place of an element in memory, with indices that may be plain numbers.

    Of a vector along the last axis it is a vector as well. Raises NotAffine for any other.
    """
    last = indices[-1] if indices else None
    if isinstance(last, tirx.Ramp):
        start = address_in(buffer, [*indices[:-1], last.base])
        return tirx.Ramp(start, last.stride.astype(str(start.ty)), last.lanes)
    if any(nodes(index, tirx.Ramp, tirx.Broadcast) for index in indices):
        raise NotAffine(f"a vector of {buffer.name} runs along no last axis")
    return flat_address(buffer, [tirx.const(0, "int64") + index for index in indices])


def behind(start: Any, index: Any) -> Any:
    """An index, or the indices of a vector, counted from ``start``."""
    if isinstance(index, tirx.Ramp):
        return tirx.Ramp(start + index.base, index.stride, index.lanes)
    return start + index
