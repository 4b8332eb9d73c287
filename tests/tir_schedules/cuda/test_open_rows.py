"""Rows whose number is known in the run only: the same kernels, with grids of that size."""

import re
from collections.abc import Iterable

import pytest
from gpu_kernels import cuda_source, needs_nvcc, resources, scheduled, whole_source
from lowering import f32, kernel_of
from machines import GPU
from open_kernels import M, N, check_open
from tvm import relax, tirx
from tvm.relax.op import nn

from tvm_ext.tir_schedules.apply_template import apply_template
from tvm_ext.tir_schedules.cuda.rows.row_reduction import RowReduction
from tvm_ext.tir_schedules.template import NotMine

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
    check_open(
        TEMPLATE, _kernels(["odd softmax", "two sizes", "layer norm", "columns"]), SIZES["few"]
    )


@pytest.mark.slow
@pytest.mark.parametrize("sizes", list(SIZES.values()), ids=list(SIZES))
def test_all_emulated(sizes: dict[str, int]) -> None:
    check_open(TEMPLATE, _kernels(CASES), sizes)


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
