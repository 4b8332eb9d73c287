"""Products of tokens with the weights of the experts that were chosen for them.

The operator is of a domain of our own, which ``microsoft/mixture_of_experts.py`` writes in place
of MoE and QMoE. TVM has no operator that reads a matrix by an index while it multiplies.
"""

from typing import Any

from tvm import relax, te, tirx

from tvm_ext.errors import FormError
from tvm_ext.onnx_frontend.converters.arguments import sizes_of
from tvm_ext.onnx_frontend.onnx_graph import INTERNAL
from tvm_ext.onnx_frontend.tvm_compat import OnnxOpConverter


class ExpertMatMul(OnnxOpConverter):
    """``y[t, j] = W[places[t, j]] @ x[t]`` or ``@ x[t, j]``, in float32.

    With ``bits`` the weights are packed, the first one in the lowest bits, and have scales, and
    perhaps zero points, for each row or for blocks of it.
    """

    @classmethod
    def _impl_v1(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        rows, places, weights, *scales = (one for one in inputs if one is not None)
        bits = int(attr.get("bits", 0))
        parts = 8 // bits if bits else 1
        _check(rows, weights, parts)
        if not bits:
            return bb.emit_te(_plain, rows, places, weights, primfunc_name_hint="experts")
        # What is packed in one byte is read at once, from as many contiguous rows.
        sizes = sizes_of(rows)
        apart = bb.emit(relax.op.reshape(rows, [*sizes[:-1], sizes[-1] // parts, parts]))
        axes = [*range(len(sizes) - 1), len(sizes), len(sizes) - 1]
        apart = bb.emit(relax.op.permute_dims(apart, axes))
        scales = [_with_blocks(bb, one) for one in scales]
        # Of the bytes of a row, of which the last block may have fewer.
        block = int(attr.get("block_size", 0)) // parts or int(sizes_of(weights)[-1])
        _check_blocks(scales[0], weights, block)
        return bb.emit_te(
            _packed, apart, places, weights, scales, (bits, block), primfunc_name_hint="experts"
        )


def _check(rows: relax.Expr, weights: relax.Expr, parts: int) -> None:
    given, wanted = sizes_of(rows)[-1], sizes_of(weights)[-1]
    if isinstance(given, int) and isinstance(wanted, int) and given != wanted * parts:
        raise FormError(
            f"its experts multiply {wanted * parts} elements, expected {given}, as a token has"
        )


def _check_blocks(scales: relax.Expr, weights: relax.Expr, block: int) -> None:
    found, wanted = sizes_of(scales)[-1], -(-int(sizes_of(weights)[-1]) // block)
    if found != wanted:
        raise FormError(f"its rows have {found} scales, expected {wanted}, one for each block")


def _with_blocks(bb: relax.BlockBuilder, scales: relax.Expr) -> relax.Expr:
    sizes = sizes_of(scales)
    return scales if len(sizes) == 3 else bb.emit(relax.op.reshape(scales, [*sizes, 1]))


def _plain(rows: te.Tensor, places: te.Tensor, weights: te.Tensor) -> te.Tensor:
    place = te.reduce_axis((0, weights.shape[2]), "place")

    def product(token: tirx.Var, choice: tirx.Var, output: tirx.Var) -> tirx.Expr:
        own = (token, choice) if len(rows.shape) == 3 else (token,)
        weight = weights[places[token, choice], output, place].astype("float32")
        return te.sum(rows(*own, place) * weight, axis=place)

    return te.compute((*places.shape, weights.shape[1]), product, name="experts")


def _packed(
    rows: te.Tensor,
    places: te.Tensor,
    weights: te.Tensor,
    scales: list[te.Tensor],
    form: tuple[int, int],
) -> te.Tensor:
    """``rows`` have an axis for the numbers of a byte before the last one.

    ``form``: bits of a weight, and bytes of a row that have one scale.
    """
    bits, block = form
    place = te.reduce_axis((0, weights.shape[2]), "place")

    def product(token: tirx.Var, choice: tirx.Var, output: tirx.Var) -> tirx.Expr:
        own = (token, choice) if len(rows.shape) == 4 else (token,)
        expert = places[token, choice]
        scale, *zeros = (
            one[expert, output, tirx.floordiv(place, block)].astype("float32") for one in scales
        )
        zero = zeros[0] if zeros else tirx.const(float(1 << (bits - 1)), "float32")
        byte, mask = weights[expert, output, place], tirx.const((1 << bits) - 1, "uint8")
        total: Any = tirx.const(0.0, "float32")
        for part in range(8 // bits):
            number = (byte >> tirx.const(part * bits, "uint8")) & mask
            total = total + (number.astype("float32") - zero) * rows(*own, part, place)
        return te.sum(total * scale, axis=place)

    return te.compute((*places.shape, weights.shape[1]), product, name="experts")


EXPERT_CONVERTERS: dict[str, Any] = {f"{INTERNAL}::ExpertMatMul": ExpertMatMul}
