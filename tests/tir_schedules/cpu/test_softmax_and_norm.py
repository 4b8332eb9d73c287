"""Softmax and normalisations in one loop over rows: numbers, structure, and what it leaves."""

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
from thoroughness import DRAWS, one_in
from tvm import relax, s_tir, te, tirx, topi
from tvm.relax.op import nn
from unoptimised import built

from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.hardware.cpu.host import host_description
from tvm_ext.tir_schedules.analysis.buffer_access import kernel_blocks
from tvm_ext.tir_schedules.analysis.row_reader import read_rows
from tvm_ext.tir_schedules.cpu.row_decision import RowDecision, decide_rows
from tvm_ext.tir_schedules.cpu.softmax_and_norm import SoftmaxAndNorm
from tvm_ext.tir_schedules.inlining import inline_blocks
from tvm_ext.tir_schedules.template import FixedDecisions

op = relax.op

# One for each way to walk: along odd rows, across them, over several axes, in groups.
WALKS = ("softmax prime", "softmax middle", "log softmax", "layer norm", "group norm")

NORMALISATIONS = [name for name, case in REDUCTIONS.items() if case.template == "softmax and norm"]
stitched = partial(scheduled, SoftmaxAndNorm())


def kernel_of_te(compute: Callable[..., te.Tensor], *shapes: tuple[int, ...]) -> tirx.PrimFunc:
    """A fused kernel as fusion would leave it, whatever fusion does today."""
    inputs = [te.placeholder(shape, name=f"x{i}") for i, shape in enumerate(shapes)]
    return te.create_prim_func([*inputs, compute(*inputs)])


def attention(x: te.Tensor, mask: te.Tensor) -> te.Tensor:
    scaled = topi.add(topi.multiply(x, tirx.const(0.125, "float32")), mask)
    return topi.nn.softmax(scaled, axis=-1)


def add_and_norm(x: te.Tensor, y: te.Tensor, scale: te.Tensor, shift: te.Tensor) -> te.Tensor:
    return topi.nn.relu(topi.nn.layer_norm(topi.add(x, y), scale, shift, [-1]))


def norm_in_parts(x: te.Tensor) -> te.Tensor:
    size = tirx.const(float(int(x.shape[-1])), "float32")
    mean = topi.divide(topi.sum(x, -1, keepdims=True), size)
    centred = topi.subtract(x, mean)
    variance = topi.divide(topi.sum(topi.multiply(centred, centred), -1, keepdims=True), size)
    return topi.divide(centred, topi.sqrt(topi.add(variance, tirx.const(1e-5, "float32"))))


@pytest.mark.extended
@pytest.mark.parametrize("cores", one_in(2, [1, 3]))
def test_every_decision_computes_the_same(cores: int) -> None:
    plain = {
        f"{name}: {kernel}": func
        for name in WALKS
        for kernel, func in kernels_of(
            REDUCTIONS[name].expression, *REDUCTIONS[name].inputs
        ).items()
    }
    plain["attention"] = kernel_of_te(attention, (2, 3, 7, 19), (2, 1, 1, 19))
    plain["add and norm"] = kernel_of_te(add_and_norm, (3, 5, 37), (3, 5, 37), (37,), (37,))
    plain["norm in parts"] = kernel_of_te(norm_in_parts, (9, 37))
    machine = host_description().with_cores(cores)
    if cores > 1:
        alone = shared_single_decisions(SoftmaxAndNorm(), plain, machine)
        check_numbers(SoftmaxAndNorm(), plain, alone, machine)
    check_random_numbers(SoftmaxAndNorm(), plain, machine=machine)


