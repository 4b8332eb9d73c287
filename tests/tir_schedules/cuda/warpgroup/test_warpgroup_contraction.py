"""Products by warpgroups: numbers in the emulator, code, resources, and refusals."""

import re

import ml_dtypes
import numpy as np
import pytest
import tvm
from cuda_kernels import needs_nvcc, scheduled, whole_source
from emulated_kernels import run_emulated
from lowering import f32, kernel_of
from machines import GPU
from matmul_kernels import f16, linear, product
from tvm import relax, te, tirx
from warpgroup_cases import H200, assert_no_spills, check_numbers, code_of, residual

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.targets import resolve_target
from tvm_ext.tir_schedules.apply_template import apply_template
from tvm_ext.tir_schedules.cuda.matmul.matmul_decision import MatmulProblem
from tvm_ext.tir_schedules.cuda.warpgroup.warpgroup_contraction import WarpgroupContraction
from tvm_ext.tir_schedules.cuda.warpgroup.warpgroup_decision import (
    WarpgroupGemmTiles,
    decide_group_tiles,
)
from tvm_ext.tir_schedules.schedule_kernels import schedule_kernel
from tvm_ext.tir_schedules.template import DEFAULT_DECISIONS, FixedDecisions


def test_every_order_of_the_operands_in_memory():
    check_numbers(product(128, 64, 64, written="float16", b_transposed=True))
    check_numbers(product(128, 192, 72, a_transposed=True), tile_columns=192)


def test_sizes_that_no_tile_divides_in_bfloat16():
    kernel = product(
        248, 250, 72, dtype="bfloat16", written="bfloat16", a_transposed=True, b_transposed=True
    )
    check_numbers(kernel, tile_columns=128)


def test_a_batch_whose_operands_interleave_goes_around_the_ring_several_times():
    heads, rows, depth = 2, 128, 136
    a = te.placeholder((rows, heads, depth), "float16", "a")
    b = te.placeholder((rows, heads, depth), "float16", "b")
    k = te.reduce_axis((0, depth), "k")

    def score(h: tirx.Var, i: tirx.Var, j: tirx.Var) -> tirx.Expr:
        return te.sum(a[i, h, k].astype("float32") * b[j, h, k].astype("float32"), axis=k)

    kernel = te.create_prim_func([a, b, te.compute((heads, rows, rows), score, "c")])
    check_numbers(kernel, tile_columns=64, stages=2)


def test_rows_that_are_not_aligned_are_copied_first():
    check_numbers(product(128, 190, 131, written="float16"))
    check_numbers(product(128, 60, 123, batch=(2,), b_transposed=True))


def test_bias_activation_and_residual_are_applied_in_registers():
    operands = (f16(2, 120, 136), f16(136, 120), f16(120), f16(2, 120, 120))
    check_numbers(kernel_of(residual, *operands))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_results_that_are_wanted_in_16_bits_are_rounded_once(dtype):
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    generator = np.random.default_rng(0)
    a, b = (generator.standard_normal(s).astype(kind) for s in ((190, 200), (200, 72)))
    machine = H200.with_cores(2)
    decided = FixedDecisions({"tile_rows": 64, "tile_columns": 64, "split_blocks": 0})
    kernel = product(190, 72, 200, dtype=dtype, total=dtype)
    func = scheduled(WarpgroupContraction(), kernel, machine, decided)
    found = run_emulated(func, a, b, np.zeros((190, 72), kind), machine=machine)[2]
    expected = (a.astype("float64") @ b.astype("float64")).astype(kind)
    # Sums in another order round differently where they lie between two values.
    assert np.mean(found != expected) < 1e-3
    assert "tvm_ext_pack_columns_64" in whole_source(func, machine=machine)


def test_a_convolution_of_one_pixel_is_a_product():
    def pointwise(x: relax.Expr, w: relax.Expr, b: relax.Expr) -> relax.Expr:
        layouts = {"data_layout": "NHWC", "kernel_layout": "OHWI", "out_layout": "NHWC"}
        return relax.op.nn.relu(relax.op.nn.conv2d(x, w, **layouts) + b)

    check_numbers(kernel_of(pointwise, f16(2, 8, 8, 120), f16(56, 1, 1, 120), f16(56)))


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "columns", "sms"), [(768, 192, 3), (250, 251, 2), (384, 504, 1)])
def test_tiles_in_groups_over_several_blocks(rows, columns, sms):
    kernel = product(rows, columns, 72, b_transposed=True, written="float16")
    check_numbers(kernel, sms, tile_group=2)


def test_the_template_is_asked_before_instructions_of_single_warps():
    kernel = kernel_of(linear, f16(4096, 4096), f16(4096, 4096), f16(4096))
    for name in ("nvidia-h100", "nvidia-h200"):
        assert schedule_kernel(kernel, resolve_target(name))[1].schedule == (
            "warpgroup contraction"
        )
    choice = schedule_kernel(kernel, GPU)[1]
    assert choice.schedule == "contraction"
    assert "warpgroup contraction: sm_80 has no instructions of warpgroups" in choice.refusals


