"""Scaler, Normalizer, Imputer, Binarizer and FeatureVectorizer of ai.onnx.ml."""

from typing import Any

import numpy as np
from tvm import relax, te, tirx

from tvm_ext.errors import FormError
from tvm_ext.hardware.tvm_compat import OnnxOpConverter
from tvm_ext.onnx_frontend.converters.arguments import sizes_of, text
from tvm_ext.onnx_frontend.converters.ml.labels import floats


class Scaler(OnnxOpConverter):
    """``(x - offset) * scale`` by column, float32."""

    @classmethod
    def _impl_v1(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        x = inputs[0]
        if str(x.ty.dtype) != "float32":
            x = bb.emit(relax.op.astype(x, "float32"))
        for name, combine in (("offset", relax.op.subtract), ("scale", relax.op.multiply)):
            values = np.array(attr.get(name, ()), np.float32)
            if values.size:
                _require_columns(x, values.size, name)
                x = bb.emit(combine(x, relax.const(values, "float32")))
        return x


class Normalizer(OnnxOpConverter):
    """Rows divided by their largest value (MAX), sum of magnitudes (L1) or length (L2).

    A row of zeros stays as it is, as in ONNX Runtime.
    """

    @classmethod
    def _impl_v1(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        x = inputs[0]
        if str(x.ty.dtype) != "float32":
            x = bb.emit(relax.op.astype(x, "float32"))
        sizes, norm = sizes_of(x), text(attr, "norm", "MAX")
        if len(sizes) not in (1, 2):
            raise FormError(f"its input has rank {len(sizes)}, expected rows and columns")
        if norm == "L2":
            squares = bb.emit(relax.op.sum(bb.emit(relax.op.multiply(x, x)), -1, keepdims=True))
            size = bb.emit(relax.op.sqrt(squares))
        elif norm == "L1":
            size = bb.emit(relax.op.sum(bb.emit(relax.op.abs(x)), -1, keepdims=True))
        elif norm == "MAX":
            # Signs included, as in the operator's description and in ONNX Runtime.
            size = bb.emit(relax.op.max(x, -1, keepdims=True))
        else:
            raise FormError(f"its norm '{norm}' is unknown")
        nothing = bb.emit(relax.op.equal(size, relax.const(0, "float32")))
        size = bb.emit(relax.op.where(nothing, relax.const(1, "float32"), size))
        return bb.emit(relax.op.divide(x, size))


class Imputer(OnnxOpConverter):
    """Puts a value, one for all or one a column, where a replaced value (or NaN) stands."""

    @classmethod
    def _impl_v1(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        x = inputs[0]
        dtype = str(x.ty.dtype)
        kind = "float" if dtype.startswith("float") else "int64"
        values = np.array(attr.get(f"imputed_value_{kind}s", ()), dtype)
        if not values.size:
            raise FormError(f"it has no values to put into an input of {dtype}")
        _require_columns(x, values.size, f"imputed_value_{kind}s")
        replaced = attr.get(f"replaced_value_{kind}", 0)
        if replaced != replaced:
            found = bb.emit(relax.op.isnan(x))
        else:
            found = bb.emit(relax.op.equal(x, relax.const(np.array(replaced, dtype), dtype)))
        return bb.emit(relax.op.where(found, relax.const(values, dtype), x))


class Binarizer(OnnxOpConverter):
    """1 above the threshold, else 0, in the type of the input."""

    @classmethod
    def _impl_v1(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        x = inputs[0]
        dtype = str(x.ty.dtype)
        compared = x if dtype.startswith("float") else bb.emit(relax.op.astype(x, "float32"))
        compared_type = str(compared.ty.dtype)
        threshold = relax.const(np.array(attr.get("threshold", 0.0), compared_type), compared_type)
        return bb.emit(relax.op.astype(bb.emit(relax.op.greater(compared, threshold)), dtype))


class FeatureVectorizer(OnnxOpConverter):
    """Columns of several inputs side by side, each cut or filled with zeros to its width."""

    @classmethod
    def _impl_v1(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        widths = attr.get("inputdimensions", ())
        if len(widths) != len(inputs):
            raise FormError(f"it has {len(inputs)} inputs and {len(widths)} inputdimensions")
        columns = []
        for x, width in zip(inputs, widths, strict=True):
            sizes = sizes_of(x)
            if len(sizes) == 1:
                x = bb.emit(relax.op.reshape(x, (sizes[0], 1)))
            x = bb.emit(relax.op.astype(floats(bb, x), "float32"))
            columns.append(x if sizes_of(x)[1] == width else bb.emit_te(_wide, x, int(width)))
        return bb.emit(relax.op.concat(columns, axis=1))


def _wide(x: te.Tensor, width: int) -> te.Tensor:
    rows, given = x.shape
    zero = tirx.const(0, x.dtype)
    return te.compute(
        (rows, width), lambda r, c: tirx.if_then_else(c < given, x(r, c), zero), name="columns"
    )


def _require_columns(x: relax.Expr, count: int, name: str) -> None:
    columns = sizes_of(x)[-1]
    if count > 1 and isinstance(columns, int) and count != columns:
        raise FormError(f"its {name} has {count} values, its input {columns} columns")
