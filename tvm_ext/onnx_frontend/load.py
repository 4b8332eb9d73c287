"""Reads an ONNX model and refuses what is not a valid one, with the reason."""

from copy import deepcopy
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import onnx
from google.protobuf import json_format, text_format
from google.protobuf.message import DecodeError, EncodeError
from onnx import TensorProto

from tvm_ext.configs.progress import tell
from tvm_ext.errors import ModelError
from tvm_ext.onnx_frontend.canonicalize import densify_constants
from tvm_ext.onnx_frontend.diagnostics import external_fault, model_fault
from tvm_ext.onnx_frontend.onnx_graph import (
    DEFAULT_DOMAINS,
    copy_passed_on,
    graphs_within,
    name_own_operators,
    names_read,
    nodes_within,
    opset_of,
    subgraphs_of,
    tell_names_apart,
)
from tvm_ext.onnx_frontend.opset_conversion import convert_opset
from tvm_ext.onnx_frontend.signature import require_known_types
from tvm_ext.onnx_frontend.value_sizes import (
    forget_negative_sizes,
    refuse_negative_sizes,
)
from tvm_ext.onnx_frontend.weights import (
    StoredWeights,
    folder_of_data,
    refuse_nan_weights,
    take_out_large_weights,
    without_large_values,
)

# Puts the nodes of an ONNX graph into topological order; ONNX Runtime accepts unsorted graphs.


def sort_nodes(graph: onnx.GraphProto, label: str) -> None:
    """Sorts ``graph.node`` in place, subgraphs included; leaves a sorted graph as it is.

    Raises
    ------
    ModelError
        The graph has a cycle; the message names the nodes on it.
    """
    for node in graph.node:
        for subgraph in subgraphs_of(node):
            sort_nodes(subgraph, label)
    producer = {out: i for i, node in enumerate(graph.node) for out in node.output if out}
    needs = {
        i: {producer[name] for name in names_read(node) if name in producer}
        for i, node in enumerate(graph.node)
    }
    if all(before < i for i, befores in needs.items() for before in befores):
        return
    try:
        order = list(TopologicalSorter(needs).static_order())
    except CycleError as error:
        cycle = [graph.node[i].name or graph.node[i].op_type for i in error.args[1]]
        raise ModelError(
            f"{label}: the graph has a cycle through the nodes {' -> '.join(cycle)}; "
            "expected an acyclic graph: repair or export it again"
        ) from error
    nodes = [deepcopy(graph.node[i]) for i in order]
    del graph.node[:]
    graph.node.extend(nodes)


# Attributes of nodes: defaults that are left out, and values that ONNX does not define.


# Attributes of type int that mean yes or no: some converters ask for 1, others for anything but 0.
FLAGS = frozenset(
    {
        *("align_corners", "allowzero", "antialias", "ceil_mode", "center_point_box"),
        *("count_include_pad", "detect_negative", "detect_positive", "exclude_outside"),
        *("exclusive", "fmod", "input_forget", "inverse", "is_causal", "keepdims", "largest"),
        *("layout", "linear_before_reset", "new_axis", "noop_with_empty_axes", "onesided"),
        *("periodic", "reverse", "saturate", "select_last_index", "sorted", "storage_order"),
        *("training_mode", "transA", "transB", "upper"),
    }
)


def require_flags(graph: onnx.GraphProto, label: str) -> None:
    """Checks the nodes of the default domain, bodies included.

    Raises
    ------
    ModelError
        An attribute that is a flag is neither 0 nor 1.
    """
    for node in nodes_within(graph):
        for attribute in node.attribute if node.domain in DEFAULT_DOMAINS else ():
            if attribute.type != onnx.AttributeProto.INT or attribute.ref_attr_name:
                continue
            if attribute.name in FLAGS and attribute.i not in (0, 1):
                raise ModelError(
                    f"{label}: {node.op_type} node '{node.name}' has {attribute.name} "
                    f"{attribute.i}; expected 0 or 1: export it again"
                )


def write_out_defaults(model: onnx.ModelProto) -> None:
    """Gives operators that ONNX spells out as functions the attributes they leave out.

    Its inference takes these bodies as they are: MeanVarianceNormalization without axes holds a
    Constant without a value.
    """
    opset = opset_of(model, "")
    for node in nodes_within(model.graph):
        if node.domain not in DEFAULT_DOMAINS or not onnx.defs.has(node.op_type):
            continue
        try:
            schema = onnx.defs.get_schema(node.op_type, opset)
        except onnx.defs.SchemaError:
            continue
        if not schema.has_function:
            continue
        given = {attribute.name for attribute in node.attribute}
        defaults = (attribute.default_value for attribute in schema.attributes.values())
        node.attribute.extend(value for value in defaults if value.name and value.name not in given)


# Types for what LabelEncoders read: ONNX's shape inference crashes where it does not know them.


