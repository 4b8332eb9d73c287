"""Templates on a real GPU, with ``make test-cuda``: the numbers of kernels as TVM wrote them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import test_attention
import test_emulated_templates
import test_resources
import test_warp_group_attention
import tvm
from attention_cases import Case, compare
from gpu_kernels import SERIAL_TARGET, scheduled
from lowering import _filled, assert_same, kernel_of
from matrix_products import in_instructions
from needs_gpu import NEEDS_GPU
from tvm import tirx

from tvm_ext.hardware.cuda.device_code import making_device_code
from tvm_ext.hardware.description import GpuDescription
from tvm_ext.hardware.targets import resolve_processor
from tvm_ext.tir_schedules.cuda.elementwise import Elementwise
from tvm_ext.tir_schedules.cuda.pass_options import compile_kernels
from tvm_ext.tir_schedules.cuda.rows.row_reduction import RowReduction
from tvm_ext.tir_schedules.cuda.transpose import Transpose
from tvm_ext.tir_schedules.cuda.warp_group_attention.warp_group_attention import WarpGroupAttention
from tvm_ext.tir_schedules.cuda.warp_groups.warp_group_contraction import ARCHITECTURE
from tvm_ext.tir_schedules.select import schedule_kernel

pytestmark = NEEDS_GPU


def assert_on_device(plain: tirx.PrimFunc, func: tirx.PrimFunc, machine: GpuDescription) -> None:
    """The scheduled kernel computes on the device what the plain one does on the CPU."""
    generator = np.random.default_rng(0)
    params = [p for p in plain.params if isinstance(p.ty, tirx.BufferType)]
    arrays = [_filled(param, generator) for param in params]
    host, device = ([tvm.runtime.tensor(array) for array in arrays] for _ in range(2))
    tirx.build(plain.with_attr("global_symbol", "kernel"), target=SERIAL_TARGET)["kernel"](*host)
    built(func, machine)(*device)
    assert_same([one.numpy() for one in host], [one.numpy() for one in device], "kernel")


def built(func: tirx.PrimFunc, machine: GpuDescription) -> Callable[..., None]:
    """The scheduled kernel as a function of tensors on the host, copied to the device and back."""
    target = tvm.target.Target(machine.tvm_target(), host="llvm")
    named = {"kernel": func.with_attr("global_symbol", "kernel")}
    with making_device_code(machine.arch):
        library = compile_kernels(tvm.IRModule(named), target)

    def run(*host: Any) -> None:
        device = [tvm.runtime.tensor(one.numpy(), tvm.cuda()) for one in host]
        library["kernel"](*device)
        for one, other in zip(host, device, strict=True):
            one.copyfrom(other.numpy())

    return run


def machine() -> GpuDescription:
    found = resolve_processor("cuda")
    assert isinstance(found, GpuDescription)
    return found


@pytest.mark.parametrize("number", range(len(test_resources.KERNELS)))
def test_kernels_of_models(number: int) -> None:
    template, expression, inputs = test_resources.KERNELS[number]
    plain = kernel_of(expression, *inputs)
    assert_on_device(plain, scheduled(template, plain, machine()), machine())


GROUPS = {
    RowReduction: test_emulated_templates.ROWS,
    Transpose: test_emulated_templates.MOVES,
    Elementwise: test_emulated_templates.POINTWISE,
}


@pytest.mark.parametrize(
    ("template", "name"), [(kind, name) for kind, named in GROUPS.items() for name in named]
)
def test_kernels_of_odd_sizes(template: type, name: str) -> None:
    expression, *inputs = GROUPS[template][name]
    plain = kernel_of(expression, *inputs)
    assert_on_device(plain, scheduled(template(), plain, machine()), machine())


@pytest.mark.parametrize("name", test_emulated_templates.PRODUCTS)
def test_products(name: str) -> None:
    plain, how = test_emulated_templates.PRODUCTS[name]
    assert_on_device(plain, in_instructions(plain, machine(), **how), machine())


ATTENTIONS = {**test_attention.CASES, **test_attention.SINGLE}


@pytest.mark.parametrize("name", ATTENTIONS)
def test_attention_by_warps(name: str) -> None:
    case = ATTENTIONS[name]
    compare({name: case}, {name: built(case.scheduled(machine()), machine())}, (0,))


@pytest.mark.parametrize("name", test_warp_group_attention.CASES)
def test_attention_by_warp_groups(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if machine().arch != ARCHITECTURE:
        pytest.skip("the GPU has no instructions of warp groups")
    test_warp_group_attention.take_all(monkeypatch)
    case = test_warp_group_attention.CASES[name]
    kernel = built(case.scheduled(machine(), WarpGroupAttention()), machine())
    compare({name: case}, {name: kernel}, (0,))


LONG = [
    Case(2, 4, 1000, 1000, depth, dtype=dtype, causal=causal, group=group)
    for depth, dtype, causal, group in (
        (64, "float16", None, 1),
        (64, "bfloat16", 0, 2),
        (128, "float16", 0, 1),
        (128, "bfloat16", None, 4),
        (256, "float16", 0, 1),
    )
]


@pytest.mark.parametrize("case", LONG, ids=str)
def test_attention_of_long_sequences(case: Case) -> None:
    found, _ = schedule_kernel(case.function(), machine())
    compare({"long": case}, {"long": built(found, machine())}, (0,))
