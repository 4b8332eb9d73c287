"""Rows whose number is known in the run only: the same kernels, with grids of that size."""

import re
from collections.abc import Iterable

import pytest
from cuda_kernels import cuda_source, needs_nvcc, resources, scheduled, whole_source
from lowering import f32, kernel_of
from machines import GPU
from symbolic_kernels import M, N, check_symbolic
from tvm import relax, tirx
from tvm.relax.op import nn

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.tir_schedules.apply_template import apply_template
from tvm_ext.tir_schedules.cuda.row_reduction import RowReduction

op = relax.op
TEMPLATE = RowReduction()


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


def _kernels(names: Iterable[str]) -> dict[str, tirx.PrimFunc]:
    return {name: kernel_of(*CASES[name]) for name in names}


def test_emulated() -> None:
    check_symbolic(
        TEMPLATE, _kernels(["odd softmax", "two sizes", "layer norm", "columns"]), SIZES["few"]
    )


@pytest.mark.slow
@pytest.mark.parametrize("sizes", list(SIZES.values()), ids=list(SIZES))
def test_all_emulated(sizes: dict[str, int]) -> None:
    check_symbolic(TEMPLATE, _kernels(CASES), sizes)


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


LENGTHS: dict[str, tuple] = {
    "softmax": (lambda x: nn.softmax(x, -1), ((N, 3, M), "float16")),
    "scores": (lambda x: nn.softmax(x, -1), ((N, 2, M, M), "float32")),
    "sum": (lambda x: op.sum(x, 1), ((N, M), "float32")),
    "argmax": (lambda x: op.argmax(x, 1), ((5, M), "float32")),
    "maps": (lambda x: op.mean(x, [2, 3], keepdims=True), ((N, 3, M, 5), "float32")),
    "middle": (lambda x: op.mean(x, 1), ((N, M, 40), "float32")),
}
SHORT = ({"n": 3, "m": 7}, {"n": 2, "m": 64}, {"n": 5, "m": 1}, {"n": 0, "m": 4})
LONG = ({"n": 3, "m": 2056}, {"n": 1, "m": 2051})


def test_symbolic_lengths_emulated() -> None:
    plain = {name: kernel_of(*LENGTHS[name]) for name in ("softmax", "sum", "middle")}
    check_symbolic(TEMPLATE, plain, *SHORT[:2], *LONG[1:])


@pytest.mark.slow
def test_all_symbolic_lengths_emulated() -> None:
    check_symbolic(TEMPLATE, {name: kernel_of(*case) for name, case in LENGTHS.items()}, *SHORT)
    rows = {
        name: kernel_of(*LENGTHS[name]) for name in ("softmax", "sum", "argmax", "maps", "middle")
    }
    check_symbolic(TEMPLATE, rows, *LONG)


def test_versions_of_symbolic_lengths() -> None:
    source = cuda_source(scheduled(TEMPLATE, kernel_of(*LENGTHS["scores"])))
    kernels = source.split('extern "C"')[-4:]
    assert ["float4" in kernel for kernel in kernels] == [False, True, False, True]
    assert ["__shared__" in kernel for kernel in kernels] == [False, False, True, True]
    # Of the rows of four loops, none is told apart.
    assert not re.search(r"[/%] \(?\(?(n|m)\b", source)


def test_rows_of_neighbours_are_read_along() -> None:
    source = cuda_source(scheduled(TEMPLATE, kernel_of(lambda x: op.sum(x, 1), f32(1000, 768))))
    assert source.count("*(float4*)(x0_ptr") == 6, "each thread of a warp, six vectors of a row"


def test_products_of_symbolic_length_are_left_to_others() -> None:
    func = kernel_of(op.matmul, ((N, M), "float32"), ((M, 40), "float32"))
    found = apply_template(TEMPLATE, func, GPU)
    assert isinstance(found, NotApplicable)
