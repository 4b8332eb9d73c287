"""Templates on a real GPU, with ``make test-cuda``: the numbers of kernels as TVM wrote them."""

import numpy as np
import pytest
import test_emulated_templates
import test_resources
import tvm
from gpu_kernels import SERIAL_TARGET, scheduled
from lowering import _filled, assert_same, kernel_of
from matrix_products import in_instructions
from tvm import tirx

from tvm_ext.hardware.cuda.device_code import making_device_code
from tvm_ext.hardware.cuda.runtime_library import runtime_problem
from tvm_ext.hardware.description import GpuDescription
from tvm_ext.hardware.targets import resolve_processor
from tvm_ext.tir_schedules.cuda.elementwise import Elementwise
from tvm_ext.tir_schedules.cuda.pass_options import compile_kernels
from tvm_ext.tir_schedules.cuda.rows.row_reduction import RowReduction
from tvm_ext.tir_schedules.cuda.transpose import Transpose

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(bool(runtime_problem()), reason=runtime_problem() or "there is a GPU"),
]


def assert_on_device(plain: tirx.PrimFunc, func: tirx.PrimFunc, machine: GpuDescription) -> None:
    """The scheduled kernel computes on the device what the plain one does on the CPU."""
    generator = np.random.default_rng(0)
    params = [p for p in plain.params if isinstance(p.ty, tirx.BufferType)]
    arrays = [_filled(param, generator) for param in params]
    host = [tvm.runtime.tensor(array) for array in arrays]
    device = [tvm.runtime.tensor(array, tvm.cuda()) for array in arrays]
    target = tvm.target.Target(machine.tvm_target(), host="llvm")
    named = {"kernel": func.with_attr("global_symbol", "kernel")}
    with making_device_code(machine.arch):
        built = compile_kernels(tvm.IRModule(named), target)
    tirx.build(plain.with_attr("global_symbol", "kernel"), target=SERIAL_TARGET)["kernel"](*host)
    built["kernel"](*device)
    assert_same([one.numpy() for one in host], [one.numpy() for one in device], "kernel")


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
