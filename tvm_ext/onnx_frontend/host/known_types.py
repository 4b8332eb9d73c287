"""Types of values that ONNX's inference leaves open: results of host operators and classifiers.

A compiled part must know the number of axes of what it reads.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import onnx
from onnx import TensorProto

from tvm_ext.onnx_frontend.operator_key import operator_key

_Sizes: TypeAlias = list[int | None]
# From the node and the numbers of axes that it reads to the sizes of a result; None for unknown.
_Rule: TypeAlias = Callable[[onnx.NodeProto, Sequence[int | None]], _Sizes | None]
# Of a result's elements; 0 for unknown.
_Kind: TypeAlias = int | Callable[[onnx.NodeProto], int]

# What one inference adds, the next one builds on: tokens, then rows of tokens, then counts.
_MOST_ROUNDS = 4


def with_known_types(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy with the types of all values, as far as they follow from the inputs."""
    found = model
    for _ in range(_MOST_ROUNDS):
        try:
            found = onnx.shape_inference.infer_shapes(found, data_prop=True)
        except (onnx.shape_inference.InferenceError, ValueError):
            break
        if not _add_ranks(found.graph):
            break
    return found


def _add_ranks(graph: onnx.GraphProto) -> bool:
    """Adds types to ``value_info``; whether there were any to add."""
    values = {v.name: v for v in (*graph.value_info, *graph.output, *graph.input)}
    ranks = {name: _rank(value.type) for name, value in values.items()}
    ranks |= {tensor.name: len(tensor.dims) for tensor in graph.initializer}
    changed = False
    for node in graph.node:
        for name, (kind, rule) in zip(
            node.output, _RULES.get(operator_key(node), ()), strict=False
        ):
            sizes = rule(node, [ranks.get(given) for given in node.input])
            if not name or sizes is None or ranks.get(name) is not None:
                continue
            value = values.get(name) or graph.value_info.add(name=name)
            known = value.type.tensor_type.elem_type or (kind(node) if callable(kind) else kind)
            value.type.CopyFrom(onnx.helper.make_tensor_type_proto(known, sizes))
            ranks[name], changed = len(sizes), True
    return changed


def _rank(type_: onnx.TypeProto) -> int | None:
    tensor = type_.tensor_type
    return len(tensor.shape.dim) if tensor.HasField("shape") else None


def _exactly(rank: int) -> _Rule:
    return lambda node, given: [None] * rank


def _more(axes: int) -> _Rule:
    return lambda node, given: None if given[0] is None else [None] * (given[0] + axes)


def _at_least_two(node: onnx.NodeProto, given: Sequence[int | None]) -> _Sizes | None:
    return None if given[0] is None else [None] * max(given[0], 2)


def _row_of_words(node: onnx.NodeProto, given: Sequence[int | None]) -> _Sizes:
    return [1, max((len(a.strings) + len(a.ints) for a in node.attribute), default=0)]


def _hash_type(node: onnx.NodeProto) -> int:
    signed = any(a.name == "positive" and not a.i for a in node.attribute)
    return TensorProto.INT32 if signed else TensorProto.UINT32


_CLASSIFIER = ((TensorProto.INT64, _exactly(1)), (TensorProto.FLOAT, _exactly(2)))
_REGRESSOR = ((TensorProto.FLOAT, _exactly(2)),)
_RULES: dict[str, tuple[tuple[_Kind, _Rule], ...]] = {
    "Flatten": ((0, _exactly(2)),),
    "StringSplit": ((TensorProto.STRING, _more(1)), (TensorProto.INT64, _more(0))),
    "TfIdfVectorizer": ((TensorProto.FLOAT, _more(0)),),
    "ai.onnx.ml::ArrayFeatureExtractor": ((0, _at_least_two),),
    "ai.onnx.ml::CastMap": ((TensorProto.FLOAT, _exactly(2)),),
    "ai.onnx.ml::CategoryMapper": ((0, _more(0)),),
    "ai.onnx.ml::DictVectorizer": ((0, _row_of_words),),
    "ai.onnx.ml::FeatureVectorizer": ((TensorProto.FLOAT, _exactly(2)),),
    "ai.onnx.ml::LabelEncoder": ((0, _more(0)),),
    "ai.onnx.ml::LinearClassifier": _CLASSIFIER,
    "ai.onnx.ml::LinearRegressor": _REGRESSOR,
    "ai.onnx.ml::OneHotEncoder": ((TensorProto.FLOAT, _more(1)),),
    "ai.onnx.ml::SVMClassifier": _CLASSIFIER,
    "ai.onnx.ml::SVMRegressor": _REGRESSOR,
    "ai.onnx.ml::TreeEnsembleClassifier": _CLASSIFIER,
    "ai.onnx.ml::TreeEnsembleRegressor": _REGRESSOR,
    "com.microsoft::MurmurHash3": ((_hash_type, _more(0)),),
    "com.microsoft::Tokenizer": ((TensorProto.STRING, _more(1)),),
}
