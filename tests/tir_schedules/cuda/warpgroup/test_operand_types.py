"""Products by warpgroups of integers and of float32 rounded to tf32, in the emulator."""

import numpy as np
import pytest
from cuda_kernels import needs_nvcc, resources, scheduled, whole_source
from emulated_kernels import run_emulated
from lowering import kernel_of
from matmul_kernels import product
from template_cases import tf32
from tvm import relax, tirx
from warpgroup_cases import H200, SLOW, check_numbers, convolved, of_integers, small_gpu

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cuda.description import CudaDescription
from tvm_ext.tir_schedules.analysis.buffer_access import CONSTANTS_ATTRIBUTE
from tvm_ext.tir_schedules.apply_template import ScheduledKernel, apply_template
from tvm_ext.tir_schedules.cuda.warpgroup.warpgroup_contraction import WarpgroupContraction
from tvm_ext.tir_schedules.packing import PackedOperand

TF32 = H200.with_tf32()


def small(machine: CudaDescription) -> CudaDescription:
    """One multiprocessor whose multiply-adds take longer than anything else."""
    return small_gpu(1, SLOW).model_copy(update={"tf32": machine.tf32})


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("int8", "int8"),
        ("uint8", "int8"),
        pytest.param("int8", "uint8", marks=pytest.mark.slow),
        pytest.param("uint8", "uint8", marks=pytest.mark.slow),
    ],
)
def test_integers_of_the_whole_range(first: str, second: str) -> None:
    generator = np.random.default_rng(0)

    def filled(dtype: str, rows: int) -> np.ndarray:
        limits = np.iinfo(dtype)
        return generator.integers(limits.min, limits.max + 1, (rows, 256)).astype(dtype)

    a, b = filled(first, 128), filled(second, 64)
    func = scheduled(WarpgroupContraction(), of_integers(128, 64, 256, first, second), small(H200))
    *_, found = run_emulated(func, a, b, np.zeros((128, 64), "int32"), machine=small(H200))
    np.testing.assert_array_equal(found, a.astype("int32") @ b.astype("int32").T)


def test_float32_is_rounded_to_tf32_with_half_the_error_of_cutting_off() -> None:
    generator = np.random.default_rng(0)
    a, b = (generator.normal(size=(rows, 96)).astype("float32") for rows in (128, 64))
    kernel = product(128, 64, 96, dtype="float32", b_transposed=True)
    func = scheduled(WarpgroupContraction(), kernel, small(TF32))
    *_, found = run_emulated(func, a, b, np.zeros((128, 64), "float32"), machine=small(TF32))
    np.testing.assert_allclose(found, tf32(a, True) @ tf32(b, True).T, atol=5e-5)
    exact = a.astype("float64") @ b.T
    cut_off = np.abs(tf32(a, False).astype("float64") @ tf32(b, False).T - exact)
    assert np.abs(found - exact).mean() < 0.55 * cut_off.mean()


def _integer_window(x: relax.Expr, w: relax.Expr) -> relax.Expr:
    layouts = {"data_layout": "NHWC", "kernel_layout": "OHWI", "out_layout": "NHWC"}
    return relax.op.nn.conv2d(x, w, padding=1, out_dtype="int32", **layouts)


@pytest.mark.slow
def test_sizes_that_no_tile_divides() -> None:
    check_numbers(product(120, 60, 240, dtype="int8", total="int32", b_transposed=True), 1, SLOW)
    odd = product(124, 62, 251, dtype="uint8", total="int32", b_transposed=True, written="float32")
    check_numbers(odd, 1, SLOW, tile_columns=64)
    image, filters = ((1, 16, 16, 112), "int8"), ((64, 3, 3, 112), "int8")
    check_numbers(kernel_of(_integer_window, image, filters), 1, SLOW)


@pytest.mark.slow
def test_constant_filters_are_packed_with_neighbouring_channels() -> None:
    kernel = convolved((1, 16, 16, 40), (3, 3, 40, 64), "float32", padding=1, kernel_layout="HWIO")
    func = apply_template(
        WarpgroupContraction(), kernel.with_attr(CONSTANTS_ATTRIBUTE, [1]), small(TF32)
    )
    assert isinstance(func, ScheduledKernel)
    assert func.packed == PackedOperand(1, axis=3, block=1)
    generator = np.random.default_rng(0)
    sizes = [tuple(map(int, param.shape)) for param in kernel.params]
    x, w, b, r, y = (generator.normal(size=size).astype("float32") for size in sizes)
    *_, found = run_emulated(func.func, x, func.packed.pack(w), b, r, y, machine=small(TF32))
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))
    summed = np.einsum("nhwcij,ijco->nhwo", windows, w)
    np.testing.assert_allclose(found, np.maximum(summed + b, 0) + r, atol=0.1)


@needs_nvcc
@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["int8", "float32"])
def test_nothing_spills(dtype: str) -> None:
    total = "int32" if dtype == "int8" else "float32"
    kernel = product(4096, 4096, 4096, dtype=dtype, total=total, b_transposed=True)
    source = whole_source(scheduled(WarpgroupContraction(), kernel, TF32), machine=TF32)
    name = {"int8": "k32.s32.s8.s8", "float32": "k8.f32.tf32.tf32"}[dtype]
    assert f"wgmma.mma_async.sync.aligned.m64n256{name}" in source
    assert all(used.spilled == used.stack == 0 for used in resources(source, "sm_90a"))


@pytest.mark.parametrize(
    ("kernel", "machine", "reason"),
    [
        (product(512, 512, 512, dtype="float32"), TF32, "b of float32 has no neighbouring steps"),
        (product(512, 512, 512, dtype="int8", total="int32"), H200, "b of int8 has no neighbour"),
        (
            product(512, 512, 512, dtype="float32", b_transposed=True),
            H200,
            "operands are of float32",
        ),
        (of_integers(512, 512, 512, "int8", "float16"), H200, "operands are of float16, int8"),
        (convolved((8, 56, 56, 6), (64, 3, 3, 6), "float32"), TF32, "whole pieces of 16 bytes"),
    ],
)
def test_refusals_say_why(kernel: tirx.PrimFunc, machine: CudaDescription, reason: str) -> None:
    refused = apply_template(WarpgroupContraction(), kernel, machine)
    assert isinstance(refused, NotApplicable)
    assert reason in refused.reason
