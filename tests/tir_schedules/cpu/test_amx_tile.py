"""Matmuls and convolutions in AMX tiles: of integers against NumPy bit by bit, of bfloat16 closely.

Run where the CPU has tile registers; that kernels for such a CPU have the instructions is tested
everywhere, in tests/hardware.
"""

import ml_dtypes
import numpy as np
import pytest
from lowering import kernel_of
from symbolic_extents import built, convolution, convolved, size
from test_dot_product_tile import INTEGERS, RANDOM, matmul, signed, unsigned
from tvm import relax, runtime, tirx
from tvm.relax.op import nn

from tvm_ext.hardware.cpu.host import host_description
from tvm_ext.hardware.targets import resolve_target
from tvm_ext.tir_schedules.analysis.buffer_access import CONSTANTS_ATTRIBUTE
from tvm_ext.tir_schedules.apply_template import ScheduledKernel, apply_template
from tvm_ext.tir_schedules.cpu.amx_tile import AmxTile

op = relax.op
HOST = host_description()
needs_tiles = pytest.mark.skipif(
    HOST.tile_instruction("uint8", "int8") is None, reason="this CPU has no tile registers"
)


def scheduled(func: tirx.PrimFunc, constants: list[int] | None = None) -> ScheduledKernel:
    constants = [1] if constants is None else constants
    machine = resolve_target("avx512-amx").with_cores(2)
    found = apply_template(AmxTile(), func.with_attr(CONSTANTS_ATTRIBUTE, constants), machine)
    assert isinstance(found, ScheduledKernel), found
    return found


def result(found: ScheduledKernel, x: np.ndarray, weights: np.ndarray, wanted: np.ndarray, *more):
    out = runtime.tensor(np.full_like(wanted, -7))
    arrays = (x, found.packed.pack(weights), *more)
    built(found.func)(*map(runtime.tensor, arrays), out)
    return out.numpy()


@needs_tiles
@pytest.mark.parametrize("columns", [8, 16, 40, 64])
@pytest.mark.parametrize(("rows", "steps"), [(1, 100), (17, 100), (49, 100), (49, 192), (70, 4096)])
def test_matmuls_of_known_and_of_symbolic_rows(rows: int, steps: int, columns: int) -> None:
    x, weights = unsigned(2, rows, steps), signed(steps, columns)
    taken = np.arange(columns, dtype=np.int32)
    wanted = x.astype(np.int32) @ weights.astype(np.int32) - taken
    for extent in (rows, size("rows")):
        found = scheduled(matmul(extent, steps, columns))
        np.testing.assert_array_equal(result(found, x, weights, wanted, taken), wanted)


@needs_tiles
@pytest.mark.parametrize("is_symbolic", [False, True])
@pytest.mark.parametrize(("side", "stride", "padding"), [(1, 1, 0), (3, 1, 1), (3, 2, 1)])
@pytest.mark.parametrize("channels", [16, 64, 72])
def test_convolutions(
    channels: int, side: int, stride: int, padding: int, is_symbolic: bool
) -> None:
    x, weights = unsigned(2, 13, 11, channels), signed(side, side, channels, 24)
    extents = (size("height"), size("width")) if is_symbolic else (13, 11)
    image, attrs = (2, *extents, channels), {"strides": stride, "padding": padding}
    func = convolution(image, weights.shape, INTEGERS, **attrs)
    wanted = convolved(x.astype(np.int32), weights.astype(np.int32), stride, padding)
    np.testing.assert_array_equal(result(scheduled(func), x, weights, wanted), wanted)


@needs_tiles
@pytest.mark.parametrize("steps", [16, 33, 64, 200])
def test_sums_of_bfloat16(steps: int) -> None:
    x = RANDOM.standard_normal((37, steps)).astype(ml_dtypes.bfloat16)
    weights = RANDOM.standard_normal((steps, 48)).astype(ml_dtypes.bfloat16)
    func = kernel_of(
        lambda x, w: nn.relu(op.matmul(x, w, out_dtype="float32")),
        (x.shape, "bfloat16"),
        (weights.shape, "bfloat16"),
    )
    wanted = np.maximum(x.astype(np.float32) @ weights.astype(np.float32), 0)
    np.testing.assert_allclose(
        result(scheduled(func), x, weights, wanted), wanted, atol=1e-4, rtol=1e-5
    )


@pytest.mark.parametrize(
    ("types", "total", "steps", "constants", "reason"),
    [
        (("uint8", "int8"), "int32", 12, [1], "few neighbours"),
        (("uint8", "int8"), "int32", 32, [], "computed in the run"),
        (("float32", "float32"), "float32", 32, [1], "no tensor is of int8"),
        (("uint8", "uint8"), "int32", 32, [1], "no tensor is of int8"),
    ],
)
def test_what_it_does_not_take(types, total, steps, constants, reason) -> None:
    func = kernel_of(
        lambda x, w: op.matmul(x, w, out_dtype=total),
        ((8, steps), types[0]),
        ((steps, 32), types[1]),
    )
    machine = resolve_target("avx512-amx")
    found = apply_template(AmxTile(), func.with_attr(CONSTANTS_ATTRIBUTE, constants), machine)
    assert not isinstance(found, ScheduledKernel)
    assert reason in found.reason