_KEYS = {
    "keys_floats": TensorProto.FLOAT,
    "keys_int64s": TensorProto.INT64,
    "keys_strings": TensorProto.STRING,
    # Of the first version, which looks up either way.
    "default_string": TensorProto.INT64,
    "default_int64": TensorProto.STRING,
}


def type_lookups(model: onnx.ModelProto) -> None:
    """Writes them down in place: a value is of the type of the keys, or the model is not valid."""
    graphs = list(graphs_within(model.graph))
    known = {
        value.name
        for graph in graphs
        for value in (*graph.input, *graph.output, *graph.value_info)
        if value.type.WhichOneof("value")
    }
    known |= {tensor.name for graph in graphs for tensor in graph.initializer}
    for graph in graphs:
        for node in graph.node:
            if node.op_type != "LabelEncoder" or not node.input or node.input[0] in known:
                continue
            made = graph.value_info.add(name=node.input[0])
            made.type.tensor_type.elem_type = _type_of_keys(node)
            known.add(node.input[0])


def _type_of_keys(node: onnx.NodeProto) -> int:
    attributes = {attribute.name: attribute for attribute in node.attribute}
    if "keys_tensor" in attributes:
        return attributes["keys_tensor"].t.data_type
    return next((kind for name, kind in _KEYS.items() if name in attributes), TensorProto.STRING)


# The ending of a file's name decides how onnx reads it: binary, .json, .textproto, .onnxtxt.
_UNREADABLE = (
    DecodeError,
    ValueError,
    json_format.ParseError,
    text_format.ParseError,
    onnx.parser.ParseError,
)


class LoadedModel(NamedTuple):
    """A checked model.

    Attributes
    ----------
    model : onnx.ModelProto
        Large weights of a model above 2 GB are inputs of it.
    stored : StoredWeights
        Reads these weights.
    warnings : tuple[str, ...]
        What is wrong with the model and does no harm.
    """

    model: onnx.ModelProto
    stored: StoredWeights
    warnings: tuple[str, ...]


def load_model(source: str | Path | onnx.ModelProto) -> onnx.ModelProto:
    """As ``load_with_weights``, the model alone."""
    return load_with_weights(source).model


def load_with_weights(source: str | Path | onnx.ModelProto) -> LoadedModel:
    """A checked copy of the model, with nodes in topological order and external data loaded.

    Raises
    ------
    ModelError
        The file cannot be read or is not an ONNX model, external data is missing, the opset is
        newer than the installed onnx package, the graph has a cycle, its types do not fit, a flag
        is neither 0 nor 1, an input or output is of a type that no run takes, or weights hold
        NaN.
    """
    if isinstance(source, onnx.ModelProto):
        label = source.graph.name or "the given ModelProto"
        model, stored = _copied(source, label), StoredWeights()
    else:
        if not isinstance(source, str | Path):
            raise ModelError(
                f"the model is a {type(source).__name__}; expected a path or an onnx.ModelProto: "
                "read bytes with onnx.load_model_from_string"
            )
        path = Path(source)
        model, stored = _read(path)
        label = str(path)
    tell("checks of the model")
    _require_graph(model, label)
    _require_known_opset(model, label)
    _complete(model.graph)
    copy_passed_on(model.graph)
    tell_names_apart(model)
    name_own_operators(model)
    type_lookups(model)
    write_out_defaults(model)
    forget_negative_sizes(model.graph)
    sort_nodes(model.graph, label)
    warnings = _check(model, label)
    require_flags(model.graph, label)
    require_known_types(model.graph, label)
    densify_constants(model, label)
    refuse_nan_weights(model.graph, label)
    return LoadedModel(convert_opset(model), stored, warnings)


def _copied(source: onnx.ModelProto, label: str) -> onnx.ModelProto:
    model = onnx.ModelProto()
    try:
        model.CopyFrom(source)
    except EncodeError as error:
        raise ModelError(
            f"{label} is larger than the 2 GB that one message may hold; expected the path of a "
            "model with external data: write it with onnx.save(..., save_as_external_data=True)"
        ) from error
    return model


def _read(path: Path) -> tuple[onnx.ModelProto, StoredWeights]:
    if not path.exists():
        raise ModelError(f"{path}: no such file; expected an ONNX model: check the path")
    if path.is_dir():
        raise ModelError(f"{path} is a folder; expected an ONNX file: name the .onnx file in it")
    if not path.is_file():
        # Opening a pipe would wait for ever.
        raise ModelError(
            f"{path} is a device or a pipe; expected an ONNX file: write the model to one"
        )
    try:
        model = onnx.load_model(path, load_external_data=False)
    except OSError as error:
        raise ModelError(f"{path} cannot be read ({error.strerror}): check permissions") from error
    except _UNREADABLE as error:
        raise ModelError(
            f"{path} ({path.stat().st_size} bytes) is not an ONNX model or is truncated; "
            "expected a serialised ModelProto: export or copy it again"
        ) from error
    folder = folder_of_data(model, path.parent)
    stored = take_out_large_weights(model, folder)
    _load_external_data(model, path, folder)
    return model, stored


