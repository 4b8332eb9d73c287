import pytest
from cuda_kernels import assert_numbers, scheduled, whole_source
from lowering import f32, kernel_of
from machines import GPU
from matmul_kernels import (
    calls,
    check_numbers,
    convolution,
    f16,
    hard_swish,
    in_instructions,
    linear,
    product,
)
from tvm import relax, te, tirx
from tvm_ffi import structural_walk

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.tir_schedules.apply_template import apply_template
from tvm_ext.tir_schedules.cuda.matmul.contraction import CudaContraction
from tvm_ext.tir_schedules.schedule_kernels import schedule_kernel

SMALL = {"tile_rows": 32, "tile_columns": 32, "warp_rows": 16, "warp_columns": 32}


# What a line of CUDA code begins with, and what it does.
EVENTS = {
    "ptx_cp_async_legacy": "copy",
    "tvm_builtin_ptx_cp_async_commit": "commit",
    "tvm_builtin_ptx_cp_async_wait": "wait",
    "__syncthreads": "barrier",
    '"ldmatrix': "load",
    '"mma': "multiply",
}


@pytest.mark.parametrize(
    "options",
    [
        {"written": "float16"},
        {"total": "float16"},
        {"a_transposed": True, "b_transposed": True},
        {"dtype": "bfloat16", "written": "bfloat16", "b_transposed": True},
        {"dtype": "int8", "total": "int32", "b_transposed": True},
        {"dtype": "int8", "total": "int32"},
        {"batch": (3,)},
    ],
    ids=str,
)
def test_product_of_every_type_and_order_has_the_numbers_of_the_loops(options):
    check_numbers(product(32, 48, 96, **options), **SMALL)


@pytest.mark.parametrize("shape", [(45, 51, 77), (17, 72, 80), (2, 3, 4), (33, 40, 36)], ids=str)
def test_sizes_that_no_tile_divides(shape):
    check_numbers(product(*shape))


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((64, 128, 32), {}),
        ((45, 51, 77), {}),
        ((40, 100, 36), {"a_transposed": True, "b_transposed": True}),
        ((33, 70, 20), {"batch": (2,)}),
    ],
    ids=str,
)
def test_float32_is_added_up_in_registers(shape, options):
    check_numbers(product(*shape, dtype="float32", **options), stages=2)


def test_float32_is_rounded_to_tf32_only_where_that_is_allowed():
    kernel = product(256, 256, 256, dtype="float32")
    assert "mma.sync" not in whole_source(in_instructions(kernel))
    rounded = whole_source(scheduled(CudaContraction(tf32=True), kernel))
    assert "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32" in rounded
    described = scheduled(
        CudaContraction(tf32=True, described=True), product(32, 48, 40, dtype="float32")
    )
    assert_numbers({"kernel": product(32, 48, 40, dtype="float32")}, {"kernel": described})


def test_bias_and_activation_are_applied_where_the_tile_is_written():
    kernel = kernel_of(linear, f16(40, 64), f16(64, 48), f16(48))
    check_numbers(kernel, **SMALL)
    source = whole_source(in_instructions(kernel))
    assert source.count("__global__ void") == 2  # a declaration and one kernel


@pytest.mark.parametrize(
    "activation",
    [hard_swish, relax.op.nn.gelu, relax.op.nn.gelu_tanh, relax.op.nn.silu],
    ids=["hard swish", "gelu", "gelu tanh", "silu"],
)
def test_activations_that_use_the_product_twice(activation):
    def block(x, w, b, r):
        return activation(relax.op.matmul(x, w) + b) + r

    kernel = kernel_of(block, f16(40, 64), f16(64, 48), f16(48), f16(40, 48))
    check_numbers(kernel, **SMALL)
    assert "mma.sync" in whole_source(in_instructions(kernel))


def test_a_residual_after_the_activation_is_the_product_itself():
    def block(x, w, b):
        summed = relax.op.matmul(x, w) + b
        return relax.op.nn.relu(summed) + summed

    check_numbers(kernel_of(block, f16(40, 64), f16(64, 48), f16(48)), **SMALL)


def test_residual_of_the_same_shape():
    def residual(x, w, r):
        return relax.op.matmul(x, w) + relax.op.nn.gelu(r)

    check_numbers(kernel_of(residual, f16(40, 64), f16(64, 48), f16(40, 48)), **SMALL)


@pytest.mark.parametrize(
    ("image", "weights", "options"),
    [
        ((1, 9, 9, 16), (24, 3, 3, 16), {"padding": 1}),
        ((2, 9, 9, 16), (24, 3, 3, 16), {"padding": 1, "strides": 2}),
        ((1, 8, 8, 32), (24, 1, 1, 32), {}),
        ((1, 9, 9, 3), (8, 3, 3, 3), {"padding": 1, "strides": 2}),
        ((1, 12, 12, 8), (8, 3, 3, 8), {"dilation": 2}),
    ],
    ids=str,
)
def test_convolution_is_a_product_over_the_window(image, weights, options):
    def expression(x, w, b):
        return convolution(x, w, b, **options)

    check_numbers(kernel_of(expression, f16(*image), f16(*weights), f16(weights[0])))


def test_the_second_operand_may_have_the_rows_of_the_result():
    kernel = kernel_of(
        lambda x, w: relax.op.nn.conv2d(x, w, padding=1), f16(1, 16, 9, 9), f16(24, 16, 3, 3)
    )
    check_numbers(kernel)
    assert "mma.sync" in whole_source(in_instructions(kernel))


def test_products_of_float16_are_added_up_in_float32():
    source = whole_source(in_instructions(product(64, 64, 64, total="float16")))
    assert "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32" in source


