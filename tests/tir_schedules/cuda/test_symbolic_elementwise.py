"""Elementwise kernels with symbolic sizes on a GPU."""

import numpy as np
import pytest
import tvm
from cuda_kernels import SERIAL_TARGET, cuda_source, in_series, scheduled
from lowering import kernel_of
from symbolic_kernels import M, N, check_symbolic
from tvm import relax, tirx
from tvm.relax.op import nn
from unoptimised import linked

from tvm_ext.tir_schedules.cuda import elementwise as open_elements
from tvm_ext.tir_schedules.cuda.elementwise import CudaElementwise

op = relax.op
TEMPLATE = CudaElementwise()


def build(func: tirx.PrimFunc) -> object:
    """The serial form of a scheduled kernel as a function of tensors."""
    func = in_series(scheduled(TEMPLATE, func)).with_attr("global_symbol", "main")
    return linked(tirx.build(tvm.IRModule({"main": func}), target=SERIAL_TARGET))["main"]


@pytest.mark.parametrize("last", [8, 7, None])
@pytest.mark.parametrize("size", [1, 5, 300])
def test_numbers(last: int | None, size: int) -> None:
    n, m = tirx.Var("n", "int64"), tirx.Var("m", "int64")
    columns = last or 11
    shape = [n, last or m]
    func = kernel_of(lambda x, b: nn.relu(op.add(x, b)), (shape, "float32"), (shape[1:], "float32"))
    x = np.random.default_rng(0).uniform(-1, 1, (size, columns)).astype("float32")
    bias = np.linspace(-1, 1, columns, dtype="float32")
    out = np.full_like(x, np.nan)
    tensors = [tvm.runtime.tensor(array) for array in (x, bias, out)]
    build(func)(*tensors)  # type: ignore[operator]
    np.testing.assert_allclose(tensors[2].numpy(), np.maximum(x + bias, 0), rtol=1e-6)


F16 = "float16"
CASES: dict[str, tuple] = {
    "transposed": (lambda x: op.permute_dims(x, [0, 2, 1, 3]), ((N, M, 3, 24), F16)),
    "transposed, odd": (lambda x: op.permute_dims(x, [0, 2, 1, 3]), ((N, M, 3, 7), F16)),
    "bias": (lambda x, b: nn.relu(op.add(x, b)), ((N, M, 20), F16), ((20,), F16)),
    "maps": (op.add, ((N, 5, 7, 7), "float32"), ((5, 1, 1), "float32")),
    "mixed types": (lambda x: op.astype(x, "float32"), ((N, 3, 8), "uint8")),
    "flat": (op.exp, ((N,), "float32")),
    "outer": (op.add, ((N, 1, M), "float32"), ((5, M), "float32")),
    "rows": (lambda x, i: op.take(x, i, 0), ((50, 24), F16), ((N, M), "int64")),
    "pad": (lambda x: nn.pad(x, [0, 0, 0, 0, 1, 2]), ((N, M, 9), "float32")),
    "join": (lambda x, y: op.concat([x, y], 1), ((N, M, 8), F16), ((N, 3, 8), F16)),
    "tiled": (lambda x: op.tile(x, [1, 3]), ((N, 8), "float32")),
    "repeated": (lambda x: op.repeat(x, 3, 1), ((N, 8), "float32")),
    "resize": (
        lambda x: op.image.resize2d(x, (6, 10), method="linear"),
        ((N, 2, 5, 7), "float32"),
    ),
}
SIZES = ({"n": 3, "m": 2}, {"n": 2, "m": 37}, {"n": 259, "m": 1}, {"n": 0, "m": 4})


def _kernels(*names: str) -> dict[str, tirx.PrimFunc]:
    return {name: kernel_of(*CASES[name]) for name in names}


def test_emulated() -> None:
    check_symbolic(TEMPLATE, _kernels("transposed", "bias", "flat", "rows", "repeated"), *SIZES)


@pytest.mark.slow
def test_all_emulated() -> None:
    check_symbolic(TEMPLATE, _kernels(*CASES), *SIZES)


def test_more_elements_than_32_bits_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_elements, "_MOST", 0)
    check_symbolic(TEMPLATE, _kernels("transposed", "outer"), *SIZES[:2])


def test_divisions_are_of_32_bits() -> None:
    source = cuda_source(scheduled(TEMPLATE, kernel_of(*CASES["transposed"])))
    short, wide = source.split("} else {")
    assert short.count(" / ((int)m)") == 1
    assert "/ (int64_t)" not in short.split("if (")[-1]
    assert wide.count(" / m)") == 1
    assert wide.count(" / ") == 3, "none but those of places"
    assert wide.count("*(uint4*)(x0_ptr") == 1


def test_vectors_and_wide_indices() -> None:
    n = tirx.Var("n", "int64")
    func = kernel_of(op.add, ((n, 64), "float16"), ((64,), "float16"))
    source = cuda_source(scheduled(TEMPLATE, func))
    assert "uint4" in source
    assert "int64_t" in source, "more than 2**31 elements need 64-bit addresses"
    odd = cuda_source(scheduled(TEMPLATE, kernel_of(op.exp, ((n, 7), "float32"))))
    assert "float4" in odd, "rows that lie one behind another are one long one"
    assert odd.count("compute_ptr[") == 4, "of which the last few elements are single"
