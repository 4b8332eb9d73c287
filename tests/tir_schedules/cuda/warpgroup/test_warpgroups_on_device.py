"""Products by warpgroups on a real Hopper GPU, with ``make test-cuda``.

What only the device can tell: clusters of blocks, steps shared by blocks, strided boxes, places
outside of tensors, the three widths of swizzled rows, and that TMA copies round float32 to the
nearest tf32.
"""

import pytest
from cuda_kernels import scheduled
from matmul_kernels import product
from needs_gpu import NEEDS_GPU
from on_device import assert_on_device, machine
from tvm import te, tirx
from warpgroup_cases import SLOW, WINDOWS, Shape, convolved, of_integers, small_gpu

from tvm_ext.hardware.matrix_instructions import WARPGROUP_ARCHITECTURE
from tvm_ext.tir_schedules.cuda.warpgroup.warpgroup_contraction import (
    WarpgroupContraction,
)
from tvm_ext.tir_schedules.template import FixedDecisions

pytestmark = NEEDS_GPU


def check(
    plain: tirx.PrimFunc, kernel: tirx.PrimFunc | None = None, sms: int = 2, **decided: int
) -> None:
    """The kernel, ``plain`` if no other, computes on a few multiprocessors what ``plain`` does."""
    if machine().arch != WARPGROUP_ARCHITECTURE:
        pytest.skip(f"{machine().arch} has no instructions of warpgroups")
    small = small_gpu(sms, SLOW).with_tf32()
    taken = plain if kernel is None else kernel
    func = scheduled(WarpgroupContraction(), taken, small, FixedDecisions(decided))
    assert_on_device(plain, func, machine())


@pytest.mark.parametrize("sharing", [0, 1])
@pytest.mark.parametrize("cluster", [1, 2])
@pytest.mark.parametrize(("rows", "columns"), [(64, 64), (64, 256), (128, 128), (128, 256)])
def test_blocks_that_work_together(rows: int, columns: int, cluster: int, sharing: int) -> None:
    """Six rows of tiles on eight multiprocessors, columns and steps that no tile divides."""
    sizes = (6 * rows - 8, 3 * columns - 8, 1000)
    kernel = product(*sizes, b_transposed=columns == 64, written="float16")
    decided = {"tile_rows": rows, "tile_columns": columns, "split_blocks": 8 * sharing}
    check(kernel, sms=8, **decided, cluster=cluster)


@pytest.mark.parametrize(("image", "filters", "options"), WINDOWS, ids=str)
def test_convolutions(image: Shape, filters: Shape, options: dict) -> None:
    check(convolved(image, filters, **options))


@pytest.mark.parametrize("first", ["int8", "uint8"])
@pytest.mark.parametrize("second", ["int8", "uint8"])
def test_integers(first: str, second: str) -> None:
    check(of_integers(250, 120, 500, first, second))


def rounded_product(rows: int, columns: int, steps: int) -> tirx.PrimFunc:
    """A product of float32 values that are rounded to tf32 before, of two as near to the larger."""
    a, b = (te.placeholder((n, steps), "float32", x) for n, x in ((rows, "a"), (columns, "b")))
    k = te.reduce_axis((0, steps), "k")

    def tf32(value: tirx.Expr) -> tirx.Expr:
        half, kept = tirx.const(0x1000, "uint32"), tirx.const(0xFFFFE000, "uint32")
        return tirx.reinterpret("float32", (tirx.reinterpret("uint32", value) + half) & kept)

    def element(i: tirx.Var, j: tirx.Var) -> tirx.Expr:
        return te.sum(tf32(a[i, k]) * tf32(b[j, k]), axis=k)

    return te.create_prim_func([a, b, te.compute((rows, columns), element, "c")])


def test_float32_is_rounded_to_the_nearest_tf32() -> None:
    sizes = (256, 128, 512)
    check(rounded_product(*sizes), product(*sizes, dtype="float32", b_transposed=True))
