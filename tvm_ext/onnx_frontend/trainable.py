"""A model to train: its weights become inputs of the program, and go back into its file afterwards.

A weight that is an input is no constant, so that nothing is folded into it: no batch normalisation
into a convolution, no scale into a product. What is not trained stays a constant, and is folded.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TypeAlias

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tvm_ext.configs.errors import nearest_hint
from tvm_ext.errors import InputError, ModelError
from tvm_ext.onnx_frontend import ImportedModel, import_prepared, model_name, prepare_model
from tvm_ext.onnx_frontend.converters.random import ITERATIONS
from tvm_ext.onnx_frontend.load import load_with_weights
from tvm_ext.onnx_frontend.onnx_graph import (
    DEFAULT_DOMAINS,
    names_read,
    nodes_within,
    opset_of,
    subgraphs_of,
)
from tvm_ext.onnx_frontend.opset_conversion import convert_opset
from tvm_ext.onnx_frontend.unroll_recurrent import unroll_recurrent

_TRAINED_TYPES = (TensorProto.FLOAT, TensorProto.DOUBLE)

TrainableSource: TypeAlias = "str | Path | onnx.ModelProto"

# Inputs that hold what an operator learns, whatever their size, by the operator's name.
_LEARNED = {
    "BatchNormalization": (1, 2),
    "Conv": (1, 2),
    "ConvTranspose": (1, 2),
    "GRU": (1, 2, 3),
    "Gemm": (0, 1, 2),
    "GroupNormalization": (1, 2),
    "InstanceNormalization": (1, 2),
    "LSTM": (1, 2, 3, 7),
    "LayerNormalization": (1, 2),
    "MatMul": (0, 1),
    "PRelu": (1,),
    "RMSNormalization": (1,),
    "RNN": (1, 2, 3),
    "SimplifiedLayerNormalization": (1,),
}
# Inputs that are no weights: statistics, masks, sizes and limits.
_NOT_LEARNED = {
    "BatchNormalization": (3, 4),
    "Clip": (1, 2),
    "Dropout": (1,),
    "GRU": (5,),
    "LSTM": (5, 6),
    "Pad": (2,),
    "Pow": (1,),
    "RNN": (5,),
    "Resize": (1, 2),
    "Where": (0, 1, 2),
}
# Operators behind which an input plays the part that it would play itself.
_VIEWS = ("Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
# Where the running mean and variance are.
_STATISTICS = (3, 4)
# From this one on Dropout has an input that says whether it draws a mask.
_DROPOUT_WITH_MODE = 12
# What follows the name of a running statistic in the name of the output with its next value.
_NEXT = "::next"


@dataclass(frozen=True)
class TrainableModel:
    """An imported model whose trained weights are inputs.

    Attributes
    ----------
    imported : ImportedModel
        ``main`` takes the inputs of the model, then the weights, the statistics and, where
        ``draws`` is true, the number of the step. It returns the outputs of the model, then the
        next statistics.
    inputs, outputs : int
        How many inputs and outputs the model itself has.
    weights, statistics : dict[str, np.ndarray]
        The values in the file, by name, in the order of the inputs. Statistics are the running
        means and variances of batch normalisations.
    draws : bool
        Whether the program draws random numbers, as dropout does.
    is_recurrent : bool
        Whether the steps of a recurrent layer that is trained are written out.
    """

    imported: ImportedModel
    inputs: int
    outputs: int
    weights: dict[str, np.ndarray]
    statistics: dict[str, np.ndarray]
    draws: bool
    is_recurrent: bool


def import_trainable(
    source: TrainableSource,
    train: Sequence[str] | None,
    input_shapes: Mapping[str, Sequence[int | str]] | None,
) -> TrainableModel:
    """Imports a model in the form in which it is trained.

    Batch normalisation whose scale or shift is trained normalises by the statistics of the batch,
    and dropout draws a mask; other batch normalisations keep their statistics. ``train`` has
    patterns of names of weights, as of file names; without it all weights are trained.

    Raises
    ------
    ModelError, UnsupportedOperatorError, InputError
        The model or a pattern is not valid, or something in the model has no converter.
    """
    model, stored, _ = load_with_weights(source)
    label = model_name(source, model)
    model = _with_dropout_modes(model, label)
    if stored.tensors:
        raise ModelError(
            f"{label} has more than 2 GB of weights; expected a model to train in one file of less:"
            " split it, or train a smaller part"
        )
    weights = _chosen(model.graph, train, label)
    normalizations = _trained_normalizations(model.graph, set(weights))
    statistics = _arrays(
        model.graph, [node.input[place] for node in normalizations for place in _STATISTICS]
    )
    inputs, outputs = _given_inputs(model.graph), len(model.graph.output)
    _make_inputs(model.graph, [*weights, *statistics])
    draws = _turn_dropout_on(model.graph)
    _, whole, prepared, ranges, kept, warnings = prepare_model(model, input_shapes)
    _train_normalizations(prepared.graph, statistics)
    is_recurrent = unroll_recurrent(prepared.graph, label, _reached(prepared.graph, weights))
    if draws:
        prepared.graph.input.append(
            helper.make_tensor_value_info(ITERATIONS, TensorProto.INT64, [1])
        )
    imported = import_prepared(label, whole, prepared, ranges, kept, warnings)
    return TrainableModel(imported, inputs, outputs, weights, statistics, draws, is_recurrent)


def with_weights(source: TrainableSource, arrays: Mapping[str, np.ndarray]) -> onnx.ModelProto:
    """The model as it was given, with these arrays in place of the weights of their names."""
    if isinstance(source, onnx.ModelProto):
        model = onnx.ModelProto()
        model.CopyFrom(source)
    else:
        model = onnx.load(str(source))
    for tensor in model.graph.initializer:
        if tensor.name in arrays:
            tensor.CopyFrom(numpy_helper.from_array(arrays[tensor.name], tensor.name))
    return model


def write_model(model: onnx.ModelProto) -> bytes:
    """The bytes of the model's file."""
    return bytes(model.SerializeToString())


