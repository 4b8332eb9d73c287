"""Preprocessing of ai.onnx.ml: scalers, Imputer, Binarizer, FeatureVectorizer, and encoders."""

from typing import Any

import numpy as np
from onnx import numpy_helper
from tvm import relax, te, tirx

from tvm_ext.errors import FormError
from tvm_ext.onnx_frontend.converters.arguments import sizes_of, text
from tvm_ext.onnx_frontend.converters.ml.scores_and_labels import floats
from tvm_ext.onnx_frontend.tvm_compat import OnnxOpConverter


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
        raise FormError(f"its {name} has {count} values, and its input has {columns} columns")


# LabelEncoder, OneHotEncoder and ArrayFeatureExtractor of ai.onnx.ml, for numbers.


class LabelEncoder(OnnxOpConverter):
    """The value of the key that an element equals, or the default.

    The keys are compared with every element at once, as for one-hot; the first of equal keys
    counts, as in ONNX Runtime. From version 4 on NaN as a key is found.
    """

    @classmethod
    def _impl_v1(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        return cls._looked_up(bb, inputs[0], attr, nan_is_found=False)

    @classmethod
    def _impl_v4(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        return cls._looked_up(bb, inputs[0], attr, nan_is_found=True)

    @classmethod
    def _looked_up(
        cls, bb: relax.BlockBuilder, x: relax.Expr, attr: dict, nan_is_found: bool
    ) -> relax.Expr:
        keys, values = _table(attr, "keys"), _table(attr, "values")
        if len(keys) != len(values) or not len(keys):
            raise FormError(f"it has {len(keys)} keys and {len(values)} values")
        default = _default(attr, values.dtype)
        keys = keys.astype(str(x.ty.dtype))
        expanded = bb.emit(relax.op.expand_dims(x, -1))
        equal = relax.op.equal(expanded, relax.const(keys, str(keys.dtype)))
        if nan_is_found and keys.dtype.kind == "f" and np.isnan(keys).any():
            missing = bb.emit(relax.op.isnan(expanded))
            both = relax.op.logical_and(missing, relax.const(np.isnan(keys), "bool"))
            equal = relax.op.logical_or(bb.emit(equal), bb.emit(both))
        hits = bb.emit(relax.op.astype(bb.emit(equal), "int32"))
        place = bb.emit(relax.op.argmax(hits, axis=-1))
        found = bb.emit(relax.op.max(hits, axis=-1))
        value = bb.emit(
            relax.op.take(relax.const(values, str(values.dtype)), place, axis=0, mode="clip")
        )
        known = bb.emit(relax.op.astype(found, "bool"))
        return bb.emit(relax.op.where(known, value, relax.const(default, str(default.dtype))))


def _table(attr: dict, name: str) -> np.ndarray:
    tensor = attr.get(f"{name}_tensor")
    if tensor is not None:
        return np.asarray(numpy_helper.to_array(tensor).reshape(-1))
    if attr.get(f"{name}_floats"):
        return np.array(attr[f"{name}_floats"], np.float32)
    return np.array(attr.get(f"{name}_int64s", ()), np.int64)


def _default(attr: dict, dtype: np.dtype) -> np.ndarray:
    tensor = attr.get("default_tensor")
    if tensor is not None:
        return numpy_helper.to_array(tensor).reshape(()).astype(dtype)
    name, otherwise = ("default_float", -0.0) if dtype.kind == "f" else ("default_int64", -1)
    return np.array(attr.get(name, otherwise), dtype)


class OneHotEncoder(OnnxOpConverter):
    """A new last axis with 1 at the category of an element, float32.

    An element of no category gives zeros. ``zeros=0``, with which such an element is an error, is
    the host's.
    """

    @classmethod
    def _impl_v1(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        categories = np.array(attr.get("cats_int64s", ()), np.int64)
        if not categories.size:
            raise FormError("it has no categories")
        x = inputs[0]
        if str(x.ty.dtype) != "int64":
            x = bb.emit(relax.op.astype(x, "int64"))
        expanded = bb.emit(relax.op.expand_dims(x, -1))
        hot = bb.emit(relax.op.equal(expanded, relax.const(categories, "int64")))
        return bb.emit(relax.op.astype(hot, "float32"))


class ArrayFeatureExtractor(OnnxOpConverter):
    """Chosen columns of the last axis; a vector counts as one row."""

    @classmethod
    def _impl_v1(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        x, places = inputs[0], inputs[1]
        sizes, count = sizes_of(x), 1
        for size in sizes_of(places):
            count = count * size
        if len(sizes) == 1:
            x = bb.emit(relax.op.reshape(x, (1, sizes[0])))
        places = bb.emit(relax.op.reshape(places, (count,)))
        return bb.emit(relax.op.take(x, places, axis=-1, mode="clip"))
