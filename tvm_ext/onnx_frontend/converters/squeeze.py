"""Squeeze of axes whose size only the run knows.

TVM's converter refuses them. Such an axis is often 1 in every run, or squeezed in a branch of If
that is only taken where it is; the run checks that it is.
"""

from typing import Any

import tvm
from tvm import relax

from tvm_ext.hardware.tvm_compat import OnnxOpConverter, onnx_converter_map
from tvm_ext.onnx_frontend.converters.arguments import sizes_of
from tvm_ext.onnx_frontend.converters.checked_sizes import of_sizes
from tvm_ext.onnx_frontend.converters.runtime_sizes import constant_integers

_TvmSqueeze = onnx_converter_map()["Squeeze"]


class Squeeze(OnnxOpConverter):
    """TVM's converter, behind a check of the sizes that it would refuse."""

    @classmethod
    def _impl_v1(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        data = _checked(bb, inputs[0], attr.get("axes"))
        return _from_front(_TvmSqueeze._impl_v1(bb, type(inputs)([data]), attr, params))

    @classmethod
    def _impl_v13(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        known = inputs[1] is None or constant_integers(inputs[1], params) is not None
        data = inputs[0]
        if known:
            axes = None if inputs[1] is None else constant_integers(inputs[1], params)
            data = _checked(bb, data, axes)
        result = _TvmSqueeze._impl_v13(bb, type(inputs)([data, inputs[1]]), attr, params)
        return _from_front(result)


def _from_front(result: Any) -> Any:
    """A squeeze with its axes counted from the front.

    TVM 0.27's ConvertLayout writes outside of a string for the others.
    """
    called = result.op if isinstance(result, relax.Call) else None
    if called != tvm.ir.Op.get("relax.squeeze") or result.attrs.axis is None:
        return result
    data = result.args[0]
    return relax.op.squeeze(data, [int(axis) % data.ty.ndim for axis in result.attrs.axis])


def _checked(bb: relax.BlockBuilder, data: Any, axes: Any) -> Any:
    """The tensor with size 1 on the axes; shapes and single sizes as they are."""
    if not isinstance(data, relax.Var) or not isinstance(data.ty, relax.TensorType):
        return data
    sizes = sizes_of(data)
    if axes is None:
        return data
    rank = len(sizes)
    squeezed = {int(axis) % rank for axis in axes}
    wanted = [
        1 if axis in squeezed and not isinstance(size, int) else size
        for axis, size in enumerate(sizes)
    ]
    return of_sizes(bb, data, wanted)
