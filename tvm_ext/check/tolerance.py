"""How far an output may be from the reference, and how far it is.

Differences are measured relative to the largest finite magnitude of the whole reference output
(relative to 1 where that is 0): element by element, a value that is nearly 0 by cancellation would
count as far off when it is as good as its neighbours.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tvm_ext.tensor_spec import narrowest_float

# Largest difference by the narrowest floating-point type on the way to an output. float32: sums in
# another order differ by some 1e-6 after a layer and 1e-4 at the end of a deep network; one wrong
# weight, border or operator shows above 1e-3. The others are that many of their own steps: 2^-11
# for float16, 2^-8 for bfloat16. float64 is that strict only where all of the way is float64.
TOLERANCES: Mapping[str, float] = {
    "float64": 1e-6,
    "float32": 1e-3,
    "float16": 1e-2,
    "bfloat16": 3e-2,
}

# The same where weights alone were rounded to a type, and products and sums are of float32. Of
# bfloat16 both operands of a product are rounded, to 2^-8: an eighth of its tolerance for three
# more bits, over the root of two for one operand, whose errors do not depend on the other's.
WEIGHT_TOLERANCES: Mapping[str, float] = {"float16": 3e-3}

# A difference of up to this many times ONNX Runtime's own is called its like.
SPREADS = 2.0

# Further off than this share of its largest magnitude an output is another one, whatever the
# reference does.
MOST_FOR_SPREAD = 0.25


@dataclass(frozen=True)
class OutputDifference:
    """One output beside its reference.

    Attributes
    ----------
    name, dtype : str
        The ONNX name, and our element type.
    max_abs : float
        Largest absolute difference of the finite elements; NaN when they cannot be subtracted.
    max_rel : float
        ``max_abs`` over the largest finite magnitude of the reference.
    worst_index : tuple[int, ...]
        Where: the element that is furthest off, or the first whose NaN or Inf differs.
    ours_value, reference_value : float
        The two values there.
    tolerance : float
        Largest ``max_rel`` that is accepted; 0 for integers and booleans.
    ok : bool
        Whether the output is accepted.
    reason : str
        One line: why not, or how close.
    """

    name: str
    dtype: str
    max_abs: float
    max_rel: float
    worst_index: tuple[int, ...]
    ours_value: float
    reference_value: float
    tolerance: float
    ok: bool
    reason: str

    def to_dict(self) -> dict[str, Any]:
        """JSON values; NaN and Inf as text."""
        values = asdict(self)
        values["worst_index"] = list(self.worst_index)
        for key, value in values.items():
            if isinstance(value, float) and not np.isfinite(value):
                values[key] = str(value)
        return values


def compare(
    ours: Mapping[str, np.ndarray],
    reference: Mapping[str, np.ndarray],
    rtol: float | None = None,
    precision: Mapping[str, str] | None = None,
    spreads: Mapping[str, float] | None = None,
    stored_weights: str = "",
) -> list[OutputDifference]:
    """One difference for each output of the reference, in its order.

    NaN must be where the reference has NaN, Inf where it has Inf of the same sign. Another shape
    or dtype, or a missing output, is a difference that is not ok.

    Parameters
    ----------
    ours, reference : mapping of output name to array
        What is checked, and what it is checked against.
    rtol : float, optional
        Tolerance for all floating-point outputs, in place of ``TOLERANCES``.
    precision : mapping of output name to dtype, optional
        The narrowest floating-point type that an output was computed through: a float64 output
        of float32 arithmetic is no better than float32. An output's own dtype when left out.
    spreads : mapping of output name to number, optional
        How far the reference is from itself: of floating-point outputs ``SPREADS`` times as much is
        accepted, ``MOST_FOR_SPREAD`` at most, where that is more than ``TOLERANCES`` says.
    stored_weights : str
        What weights were rounded to: at least its number of ``WEIGHT_TOLERANCES`` is accepted.
    """
    precision, spreads = precision or {}, spreads or {}
    for_weights = WEIGHT_TOLERANCES.get(stored_weights, 0.0)
    found = []
    for name, wanted in reference.items():
        least = max(for_weights, min(SPREADS * spreads.get(name, 0.0), MOST_FOR_SPREAD))
        one = _compare_one(name, ours.get(name), wanted, precision.get(name, ""), rtol, least)
        found.append(one)
    return found


def worst(differences: list[OutputDifference]) -> OutputDifference:
    """The one that is furthest beyond its tolerance."""
    return max(differences, key=lambda d: (not d.ok, np.nan_to_num(d.max_rel, nan=np.inf)))


def _compare_one(
    name: str,
    ours: np.ndarray | None,
    reference: np.ndarray,
    precision: str,
    rtol: float | None,
    least: float,
) -> OutputDifference:
    if ours is None:
        return _mismatch(name, "", "the output is missing")
    dtype = str(ours.dtype)
    if dtype != str(reference.dtype):
        return _mismatch(name, dtype, f"dtype {dtype} instead of {reference.dtype}")
    if ours.shape != reference.shape:
        shapes = f"shape {list(ours.shape)} instead of {list(reference.shape)}"
        return _mismatch(name, dtype, shapes)
    if ours.dtype.kind in "OSU":
        same = bool(np.array_equal(ours, reference))
        reason = "identical" if same else "other text"
        return OutputDifference(name, dtype, 0.0, 0.0, (), 0.0, 0.0, 0.0, same, reason)
    if dtype not in TOLERANCES:
        return _compare_exactly(name, ours, reference)
    usual = TOLERANCES[narrowest_float(dtype, precision)]
    tolerance = max(usual, least) if rtol is None else rtol
    return _compare_floats(name, ours, reference, tolerance)


def _mismatch(name: str, dtype: str, reason: str) -> OutputDifference:
    nan = float("nan")
    return OutputDifference(name, dtype, nan, nan, (), nan, nan, 0.0, False, reason)


def _compare_exactly(name: str, ours: np.ndarray, reference: np.ndarray) -> OutputDifference:
    differs = ours != reference
    count = int(np.count_nonzero(differs))
    reason = f"{count} of {ours.size} values differ" if count else "identical"
    # In float64, as unsigned integers would wrap; those that only differ beyond 2^53 count as 1.
    gap = np.abs(ours.astype(np.float64) - reference.astype(np.float64))
    gap = np.where(differs, np.maximum(gap, 1.0), 0.0)
    return _at_worst(name, ours, reference, gap, 0.0, count == 0, reason)


def _compare_floats(
    name: str, ours: np.ndarray, reference: np.ndarray, tolerance: float
) -> OutputDifference:
    wide, wanted = ours.astype(np.float64), reference.astype(np.float64)
    finite = np.isfinite(wide) & np.isfinite(wanted)
    same_special = (np.isnan(wide) & np.isnan(wanted)) | (wide == wanted)
    special = ~(finite | same_special)
    if special.any():
        count = int(np.count_nonzero(special))
        reason = f"{count} of {ours.size} values: {_special_reason(wide, wanted, special)}"
        return _at_worst(
            name, ours, reference, np.where(special, np.inf, 0.0), tolerance, False, reason
        )
    gap = np.zeros(wide.shape)
    np.subtract(wide, wanted, out=gap, where=finite)
    gap = np.abs(gap)
    relative = float(gap.max(initial=0.0)) / _scale(wanted)
    ok = relative <= tolerance
    reason = f"differs by {relative:.1e} of the largest magnitude, {tolerance:.1e} allowed"
    return _at_worst(name, ours, reference, gap, tolerance, ok, reason)


def _special_reason(ours: np.ndarray, wanted: np.ndarray, where: np.ndarray) -> str:
    first = int(np.argmax(where))
    return f"{ours.flat[first]:g} where the reference has {wanted.flat[first]:g}"


def _scale(reference: np.ndarray) -> float:
    magnitude = np.abs(reference)
    return float(magnitude.max(initial=0.0, where=np.isfinite(magnitude))) or 1.0


def _at_worst(
    name: str,
    ours: np.ndarray,
    reference: np.ndarray,
    gap: np.ndarray,
    tolerance: float,
    ok: bool,
    reason: str,
) -> OutputDifference:
    dtype = str(ours.dtype)
    if not ours.size:
        reason = "no values"
        return OutputDifference(name, dtype, 0.0, 0.0, (), 0.0, 0.0, tolerance, ok, reason)
    place = int(np.argmax(gap))
    index = tuple(int(i) for i in np.unravel_index(place, ours.shape))
    largest = float(gap.flat[place])
    return OutputDifference(
        name=name,
        dtype=dtype,
        max_abs=largest,
        max_rel=largest / _scale(reference.astype(np.float64)),
        worst_index=index,
        ours_value=float(ours.flat[place]),
        reference_value=float(reference.flat[place]),
        tolerance=tolerance,
        ok=ok,
        reason=reason,
    )


# Strings, sequences and maps as arrays by name, which are compared one by one.


def plain_arrays(values: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """One array for each tensor in the values.

    A sequence ``q`` gives ``q[0]``, ``q[1]`` and so on, and its length. Maps, one or a sequence of
    them, give an array of their values, by rising key, and one of the keys. None gives a word.
    """
    found: dict[str, np.ndarray] = {}
    for name, value in values.items():
        found |= _plain(name, value)
    return found


def _plain(name: str, value: Any) -> dict[str, np.ndarray]:
    if value is None:
        return {name: np.array("no element", object)}
    if isinstance(value, dict):
        return _of_maps(name, [value])
    if not isinstance(value, list):
        return {name: np.asarray(value)}
    if value and all(isinstance(one, dict) for one in value):
        return _of_maps(name, value)
    found = {f"length of {name}": np.array(len(value))}
    for place, one in enumerate(value):
        found |= _plain(f"{name}[{place}]", one)
    return found


def _of_maps(name: str, maps: list[dict[Any, Any]]) -> dict[str, np.ndarray]:
    keys = [key for one in maps for key in sorted(one)]
    values = np.array([one[key] for one in maps for key in sorted(one)])
    # Python has one kind of float: the maps of ONNX hold those of 32 bits.
    numbers = values.astype(np.float32) if values.dtype.kind == "f" else values
    return {f"keys of {name}": np.array([str(key) for key in keys], object), name: numbers}
