"""Pooling in any layout: numbers, refusals, and loops without a branch inside."""

from functools import partial

from cpu_kernels import check_vectors_and_threads, refusal_of, scheduled
from decision_cases import assert_defaults_give_the_default_schedule, check_random_numbers
from hypothesis import given, settings
from hypothesis import strategies as st
from lowering import assert_same, f32, kernel_of, loops_of, lowered, run, statements
from machines import MACHINE
from tvm import relax, te, tirx, topi
from tvm.relax.op import nn

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cpu.host import host_description
from tvm_ext.tir_schedules.cpu.pooling import CpuPooling
from tvm_ext.tir_schedules.template import DEFAULT_DECISIONS, FixedDecisions

op = relax.op
applied = partial(scheduled, CpuPooling())
refusal = partial(refusal_of, CpuPooling())
check = partial(check_vectors_and_threads, CpuPooling())


sizes = st.integers(1, 4)


@given(
    shape=st.tuples(st.integers(1, 2), st.integers(5, 12), st.integers(5, 20), st.integers(1, 19)),
    window=st.tuples(sizes, sizes),
    strides=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    dilation=st.integers(1, 2),
    padding=st.tuples(sizes, sizes, sizes, sizes),
    layout=st.sampled_from(["NHWC", "NCHW"]),
    kind=st.sampled_from(["max", "average", "average with padding"]),
    ceil=st.booleans(),
)
@settings(max_examples=25, deadline=None)
def test_numbers(
    shape: tuple[int, ...],
    window: tuple[int, int],
    strides: tuple[int, int],
    dilation: int,
    padding: tuple[int, ...],
    layout: str,
    kind: str,
    ceil: bool,
) -> None:
    n, h, w, c = shape
    # Padding shorter than the window, as ONNX wants it.
    reach = [dilation * (size - 1) + 1 for size in window]
    padding = tuple(min(p, reach[i % 2] - 1) for i, p in enumerate(padding))
    if any(size + padding[i] + padding[i + 2] < reach[i] for i, size in enumerate((h, w))):
        return
    inputs = f32(*(shape if layout == "NHWC" else (n, c, h, w)))
    common = {"dilation": dilation, "ceil_mode": ceil, "layout": layout}

    def pool(x: relax.Expr) -> relax.Expr:
        if kind == "max":
            return nn.max_pool2d(x, window, strides, padding, **common)
        include = kind == "average with padding"
        return nn.avg_pool2d(x, window, strides, padding, count_include_pad=include, **common)

    func = kernel_of(pool, inputs)
    if isinstance(CpuPooling().apply(func, MACHINE, DEFAULT_DECISIONS), NotApplicable):
        return
    found = {"plain": func, "pool": applied(func), "threads": applied(func, MACHINE.with_cores(4))}
    results = run(found)
    assert_same(results["plain"], results["pool"], "one thread")
    assert_same(results["plain"], results["threads"], "threads")


def test_numbers_of_other_ranks_and_epilogues() -> None:
    check(
        {
            "1d max": kernel_of(lambda x: nn.max_pool1d(x, 3, 2, 1), f32(2, 5, 17)),
            "1d average": kernel_of(lambda x: nn.avg_pool1d(x, 3, 1, 1), f32(2, 5, 17)),
            "3d max": kernel_of(lambda x: nn.max_pool3d(x, 3, 2, 1), f32(2, 3, 5, 7, 9)),
            "3d average": kernel_of(lambda x: nn.avg_pool3d(x, 2, 1, 1), f32(1, 3, 5, 7, 9)),
            "large window": kernel_of(
                lambda x: nn.max_pool2d(x, 13, 1, 6, layout="NHWC"), f32(1, 15, 14, 5)
            ),
            "many rows": kernel_of(
                lambda x: nn.avg_pool2d(x, (19, 2), 1, (9, 0)), f32(1, 2, 21, 9)
            ),
            "padded average, long rows": kernel_of(
                lambda x: nn.avg_pool2d(x, 3, 1, 1, layout="NHWC"), f32(1, 5, 43, 13)
            ),
        }
    )


def test_large_enough_for_threads() -> None:
    func = kernel_of(lambda x: nn.max_pool2d(x, 3, 2, 1), f32(1, 32, 112, 112))
    (first, *_) = loops_of(applied(func))
    assert (first.kind, first.extent) == ("parallel", 32)
    small = kernel_of(lambda x: nn.max_pool2d(x, 3, 2, 1), f32(1, 3, 9, 9))
    assert not any(loop.kind == "parallel" for loop in loops_of(applied(small)))


