"""Elementwise kernels on a GPU: numbers, 16-byte accesses, bounds, what is left to others."""

import pytest
import tvm
from gpu_kernels import assert_numbers, check, cuda_source, needs_nvcc, resources, scheduled, whole_source
from kernel_cases import MOVES, POINTWISE
from lowering import f32, kernel_of, kernels_of
from machines import GPU, MACHINE
from tvm import relax, tirx
from tvm.relax.op import nn

from tvm_ext.tir_schedules.cuda.elementwise import Elementwise
from tvm_ext.tir_schedules.template import NotMine

op = relax.op
TEMPLATE = Elementwise()
NAMES = [name for name in (*MOVES, *POINTWISE) if "empty" not in name and "nothing" not in name]


def test_numbers_of_every_kernel() -> None:
    plain = {}
    for name in NAMES:
        case = {**MOVES, **POINTWISE}[name]
        kernels = kernels_of(case.expression, *case.inputs)
        plain |= {f"{name}: {kernel}": func for kernel, func in kernels.items()}
    assert_numbers(plain, {name: scheduled(TEMPLATE, func) for name, func in plain.items()})


@pytest.mark.parametrize("name", NAMES)
def test_cuda_code(name: str) -> None:
    case = {**MOVES, **POINTWISE}[name]
    for func in kernels_of(case.expression, *case.inputs).values():
        assert "threadIdx.x" in cuda_source(scheduled(TEMPLATE, func)) or name.startswith("scalar")
