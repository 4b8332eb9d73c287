"""Col2Im: columns of blocks added up into an image. TVM has none."""

import functools
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tvm import relax, te, tirx
from tvm.script.ir_builder import tirx as T

from tvm_ext.hardware.cpu.description import current_cpu
from tvm_ext.onnx_frontend.converters.arguments import Size, sizes_of, takes_sizes
from tvm_ext.onnx_frontend.converters.convolution_and_pooling import windows
from tvm_ext.onnx_frontend.converters.loops import emit_loops, nested, on_threads
from tvm_ext.onnx_frontend.converters.runtime_sizes import sizes_in_the_run, wide
from tvm_ext.onnx_frontend.converters.shape_constraints import of_sizes
from tvm_ext.onnx_frontend.sizes import scalar_rules as rules
from tvm_ext.onnx_frontend.tvm_compat import OnnxOpConverter

# On a kernel that adds up columns: its form, as JSON.
COLUMNS = "tvm_ext.col2im"


@takes_sizes(1, 2)
class Col2Im(OnnxOpConverter):
    """Adds up columns of blocks into an image: each element sums the blocks that cover it."""

    @classmethod
    def _impl_v18(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        image = sizes_in_the_run(bb, inputs[1], params, "image")
        block = sizes_in_the_run(bb, inputs[2], params, "block")
        form = ColumnsForm.of(image, block, attr)
        # Blocks that do not fit the image or the columns would make loops of any length.
        batch, rows, _ = sizes_of(inputs[0])
        elements = rules.maximum(math.prod(block), 1, "int64")
        channels = rules.divide(rows, elements, "int64")
        steps = [form.steps(axis) for axis in range(len(image))]
        columns = of_sizes(bb, inputs[0], [batch, channels * elements, math.prod(steps)])
        if current_cpu() is not None:
            return _by_blocks(bb, columns, form, steps, [batch, channels])
        kernel = functools.partial(_by_elements, form)
        return bb.emit_te(
            kernel, columns, image, block, steps, channels, primfunc_name_hint="col2im"
        )


@dataclass(frozen=True)
class ColumnsForm:
    """Image, block and how far apart both the blocks and their elements are, by axis."""

    image: Sequence[Size]
    block: Sequence[Size]
    strides: Sequence[int]
    dilations: Sequence[int]
    pads: Sequence[int]

    @classmethod
    def of(cls, image: Sequence[Size], block: Sequence[Size], attr: dict) -> "ColumnsForm":
        """That of a node."""
        ones, zeros = [1] * len(image), [0] * 2 * len(image)
        strides, dilations, pads = (
            list(attr.get(name, default))
            for name, default in (("strides", ones), ("dilations", ones), ("pads", zeros))
        )
        return cls(image, block, strides, dilations, pads)

    @property
    def is_known(self) -> bool:
        """Whether all sizes are numbers."""
        return all(isinstance(size, int) for size in (*self.image, *self.block))

    def steps(self, axis: int) -> Size:
        """The blocks along an axis."""
        around = self.pads[axis], self.pads[axis + len(self.image)]
        reach = (self.block[axis] - 1) * self.dilations[axis] + 1
        found = windows(self.image[axis], around, self.strides[axis], reach, False)
        return rules.maximum(found, 0, "int64")


def _by_blocks(
    bb: relax.BlockBuilder, columns: relax.Expr, form: ColumnsForm, steps: list, outer: list
) -> relax.Expr:
    """Adds the columns one after the other, each of them to the elements that it is inside of."""
    axes, dtype = range(len(form.image)), str(columns.ty.dtype)

    def body(read: Any, written: Any) -> None:
        with on_threads(*outer) as (item, channel):
            with nested(*form.image) as places:
                written[(item, channel, *places)] = tirx.const(0, dtype)
            with nested(*form.block) as taps:
                row = channel
                ahead, firsts, counts = [], [], []
                for k in axes:
                    row = row * form.block[k] + taps[k]
                    ahead.append(T.bind(wide(taps[k] * form.dilations[k] - form.pads[k])))
                    # The blocks whose element of this tap is inside of the image. Where what is
                    # divided falls with a loop, TVM's iterators round the wrong way.
                    stride = form.strides[k]
                    firsts.append(T.bind(tirx.max(-tirx.floordiv(ahead[k], stride), T.int64(0))))
                    beyond = -tirx.floordiv(ahead[k] - wide(form.image[k]), stride)
                    stop = tirx.min(beyond, wide(steps[k]))
                    counts.append(T.bind(tirx.max(stop - firsts[k], T.int64(0))))
                with nested(*counts) as numbers:
                    column, places = T.int64(0), []
                    for k in axes:
                        step = firsts[k] + numbers[k]
                        column = column * steps[k] + step
                        places.append(step * form.strides[k] + ahead[k])
                    at = (item, channel, *places)
                    written[at] = written[at] + read[item, row, column]

    outputs = [([*outer, *form.image], dtype)]
    attrs = {COLUMNS: json.dumps(asdict(form))} if form.is_known else {}
    return emit_loops(bb, "col2im", [columns], outputs, body, primfunc_attrs=attrs)[0]


def _by_elements(
    form: ColumnsForm, columns: te.Tensor, image: list, block: list, steps: list, channels: Any
) -> te.Tensor:
    """Looks for the blocks of each element."""
    taps = [te.reduce_axis((0, size), f"tap_{k}") for k, size in enumerate(block)]

    def element(batch: Any, channel: Any, *places: Any) -> tirx.Expr:
        row, step, fits = channel, 0, []
        for k, place in enumerate(places):
            reach = place + form.pads[k] - taps[k].var * form.dilations[k]
            window = tirx.floordiv(reach, form.strides[k])
            is_start = tirx.floormod(reach, form.strides[k]) == 0
            fits += [is_start, window >= 0, window < steps[k]]
            row, step = row * block[k] + taps[k].var, step * steps[k] + window
        zero = tirx.const(0, str(columns.dtype))
        value = tirx.if_then_else(tirx.all(*fits), columns[batch, row, step], zero)
        return te.sum(value, axis=taps)

    return te.compute([columns.shape[0], channels, *image], element, name="col2im")


def columns_of_image(bb: relax.BlockBuilder, image: relax.Expr, form: ColumnsForm) -> relax.Expr:
    """The columns whose sum has this gradient: each has that of the elements that it covers."""
    axes = range(len(form.image))
    steps = [form.steps(axis) for axis in axes]
    taps = math.prod(form.block)

    def kernel(image: te.Tensor) -> te.Tensor:
        def element(batch: Any, row: Any, column: Any) -> tirx.Expr:
            tap, inside = tirx.floormod(row, taps), []
            places: list[Any] = []
            for k in reversed(axes):
                step, column = tirx.floormod(column, steps[k]), tirx.floordiv(column, steps[k])
                ahead = tirx.floormod(tap, form.block[k]) * form.dilations[k] - form.pads[k]
                tap = tirx.floordiv(tap, form.block[k])
                place = step * form.strides[k] + ahead
                places.insert(0, place)
                inside += [place >= 0, place < form.image[k]]
            value = image(batch, tirx.floordiv(row, taps), *places)
            return tirx.if_then_else(tirx.all(*inside), value, tirx.const(0, str(image.dtype)))

        shape = (image.shape[0], image.shape[1] * taps, math.prod(steps))
        return te.compute(shape, element, name="im2col")

    return bb.emit_te(kernel, image, primfunc_name_hint="im2col")
