"""Kernels with symbolic extents, scheduled in symbolic tiles, and runs beside guarded memory."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cache

import ml_dtypes
import numpy as np
import tvm
import tvm_ffi
import unoptimised
from guarded_memory import guarded
from lowering import f32, kernel_of
from tvm import relax, tirx
from tvm.relax.op import nn

from tvm_ext.hardware.cpu.host import host_description
from tvm_ext.tir_schedules.analysis.buffer_access import CONSTANTS_ATTRIBUTE
from tvm_ext.tir_schedules.apply_template import ScheduledKernel, apply_template
from tvm_ext.tir_schedules.cpu.symbolic_tile import SymbolicTiles

op = relax.op

# Around tiles of 8 rows, and of 16 columns.
SIZES = (0, 1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 26, 50)


@cache
def size(name: str) -> tirx.Var:
    return tirx.Var(name, "int64")


def scheduled(func: tirx.PrimFunc, machine=None) -> ScheduledKernel:
    found = apply_template(SymbolicTiles(), func, machine or host_description())
    assert isinstance(found, ScheduledKernel), found
    return found


def built(func: tirx.PrimFunc) -> Callable[..., None]:
    return unoptimised.built({"main": func})["main"]


def call(
    function: Callable[..., None], inputs: Sequence[np.ndarray], shape: Sequence[int], *numbers: int
) -> np.ndarray:
    """The result, with all arrays at the end of what may be touched, and again at its start."""
    results = []
    for at_end in (True, False):
        with ExitStack() as stack:
            arrays = [stack.enter_context(guarded(array, at_end)) for array in inputs]
            nothing = np.full(shape, np.nan, "float32")
            result = stack.enter_context(guarded(nothing, at_end))
            arguments = [*arrays[: len(inputs)], *numbers, result]
            function(*(as_tensor(value) for value in arguments))
            results.append(result.copy())
    np.testing.assert_array_equal(results[0], results[1])
    return results[0]


def as_tensor(value: np.ndarray | int) -> object:
    """An array where it is; an empty one is copied: TVM expects other strides of it than NumPy."""
    if isinstance(value, int):
        return value
    if not value.size:
        return tvm.runtime.tensor(value)
    if value.dtype == ml_dtypes.bfloat16:
        return tvm_ffi.from_dlpack(value.view("uint16"))._create_view(value.shape, "bfloat16")
    return tvm_ffi.from_dlpack(value)


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype("float32")


def convolution(
    image: Sequence[int | tirx.Var],
    weights: Sequence[int],
    types: tuple[str, str, str],
    **attrs: object,
) -> tirx.PrimFunc:
    """Channels last; ``types``: of the image, the weights and the sums."""
    *operands, total = types
    return kernel_of(
        lambda x, w: nn.conv2d(
            x, w, data_layout="NHWC", kernel_layout="HWIO", out_dtype=total, **attrs
        ),
        *zip((tuple(image), tuple(weights)), operands, strict=True),
    )


def convolved(
    x: np.ndarray, w: np.ndarray, stride: int = 1, pad: int = 0, dilation: int = 1
) -> np.ndarray:
    """What such a convolution gives, summed in the type of the operands."""
    padded = np.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    reach = [(side - 1) * dilation + 1 for side in w.shape[:2]]
    windows = np.lib.stride_tricks.sliding_window_view(padded, reach, axis=(1, 2))
    windows = windows[:, ::stride, ::stride, :, ::dilation, ::dilation]
    return np.einsum("nyxcij,ijcf->nyxf", windows, w, optimize=True)


def close(found: np.ndarray, wanted: np.ndarray) -> None:
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def matmul_bias_relu(columns: int) -> tirx.PrimFunc:
    func = kernel_of(
        lambda x, w, b: nn.relu(op.add(op.matmul(x, w), b)),
        ((size("batch"), size("rows"), 13), "float32"),
        f32(13, columns),
        f32(columns),
    )
    return func.with_attr(CONSTANTS_ATTRIBUTE, [1, 2])
