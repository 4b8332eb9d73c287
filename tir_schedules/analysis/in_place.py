"""Which inputs of a kernel may lie in the memory of its result, and the kernel written so.

The result may take an input's place where an element of the input is read for the same element of
the result only, by the statement that writes it, and each element is written once. Then it does
not matter in which order the elements are computed, on how many threads, or how many at a time.

That each is written once is a matter of counting: a kernel writes every element of its result, so
that loops with as many iterations as there are elements write none of them twice.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import prod

import tvm
import tvm_ffi
from tvm import tirx
from tvm.sym import Analyzer

from tvm_ext.tir_schedules.analysis.array_views import ArrayViews
from tvm_ext.tir_schedules.analysis.buffer_access import elements, is_compact, nodes

# An attribute of a kernel with code that takes the place of its loops in the end. What that reads,
# and when, the loops do not say.
CODE_ATTRIBUTE = "tvm_ext.mlir"


def keeps_module(func: tirx.PrimFunc) -> bool:
    """Whether a kernel keeps a module of MLIR, which is such code."""
    return func.attrs is not None and CODE_ATTRIBUTE in func.attrs


# As many kernels as a large model has: each plan of its storage asks.
@lru_cache(maxsize=512)
def in_place_operands(func: tirx.PrimFunc, result: int) -> tuple[int, ...]:
    """The parameters whose memory the parameter at place ``result`` may have; see above."""
    if keeps_module(func):
        return ()
    written = func.params[result]
    alike = [
        place
        for place, param in enumerate(func.params)
        if place != result and _is_alike(param, written)
    ]
    # How often the body of a loop on a condition runs is not known.
    if not alike or nodes(func.body, tirx.While):
        return ()
    arrays = ArrayViews(func)
    stores = arrays.stores_to(result)
    if arrays.uses(result) != len(stores) or not _write_each_once(func, stores, written):
        return ()
    return tuple(place for place in alike if _is_read_in_place(arrays, place, stores))


def written_in_place(func: tirx.PrimFunc, result: int, operand: int) -> tirx.PrimFunc:
    """The kernel with its result in the memory of an operand.

    It has the same parameters, of which the one of the result is not used any more: both are to be
    the same memory, and nothing that is said of parameters that do not overlap is wrong.
    """
    old, new = func.params[result], func.params[operand]

    def moved(variable: tvm.ir.Var) -> tvm.ir.Var:
        return new if variable.same_as(old) else variable

    body = tvm_ffi.structural_map(func.body, (tvm.ir.Var, moved))
    return tirx.PrimFunc(func.params, body, func.ret_type, func.attrs)


def _is_alike(one: tvm.ir.Var, other: tvm.ir.Var) -> bool:
    """Whether two parameters are arrays of the same shape and type, without gaps."""
    if not all(isinstance(param.ty, tirx.BufferType) for param in (one, other)):
        return False
    return (
        str(one.dtype) == str(other.dtype)
        and is_compact(one, symbolic_sizes=True)
        and is_compact(other, symbolic_sizes=True)
        and tvm_ffi.structural_equal(list(one.shape), list(other.shape))
    )


def _write_each_once(
    func: tirx.PrimFunc, stores: Sequence[tirx.BufferStore], written: tvm.ir.Var
) -> bool:
    loops = [(loop, nodes(loop.body, tirx.BufferStore)) for loop in nodes(func.body, tirx.For)]
    iterations = tirx.const(0, "int64")
    for store in stores:
        extents = [
            loop.extent.astype("int64")
            for loop, inside in loops
            if any(other.same_as(store) for other in inside)
        ]
        lanes = tvm.DataType(str(store.value.ty)).lanes
        iterations = iterations + prod(extents, start=tirx.const(lanes, "int64"))
    return bool(Analyzer().can_prove_equal(iterations, elements(written)))


def _is_read_in_place(arrays: ArrayViews, operand: int, stores: Sequence[tirx.BufferStore]) -> bool:
    """Whether these statements alone read an operand, each where it writes."""
    reads = [(store, load) for store in stores for load in arrays.loads_of(store.value, operand)]
    if not reads or arrays.uses(operand) != len(reads):
        return False
    return all(arrays.distance(store, load) == 0 for store, load in reads)