def test_branches_are_outside_of_the_loops_along_a_row() -> None:
    func = kernel_of(lambda x: nn.max_pool2d(x, 3, 2, 1, layout="NHWC"), f32(1, 9, 11, 61))
    code = lowered(applied(func), MACHINE)
    assert "if_then_else" not in code.script()
    for loop in (s for s in statements(code.body) if isinstance(s, tirx.For)):
        inner = list(statements(loop.body))
        if not any(isinstance(s, tirx.For) for s in inner):
            stores = [s for s in inner if isinstance(s, tirx.BufferStore)]
            assert all("x" in str(s.value.ty) for s in stores)


def test_decision_can_be_given() -> None:
    """Along the height instead of the width: slower, and the same numbers."""
    func = kernel_of(lambda x: nn.max_pool2d(x, 3, 1, 1), f32(1, 3, 9, 11))
    other = applied(func, decisions=FixedDecisions({"along": 0}))
    results = run({"plain": func, "other": other})
    assert_same(results["plain"], results["other"], "other decision")


def test_decisions() -> None:
    func = kernel_of(lambda x: nn.max_pool2d(x, 3, 2, 1, layout="NHWC"), f32(1, 9, 11, 61))
    knobs = assert_defaults_give_the_default_schedule(CpuPooling(), func, MACHINE)
    assert {name: knob.options for name, knob in knobs.items()} == {
        "along": (0, 1),
        "vectors": (1, 2, 4),
        "threads": (0, 1),
    }


def test_decisions_of_later_blocks_have_a_number() -> None:
    x = te.placeholder((1, 3, 33, 37), name="x")
    pooled = topi.nn.pool2d(x, (3, 3), (1, 1), (1, 1), (1, 1, 1, 1), "max")
    transposed = topi.transpose(pooled, (0, 1, 3, 2))
    repeated = te.compute(
        (2, *transposed.shape), lambda i, *at: transposed(*at) + x[at[0], at[1], 0, 0]
    )
    func = te.create_prim_func([x, repeated])
    knobs = assert_defaults_give_the_default_schedule(CpuPooling(), func, MACHINE)
    assert {"vectors", "threads", "tile_1", "threads_1"} <= set(knobs)
    check_random_numbers(
        CpuPooling(), {"transposed": func}, machine=host_description().with_cores(4)
    )


def test_decisions_at_random() -> None:
    plain = {
        "channels last": kernel_of(
            lambda x: nn.relu(nn.avg_pool2d(x, 3, 2, 1, layout="NHWC")), f32(2, 9, 11, 19)
        ),
        "channels first": kernel_of(lambda x: nn.max_pool2d(x, (2, 3), 1, 1), f32(1, 5, 7, 37)),
        "three axes": kernel_of(lambda x: nn.max_pool3d(x, 3, 2, 1), f32(2, 3, 5, 7, 9)),
    }
    check_random_numbers(CpuPooling(), plain, machine=host_description().with_cores(4))


def test_windows_apart_may_be_combined_by_rows_as_well() -> None:
    func = kernel_of(lambda x: nn.max_pool2d(x, 2, 2, layout="NHWC"), f32(1, 8, 8, 32))
    by_rows = applied(func, decisions=FixedDecisions({"direct": 0}))
    results = run({"plain": func, "rows": by_rows})
    assert_same(results["plain"], results["rows"], "rows")


def test_not_applicable() -> None:
    softmax = kernel_of(lambda x: nn.softmax(x, 1), f32(5, 7))
    assert refusal(softmax) == "it is not one reduction of plain elements"
    product = kernel_of(op.matmul, f32(3, 5), f32(5, 7))
    assert refusal(product) == "it is not one reduction of plain elements"
    whole = kernel_of(lambda x: nn.max_pool2d(x, (5, 7)), f32(1, 3, 5, 7))
    assert refusal(whole) == "the window covers all of its input and does not slide"
    apart = kernel_of(lambda x: nn.max_pool2d(x, 2, 2, layout="NHWC"), f32(1, 8, 8, 32))
    assert "do not overlap" in refusal(apart)
    x = te.placeholder((1, 3, 8, 8), name="x")
    pooled = topi.nn.pool2d(topi.log(x), (3, 3), (1, 1), (1, 1), (0, 0, 0, 0), "max")
    assert refusal(te.create_prim_func([x, pooled])) == "its input is computed by function calls"


def test_not_applicable_to_symbolic_extents() -> None:
    batch = tirx.Var("n", "int64")
    func = kernel_of(lambda x: nn.max_pool2d(x, 3, 1), ((batch, 3, 8, 8), "float32"))
    assert "symbolic" in refusal(func)
