"""TopK with a k of the run, of every type of numbers.

TVM's converter takes a constant k and sorted results only. On CPUs TVM sorts whole rows, one after
the other, with a function of its runtime; here a heap keeps the best k while a row is read, and
rows of which all is asked for are sorted in the loops of a kernel.
"""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import tvm_ffi
from tvm import relax, te, tirx
from tvm.script.ir_builder import tirx as T

from tvm_ext.errors import FormError
from tvm_ext.hardware.cpu.description import current_cpu
from tvm_ext.onnx_frontend.converters.arguments import size_argument, sizes_of, takes_sizes
from tvm_ext.onnx_frontend.converters.heap import Heap
from tvm_ext.onnx_frontend.converters.loops import emit_loops, local_array, on_threads
from tvm_ext.onnx_frontend.converters.merge_sort import MergeSort
from tvm_ext.onnx_frontend.converters.runtime_sizes import wide
from tvm_ext.onnx_frontend.tvm_compat import OnnxOpConverter

# What the sorting function of the runtime takes; others are turned into one of these.
_SORTED = ("float32", "float64", "int32", "int64")
_WIDER = {
    **dict.fromkeys(("int8", "int16", "uint8", "uint16", "bool"), "int32"),
    **dict.fromkeys(("float16", "bfloat16"), "float32"),
    "uint32": "int64",
}

# On a kernel of the largest or smallest elements: its form, as JSON.
TOP = "tvm_ext.top_k"

# Elements that are compared at a time with the worst of those kept: mostly, none is better.
_BLOCK = 64


