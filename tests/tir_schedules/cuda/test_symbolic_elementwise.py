"""Elementwise kernels with symbolic sizes on a GPU."""

import numpy as np
import pytest
import tvm
from gpu_kernels import SERIAL_TARGET, cuda_source, in_series, scheduled
from lowering import kernel_of
from tvm import relax, tirx
from tvm.relax.op import nn

from tvm_ext.tir_schedules.cuda.elementwise import Elementwise

op = relax.op
TEMPLATE = Elementwise()


def build(func: tirx.PrimFunc) -> object:
    """The serial form of a scheduled kernel as a function of tensors."""
    func = in_series(scheduled(TEMPLATE, func)).with_attr("global_symbol", "main")
    return tirx.build(tvm.IRModule({"main": func}), target=SERIAL_TARGET)["main"]


@pytest.mark.parametrize("last", [8, 7, None])
@pytest.mark.parametrize("size", [1, 5, 300])
def test_numbers(last: int | None, size: int) -> None:
    n, m = tirx.Var("n", "int64"), tirx.Var("m", "int64")
    columns = last or 11
    shape = [n, last or m]
    func = kernel_of(
        lambda x, b: nn.relu(op.add(x, b)), (shape, "float32"), (shape[1:], "float32")
    )
    x = np.random.default_rng(0).uniform(-1, 1, (size, columns)).astype("float32")
    bias = np.linspace(-1, 1, columns, dtype="float32")
    out = np.full_like(x, np.nan)
    tensors = [tvm.runtime.tensor(array) for array in (x, bias, out)]
    build(func)(*tensors)  # type: ignore[operator]
    np.testing.assert_allclose(tensors[2].numpy(), np.maximum(x + bias, 0), rtol=1e-6)


def test_vectors_and_wide_indices() -> None:
    n = tirx.Var("n", "int64")
    func = kernel_of(op.add, ((n, 64), "float16"), ((64,), "float16"))
    source = cuda_source(scheduled(TEMPLATE, func))
    assert "uint4" in source
    assert "int64_t" in source, "more than 2**31 elements need 64-bit addresses"
    odd = cuda_source(scheduled(TEMPLATE, kernel_of(op.exp, ((n, 7), "float32"))))
    assert "float4" not in odd
    assert "threadIdx.x" in odd
