"""The vector instructions of a block, for the PE with the most to do and for all others."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import tirx

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.wafer.program import BlockWork
from tvm_ext.tir_schedules.analysis.affine import Affine
from tvm_ext.tir_schedules.analysis.buffer_access import element_bytes, nodes
from tvm_ext.tir_schedules.wafer.annotations import COLUMN, ROW
from tvm_ext.tuning.wafer.loops import MeshLoop, Place

# What one iteration of a block computes: vector instructions, scalar operations, operands.


_ARITHMETIC = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Max, tirx.Min)

# Comparisons and selections are vector instructions too: a mask, and a move under it.
_SELECTIONS = (tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ, tirx.NE, tirx.Select, tirx.Cast)

# Steps of one value that no vector instruction computes: a reciprocal by Newton's method, a
# polynomial with its range reduction.
_DIVISION_STEPS = 8
_FUNCTION_STEPS = 16
_CHEAP_CALLS = ("prim.if_then_else", "prim.abs", "prim.likely", "prim.fabs")


@dataclass(frozen=True)
class Arithmetic:
    """One iteration of a block.

    Attributes
    ----------
    vector_instructions : int
        Instructions that do this iteration together with others; at least one, the move.
    scalar_steps : int
        Operations that are done for each element by itself.
    flops : int
        Arithmetic operations; a multiply-add is two.
    loads : tuple
        The loads of tensors.
    """

    vector_instructions: int
    scalar_steps: int
    flops: int
    loads: tuple[tirx.Expr, ...]


def arithmetic_of(store: tirx.BufferStore, is_array: Callable[[Any], bool]) -> Arithmetic:
    """Counts what an assignment does.

    ``is_array`` says of a load whether it goes through an array with the vector instruction. A
    product that is added to is one instruction if one of its factors stays the same: CSL's @fmacs
    and @fmach multiply an array by a scalar.
    """
    vector, scalar, flops = 0, 0, 0
    for node in _value_nodes(store.value):
        kind = type(node)
        if kind in _ARITHMETIC:
            flops += 1
            vector += not _is_fused(node, is_array)
        elif kind in _SELECTIONS:
            vector += 1
        elif kind is tirx.Div:
            flops += 1
            scalar += 0 if isinstance(node.b, tirx.FloatImm) else _DIVISION_STEPS
            vector += isinstance(node.b, tirx.FloatImm)
        elif kind is tvm.ir.Call:
            cheap = str(node.op.name) in _CHEAP_CALLS
            vector += cheap
            scalar += 0 if cheap else _FUNCTION_STEPS
            flops += 0 if cheap else 1
    loads = tuple(nodes(store.value, tvm.ir.TensorLoad))
    return Arithmetic(max(1, vector) if not scalar else vector, scalar, flops, loads)


def _value_nodes(expr: tirx.Expr) -> list[tirx.Expr]:
    """Nodes that compute values; those of indices count for nothing: descriptors walk by them."""
    found, waiting = [], [expr]
    while waiting:
        node = waiting.pop()
        kind = type(node)
        if kind is tvm.ir.TensorLoad:
            continue
        found.append(node)
        if kind is tvm.ir.Call:
            arguments = list(node.args)
            if str(node.op.name) == "prim.if_then_else":
                # The condition is about indices: which part of the tile it is.
                arguments = arguments[1:]
            waiting += arguments
        elif kind in _ARITHMETIC or kind in _SELECTIONS[:6] or kind is tirx.Div:
            waiting += [node.a, node.b]
        elif kind is tirx.Cast:
            waiting.append(node.value)
        elif kind is tirx.Select:
            waiting += [node.condition, node.true_value, node.false_value]
    return found


def _is_fused(node: tirx.Expr, is_array: Callable[[Any], bool]) -> bool:
    """Whether an addition takes a product in, which then is a multiply-add."""
    if not isinstance(node, tirx.Add):
        return False
    products = [side for side in (node.a, node.b) if isinstance(side, tirx.Mul)]
    return any(
        not all(any(map(is_array, nodes(factor, tvm.ir.TensorLoad))) for factor in (one.a, one.b))
        for one in products
    )


# Conditions with more iterations are looked at in a few PEs first.
_MOST_POINTS = 1 << 14
_LOOKED_AT = 3


def work_of(place: Place, rows: int, columns: int, counted: Sequence[MeshLoop]) -> BlockWork:
    """The work of one execution of a block within the loops ``counted``, which are steps."""
    loops = place.inner(counted)
    vector = next((one for one in loops if one.is_vector), loops[-1] if loops else None)
    length = vector.extent if vector is not None else 1
    store = _store(place.block.body)

    def is_array(load: tirx.Expr) -> bool:
        return vector is None or _moves(load, place, vector)

    found = arithmetic_of(store, is_array)
    valid, row_share, column_share = _valid(place, rows, columns)
    iterations = math.prod(one.extent for one in loops) * valid
    loads = [load for load in found.loads if is_array(load)]
    # Each addition to one element waits for the one before: no vector rate. A published figure
    # of such a sum was not found.
    in_order = found.vector_instructions and length > 1 and _adds_to_one(store, is_array)
    vectors = found.vector_instructions - (1 if in_order else 0)
    return BlockWork(
        name=str(place.block.name_hint),
        instructions=iterations / length * found.vector_instructions,
        elements=iterations * vectors,
        length=float(length),
        scalar_operations=iterations * (found.scalar_steps + bool(in_order)),
        dtype=str(store.buffer.dtype),
        flops=iterations * found.flops,
        load_bytes=iterations * sum(element_bytes(load.source) for load in loads),
        store_bytes=iterations * element_bytes(store.buffer),
        operands=tuple(dict.fromkeys(str(load.source.name) for load in loads)),
        row_share=row_share,
        column_share=column_share,
    )


def _adds_to_one(store: tirx.BufferStore, is_array: Callable[[Any], bool]) -> bool:
    """Whether all elements of an instruction go into one."""
    loads = nodes(store.value, tvm.ir.TensorLoad)
    own = [load for load in loads if load.source.same_as(store.buffer)]
    return bool(own) and not any(map(is_array, own))


def _store(body: tirx.Stmt) -> Any:
    while not hasattr(body, "buffer") or not hasattr(body, "value"):
        inner = getattr(body, "body", None)
        if inner is None:
            raise NotApplicable("a block does something else than to assign one element")
        body = inner
    return body


def _moves(load: Any, place: Place, vector: MeshLoop) -> bool:
    """Whether a load goes through an array with the vector loop; else it is one scalar."""
    try:
        return any(place.span(index, [vector]) > 1 for index in load.indices)
    except NotApplicable:
        return True


def _valid(place: Place, rows: int, columns: int) -> tuple[float, np.ndarray, np.ndarray]:
    """Parts of the iterations that the predicate lets through: in all PEs, and by row and column.

    A condition on rows and columns together counts for the rows, with the first column.
    """
    everywhere = 1.0
    shares = {}
    coordinates = {axis: place.coordinates(axis) for axis in (ROW, COLUMN)}
    for axis, count in ((ROW, rows), (COLUMN, columns)):
        used = math.prod(one.extent for one in place.mesh(axis))
        shares[axis] = np.ones(count)
        shares[axis][used if place.mesh(axis) else count :] = 0.0
    for condition in place.conditions():
        variables = place.variables(condition)
        followed = [axis for axis, known in coordinates.items() if not variables.isdisjoint(known)]
        known = coordinates[followed[0]] if followed else {}
        passed = _passed(place, condition, variables, known)
        if not followed or (passed == passed[0]).all():
            everywhere *= float(passed[0])
        else:
            shares[followed[0]][: len(passed)] *= passed
    return everywhere, shares[ROW], shares[COLUMN]


def _passed(
    place: Place,
    condition: tirx.Expr,
    variables: frozenset[int],
    coordinates: dict[int, np.ndarray],
) -> np.ndarray:
    """For each coordinate, the part of the iterations of the other loops that pass a condition."""
    moving = [one for one in place.inner() if one.number in variables]
    below = place.difference(condition)
    if below is not None and len(moving) == 1:
        return _part_below(below, moving[0], coordinates)
    lengths = [one.extent for one in moving]
    count = len(next(iter(coordinates.values()))) if coordinates else 1
    if count > _LOOKED_AT and count * math.prod(lengths) > _MOST_POINTS:
        some = np.linspace(0, count - 1, _LOOKED_AT).astype(int)
        few = {one: found[some] for one, found in coordinates.items()}
        passed = _passed(place, condition, variables, few)
        if (passed == passed[0]).all():
            # Steps that are turned from PE to PE: other ones are short in each, and as many.
            return np.full(count, passed[0])
    points = {one: found.reshape(-1, *[1] * len(moving)) for one, found in coordinates.items()}
    for loop, values in zip(moving, np.indices(lengths), strict=True):
        points[loop.number] = values[None]
    passed = np.broadcast_to(place.values(condition, points), (count, *lengths))
    return passed.reshape(count, -1).mean(axis=1)


def _part_below(below: Affine, loop: MeshLoop, coordinates: dict[int, np.ndarray]) -> np.ndarray:
    """For each coordinate, the part of a loop's iterations in which ``below`` is below 0."""
    rest: Any = np.full(1, below.constant)
    for number, values in coordinates.items():
        rest = rest + below.factors.get(number, 0) * values
    factor = below.factors[loop.number]
    # Of a falling difference, the iterations that are counted are the last ones.
    first = rest if factor > 0 else rest + factor * (loop.extent - 1)
    return np.asarray(np.clip(-(first // abs(factor)), 0, loop.extent) / loop.extent)
