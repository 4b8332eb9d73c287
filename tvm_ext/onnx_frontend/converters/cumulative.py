"""CumSum and CumProd along any axis, exclusive and reverse.

TVM's CumSum takes no axis that is computed in the run; it has no CumProd.
"""

from typing import Any

from tvm import relax, te, tirx
from tvm.script.ir_builder import tirx as T

from tvm_ext.hardware.tvm_compat import OnnxOpConverter
from tvm_ext.onnx_frontend.converters.arguments import sizes_of
from tvm_ext.onnx_frontend.converters.loops import emit_loops, local_array, nested
from tvm_ext.onnx_frontend.converters.runtime_sizes import constant_integers, integer_tensor


def _cumulated(
    bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any, product: bool
) -> relax.Expr:
    data, rank = inputs[0], len(sizes_of(inputs[0]))
    axes = constant_integers(inputs[1], params)
    if axes is not None:
        return cumulated(bb, data, int(axes[0]) % rank, attr, product)
    if rank == 1:
        return cumulated(bb, data, 0, attr, product)
    chosen = integer_tensor(bb, inputs[1])
    # An axis of the run: the result for each one, of which the run's is taken.
    every = [cumulated(bb, data, axis, attr, product) for axis in range(rank)]

    def pick(chosen: te.Tensor, *every: te.Tensor) -> te.Tensor:
        def read(*index: tirx.Var) -> tirx.Expr:
            value = every[-1](*index)
            for axis in range(rank - 1):
                here = tirx.any(chosen[0] == axis, chosen[0] == axis - rank)
                value = tirx.if_then_else(here, every[axis](*index), value)
            return value

        return te.compute(every[0].shape, read, name="along_axis")

    return bb.emit_te(pick, chosen, *every, primfunc_name_hint="along_axis")


def cumulated(
    bb: relax.BlockBuilder, data: relax.Expr, axis: int, attr: dict, product: bool
) -> relax.Expr:
    """Running sums or products along an axis; ``attr``: as of CumSum."""
    sizes, dtype = sizes_of(data), str(data.ty.dtype)
    exclusive, reverse = bool(attr.get("exclusive", 0)), bool(attr.get("reverse", 0))
    size, before, behind = sizes[axis], sizes[:axis], sizes[axis + 1 :]
    summed = dtype if dtype not in ("float16", "bfloat16") else "float32"

    def body(read: Any, written: Any) -> None:
        with nested(*before, *behind) as places:
            outer, inner = places[: len(before)], places[len(before) :]
            total = local_array(1, summed)
            total[0] = tirx.const(1 if product else 0, summed)
            with T.serial(0, size) as step:
                place = size - 1 - step if reverse else step
                index = (*outer, place, *inner)
                if exclusive:
                    written[index] = total[0].astype(dtype)
                value = read[index].astype(summed)
                total[0] = total[0] * value if product else total[0] + value
                if not exclusive:
                    written[index] = total[0].astype(dtype)

    name = "cumulated_product" if product else "cumulated_sum"
    return emit_loops(bb, name, [data], [(sizes, dtype)], body)[0]


class CumSum(OnnxOpConverter):
    """Running sums."""

    @classmethod
    def _impl_v11(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        return _cumulated(bb, inputs, attr, params, product=False)


class CumProd(OnnxOpConverter):
    """Running products."""

    @classmethod
    def _impl_v26(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        return _cumulated(bb, inputs, attr, params, product=True)
