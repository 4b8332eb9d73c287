"""Products of odd sizes: operands copied to aligned rows before they are multiplied."""

import pytest
from cuda_kernels import whole_source
from lowering import kernel_of
from matmul_kernels import calls, check_numbers, f16, in_instructions, product
from tvm import relax

from tvm_ext.hardware.targets import resolve_target

TILES = {"tile_rows": 32, "tile_columns": 32, "warp_rows": 16, "warp_columns": 32}
BOTH = {**TILES, "stage_a": 1, "stage_b": 1}


@pytest.mark.parametrize(
    "options", [{}, {"a_transposed": True, "b_transposed": True, "batch": (2,)}], ids=str
)
def test_numbers(options):
    check_numbers(product(45, 51, 77, **options), **BOTH)


def test_one_operand_is_enough():
    check_numbers(product(45, 48, 77, b_transposed=False), **TILES, stage_a=1)


def test_a_large_product_of_odd_sizes_is_copied_sixteen_bytes_at_a_time():
    h200 = resolve_target("nvidia-h200")
    source = whole_source(in_instructions(product(2047, 2047, 2047), h200), machine=h200)
    assert source.count("__global__ void") == 2 * 3
    assert calls(source, "ptx_cp_async_legacy_cg_16") > 0
    assert calls(source, "ptx_cp_async_legacy_pred") == 0


def test_a_small_one_is_not_worth_a_launch_and_an_image_would_grow():
    assert whole_source(in_instructions(product(64, 51, 77))).count("__global__ void") == 2

    def first_layer(x, w):
        return relax.op.nn.conv2d(
            x, w, data_layout="NHWC", kernel_layout="OHWI", out_layout="NHWC", padding=1
        )

    kernel = kernel_of(first_layer, f16(1, 224, 224, 3), f16(64, 3, 3, 3))
    assert "pad_temp_reindex_pad_ptr" not in whole_source(in_instructions(kernel))