@pytest.mark.parametrize(
    ("dtype", "total", "instruction"),
    [
        ("float16", "float32", "m16n8k16.row.col.f32.f16.f16.f32"),
        ("bfloat16", "float32", "m16n8k16.row.col.f32.bf16.bf16.f32"),
        ("int8", "int32", "m16n8k32.row.col.s32.s8.s8.s32"),
    ],
)
def test_instructions_of_each_type(dtype, total, instruction):
    source = whole_source(in_instructions(product(256, 256, 256, dtype=dtype, total=total)))
    assert f"mma.sync.aligned.{instruction}" in source
    assert "ldmatrix.sync.aligned.m8n8.x4" in source
    assert calls(source, "ptx_cp_async_legacy_cg_16") > 0
    assert "cp.async.wait_group" in source


@pytest.mark.parametrize(("stages", "depth"), [(2, 32), (3, 64), (4, 32)])
def test_every_copy_is_committed_before_it_is_waited_for(stages, depth):
    tiles = {"tile_rows": 64, "tile_columns": 64, "warp_rows": 32, "warp_columns": 32}
    func = in_instructions(product(512, 512, 512), **tiles, tile_depth=depth, stages=stages)
    seen = []
    for line in whole_source(func).split("__launch_bounds__")[-1].splitlines():
        for start, event in EVENTS.items():
            if line.strip().startswith(start):
                seen.append(event)
    after_copies = [
        next(event for event in seen[place:] if event != "copy")
        for place, event in enumerate(seen)
        if event == "copy"
    ]
    assert set(after_copies) == {"commit"}
    # A barrier is between the end of a copy and the first load of what any thread copied.
    waits = [place for place, event in enumerate(seen) if event == "wait"]
    assert waits
    assert all(seen[place + 1] == "barrier" for place in waits)
    # And one between the last load of a tile and the copy of another into its place.
    loads = [place for place, event in enumerate(seen[:-1]) if event == "load"]
    assert all(seen[place + 1] != "copy" for place in loads)
    assert seen.count("wait") >= stages - 1


def test_a_padded_size_is_copied_asynchronously_under_a_condition():
    source = whole_source(in_instructions(product(1000, 1000, 1000)))
    assert calls(source, "ptx_cp_async_legacy_pred_cg_16") > 0


def test_an_image_is_read_eight_channels_at_a_time():
    def expression(x, w, b):
        return convolution(x, w, b, padding=1)

    kernel = kernel_of(expression, f16(1, 28, 28, 64), f16(64, 3, 3, 64), f16(64))
    source = whole_source(in_instructions(kernel))
    assert calls(source, "ptx_cp_async_legacy_pred_cg_16") > 0
    assert "*(uint4*)(compute_intermediate" in source


def test_rows_that_are_not_aligned_are_copied_without_wide_loads():
    source = whole_source(in_instructions(product(64, 51, 77)))
    assert calls(source, "ptx_cp_async_legacy") == 0
    assert "mma.sync" in source


def test_tiles_of_several_rows_go_column_by_column():
    check_numbers(product(64, 96, 40), **SMALL, group=2)
    func = in_instructions(product(8192, 8192, 8192))
    assert "blockIdx.y" not in whole_source(func).split("__launch_bounds__")[-1]


def test_more_rows_than_a_grid_has_blocks_along_y():
    source = whole_source(in_instructions(product(1 << 24, 16, 32)))
    assert "blockIdx.y" not in source.split("__launch_bounds__")[-1]


def test_threads_and_blocks_are_bound():
    func = in_instructions(product(1024, 512, 256, batch=(4,)), tile_rows=128, tile_columns=128)
    tags: dict[str, int] = {}

    def note(loop: tirx.For) -> None:
        if loop.thread_binding is not None:
            tags[str(loop.thread_binding.thread_tag)] = int(loop.extent)

    structural_walk(func.body, (tirx.For, note), order="pre")
    assert (tags["blockIdx.x"], tags["blockIdx.y"], tags["blockIdx.z"]) == (4, 8, 4)
    assert tags["threadIdx.x"] == 32


def test_the_template_is_asked_first():
    scheduled, choice = schedule_kernel(product(256, 256, 256), GPU)
    assert choice.schedule == "contraction"
    assert scheduled.attrs["tirx.is_scheduled"]


def _mixed() -> tirx.PrimFunc:
    a, b = te.placeholder((32, 32), "float16", "a"), te.placeholder((32, 32), "float32", "b")
    k = te.reduce_axis((0, 32), "k")
    c = te.compute((32, 32), lambda i, j: te.sum(a[i, k].astype("float32") * b[k, j], axis=k))
    return te.create_prim_func([a, b, c])


@pytest.mark.parametrize(
    ("kernel", "reason"),
    [
        (
            lambda: product(32, 32, 32, dtype="float64", total="float64"),
            "no instruction for float64",
        ),
        (_mixed, "no instruction for float16, float32"),
        (lambda: product(1, 64, 64), "M, N or K is 1"),
        (lambda: product(8, 8, 1), "M, N or K is 1"),
        (lambda: product(32, 32, 32, dtype="int8", total="int8"), "wraps around"),
        (lambda: kernel_of(lambda x: relax.op.sum(x, 1), f32(8, 8)), "besides the sum"),
        (lambda: kernel_of(lambda x: x + x, f32(8, 8)), "0 reductions"),
    ],
)
def test_refusals_say_why(kernel, reason):
    refused = apply_template(CudaContraction(), kernel(), GPU)
    assert isinstance(refused, NotApplicable)
    assert reason in refused.reason
