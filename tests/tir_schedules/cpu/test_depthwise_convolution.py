"""Depthwise convolutions: numbers, refusals, and loops without padding in memory."""

from functools import partial
from typing import Any

import pytest
import tvm
from cpu_kernels import check_vectors_and_threads, refusal_of, scheduled
from decision_cases import assert_defaults_give_the_default_schedule, check_random_numbers
from hypothesis import given, settings
from hypothesis import strategies as st
from lowering import assert_same, f32, kernel_of, loops_of, lowered, run
from machines import MACHINE
from thoroughness import DRAWS
from tvm import relax, te, tirx
from tvm.relax.op import nn

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cpu.host import host_description
from tvm_ext.relay_passes.grouped_convolution import GroupedKernel
from tvm_ext.tir_schedules.analysis.buffer_access import nodes
from tvm_ext.tir_schedules.apply_template import apply_template
from tvm_ext.tir_schedules.cpu.depthwise_convolution import CpuDepthwiseConvolution
from tvm_ext.tir_schedules.template import FixedDecisions

op = relax.op
applied = partial(scheduled, CpuDepthwiseConvolution())
refusal = partial(refusal_of, CpuDepthwiseConvolution())


def convolution(
    shape: tuple[int, ...],
    window: tuple[int, ...],
    layout: str = "NHWC",
    epilogue: bool = True,
    **attrs: Any,
) -> tirx.PrimFunc:
    """``shape`` is batch, spatial sizes, channels, whatever the layout."""
    n, *sides, c = shape
    rank = len(sides)
    convolve = (nn.conv1d, nn.conv2d)[rank - 1]
    letters = "DHW"[3 - rank :]
    if layout.endswith("C"):
        specs = [f32(n, *sides, c), f32(*window, 1, c), f32(c)]
        attrs |= {"data_layout": f"N{letters}C", "kernel_layout": f"{letters}IO"}
    else:
        specs = [f32(n, c, *sides), f32(c, 1, *window), f32(c, *[1] * rank)]

    def expression(x: relax.Expr, w: relax.Expr, bias: relax.Expr) -> relax.Expr:
        result = convolve(x, w, groups=c, **attrs)
        return op.nn.relu(op.add(result, bias)) if epilogue else result

    if not epilogue:
        return kernel_of(lambda x, w: expression(x, w, x), *specs[:2])
    return kernel_of(expression, *specs)


check = partial(check_vectors_and_threads, CpuDepthwiseConvolution())


sizes = st.integers(1, 5)


@pytest.mark.extended
@given(
    shape=st.tuples(st.integers(1, 2), st.integers(5, 12), st.integers(5, 40), st.integers(2, 40)),
    window=st.tuples(sizes, sizes),
    strides=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    dilation=st.integers(1, 2),
    padding=st.tuples(*[st.integers(0, 4)] * 4),
    layout=st.sampled_from(["NHWC", "NCHW"]),
    epilogue=st.booleans(),
)
@settings(max_examples=6 * DRAWS, deadline=None)
def test_numbers(
    shape: tuple[int, ...],
    window: tuple[int, ...],
    strides: tuple[int, ...],
    dilation: int,
    padding: tuple[int, ...],
    layout: str,
    epilogue: bool,
) -> None:
    reach = [dilation * (size - 1) + 1 for size in window]
    sides = zip(shape[1:3], padding[:2], padding[2:], reach, strict=True)
    left = [size + a + b - least for size, a, b, least in sides]
    if min(left) < 0 or window == (1, 1):
        return
    attrs = {"strides": strides, "dilation": dilation, "padding": padding}
    func = convolution(shape, window, layout, epilogue, **attrs)
    found = apply_template(CpuDepthwiseConvolution(), func, MACHINE)
    if isinstance(found, NotApplicable):
        # Of a single result a channel, weights move with the results as the input does.
        single = all(rest < stride for rest, stride in zip(left, strides, strict=True))
        assert "too short" in found.reason or single
        return
    check({"case": func})


@given(length=st.integers(3, 50), channels=st.integers(2, 40), taps=st.integers(2, 3))
@settings(max_examples=2 * DRAWS, deadline=None)
def test_numbers_over_one_axis(length: int, channels: int, taps: int) -> None:
    functions = {
        layout: convolution((2, length, channels), (taps,), layout, padding=1)
        for layout in ("NWC", "NCW")
    }
    check(functions)


def of_bytes(
    shape: tuple[int, ...], dtype: str, layout: str, of_run: bool, **attrs: Any
) -> tirx.PrimFunc:
    """As ``GroupedConvolution`` writes it: 8-bit numbers less their zero point, summed in float32.

    ``shape`` is batch, rows, columns, channels, whatever the layout.
    """
    n, *sides, c = shape
    last = layout.endswith("C")
    attrs = {"strides": (1, 1), "before": (1, 1), "after": (1, 1), "dilation": (1, 1), **attrs}
    kernel = GroupedKernel(groups=c, channels_last=last, out_dtype="float32", **attrs)
    x = te.placeholder((n, *sides, c) if last else (n, c, *sides), dtype, "x")
    w = te.placeholder((3, 3, 1, c, 1) if last else (c, 1, 1, 3, 3), "int8", "w")
    zero = [te.placeholder((), dtype, "zero")] if of_run else []
    return te.create_prim_func([x, w, *zero, kernel.compute(x, w, *zero)])


