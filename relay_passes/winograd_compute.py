"""Winograd's convolution as tensor expressions, and its weights.

With ``d`` a tile of inputs, ``g`` the weights and ``*`` element by element, a tile of outputs is

    A^T ((G g G^T) * (B^T d B)) A

where each side has the matrices of ``winograd_transforms`` for its number of taps. The elementwise
product, summed over input channels, is a matrix product of tiles and channels for each position.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import te, tirx

from tvm_ext.relay_passes.winograd_transforms import Matrix, Transforms, transforms

# Blocks carry their part in the algorithm, and the sides of a tile of outputs, under these
# annotations, for whoever schedules them.
STAGE_ANNOTATION = "tvm_ext.winograd"
TILE_ANNOTATION = "tvm_ext.winograd_tile"


@dataclass(frozen=True)
class WinogradForm:
    """How a convolution is computed: outputs of a tile and taps of the kernel, rows and columns.

    A side with one tap has one output: along it nothing is transformed.
    """

    tile: tuple[int, int]
    taps: tuple[int, int]

    @property
    def sides(self) -> tuple[Transforms, Transforms]:
        """The matrices along rows and columns."""
        rows, columns = (transforms(*pair) for pair in zip(self.tile, self.taps, strict=True))
        return rows, columns

    @property
    def positions(self) -> int:
        """Multiplications of a tile for one pair of channels."""
        rows, columns = self.sides
        return rows.inputs * columns.inputs

    @property
    def name(self) -> str:
        """As the literature writes it."""
        return f"F({self.tile[0]}x{self.tile[1]}, {self.taps[0]}x{self.taps[1]})"

    def transformed_weights(self, weights: np.ndarray, channels: int) -> np.ndarray:
        """``G g G^T`` of [rows, columns, in, out] as float32 [positions, in, channels].

        Output channels beyond those of ``weights`` are zeros.
        """
        down, across = (np.array(side.weight, "float64") for side in self.sides)
        # In float64: these are rounded once, and used by every tile.
        wide = np.einsum("ai,bj,ijck->abck", down, across, weights.astype("float64"))
        inputs, outputs = weights.shape[2:]
        flat = wide.reshape(self.positions, inputs, outputs).astype("float32")
        return np.pad(flat, [(0, 0), (0, 0), (0, channels - outputs)])

    def convolution(
        self, x: te.Tensor, weights: te.Tensor, padding: Sequence[int], channels: int
    ) -> te.Tensor:
        """Convolution of stride 1: [n, h, w, channels] from x [n, h, w, in].

        ``padding`` is top, left, bottom, right. ``weights`` come from ``transformed_weights``; of
        their outputs the first ``channels`` are kept.
        """
        top, left, bottom, right = padding
        batch, height, width, _ = (int(size) for size in x.shape)
        out_height = height + top + bottom - self.taps[0] + 1
        out_width = width + left + right - self.taps[1] + 1
        tiles = (batch, -(-out_height // self.tile[0]), -(-out_width // self.tile[1]))
        products = self._products(self._transformed_input(x, tiles, (top, left)), weights)
        return self._transformed_output(products, (batch, out_height, out_width, channels))

    def _transformed_input(
        self, x: te.Tensor, tiles: tuple[int, int, int], start: tuple[int, int]
    ) -> te.Tensor:
        """``B^T d B`` for every tile: [rows, columns, n, tile rows, tile columns, in]."""
        _, height, width, inputs = x.shape
        rows, columns = self.sides
        extents = (*tiles, rows.inputs, columns.inputs, inputs)

        def padded(n: Any, th: Any, tw: Any, i: Any, j: Any, c: Any) -> tirx.Expr:
            h, w = th * self.tile[0] + i - start[0], tw * self.tile[1] + j - start[1]
            inside = tirx.all(h >= 0, h < height, w >= 0, w < width)
            return tirx.if_then_else(inside, x[n, h, w, c], tirx.const(0.0, "float32"))

        tile = self._stage("input_tile", extents, padded)
        down = self._stage(
            "input_rows",
            extents,
            lambda n, th, tw, i, j, c: _row_of(
                rows.input, i, [tile[n, th, tw, r, j, c] for r in range(rows.inputs)]
            ),
        )
        return self._stage(
            "input_transform",
            (rows.inputs, columns.inputs, *tiles, inputs),
            lambda i, j, n, th, tw, c: _row_of(
                columns.input, j, [down[n, th, tw, i, r, c] for r in range(columns.inputs)]
            ),
        )

    def _products(self, x: te.Tensor, weights: te.Tensor) -> te.Tensor:
        """One matrix product a position: [rows, columns, n, tile rows, tile columns, out]."""
        depth = te.reduce_axis((0, x.shape[-1]), name="depth")
        across = self.sides[1].inputs
        return self._stage(
            "products",
            (*x.shape[:-1], weights.shape[-1]),
            lambda i, j, n, th, tw, k: te.sum(
                x[i, j, n, th, tw, depth] * weights[i * across + j, depth, k], axis=depth
            ),
        )

    def _transformed_output(
        self, products: te.Tensor, shape: tuple[int, int, int, int]
    ) -> te.Tensor:
        """``A^T m A`` of every tile, put in its place: [n, h, w, channels]."""
        rows, columns = self.sides
        high, wide = self.tile
        down = self._stage(
            "output_rows",
            (*products.shape[2:5], high, columns.inputs, products.shape[-1]),
            lambda n, th, tw, y, j, k: _row_of(
                rows.output, y, [products[r, j, n, th, tw, k] for r in range(rows.inputs)]
            ),
        )
        return self._stage(
            "output",
            shape,
            lambda n, h, w, k: _row_of(
                columns.output,
                w % wide,
                [down[n, h // high, w // wide, h % high, r, k] for r in range(columns.inputs)],
            ),
        )

    def _stage(
        self, name: str, shape: Sequence[Any], element: Callable[..., tirx.Expr]
    ) -> te.Tensor:
        attrs = {STAGE_ANNOTATION: name, TILE_ANNOTATION: list(self.tile)}
        return te.compute(shape, element, f"winograd_{name}", attrs=attrs)


def _row_of(matrix: Matrix, row: Any, terms: list[tirx.Expr]) -> tirx.Expr:
    """Row ``row`` of ``matrix`` times ``terms``; unrolled, the choice of the row is gone."""
    *choices, result = [_combination([float(f) for f in factors], terms) for factors in matrix]
    for index in range(len(choices) - 1, -1, -1):
        result = tirx.Select(row == index, choices[index], result)
    return result


def _combination(factors: list[float], terms: list[tirx.Expr]) -> tirx.Expr:
    pairs = [(f, term) for f, term in zip(factors, terms, strict=True) if f]
    # A positive factor first: a negation would be an instruction of its own.
    pairs.sort(key=lambda pair: pair[0] < 0)
    factor, result = pairs[0]
    result = result if factor == 1 else result * tirx.const(factor, "float32")
    for factor, term in pairs[1:]:
        scaled = term if abs(factor) == 1 else term * tirx.const(abs(factor), "float32")
        result = result + scaled if factor > 0 else result - scaled
    return result
