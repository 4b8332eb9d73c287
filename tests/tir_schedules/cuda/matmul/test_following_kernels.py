"""What follows a product and cannot be applied to its tiles: a broadcast, a second result."""

import pytest
from cuda_kernels import assert_numbers, scheduled, whole_source
from matmul_kernels import gate
from tvm import te, tirx

from tvm_ext.tir_schedules.cuda.matmul.contraction import CudaContraction
from tvm_ext.tir_schedules.cuda.matmul.gemv import Gemv
from tvm_ext.tir_schedules.template import FixedDecisions, Template


def several(rows: int, results: tuple[str, ...]) -> tirx.PrimFunc:
    """More than one result of a kernel."""
    a, b = te.placeholder((rows, 32), "float16", "a"), te.placeholder((32, 32), "float16", "b")
    k = te.reduce_axis((0, 32), "k")
    one, two = tirx.const(1, "float16"), tirx.const(2, "float16")
    c = te.compute((rows, 32), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), "c")
    more = te.compute(c.shape, lambda i, j: c[i, j] + one, "more")
    twice = te.compute(c.shape, lambda i, j: c[i, j] * two, "twice")
    both = te.compute(c.shape, lambda i, j: more[i, j] * two, "both")
    computed = {"c": c, "more": more, "twice": twice, "both": both}
    return te.create_prim_func([a, b, *(computed[name] for name in results)])


@pytest.mark.parametrize(
    ("kernel", "kernels"),
    [
        (gate, 2),
        (lambda rows: several(rows, ("more", "twice")), 3),
        (lambda rows: several(rows, ("more", "both")), 2),
        (lambda rows: several(rows, ("c", "twice")), 2),
    ],
    ids=["gate", "two of one", "one of the other", "the product itself"],
)
@pytest.mark.parametrize("rows", [1, 40])
def test_numbers_and_kernels(kernel, kernels, rows):
    func = kernel(rows)
    template: Template = Gemv() if rows == 1 else CudaContraction(described=True)
    decided = {} if rows == 1 else {"splits": 1}
    found = scheduled(template, func, decisions=FixedDecisions(decided))
    assert_numbers({"kernel": func}, {"kernel": found})
    assert whole_source(found).count("__global__ void") == 2 * kernels


def test_a_split_sum_is_added_up_once_and_then_broadcast():
    decided = {"splits": 2, "stages": 2, "tile_depth": 8}
    found = scheduled(CudaContraction(described=True), gate(40), decisions=FixedDecisions(decided))
    assert_numbers({"kernel": gate(40)}, {"kernel": found})
    assert whole_source(found).count("__global__ void") == 6
