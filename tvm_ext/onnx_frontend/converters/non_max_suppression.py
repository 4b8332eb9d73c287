"""NonMaxSuppression with all of its inputs computed in the run.

TVM's converter takes a max_output_boxes_per_class that is computed in the run for zero and gives
no boxes; its kernel keeps a fixed number of rows.
"""

from typing import Any

import numpy as np
from tvm import relax, tirx
from tvm.script.ir_builder import tirx as T

from tvm_ext.hardware.tvm_compat import OnnxOpConverter
from tvm_ext.onnx_frontend.converters.arguments import constant_array, sizes_of
from tvm_ext.onnx_frontend.converters.loops import emit_loops
from tvm_ext.onnx_frontend.converters.runtime_sizes import dimensions_of, first_rows

_MANY = np.iinfo(np.int64).max


class NonMaxSuppression(OnnxOpConverter):
    """Rows (batch, class, box), for each batch and class by falling score.

    A box stays when its score is above the threshold and it overlaps no box that stayed by more
    than ``iou_threshold``; equal scores keep the order of the boxes.
    """

    @classmethod
    def _impl_v10(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        boxes, scores = inputs[0], inputs[1]
        batches, classes, count = sizes_of(scores)
        limit = _argument(bb, inputs, 2, params, 0, "int64")
        overlap = _argument(bb, inputs, 3, params, 0.0, "float32")
        threshold = _argument(bb, inputs, 4, params, -np.inf, "float32")
        most = _most(inputs, params, count)
        order = bb.emit(relax.op.argsort(scores, axis=-1, descending=True, dtype="int32"))
        rows, found = emit_loops(
            bb,
            "non_max_suppression",
            [boxes, scores, order, limit, overlap, threshold],
            [((batches * classes * most, 3), "int64"), ((1,), "int64")],
            _loops(batches, classes, count, bool(attr.get("center_point_box", 0))),
        )
        (size,) = dimensions_of(bb, found, ["boxes_kept"])
        return first_rows(bb, rows, size, "boxes_kept")


def _argument(
    bb: relax.BlockBuilder, inputs: Any, place: int, params: Any, default: float, dtype: str
) -> relax.Expr:
    """An optional scalar as a tensor of one element."""
    value = inputs[place] if place < len(inputs) else None
    if value is None:
        return relax.const(np.array([default], dtype), dtype)
    array = constant_array(value, params)
    if array is not None:
        return relax.const(array.reshape(-1)[:1].astype(dtype), dtype)
    return bb.emit(relax.op.reshape(bb.emit(relax.op.astype(value, dtype)), [1]))


def _most(inputs: Any, params: Any, count: Any) -> Any:
    """The most boxes that one class can keep."""
    limit = constant_array(inputs[2], params) if len(inputs) > 2 else np.zeros(1)
    if limit is None:
        return count
    most = max(0, min(int(limit.reshape(-1)[0]), _MANY))
    return min(count, most) if isinstance(count, int) else tirx.min(count, most)


def _loops(batches: Any, classes: Any, count: Any, centered: bool) -> Any:
    def body(
        boxes: Any,
        scores: Any,
        order: Any,
        limit: Any,
        overlap: Any,
        threshold: Any,
        rows: Any,
        found: Any,
    ) -> None:
        found[0] = T.int64(0)
        state = T.buffer_proxy(T.alloc_buffer((3,), "int64", scope="local"))
        taken, first, apart = 0, 1, 2
        with T.serial(0, batches) as batch, T.serial(0, classes) as label:
            state[taken] = T.int64(0)
            state[first] = found[0]
            with T.serial(0, count) as rank:
                box = order[batch, label, rank]
                free = tirx.all(state[taken] < limit[0], scores[batch, label, box] > threshold[0])
                with T.If(free), T.Then():
                    state[apart] = T.int64(1)
                    with T.serial(0, state[taken]) as earlier:
                        other = rows[state[first] + earlier, 2]
                        near = _overlap(boxes, batch, box, other, centered) > overlap[0]
                        with T.If(near), T.Then():
                            state[apart] = T.int64(0)
                    with T.If(state[apart] == 1), T.Then():
                        rows[found[0], 0] = tirx.Cast("int64", batch)
                        rows[found[0], 1] = tirx.Cast("int64", label)
                        rows[found[0], 2] = tirx.Cast("int64", box)
                        found[0] = found[0] + 1
                        state[taken] = state[taken] + 1

    return body


def _overlap(boxes: Any, batch: Any, first: Any, second: Any, centered: bool) -> tirx.Expr:
    """Intersection over union of two boxes; 0 where one of them has no area."""
    low_a, high_a, low_b, high_b = (
        *_corners(boxes, batch, first, centered),
        *_corners(boxes, batch, second, centered),
    )
    zero = T.float32(0)
    inner = [
        tirx.max(tirx.min(high_a[k], high_b[k]) - tirx.max(low_a[k], low_b[k]), zero)
        for k in range(2)
    ]
    area_a = (high_a[0] - low_a[0]) * (high_a[1] - low_a[1])
    area_b = (high_b[0] - low_b[0]) * (high_b[1] - low_b[1])
    common = inner[0] * inner[1]
    union = area_a + area_b - common
    sound = tirx.all(area_a > zero, area_b > zero, union > zero)
    return tirx.Select(sound, common / tirx.Select(sound, union, T.float32(1)), zero)


def _corners(boxes: Any, batch: Any, box: Any, centered: bool) -> tuple[list, list]:
    values = [boxes[batch, box, place] for place in range(4)]
    if centered:
        half = T.float32(0.5)
        return (
            [values[k] - values[k + 2] * half for k in range(2)],
            [values[k] + values[k + 2] * half for k in range(2)],
        )
    pairs = [(values[k], values[k + 2]) for k in range(2)]
    return [tirx.min(a, b) for a, b in pairs], [tirx.max(a, b) for a, b in pairs]
