"""RotaryEmbedding of com.microsoft in default operators.

The formula is that of ONNX Runtime's ContribOperators.md (Su et al., "RoFormer", 2021): pairs of
elements of a head are turned by an angle that grows with the position.
"""

import numpy as np
import onnx_ir as ir

from tvm_ext.onnx_frontend.microsoft_attention import ROWS, cut, joined_heads, last_size, rank
from tvm_ext.onnx_frontend.microsoft_builder import Builder, CannotRewrite


def rotary_embedding(b: Builder) -> list[ir.Value | None]:
    """Of rows [batch, positions, elements], or of heads [batch, heads, positions, elements]."""
    x, positions = b.input(0), b.input(1)
    if b.attribute("scale", 1.0) != 1 or b.attribute("is_packed_batching", 0):
        raise CannotRewrite("a scale, or sequences side by side")
    is_rows = rank(x) == ROWS
    if not is_rows and rank(x) != 4:
        raise CannotRewrite("the rank of its input is not known")
    count = b.attribute("num_heads", 0)
    if is_rows and not count:
        count = last_size(x) // (2 * last_size(b.input(2)))
    depth = last_size(x) // count if is_rows else last_size(x)
    if rank(positions) == 1:
        steps = b.counted(b.size(x, 1 if is_rows else 2))
        positions = b.unsqueezed(b.op("Add", steps, positions), 0)
    heads = x
    if is_rows:
        shape = b.constant(np.array([0, 0, count, depth]))
        heads = b.op("Transpose", b.op("Reshape", x, shape), perm=[0, 2, 1, 3])
    turned = rotated(b, heads, depth, positions, (b.input(2), b.input(3)))
    return [joined_heads(b, turned) if is_rows else turned]


def rotated(
    b: Builder,
    heads: ir.Value,
    depth: int,
    positions: ir.Value,
    caches: tuple[ir.Value, ir.Value],
    interleaved: str = "interleaved",
) -> ir.Value:
    """Heads [batch, heads, positions, depth] turned by the angles of their positions.

    ``caches``: cosine and sine by position, for half as many elements as are turned; the rest stays
    as it is. ``interleaved``: the attribute that says whether neighbours are a pair, not halves.
    """
    half = last_size(caches[0])
    cosine, sine = (b.unsqueezed(b.op("Gather", c, positions, axis=0), 1) for c in caches)
    turning, rest = heads, []
    if 2 * half < depth:
        turning, *rest = cut(b, heads, [2 * half, depth - 2 * half], axis=3)
    is_interleaved = b.attribute(interleaved, 0)
    if is_interleaved:
        # Pairs become halves for the time being.
        turning = _regrouped(b, turning, [half, 2])
    first, second = cut(b, turning, [half, half], axis=3)
    parts = [
        b.op("Sub", b.op("Mul", first, cosine), b.op("Mul", second, sine)),
        b.op("Add", b.op("Mul", first, sine), b.op("Mul", second, cosine)),
    ]
    if is_interleaved:
        parts = [_regrouped(b, b.op("Concat", *parts, axis=3), [2, half])]
    return b.op("Concat", *parts, *rest, axis=3) if len(parts) + len(rest) > 1 else parts[0]


def _regrouped(b: Builder, x: ir.Value, shape: list[int]) -> ir.Value:
    """The last axis as a matrix of ``shape``, turned."""
    matrix = b.op("Reshape", x, b.constant(np.array([0, 0, 0, *shape])))
    turned = b.op("Transpose", matrix, perm=[0, 1, 2, 4, 3])
    return b.op("Reshape", turned, b.constant(np.array([0, 0, 0, shape[0] * shape[1]])))
