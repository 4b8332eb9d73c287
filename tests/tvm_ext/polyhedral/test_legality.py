"""What is legal, and which dependence forbids what is not, with an example."""

import pytest
from loop_kernels import gathered, jacobi, matmul, scratch, shifted, wave
from tvm.script import tirx as T

from tvm_ext.polyhedral import PolyhedralError, loop_nest
from tvm_ext.polyhedral.affine_expressions import NotAffine
from tvm_ext.polyhedral.dependences import dependences_of
from tvm_ext.polyhedral.kernel_domain import kernel_domain
from tvm_ext.polyhedral.legality import LoopNest


def nest(func, **options):
    kernel = kernel_domain(func)
    return LoopNest(kernel, dependences_of(kernel, **options))


def test_an_illegal_interchange_names_the_dependence_and_a_pair_of_iterations():
    refusal = nest(wave(10)).interchange("i", "j")
    assert str(refusal) == (
        "interchange of i and j is not legal: flow dependence on A from S0 "
        "(A[i + 1, j] = A[i, j + 1] + T.float64(1.0)) at (i=0, j=1) to S0 "
        "(A[i + 1, j] = A[i, j + 1] + T.float64(1.0)) at (i=1, j=0)"
    )
    assert (refusal.source, refusal.sink) == ({"i": 0, "j": 1}, {"i": 1, "j": 0})


def test_an_illegal_parallel_loop_names_the_dependence_and_a_pair_of_iterations():
    refusal = nest(wave(10)).parallel("i")
    assert str(refusal).startswith("a parallel loop i is not legal: flow dependence on A from S0 ")
    assert refusal.sink["i"] == refusal.source["i"] + 1
    assert nest(wave(10)).parallel("j") is None


def test_a_symbolic_size_is_part_of_the_example():
    refusal = nest(shifted).parallel("i")
    assert refusal.sizes["n"] >= 3
    assert refusal.sink["i"] == refusal.source["i"] + 1


def test_the_loops_of_a_matmul():
    found = nest(matmul(4, 5, 6))
    assert found.interchange("i", "l") is None
    assert found.tiling({"i": 2, "j": 2, "l": 2}) is None
    assert found.parallel("i") is None
    assert found.parallel("l").dependence.buffer == "C"
    assert found.reversal("l") is not None


def test_a_sum_may_be_reordered_when_asked():
    found = nest(matmul(4, 5, 6), reorder_reductions=True)
    assert found.dependences == []
    assert found.reversal("l") is None


def test_a_stencil_over_time_is_tiled_after_skewing_only():
    @T.prim_func(s_tir=True)
    def kernel(A: T.Buffer((8, 20), "float64")):
        for t in range(7):
            for i in range(1, 19):
                A[t + 1, i] = A[t, i - 1] + A[t, i] + A[t, i + 1]

    found = nest(kernel)
    assert found.tiling({"t": 4, "i": 4}).dependence.kind == "flow"
    assert found.tiling({"t": 4, "i": 4}, skewed=[("t", "i", 1)]) is None
    assert found.skewing("t", "i", 1) is None


@pytest.mark.extended
def test_fusion_and_distribution():
    found = nest(jacobi(3, 8))
    assert found.fusion("i", "i2").dependence.buffer == "A"
    assert found.distribution("t", before="S1").dependence.kind in ("flow", "anti")

    @T.prim_func(s_tir=True)
    def two(A: T.Buffer((8,), "float64"), B: T.Buffer((8,), "float64")):
        for i in range(8):
            A[i] = T.float64(1)
        for j in range(8):
            B[j] = A[j]

    assert nest(two).fusion("i", "j") is None


def test_lanes_keep_the_order_of_statements():
    @T.prim_func(s_tir=True)
    def kernel(A: T.Buffer((9,), "float64"), B: T.Buffer((9,), "float64")):
        for i in range(1, 9):
            B[i] = T.float64(2) * A[i]
            A[i] = B[i - 1]

    found = nest(kernel)
    assert found.parallel("i") is not None
    assert found.vectorized("i") is None


def test_an_array_in_a_loop_is_one_for_each_iteration():
    assert nest(scratch(6)).parallel("i") is None


def test_what_is_not_affine_is_said_and_may_be_anything():
    kernel = kernel_domain(gathered(8))
    assert kernel.not_affine == ["where[i] is loaded from memory"]
    assert LoopNest(kernel, dependences_of(kernel)).parallel("i") is not None


def test_a_loop_that_the_data_end_is_refused():
    @T.prim_func(s_tir=True)
    def kernel(A: T.Buffer((8,), "int32")):
        while A[0] < 5:
            A[0] = A[0] + 1

    with pytest.raises(NotAffine, match="kind While"):
        kernel_domain(kernel)


def test_without_isl_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(PolyhedralError, match=r"pip install 'tvm-ext\[polyhedral\]'"):
        loop_nest(wave(10))


def test_what_cannot_be_analysed_is_a_message_for_users():
    @T.prim_func(s_tir=True)
    def kernel(A: T.Buffer((8,), "int32")):
        while A[0] < 5:
            A[0] = A[0] + 1

    with pytest.raises(PolyhedralError, match="kind While accesses is not known; expected"):
        loop_nest(kernel)
    assert loop_nest(wave(10)).parallel("j") is None
