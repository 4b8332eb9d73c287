"""Kernels that turn through shared memory: numbers, structure, refusals."""

import re

import pytest
from cuda_kernels import assert_numbers, check, cuda_source, scheduled, shared_bytes
from lowering import f32, kernel_of
from machines import GPU
from tvm import relax
from tvm.relax.op import nn

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.tir_schedules.apply_template import apply_template
from tvm_ext.tir_schedules.cuda.transpose import CudaTranspose

op = relax.op
TEMPLATE = CudaTranspose()

CASES = {
    "plain": (op.permute_dims, (f32(64, 96),)),
    "odd": (op.permute_dims, (f32(13, 41),)),
    "one tile": (op.permute_dims, (f32(32, 32),)),
    "half": (op.permute_dims, (((70, 66), "float16"),)),
    "int8": (op.permute_dims, (((33, 130), "int8"),)),
    "int64": (op.permute_dims, (((33, 31), "int64"),)),
    "to nhwc": (lambda x: op.permute_dims(x, [0, 2, 3, 1]), (f32(2, 17, 5, 7),)),
    "to nchw": (lambda x: op.permute_dims(x, [0, 3, 1, 2]), (f32(2, 5, 7, 33),)),
    "swapped": (lambda x: op.permute_dims(x, [2, 1, 0]), (f32(9, 3, 35),)),
    "with bias": (
        lambda x, b: nn.relu(op.add(op.permute_dims(x), b)),
        (f32(40, 33), f32(40)),
    ),
    "two transposed": (
        lambda x, y: op.add(op.permute_dims(x), op.permute_dims(y)),
        (f32(40, 33), f32(40, 33)),
    ),
    "one of two": (lambda x, y: op.add(op.permute_dims(x), y), (f32(40, 33), f32(33, 40))),
    "reshaped": (
        lambda x: op.permute_dims(op.reshape(x, [3, 12, 4, 9]), [0, 2, 3, 1]),
        (f32(36, 36),),
    ),
}


def test_numbers() -> None:
    plain = {name: kernel_of(expression, *inputs) for name, (expression, inputs) in CASES.items()}
    assert_numbers(plain, {name: scheduled(TEMPLATE, func) for name, func in plain.items()})


@pytest.mark.parametrize("tile", [16, 32, 64])
@pytest.mark.parametrize("rows", [4, 16])
def test_decisions(tile: int, rows: int) -> None:
    check(TEMPLATE, op.permute_dims, f32(45, 70), tile=tile, rows=rows)


def test_both_sides_are_contiguous() -> None:
    source = cuda_source(scheduled(TEMPLATE, kernel_of(op.permute_dims, f32(64, 96))))
    assert shared_bytes(source) == (32 * 33 - 1) * 4
    assert source.count("__syncthreads()") == 1
    # Threads move along the last axis of the input when they load, and of the result.
    loads = re.findall(r"x0_ptr\[(.+)\];", source)
    stores = re.findall(r"T_transpose_ptr\[(.+?)\] =", source)
    assert loads
    assert stores
    for address in [*loads, *stores]:
        assert re.search(r"\(\(int\)threadIdx\.x\)\)(?! \*)", address), address


@pytest.mark.parametrize(
    ("expression", "inputs", "reason"),
    [
        (op.exp, (f32(64, 64),), "read along the axis"),
        (op.permute_dims, (f32(64, 4),), "read along the axis"),
        (lambda x: op.sum(x, axis=[1]), (f32(4, 64),), "reduces or scans"),
    ],
)
def test_refusals(expression: object, inputs: tuple, reason: str) -> None:
    found = apply_template(TEMPLATE, kernel_of(expression, *inputs), GPU)  # type: ignore[arg-type]
    assert isinstance(found, NotApplicable)
    assert reason in found.reason
