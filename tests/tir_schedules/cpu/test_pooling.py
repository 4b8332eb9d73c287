"""Pooling in any layout: numbers, refusals, and loops without a branch inside."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from cpu_kernels import check_vectors_and_threads, refusal_of, scheduled
from decision_cases import assert_defaults_give_the_default_schedule, check_random_numbers
from hypothesis import given, settings
from hypothesis import strategies as st
from lowering import assert_same, f32, kernel_of, loops_of, lowered, run, statements
from machines import MACHINE
from symbolic_extents import built, call, close, random, size
from thoroughness import DRAWS, one_in
from tvm import relax, te, tirx, topi
from tvm.relax.op import nn
from tvm.sym import Analyzer

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cpu.host import host_description
from tvm_ext.tir_schedules.analysis.loop_nest import substitute
from tvm_ext.tir_schedules.apply_template import ScheduledKernel, apply_template
from tvm_ext.tir_schedules.cpu.pooling import CpuPooling
from tvm_ext.tir_schedules.template import FixedDecisions

op = relax.op
applied = partial(scheduled, CpuPooling())
refusal = partial(refusal_of, CpuPooling())
check = partial(check_vectors_and_threads, CpuPooling())


sizes = st.integers(1, 4)


@pytest.mark.extended
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
@settings(max_examples=6 * DRAWS, deadline=None)
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
    if isinstance(apply_template(CpuPooling(), func, MACHINE), NotApplicable):
        return
    found = {"plain": func, "pool": applied(func), "threads": applied(func, MACHINE.with_cores(4))}
    results = run(found)
    assert_same(results["plain"], results["pool"], "one thread")
    assert_same(results["plain"], results["threads"], "threads")


@pytest.mark.slow
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


@pytest.mark.extended
def test_decisions() -> None:
    func = kernel_of(lambda x: nn.max_pool2d(x, 3, 2, 1, layout="NHWC"), f32(1, 9, 11, 61))
    knobs = assert_defaults_give_the_default_schedule(CpuPooling(), func, MACHINE)
    assert {name: knob.options for name, knob in knobs.items()} == {
        "along": (0, 1),
        "vectors": (1, 2, 4),
        "threads": (0, 1),
    }


@pytest.mark.extended
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


@pytest.mark.extended
def test_decisions_at_random() -> None:
    plain = {
        "channels last": kernel_of(
            lambda x: nn.relu(nn.avg_pool2d(x, 3, 2, 1, layout="NHWC")), f32(2, 9, 11, 19)
        ),
        "channels first": kernel_of(lambda x: nn.max_pool2d(x, (2, 3), 1, 1), f32(1, 5, 7, 37)),
        "three axes": kernel_of(lambda x: nn.max_pool3d(x, 3, 2, 1), f32(2, 3, 5, 7, 9)),
    }
    check_random_numbers(CpuPooling(), plain, machine=host_description().with_cores(4))


@pytest.mark.extended
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


_SYMBOLIC = {
    "max": lambda x: nn.max_pool2d(x, 3, 2, 1),
    "max, apart": lambda x: nn.max_pool2d(x, 2, 2),
    "max, ceil mode": lambda x: nn.max_pool2d(x, 3, 2, ceil_mode=True),
    "max, dilated": lambda x: nn.max_pool2d(x, (2, 3), 1, 2, dilation=2),
    "max, large": lambda x: nn.max_pool2d(x, 5, 1, 2),
    "max, many rows": lambda x: nn.max_pool2d(x, (17, 2), 1, (8, 0)),
    "average": lambda x: nn.avg_pool2d(x, 3, 2, 1),
    "average, apart": lambda x: nn.avg_pool2d(x, 2, 2),
    "average with padding": lambda x: nn.relu(nn.avg_pool2d(x, 3, 1, 1, count_include_pad=True)),
    "average, ceil mode": lambda x: nn.avg_pool2d(x, (2, 3), 2, 1, ceil_mode=True),
    "average, many rows": lambda x: nn.avg_pool2d(x, (17, 2), 1, (8, 0)),
    "max, channels last": lambda x: nn.max_pool2d(x, 3, 2, 1, layout="NHWC"),
    "average, channels last": lambda x: nn.avg_pool2d(x, 3, 1, 1, layout="NHWC"),
}

# Shorter and longer than a vector and than two, in both directions; some windows have no place.
_IMAGES = ((5, 5), (4, 1), (1, 4), (5, 1), (1, 6), (7, 13), (11, 8), (6, 23), (17, 67))


def _both(func: tirx.PrimFunc, *, cores: int = 1) -> Callable[[tuple], tuple]:
    """The kernel as it comes and as it is scheduled, on memory that ends where arrays do."""
    found = apply_template(CpuPooling(), func, host_description().with_cores(cores))
    assert isinstance(found, ScheduledKernel), found
    functions = [built(f) for f in (func, found.func)]

    def results(shape: tuple) -> tuple:
        sizes = [int(n) for n in _shape_of(func, shape)]
        return tuple(call(function, [random(*shape)], sizes) for function in functions)

    return results


def _shape_of(func: tirx.PrimFunc, shape: tuple) -> list:
    """Of the result for an input of ``shape``."""
    given, result = (list(parameter.shape) for parameter in func.params)
    known = {s: tirx.const(n, "int64") for s, n in zip(given, shape, strict=True)}
    known = {s: n for s, n in known.items() if isinstance(s, tirx.Var)}
    return [Analyzer().simplify(substitute(size, known)) for size in result]


@pytest.mark.extended
@pytest.mark.parametrize(
    ("name", "cores"),
    one_in(
        4,
        [*((name, 1) for name in _SYMBOLIC), ("max", 2), ("average", 2), ("max, channels last", 2)],
    ),
)
def test_symbolic_sizes(name: str, cores: int) -> None:
    last = "last" in name
    batch, channels, height, width = (size(n) for n in ("batch", "channels", "height", "width"))
    symbols = (batch, height, width, channels) if last else (batch, channels, height, width)
    func = kernel_of(_SYMBOLIC[name], (symbols, "float32"))
    results = _both(func, cores=cores)
    for h, w in _IMAGES:
        for c in (1, 3, 24) if last else (3,):
            shape = (2, h, w, c) if last else (2, c, h, w)
            if all(int(n) >= 0 for n in _shape_of(func, shape)):
                plain, scheduled = results(shape)
                np.testing.assert_allclose(plain, scheduled, 1e-5, 1e-6, err_msg=str(shape))


@pytest.mark.parametrize("open_axes", [(0,), (1,), (2,), (3,), (2, 3)])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_some_sizes_known(open_axes: tuple, layout: str) -> None:
    shape = (2, 11, 13, 5)
    symbols = tuple(size(f"s{i}") if i in open_axes else n for i, n in enumerate(shape))
    func = kernel_of(lambda x: nn.avg_pool2d(x, 3, 2, 1, layout=layout), (symbols, "float32"))
    close(*_both(func)(shape))


@pytest.mark.extended
def test_one_and_three_axes_of_symbolic_sizes() -> None:
    symbols = (size("batch"), 3, size("length"))
    line = _both(kernel_of(lambda x: nn.max_pool1d(x, 3, 2, 1), (symbols, "float32")))
    for length in (1, 2, 8, 17, 67):
        close(*line((2, 3, length)))
    volume = (2, size("depth"), size("height"), size("width"))
    boxes = _both(kernel_of(lambda x: nn.avg_pool3d(x, 3, 2, 1), ((1, *volume), "float32")))
    for sizes in ((1, 1, 1), (3, 5, 7), (4, 2, 19)):
        close(*boxes((1, 2, *sizes)))


def test_rows_of_known_sizes_are_those_of_a_known_batch() -> None:
    def loops(batch: object) -> list:
        func = kernel_of(lambda x: nn.max_pool2d(x, 3, 2, 1), ((batch, 8, 9, 37), "float32"))
        return [loop.extent for loop in loops_of(applied(func)) if loop.kind == "vectorized"]

    assert loops(size("batch")) == loops(2)
