"""A perfect nest written as linalg.generic, on tensors or on memrefs.

Before: ``for i, j, k: C[i, j] += A[i, k] * B[k, j]``
After:  ``linalg.generic {maps (i, j, k) -> (i, k), (k, j), (i, j)} ins(%A, %B) outs(%C)``

A load whose indices are affine in the nest's variables becomes an operand. One that is guarded by
a condition, or whose place is looked up, is an extraction within the body.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from torch_mlir import ir
from torch_mlir.dialects import linalg
from tvm import tirx
from tvm.sym import Analyzer

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.mlir import operations as ops
from tvm_ext.mlir.block_nest import BlockNest
from tvm_ext.mlir.element_types import dtype_of, stored_type
from tvm_ext.mlir.expressions import ExpressionWriter
from tvm_ext.mlir.storage import Slice, Storage
from tvm_ext.tir_schedules.analysis.buffer_access import (
    depends,
    is_conditional,
    nodes,
    static_extent,
)


@dataclass(frozen=True)
class _Operand:
    """A part of a buffer, and where in it the point of an iteration lies."""

    buffer: Any
    part: Slice
    map: ir.AffineMap

    @property
    def key(self) -> tuple[int, str, str]:
        """Two operands with the same key are the same."""
        return hash(self.buffer), self.part.text, str(self.map)


def write_generic(nest: BlockNest, storage: Storage, sizes: ExpressionWriter) -> None:
    """Writes the nest; raises NotApplicable, before anything is written, where it cannot.

    Parameters
    ----------
    nest : BlockNest
        The nest.
    storage : Storage
        The kernel's buffers, of which those that the nest stores get new values.
    sizes : ExpressionWriter
        Knows the symbolic sizes.
    """
    places = _Places(nest)
    outputs = [places.of_store(store) for store in nest.stores]
    if len({hash(one.buffer) for one in outputs}) < len(outputs):
        raise NotApplicable("it stores to a buffer twice")
    inputs = _inputs(nest, places, outputs)
    initial = [_init_value(nest, store) for store in nest.init]
    if len(initial) not in (0, len(outputs)):
        raise NotApplicable("its first values are not those of its stores")
    storage.check_slices([one.part for one in (*inputs, *outputs)])
    for operand, value in zip(outputs, initial, strict=False):
        storage.fill(operand.buffer, operand.part, value, sizes)
    _write(nest, storage, sizes, inputs, outputs)


def _init_value(nest: BlockNest, store: Any) -> Any:
    if nodes(store.value, tvm.ir.TensorLoad) or depends(store.value, *nest.variables):
        raise NotApplicable("its first values differ from element to element")
    return store.value


def _inputs(nest: BlockNest, places: "_Places", outputs: Sequence[_Operand]) -> list[_Operand]:
    """What the body reads as operands, each once; raises NotApplicable for a recurrence."""
    stored = {hash(one.buffer): one for one in outputs}
    found: dict[tuple[int, str, str], _Operand] = {}
    for stmt in nest.body:
        for load, certain in _loads(stmt.value):
            operand = places.of_load(load) if certain else None
            own = stored.get(hash(load.source))
            if own is not None:
                if operand is None or operand.key != own.key:
                    raise NotApplicable("it reads other elements of what it writes")
            elif operand is not None:
                found.setdefault(operand.key, operand)
    return list(found.values())


def _loads(expr: Any, certain: bool = True) -> list[tuple[Any, bool]]:
    """All loads below an expression, and whether each is done at every point."""
    found: list[tuple[Any, bool]] = []
    if isinstance(expr, tvm.ir.TensorLoad):
        found.append((expr, certain))
    for place, child in enumerate(_children(expr)):
        inside = certain and not (is_conditional(expr) and place > 0)
        found += _loads(child, inside)
    return found


def _children(expr: Any) -> list[Any]:
    if isinstance(expr, tvm.ir.TensorLoad):
        return list(expr.indices)
    if isinstance(expr, tvm.ir.Call):
        return [one for one in expr.args if isinstance(one, tvm.ir.Expr)]
    names = ("a", "b", "value", "condition", "true_value", "false_value", "body")
    found = (getattr(expr, name, None) for name in names)
    return [one for one in found if isinstance(one, tvm.ir.Expr)]


class _Places:
    """Reads where in buffers the points of a nest lie."""

    def __init__(self, nest: BlockNest) -> None:
        self._nest = nest
        self._dimension = {hash(var): place for place, var in enumerate(nest.variables)}
        self._analyzer = Analyzer()
        for var, extent in zip(nest.variables, nest.extents, strict=True):
            self._analyzer.bind(var, tvm.ir.Range.from_min_extent(0, extent))

    def of_store(self, store: Any) -> _Operand:
        """Raises NotApplicable where the points do not each have an element of their own."""
        operand = self._operand(store.buffer, store.indices, is_store=True)
        dims = [one.position for one in operand.map.results if isinstance(one, ir.AffineDimExpr)]
        parallel = [n for n, reduces in enumerate(self._nest.reduces) if not reduces]
        needed = [n for n in parallel if static_extent(self._nest.extents[n]) != 1]
        if len(set(dims)) < len(dims) or not set(needed) <= set(dims) <= set(parallel):
            raise NotApplicable("its points do not each write an element of their own")
        return operand

    def of_load(self, load: Any) -> _Operand | None:
        """None where the place is not affine in the nest's variables."""
        try:
            return self._operand(load.source, load.indices, is_store=False)
        except NotApplicable:
            return None

    def _operand(self, buffer: Any, indices: Sequence[Any], is_store: bool) -> _Operand:
        results, offsets, lengths = [], [], []
        for index, size in zip(indices, buffer.shape, strict=True):
            expr, offset, length = self._along_axis(index, size, is_store)
            results.append(expr)
            offsets.append(offset)
            lengths.append(length)
        count = len(self._nest.variables)
        return _Operand(
            buffer, Slice(tuple(offsets), tuple(lengths)), ir.AffineMap.get(count, 0, results)
        )

    def _along_axis(self, index: Any, size: Any, is_store: bool) -> tuple[ir.AffineExpr, Any, Any]:
        """The map's expression, and the part of the axis: None and None for all of it."""
        if isinstance(index, tvm.ir.Var) and hash(index) in self._dimension:
            place = self._dimension[hash(index)]
            extent = self._nest.extents[place]
            whole = bool(self._analyzer.can_prove_equal(extent, size))
            part = (None, None) if whole else (0, extent)
            return ir.AffineExpr.get_dim(place), *part
        if is_store:
            return self._along_stored_axis(index, size)
        found = affine_expression(index, self._dimension)
        if found is None:
            raise NotApplicable("an index is not affine")
        return found, None, None

    def _along_stored_axis(self, index: Any, size: Any) -> tuple[ir.AffineExpr, Any, Any]:
        """A constant, or a variable and a constant: a stretch of the axis."""
        number = static_extent(index)
        if number is not None:
            whole = number == 0 and static_extent(size) == 1
            return ir.AffineExpr.get_constant(0), *((None, None) if whole else (number, 1))
        if isinstance(index, tirx.Add | tirx.Sub) and isinstance(index.a, tvm.ir.Var):
            place, offset = self._dimension.get(hash(index.a)), static_extent(index.b)
            if place is not None and offset is not None:
                begin = offset if isinstance(index, tirx.Add) else -offset
                return ir.AffineExpr.get_dim(place), begin, self._nest.extents[place]
        raise NotApplicable("it stores at an index that is no variable of its loops")