def _chosen(
    graph: onnx.GraphProto, train: Sequence[str] | None, label: str
) -> dict[str, np.ndarray]:
    """The weights that are trained, in the order of the file."""
    known = _weights_of(graph, [] if train is None else train)
    if not known:
        raise ModelError(
            f"{label} has no weight of float32 or float64; expected one to train: export the model "
            "with its weights as initializers"
        )
    patterns = ["*"] if train is None else list(train)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in known):
            hint = nearest_hint(pattern, known)
            raise InputError(f"train has {pattern!r}, which no weight of {label} matches; {hint}")
    return {
        name: array
        for name, array in known.items()
        if any(fnmatchcase(name, pattern) for pattern in patterns)
    }


def _weights_of(graph: onnx.GraphProto, named: Sequence[str]) -> dict[str, np.ndarray]:
    """Initializers that something learned: what a layer multiplies by, adds, or looks up.

    A single number is one where ``named`` has its name.
    """
    learned: set[str] = set()
    others: set[str] = set()
    viewed: dict[str, str] = {}
    for node in graph.node:
        own = node.domain in DEFAULT_DOMAINS or node.op_type in _LEARNED
        if own and node.op_type in _VIEWS:
            viewed[node.output[0]] = viewed.get(node.input[0], node.input[0])
        for place, given in enumerate(node.input):
            name = viewed.get(given, given)
            if own and place in _LEARNED.get(node.op_type, ()):
                learned.add(name)
            elif own and place in _NOT_LEARNED.get(node.op_type, ()):
                others.add(name)
    found = {}
    for tensor in graph.initializer:
        # A single number is a constant of a formula, such as the square root in attention.
        is_single = int(np.prod(tensor.dims, dtype=np.int64)) <= 1 and tensor.name not in named
        is_weight = tensor.name in learned or (tensor.name not in others and not is_single)
        if tensor.data_type in _TRAINED_TYPES and is_weight:
            found[tensor.name] = numpy_helper.to_array(tensor)
    return found