@takes_sizes(1)
class TopK(OnnxOpConverter):
    """Values and their places along an axis; of equal ones the first comes first."""

    @classmethod
    def _impl_v1(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        return _top(bb, inputs[0], int(attr["k"]), attr)

    @classmethod
    def _impl_v10(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        return _top(bb, inputs[0], size_argument(bb, inputs[1], params, "k"), attr)


def _top(bb: relax.BlockBuilder, data: relax.Expr, k: Any, attr: dict) -> relax.Expr:
    sizes, largest = sizes_of(data), bool(attr.get("largest", 1))
    axis = attr.get("axis", -1) % len(sizes)
    if isinstance(k, int) and isinstance(sizes[axis], int) and not 0 <= k <= sizes[axis]:
        raise FormError(f"its k is {k}, and the axis has {sizes[axis]} elements")
    if current_cpu() is not None and not (isinstance(k, int) and k == 0):
        is_all = tvm_ffi.structural_equal(wide(k), wide(sizes[axis]))
        select = _by_merging if is_all else _by_heaps
        return relax.Tuple(select(bb, data, k, axis, largest)[:2])
    if isinstance(k, int) and k > 0 and str(data.ty.dtype) in _SORTED:
        return relax.op.topk(data, k, axis, ret_type="both", largest=largest, dtype="int64")
    return _of_sorted(bb, data, k, axis, largest)


def _by_heaps(
    bb: relax.BlockBuilder, data: relax.Expr, k: Any, axis: int, largest: bool
) -> list[relax.Expr]:
    """Reads each row once. The worst of the best k so far is the root of a heap."""
    sizes, dtype = sizes_of(data), str(data.ty.dtype)
    size, before, behind = sizes[axis], sizes[:axis], sizes[axis + 1 :]
    below = _order(largest)

    def worse(one: Any, other: Any) -> Any:
        (key, place), (other_key, other_place) = one, other
        is_later = tirx.all(_equal(key, other_key), place > other_place)
        return tirx.any(below(key, other_key), is_later)

    def body(read: Any, values: Any, places: Any) -> None:
        with on_threads(*before, *behind) as outer:

            def at(number: Any) -> tuple[Any, ...]:
                return (*outer[: len(before)], number, *outer[len(before) :])

            heap = Heap.in_buffers(values, places, at, worse)
            found = local_array(1, "int32")
            with T.serial(0, k) as number:
                values[at(number)] = read[at(number)]
                places[at(number)] = wide(number)
            kept = wide(k)
            heap.order(kept)

            def is_no_better(place: Any) -> Any:
                """1 or 0; of NaN this comparison alone cannot tell."""
                worst, key = _comparable(heap.root[0]), _comparable(read[at(place)])
                is_kept_out = worst >= key if largest else worst <= key
                return tirx.Select(is_kept_out, T.int32(1), T.int32(0))

            def look_at(place: Any) -> None:
                worst, _ = heap.root
                # Of equal ones the earlier one stays.
                is_below = below(worst, read[at(place)])
                with T.If(is_no_better(place) == 0), T.Then(), T.If(is_below), T.Then():
                    heap.replace_root((read[at(place)], place), kept)

            # Of none there is no worst one.
            left = tirx.if_then_else(kept > 0, wide(size - k), T.int64(0))
            blocks = T.int64(0) if behind else left // _BLOCK
            with T.serial(0, blocks) as block:
                start = kept + block * _BLOCK
                found[0] = T.int32(0)
                with T.serial(0, _BLOCK) as step:
                    found[0] = found[0] + is_no_better(start + step)
                with T.If(found[0] < _BLOCK), T.Then(), T.serial(0, _BLOCK) as step:
                    look_at(start + step)
            with T.serial(0, left - blocks * _BLOCK) as step:
                look_at(kept + blocks * _BLOCK + step)
            # The worst of what is left goes behind it.
            with T.serial(0, k) as step:
                heap.move_root(kept - 1 - wide(step))

    shape = [*before, k, *behind]
    form = {TOP: json.dumps({"axis": axis})}
    outputs = [(shape, dtype), (shape, "int64")]
    return emit_loops(bb, "top_k", [data], outputs, body, primfunc_attrs=form)


def _by_merging(
    bb: relax.BlockBuilder, data: relax.Expr, k: Any, axis: int, largest: bool
) -> list[relax.Expr]:
    """Sorts each row, between the results and two buffers of their size."""
    sizes, below = sizes_of(data), _order(largest)
    before, behind = sizes[:axis], sizes[axis + 1 :]

    def body(read: Any, values: Any, places: Any, *others: Any) -> None:
        with on_threads(*before, *behind) as outer:

            def at(number: Any) -> tuple[Any, ...]:
                return (*outer[: len(before)], number, *outer[len(before) :])

            order = MergeSort(sizes[axis], at, lambda key, other: below(other, key))
            order.sort(read, (values, places), others)

    form = {TOP: json.dumps({"axis": axis})}
    outputs = [(sizes, str(data.ty.dtype)), (sizes, "int64")] * 2
    return emit_loops(bb, "sort", [data], outputs, body, primfunc_attrs=form)


def _order(largest: bool) -> Callable[[Any, Any], Any]:
    """Whether a key comes behind another: NaN is above all numbers, as in ONNX Runtime."""

    def below(key: Any, other: Any) -> Any:
        less, more = map(_comparable, (key, other) if largest else (other, key))
        return tirx.any(less < more, tirx.all(_is_nan(more), tirx.Not(_is_nan(less))))

    return below


def _equal(key: Any, other: Any) -> Any:
    key, other = _comparable(key), _comparable(other)
    return tirx.any(key == other, tirx.all(_is_nan(key), _is_nan(other)))


def _is_nan(key: Any) -> Any:
    return tirx.isnan(key) if "float" in str(key.ty) else tirx.const(False, "bool")


def _comparable(key: Any) -> Any:
    """Numbers of 16 bits are compared as those that hold them."""
    return tirx.Cast("float32", key) if str(key.ty) in ("float16", "bfloat16") else key


def _of_sorted(
    bb: relax.BlockBuilder, data: relax.Expr, k: Any, axis: int, largest: bool
) -> relax.Expr:
    keys = _sortable(bb, data)
    order = bb.emit(relax.op.argsort(keys, axis=axis, descending=largest, dtype="int64"))

    def kernel(data: te.Tensor, order: te.Tensor, k: Any) -> list[te.Tensor]:
        shape = [k if place == axis else size for place, size in enumerate(data.shape)]

        def value(*index: tirx.Var) -> tirx.Expr:
            return data(*index[:axis], order(*index), *index[axis + 1 :])

        places = te.compute(shape, lambda *index: order(*index), name="places")
        return [te.compute(shape, value, name="values"), places]

    both = bb.emit_te(kernel, data, order, k, primfunc_name_hint="top_k")
    return relax.Tuple([bb.emit(relax.TupleGetItem(both, place)) for place in range(2)])


def _sortable(bb: relax.BlockBuilder, data: relax.Expr) -> relax.Expr:
    """Numbers in the same order, of a type that the runtime can sort."""
    dtype = str(data.ty.dtype)
    if dtype in _SORTED:
        return data
    if dtype == "uint64":
        # The upper half wraps around to negative numbers: turning the top bit puts it on top.
        signed = bb.emit(relax.op.astype(data, "int64"))
        top = relax.const(np.iinfo(np.int64).min, "int64")
        return bb.emit(relax.op.bitwise_xor(signed, top))
    if dtype not in _WIDER:
        raise FormError(f"its elements are {dtype}, which have no order")
    return bb.emit(relax.op.astype(data, _WIDER[dtype]))
