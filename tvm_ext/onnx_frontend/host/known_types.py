"""Types of values that ONNX's inference leaves open: results of host operators and classifiers.

A compiled part must know the number of axes of what it reads.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import onnx
from onnx import TensorProto

from tvm_ext.onnx_frontend.operator_key import operator_key
from tvm_ext.onnx_frontend.scopes import subgraphs_of

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
        if not _add_ranks(found.graph) | _add_piece_sizes(found.graph):
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


def _add_piece_sizes(graph: onnx.GraphProto) -> bool:
    """Notes how long the pieces of sequences are that are split evenly; whether any was new.

    Exporters write a repetition of rows as a loop over pieces of one row each, and make shapes of
    numbers that are pieces of a vector.
    """
    values = {value.name: value for value in graph.value_info}
    equal = _equal_numbers(graph)
    changed = any([_add_piece_sizes(body) for node in graph.node for body in subgraphs_of(node)])
    for node in graph.node:
        if operator_key(node) != "SplitToSequence" or node.output[0] not in values:
            continue
        length = equal.get(node.input[1]) if len(node.input) > 1 else None
        pieces = values[node.output[0]].type.sequence_type.elem_type.tensor_type
        axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
        if length is None or not -len(pieces.shape.dim) <= axis < len(pieces.shape.dim):
            continue
        if not pieces.shape.dim[axis].HasField("dim_value"):
            pieces.shape.dim[axis].dim_value = length
            changed = True
    return changed


def _equal_numbers(graph: onnx.GraphProto) -> dict[str, int]:
    """The number in each vector of one number, repeated as often as the run says or as stored."""
    stored = {tensor.name: tensor for tensor in graph.initializer if len(tensor.dims) == 1}
    for node in graph.node:
        attributes = {a.name: a.t for a in node.attribute if a.name == "value"}
        if "value" in attributes and node.op_type in ("Constant", "ConstantOfShape"):
            stored[node.output[0]] = attributes["value"]
    numbers = {
        name: onnx.numpy_helper.to_array(tensor).ravel()
        for name, tensor in stored.items()
        if len(tensor.dims) == 1 and tensor.data_type in (TensorProto.INT32, TensorProto.INT64)
    }
    return {
        name: int(found[0])
        for name, found in numbers.items()
        if found.size and (found == found[0]).all()
    }


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
