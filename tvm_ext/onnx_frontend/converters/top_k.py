"""TopK with a k of the run, of every type of numbers.

TVM's converter takes a constant k and sorted results only, and its kernel no unsigned integers.
"""

from typing import Any

import numpy as np
from tvm import relax, te, tirx

from tvm_ext.errors import FormError
from tvm_ext.hardware.tvm_compat import OnnxOpConverter
from tvm_ext.onnx_frontend.converters.arguments import size_argument, sizes_of
from tvm_ext.onnx_frontend.converters.traits import takes_sizes

# What the sorting function of the runtime takes; others are turned into one of these.
_SORTED = ("float32", "float64", "int32", "int64")
_WIDER = {
    **dict.fromkeys(("int8", "int16", "uint8", "uint16", "bool"), "int32"),
    **dict.fromkeys(("float16", "bfloat16"), "float32"),
    "uint32": "int64",
}


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
    if isinstance(k, int) and k > 0 and str(data.ty.dtype) in _SORTED:
        return relax.op.topk(data, k, axis, ret_type="both", largest=largest, dtype="int64")
    keys = sortable(bb, data)
    order = bb.emit(relax.op.argsort(keys, axis=axis, descending=largest, dtype="int64"))

    def kernel(data: te.Tensor, order: te.Tensor, k: Any) -> list[te.Tensor]:
        shape = [k if place == axis else size for place, size in enumerate(data.shape)]

        def value(*index: tirx.Var) -> tirx.Expr:
            return data(*index[:axis], order(*index), *index[axis + 1 :])

        places = te.compute(shape, lambda *index: order(*index), name="places")
        return [te.compute(shape, value, name="values"), places]

    both = bb.emit_te(kernel, data, order, k, primfunc_name_hint="top_k")
    return relax.Tuple([bb.emit(relax.TupleGetItem(both, place)) for place in range(2)])


def sortable(bb: relax.BlockBuilder, data: relax.Expr) -> relax.Expr:
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