def affine_expression(expr: Any, dimensions: dict[int, int]) -> ir.AffineExpr | None:
    """An index as an affine expression of MLIR; None where it is none.

    ``dimensions`` has the number of each variable by its hash.
    """
    number = static_extent(expr)
    if number is not None:
        return ir.AffineExpr.get_constant(number)
    if isinstance(expr, tvm.ir.Var):
        place = dimensions.get(hash(expr))
        return None if place is None else ir.AffineExpr.get_dim(place)
    if isinstance(expr, tirx.Add | tirx.Sub | tirx.Mul):
        return _affine_pair(expr, dimensions)
    if isinstance(expr, tirx.FloorDiv | tirx.FloorMod):
        divided, divisor = affine_expression(expr.a, dimensions), static_extent(expr.b)
        if divided is None or divisor is None or divisor <= 0:
            return None
        kind = ir.AffineExpr.get_floor_div
        return (kind if isinstance(expr, tirx.FloorDiv) else ir.AffineExpr.get_mod)(
            divided, ir.AffineExpr.get_constant(divisor)
        )
    return None


def _affine_pair(expr: Any, dimensions: dict[int, int]) -> ir.AffineExpr | None:
    left, right = (affine_expression(one, dimensions) for one in (expr.a, expr.b))
    if left is None or right is None:
        return None
    if isinstance(expr, tirx.Add):
        return left + right
    if isinstance(expr, tirx.Sub):
        return left - right
    if static_extent(expr.a) is None and static_extent(expr.b) is None:
        return None
    return left * right


