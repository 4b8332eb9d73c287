"""Sizes of an operand that follow from the weights it meets.

A model may leave its channels open, or a user may. TVM's operators believe that they fit the
weights, and read beyond the end of one of them where they do not; here the run checks it.
"""

from collections.abc import Callable
from typing import Any

from tvm import relax

from tvm_ext.onnx_frontend.converters.arguments import Size, sizes_of
from tvm_ext.onnx_frontend.converters.checked_sizes import of_sizes

# The sizes of the first input by axis, from those of the weights, its rank and the attributes.
_Rule = Callable[[list[Size], int, dict], dict[int, Size]]


def _channels_of_groups(weights: list[Size], rank: int, attrs: dict) -> dict[int, Size]:
    return {1: weights[1] * int(attrs.get("group", 1))}


def _first_of_weights(weights: list[Size], rank: int, attrs: dict) -> dict[int, Size]:
    return {1: weights[0]}


def _inner_size(weights: list[Size], rank: int, attrs: dict) -> dict[int, Size]:
    return {0 if attrs.get("transA") else 1: weights[1 if attrs.get("transB") else 0]}


def _normalised_axes(weights: list[Size], rank: int, attrs: dict) -> dict[int, Size]:
    first = int(attrs.get("axis", -1)) % rank
    return dict(enumerate(weights, first)) if len(weights) == rank - first else {}


def _features(weights: list[Size], rank: int, attrs: dict) -> dict[int, Size]:
    return {2: weights[2]}


# For each operator, which input the weights are, and the rule.
_RULES: dict[str, tuple[int, _Rule]] = {
    "BatchNormalization": (1, _first_of_weights),
    "Conv": (1, _channels_of_groups),
    "ConvInteger": (1, _channels_of_groups),
    "ConvTranspose": (1, _first_of_weights),
    "GRU": (1, _features),
    "Gemm": (1, _inner_size),
    "InstanceNormalization": (1, _first_of_weights),
    "LSTM": (1, _features),
    "LayerNormalization": (1, _normalised_axes),
    "QLinearConv": (3, _channels_of_groups),
    "RNN": (1, _features),
}


def has_weights(key: str) -> bool:
    """Whether sizes of the operator's first input follow from its weights."""
    return key in _RULES


def with_weighted_sizes(bb: relax.BlockBuilder, key: str, inputs: Any, attrs: dict) -> Any:
    """The inputs, of the first the sizes that the weights ask for, checked in the run."""
    given = list(inputs)
    position, rule = _RULES[key]
    data, weights = given[0], given[position] if len(given) > position else None
    if not (_has_sizes(data) and _has_sizes(weights)):
        return inputs
    sizes = sizes_of(data)
    wanted = {
        axis: size
        for axis, size in rule(sizes_of(weights), len(sizes), attrs).items()
        if axis < len(sizes) and isinstance(size, int) and not isinstance(sizes[axis], int)
    }
    if not wanted:
        return inputs
    given[0] = of_sizes(bb, data, [wanted.get(axis, size) for axis, size in enumerate(sizes)])
    return type(inputs)(given)


def _has_sizes(value: Any) -> bool:
    ty = getattr(value, "ty", None)
    return isinstance(ty, relax.TensorType) and isinstance(ty.shape, relax.ShapeExpr)
