"""Kernels of an open batch: loops over items, and the numbers at sizes never seen."""

from collections.abc import Sequence

import pytest
from lowering import f32, kernel_of, loops_of
from machines import MACHINE
from symbolic_extents import built, call, close, random, size
from thoroughness import one_in, some_of
from tvm import relax, tirx
from tvm.relax.op import nn

from tvm_ext.hardware.cpu.host import host_description
from tvm_ext.tir_schedules.analysis.buffer_access import CONSTANTS_ATTRIBUTE
from tvm_ext.tir_schedules.apply_template import apply_template
from tvm_ext.tir_schedules.cpu.blockwise import Blockwise
from tvm_ext.tir_schedules.cpu.thread_choice import with_thread_choice
from tvm_ext.tir_schedules.schedule_kernels import schedule_kernel

op = relax.op


def _batch(*shape: object) -> tuple[tuple[object, ...], str]:
    return (size("batch"), *shape), "float32"


def _conv(**options: object):
    return lambda x, w: nn.relu(
        nn.conv2d(x, w, data_layout="NHWC", kernel_layout="HWIO", **options)
    )


KERNELS = {
    "register tile": (_conv(padding=(1, 1)), (_batch(9, 10, 16), f32(3, 3, 16, 40))),
    "batched register tile": (
        op.matmul,
        (_batch(2, 33, 16), _batch(2, 16, 37)),
    ),
    "windows": (
        lambda x: nn.softmax(x, axis=-1),
        (((size("batch") * 4, 30, 30), "float32"),),
    ),
    "depthwise convolution": (
        lambda x, w: nn.conv2d(
            x, w, padding=(1, 1), groups=48, data_layout="NHWC", kernel_layout="HWOI"
        ),
        (_batch(9, 11, 48), f32(3, 3, 48, 1)),
    ),
    "pooling": (
        lambda x: nn.max_pool2d(x, (3, 3), strides=(2, 2), padding=(1, 1), layout="NHWC"),
        (_batch(11, 11, 32),),
    ),
    "softmax and norm": (lambda x: nn.softmax(x, axis=-1), (_batch(40, 50),)),
    "reduction": (lambda x: op.mean(x, axis=[1, 2]), (_batch(7, 7, 40),)),
    "transpose": (lambda x: op.permute_dims(x, [0, 2, 1]), (_batch(40, 50),)),
    "concatenation": (
        lambda x, y: nn.relu(op.concat([x, y], axis=-1)),
        (_batch(20, 40), _batch(20, 24)),
    ),
}


def _name(name: str) -> str:
    return {"batched register tile": "register tile", "windows": "softmax and norm"}.get(
        name, "elementwise" if name == "concatenation" else name
    )


@pytest.mark.extended
@pytest.mark.parametrize(
    ("name", "cores"),
    one_in(3, [*((name, 2) for name in KERNELS), *((name, 1) for name in some_of(KERNELS))]),
)
def test_against_the_fallback(name: str, cores: int) -> None:
    expression, inputs = KERNELS[name]
    func = kernel_of(expression, *inputs)
    machine = host_description().with_cores(cores)
    scheduled, choice = schedule_kernel(func, machine)
    assert choice.schedule == _name(name)
    own = built(with_thread_choice(scheduled, machine).func)
    plain = apply_template(Blockwise(), func, machine)
    last = built(plain.func)
    for batch in (0, 1, 2, 3, 7, 8):
        arrays = [random(*_known(shape, batch)) for shape, _ in inputs]
        tensors = [param for param in func.params if hasattr(param, "shape")]
        numbers = [batch] * (len(func.params) - len(tensors))
        shape = _known(tensors[-1].shape, batch)
        close(call(own, arrays, shape, *numbers), call(last, arrays, shape, *numbers))


def _known(shape: Sequence[object], batch: int) -> list[int]:
    known = []
    for extent in shape:
        if isinstance(extent, tirx.Mul):
            known.append(batch * int(extent.b))
        else:
            known.append(batch if isinstance(extent, tirx.Var) else int(extent))
    return known


def _large_conv(kernel: int) -> tirx.PrimFunc:
    pads = (kernel // 2, kernel // 2)
    weight = f32(kernel, kernel, 64, 64)
    func = kernel_of(_conv(padding=pads), _batch(28, 28, 64), weight)
    return func.with_attr(CONSTANTS_ATTRIBUTE, [1])


def test_threads_share_items_and_parts_of_items() -> None:
    scheduled, _ = schedule_kernel(_large_conv(1), MACHINE)
    outer = [loop for loop in loops_of(scheduled) if not loop.path]
    assert [loop.kind for loop in outer] == ["parallel"]
    assert "batch * T.int64(" in scheduled.script().split("T.parallel(")[1].splitlines()[0]
    # It is worth the threads for one item: there is nothing to choose in a run.
    assert with_thread_choice(scheduled, MACHINE).loops == 0


def test_threads_take_items_where_an_item_has_several_loops() -> None:
    """A copy with zeros around it comes first: its threads would wait for each other."""
    scheduled, _ = schedule_kernel(_large_conv(3), MACHINE)
    assert {loop.path[:1] for loop in loops_of(scheduled) if loop.kind == "parallel"} == {
        ("serial",)
    }
    chosen = with_thread_choice(scheduled, MACHINE)
    assert chosen.loops == 1
    outer = [loop for loop in loops_of(chosen.func) if not loop.path]
    assert [loop.kind for loop in outer] == ["parallel", "serial"]
    inside = [loop.kind for loop in loops_of(chosen.func) if loop.path[:1] == ("parallel",)]
    assert "parallel" not in inside


def test_few_uses_of_weights_are_for_rows_of_several_items() -> None:
    func = kernel_of(lambda x, w: op.matmul(x, w), _batch(64), f32(64, 96))
    _, choice = schedule_kernel(func, MACHINE)
    assert choice.schedule == "symbolic tile"


@pytest.mark.extended
def test_small_items_are_no_loop() -> None:
    func = kernel_of(lambda x: nn.softmax(x, axis=-1), _batch(2, 7))
    scheduled, choice = schedule_kernel(func, MACHINE)
    assert choice.schedule == "softmax and norm"
    # An item that is so small is no loop of its own.
    assert "item" not in scheduled.script()