def _write(
    nest: BlockNest,
    storage: Storage,
    sizes: ExpressionWriter,
    inputs: Sequence[_Operand],
    outputs: Sequence[_Operand],
) -> None:
    maps = [one.map for one in (*inputs, *outputs)]
    ins = [storage.read_part(one.buffer, one.part, sizes) for one in inputs]
    shape = _shape_operand(nest, maps, storage, sizes)
    if shape is not None:
        ins.append(shape[0])
        maps.insert(len(inputs), shape[1])
    outs = [storage.part_to_write(one.buffer, one.part, sizes) for one in outputs]
    iterators = ["reduction" if reduces else "parallel" for reduces in nest.reduces]
    types = [value.type for value in outs] if storage.is_tensors else []
    op = linalg.GenericOp(
        types,
        ins,
        outs,
        ir.ArrayAttr.get([ir.AffineMapAttr.get(one) for one in maps]),
        ir.ArrayAttr.get([ir.Attribute.parse(f"#linalg.iterator_type<{n}>") for n in iterators]),
    )
    elements = [value.type.element_type for value in (*ins, *outs)]
    body = op.regions[0].blocks.append(*elements)
    given = list(body.arguments)
    known = {one.key: value for one, value in zip(inputs, given, strict=False)}
    known |= {one.key: value for one, value in zip(outputs, given[len(ins) :], strict=True)}
    with ir.InsertionPoint(body):
        linalg.yield_(_results(nest, storage, sizes, known))
    for one, result in zip(outputs, op.results if types else outs, strict=True):
        storage.write_part(one.buffer, one.part, result, sizes)


def _results(
    nest: BlockNest,
    storage: Storage,
    sizes: ExpressionWriter,
    known: dict[tuple[int, str, str], ir.Value],
) -> list[ir.Value]:
    places = _Places(nest)
    values = dict(sizes.values)
    for place, var in enumerate(nest.variables):
        values[hash(var)] = linalg.IndexOp(place).result

    def load(expr: Any) -> ir.Value:
        operand = places.of_load(expr)
        element = None if operand is None else known.get(operand.key)
        if element is None:
            element = storage.load(expr.source, [writer.index(one) for one in expr.indices])
        return ops.cast_from_memory(element, dtype_of(expr))

    writer = ExpressionWriter(values, load)
    results = []
    for stmt in nest.body:
        if isinstance(stmt, tirx.Bind):
            writer.values[hash(stmt.var)] = writer.value(stmt.value)
        else:
            result = ops.cast_to_memory(writer.value(stmt.value), dtype_of(stmt.buffer))
            # Statements that follow read what is stored here.
            known[places.of_store(stmt).key] = result
            results.append(result)
    return results


def _shape_operand(
    nest: BlockNest, maps: Sequence[ir.AffineMap], storage: Storage, sizes: ExpressionWriter
) -> tuple[ir.Value, ir.AffineMap] | None:
    """An operand without contents that says how far loops go which no other operand shows.

    linalg takes the extent of a loop from an operand that has the loop itself as an index: of a
    pooling nothing has the window.
    """
    results = [one for each in maps for one in each.results]
    shown = {one.position for one in results if isinstance(one, ir.AffineDimExpr)}
    hidden = [n for n in range(len(nest.variables)) if n not in shown]
    if not hidden:
        return None
    value = storage.empty([nest.extents[n] for n in hidden], stored_type("int8"), sizes)
    return value, ir.AffineMap.get(
        len(nest.variables), 0, [ir.AffineExpr.get_dim(n) for n in hidden]
    )
