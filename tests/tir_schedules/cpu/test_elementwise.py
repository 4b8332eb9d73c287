"""Kernels without a reduction."""

from functools import partial

import pytest
from cpu_kernels import refusal_of, scheduled
from decision_cases import assert_defaults_give_the_default_schedule, check_random_numbers
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import MOVES, POINTWISE
from lowering import assert_same, f32, kernel_of, kernels_of, loops_of, run, scalar_stores
from machines import MACHINE, NARROW
from thoroughness import DRAWS
from tvm import relax, te, tirx
from tvm.relax.op import nn

from tvm_ext.hardware.cpu.host import host_description
from tvm_ext.tir_schedules.cpu.elementwise import CpuElementwise
from tvm_ext.tir_schedules.schedule_kernels import schedule_kernel
from tvm_ext.tir_schedules.template import FixedDecisions

op = relax.op
applied = partial(scheduled, CpuElementwise())


def test_chain_is_one_parallel_vectorised_nest() -> None:
    func = kernel_of(
        lambda a, b: op.multiply(nn.relu(op.add(a, b)), b), f32(256, 4096), f32(256, 4096)
    )
    before = func.script()
    found = [(loop.kind, loop.extent) for loop in loops_of(applied(func))]
    assert found == [("parallel", 256 * 64), ("vectorized", 64)]
    assert func.script() == before


def test_decisions() -> None:
    func = kernel_of(op.add, f32(7, 1000), f32(1000))
    knobs = assert_defaults_give_the_default_schedule(CpuElementwise(), func, MACHINE)
    assert {name: knob.options for name, knob in knobs.items()} == {
        "vectors": (1, 2, 4, 8),
        "threads": (0, 1),
    }
    found = applied(func, decisions=FixedDecisions({"vectors": 1, "threads": 1}))
    assert [(loop.kind, loop.extent) for loop in loops_of(found)] == [
        ("parallel", 7 * 63),
        ("vectorized", 16),
    ]
    one = assert_defaults_give_the_default_schedule(CpuElementwise(), func, MACHINE.with_cores(1))
    assert set(one) == {"vectors"}


def test_decisions_of_several_blocks_have_numbers() -> None:
    func = kernel_of(lambda x: op.split(x, [40, 1000], 0), f32(2001))
    knobs = assert_defaults_give_the_default_schedule(CpuElementwise(), func, MACHINE)
    assert set(knobs) == {f"{name}_{i}" for name in ("vectors", "threads") for i in (1, 2, 3)}
    many = kernel_of(lambda x: op.split(x, [100, 300, 600, 1000], 0), f32(2001))
    asked = set(assert_defaults_give_the_default_schedule(CpuElementwise(), many, MACHINE))
    assert asked == {f"{name}_{i}" for name in ("vectors", "threads") for i in (3, 4, 5)}


def test_threads_for_every_piece_when_none_is_long() -> None:
    func = kernel_of(lambda a, b: op.concat([a, b], 0), f32(40, 24), f32(13, 24))
    found = applied(func, decisions=FixedDecisions({"vectors": 1, "threads": 1}))
    assert [loop.kind for loop in loops_of(found)].count("parallel") == 2


@pytest.mark.extended
def test_decisions_at_random() -> None:
    moves = ("concat inner", "concat inner odd", "pad", "split", "resize nhwc")
    kernels = {
        f"{name}: {kernel}": func
        for name in moves
        for kernel, func in kernels_of(MOVES[name].expression, *MOVES[name].inputs).items()
    }
    kernels["sigmoid"] = kernel_of(op.sigmoid, f32(13, 149))
    kernels["halves"] = kernel_of(op.maximum, ((7, 1000), "float16"), ((1000,), "float16"))
    kernels["twice"] = twice(2711)
    check_random_numbers(CpuElementwise(), kernels, machine=host_description().with_cores(4))


def test_every_output_of_a_split_has_its_own_nest() -> None:
    func = kernel_of(lambda x: op.split(x, 2, 1), f32(8, 64))
    assert [loop.extent for loop in loops_of(applied(func)) if loop.kind == "vectorized"] == [
        32,
        32,
    ]


@pytest.mark.parametrize("name", ["add relu", "bias nchw", "bias nhwc", "compare", "half"])
def test_no_scalar_code(name: str) -> None:
    (func,) = kernels_of(POINTWISE[name].expression, *POINTWISE[name].inputs).values()
    assert scalar_stores(applied(func), MACHINE) == 0


@pytest.mark.parametrize("name", ["concat outer", "concat first", "slice dense", "take"])
def test_no_scalar_moves(name: str) -> None:
    (func,) = kernels_of(MOVES[name].expression, *MOVES[name].inputs).values()
    assert scalar_stores(applied(func), MACHINE) == 0


def test_not_applicable_to_a_reduction() -> None:
    func = kernel_of(op.matmul, f32(3, 5), f32(5, 7))
    assert refusal_of(CpuElementwise(), func) == "the kernel reduces or scans"


@pytest.mark.extended
@pytest.mark.parametrize("size", [71, 2704, 2705, 2711])
def test_nothing_is_computed_twice_inside_of_a_kernel(size: int) -> None:
    """TVM may put the second array in the place of the first, which would be squared twice."""
    func = twice(size)
    results = run({"plain": func, "scheduled": applied(func)})
    assert_same(results["plain"], results["scheduled"], "scheduled")


def twice(size: int) -> tirx.PrimFunc:
    x = te.placeholder((size,), name="x")
    one = te.compute((size,), lambda i: tirx.exp(x[i]), name="one")
    two = te.compute((size,), lambda i: tirx.exp(one[i]) * one[i], name="two")
    # Read twice as often as they are computed: both stay blocks of their own.
    last = te.compute((2, size), lambda j, i: two[i] + x[i], name="last")
    return te.create_prim_func([x, last])


MOVED = {
    "join": lambda a, b: op.concat([a, b, a], 1),
    "join rows": lambda a, b: op.concat([a, b, a], 0),
    "pad": lambda a, b: op.add(nn.pad(a, [1, 2, 3, 1]), nn.pad(b, [2, 1, 1, 3])),
    "mirror": lambda a, b: nn.pad(op.concat([a, b], 1), [0, 0, 2, 1], pad_mode="reflect"),
    "two pads": lambda a, b: nn.pad(nn.pad(a, [1, 0, 2, 1]), [0, 2, 1, 1], pad_value=1.0),
    "reflected": lambda a, b: op.add(op.flip(a, 1), op.flip(b, 0)),
    "repeat": lambda a, b: op.add(op.repeat(a, 2, 1), op.repeat(b, 2, 1)),
    "tile": lambda a, b: op.add(op.tile(a, [2, 3]), op.tile(b, [2, 3])),
    "stack": lambda a, b: op.stack([a, b], 2),
    "turn": lambda a, b: op.add(op.permute_dims(a), op.permute_dims(b)),
    "reshape": lambda a, b: op.add(op.reshape(a, [-1]), op.reshape(b, [-1])),
}


@pytest.mark.extended
@given(rows=st.integers(1, 9), columns=st.integers(1, 150), kind=st.sampled_from(sorted(MOVED)))
@settings(max_examples=12 * DRAWS, deadline=None)
def test_numbers_of_moves(rows: int, columns: int, kind: str) -> None:
    func = kernel_of(MOVED[kind], f32(rows, columns), f32(rows, columns))
    found = {"plain": func}
    for machine in (MACHINE, NARROW):
        found[machine.name], _ = schedule_kernel(func, machine)
    results = run(found)
    for name in found:
        assert_same(results["plain"], results[name], name)
