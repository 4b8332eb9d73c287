"""Matmuls and convolutions in dot product tiles: of integers against NumPy bit by bit, of bfloat16
closely.
"""

from collections.abc import Sequence
from contextlib import ExitStack

import ml_dtypes
import numpy as np
import pytest
from guarded_memory import guarded
from lowering import kernel_of
from symbolic_extents import as_tensor, built, convolution, convolved, size
from thoroughness import one_in
from tvm import relax, tirx
from tvm.relax.op import nn

from tvm_ext.hardware.cpu.host import host_description
from tvm_ext.tir_schedules.analysis.buffer_access import CONSTANTS_ATTRIBUTE
from tvm_ext.tir_schedules.apply_template import ScheduledKernel, apply_template
from tvm_ext.tir_schedules.cpu.dot_product_tile import DotProductTile

op = relax.op
HOST = host_description()
pytestmark = pytest.mark.skipif(
    not any(HOST.instruction(dtype).k > 1 for dtype in ("uint8", "int16")),
    reason="this CPU has no instruction",
)
needs_bytes = pytest.mark.skipif(
    HOST.instruction("uint8").k == 1, reason="this CPU has no instruction for bytes"
)
needs_pairs = pytest.mark.skipif(
    HOST.instruction("int16").k == 1, reason="this CPU has no instruction for int16"
)
needs_bfloat16 = pytest.mark.skipif(
    HOST.instruction("bfloat16").k == 1, reason="this CPU has no instruction for bfloat16"
)
INTEGERS, FLOATS = ("uint8", "int8", "int32"), ("bfloat16", "bfloat16", "float32")
RANDOM = np.random.default_rng(0)


def unsigned(*shape: int) -> np.ndarray:
    return RANDOM.integers(0, 256, shape).astype("uint8")


def signed(*shape: int) -> np.ndarray:
    return RANDOM.integers(-128, 128, shape).astype("int8")


def scheduled(func: tirx.PrimFunc) -> ScheduledKernel:
    found = apply_template(DotProductTile(), func.with_attr(CONSTANTS_ATTRIBUTE, [1]), HOST)
    assert isinstance(found, ScheduledKernel), found
    return found


def results(
    found: ScheduledKernel,
    x: np.ndarray,
    weights: np.ndarray,
    shape: Sequence[int],
    *others: np.ndarray,
    dtype: str = "int32",
) -> np.ndarray:
    """With all arrays at the end of what may be touched, and again at its start."""
    function, packed = built(found.func), found.packed.pack(weights)
    made = []
    for at_end in (True, False):
        with ExitStack() as stack:
            arrays = [x, packed, *others, np.full(shape, -7, dtype)]
            own = [stack.enter_context(guarded(array, at_end)) for array in arrays]
            function(*map(as_tensor, own))
            made.append(own[-1].copy())
    np.testing.assert_array_equal(made[0], made[1])
    return made[0]


def matmul(rows: int | tirx.Var, steps: int, columns: int, dtype: str = "uint8") -> tirx.PrimFunc:
    """With a zero point's part taken off, as ``ZeroPointCompensation`` writes it."""

    def product(x: relax.Expr, w: relax.Expr, z: relax.Expr) -> relax.Expr:
        return op.subtract(op.matmul(x, w, out_dtype="int32"), z)

    x = ((2, rows, steps), dtype)
    return kernel_of(product, x, ((steps, columns), "int8"), ((columns,), "int32"))


@pytest.mark.extended
@pytest.mark.parametrize(
    "dtype", [pytest.param("uint8", marks=needs_bytes), pytest.param("int16", marks=needs_pairs)]
)
@pytest.mark.parametrize("columns", one_in(2, [16, 64, 72, 100]))
@pytest.mark.parametrize("rows", one_in(2, [1, 3, 7, 23]))
def test_matmuls_of_known_and_of_symbolic_rows(rows: int, columns: int, dtype: str) -> None:
    x, weights = unsigned(2, rows, 36).astype(dtype), signed(36, columns)
    if dtype == "int16":
        x -= 131
    taken = np.arange(columns, dtype=np.int32)
    wanted = x.astype(np.int32) @ weights.astype(np.int32) - taken
    for extent in (rows, size("rows")):
        found = scheduled(matmul(extent, 36, columns, dtype))
        np.testing.assert_array_equal(results(found, x, weights, wanted.shape, taken), wanted)