def _load_external_data(model: onnx.ModelProto, path: Path, folder: Path) -> None:
    try:
        onnx.load_external_data_for_model(model, str(folder))
    except (OSError, ValueError, onnx.checker.ValidationError) as error:
        raise ModelError(
            f"{path}: external data cannot be loaded ({external_fault(model, folder)}); "
            "expected the data files in the model's folder: copy them beside the model"
        ) from error


def _require_graph(model: onnx.ModelProto, label: str) -> None:
    if not model.graph.node and not model.graph.output:
        raise ModelError(
            f"{label} holds no graph; expected an ONNX model with nodes and outputs: "
            "export it again (is the file empty or of another format?)"
        )
    if not model.graph.output:
        raise ModelError(f"{label} has no graph outputs; expected at least one: export it again")


def _require_known_opset(model: onnx.ModelProto, label: str) -> None:
    known = onnx.defs.onnx_opset_version()
    for opset in model.opset_import:
        if opset.domain in DEFAULT_DOMAINS and opset.version > known:
            raise ModelError(
                f"{label} is of opset {opset.version}; expected at most {known}, the newest that "
                "the installed onnx package knows: export with that opset or install a newer onnx"
            )


def _complete(graph: onnx.GraphProto) -> None:
    """What ONNX Runtime does without and the checker does not.

    That is a name, each output once, and a type for every inner value that is described. A size
    of 0 written for one is what exporters put for sizes that they do not know.
    """
    graph.name = graph.name or "graph"
    typed = [value for value in graph.value_info if value.HasField("type")]
    if len(typed) < len(graph.value_info):
        described = deepcopy(typed)
        del graph.value_info[:]
        graph.value_info.extend(described)
    for value in graph.value_info:
        for dim in value.type.tensor_type.shape.dim:
            if dim.HasField("dim_value") and dim.dim_value == 0:
                dim.Clear()
    outputs = {value.name: value for value in reversed(graph.output)}
    if len(outputs) < len(graph.output):
        kept = [outputs.pop(value.name) for value in graph.output if value.name in outputs]
        copies = deepcopy(kept)
        del graph.output[:]
        graph.output.extend(copies)


def _check(model: onnx.ModelProto, label: str) -> tuple[str, ...]:
    """Structure and types; returns warnings."""
    try:
        _check_structure(model)
        refuse_negative_sizes(model, label)
        return _check_types(model, label)
    except (
        ValueError,
        onnx.checker.ValidationError,
        onnx.shape_inference.InferenceError,
    ) as error:
        raise ModelError(
            f"{label} is not a valid ONNX model: {model_fault(model, error)}; "
            "expected a graph that passes onnx.checker: repair or export it again"
        ) from error


def _check_types(model: onnx.ModelProto, label: str) -> tuple[str, ...]:
    """Infers types; where shapes that are written in the model contradict, without those.

    Exporters leave shapes of inner values and outputs behind that do not fit, or never did. ONNX
    Runtime warns about them and goes by what it infers.
    """
    try:
        _infer_types(model)
    except onnx.shape_inference.InferenceError as error:
        _forget_written_shapes(model.graph)
        _infer_types(model)
        return (
            f"{label}: shapes written in the model contradict what its operators compute "
            f"({model_fault(model, error)}); none of them is used but those of its inputs",
        )
    return ()


def _infer_types(model: onnx.ModelProto) -> None:
    """Raises InferenceError where types or shapes contradict.

    Without the values of shape arithmetic: with them ONNX takes a sum of a column and a row of
    integers for shapes that do not fit, and notes down every element of a list however long.
    """
    with without_large_values(model.graph):
        onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)


def _forget_written_shapes(graph: onnx.GraphProto) -> None:
    for inner in graphs_within(graph):
        for value in (*inner.value_info, *inner.output):
            if value.type.HasField("tensor_type"):
                value.type.tensor_type.ClearField("shape")


def _check_structure(model: onnx.ModelProto) -> None:
    """The checker wants every output to have a type and a shape, which many exporters leave out."""
    outputs = [value for graph in graphs_within(model.graph) for value in graph.output]
    untyped = [value for value in outputs if not value.HasField("type")]
    tensors = [
        value.type.tensor_type
        for value in (*model.graph.input, *outputs)
        if value.type.HasField("tensor_type")
    ]
    shapeless = [tensor for tensor in tensors if not tensor.HasField("shape")]
    for value in untyped:
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
        value.type.tensor_type.shape.SetInParent()
    for tensor in shapeless:
        tensor.shape.SetInParent()
    try:
        onnx.checker.check_model(model)
    finally:
        for value in untyped:
            value.ClearField("type")
        for tensor in shapeless:
            tensor.ClearField("shape")
