"""Depthwise convolutions: numbers, refusals, and loops without padding in memory."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from lowering import assert_same, f32, kernel_of, run
from machines import MACHINE, NARROW
from tvm import relax, s_tir, tirx
from tvm.relax.op import nn

from tvm_ext.hardware.description import CpuDescription
from tvm_ext.tir_schedules.llvm.depthwise_convolution import DepthwiseConvolution
from tvm_ext.tir_schedules.template import NotMine

op = relax.op


def applied(func: tirx.PrimFunc, machine: CpuDescription = MACHINE) -> tirx.PrimFunc:
    sch = DepthwiseConvolution().apply(func, machine)
    assert isinstance(sch, s_tir.Schedule), sch
    return sch.mod["main"]


def refusal(func: tirx.PrimFunc, machine: CpuDescription = MACHINE) -> str:
    found = DepthwiseConvolution().apply(func, machine)
    assert isinstance(found, NotMine)
    return found.reason


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


def check(functions: dict[str, tirx.PrimFunc]) -> None:
    found = dict(functions)
    for name, func in functions.items():
        for machine in (MACHINE, NARROW):
            for cores in (1, 4):
                key = f"{name} {machine.name} {cores}"
                found[key] = applied(func, machine.with_cores(cores))
    results = run(found)
    for name in found:
        plain = next(key for key in functions if name.startswith(key))
        assert_same(results[plain], results[name], name)


sizes = st.integers(1, 5)


@given(
    shape=st.tuples(st.integers(1, 2), st.integers(5, 12), st.integers(5, 40), st.integers(2, 40)),
    window=st.tuples(sizes, sizes),
    strides=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    dilation=st.integers(1, 2),
    padding=st.tuples(*[st.integers(0, 4)] * 4),
    layout=st.sampled_from(["NHWC"]),
    epilogue=st.booleans(),
)
@settings(max_examples=40, deadline=None)
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
    if any(size + a + b < least for size, a, b, least in sides) or window == (1, 1):
        return
    attrs = {"strides": strides, "dilation": dilation, "padding": padding}
    func = convolution(shape, window, layout, epilogue, **attrs)
    if isinstance(DepthwiseConvolution().apply(func, MACHINE), NotMine):
        assert max(padding) > 2 or shape[2] < 8
        return
    check({"case": func})