@pytest.mark.parametrize(
    ("dtype", "largest"),
    [
        pytest.param("uint8", 255, marks=needs_bytes),
        pytest.param("int16", -32768, marks=needs_pairs),
    ],
)
def test_the_largest_products_do_not_saturate(dtype: str, largest: int) -> None:
    x, weights = np.full((2, 5, 64), largest, dtype), np.full((64, 32), -128, "int8")
    wanted, nothing = np.full((2, 5, 32), -largest * 128 * 64, "int32"), np.zeros(32, "int32")
    found = scheduled(matmul(5, 64, 32, dtype))
    np.testing.assert_array_equal(results(found, x, weights, wanted.shape, nothing), wanted)


@needs_bytes
@pytest.mark.parametrize("is_symbolic", [False, True])
@pytest.mark.parametrize(("side", "stride"), [(1, 1), (3, 1), (3, 2)])
def test_convolutions(side: int, stride: int, is_symbolic: bool) -> None:
    x, weights = unsigned(2, 9, 7, 8), signed(side, side, 8, 24)
    extents = (size("height"), size("width")) if is_symbolic else (9, 7)
    func = convolution((2, *extents, 8), weights.shape, INTEGERS, strides=stride)
    wanted = convolved(x.astype(np.int32), weights.astype(np.int32), stride)
    found = scheduled(func)
    np.testing.assert_array_equal(results(found, x, weights, wanted.shape), wanted)


@needs_bfloat16
@pytest.mark.parametrize("is_symbolic", [False, True])
@pytest.mark.parametrize(("rows", "steps", "columns"), [(1, 16, 16), (7, 50, 72), (23, 200, 100)])
def test_sums_of_bfloat16(rows: int, steps: int, columns: int, is_symbolic: bool) -> None:
    x = RANDOM.standard_normal((2, rows, steps)).astype(ml_dtypes.bfloat16)
    weights = RANDOM.standard_normal((steps, columns)).astype(ml_dtypes.bfloat16)
    func = kernel_of(
        lambda x, w: nn.relu(op.matmul(x, w, out_dtype="float32")),
        ((2, size("rows") if is_symbolic else rows, steps), "bfloat16"),
        (weights.shape, "bfloat16"),
    )
    wanted = np.maximum(x.astype(np.float32) @ weights.astype(np.float32), 0)
    made = results(scheduled(func), x, weights, wanted.shape, dtype="float32")
    np.testing.assert_allclose(made, wanted, atol=1e-4, rtol=1e-5)


@needs_bfloat16
@pytest.mark.parametrize("is_symbolic", [False, True])
@pytest.mark.parametrize(
    ("side", "stride", "dilation"), [(1, 2, 1), (3, 1, 1), (3, 2, 1), (3, 1, 2)]
)
@pytest.mark.parametrize("channels", [16, 72])
def test_padded_convolutions_of_bfloat16(
    channels: int, side: int, stride: int, dilation: int, is_symbolic: bool
) -> None:
    padding = side // 2 * dilation
    x = RANDOM.standard_normal((2, 13, 11, channels)).astype(ml_dtypes.bfloat16)
    weights = RANDOM.standard_normal((side, side, channels, 24)).astype(ml_dtypes.bfloat16)
    extents = (size("height"), size("width")) if is_symbolic else (13, 11)
    image, attrs = (2, *extents, channels), {"padding": padding, "dilation": dilation}
    func = convolution(image, weights.shape, FLOATS, strides=stride, **attrs)
    wide = x.astype(np.float32), weights.astype(np.float32)
    wanted = convolved(*wide, stride, padding, dilation)
    made = results(scheduled(func), x, weights, wanted.shape, dtype="float32")
    np.testing.assert_allclose(made, wanted, atol=1e-3, rtol=1e-5)


@needs_bytes
@pytest.mark.parametrize(
    ("types", "steps", "constants", "reason"),
    [
        (("uint8", "int8"), 34, [1], "whole instructions"),
        (("uint8", "int8"), 32, [], "computed in the run"),
        (("uint8", "uint8"), 32, [1], "no tensor is of int8"),
        (("int16", "int16"), 32, [1], "no tensor is of int8"),
    ],
)
def test_what_it_does_not_take(types, steps, constants, reason) -> None:
    func = kernel_of(
        lambda x, w: op.matmul(x, w, out_dtype="int32"),
        ((8, steps), types[0]),
        ((steps, 32), types[1]),
    )
    found = apply_template(DotProductTile(), func.with_attr(CONSTANTS_ATTRIBUTE, constants), HOST)
    assert not isinstance(found, ScheduledKernel)
    assert reason in found.reason
