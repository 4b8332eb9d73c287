"""The generic schedule for meshes: right numbers for any kernel, and messages where they count."""

import pytest
from decision_cases import assert_defaults_give_the_default_schedule
from kernel_cases import CASES, MOVES
from lowering import Spec, assert_same, f32, kernel_of, kernels_of, run
from thoroughness import some_of
from tvm import relax, s_tir, te, tirx
from tvm.relax.op import nn
from wafer_kernels import (
    MESH,
    SMALL,
    WAFER,
    check_numbers,
    message,
    program,
    refusal,
    transfers,
    with_constants,
    works,
)

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.tir_schedules.backend import scheduling_of
from tvm_ext.tir_schedules.schedule_kernels import schedule_kernel
from tvm_ext.tir_schedules.wafer.blockwise import WaferBlockwise
from tvm_ext.tuning.wafer.cost_model import read_program

op = relax.op
TEMPLATE = WaferBlockwise()
TAKE = with_constants(
    kernel_of(lambda table, i: op.take(table, i, 0), f32(30, 40), ((12,), "int64")), 0
)


X = te.placeholder((12, 20), name="x")
ONE = te.compute(X.shape, lambda i, j: te.exp(X[i, j]), name="one")
CHAIN = te.create_prim_func([X, te.compute(X.shape, lambda i, j: ONE[i, 19 - j], name="two")])


def test_rows_of_a_table_by_indices_of_the_run() -> None:
    found = program(TEMPLATE, TAKE)
    assert (found.rows, found.columns) == (3, 5)
    # Each row of PEs gets its 4 indices, 8 bytes each; who has which line of the table depends on
    # data, so that it lies cut in both directions.
    assert [message(one) for one in transfers(found).values()] == [("multicast_row", 8, 5)]
    table, indices, result = (found.shards[param.name] for param in TAKE.params)
    assert (table, indices, result) == (10 * 8 * 4, 4 * 8, 4 * 8 * 4)
    check_numbers(TEMPLATE, {"take": TAKE})


def test_a_transposed_operand_is_gathered_and_the_other_one_is_there() -> None:
    func = kernel_of(lambda x, y: op.add(op.permute_dims(x), y), f32(20, 12), f32(12, 20))
    found = program(TEMPLATE, func)
    assert [one.pattern for one in transfers(found).values()] == ["gather"]
    assert list(found.buffers) == ["x0_tile"]
    assert works(found)["T_add"].elements == 4 * 4
    check_numbers(TEMPLATE, {"add": func})


def test_both_orders_of_one_tensor() -> None:
    x = te.placeholder((12, 12), name="x")
    func = te.create_prim_func([x, te.compute(x.shape, lambda i, j: x[i, j] - x[j, i])])
    assert list(program(TEMPLATE, func).buffers) == ["x_tile"]
    check_numbers(TEMPLATE, {"x - x^T": func})


def test_rows_that_a_sum_needs_whole_are_gathered() -> None:
    """A product that no other template took."""
    func = with_constants(kernel_of(op.matmul, f32(12, 40), f32(40, 20)), 1)
    found = program(TEMPLATE, func)
    (sent,) = transfers(found).values()
    # Of 40, a PE has 8 itself.
    assert (sent.pattern, sent.words) == ("gather", 4 * (40 - 8))
    assert works(found)["matmul_update"].elements == 4 * 4 * 40
    # The constant lies as it is needed.
    assert found.shards[func.params[1].name] == 40 * 4 * 4


def test_windows_come_in_a_box() -> None:
    func = kernel_of(lambda x: nn.max_pool2d(x, (3, 3), (1, 1)), f32(1, 1, 14, 22))
    found = program(TEMPLATE, func)
    # The result is 12 x 20, in tiles of 4 x 4.
    (sent,) = transfers(found).values()
    assert sent.pattern == "gather"
    # The PE that has the least of its box lacks all but 8 of the 36.
    assert sent.words == 28
    check_numbers(TEMPLATE, {"pool": func})


def test_results_of_one_block_are_read_by_the_next_where_they_lie() -> None:
    func = kernel_of(lambda x: nn.softmax(x, 0), f32(12, 20))
    found = program(TEMPLATE, func)
    assert (found.rows, found.columns) == (3, 5)
    assert "T_softmax_exp" in found.buffers
    check_numbers(TEMPLATE, {"softmax": func})


