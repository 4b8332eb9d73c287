"""Kernels that are transposed in registers: what is taken, how, and what it computes."""

from collections.abc import Callable
from functools import partial

import pytest
from cpu_kernels import check_vectors_and_threads, refusal_of, scheduled
from decision_cases import assert_defaults_give_the_default_schedule, check_random_numbers
from hypothesis import given, settings
from hypothesis import strategies as st
from lowering import Spec, assert_same, f32, kernel_of, loops_of, lowered, run, scalar_stores
from machines import MACHINE, NARROW
from thoroughness import DRAWS
from tvm import relax, te, tirx
from tvm.relax.op import nn

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.hardware.cpu.host import host_description
from tvm_ext.hardware.targets import resolve_target
from tvm_ext.tir_schedules.analysis import buffer_access
from tvm_ext.tir_schedules.apply_template import apply_template
from tvm_ext.tir_schedules.cpu.data_parallel import KernelPlan, plan_blocks
from tvm_ext.tir_schedules.cpu.elementwise import CpuTranspose
from tvm_ext.tir_schedules.cpu.register_transpose import TransposeTileDecision
from tvm_ext.tir_schedules.template import FixedDecisions

op = relax.op
MACHINES = [MACHINE, NARROW]


def decisions(
    func: tirx.PrimFunc, machine: CpuDescription = MACHINE
) -> list[TransposeTileDecision]:
    plan = plan_blocks(func, machine)
    assert isinstance(plan, KernelPlan)
    return [tile for block in plan.blocks for tile in block.decision.tiles.values()]


applied = partial(scheduled, CpuTranspose())


def check(expression: Callable[..., relax.Expr], *inputs: Spec) -> None:
    """The same numbers with wide and with narrow vectors, on one thread and on several."""
    check_vectors_and_threads(CpuTranspose(), {"plain": kernel_of(expression, *inputs)})


@pytest.mark.extended
@given(rows=st.integers(4, 70), columns=st.integers(2, 70))
@settings(max_examples=4 * DRAWS, deadline=None)
def test_numbers_of_matrices(rows: int, columns: int) -> None:
    check(op.permute_dims, f32(columns, rows))


CASES: dict[str, tuple[Callable[..., relax.Expr], tuple[Spec, ...]]] = {
    "nchw to nhwc, 3 channels": (lambda x: op.permute_dims(x, [0, 2, 3, 1]), (f32(2, 3, 7, 9),)),
    "nhwc to nchw, 5 channels": (lambda x: op.permute_dims(x, [0, 3, 1, 2]), (f32(1, 7, 9, 5),)),
    "bias and relu on the way": (
        lambda x, b: nn.relu(op.add(op.permute_dims(x, [0, 2, 3, 1]), b)),
        (f32(1, 19, 5, 7), f32(19)),
    ),
    "residual in the order of the result": (
        lambda x, y: op.add(op.permute_dims(x, [0, 2, 3, 1]), y),
        (f32(1, 19, 5, 7), f32(1, 5, 7, 19)),
    ),
    "long value": (
        lambda x, y: op.multiply(
            op.sigmoid(op.permute_dims(x)), op.exp(op.add(op.permute_dims(y), op.permute_dims(x)))
        ),
        (f32(17, 35), f32(17, 35)),
    ),
    "stack of columns": (lambda a, b, c: op.stack([a, b, c], 2), (f32(5, 19),) * 3),
    "repeat": (lambda x: op.repeat(x, 2, 1), (f32(3, 37),)),
    "space to depth": (
        lambda x: op.permute_dims(op.reshape(x, [3, 10, 2, 9, 2]), [1, 3, 2, 4, 0]),
        (f32(3, 20, 18),),
    ),
    "every other column transposed": (
        lambda x: op.permute_dims(op.strided_slice(x, [1], [0], [64], [2], assume_inbound=True)),
        (f32(12, 64),),
    ),
    "joined and transposed": (
        lambda a, b: op.permute_dims(op.concat([a, b], 1)),
        (f32(19, 33), f32(19, 20)),
    ),
    "integers": (op.permute_dims, (((21, 35), "int8"),)),
    "doubles": (op.permute_dims, (((21, 35), "float64"),)),
    "halves": (op.permute_dims, (((21, 35), "float16"),)),
}


@pytest.mark.parametrize("name", CASES)
def test_numbers(name: str) -> None:
    expression, inputs = CASES[name]
    check(expression, *inputs)


def test_input_is_unchanged() -> None:
    func = kernel_of(op.permute_dims, f32(33, 35))
    before = func.script()
    applied(func)
    assert func.script() == before


