"""Reductions over any axes: numbers, structure, threads for few results, and what is left."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import tvm
from cpu_kernels import refusal_of, scheduled
from decision_cases import (
    assert_defaults_give_the_default_schedule,
    check_numbers,
    check_random_numbers,
    shared_single_decisions,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import REDUCTIONS
from lowering import f32, kernel_of, kernels_of, loops_of, lowered, run, statements
from machines import MACHINE
from thoroughness import DRAWS
from tvm import relax, te, tirx
from tvm.relax.op import nn

from tvm_ext.hardware.cpu.host import host_description
from tvm_ext.tir_schedules.analysis.buffer_access import nodes
from tvm_ext.tir_schedules.cpu.reduction import CpuReduction
from tvm_ext.tir_schedules.template import FixedDecisions

op = relax.op

FUNCTIONS: dict[str, tuple[Callable[..., relax.Expr], Callable[..., np.ndarray]]] = {
    "sum": (op.sum, np.sum),
    "mean": (op.mean, np.mean),
    "max": (op.max, np.max),
    "min": (op.min, np.min),
    "prod": (op.prod, np.prod),
    "variance": (op.variance, np.var),
}

# One for each way to walk: along rows, across them, with axes outside, all, several results.
WALKS = ("mean last", "sum middle", "sum outer and inner", "sum all", "argmax last", "variance")

SINGLE = [name for name, case in REDUCTIONS.items() if case.template == "reduction"]
reduced = partial(scheduled, CpuReduction())


def kinds(func: tirx.PrimFunc) -> list[tuple[str, int | None]]:
    return [(loop.kind, loop.extent) for loop in loops_of(func)]


@pytest.mark.extended
@pytest.mark.parametrize("cores", [1, 3])
def test_every_decision_computes_the_same(cores: int) -> None:
    plain = {
        f"{name}: {kernel}": func
        for name in WALKS
        for kernel, func in kernels_of(
            REDUCTIONS[name].expression, *REDUCTIONS[name].inputs
        ).items()
    }
    plain["in parts"] = kernel_of(lambda x: op.max(x, axis=[0, 1]), f32(12, 40, 5))
    plain["in cache"] = kernel_of(lambda x: op.sum(x, axis=[0]), f32(9, 4321))
    machine = host_description().with_cores(cores)
    if cores > 1:
        alone = shared_single_decisions(CpuReduction(), plain, machine)
        check_numbers(CpuReduction(), plain, alone, machine)
    check_random_numbers(CpuReduction(), plain, machine=machine)


@pytest.mark.extended
def test_decisions() -> None:
    machine = MACHINE.with_cores(4)
    few = kernel_of(lambda x: op.sum(x, axis=[1]), f32(3, 4096))
    knobs = assert_defaults_give_the_default_schedule(CpuReduction(), few, machine)
    assert {name: knob.options for name, knob in knobs.items()} == {
        "parts": (1, 4, 8, 16),
        "across": (0,),
        "registers": (1, 2, 4, 8),
        "together": (1, 2),
        "in_output": (1,),
        "threads": (0, 1),
    }
    beside = kernel_of(lambda x: op.sum(x, axis=[0]), f32(97, 4096))
    knobs = assert_defaults_give_the_default_schedule(CpuReduction(), beside, machine)
    assert {name: knob.options for name, knob in knobs.items()} == {
        "parts": (1,),
        "across": (1,),
        "registers": (1, 2, 4, 8, 32, 64),
        "threads": (0, 1),
        "chunks": (4, 8, 16),
    }


def test_parts_of_rows_have_decisions_of_their_own() -> None:
    func = kernel_of(lambda x: op.sum(x), f32(512, 24))
    machine = MACHINE.with_cores(4)
    decisions = FixedDecisions({"parts": 4, "threads": 1, "registers": 2})
    found = reduced(func, machine, decisions)
    top = [loop for loop in loops_of(found) if not loop.path]
    assert (top[0].kind, top[0].extent) == ("parallel", 4)
    assert decisions.unused() == []


@settings(max_examples=8 * DRAWS, deadline=None, derandomize=True)
@given(
    name=st.sampled_from(sorted(FUNCTIONS)),
    shape=st.lists(st.integers(1, 19), min_size=1, max_size=4),
    axes=st.sets(st.integers(0, 3), min_size=1),
    keepdims=st.booleans(),
)
def test_any_axes(name: str, shape: list[int], axes: set[int], keepdims: bool) -> None:
    chosen = sorted({axis % len(shape) for axis in axes})
    expression, reference = FUNCTIONS[name]
    func = kernel_of(lambda x: expression(x, axis=chosen, keepdims=keepdims), f32(*shape))
    x, found = run({"f": reduced(func)})["f"]
    wanted = reference(x.astype("float64"), axis=tuple(chosen), keepdims=keepdims)
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=1e-6)


@pytest.mark.extended
@settings(max_examples=3 * DRAWS, deadline=None, derandomize=True)
@given(
    name=st.sampled_from(["argmax", "argmin"]),
    shape=st.lists(st.integers(1, 19), min_size=1, max_size=3),
    axis=st.integers(0, 2),
    factor=st.sampled_from([1, 7]),
    dtype=st.sampled_from(["float32", "int32"]),
)
def test_positions_of_extrema(
    name: str, shape: list[int], axis: int, factor: int, dtype: str
) -> None:
    """Small integers are equal often: the first of them counts."""
    axis %= len(shape)
    shape[axis] = shape[axis] * factor + 1
    func = kernel_of(lambda x: getattr(op, name)(x, axis=axis), (shape, dtype))
    x, found = run({"f": reduced(func)})["f"]
    np.testing.assert_array_equal(found, getattr(np, name)(x, axis=axis))


@pytest.mark.parametrize("length", [7, 13, 197, 1000, 4097])
def test_producers_and_epilogues(length: int) -> None:
    func = kernel_of(lambda x, y: op.sum(op.multiply(x, y), axis=[1]), *[f32(5, length)] * 2)
    x, y, found = run({"f": reduced(func)})["f"]
    np.testing.assert_allclose(found, (x * y).sum(1), rtol=2e-5)


@pytest.mark.extended
@pytest.mark.parametrize("name", SINGLE)
def test_no_branches(name: str) -> None:
    for func in kernels_of(REDUCTIONS[name].expression, *REDUCTIONS[name].inputs).values():
        code = lowered(reduced(func), MACHINE)
        assert not [s for s in statements(code.body) if isinstance(s, tirx.IfThenElse)]


def test_rows_on_threads() -> None:
    found = kinds(reduced(kernel_of(lambda x: op.sum(x, axis=[1]), f32(4096, 517))))
    assert [kind for kind, _ in found].count("parallel") == 1
    assert ("vectorized", 64) in found


def test_neighbouring_results_in_lanes() -> None:
    found = kinds(reduced(kernel_of(lambda x: op.sum(x, axis=[0]), f32(97, 128))))
    assert ("vectorized", 128) in found
    assert "parallel" not in [kind for kind, _ in found]


def test_streamed_results_on_threads() -> None:
    """Beyond L2 the results of a thread wait in its cache while the rows pass."""
    func = kernel_of(lambda x: op.sum(x, axis=[0]), f32(600, 2100))
    machine = MACHINE.with_cores(2)
    found = reduced(func, machine)
    assert [kind for kind, _ in kinds(found)].count("parallel") == 1
    x, result = run({"f": found})["f"]
    np.testing.assert_allclose(result, x.astype("float64").sum(0), rtol=2e-5)


@pytest.mark.extended
@pytest.mark.parametrize(
    "expression",
    [
        lambda x: op.sum(x),
        lambda x: op.mean(x, axis=[0, 1, 2]),
        lambda x: op.max(x, axis=[0, 1], keepdims=True),
    ],
    ids=["all", "mean of all", "few results"],
)
def test_few_results_of_much_data_on_threads(expression: Callable[..., relax.Expr]) -> None:
    func = kernel_of(expression, f32(97, 500, 24))
    machine = MACHINE.with_cores(4)
    found = reduced(func, machine)
    top = [loop for loop in loops_of(found) if not loop.path]
    assert [loop.kind for loop in top].count("parallel") == 1
    results = run({"plain": func, "scheduled": found})
    wanted, got = results["plain"][-1], results["scheduled"][-1]
    # One after the other, the plain kernel's sums lose more than the tolerance of others.
    np.testing.assert_allclose(got, wanted, rtol=2e-3)
    one = reduced(func, MACHINE.with_cores(1))
    assert "parallel" not in [loop.kind for loop in loops_of(one)]


def smallest_and_largest(shape: tuple[int, ...]) -> tirx.PrimFunc:
    """Both extrema of all numbers, and their difference."""
    x = te.placeholder(shape, "float32", "x")
    both = te.comm_reducer(
        lambda a, b: (tirx.Min(a[0], b[0]), tirx.Max(a[1], b[1])),
        lambda *_: (tirx.const(np.inf, "float32"), tirx.const(-np.inf, "float32")),
    )
    axes = [te.reduce_axis((0, extent)) for extent in shape]
    low, high = te.compute((), lambda: both((x(*axes), x(*axes)), axis=axes), "both")
    span = te.compute((), lambda: high() - low(), "span")
    middle = te.compute((), lambda: (high() + low()) / 2.0, "middle")
    return te.create_prim_func([x, span, middle])


def test_two_results_of_much_data_on_threads() -> None:
    new = reduced(smallest_and_largest((97, 500, 24)), MACHINE.with_cores(4))
    assert [kind for kind, _ in kinds(new)].count("parallel") == 1
    x, span, middle = run({"f": new})["f"]
    np.testing.assert_array_equal(span, x.max() - x.min())
    np.testing.assert_allclose(middle, (x.max() + x.min()) / 2, rtol=1e-6)


def test_vectors_of_rows_in_parts_are_loads_of_neighbours() -> None:
    """No size divides the vectors, and no index divides."""
    func = kernel_of(lambda x: op.max(x), f32(97, 500, 24))
    new = reduced(func, MACHINE.with_cores(4))
    loads = nodes(new.body, tvm.ir.TensorLoad)
    indices = [index for load in loads for index in load.indices]
    assert not any(nodes(index, tirx.FloorDiv, tirx.FloorMod) for index in indices)


def test_a_prime_length_is_not_cut() -> None:
    found = reduced(kernel_of(lambda x: op.sum(x), f32(1_000_003)), MACHINE.with_cores(4))
    assert "parallel" not in [loop.kind for loop in loops_of(found)]


def test_products_only_when_asked() -> None:
    func = kernel_of(op.matmul, f32(17, 40), f32(40, 1))
    reason = "a reduction multiplies with something that other rows need as well"
    assert refusal_of(CpuReduction(), func) == reason
    asked = scheduled(CpuReduction(products=True, name="matrix times vector"), func)
    a, b, found = run({"f": asked})["f"]
    np.testing.assert_allclose(found, a @ b, rtol=2e-5)


REFUSED = {
    "softmax": (lambda x: nn.softmax(x, 1), "a block works on every element of a reduced row"),
    "elementwise": (op.exp, "the kernel has no reduction"),
    "product": (
        lambda x: op.matmul(x, x),
        "a reduction reads its input for several rows, as windows do",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_leaves_other_kernels(name: str) -> None:
    expression, reason = REFUSED[name]
    assert refusal_of(CpuReduction(), kernel_of(expression, f32(24, 24))) == reason


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_leaves_windows(layout: str) -> None:
    func = kernel_of(lambda x: nn.max_pool2d(x, (2, 2), (2, 2), layout=layout), f32(1, 8, 8, 8))
    reason = "a reduction reads its input for several rows, as windows do"
    assert refusal_of(CpuReduction(), func) == reason


def test_leaves_nothing() -> None:
    assert refusal_of(CpuReduction(), kernel_of(lambda x: op.sum(x, axis=[1]), f32(3, 0)))