@pytest.mark.extended
@given(
    shape=st.tuples(st.integers(1, 2), st.integers(3, 9), st.integers(8, 30), st.integers(2, 40)),
    dtype=st.sampled_from(["uint8", "int8"]),
    layout=st.sampled_from(["NHWC", "NCHW"]),
    of_run=st.booleans(),
    strides=st.tuples(st.integers(1, 2), st.integers(1, 2)),
)
@settings(max_examples=3 * DRAWS, deadline=None)
def test_bytes(
    shape: tuple[int, ...], dtype: str, layout: str, of_run: bool, strides: tuple[int, ...]
) -> None:
    check({"case": of_bytes(shape, dtype, layout, of_run, strides=strides)})


def test_bytes_are_read_as_they_are_and_nothing_is_padded() -> None:
    made = applied(of_bytes((1, 28, 28, 64), "uint8", "NHWC", True), MACHINE.with_cores(1))
    read = {str(load.source.dtype) for load in nodes(made.body, tvm.ir.TensorLoad)}
    assert read == {"uint8", "int8", "float32"}
    assert not list(made.body.block.alloc_buffers)


@pytest.mark.extended
def test_many_channels_of_few_rows_on_threads() -> None:
    check({"few rows": convolution((1, 3, 40, 512), (3, 3), padding=1)})


@pytest.mark.extended
def test_nothing_is_padded_in_memory_and_vectors_are_whole() -> None:
    for layout in ("NHWC", "NCHW"):
        func = convolution((1, 52, 80, 64), (3, 3), layout, padding=1)
        made = applied(func, MACHINE.with_cores(4))
        arrays = [int(buffer.shape[0]) for buffer in made.body.block.alloc_buffers]
        assert not arrays
        assert loops_of(made)[0].kind == "parallel"
        # Results in vectors of 16; borders of 2, and copies of several vectors.
        found = {loop.extent for loop in loops_of(made) if loop.kind == "vectorized"}
        assert 16 in found
        assert found <= {2, 16, 32, 64}
        # Nothing that could not be vectorised has become a loop over lanes.
        assert not [loop for loop in loops_of(lowered(made, MACHINE)) if loop.extent == 16]


@pytest.mark.extended
def test_decisions() -> None:
    last = assert_defaults_give_the_default_schedule(
        CpuDepthwiseConvolution(), convolution((1, 40, 33, 64), (3, 3), padding=1), MACHINE
    )
    assert {name: knob.options for name, knob in last.items()} == {
        "vectors": (1, 2, 4),
        "columns": (1, 2, 3, 4, 6, 7, 11, 17),
        "threads": (0, 1),
        "parts": (16, 32),
        "row_by_row": (0, 1),
    }
    first = assert_defaults_give_the_default_schedule(
        CpuDepthwiseConvolution(), convolution((1, 40, 33, 64), (3, 3), "NCHW", padding=1), MACHINE
    )
    assert {name: knob.options for name, knob in first.items()} == {
        "lanes": (4, 8, 16),
        "rows": (1, 2, 3, 4, 6, 8),
        "staged_rows": (6, 12, 24, 40),
        "threads": (0, 1),
    }


def test_parts_are_asked_for_with_threads() -> None:
    func = convolution((2, 40, 33, 64), (3, 3), padding=1)
    machine = MACHINE.with_cores(4)
    given = FixedDecisions({"threads": 1})
    CpuDepthwiseConvolution().apply(func, machine, given)
    assert given.knobs["parts"].options == (1, 4, 8, 16)
    serial = FixedDecisions({"threads": 0})
    CpuDepthwiseConvolution().apply(func, machine, serial)
    assert "parts" not in serial.knobs


@pytest.mark.slow
def test_decisions_at_random() -> None:
    plain = {
        layout: convolution((2, 13, 11, 35), (3, 3), layout, padding=(1, 2, 1, 0))
        for layout in ("NHWC", "NCHW")
    }
    plain |= {
        f"{layout}, strides": convolution(
            (1, 11, 37, 70), (5, 3), layout, strides=(2, 2), padding=2, epilogue=False
        )
        for layout in ("NHWC", "NCHW")
    }
    plain["one axis"] = convolution((3, 50, 21), (3,), "NWC", padding=1)
    check_random_numbers(CpuDepthwiseConvolution(), plain, machine=host_description().with_cores(4))


def test_a_tile_with_nothing_but_padding_under_it() -> None:
    func = convolution((1, 5, 9, 19), (3, 1), padding=(1, 2, 1, 2), epilogue=False)
    sch = applied(func, MACHINE, FixedDecisions({"columns": 1}))
    results = run({"plain": func, "narrow": sch})
    assert_same(results["plain"], results["narrow"], "narrow")


def test_refusals() -> None:
    def whole(x: relax.Expr, w: relax.Expr) -> relax.Expr:
        return nn.conv2d(x, w, padding=1, data_layout="NHWC", kernel_layout="HWIO")

    func = kernel_of(whole, f32(1, 8, 8, 4), f32(3, 3, 4, 6))
    assert "share an input" in refusal(func)
    product = kernel_of(op.matmul, f32(8, 16), f32(16, 8))
    assert "share an input" in refusal(product)
    far = convolution((1, 5, 60, 16), (1, 40), padding=(0, 39, 0, 39))
    assert "too wide a window" in refusal(far)
