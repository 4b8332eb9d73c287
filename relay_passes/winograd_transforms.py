"""Winograd's minimal filtering: its matrices, and a convolution by them as tensor expressions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
from tvm import te, tirx
from tvm.sym import Analyzer

# The matrices of Winograd's minimal filtering F(m, r), by Toom and Cook's construction.
#
# S. Winograd, "Arithmetic complexity of computations", SIAM 1980; in the notation of A. Lavin and
# S. Gray, "Fast algorithms for convolutional neural networks", CVPR 2016: ``m`` outputs of a
# filter of ``r`` taps, from ``m + r - 1`` inputs ``d`` and the taps ``g``, are ``A^T ((G g) *
# (B^T d))`` with as many multiplications as inputs.


Matrix = tuple[tuple[Fraction, ...], ...]

# Interpolation points beside infinity. Rounding errors grow with their number and size.
_POINTS = (0, 1, -1, 2, -2, Fraction(1, 2), Fraction(-1, 2))


@dataclass(frozen=True)
class Transforms:
    """F(m, r).

    Attributes
    ----------
    input : Matrix
        B^T, [m + r - 1, m + r - 1].
    weight : Matrix
        G, [m + r - 1, r].
    output : Matrix
        A^T, [m, m + r - 1].
    """

    input: Matrix
    weight: Matrix
    output: Matrix

    @property
    def outputs(self) -> int:
        """m, the outputs of one tile."""
        return len(self.output)

    @property
    def inputs(self) -> int:
        """m + r - 1, the inputs of one tile."""
        return len(self.input)


@lru_cache
def transforms(outputs: int, taps: int) -> Transforms:
    """F(outputs, taps). Raises ValueError where it would take more points than there are."""
    count = outputs + taps - 2
    if not 0 <= count <= len(_POINTS):
        raise ValueError(f"F({outputs}, {taps}) needs {count} points; expected 0 to {len(_POINTS)}")
    points = [Fraction(point) for point in _POINTS[:count]]
    rows = [_polynomial([q for q in points if q != p]) for p in points]
    scales = [prod((p - q for q in points if q != p), start=Fraction(1)) for p in points]
    # Whole numbers in the input's transform, which every tile runs; fractions in the weights'.
    whole = [prod({c.denominator for c in row}, start=1) for row in rows]
    factors = [Fraction(w) * (-1 if s < 0 else 1) for w, s in zip(whole, scales, strict=True)]
    last = _polynomial(points)
    at_infinity = Fraction(prod({c.denominator for c in last}, start=1))
    top = [Fraction(0)] * (taps - 1)
    return Transforms(
        input=(
            *((*(f * c for c in row), Fraction(0)) for f, row in zip(factors, rows, strict=True)),
            tuple(at_infinity * c for c in last),
        ),
        weight=(
            *(
                tuple(p**power / (s * f) for power in range(taps))
                for p, s, f in zip(points, scales, factors, strict=True)
            ),
            (*top, 1 / at_infinity),
        ),
        output=tuple(
            (*(p**power for p in points), Fraction(int(power == outputs - 1)))
            for power in range(outputs)
        ),
    )


def _polynomial(roots: list[Fraction]) -> list[Fraction]:
    """Coefficients of the polynomial with these roots, constant first and leading one last."""
    result = [Fraction(1)]
    for root in roots:
        shifted = [Fraction(0), *result]
        result = [a - root * b for a, b in zip(shifted, [*result, Fraction(0)], strict=True)]
    return result


# Winograd's convolution as tensor expressions, and its weights.
#
# With ``d`` a tile of inputs, ``g`` the weights and ``*`` element by element, a tile of outputs
# is
#
#     A^T ((G g G^T) * (B^T d B)) A
#
# where each side has the matrices of ``Transforms`` for its number of taps. The
# elementwise product, summed over input channels, is a matmul of tiles and channels for
# each position.


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
        batch, height, width, _ = x.shape
        # As the operator's own sizes are written: FuseTIR compares them as they stand.
        simple = Analyzer().simplify
        out_height = simple(height + (top + bottom - self.taps[0] + 1))
        out_width = simple(width + (left + right - self.taps[1] + 1))
        sides = zip((out_height, out_width), self.tile, strict=True)
        # In this form TVM sees that the tiles are all that the outputs read.
        tiles = (batch, *((side - 1) // step + 1 for side, step in sides))
        products = self._products(self._transformed_input(x, tiles, (top, left)), weights)
        return self._transformed_output(products, (batch, out_height, out_width, channels))

    def _transformed_input(
        self, x: te.Tensor, tiles: tuple[Any, Any, Any], start: tuple[int, int]
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
        """One matmul a position: [rows, columns, n, tile rows, tile columns, out]."""
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
        self, products: te.Tensor, shape: tuple[Any, Any, Any, int]
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
    # No Select: its condition becomes a vector, and TVM folds none of those.
    *choices, result = [_combination([float(f) for f in factors], terms) for factors in matrix]
    for index in range(len(choices) - 1, -1, -1):
        result = tirx.if_then_else(row == index, choices[index], result)
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
