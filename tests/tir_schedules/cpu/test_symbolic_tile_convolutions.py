"""Convolutions with symbolic extents, at sizes around those of a tile, against NumPy."""

import re
from collections.abc import Sequence

import numpy as np
import pytest
import tvm
from kernel_cases import nhwc
from lowering import f32, kernel_of, statements
from symbolic_extents import SIZES, built, call, close, convolved, random, scheduled, size
from tvm import relax, te, tirx, topi
from tvm.relax.op import nn
from tvm.sym import Analyzer

from tvm_ext.hardware.cpu.host import host_description
from tvm_ext.relay_passes.name_symbolic_sizes import NameSymbolicSizes
from tvm_ext.tir_schedules.analysis.buffer_access import CONSTANTS_ATTRIBUTE
from tvm_ext.tir_schedules.analysis.loop_nest import substitute
from tvm_ext.tir_schedules.apply_template import ScheduledKernel, apply_template
from tvm_ext.tir_schedules.cpu.blockwise import Blockwise

op = relax.op


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize(("stride", "kernel", "pad"), [(1, 3, 1), (2, 3, 1), (1, 1, 0), (2, 1, 0)])
def test_convolution(stride: int, kernel: int, pad: int, named: bool) -> None:
    func = kernel_of(
        lambda *v: nhwc(*v, strides=(stride, stride), padding=(pad, pad)),
        ((size("batch"), size("height"), size("width"), 3), "float32"),
        f32(kernel, kernel, 3, 24),
        f32(24),
    )
    if named:
        func = NameSymbolicSizes()(tvm.IRModule({"main": func}))["main"]
    func = func.with_attr(CONSTANTS_ATTRIBUTE, [1, 2])
    found = scheduled(func)
    function = built(found.func)
    weights, bias = random(kernel, kernel, 3, 24), random(24)
    own = found.packed.pack(weights) if found.packed is not None else weights
    for batch, height in ((1, 1), (2, 5), (1, 9)):
        for width in SIZES[1:]:
            x = random(batch, height, width, 3)
            wanted = np.maximum(convolved(x, weights, stride, pad) + bias, 0)
            close(call(function, [x, own, bias], wanted.shape), wanted)
        empty = random(batch, height, 0, 3)
        shape = (batch, -(-height // stride), 0, 24)
        assert call(function, [empty, own, bias], shape).size == 0


@pytest.mark.parametrize("threads", [1, 2])
def test_columns_pass_by_blocks_of_rows_where_l2_is_small(threads: int) -> None:
    """Some ten tiles at a time; blocks are even, so that the last tile may be computed twice."""
    func = kernel_of(
        lambda *v: nhwc(*v, strides=(2, 2), padding=(1, 1)),
        ((size("batch"), size("height"), size("width"), 3), "float32"),
        f32(3, 3, 3, 160),
        f32(160),
    ).with_attr(CONSTANTS_ATTRIBUTE, [1, 2])
    machine = host_description().with_cores(threads)
    small = machine.model_copy(update={"l2_bytes": 16384})
    whole, found = scheduled(func, machine), scheduled(func, small)
    loops = [bool(re.search(r"\bblock\b", one.func.script())) for one in (whole, found)]
    assert loops == [False, True]
    function = built(found.func)
    weights, bias = random(3, 3, 3, 160), random(160)
    own = found.packed.pack(weights) if found.packed is not None else weights
    for batch, height, width in ((1, 1, 1), (1, 9, 16), (3, 7, 25), (3, 31, 30), (2, 5, 0)):
        x = random(batch, height, width, 3)
        shape = (batch, -(-height // 2), -(-width // 2), 160)
        found_now = call(function, [x, own, bias], shape)
        if width:
            close(found_now, np.maximum(convolved(x, weights, 2, 1) + bias, 0))


def _dilated(channels: int, stride: int, pad: int, dilation: int) -> tirx.PrimFunc:
    func = kernel_of(
        lambda *v: nhwc(
            *v, strides=(stride, stride), padding=(pad, pad), dilation=(dilation, dilation)
        ),
        ((size("batch"), size("height"), size("width"), channels), "float32"),
        f32(3, 3, channels, 24),
        f32(24),
    )
    return func.with_attr(CONSTANTS_ATTRIBUTE, [1, 2])


@pytest.mark.extended
@pytest.mark.parametrize(("stride", "pad", "dilation"), [(1, 1, 1), (2, 1, 1), (1, 6, 6)])
def test_pixels_are_copied_for_each_tap(stride: int, pad: int, dilation: int) -> None:
    found = scheduled(_dilated(20, stride, pad, dilation))
    assert not found.func.body.block.alloc_buffers, "the padded image is written to memory"
    function = built(found.func)
    weights, bias = random(3, 3, 20, 24), random(24)
    own = found.packed.pack(weights) if found.packed is not None else weights
    spread = np.zeros((2 * dilation + 1, 2 * dilation + 1, 20, 24), "float32")
    spread[::dilation, ::dilation] = weights
    for batch, height in ((1, 1), (2, 5), (1, 16)):
        for width in (1, 4, 7, 8, 9, 17):
            x = random(batch, height, width, 20)
            wanted = np.maximum(convolved(x, spread, stride, pad) + bias, 0)
            result = call(function, [x, own, bias], wanted.shape)
            np.testing.assert_allclose(result, wanted, rtol=1e-4, atol=1e-4)


def test_few_channels_are_read_from_a_padded_image() -> None:
    found = scheduled(_dilated(3, 1, 1, 1))
    assert len(found.func.body.block.alloc_buffers) == 1


@pytest.mark.parametrize("shift", [0, 1])
def test_a_padded_image_that_is_wanted_is_written(shift: int) -> None:
    """One that is a result, or whose zeros add to the sums."""
    x = te.placeholder((size("batch"), size("height"), size("width"), 16), "float32", "x")
    w = te.placeholder((3, 3, 16, 16), "float32", "w")
    padded = topi.nn.pad(x, [0, 1, 1, 0], name="padded")
    extents = [tirx.const(n, "int64") for n in (3, 3, 16)]
    down, across, channel = (te.reduce_axis((0, n)) for n in extents)

    def summed(n, i, j, f):
        pixel = padded[n, i + down, j + across, channel] - tirx.const(float(shift), "float32")
        product = (pixel if shift else padded[n, i + down, j + across, channel]) * w[
            down, across, channel, f
        ]
        return te.sum(product, axis=[down, across, channel])

    y = te.compute((*x.shape[:3], tirx.const(16, "int64")), summed, "y")
    results = [y] if shift else [padded, y]
    function = built(scheduled(te.create_prim_func([x, w, *results])).func)
    image, weights = random(1, 5, 6, 16), random(3, 3, 16, 16)
    wide = np.pad(image, ((0, 0), (1, 1), (1, 1), (0, 0)))
    found = [np.full((1, 5, 6, 16), np.nan, "float32")]
    found = found if shift else [np.full(wide.shape, np.nan, "float32"), *found]
    tensors = [tvm.runtime.tensor(array) for array in (image, weights, *found)]
    function(*tensors)
    wanted = convolved(wide - shift, weights, 1, 0)
    np.testing.assert_allclose(tensors[-1].numpy(), wanted, rtol=1e-4, atol=1e-4)
    if not shift:
        np.testing.assert_array_equal(tensors[2].numpy(), wide)


@pytest.mark.parametrize("kernel", [1, 3])
def test_convolution_with_channels_first(kernel: int) -> None:
    """Columns are pixels, of a width that is a multiple of four: some branches are never taken."""
    width = size("width") * 4
    func = kernel_of(
        lambda x, w: nn.relu(nn.conv2d(x, w, padding=(kernel // 2, kernel // 2))),
        ((size("batch"), 5, size("height"), width), "float32"),
        f32(19, 5, kernel, kernel),
    )
    function = built(scheduled(func).func)
    weights = random(19, 5, kernel, kernel)
    transposed = weights.transpose(2, 3, 1, 0)
    for height, width in ((1, 4), (3, 8), (2, 16), (9, 20), (5, 0)):
        x = random(2, 5, height, width)
        shape = (2, 19, height, width)
        numbers = [number for name, number in (("width", width // 4),) if _takes(func, name)]
        found = call(function, [x, weights], shape, *numbers)
        if width:
            wanted = convolved(x.transpose(0, 2, 3, 1), transposed, 1, kernel // 2)
            close(found, np.maximum(wanted, 0).transpose(0, 3, 1, 2))


def _takes(func: tirx.PrimFunc, name: str) -> bool:
    return any(param.name == name for param in func.params)


def test_crop_of_padded_channels() -> None:
    """Channels that are only there to fill vectors are not computed."""
    func = kernel_of(
        lambda x, w: op.strided_slice(op.matmul(x, w), axes=[1], begin=[0], end=[28]),
        ((size("rows"), 6), "float32"),
        f32(6, 32),
    )
    function = built(scheduled(func).func)
    weights = random(6, 32)
    for rows in SIZES:
        x = random(rows, 6)
        close(call(function, [x, weights], (rows, 28)), (x @ weights)[:, :28])


def _line(*shape: object) -> tuple[tuple[object, ...], str]:
    return (size("batch"), *shape), "float32"


OTHERS = {
    "depthwise": (
        lambda x, w: nn.conv2d(
            x, w, padding=(2, 2), groups=19, data_layout="NHWC", kernel_layout="HWOI"
        ),
        (_line(size("rows"), size("columns"), 19), f32(5, 5, 19, 1)),
    ),
    "dilated": (
        lambda x, w: nn.conv2d(
            x, w, padding=(2, 2), dilation=(2, 2), data_layout="NHWC", kernel_layout="HWIO"
        ),
        (_line(size("rows"), size("columns"), 3), f32(3, 3, 3, 20)),
    ),
    "one axis": (
        lambda x, w: nn.conv1d(
            x, w, padding=(1, 1), strides=2, data_layout="NWC", kernel_layout="WIO"
        ),
        (_line(size("columns"), 6), f32(3, 6, 40)),
    ),
    "one axis, channels first": (
        lambda x, w: nn.conv1d(x, w, padding=(3, 3)),
        (_line(6, size("columns")), f32(10, 6, 7)),
    ),
    "few rows": (
        lambda x, w: nn.conv2d(x, w, data_layout="NHWC", kernel_layout="HWIO"),
        (_line(5, 11, 3), f32(3, 3, 3, 16)),
    ),
    "only images": (
        lambda x, w: nn.conv2d(x, w, data_layout="NHWC", kernel_layout="HWIO"),
        (_line(3, 3, 5), f32(3, 3, 5, 48)),
    ),
}


@pytest.mark.extended
@pytest.mark.parametrize("name", OTHERS)
def test_other_convolutions(name: str) -> None:
    """Against the fallback, one image and three."""
    expression, inputs = OTHERS[name]
    func = kernel_of(expression, *inputs)
    plain = apply_template(Blockwise(), func, host_description())
    assert isinstance(plain, ScheduledKernel)
    own, last = built(scheduled(func).func), built(plain.func)
    for batch in (1, 3):
        for columns in SIZES[1:]:
            numbers = {"batch": batch, "rows": 5, "columns": columns}
            arrays = [random(*_known(shape, numbers)) for shape, _ in inputs]
            shape = _known(func.params[-1].shape, numbers)
            close(call(own, arrays, shape), call(last, arrays, shape))


def _known(shape: Sequence[object], numbers: dict[str, int]) -> list[int]:
    """A shape with numbers in place of the sizes of those names."""

    def known(extent: object) -> int:
        if isinstance(extent, int):
            return extent
        names = tirx.analysis.undefined_vars(extent)
        values = {v: tirx.const(numbers[v.name], "int64") for v in names}
        return int(Analyzer().simplify(substitute(extent, values)))

    return [known(extent) for extent in shape]


@pytest.mark.extended
@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("outputs", [40, 37])
def test_columns_of_many_channels_are_copied(outputs: int, cores: int) -> None:
    """Pixels of all lines are one loop, and the columns of some tiles pass all rows of weights."""
    func = kernel_of(
        lambda x, w: nn.relu(nn.conv2d(x, w)),
        ((size("batch"), 70, size("height"), size("width")), "float32"),
        f32(outputs, 70, 1, 1),
    ).with_attr(CONSTANTS_ATTRIBUTE, [1])
    found = scheduled(func, host_description().with_cores(cores))
    copies = [s for s in statements(found.func.body) if isinstance(s, tirx.AllocBuffer)]
    assert "panel" in {copy.buffer.name for copy in copies}
    # Rows of 40 are packed in tiles of 8; 37 leave a rest.
    assert (found.packed is not None) == (outputs == 40)
    function, weights = built(found.func), random(outputs, 70, 1, 1)
    own = found.packed.pack(weights) if found.packed is not None else weights
    for height, width in (
        (0, 3),
        (1, 1),
        (1, 3),
        (5, 3),
        (3, 11),
        (1, 63),
        (8, 16),
        (3, 43),
        (23, 25),
    ):
        x = random(2, 70, height, width)
        wanted = np.maximum(np.einsum("ncyx,fc->nfyx", x, weights[:, :, 0, 0]), 0)
        close(call(function, [x, own], wanted.shape), wanted)