def test_copies_that_differ_from_pe_to_pe_are_left_out() -> None:
    """Groups of channels that do not fit the pieces."""
    case = CASES["conv nhwc grouped"]
    func = kernel_of(case.expression, *case.inputs)
    assert program(TEMPLATE, func).rows == 3
    check_numbers(TEMPLATE, {"grouped": func})


DEPENDENT: dict[str, tuple[object, tuple[Spec, ...]]] = {
    "gather elements": (
        lambda x, i: op.gather_elements(x, i, 1),
        (f32(5, 7), ((5, 3), "int64")),
    ),
    "take inner": (lambda x, i: op.take(x, i, 1), (f32(7, 24), ((5,), "int32"))),
    "argmax": (lambda x: op.argmax(x, 1), (f32(5, 19),)),
    "largest": (lambda x: op.topk(x, 3, 1), (f32(5, 19),)),
    "running sum": (lambda x: op.cumsum(x, 1), (f32(5, 19),)),
    "group norm": (CASES["group norm"].expression, CASES["group norm"].inputs),
    "adaptive pool": (CASES["adaptive pool"].expression, CASES["adaptive pool"].inputs),
}


@pytest.mark.extended
def test_numbers_of_what_depends_on_data_or_order() -> None:
    kernels = {
        f"{name} {kernel}": func
        for name, (expression, inputs) in DEPENDENT.items()
        for kernel, func in kernels_of(expression, *inputs).items()
    }
    check_numbers(TEMPLATE, kernels, [SMALL])


OWN = ("wafer transpose", "wafer elementwise", "wafer reduction", "wafer blockwise")
OTHERS = [name for name in CASES if not name.startswith("empty")]


@pytest.mark.slow
def test_every_kernel_is_taken_and_computes_the_same() -> None:
    """By the first template that takes it, on a mesh that nothing fits."""
    plain, found = {}, {}
    for name in OTHERS:
        for kernel, func in kernels_of(CASES[name].expression, *CASES[name].inputs).items():
            plain[f"{name}: {kernel}"] = func
            found[f"{name}: {kernel}"] = schedule_kernel(func, SMALL)
    known = {template.name for template in scheduling_of(SMALL).recordable}
    assert {choice.schedule for _, choice in found.values()} <= known
    unread = [
        name
        for name, (func, choice) in found.items()
        if choice.schedule in OWN and not _is_readable(func)
    ]
    # One block finds the largest value and its position; a window's size depends on its place.
    assert {name.split()[0] for name in unread} <= {"argmax", "argmin", "adaptive", "concat"}

    moved = some_of(name for name in plain if name.split(":")[0] in MOVES)
    wanted = run({name: plain[name] for name in moved})
    results = run({name: found[name][0] for name in moved})
    for name in moved:
        assert_same(wanted[name], results[name], name)


def _is_readable(func: tirx.PrimFunc) -> bool:
    try:
        read_program(func)
    except (NotApplicable, IndexError):
        return False
    return True


def test_a_grid_is_decided_for_the_largest_block() -> None:
    func = kernel_of(lambda x, y: op.add(op.permute_dims(x), y), f32(20, 12), f32(12, 20))
    offered = assert_defaults_give_the_default_schedule(TEMPLATE, func, MESH)
    assert list(offered) == ["rows", "columns"]
    found = program(TEMPLATE, func, MESH, rows=4, columns=5)
    assert (found.rows, found.columns) == (4, 5)


def test_a_table_of_a_language_model_fits_a_wafer() -> None:
    func = with_constants(
        kernel_of(lambda t, i: op.take(t, i, 0), f32(30522, 384), ((1, 64), "int64")), 0
    )
    found = program(TEMPLATE, func, WAFER)
    assert (found.rows, found.columns) == (64, 384)
    assert found.bytes_per_pe < WAFER.usable_bytes


@pytest.mark.parametrize(
    ("shape", "reason"),
    [((0, 5), "nothing to compute"), ((tirx.Var("n", "int64"), 5), "extent is not known")],
)
def test_not_applicable(shape: tuple, reason: str) -> None:
    assert reason in refusal(TEMPLATE, kernel_of(op.exp, (shape, "float32")))


def test_not_applicable_to_blocks_in_one_loop() -> None:
    sch = s_tir.Schedule(CHAIN)
    first, second = sch.get_sblock("one"), sch.get_sblock("two")
    sch.compute_at(first, sch.get_loops(second)[0])
    assert refusal(TEMPLATE, sch.mod["main"]) == "blocks share loops"
