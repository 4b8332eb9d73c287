"""What is recognised of contractions: loops, operands, products."""

import pytest
from lowering import f32, kernel_of
from tvm import relax, s_tir, tirx
from tvm.relax.op import nn

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.tir_schedules.analysis.buffer_access import only_reduction
from tvm_ext.tir_schedules.analysis.contraction import (
    Contraction,
    accumulation_of,
    contraction_of,
    factors_of,
    loops_of_dimensions,
    summed_product,
)

op = relax.op


def anchor(func: tirx.PrimFunc) -> s_tir.SBlock:
    sch = s_tir.Schedule(func)
    return sch.get(only_reduction(sch))


def contraction(func: tirx.PrimFunc) -> Contraction:
    found = contraction_of(anchor(func))
    assert isinstance(found, Contraction), found
    return found


def test_loops_of_a_batch_of_matmuls() -> None:
    found = contraction(kernel_of(op.matmul, f32(3, 5, 7), f32(3, 7, 11)))
    assert (found.batch, found.m, found.n, found.k) == ((0,), (1,), (2,), (3,))
    assert [found.size(axes) for axes in (found.batch, found.m, found.n, found.k)] == [3, 5, 11, 7]
    assert found.longest(found.m) == 1


def test_loops_of_one_iteration_are_none_of_them() -> None:
    found = contraction(kernel_of(op.matmul, f32(1, 7), f32(7, 11)))
    assert (found.m, found.longest(found.m), found.size(found.m)) == ((), None, 1)


def test_rows_of_a_convolution_are_pixels() -> None:
    image, kernel = f32(2, 9, 8, 3), f32(3, 3, 3, 16)
    layouts = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
    found = contraction(kernel_of(lambda x, w: nn.conv2d(x, w, **layouts), image, kernel))
    sizes = [found.size(axes) for axes in (found.batch, found.m, found.n, found.k)]
    assert sizes == [1, 2 * 7 * 6, 16, 27]


def test_a_transposed_matmul_has_the_other_operand_first() -> None:
    found = contraction(kernel_of(op.matmul, f32(5, 7), f32(7, 11))).swapped()
    assert (found.m, found.n, found.operands) == ((1,), (0,), (1, 0))


def test_dimensions_follow_loops() -> None:
    block = anchor(kernel_of(op.matmul, f32(5, 7), f32(7, 11)))
    reads = [read for read in block.reads if not read.source.same_as(block.writes[0].source)]
    assert [loops_of_dimensions(read, block) for read in reads] == [(0, 2), (2, 1)]


@pytest.mark.parametrize(
    ("func", "reason"),
    [
        (lambda: kernel_of(lambda x: op.sum(x, 1), f32(5, 7)), "it reads 1 operands besides"),
        (
            lambda: kernel_of(op.matmul, f32(tirx.Var("n", "int64"), 7), f32(7, 11)),
            "a loop has a symbolic extent",
        ),
    ],
)
def test_other_reductions(func, reason: str) -> None:
    with pytest.raises(NotApplicable, match=reason):
        contraction_of(anchor(func()))


def test_kernels_without_one_reduction() -> None:
    for expression, count in ((op.exp, 0), (nn.softmax, 2)):
        with pytest.raises(NotApplicable, match=f"the kernel has {count} reductions, not one"):
            only_reduction(s_tir.Schedule(kernel_of(expression, f32(4, 8))))


def test_what_is_added_up() -> None:
    wide = kernel_of(
        lambda a, b: op.matmul(a, b, out_dtype="float32"), ((4, 8), "float16"), ((8, 4), "float16")
    )
    assert [str(load.source.dtype) for load in factors_of(anchor(wide))] == ["float16", "float16"]
    assert isinstance(summed_product(anchor(wide)), tirx.Mul)
    largest = anchor(kernel_of(lambda x: op.max(x, 1), f32(4, 8)))
    operator, _ = accumulation_of(largest) or (None, None)
    assert operator is tirx.Max
    assert (factors_of(largest), summed_product(largest)) == ([], None)
