"""Constant operands of odd sizes: given to the kernel padded to whole tiles."""

import numpy as np
import pytest
import tvm
from cuda_emulation import set_seed
from cuda_kernels import SERIAL_TARGET, scheduled, whole_source
from emulated_kernels import emulated
from lowering import _filled, assert_same, f32, kernel_of
from machines import GPU
from matmul_kernels import f16, product
from tvm import relax, tirx
from unoptimised import linked

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.tir_schedules.analysis.buffer_access import CONSTANTS_ATTRIBUTE
from tvm_ext.tir_schedules.apply_template import ScheduledKernel, apply_template
from tvm_ext.tir_schedules.cuda.matmul.contraction import CudaContraction
from tvm_ext.tir_schedules.packing import PaddedOperand
from tvm_ext.tir_schedules.template import FixedDecisions

SMALL = {"tile_rows": 32, "tile_columns": 32, "warp_rows": 16, "warp_columns": 32, "stages": 2}


def with_constant(func: tirx.PrimFunc, position: int, **decided: int) -> ScheduledKernel:
    """The kernel, scheduled with one of its parameters as a constant."""
    marked = func.with_attr(CONSTANTS_ATTRIBUTE, [position])
    found = apply_template(CudaContraction(), marked, GPU, FixedDecisions(decided))
    assert not isinstance(found, NotApplicable), found.reason
    return found


def conv(x: relax.Expr, w: relax.Expr) -> relax.Expr:
    return relax.op.nn.conv2d(x, w, padding=1, data_layout="NHWC", kernel_layout="OHWI")


CASES = {
    "batched rows of columns": (product(45, 51, 77, batch=(2,)), 1, SMALL),
    "first operand": (product(51, 48, 77), 0, SMALL),
    "float32": (product(45, 51, 77, dtype="float32", b_transposed=True), 1, {"splits": 1}),
    "convolution": (kernel_of(conv, f16(1, 5, 7, 13), f16(18, 3, 3, 13)), 1, SMALL),
}


def test_numbers() -> None:
    symbols = {f"f{number}": case for number, case in enumerate(CASES.values())}
    named = {s: func.with_attr("global_symbol", s) for s, (func, _, _) in symbols.items()}
    known = linked(tirx.build(tvm.IRModule(named), target=SERIAL_TARGET))
    padded = {s: with_constant(func, at, **how) for s, (func, at, how) in symbols.items()}
    found = emulated({symbol: kernel.func for symbol, kernel in padded.items()})
    set_seed(0)
    for symbol, (func, at, _) in symbols.items():
        generator = np.random.default_rng(0)
        arrays = [_filled(p, generator) for p in func.params if isinstance(p.ty, tirx.BufferType)]
        expected = [tvm.runtime.tensor(array) for array in arrays]
        known[symbol](*expected)
        operand = padded[symbol].packed
        assert isinstance(operand, PaddedOperand)
        arrays[at] = operand.pack(arrays[at])
        tensors = [tvm.runtime.tensor(array) for array in arrays]
        found[symbol](*tensors)
        assert_same([expected[-1].numpy()], [tensors[-1].numpy()], symbol)


def test_no_kernel_pads_it_in_a_run() -> None:
    func, how = product(64, 2047, 2047), {"stage_a": 0, "splits": 1}
    staged = scheduled(CudaContraction(), func, decisions=FixedDecisions({**how, "stage_b": 1}))
    padded = with_constant(func, 1, **how).func
    launches = [whole_source(kernel).count("__global__ void") for kernel in (staged, padded)]
    assert launches == [2 * 2, 2 * 1]  # declared and defined
    assert "ptx_cp_async_legacy_cg_16" in whole_source(padded)


@pytest.mark.parametrize(
    ("func", "why"),
    [
        (product(64, 64, 64, b_transposed=True), "it is whole tiles already"),
        (product(64, 3, 640), "it would grow to many times its size"),
        (kernel_of(lambda x, w: relax.op.matmul(x, w) + w, f32(30, 30), f32(30, 30)), "read twice"),
    ],
    ids=["whole", "thin", "twice"],
)
def test_left_as_it_is(func: tirx.PrimFunc, why: str) -> None:
    assert with_constant(func, 1).packed is None, why
