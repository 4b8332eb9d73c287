"""ReverseSequence and TensorScatter: rows moved along one axis, by a number for each batch."""

from typing import Any

from tvm import relax, te, tirx

from tvm_ext.errors import FormError
from tvm_ext.hardware.tvm_compat import OnnxOpConverter
from tvm_ext.onnx_frontend.converters.arguments import sizes_of, text
from tvm_ext.onnx_frontend.converters.runtime_sizes import wide


class ReverseSequence(OnnxOpConverter):
    """The first ``sequence_lens[b]`` elements of each batch in reverse, the rest as they are."""

    @classmethod
    def _impl_v10(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        time, batch = attr.get("time_axis", 0), attr.get("batch_axis", 1)
        if {time, batch} != {0, 1}:
            raise FormError(f"its axes are {time} and {batch}, expected 0 and 1")

        def kernel(data: te.Tensor, lengths: te.Tensor) -> te.Tensor:
            def read(*index: tirx.Var) -> tirx.Expr:
                place, length = wide(index[time]), wide(lengths[index[batch]])
                length = tirx.min(length, wide(data.shape[time]))
                turned = tirx.if_then_else(place < length, length - 1 - place, place)
                return data(*index[:time], turned, *index[time + 1 :])

            return te.compute(data.shape, read, name="reverse_sequence")

        return bb.emit_te(kernel, inputs[0], inputs[1], primfunc_name_hint="reverse_sequence")


class TensorScatter(OnnxOpConverter):
    """A cache with new rows written from ``write_indices[b]`` on, around its end if circular."""

    @classmethod
    def _impl_v24(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        cache, update = inputs[0], inputs[1]
        axis = attr.get("axis", -2) % len(sizes_of(cache))
        mode = text(attr, "mode", "linear")
        if axis == 0 or mode not in ("linear", "circular"):
            raise FormError(f"its axis is {axis} and its mode {mode}")
        starts = [inputs[2]] if inputs[2] is not None else []

        def kernel(cache: te.Tensor, update: te.Tensor, *starts: te.Tensor) -> te.Tensor:
            def read(*index: tirx.Var) -> tirx.Expr:
                start = wide(starts[0][index[0]]) if starts else wide(0)
                place = wide(index[axis]) - start
                if mode == "circular":
                    place = tirx.floormod(place, wide(cache.shape[axis]))
                new = tirx.all(place >= 0, place < update.shape[axis])
                written = update(*index[:axis], place, *index[axis + 1 :])
                return tirx.if_then_else(new, written, cache(*index))

            return te.compute(cache.shape, read, name="tensor_scatter")

        return bb.emit_te(kernel, cache, update, *starts, primfunc_name_hint="tensor_scatter")