def _given_inputs(graph: onnx.GraphProto) -> int:
    """How many inputs a run has to give: older files list their initializers as well."""
    stored = {tensor.name for tensor in graph.initializer}
    for value in list(graph.input):
        if value.name in stored:
            graph.input.remove(value)
    return len(graph.input)


def _arrays(graph: onnx.GraphProto, names: Sequence[str]) -> dict[str, np.ndarray]:
    stored = {tensor.name: tensor for tensor in graph.initializer}
    return {name: numpy_helper.to_array(stored[name]) for name in names if name in stored}


def _make_inputs(graph: onnx.GraphProto, names: Sequence[str]) -> None:
    stored = {tensor.name: tensor for tensor in graph.initializer}
    for name in names:
        tensor = stored[name]
        graph.input.append(helper.make_tensor_value_info(name, tensor.data_type, tensor.dims))
        graph.initializer.remove(tensor)


def _trained_normalizations(graph: onnx.GraphProto, weights: set[str]) -> list[onnx.NodeProto]:
    return [
        node
        for node in graph.node
        if node.op_type == "BatchNormalization" and weights.intersection(node.input[1:3])
    ]


def _train_normalizations(graph: onnx.GraphProto, statistics: Mapping[str, np.ndarray]) -> None:
    """Has batch normalisations give the next values of their running statistics.

    Two that share statistics, as in a model that is applied twice, give them once.
    """
    given: set[str] = set()
    for node in graph.node:
        names = [name for name in node.input[3:5] if name in statistics]
        if node.op_type != "BatchNormalization" or not names:
            continue
        for attribute in [one for one in node.attribute if one.name == "training_mode"]:
            node.attribute.remove(attribute)
        node.attribute.append(helper.make_attribute("training_mode", 1))
        del node.output[1:]
        node.output.extend(f"{node.name}{_NEXT}{place}" for place in range(2))
        for name, output in zip(node.input[3:5], node.output[1:], strict=True):
            if name in given or name not in statistics:
                continue
            given.add(name)
            array = statistics[name]
            kind = helper.np_dtype_to_tensor_dtype(array.dtype)
            graph.output.append(helper.make_tensor_value_info(output, kind, array.shape))


def _reached(graph: onnx.GraphProto, weights: Iterable[str]) -> set[str]:
    """The values that are computed from one of these weights, and the weights."""
    found = set(weights)
    for node in graph.node:
        if not found.isdisjoint(names_read(node)):
            found.update(filter(None, node.output))
    return found


def _with_dropout_modes(model: onnx.ModelProto, label: str) -> onnx.ModelProto:
    """The model in an opset whose Dropout can be told to draw a mask, where it has any."""
    has_dropout = any(
        node.op_type == "Dropout" and node.domain in DEFAULT_DOMAINS
        for node in nodes_within(model.graph)
    )
    if not has_dropout or opset_of(model, "") >= _DROPOUT_WITH_MODE:
        return model
    converted = convert_opset(model, _DROPOUT_WITH_MODE)
    if opset_of(converted, "") < _DROPOUT_WITH_MODE:
        raise ModelError(
            f"{label} has Dropout of opset {opset_of(model, '')}, and ONNX cannot bring the model "
            f"to opset {_DROPOUT_WITH_MODE}; expected that one or a later one for training: export "
            "the model anew"
        )
    return converted


def _turn_dropout_on(graph: onnx.GraphProto) -> bool:
    """Has dropout draw a mask; whether there is any."""
    found = False
    for node in graph.node:
        if node.op_type == "Dropout" and node.domain in DEFAULT_DOMAINS:
            found = True
            _turn_on(graph, node)
        for inner in subgraphs_of(node):
            found |= _turn_dropout_on(inner)
    return found


def _turn_on(graph: onnx.GraphProto, node: onnx.NodeProto) -> None:
    given = [*node.input, "", ""][:3]
    name = re.sub(r"\W", "_", node.name or node.output[0])
    given[2] = f"{name}::training"
    graph.initializer.append(numpy_helper.from_array(np.array(True), given[2]))
    del node.input[:]
    node.input.extend(given)
