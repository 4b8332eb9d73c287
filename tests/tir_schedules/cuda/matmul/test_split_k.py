"""Products of few tiles and a long reduction, which several blocks add up part by part."""

import pytest
from cuda_kernels import whole_source
from lowering import f32, kernel_of
from matmul_kernels import check_numbers, convolution, f16, hard_swish, in_instructions, product
from tvm import relax, te

from tvm_ext.hardware.targets import resolve_target

TILES = {"tile_rows": 16, "tile_columns": 16, "warp_rows": 16, "warp_columns": 16}
TILES |= {"tile_depth": 16, "stages": 2}


@pytest.mark.parametrize(
    ("shape", "options", "splits"),
    [
        ((45, 40, 200), {"written": "float16"}, 3),
        ((45, 41, 200), {}, 5),
        ((20, 41, 100), {"batch": (2,)}, 2),
    ],
    ids=str,
)
def test_parts_are_added_up(shape, options, splits):
    check_numbers(product(*shape, **options), **TILES, splits=splits)


def test_parts_of_float32_and_of_int8():
    check_numbers(product(40, 70, 100, dtype="float32"), stages=2, splits=3)
    check_numbers(product(40, 64, 128, dtype="int8", total="int32"), stages=2, splits=2)


def test_what_follows_is_applied_to_the_sum():
    def block(x, w, b, r):
        return hard_swish(relax.op.matmul(x, w) + b) + r

    kernel = kernel_of(block, f16(40, 164), f16(164, 48), f16(48), f16(40, 48))
    check_numbers(kernel, **TILES, splits=3)


def test_convolution_in_parts():
    def expression(x, w, b):
        return convolution(x, w, b, padding=1)

    kernel = kernel_of(expression, f16(1, 9, 9, 16), f16(24, 3, 3, 16), f16(24))
    check_numbers(kernel, **TILES, splits=3)


def test_an_image_whose_rows_are_of_an_odd_length():
    kernel = kernel_of(lambda x, w: relax.op.nn.conv2d(x, w), f32(1, 96, 5, 19), f32(42, 96, 1, 1))
    check_numbers(kernel, stages=2, splits=2, tile_depth=16)


def test_a_sum_that_is_written_in_another_order():
    a, b = te.placeholder((40, 164), "float16", "a"), te.placeholder((164, 48), "float16", "b")
    k = te.reduce_axis((0, 164), "k")

    def element(i, j):
        return te.sum(a[i, k].astype("float32") * b[k, j].astype("float32"), axis=k)

    c = te.compute((40, 48), element, "c")
    transposed = te.compute((48, 40), lambda j, i: c[i, j] + 1.0, "transposed")
    heads = te.compute((4, 40, 12), lambda h, i, j: c[i, h * 12 + j], "heads")
    check_numbers(te.create_prim_func([a, b, transposed]), **TILES, splits=3)
    check_numbers(te.create_prim_func([a, b, heads]), **TILES, splits=3)


def test_few_tiles_are_split_and_many_are_not():
    h100 = resolve_target("nvidia-h100")
    few = whole_source(in_instructions(product(49, 512, 4608), h100), machine=h100)
    assert few.count("__global__ void") == 4  # a declaration and a kernel, twice
    assert "atomic" not in few
    many = whole_source(in_instructions(product(1024, 1024, 512), h100), machine=h100)
    assert many.count("__global__ void") == 2


def test_float32_of_a_small_layer_is_split():
    def layer(x, w):
        return relax.op.nn.relu(relax.op.matmul(x, w))

    source = whole_source(in_instructions(kernel_of(layer, f32(64, 2048), f32(2048, 64))))
    assert source.count("__global__ void") == 4
