"""Reductions, softmax and norms of rows whose number or length a run decides, at odd sizes."""

import numpy as np
import pytest
from combinations import pairwise
from lowering import f32, kernel_of, loops_of
from symbolic_extents import built, call, close, random, size
from tvm import relax, tirx
from tvm.relax.op import nn

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cpu.host import host_description
from tvm_ext.tir_schedules.apply_template import ScheduledKernel, apply_template
from tvm_ext.tir_schedules.cpu.reduction import CpuReduction
from tvm_ext.tir_schedules.cpu.softmax_and_norm import SoftmaxAndNorm

op = relax.op
LENGTHS = (1, 2, 15, 16, 17, 63, 64, 65, 81, 200)
ROWS = (0, 1, 2, 3, 4, 5, 13)


def scheduled(func: tirx.PrimFunc, cores: int = 2) -> ScheduledKernel | NotApplicable:
    return apply_template(SoftmaxAndNorm(), func, host_description().with_cores(cores))


def function_of(func: tirx.PrimFunc, cores: int = 2):
    found = scheduled(func, cores)
    assert isinstance(found, ScheduledKernel), found
    return built(found.func)


def softmax(x: np.ndarray) -> np.ndarray:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def normal(x: np.ndarray) -> np.ndarray:
    mean = x.mean(-1, keepdims=True, dtype="float64")
    return ((x - mean) / np.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-5)).astype(
        "float32"
    )


@pytest.mark.parametrize("cores", [1, 2])
def test_softmax_of_symbolic_rows_and_length(cores: int) -> None:
    shape = ((size("batch"), 2, size("rows"), size("length")), "float32")
    function = function_of(kernel_of(lambda x: nn.softmax(x, axis=-1), shape), cores)
    for rows in ROWS:
        for length in LENGTHS:
            x = random(1, 2, rows, length) * 4
            close(call(function, [x], x.shape), softmax(x))


@pytest.mark.extended
def test_softmax_of_a_symbolic_length_only() -> None:
    function = function_of(kernel_of(lambda x: nn.softmax(x), ((7, size("length")), "float32")))
    for length in LENGTHS:
        x = random(7, length)
        close(call(function, [x], x.shape), softmax(x))


@pytest.mark.extended
@pairwise(cores=[1, 2], length=[5, 32, 100, 640])
def test_normalisation_of_symbolic_rows(length: int, cores: int) -> None:
    shape = ((size("batch"), size("rows"), length), "float32")
    func = kernel_of(
        lambda x, w, b: nn.relu(nn.layer_norm(x, w, b, axes=[-1])), shape, f32(length), f32(length)
    )
    function, weight, bias = function_of(func, cores), random(length), random(length)
    for rows in ROWS:
        x = random(2, rows, length)
        wanted = np.maximum(normal(x) * weight + bias, 0)
        np.testing.assert_allclose(call(function, [x, weight, bias], x.shape), wanted, 1e-4, 1e-4)


def test_normalisation_of_a_symbolic_length() -> None:
    shape = ((size("batch"), 3, size("length")), "float32")
    function = function_of(kernel_of(_deviations, shape))
    for length in LENGTHS:
        x = random(2, 3, length)
        np.testing.assert_allclose(
            call(function, [x], x.shape), x - x.mean(-1, keepdims=True), 1e-4, 1e-5
        )


def _deviations(x: relax.Expr) -> relax.Expr:
    return op.subtract(x, op.mean(x, axis=-1, keepdims=True))


@pytest.mark.parametrize("cores", [1, 2])
def test_softmax_of_rows_that_lie_side_by_side(cores: int) -> None:
    shape = ((size("batch"), 5, size("pixels")), "float32")
    function = function_of(kernel_of(lambda x: nn.softmax(x, axis=1), shape), cores)
    for pixels in LENGTHS:
        x = random(2, 5, pixels)
        close(call(function, [x], x.shape), softmax(x.swapaxes(1, 2)).swapaxes(1, 2))


def test_rows_that_wait_and_are_of_no_known_length_are_left_to_others() -> None:
    shape = ((size("batch"), size("channels"), size("pixels")), "float32")
    reason = "a row of a length known in the run only waits inside the kernel"
    assert scheduled(kernel_of(lambda x: nn.softmax(x, axis=1), shape)) == NotApplicable(reason)


REDUCED = {
    "sum": (op.sum, np.sum),
    "max": (op.max, np.max),
    "variance": (op.variance, np.var),
    # The place of an extremum, of which a kernel accumulates two results.
    "argmax": (lambda x, axis: op.astype(op.argmax(x, axis), "float32"), np.argmax),
}


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("axis", [1, 2])
@pytest.mark.parametrize("name", REDUCED)
def test_reductions_of_symbolic_sizes(name: str, axis: int, cores: int) -> None:
    """Along rows in vectors (2), and across rows that lie side by side (1)."""
    ours, by_numpy = REDUCED[name]
    shape = ((size("batch"), size("rows"), size("length")), "float32")
    func = kernel_of(lambda x: ours(x, axis), shape)
    found = apply_template(CpuReduction(), func, host_description().with_cores(cores))
    assert isinstance(found, ScheduledKernel), found
    assert any(loop.kind == "vectorized" for loop in loops_of(found.func))
    function = built(found.func)
    for length in LENGTHS:
        x = random(3, 17, length)
        wanted = by_numpy(x, axis=axis).astype("float32")
        close(call(function, [x], wanted.shape), wanted)


@pytest.mark.extended
def test_a_reduction_of_everything() -> None:
    shape = ((size("batch"), 3, size("length")), "float32")
    found = apply_template(CpuReduction(), kernel_of(op.max, shape), host_description())
    assert isinstance(found, ScheduledKernel), found
    for length in LENGTHS:
        x = random(2, 3, length)
        close(call(built(found.func), [x], ()), x.max())


@pytest.mark.extended
@pytest.mark.parametrize("shape", [("rows", 1024, 1024), (8, "rows", 1024, 1024)])
def test_more_results_side_by_side_than_the_cache_holds(shape: tuple) -> None:
    sizes = tuple(size(n) if isinstance(n, str) else n for n in shape)
    func = kernel_of(lambda x: op.max(x, axis=[0]), (sizes, "float32"))
    found = apply_template(CpuReduction(), func, host_description())
    assert isinstance(found, ScheduledKernel), found
    x = random(*(2 if isinstance(n, str) else n for n in shape))
    np.testing.assert_array_equal(call(built(found.func), [x], x.shape[1:]), x.max(0))


@pytest.mark.extended
@pytest.mark.parametrize("shape", [(100_000, 3, 4), (200_000, 4, 4), (400_000, 2, 2, 2)])
def test_rows_of_several_axes_in_parts_for_threads(shape: tuple) -> None:
    """Of known sizes: partial results keep their axes, over which no loop of theirs is joined."""
    func = kernel_of(lambda x: op.max(x, axis=[0]), f32(*shape))
    found = apply_template(CpuReduction(), func, host_description().with_cores(2))
    assert isinstance(found, ScheduledKernel), found
    assert "parallel" in [loop.kind for loop in loops_of(found.func)]
    x = random(*shape)
    np.testing.assert_array_equal(call(built(found.func), [x], shape[1:]), x.max(0))
