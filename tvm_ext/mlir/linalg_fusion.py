"""Fusion and tiling of operations of linalg on tensors, by MLIR's passes and its transform dialect.

Before: ``%0 = linalg.matmul; %1 = linalg.generic {bias} (%0); %2 = linalg.generic {relu} (%1)``
After:  ``scf.for rows { %0 = linalg.matmul (slice); %1 = linalg.generic {bias, relu} (%0) }``

Elementwise operations become one. The last operation of a function is tiled along its outermost
loops, and what it reads is computed tile by tile in the same loops, so that it stays in a cache.
"""

import math
from collections.abc import Sequence

from torch_mlir import ir

from tvm_ext.hardware.cost_model import CostModel, Work
from tvm_ext.mlir.lowering import apply_transform, operations_below, run_passes

# Elementwise operations need no names to be fused, and get none where they are fused.
_ELEMENTWISE = (
    "linalg-generalize-named-ops",
    "linalg-fuse-elementwise-ops",
    "canonicalize",
    "cse",
)

_MARK = "tvm_ext.last"


def fuse_elementwise(module: ir.Module) -> None:
    """Makes one operation of elementwise ones that follow each other. Raises MlirError."""
    run_passes(module, _ELEMENTWISE)


def fuse_and_tile(module: ir.Module, cost_model: CostModel) -> str:
    """Fuses elementwise operations, and computes what the last one reads tile by tile.

    Raises MlirError where a pass of MLIR fails.

    Parameters
    ----------
    module : ir.Module
        Functions on tensors, which are changed.
    cost_model : CostModel
        Chooses the tile.

    Returns
    -------
    str
        What was done, in a few words.
    """
    before = len(linalg_operations(module))
    fuse_elementwise(module)
    last = _last_with_producers(module)
    tile = tile_sizes(last, cost_model) if last is not None else ()
    if last is not None and any(tile):
        last.attributes[_MARK] = ir.UnitAttr.get(module.context)
        apply_transform(_tiling(tile), module)
        run_passes(module, ["canonicalize", "cse"])
        _remove_mark(module)
    what = f"{before} operations of linalg became {len(linalg_operations(module))}"
    return f"{what}, in tiles of {_as_text(tile)}" if any(tile) else what


def _tiling(tile: Sequence[int]) -> str:
    loops = ", ".join(["!transform.any_op"] * sum(size > 0 for size in tile))
    names = ", ".join(f"%l{n}" for n in range(sum(size > 0 for size in tile)))
    return f"""
    %last = transform.structured.match attributes {{{_MARK}}} in %root
        : (!transform.any_op) -> !transform.any_op
    %tiled, {names} = transform.structured.fuse %last tile_sizes {list(tile)}
        : (!transform.any_op) -> (!transform.any_op, {loops})
    %functions = transform.structured.match ops{{["func.func"]}} in %root
        : (!transform.any_op) -> !transform.any_op
    transform.apply_patterns to %functions {{
      transform.apply_patterns.canonicalization
      transform.apply_patterns.tensor.fold_tensor_empty
    }} : !transform.any_op"""


def linalg_operations(module: ir.Module) -> list[ir.Operation]:
    """The operations of linalg that compute something, in their order."""
    left_out = ("linalg.yield", "linalg.index")
    return [
        op
        for op in operations_below(module.operation)
        if op.name.startswith("linalg.") and op.name not in left_out
    ]


def _remove_mark(module: ir.Module) -> None:
    for op in linalg_operations(module):
        if _MARK in op.attributes:
            del op.attributes[_MARK]


def _last_with_producers(module: ir.Module) -> ir.Operation | None:
    """The last operation, where it has parallel loops and reads what another one computes."""
    found = linalg_operations(module)
    if not found or len(found[-1].results) != 1 or not _static_shape(found[-1].results[0]):
        return None
    owners = [getattr(value.owner, "operation", None) for value in found[-1].operands]
    reads = {op.name for op in owners if op is not None}
    has_producer = any(name.startswith("linalg.") and name != "linalg.fill" for name in reads)
    return found[-1] if has_producer and "reduction" not in _iterators(found[-1]) else None


def _iterators(op: ir.Operation) -> str:
    return str(op.attributes["iterator_types"]) if "iterator_types" in op.attributes else ""


def _static_shape(value: ir.Value) -> list[int]:
    """The sizes of a tensor; empty where it has none or one is open."""
    kind = value.type
    known = isinstance(kind, ir.RankedTensorType) and kind.has_static_shape
    return list(kind.shape) if known else []


def tile_sizes(op: ir.Operation, cost_model: CostModel) -> tuple[int, ...]:
    """Sizes of tiles along the loops of an elementwise operation; 0 leaves a loop whole.

    Its outermost loops are cut first, so that a tile is a piece of memory. Of the divisors of each
    loop that one is taken with which all tiles together cost least: a tile that fits into a cache
    runs at the bandwidth of the cache, and each tile has a fixed cost.
    """
    shape = _static_shape(op.results[0])
    inputs = [_static_shape(value) for value in op.operands]
    per_element = 4.0 * sum(math.prod(one) for one in (*inputs, shape) if one) / math.prod(shape)
    best: tuple[float, tuple[int, ...]] | None = None
    for axis in range(len(shape) - 1):
        if math.prod(shape[:axis]) > _MOST_TILES:
            break
        for size in _divisors(shape[axis]):
            tile = (*([1] * axis), size, *([0] * (len(shape) - axis - 1)))
            elements = size * math.prod(shape[axis + 1 :])
            count = math.prod(shape) / elements
            work = Work(elements * _OPERATIONS, elements * per_element)
            seconds = count * cost_model.seconds(work)
            if count <= _MOST_TILES and (best is None or seconds < best[0]):
                best = seconds, tile
    if best is None:
        return ()
    _, tile = best
    # A tile that is all of its loops is none.
    whole = all(size in (0, extent) for size, extent in zip(tile, shape, strict=True))
    return () if whole else tuple(0 if s == e else s for s, e in zip(tile, shape, strict=True))


# Operations for each element of an elementwise operation, roughly: memory decides.
_OPERATIONS = 2.0
_MOST_TILES = 4096


def _divisors(extent: int) -> list[int]:
    return [size for size in range(1, extent + 1) if extent % size == 0]


def _as_text(tile: Sequence[int]) -> str:
    return " x ".join(str(size) if size else "all" for size in tile)
