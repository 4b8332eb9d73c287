"""Matrix times vector: numbers, wide loads of the matrix, and how a block's threads share it."""

import random

import pytest
from cuda_kernels import (
    assert_numbers,
    cuda_source,
    needs_nvcc,
    resources,
    scheduled,
    shared_bytes,
    whole_source,
)
from lowering import kernel_of
from machines import GPU
from matmul_kernels import convolution, f16, hard_swish, product
from tvm import relax, te, tirx

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.tir_schedules.apply_template import apply_template
from tvm_ext.tir_schedules.cuda.matmul.gemv import Gemv
from tvm_ext.tir_schedules.schedule_kernels import schedule_kernel
from tvm_ext.tir_schedules.template import FixedDecisions, SampledDecisions

TEMPLATE = Gemv()


def check(func: tirx.PrimFunc) -> None:
    assert_numbers({"kernel": func}, {"kernel": scheduled(TEMPLATE, func)})


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((1, 1024, 96), {"written": "float16"}),
        ((1, 72, 512), {"b_transposed": True}),
        ((1, 1001, 77), {}),
        ((1, 101, 77), {"b_transposed": True}),
        ((100, 1, 77), {"batch": (3,), "total": "float16"}),
        ((1, 8, 2), {"b_transposed": True}),
        ((1, 9, 2), {}),
        ((1, 130, 72), {"dtype": "int8", "total": "int32"}),
        ((1, 130, 72), {"dtype": "int8", "total": "int32", "b_transposed": True}),
        ((1, 72, 64), {"dtype": "bfloat16", "written": "bfloat16"}),
        ((1, 33, 50), {"dtype": "float64", "total": "float64"}),
    ],
    ids=str,
)
def test_numbers(shape, options):
    check(product(*shape, **options))


def test_what_follows_the_product():
    def block(x, w, b, r):
        return hard_swish(relax.op.matmul(x, w) + b) + r

    check(kernel_of(block, f16(1, 164), f16(164, 48), f16(48), f16(1, 48)))


def test_a_convolution_of_one_pixel_and_one_to_one_channel():
    check(kernel_of(convolution, f16(1, 1, 1, 96), f16(24, 1, 1, 96), f16(24)))
    check(kernel_of(lambda x, w: relax.op.nn.conv2d(x, w), f16(1, 96, 7, 7), f16(1, 96, 1, 1)))


@pytest.mark.parametrize("transposed", [False, True], ids=["steps first", "steps last"])
def test_the_matrix_is_loaded_sixteen_bytes_at_a_time(transposed):
    source = cuda_source(scheduled(TEMPLATE, product(1, 4096, 4096, b_transposed=transposed)))
    assert source.count("= *(uint4*)(b_ptr") == 8
    assert shared_bytes(source) <= GPU.shared_memory_bytes


def test_drawn_decisions():
    for seed in range(2):
        transposed = bool(seed % 2)
        func = product(1, 200, 176, b_transposed=transposed)
        drawn = SampledDecisions(random.Random(seed))
        found = scheduled(TEMPLATE, func, decisions=drawn)
        assert_numbers({"kernel": func}, {"kernel": found})
        again = scheduled(TEMPLATE, func, decisions=FixedDecisions(drawn.free()))
        assert again.script() == found.script()


@needs_nvcc
def test_no_spills(tmp_path):
    kernels = [
        scheduled(
            TEMPLATE, product(1, 4096, 4096, dtype=dtype, total=total, b_transposed=transposed)
        )
        for dtype, total in (("bfloat16", "float32"), ("int8", "int32"))
        for transposed in (False, True)
    ]
    used = resources(whole_source(*kernels), "sm_90", tmp_path)
    assert len(used) == len(kernels)
    assert all(kernel.spilled == kernel.stack == 0 for kernel in used)


def test_the_template_takes_what_the_contraction_leaves():
    assert schedule_kernel(product(1, 256, 256), GPU)[1].schedule == "gemv"


def _depthwise() -> tirx.PrimFunc:
    x = te.placeholder((10, 10, 32), "float32", "x")
    w = te.placeholder((3, 3, 32), "float32", "w")
    i, j = te.reduce_axis((0, 3), "i"), te.reduce_axis((0, 3), "j")
    y = te.compute(
        (8, 8, 32), lambda h, v, c: te.sum(x[h + i, v + j, c] * w[i, j, c], axis=[i, j]), "y"
    )
    return te.create_prim_func([x, w, y])


@pytest.mark.parametrize(
    ("kernel", "reason"),
    [
        (lambda: product(8, 8, 64), "several rows and several columns"),
        (lambda: product(1, 8, 1), "single step"),
        (lambda: product(1, 1, 1000), "one contraction"),
        (lambda: product(1, 8, 64, dtype="int8", total="int8"), "int8 in int8"),
        (_depthwise, "different matmuls of the batch"),
    ],
)
def test_refusals_say_why(kernel, reason):
    refused = apply_template(TEMPLATE, kernel(), GPU)
    assert isinstance(refused, NotApplicable)
    assert reason in refused.reason
