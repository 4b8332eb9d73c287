"""Which inputs of a kernel may lie in the memory of its result, and the kernel written so.

The result may take an input's place where an element of the input is read for the same element of
the result only, by the one statement that writes it, and each element is written once. Then it does
not matter in which order the elements are computed, on how many threads, or how many at a time.

That each is written once is a matter of counting: a kernel writes every element of its result, so
that loops with as many iterations as there are elements write none of them twice.
"""

from collections.abc import Sequence
from math import prod

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.sym import Analyzer

from tvm_ext.tir_schedules.analysis.buffer_access import elements, is_compact, is_load, nodes


def in_place_operands(func: tirx.PrimFunc, result: int) -> list[int]:
    """The parameters whose memory the parameter at place ``result`` may have; see above."""
    written = func.params[result]
    alike = [
        place
        for place, param in enumerate(func.params)
        if place != result and _is_alike(param, written)
    ]
    store = _only_store(func, written) if alike else None
    if store is None or not _writes_each_once(func, store):
        return []
    return [place for place in alike if _read_by(func, func.params[place], store)]


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


def _only_store(func: tirx.PrimFunc, written: tvm.ir.Var) -> tirx.BufferStore | None:
    """The one statement that writes to an array that nothing else is done with."""
    found = [s for s in nodes(func.body, tirx.BufferStore) if s.buffer.same_as(written)]
    if len(found) != 1 or nodes(func.body, tirx.While):
        return None
    return found[0] if _uses(func.body, written) == 1 + _regions(func, written) else None


def _writes_each_once(func: tirx.PrimFunc, store: tirx.BufferStore) -> bool:
    loops = [
        loop
        for loop in nodes(func.body, tirx.For)
        if any(other.same_as(store) for other in nodes(loop.body, tirx.BufferStore))
    ]
    lanes = tvm.DataType(str(store.value.ty)).lanes
    iterations = prod([loop.extent for loop in loops], start=tirx.const(lanes, "int64"))
    return bool(Analyzer().can_prove_equal(iterations, elements(store.buffer)))


def _read_by(func: tirx.PrimFunc, operand: tvm.ir.Var, store: tirx.BufferStore) -> bool:
    """Whether an array is read by this statement only, and there at the place it writes to."""
    loads = [load for load in nodes(store.value, tvm.ir.TensorLoad) if is_load(load, operand)]
    if not loads or _uses(func.body, operand) != len(loads) + _regions(func, operand):
        return False
    return all(_same(load.indices, store.indices) for load in loads)


def _same(one: Sequence[tvm.ir.Expr], other: Sequence[tvm.ir.Expr]) -> bool:
    return bool(tvm_ffi.structural_equal(list(one), list(other)))


def _uses(body: tirx.Stmt, array: tvm.ir.Var) -> int:
    return sum(variable.same_as(array) for variable in nodes(body, tvm.ir.Var))


def _regions(func: tirx.PrimFunc, array: tvm.ir.Var) -> int:
    """How often blocks say of an array that they read or write it."""
    return sum(
        region.source.same_as(array)
        for block in nodes(func.body, s_tir.SBlock)
        for region in [*block.reads, *block.writes]
    )
