"""Windows on a GPU: numbers, one launch with the sum in a register, what is left to others."""

import pytest
from cuda_kernels import assert_numbers, cuda_source, scheduled
from kernel_cases import REDUCTIONS
from lowering import f32, kernel_of, kernels_of
from machines import GPU, MACHINE
from tvm import relax
from tvm.relax.op import nn

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.tir_schedules.apply_template import apply_template
from tvm_ext.tir_schedules.cuda.pooling import WindowReduction

TEMPLATE = WindowReduction()
POOLS = ("max pool", "max pool nhwc", "avg pool ceil", "avg pool padded", "argmax first")


def test_numbers() -> None:
    plain = {}
    for name in POOLS:
        case = REDUCTIONS[name]
        for kernel, func in kernels_of(case.expression, *case.inputs).items():
            plain[f"{name}: {kernel}"] = func
    assert_numbers(plain, {name: scheduled(TEMPLATE, func) for name, func in plain.items()})


@pytest.mark.parametrize("name", POOLS[:4])
def test_one_launch_with_the_result_in_a_register(name: str) -> None:
    case = REDUCTIONS[name]
    func = kernel_of(case.expression, *case.inputs)
    source = cuda_source(scheduled(TEMPLATE, func))
    assert source.count("__global__") == 2, "one kernel, declared and defined"
    result = source.split("__global__ void")[1].split("(float* __restrict__ ")[1].split(",")[0]
    assert source.count(f" {result}[") == 1, "stored once"


@pytest.mark.parametrize(
    ("expression", "inputs", "reason"),
    [
        (relax.op.exp, (f32(64, 64),), "no reduction"),
        (relax.op.matmul, (f32(64, 32), f32(32, 16)), "multiplies"),
        (lambda x: nn.max_pool2d(x, (40, 40)), (f32(1, 5, 80, 80),), "too long"),
    ],
)
def test_refusals(expression: object, inputs: tuple, reason: str) -> None:
    func = kernel_of(expression, *inputs)  # type: ignore[arg-type]
    found = apply_template(TEMPLATE, func, GPU)
    assert isinstance(found, NotApplicable)
    assert reason in found.reason
    assert isinstance(apply_template(TEMPLATE, func, MACHINE), NotApplicable)
