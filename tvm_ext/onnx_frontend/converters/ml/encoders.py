"""LabelEncoder, OneHotEncoder and ArrayFeatureExtractor of ai.onnx.ml, for numbers."""

from typing import Any

import numpy as np
from onnx import numpy_helper
from tvm import relax

from tvm_ext.errors import FormError
from tvm_ext.hardware.tvm_compat import OnnxOpConverter
from tvm_ext.onnx_frontend.converters.arguments import sizes_of


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
