"""Kernels that only move their operands, each as a whole and without changing it.

A concatenation along the outermost axis that has more than one entry writes its operands one behind
the other; a slice of that axis reads a range. Whether a kernel does no more than that follows from
its addresses: for every statement that writes the result, the address there and the address that is
read have the same distance, whatever the loops do.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.sym import Analyzer

from tvm_ext.tir_schedules.analysis.buffer_access import (
    elements,
    flat_address,
    is_compact,
    is_conditional,
    nodes,
)


@dataclass(frozen=True)
class Copies:
    """What a kernel with one result moves.

    Attributes
    ----------
    result : int
        The place of the result among the parameters.
    distances : dict of int to int
        By the place of an operand, in elements: its element 0 is this one of the result. Of a slice
        the distance is negative, for the result begins behind the operand's beginning.
    """

    result: int
    distances: dict[int, int] = field(default_factory=dict)


def copies(func: tirx.PrimFunc) -> Copies | None:
    """What a kernel moves, of known sizes; None where it does something else."""
    stores = nodes(func.body, tirx.BufferStore)
    places = {id_of(param): place for place, param in enumerate(func.params)}
    if not stores or not all(_is_array(param) for param in func.params):
        return None
    # A flat view is another name of a parameter.
    for view in nodes(func.body, tirx.DeclBuffer):
        owner = next((p for p in func.params if _is_view_of(view, p)), None)
        if owner is not None:
            places[id_of(view.buffer)] = places[id_of(owner)]
    results = {places.get(id_of(store.buffer)) for store in stores}
    result = results.pop() if len(results) == 1 else None
    if result is None:
        return None
    analyzer = _analyzer_of(func)
    found = Copies(result)
    for store in stores:
        written = flat_address(store.buffer, store.indices)
        for load in _leaves(store.value):
            place = places.get(id_of(load.source)) if load is not None else None
            if load is None or place is None or place == result:
                return None
            read = flat_address(load.source, load.indices)
            distance = analyzer.simplify(written - read.astype(str(written.ty)))
            if not isinstance(distance, tirx.IntImm):
                return None
            if found.distances.setdefault(place, int(distance)) != int(distance):
                return None
    return found


def id_of(variable: tvm.ir.Var) -> int:
    """What tells variables of one kernel apart."""
    return hash(variable)


def _is_array(param: tvm.ir.Var) -> bool:
    return isinstance(param.ty, tirx.BufferType) and is_compact(param)


def _is_view_of(view: tirx.DeclBuffer, param: tvm.ir.Var) -> bool:
    """Whether a declared array is the whole of a parameter."""
    data = view.data
    named = nodes(data, tvm.ir.Var) if data is not None else []
    return (
        len(named) == 1
        and named[0].same_as(param)
        and is_compact(view.buffer)
        and elements(view.buffer) == elements(param)
    )


def _leaves(value: Any) -> Iterator[tvm.ir.TensorLoad | None]:
    """The elements that a value is one of; None for anything that is no element."""
    if is_conditional(value):
        for side in value.args[1:]:
            yield from _leaves(side)
    elif isinstance(value, tirx.Select):
        yield from _leaves(value.true_value)
        yield from _leaves(value.false_value)
    else:
        yield value if isinstance(value, tvm.ir.TensorLoad) else None


def _analyzer_of(func: tirx.PrimFunc) -> Analyzer:
    """It knows how far loops and blocks go: a loop with one iteration is at 0."""
    analyzer = Analyzer()
    for loop in nodes(func.body, tirx.For):
        analyzer.bind(loop.loop_var, tvm.ir.Range.from_min_extent(loop.min, loop.extent))
    for block in nodes(func.body, s_tir.SBlock):
        for axis in block.iter_vars:
            analyzer.bind(axis.var, axis.dom)
    return analyzer