@pytest.mark.extended
def test_decisions() -> None:
    along = kernel_of(lambda x: nn.softmax(x, 1), f32(640, 197))
    knobs = assert_defaults_give_the_default_schedule(SoftmaxAndNorm(), along, MACHINE)
    assert {name: knob.options for name, knob in knobs.items()} == {
        "across": (0,),
        "registers": (1, 2, 4, 8),
        "together": (1, 2, 4),
        "in_output": (0, 1),
        "threads": (0, 1),
        "chunks": tuple(n * MACHINE.cores for n in (1, 2, 4)),
    }
    across = kernel_of(lambda x: nn.softmax(x, 0), f32(7, 2000))
    knobs = assert_defaults_give_the_default_schedule(SoftmaxAndNorm(), across, MACHINE)
    assert {name: knob.options for name, knob in knobs.items()} == {
        "across": (1,),
        "registers": (1, 2, 4, 8),
        "threads": (0, 1),
    }
    short = kernel_of(lambda x: nn.softmax(x, 1), f32(640, 19))
    assert assert_defaults_give_the_default_schedule(SoftmaxAndNorm(), short, MACHINE)[
        "across"
    ].options == (0, 1)


def test_more_chunks_than_threads() -> None:
    func = kernel_of(lambda x: nn.softmax(x, 1), f32(640, 197))
    decisions = FixedDecisions({"threads": 1, "together": 1, "chunks": 4 * MACHINE.cores})
    (first, *_) = loops_of(stitched(func, decisions=decisions))
    assert (first.kind, first.extent) == ("parallel", 4 * MACHINE.cores)


@pytest.mark.extended
@settings(max_examples=3 * DRAWS, deadline=None, derandomize=True)
@given(
    shape=st.lists(st.integers(1, 23), min_size=1, max_size=4),
    axis=st.integers(0, 3),
    factor=st.sampled_from([1, 7, 16]),
)
def test_softmax_of_any_shape(shape: list[int], axis: int, factor: int) -> None:
    axis %= len(shape)
    shape[axis] = shape[axis] * factor + 1
    func = kernel_of(lambda x: nn.softmax(x, axis), f32(*shape))
    x, found = run({"f": stitched(func)})["f"]
    exponentials = np.exp(x - x.max(axis, keepdims=True))
    wanted = exponentials / exponentials.sum(axis, keepdims=True)
    np.testing.assert_allclose(found, wanted, rtol=2e-6, atol=1e-7)


@settings(max_examples=3 * DRAWS, deadline=None, derandomize=True)
@given(rows=st.integers(1, 40), length=st.sampled_from([2, 7, 13, 16, 31, 197, 260, 1000, 4097]))
def test_layer_norm_of_any_length(rows: int, length: int) -> None:
    func = kernel_of(
        lambda x, g, b: nn.layer_norm(x, g, b, [-1]), f32(rows, length), f32(length), f32(length)
    )
    x, scale, shift, found = run({"f": stitched(func)})["f"]
    wide = x.astype("float64")
    centred = wide - wide.mean(-1, keepdims=True)
    wanted = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * scale + shift
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-5)


def test_a_row_beyond_the_caches() -> None:
    func = kernel_of(lambda x: nn.softmax(x, 1), f32(2, 700_001))
    x, found = run({"f": stitched(func)})["f"]
    wanted = np.exp(x.astype("float64"))
    np.testing.assert_allclose(found, wanted / wanted.sum(1, keepdims=True), rtol=1e-5)


def test_a_mean_far_from_zero() -> None:
    """The variance is that of the differences from the mean: nothing cancels."""
    func = kernel_of(lambda x, g, b: nn.layer_norm(x, g, b, [-1]), f32(3, 257), f32(257), f32(257))
    library = built({"main": stitched(func)})
    generator = np.random.default_rng(0)
    x = (generator.standard_normal((3, 257)) + 1000.0).astype("float32")
    ones = np.ones(257, "float32")
    found = tvm.runtime.tensor(np.zeros((3, 257), "float32"))
    scale, shift = tvm.runtime.tensor(ones), tvm.runtime.tensor(ones)
    library["main"](tvm.runtime.tensor(x), scale, shift, found)
    wide = x.astype("float64")
    wanted = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5) + 1
    np.testing.assert_allclose(found.numpy(), wanted, atol=2e-3)


