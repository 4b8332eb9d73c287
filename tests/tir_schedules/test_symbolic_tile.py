"""Sums of products with open extents, at sizes around those of a tile, against NumPy."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cache

import numpy as np
import pytest
import tvm
import tvm_ffi
from guarded import guarded
from kernel_cases import nhwc
from lowering import Kernels, Spec, f32, kernel_of, kernels_of, loops_of
from machines import GPU, MACHINE, NARROW
from tvm import relax, tirx
from tvm.relax.op import nn

from tvm_ext.hardware.host import host_description
from tvm_ext.relay_passes.name_symbolic_sizes import NameSymbolicSizes
from tvm_ext.tir_schedules.apply_template import ScheduledKernel, apply_template
from tvm_ext.tir_schedules.block_access import CONSTANTS_ATTRIBUTE
from tvm_ext.tir_schedules.llvm.symbolic_tile import SymbolicTiles
from tvm_ext.tir_schedules.template import NotMine

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
    module = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    return tirx.build(module, target=host_description().tvm_target())["main"]


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
    """An array where it is; an empty one, whose strides NumPy and TVM do not agree on, is copied."""
    if isinstance(value, int):
        return value
    return tvm_ffi.from_dlpack(value) if value.size else tvm.runtime.tensor(value)


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype("float32")


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


@pytest.mark.parametrize("columns", [64, 48, 37, 6])
def test_matmul(columns: int) -> None:
    found = scheduled(matmul_bias_relu(columns))
    assert (found.packed is not None) == (columns in (64, 48))
    function = built(found.func)
    weights, bias = random(13, columns), random(columns)
    own = found.packed.pack(weights) if found.packed is not None else weights
    for rows in SIZES:
        for batch in (0, 1, 3):
            x = random(batch, rows, 13)
            result = call(function, [x, own, bias], (batch, rows, columns))
            close(result, np.maximum(x @ weights + bias, 0))


def test_batched_matmul_with_open_columns() -> None:
    """Attention's scores: both sides of the result are open, and the epilogue reads a mask."""
    func = kernel_of(
        lambda q, k, m: op.add(op.divide(op.matmul(q, k), relax.const(2.0)), m),
        ((size("batch"), 2, size("rows"), 5), "float32"),
        ((size("batch"), 2, 5, size("columns")), "float32"),
        ((size("batch"), 1, 1, size("columns")), "float32"),
    )
    function = built(scheduled(func).func)
    for batch in (0, 1, 2):
        for rows in (0, 1, 7, 8, 9, 26):
            for columns in SIZES:
                q, k = random(batch, 2, rows, 5), random(batch, 2, 5, columns)
                mask = random(batch, 1, 1, columns)
                result = call(function, [q, k, mask], (batch, 2, rows, columns))
                close(result, q @ k / 2 + mask)


def test_batched_matmul_with_an_open_sum() -> None:
    func = kernel_of(
        op.matmul,
        ((size("batch"), size("rows"), size("steps")), "float32"),
        ((size("batch"), size("steps"), 32), "float32"),
    )
    function = built(scheduled(func).func)
    for rows in SIZES:
        for steps in (0, 1, 2, 17):
            x, y = random(2, rows, steps), random(2, steps, 32)
            close(call(function, [x, y], (2, rows, 32)), x @ y)


def test_vector_times_matrix() -> None:
    func = kernel_of(op.matmul, ((1, size("steps")), "float32"), ((size("steps"), 40), "float32"))
    function = built(scheduled(func).func)
    for steps in SIZES:
        x, y = random(1, steps), random(steps, 40)
        close(call(function, [x, y], (1, 40)), x @ y)


def convolution(x: np.ndarray, w: np.ndarray, stride: int, pad: int) -> np.ndarray:
    padded = np.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, w.shape[:2], axis=(1, 2))
    return np.einsum("nyxcij,ijcf->nyxf", windows[:, ::stride, ::stride], w, optimize=True)


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize(("stride", "kernel", "pad"), [(1, 3, 1), (2, 3, 1), (1, 1, 0), (2, 1, 0)])
def test_convolution(stride: int, kernel: int, pad: int, named: bool) -> None:
    func = kernel_of(
        lambda *v: nhwc(*v, strides=(stride, stride), padding=(pad, pad)),
        ((size("batch"), size("height"), size("width"), 3), "float32"),
        f32(kernel, kernel, 3, 24),
        f32(24),
    )
    if named:
        func = NameSymbolicSizes()(tvm.IRModule({"main": func}))["main"]
    func = func.with_attr(CONSTANTS_ATTRIBUTE, [1, 2])
    found = scheduled(func)
    function = built(found.func)
    weights, bias = random(kernel, kernel, 3, 24), random(24)
    own = found.packed.pack(weights) if found.packed is not None else weights
    for batch, height in ((1, 1), (2, 5), (1, 9)):
        for width in SIZES[1:]:
            x = random(batch, height, width, 3)
            wanted = np.maximum(convolution(x, weights, stride, pad) + bias, 0)
            close(call(function, [x, own, bias], wanted.shape), wanted)
