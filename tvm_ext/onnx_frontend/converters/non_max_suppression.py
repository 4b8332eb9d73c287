"""NonMaxSuppression with all of its inputs computed in the run.

TVM's converter takes a max_output_boxes_per_class that is computed in the run for zero and gives
no boxes; its kernel keeps a fixed number of rows.
"""

from typing import Any

import numpy as np
from tvm import relax, te, tirx
from tvm.script.ir_builder import tirx as T

from tvm_ext.hardware.cpu.description import current_cpu
from tvm_ext.onnx_frontend.converters.arguments import constant_array, sizes_of
from tvm_ext.onnx_frontend.converters.heap import Heap
from tvm_ext.onnx_frontend.converters.loops import emit_loops, local_array, nested, on_threads
from tvm_ext.onnx_frontend.converters.reductions import cumulated
from tvm_ext.onnx_frontend.converters.runtime_sizes import dimensions_of, first_rows, wide
from tvm_ext.onnx_frontend.tvm_compat import OnnxOpConverter
from tvm_ext.tir_schedules.operators.non_max_suppression import (
    ANNOTATION,
    CENTERS,
    CORNERS,
    corners,
)
from tvm_ext.tir_schedules.operators.non_max_suppression import overlap as overlap_of

_MANY = np.iinfo(np.int64).max

# Of an interval of less than 2^31 groups, to one of them.
_HALVINGS = 31


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
        centered = bool(attr.get("center_point_box", 0))
        results = [((batches, classes, most), "int32"), ((batches, classes), "int64")]
        if current_cpu() is not None:
            candidates = [((batches, classes, count), dtype) for dtype in ("float32", "int32")]
            kept, taken, *_ = emit_loops(
                bb,
                "suppress_boxes",
                [boxes, scores, limit, overlap, threshold],
                [*results, *candidates],
                _nms_by_heaps(batches, classes, count, centered),
            )
        else:
            order = bb.emit(relax.op.argsort(scores, axis=-1, descending=True, dtype="int32"))
            kept, taken = emit_loops(
                bb,
                "suppress_boxes",
                [boxes, scores, order, limit, overlap, threshold],
                results,
                _nms(batches, classes, count, centered),
                {ANNOTATION: CENTERS if centered else CORNERS},
            )
        rows, found = _in_one_list(bb, kept, taken, (batches, classes, most))
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


def _nms_by_heaps(batches: Any, classes: Any, count: Any, centered: bool) -> Any:
    """For each batch and class, the boxes that stay and their number.

    Only boxes above the threshold are put in order, and no more of them than are looked at.
    """

    def before(one: Any, other: Any) -> Any:
        (score, box), (other_score, other_box) = one, other
        return tirx.any(score > other_score, tirx.all(score == other_score, box < other_box))

    def body(
        boxes: Any,
        scores: Any,
        limit: Any,
        overlap: Any,
        threshold: Any,
        kept: Any,
        taken: Any,
        keys: Any,
        places: Any,
    ) -> None:
        with on_threads(batches, classes) as (batch, label):
            heap = Heap.in_buffers(keys, places, lambda n: (batch, label, n), before)
            state = local_array(4, "int64")
            best, other = local_array(4, "float32"), local_array(4, "float32")
            number, left, earlier, chosen = range(4)

            def read(box: Any, held: Any) -> list[tirx.Expr]:
                """Corners of a box, whose numbers are read once: checks of open sizes are long."""
                state[chosen] = tirx.Cast("int64", box)
                for place in range(4):
                    held[place] = boxes[batch, state[chosen], place]
                return corners([held[place] for place in range(4)], centered)

            state[number] = T.int64(0)
            state[left] = T.int64(0)
            with T.serial(0, count) as box:
                score = scores[batch, label, box]
                with T.If(score > threshold[0]), T.Then():
                    keys[batch, label, state[left]] = score
                    places[batch, label, state[left]] = tirx.Cast("int32", box)
                    state[left] = state[left] + 1
            heap.order(state[left])
            with T.While(tirx.all(state[left] > 0, state[number] < limit[0])):
                state[left] = state[left] - 1
                heap.move_root(state[left])
                _, box = heap.entry(state[left])
                first = read(box, best)
                state[earlier] = T.int64(0)
                with T.While(state[earlier] < state[number]):
                    ratio = overlap_of(first, read(kept[batch, label, state[earlier]], other))
                    next_one = state[earlier] + 1
                    state[earlier] = tirx.if_then_else(ratio > overlap[0], T.int64(_MANY), next_one)
                with T.If(state[earlier] == state[number]), T.Then():
                    kept[batch, label, state[number]] = box
                    state[number] = state[number] + 1
            taken[batch, label] = state[number]

    return body