def test_code_of_a_large_product():
    source = code_of(product(4096, 4096, 4096, written="float16"))
    kernel = source.split("__launch_bounds__")[-1]
    assert "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16" in source
    # Each of two blocks copies half of B to both.
    assert "multicast::cluster [%0], [%1, {%3, %4}], [%2], 0x3;" in source
    assert re.findall(r"tvm_ext_copy_box_2d\w*", kernel) == [
        "tvm_ext_copy_box_2d",
        *["tvm_ext_copy_box_2d_to_3"] * 2,
    ]
    assert source.count("const __grid_constant__ CUtensorMap") == 2 * 2
    assert "*(uint4*)" in kernel
    # One barrier of the cluster before its threads part and one at their end; the rest are
    # barriers of the ring.
    assert "__syncthreads" not in kernel
    before, after = kernel.split("tvm_ext_registers_dec_40", 1)
    assert before.count("tvm_ext_cluster_begin") == after.count("tvm_ext_cluster_meet") == 1
    assert "tvm_ext_barrier_init" not in after
    # Four products are one group, of which one stays under way.
    order = re.findall(r"tvm_ext_multiply_(\w+?)\(", after)
    assert order[:7] == ["start", *["n256_f16_kn"] * 4, "commit", "finish_1"]
    assert order[7:] == ["finish_0"]


@needs_nvcc
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_nothing_spills_and_nothing_is_serialized(dtype, tmp_path):
    half = dtype == "float16"
    shapes = ((4000, 4096), (4096, 4096), (4096,), (4000, 4096))
    kernel = kernel_of(residual, *[(shape, dtype) for shape in shapes])
    kernel = kernel if half else product(4096, 4096, 4096, dtype=dtype, a_transposed=True)
    assert_no_spills(code_of(kernel), tmp_path, registers=[168])


@pytest.mark.parametrize("shape", [(4096, 4096, 4096), (8192, 8192, 8192), (4096, 14336, 4096)])
def test_large_products_have_large_tiles_that_fit(shape):
    product = MatmulProblem(1, *shape, "float16", 2, 16)
    tiles = decide_group_tiles(product, H200, DEFAULT_DECISIONS)
    assert isinstance(tiles, WarpgroupGemmTiles)
    assert (tiles.columns, tiles.stages) == (256, 4)
    assert tiles.shared_bytes <= H200.dynamic_shared_memory_bytes
    assert tiles.group == 16


def _computed_operand() -> tirx.PrimFunc:
    a, b = te.placeholder((512, 512), "float16", "a"), te.placeholder((512, 512), "float16", "b")
    twice = te.compute((512, 512), lambda i, j: a[i, j] * a[j, i], "twice")
    k = te.reduce_axis((0, 512), "k")
    c = te.compute((512, 512), lambda i, j: te.sum(twice[i, k] * b[k, j], axis=k))
    return te.create_prim_func([a, b, c])


@pytest.mark.parametrize(
    ("kernel", "reason"),
    [
        (lambda: product(512, 512, 512, dtype="float32"), "operands are of float32"),
        (lambda: product(256, 511, 511), "single warps are as fast"),
        (lambda: product(1, 4096, 4096), "M, N or K is 1"),
        (lambda: product(16, 4096, 4096), "single warps are as fast"),
        (lambda: product(512, 512, 512), "single warps are as fast"),
        (_computed_operand, "is computed in the kernel"),
        (lambda: kernel_of(lambda x: x + x, f32(8, 8)), "0 reductions"),
    ],
)
def test_refusals_say_why(kernel, reason):
    refused = apply_template(WarpgroupContraction(), kernel(), H200)
    assert isinstance(refused, NotApplicable)
    assert reason in refused.reason


def test_a_slice_of_the_second_operand_is_refused():
    a, b = te.placeholder((512, 512), "float16", "a"), te.placeholder((512, 520), "float16", "b")
    k = te.reduce_axis((0, 512), "k")
    c = te.compute((512, 512), lambda i, j: te.sum(a[i, k] * b[k, j + 8], axis=k))
    refused = apply_template(WarpgroupContraction(), te.create_prim_func([a, b, c]), H200)
    assert isinstance(refused, NotApplicable)
    assert "another place than its start" in refused.reason


def test_the_host_makes_the_tensor_maps():
    func = scheduled(WarpgroupContraction(), product(4096, 4096, 4096), H200)
    target = tvm.target.Target(H200.tvm_target(), host="llvm")
    host = tvm.compile(tvm.IRModule({"main": func}), target=target).mod.inspect_source()
    assert host.count("runtime.cuTensorMapEncodeTiled") >= 1