@pytest.mark.extended
@pytest.mark.parametrize("name", NORMALISATIONS)
def test_vectors_without_branches(name: str) -> None:
    for func in kernels_of(REDUCTIONS[name].expression, *REDUCTIONS[name].inputs).values():
        found = stitched(func)
        assert "vectorized" in [loop.kind for loop in loops_of(found)]
        code = lowered(found, MACHINE)
        assert not [s for s in statements(code.body) if isinstance(s, tirx.IfThenElse)]
        assert "if_then_else" not in code.script()


@pytest.mark.parametrize(
    "expression",
    [lambda x: nn.softmax(x, 1), lambda x: nn.softmax(x, 0), lambda x: nn.log_softmax(x, 1)],
    ids=["last axis", "first axis", "log"],
)
def test_one_loop_over_rows_on_threads(expression: Callable[..., relax.Expr]) -> None:
    found = stitched(kernel_of(expression, f32(4096, 517)))
    kinds = [loop.kind for loop in loops_of(found)]
    assert kinds.count("parallel") == 1
    assert max(loop.extent or 0 for loop in loops_of(found) if loop.kind == "vectorized") >= 16


def test_small_kernels_stay_on_one_thread() -> None:
    found = stitched(kernel_of(lambda x: nn.softmax(x, 1), f32(5, 40)))
    assert "parallel" not in [loop.kind for loop in loops_of(found)]


def test_rows_wait_in_the_output() -> None:
    func = kernel_of(lambda x: nn.softmax(x, 1), f32(64, 4000))
    assert "4000" not in _allocations(stitched(func))
    own = stitched(func, decisions=FixedDecisions({"in_output": 0}))
    assert "4000" in _allocations(own)


def _allocations(func: tirx.PrimFunc) -> str:
    return "\n".join(line for line in func.script().splitlines() if "alloc_buffer" in line)


def test_what_a_row_has_in_common_is_computed_once() -> None:
    func = kernel_of(lambda x, g, b: nn.layer_norm(x, g, b, [-1]), f32(9, 96), f32(96), f32(96))
    inside = [loop for loop in statements(stitched(func).body) if isinstance(loop, tirx.For)]
    vectors = [loop for loop in inside if loop.kind == tirx.ForKind.VECTORIZED]
    assert vectors
    assert not any("rsqrt" in str(loop) or "/" in str(loop) for loop in vectors)


def decision_for(
    shape: tuple[int, ...], axis: int, machine: CpuDescription = MACHINE
) -> RowDecision:
    sch = s_tir.Schedule(kernel_of(lambda x: nn.softmax(x, axis), f32(*shape)))
    inline_blocks(sch)
    func = sch.mod["main"]
    kernel = read_rows([sch.get(block) for block in kernel_blocks(sch)], func.params)
    return decide_rows(kernel, machine)


def test_decisions_follow_the_shape() -> None:
    assert not decision_for((12, 128, 128), 2).across
    assert decision_for((1, 16, 2100), 1).across
    assert decision_for((1000, 3), 1).across
    short, long = decision_for((64, 128), 1), decision_for((64, 4096), 1)
    assert short.together > long.together
    assert short.registers < long.registers
    assert decision_for((4096, 517), 1).chunks == MACHINE.cores
    assert decision_for((4096, 517), 1, MACHINE.with_cores(1)).chunks == 1


REFUSED = {
    "sums": (lambda x: op.sum(x, axis=[1]), "no block uses a reduced row element by element"),
    "elementwise": (lambda x: op.exp(x), "the kernel has no reduction"),
    "products": (
        lambda x: nn.relu(op.matmul(x, x)),
        "a reduction reads its input for several rows, as windows do",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_leaves_other_kernels(name: str) -> None:
    expression, reason = REFUSED[name]
    assert refusal_of(SoftmaxAndNorm(), kernel_of(expression, f32(24, 24))) == reason


def test_leaves_rows_that_differ() -> None:
    """Each of the two sums is over another axis."""
    func = kernel_of_te(
        lambda x: topi.divide(x, topi.add(topi.sum(x, 0, keepdims=True), topi.sum(x, 1, True))),
        (9, 9),
    )
    assert refusal_of(SoftmaxAndNorm(), func)
