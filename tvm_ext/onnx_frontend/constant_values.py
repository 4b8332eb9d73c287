"""Constants in all their spellings as stored tensors: ``value`` is all that converters read."""

import math
from collections.abc import Iterable

import numpy as np
import onnx
import onnx_ir as ir
from onnx import numpy_helper

from tvm_ext.errors import ModelError
from tvm_ext.onnx_frontend.input_shapes import MAX_ELEMENTS
from tvm_ext.onnx_frontend.scopes import subgraphs_of

_SINGLE = {"value_float": np.float32, "value_int": np.int64, "value_string": object}
_LISTS = {"value_floats": np.float32, "value_ints": np.int64, "value_strings": object}


def spell_constants_out(model: ir.Model) -> None:
    """``value_float``, ``value_ints`` and the like become ``value``, in place, bodies included.

    ONNX operator Constant-13: float32, int64 or strings, of rank 0, or 1 for the lists.
    """
    for node in model.graph.all_nodes():
        if node.op_type == "Constant" and node.domain in ("", "ai.onnx"):
            _spell_out(node)


def _spell_out(node: ir.Node) -> None:
    for name, attribute in list(node.attributes.items()):
        if name in _SINGLE or name in _LISTS:
            dtype = _SINGLE.get(name) or _LISTS[name]
            array = np.array(attribute.value, dtype)
            del node.attributes[name]
            made = node.outputs[0].name
            tensor = (
                ir.tensor(array, name=made)
                if dtype is not object
                else ir.StringTensor(array.astype(np.bytes_), name=made)
            )
            node.attributes["value"] = ir.AttrTensor("value", tensor)


def densify_constants(model: onnx.ModelProto, label: str) -> None:
    """``sparse_value`` becomes ``value``, and sparse initializers dense ones, in place.

    ONNX, SparseTensorProto: indices are positions in the flattened tensor, or a row of coordinates
    for each value.

    Raises
    ------
    ModelError
        The dense tensor would be too large, or an index lies outside of it.
    """
    _densify(model.graph, label)
    for function in model.functions:
        _densify_nodes(function.node, label)


def _densify(graph: onnx.GraphProto, label: str) -> None:
    for stored in graph.sparse_initializer:
        graph.initializer.add().CopyFrom(_dense(stored, stored.values.name, label))
    del graph.sparse_initializer[:]
    _densify_nodes(graph.node, label)


def _densify_nodes(nodes: Iterable[onnx.NodeProto], label: str) -> None:
    for node in nodes:
        for attribute in node.attribute:
            if node.op_type == "Constant" and attribute.name == "sparse_value":
                tensor = _dense(attribute.sparse_tensor, node.output[0], label)
                attribute.CopyFrom(onnx.helper.make_attribute("value", tensor))
        for subgraph in subgraphs_of(node):
            _densify(subgraph, label)


def _dense(sparse: onnx.SparseTensorProto, name: str, label: str) -> onnx.TensorProto:
    count = math.prod(sparse.dims)
    if not 0 <= count <= MAX_ELEMENTS:
        raise ModelError(
            f"{label}: sparse tensor '{name}' has {count} elements; expected at most "
            f"{MAX_ELEMENTS}: export it with a smaller shape"
        )
    values = numpy_helper.to_array(sparse.values)
    indices = numpy_helper.to_array(sparse.indices)
    array = np.zeros(tuple(sparse.dims), values.dtype)
    try:
        if indices.ndim > 1:
            array[tuple(indices.T)] = values
        else:
            array.reshape(-1)[indices] = values
    except (IndexError, ValueError) as error:
        raise ModelError(
            f"{label}: sparse tensor '{name}' does not fit together; expected an index "
            f"inside of {list(sparse.dims)} for each value: export it again"
        ) from error
    return numpy_helper.from_array(array, name)
