"""Rows whose number is known in the run only: the same kernels, with grids of that size."""

import re
from collections.abc import Callable

import numpy as np
import pytest
import tvm
from cuda_emulation import set_seed
from emulated_kernels import emulated
from gpu_kernels import SERIAL_TARGET, cuda_source, needs_nvcc, resources, scheduled, whole_source
from lowering import _filled, assert_same, f32, kernel_of
from machines import GPU
from tvm import relax, tirx
from tvm.relax.op import nn

from tvm_ext.tir_schedules.apply_template import apply_template
from tvm_ext.tir_schedules.cuda.rows.row_reduction import RowReduction
from tvm_ext.tir_schedules.template import NotMine

op = relax.op
TEMPLATE = RowReduction()
N, M = tirx.Var("n", "int64"), tirx.Var("m", "int64")


def shifted(x: relax.Expr, shift: relax.Expr) -> relax.Expr:
    """A sum for each row of numbers that are shifted alike in each of the outer rows."""
    return op.sum(op.add(x, shift), -1)


CASES: dict[str, tuple] = {
    "softmax": (lambda x: nn.softmax(x, -1), ((N, 132), "float32")),
    "odd softmax": (lambda x: nn.softmax(x, -1), ((N, 3, 131), "float16")),
    "long softmax": (lambda x: nn.softmax(x, -1), ((N, 5000), "float32")),
    "two sizes": (shifted, ((N, 3, M, 40), "float32"), ((N, 1, 1, 40), "float32")),
    "layer norm": (
        lambda x, g, b: nn.layer_norm(x, g, b, [-1]),
        *(((N, M, 264), "float16"), ((264,), "float16"), ((264,), "float16")),
    ),
    "mean of maps": (lambda x: op.mean(x, [2, 3]), ((N, 6, 7, 7), "float32")),
    "argmax": (lambda x: op.argmax(x, 1), ((N, 100), "float32")),
    "short rows": (lambda x: op.max(x, 1), ((N, 5), "float32")),
    "columns": (lambda x: nn.softmax(x, 1), ((N, 19, 40), "float32")),
}
SIZES = {"none": {"n": 0, "m": 2}, "few": {"n": 3, "m": 2}, "many": {"n": 37, "m": 5}}


def _arrays(func: tirx.PrimFunc, sizes: dict[str, int]) -> list[np.ndarray]:
    """Numbers for the parameters at some sizes; the parameters after the tensors are sizes."""
    known = {var: tirx.const(sizes[var.name], "int64") for var in (N, M)}
    generator = np.random.default_rng(0)
    found = []
    for param in func.params:
        if isinstance(param.ty, tirx.BufferType):
            shape = [_number(size, known) for size in param.shape]
            buffer = tirx.decl_buffer(shape, str(param.dtype), param.name)
            found.append(_filled(buffer, generator))
    return found


def _number(size: object, known: dict) -> int:
    for var, value in known.items():
        if getattr(size, "name", "") == var.name:
            return int(value.value)
    return int(size.value)  # type: ignore[attr-defined]


def _run(kernel: Callable, arrays: list[np.ndarray]) -> list[np.ndarray]:
    tensors = [tvm.runtime.tensor(array) for array in arrays]
    kernel(*tensors)
    return [tensor.numpy() for tensor in tensors]


def _check(names: list[str], sizes: dict[str, int]) -> None:
    plain = {name: kernel_of(*CASES[name]) for name in names}
    kernels = emulated({name: scheduled(TEMPLATE, func) for name, func in plain.items()})
    modules = {
        f"f{i}": func.with_attr("global_symbol", f"f{i}") for i, func in enumerate(plain.values())
    }
    library = tirx.build(tvm.IRModule(modules), target=SERIAL_TARGET)
    for number, (name, func) in enumerate(plain.items()):
        arrays = _arrays(func, sizes)
        expected = _run(library[f"f{number}"], arrays)
        set_seed(1)
        assert_same(expected, _run(kernels[name], arrays), f"{name}: {sizes}")


def test_emulated() -> None:
    _check(["odd softmax", "two sizes", "layer norm", "columns"], SIZES["few"])


@pytest.mark.slow
@pytest.mark.parametrize("sizes", list(SIZES.values()), ids=list(SIZES))
def test_all_emulated(sizes: dict[str, int]) -> None:
    _check(list(CASES), sizes)


def test_sixteen_bytes_and_no_division_by_sizes() -> None:
    source = cuda_source(scheduled(TEMPLATE, kernel_of(*CASES["layer norm"])))
    assert "*(uint4*)(x0_ptr" in source
    divided = re.search(r"[/%] \(?(n|m|int64_t|cse_v\d+)\b", source)
    assert not divided, "rows of both loops are one behind another"
    assert "__shfl" in source


@needs_nvcc
def test_resources() -> None:
    functions = [scheduled(TEMPLATE, kernel_of(*CASES[name])) for name in ("softmax", "layer norm")]
    for kernel in resources(whole_source(*functions), "sm_90"):
        assert kernel.spilled == 0
        assert kernel.registers <= 128


def test_rows_of_open_length_are_refused() -> None:
    func = kernel_of(lambda x: nn.softmax(x, -1), ((8, N), "float32"))
    found = apply_template(TEMPLATE, func, GPU)
    assert isinstance(found, NotMine)
    assert "symbolic" in found.reason
    assert not isinstance(apply_template(TEMPLATE, kernel_of(op.sum, f32(8, 40)), GPU), NotMine)
