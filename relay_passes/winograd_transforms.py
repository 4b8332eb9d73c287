"""The matrices of Winograd's minimal filtering F(m, r), by Toom and Cook's construction.

S. Winograd, "Arithmetic complexity of computations", SIAM 1980; in the notation of A. Lavin and
S. Gray, "Fast algorithms for convolutional neural networks", CVPR 2016: ``m`` outputs of a filter
of ``r`` taps, from ``m + r - 1`` inputs ``d`` and the taps ``g``, are ``A^T ((G g) * (B^T d))``
with as many multiplications as inputs.
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import prod

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
    rows = [_without(points, index) for index in range(count)]
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


def _without(points: list[Fraction], index: int) -> list[Fraction]:
    return _polynomial([*points[:index], *points[index + 1 :]])


def _polynomial(roots: list[Fraction]) -> list[Fraction]:
    """Coefficients of the polynomial with these roots, constant first and leading one last."""
    result = [Fraction(1)]
    for root in roots:
        shifted = [Fraction(0), *result]
        result = [a - root * b for a, b in zip(shifted, [*result, Fraction(0)], strict=True)]
    return result
