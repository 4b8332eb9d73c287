"""A model without its weights: what is left shows how it is built, not what it has learned."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tvm_ext.errors import ModelError

# Integers of so many elements are sizes, axes, pads and permutations, which decide what a model is
# converted to; so are a few floating-point numbers: scales of a Resize, an epsilon.
KEPT_INTEGERS = 64
KEPT_NUMBERS = 8
# A message of protobuf's holds 2 GB.
_LARGEST_BYTES = 1 << 30


def without_weights(path: Path) -> onnx.ModelProto:
    """The model of a file with ones for its weights.

    Integers and truth values of at most ``KEPT_INTEGERS`` elements and other numbers of at most
    ``KEPT_NUMBERS`` keep their values, and so do integer attributes. Many different texts are
    numbered; documentation and metadata are left out. All names stay.

    Raises
    ------
    ModelError
        The file cannot be read as a model, or is too large even so.
    """
    try:
        model = onnx.load_model(path, load_external_data=False)
    except Exception as error:
        raise ModelError(
            f"{path} cannot be read as an ONNX model; expected a serialised ModelProto: describe "
            "the file instead"
        ) from error
    tensors = [tensor for graph in _graphs(model) for tensor in graph.initializer]
    tensors += [a.t for a in _attributes(model) if a.HasField("t")]
    tensors += [tensor for a in _attributes(model) for tensor in a.tensors]
    if sum(4 * _elements(tensor) for tensor in tensors) > _LARGEST_BYTES:
        raise ModelError(
            f"{path} has more than {_LARGEST_BYTES >> 30} GiB of weights, too many to replace in "
            "one file; expected a smaller model: describe it instead"
        )
    for tensor in tensors:
        _replace(tensor, path.parent)
    for attribute in _attributes(model):
        _replace_lists(attribute)
    _forget_texts(model)
    return model


def _graphs(model: onnx.ModelProto) -> Iterator[onnx.GraphProto]:
    """The graph and the bodies in it."""
    yield model.graph
    for attribute in _attributes(model):
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def _attributes(model: onnx.ModelProto) -> Iterator[onnx.AttributeProto]:
    """All attributes, those of functions and bodies included."""
    waiting = [*model.graph.node, *(node for f in model.functions for node in f.node)]
    while waiting:
        for attribute in waiting.pop().attribute:
            yield attribute
            waiting += attribute.g.node
            waiting += [node for graph in attribute.graphs for node in graph.node]


def _elements(tensor: TensorProto) -> int:
    return int(np.prod([max(int(size), 0) for size in tensor.dims], dtype=object))


def _replace(tensor: TensorProto, folder: Path) -> None:
    """Fills a tensor with ones, unless it is small; a small one is then inside of the model."""
    kept = KEPT_INTEGERS if tensor.data_type in _INTEGERS else KEPT_NUMBERS
    if _elements(tensor) <= kept and tensor.data_location != TensorProto.EXTERNAL:
        return
    shape = list(tensor.dims)
    if tensor.data_type == TensorProto.STRING:
        values = np.array([f"text {i}" for i in range(_elements(tensor))], object).reshape(shape)
    elif _elements(tensor) <= kept:
        values = numpy_helper.to_array(tensor, str(folder))
    else:
        values = np.ones(shape, helper.tensor_dtype_to_np_dtype(tensor.data_type))
    new = numpy_helper.from_array(values, tensor.name)
    new.data_type = tensor.data_type
    tensor.CopyFrom(new)


def _replace_lists(attribute: onnx.AttributeProto) -> None:
    if len(attribute.floats) > KEPT_NUMBERS:
        count = len(attribute.floats)
        del attribute.floats[:]
        attribute.floats.extend([1.0] * count)
    # The modes of a tree's nodes are a few words again and again; labels are many.
    if len(set(attribute.strings)) > KEPT_NUMBERS:
        texts = [f"text {i}".encode() for i in range(len(attribute.strings))]
        del attribute.strings[:]
        attribute.strings.extend(texts)


def _forget_texts(model: onnx.ModelProto) -> None:
    model.ClearField("doc_string")
    model.ClearField("metadata_props")
    for function in model.functions:
        function.ClearField("doc_string")
    for graph in _graphs(model):
        graph.ClearField("doc_string")
        graph.ClearField("metadata_props")
        for node in graph.node:
            node.ClearField("doc_string")
            node.ClearField("metadata_props")
    for function in model.functions:
        for node in function.node:
            node.ClearField("doc_string")


_INTEGERS = frozenset(
    {
        *(TensorProto.BOOL, TensorProto.INT8, TensorProto.INT16, TensorProto.INT32),
        *(TensorProto.INT64, TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32),
        TensorProto.UINT64,
    }
)