def _nms(batches: Any, classes: Any, count: Any, centered: bool) -> Any:
    """The same of boxes in order of their scores, one after the other."""

    def body(
        boxes: Any,
        scores: Any,
        order: Any,
        limit: Any,
        overlap: Any,
        threshold: Any,
        kept: Any,
        taken: Any,
    ) -> None:
        def box_at(batch: Any, box: Any) -> list[tirx.Expr]:
            return corners([boxes[batch, box, place] for place in range(4)], centered)

        with nested(batches, classes) as (batch, label):
            state = local_array(2, "int64")
            number, apart = 0, 1
            state[number] = T.int64(0)
            with T.serial(0, count) as rank:
                box = order[batch, label, rank]
                free = tirx.all(state[number] < limit[0], scores[batch, label, box] > threshold[0])
                with T.If(free), T.Then():
                    state[apart] = T.int64(1)
                    with T.serial(0, state[number]) as earlier:
                        other = kept[batch, label, earlier]
                        ratio = overlap_of(box_at(batch, box), box_at(batch, other))
                        with T.If(ratio > overlap[0]), T.Then():
                            state[apart] = T.int64(0)
                    with T.If(state[apart] == 1), T.Then():
                        kept[batch, label, state[number]] = box
                        state[number] = state[number] + 1
            taken[batch, label] = state[number]

    return body


def _in_one_list(
    bb: relax.BlockBuilder, kept: relax.Expr, taken: relax.Expr, sizes: tuple[Any, Any, Any]
) -> tuple[relax.Expr, relax.Expr]:
    """Rows (batch, class, box) of all classes, one after the other, and how many there are.

    Each row looks up by bisection whose it is: so they do not wait for one another.
    """
    batches, classes, most = sizes
    groups = batches * classes
    flat = bb.emit(relax.op.reshape(taken, relax.ShapeExpr([groups])))
    ends = cumulated(bb, flat, 0, {}, product=False)

    def rows_of(kept: Any, ends: Any, rows: Any) -> None:
        with nested(groups * most) as (row,):
            state = local_array(2, "int64")
            low, high = 0, 1
            with T.If(row < ends[groups - 1]), T.Then():
                state[low] = T.int64(0)
                state[high] = wide(groups - 1)
                # As many halvings as any number of groups needs.
                with T.serial(0, _HALVINGS), T.If(state[low] < state[high]), T.Then():
                    middle = (state[low] + state[high]) // 2
                    with T.If(ends[middle] <= row):
                        with T.Then():
                            state[low] = (state[low] + state[high]) // 2 + 1
                        with T.Else():
                            state[high] = (state[low] + state[high]) // 2
                group = state[low]
                before = tirx.if_then_else(group > 0, ends[group - 1], T.int64(0))
                batch, label = group // classes, group % classes
                rows[row, 0] = batch
                rows[row, 1] = label
                rows[row, 2] = tirx.Cast("int64", kept[batch, label, row - before])

    (rows,) = emit_loops(
        bb, "boxes_of_classes", [kept, ends], [((groups * most, 3), "int64")], rows_of
    )

    def last(ends: te.Tensor) -> te.Tensor:
        return te.compute((1,), lambda _: ends[ends.shape[0] - 1], name="boxes_in_all")

    return rows, bb.emit_te(last, ends, primfunc_name_hint="boxes_in_all")