@pytest.mark.parametrize(
    ("expression", "inputs", "wanted"),
    [
        (op.permute_dims, (f32(40, 50),), TransposeTileDecision(1, 0, 16)),
        (op.permute_dims, (f32(6, 3),), NotApplicable),
        (op.permute_dims, (f32(5, 7),), TransposeTileDecision(1, 0, 8)),
        (op.permute_dims, (f32(3, 100),), TransposeTileDecision(1, 0, 16, "interleave")),
        (op.permute_dims, (f32(100, 3),), TransposeTileDecision(1, 0, 16, "deinterleave", (0,))),
        (op.permute_dims, (((40, 50), "float64"),), TransposeTileDecision(1, 0, 8)),
        (
            lambda x, y: op.add(op.permute_dims(x), y),
            (f32(40, 50), f32(50, 40)),
            TransposeTileDecision(1, 0, 16, "square", (0,)),
        ),
    ],
)
def test_decision(expression: object, inputs: tuple[Spec, ...], wanted: object) -> None:
    found = decisions(kernel_of(expression, *inputs))  # type: ignore[arg-type]
    assert found == ([] if wanted is NotApplicable else [wanted])


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("integers", {"tile": (4, 8, 16), "swapped": (0, 1), "threads": (0, 1)}),
        (
            "bias and relu on the way",
            {"turn_loads": (0, 1), "tile": (4, 8, 16), "swapped": (0, 1), "threads": (0, 1)},
        ),
        ("nchw to nhwc, 3 channels", {"square": (0, 1), "tile": (4, 8, 16), "threads": (0, 1)}),
        ("nhwc to nchw, 5 channels", {"square": (0, 1), "tile": (8, 16), "threads": (0, 1)}),
        # Which way a branch goes must be known in each row of a tile.
        ("stack of columns", {"threads": (0, 1)}),
    ],
)
def test_decisions(name: str, wanted: dict[str, tuple[int, ...]]) -> None:
    expression, inputs = CASES[name]
    knobs = assert_defaults_give_the_default_schedule(
        CpuTranspose(), kernel_of(expression, *inputs), MACHINE
    )
    offered = {knob.name: knob.options for knob in knobs.values() if len(knob.options) > 1}
    assert offered == wanted


@pytest.mark.extended
@pytest.mark.parametrize("machine", [host_description(), NARROW], ids=lambda m: m.name)
def test_decisions_at_random(machine: CpuDescription) -> None:
    plain = {name: kernel_of(expression, *inputs) for name, (expression, inputs) in CASES.items()}
    check_random_numbers(CpuTranspose(), plain, machine=machine.with_cores(4))


def test_tiles_may_follow_each_other_the_other_way() -> None:
    func = kernel_of(op.permute_dims, f32(64, 160))
    orders = [
        [
            loop.extent
            for loop in loops_of(applied(func, decisions=FixedDecisions({"swapped": swapped})))
        ]
        for swapped in (0, 1)
    ]
    assert [order[:2] for order in orders] == [[4, 10], [10, 4]]


@pytest.mark.extended
@pytest.mark.parametrize("target", ["avx2", "x86-64", "aarch64-neon"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(5, 40), (40, 5), (3, 50), (7, 64), (64, 7)])
def test_short_rows_longer_than_a_vector(target: str, dtype: str, shape: tuple[int, int]) -> None:
    """Five rows do not fit into vectors of four lanes: they are not interleaved."""
    machine = resolve_target(target)
    func = kernel_of(op.permute_dims, (shape, dtype))
    found = apply_template(CpuTranspose(), func, machine)
    if isinstance(found, NotApplicable):
        assert "contiguous along one other axis" in found.reason
        return
    results = run({"plain": func, "scheduled": found.func})
    assert_same(results["plain"], results["scheduled"], "scheduled")


@pytest.mark.extended
@pytest.mark.parametrize("size", [32, 35])
def test_no_tile_laps_over_in_the_place_of_what_it_reads(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TVM may put ``two`` in the place of ``one``, of which nothing may be read twice then."""
    # As if the expressions were long.
    monkeypatch.setattr(buffer_access, "MAX_NODES", 1)
    x = te.placeholder((size, size), name="x")
    one = te.compute(x.shape, lambda i, j: x[i, j] * 0.5, name="one")
    two = te.compute(x.shape, lambda i, j: one[i, j] * 0.5 + x[j, i], name="two")
    last = te.compute(x.shape, lambda i, j: two[i, j] * 0.5, name="last")
    func = te.create_prim_func([x, last])
    if size % 16:
        assert refusal_of(CpuTranspose(), func)
        return
    knobs = assert_defaults_give_the_default_schedule(CpuTranspose(), func, MACHINE)
    assert not any(name.startswith("tile") for name in knobs)
    results = run({"plain": func, "scheduled": applied(func)})
    assert_same(results["plain"], results["scheduled"], "scheduled")


def test_narrow_vectors_make_smaller_tiles() -> None:
    (found,) = decisions(kernel_of(op.permute_dims, f32(40, 50)), NARROW)
    assert found.size == 8


@pytest.mark.extended
@pytest.mark.parametrize("name", ["nchw to nhwc, 3 channels", "joined and transposed", "repeat"])
@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: m.name)
def test_no_scalar_code_and_no_branches(name: str, machine: CpuDescription) -> None:
    expression, inputs = CASES[name]
    code = applied(kernel_of(expression, *inputs), machine)
    assert scalar_stores(code, machine) == 0
    assert "if_then_else" not in lowered(code, machine).script()


def test_threads_share_tiles() -> None:
    (first, *_) = loops_of(applied(kernel_of(op.permute_dims, f32(2048, 2048))))
    assert (first.kind, first.extent) == ("parallel", 128)
    small = loops_of(applied(kernel_of(op.permute_dims, f32(33, 35))))
    assert not any(loop.kind == "parallel" for loop in small)


@pytest.mark.parametrize(
    ("expression", "inputs", "reason"),
    [
        (op.add, (f32(5, 7), f32(7)), "read along the axis along which the result is written"),
        (lambda x: op.sum(x, 0), (f32(5, 7),), "the kernel reduces or scans"),
    ],
)
def test_not_applicable(expression: object, inputs: tuple[Spec, ...], reason: str) -> None:
    assert reason in refusal_of(CpuTranspose(), kernel_of(expression, *inputs))  # type: ignore[arg-type]


def test_not_applicable_to_symbolic_extents() -> None:
    batch = tirx.Var("n", "int64")
    func = kernel_of(op.permute_dims, ((batch, 5), "float32"))
    assert "known extents" in refusal_of(CpuTranspose(), func)
