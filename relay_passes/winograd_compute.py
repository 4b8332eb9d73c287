"""Winograd's convolution F(4x4, 3x3) as tensor expressions, and its weights.

A. Lavin, S. Gray, "Fast algorithms for convolutional neural networks", CVPR 2016: with ``d`` a tile
of 6x6 inputs, ``g`` the 3x3 weights and ``*`` element by element, 4x4 outputs are

    A^T ((G g G^T) * (B^T d B)) A

36 multiplications an input and output channel instead of 144. The elementwise product, summed over
input channels, is a matrix product of tiles and channels for each of the 36 positions.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import te, tirx

KERNEL, OUTPUT_TILE, INPUT_TILE = 3, 4, 6
POSITIONS = INPUT_TILE * INPUT_TILE

# Interpolation at 0, 1, -1, 2, -2 and infinity; rows of B^T, A^T and G.
_INPUT_TRANSFORM = (
    (4, 0, -5, 0, 1, 0),
    (0, -4, -4, 1, 1, 0),
    (0, 4, -4, -1, 1, 0),
    (0, -2, -1, 2, 1, 0),
    (0, 2, -1, -2, 1, 0),
    (0, 4, 0, -5, 0, 1),
)
_OUTPUT_TRANSFORM = (
    (1, 1, 1, 1, 1, 0),
    (0, 1, -1, 2, -2, 0),
    (0, 1, 1, 4, 4, 0),
    (0, 1, -1, 8, -8, 1),
)
_WEIGHT_TRANSFORM = (
    (1 / 4, 0, 0),
    (-1 / 6, -1 / 6, -1 / 6),
    (-1 / 6, 1 / 6, -1 / 6),
    (1 / 24, 1 / 12, 1 / 6),
    (1 / 24, -1 / 12, 1 / 6),
    (0, 0, 1),
)

# Blocks carry their part in the algorithm under this annotation, for whoever schedules them.
STAGE_ANNOTATION = "tvm_ext.winograd"


def transformed_weights(weights: np.ndarray, channels: int) -> np.ndarray:
    """``G g G^T`` for weights [3, 3, in, out]: float32 [36, in, channels], zeros beyond out."""
    transform = np.asarray(_WEIGHT_TRANSFORM, "float64")
    # In float64: these are rounded once, and used by every tile.
    wide = np.einsum("ai,bj,ijck->abck", transform, transform, weights.astype("float64"))
    inputs, outputs = weights.shape[2:]
    flat = wide.reshape(POSITIONS, inputs, outputs).astype("float32")
    return np.pad(flat, [(0, 0), (0, 0), (0, channels - outputs)])


def winograd_convolution(
    x: te.Tensor, weights: te.Tensor, padding: Sequence[int], channels: int
) -> te.Tensor:
    """3x3 convolution of stride 1: [n, h, w, channels] from x [n, h, w, in], weights [36, in, out].

    ``padding`` is top, left, bottom, right. ``weights`` come from ``transformed_weights``; of
    their outputs the first ``channels`` are kept.
    """
    top, left, bottom, right = padding
    batch, height, width, _ = (int(size) for size in x.shape)
    out_height = height + top + bottom - KERNEL + 1
    out_width = width + left + right - KERNEL + 1
    tiles = (batch, -(-out_height // OUTPUT_TILE), -(-out_width // OUTPUT_TILE))
    products = _products(_transformed_input(x, tiles, (top, left)), weights)
    return _transformed_output(products, (batch, out_height, out_width, channels))


def _transformed_input(
    x: te.Tensor, tiles: tuple[int, int, int], start: tuple[int, int]
) -> te.Tensor:
    """``B^T d B`` for every tile: [6, 6, n, tile rows, tile columns, in]."""
    _, height, width, inputs = x.shape
    side = INPUT_TILE

    def padded(n: Any, th: Any, tw: Any, i: Any, j: Any, c: Any) -> tirx.Expr:
        h, w = th * OUTPUT_TILE + i - start[0], tw * OUTPUT_TILE + j - start[1]
        inside = tirx.all(h >= 0, h < height, w >= 0, w < width)
        return tirx.if_then_else(inside, x[n, h, w, c], tirx.const(0.0, "float32"))

    tile = _stage("input_tile", (*tiles, side, side, inputs), padded)
    rows = _stage(
        "input_rows",
        (*tiles, side, side, inputs),
        lambda n, th, tw, i, j, c: _row_of(
            _INPUT_TRANSFORM, i, [tile[n, th, tw, r, j, c] for r in range(side)]
        ),
    )
    return _stage(
        "input_transform",
        (side, side, *tiles, inputs),
        lambda i, j, n, th, tw, c: _row_of(
            _INPUT_TRANSFORM, j, [rows[n, th, tw, i, r, c] for r in range(side)]
        ),
    )


def _products(x: te.Tensor, weights: te.Tensor) -> te.Tensor:
    """One matrix product for each position: [6, 6, n, tile rows, tile columns, out]."""
    depth = te.reduce_axis((0, x.shape[-1]), name="depth")
    return _stage(
        "products",
        (*x.shape[:-1], weights.shape[-1]),
        lambda i, j, n, th, tw, k: te.sum(
            x[i, j, n, th, tw, depth] * weights[i * INPUT_TILE + j, depth, k], axis=depth
        ),
    )


def _transformed_output(products: te.Tensor, shape: tuple[int, int, int, int]) -> te.Tensor:
    """``A^T m A`` of every tile, put in its place: [n, h, w, channels]."""
    side, step = INPUT_TILE, OUTPUT_TILE
    tiles, outputs = products.shape[2:5], products.shape[-1]
    rows = _stage(
        "output_rows",
        (*tiles, step, side, outputs),
        lambda n, th, tw, y, j, k: _row_of(
            _OUTPUT_TRANSFORM, y, [products[r, j, n, th, tw, k] for r in range(side)]
        ),
    )
    return _stage(
        "output",
        shape,
        lambda n, h, w, k: _row_of(
            _OUTPUT_TRANSFORM,
            w % step,
            [rows[n, h // step, w // step, h % step, r, k] for r in range(side)],
        ),
    )


def _stage(name: str, shape: Sequence[Any], element: Callable[..., tirx.Expr]) -> te.Tensor:
    return te.compute(shape, element, f"winograd_{name}", attrs={STAGE_ANNOTATION: name})


def _row_of(matrix: Sequence[Sequence[int]], row: Any, terms: list[tirx.Expr]) -> tirx.Expr:
    """Row ``row`` of ``matrix`` times ``terms``; unrolled, the choice of the row is gone."""
    *choices, result = [_combination(factors, terms) for factors in matrix]
    for index in range(len(choices) - 1, -1, -1):
        result = tirx.Select(row == index, choices[index], result)
    return result


def _combination(factors: Sequence[int], terms: list[tirx.Expr]) -> tirx.Expr:
    pairs = [(f, term) for f, term in zip(factors, terms, strict=True) if f]
    # A positive factor first: a negation would be an instruction of its own.
    pairs.sort(key=lambda pair: pair[0] < 0)
    factor, result = pairs[0]
    result = result if factor == 1 else result * tirx.const(float(factor), "float32")
    for factor, term in pairs[1:]:
        scaled = term if abs(factor) == 1 else term * tirx.const(float(abs(factor)), "float32")
        result = result + scaled if factor > 0 else result - scaled
    return result
