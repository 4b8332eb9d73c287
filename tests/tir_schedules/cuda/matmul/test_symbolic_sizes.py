"""Products whose batch or length is known in the run only."""

from collections.abc import Callable

import numpy as np
import pytest
import tvm
from cuda_kernels import SERIAL_TARGET, scheduled, whole_source
from emulated_kernels import emulated
from lowering import kernel_of
from machines import GPU
from matmul_kernels import convolution, f16
from thoroughness import one_in
from tvm import relax, tirx
from unoptimised import linked

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.tir_schedules.apply_template import apply_template
from tvm_ext.tir_schedules.cuda.matmul.contraction import CudaContraction

N, M = tirx.Var("n", "int64"), tirx.Var("m", "int64")
Shapes = list[tuple[int, ...]]


def linear() -> tirx.PrimFunc:
    def layer(x, w, b):
        return relax.op.nn.silu(relax.op.matmul(x, w) + b)

    shapes = ((N, 9, 40), "float32"), ((40, 56), "float32"), ((56,), "float32")
    return kernel_of(layer, *shapes)


def image() -> tirx.PrimFunc:
    def layer(x, w, b):
        return convolution(x, w, b, padding=1, strides=2)

    return kernel_of(layer, ((N, 9, 9, 16), "float16"), f16(24, 3, 3, 16), f16(24))


def scores() -> tirx.PrimFunc:
    return kernel_of(relax.op.matmul, ((N, 32), "float16"), ((32, M), "float16"))


@pytest.mark.parametrize(
    ("kernel", "shapes"),
    one_in(
        2,
        [
            (linear, lambda n: [(n, 9, 40), (40, 56), (56,), (n, 9, 56)]),
            (image, lambda n: [(n, 9, 9, 16), (24, 3, 3, 16), (24,), (n, 5, 5, 24)]),
            (scores, lambda n: [(n, 32), (32, n + 2), (n, n + 2)]),
        ],
    ),
    ids=["linear", "image", "scores"],
)
def test_numbers_of_every_size(
    kernel: Callable[[], tirx.PrimFunc], shapes: Callable[[int], Shapes]
) -> None:
    func = kernel()
    found = scheduled(CudaContraction(), func)
    assert whole_source(found).count("__global__ void") == 2
    run = emulated({"kernel": found})["kernel"]
    plain = func.with_attr("global_symbol", "main")
    expected = linked(tirx.build(tvm.IRModule({"main": plain}), target=SERIAL_TARGET))["main"]
    for size in (1, 7, 33):
        generator = np.random.default_rng(size)
        dtype = str(func.params[0].dtype)
        arrays = [generator.uniform(-1, 1, shape).astype(dtype) for shape in shapes(size)]
        results = []
        for function in (run, expected):
            tensors = [tvm.runtime.tensor(array) for array in arrays]
            function(*tensors)
            results.append(tensors[-1].numpy().astype("float64"))
        # The plain loops add up in the type of the operands.
        tolerance = 0.1 if dtype == "float16" else 1e-5
        np.testing.assert_allclose(*results, rtol=tolerance, atol=tolerance)


def test_symbolic_k_are_refused() -> None:
    func = kernel_of(relax.op.matmul, ((20, N), "float16"), ((N, 24), "float16"))
    refused = apply_template(CudaContraction(), func, GPU)
    assert isinstance(refused, NotApplicable)
    assert "number of steps" in refused.reason


def test_computed_sizes_are_refused() -> None:
    func = kernel_of(relax.op.matmul, ((N + 64, 32), "float16"), f16(32, 48))
    refused = apply_template(CudaContraction(), func, GPU)
    assert isinstance(refused, NotApplicable)
    assert "computed of others" in refused.reason
