"""Makes models of some nodes of a model, fed with what a run of the whole model computed there, and
says of its values which types and precision they have, and which can be outputs.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tvm_ext.onnx_frontend import SizedModel
from tvm_ext.onnx_frontend.onnx_graph import DEFAULT_DOMAINS, names_read
from tvm_ext.onnx_frontend.signature import model_inputs
from tvm_ext.onnx_frontend.weights import (
    KEPT_INTEGERS,
    KEPT_NUMBERS,
    StoredWeights,
    put_back,
)
from tvm_ext.tensor_spec import narrowest_float


def nodes_behind(nodes: Sequence[onnx.NodeProto], names: Iterable[str]) -> list[int]:
    """Which of the (sorted) nodes the named values depend on, by their places, in order."""
    wanted = set(names)
    found = []
    for place in reversed(range(len(nodes))):
        if wanted.intersection(nodes[place].output):
            wanted |= names_read(nodes[place]).keys()
            found.append(place)
    return found[::-1]


def typed_model(sized: SizedModel) -> onnx.ModelProto:
    """The model with types for its values, where they are known, and with all its initializers.

    The values of large ones stay in their files: see ``StoredWeights``.
    """
    model = with_types(sized.model)
    put_back(model.graph, sized.stored)
    return model


class Submodel(NamedTuple):
    """Some nodes as a model of their own.

    Attributes
    ----------
    model : onnx.ModelProto
        It may hold more than the 2 GB that protobuf writes (see ``weights.write_model``).
    inputs : dict[str, Any]
        The values of its inputs: arrays, lists for sequences, mappings for maps.
    places : tuple[int, ...]
        Its nodes, as places in ``Submodels.nodes``.
    frozen : bool
        Whether its inputs have the sizes of these values, and no symbolic ones.
    """

    model: onnx.ModelProto
    inputs: dict[str, Any]
    places: tuple[int, ...]
    frozen: bool


class Submodels:
    """The models that can be made of the nodes of one model.

    What a chosen node reads of one that is left out becomes an input, or an initializer where it
    is a short list of numbers: sizes, axes, scales, from which nodes are converted.

    Parameters
    ----------
    whole : onnx.ModelProto
        From ``typed_model``. Bodies of If, Loop and Scan stay whole.
    values : mapping of name to value
        Its inputs, and values of its nodes in one run.
    stored : StoredWeights
        Where the values of its external initializers are.
    frozen : bool
        Whether inputs have the sizes of ``values``, and not the symbolic ones of the model.
    ends_only : bool
        Whether outputs that chosen nodes read as well are left out.

    Attributes
    ----------
    nodes : list[onnx.NodeProto]
        The nodes that there is a choice of: all but those of constants.
    """

    def __init__(
        self,
        whole: onnx.ModelProto,
        values: Mapping[str, Any],
        stored: StoredWeights,
        frozen: bool = False,
        ends_only: bool = False,
    ) -> None:
        self.nodes = [node for node in whole.graph.node if node.op_type != "Constant"]
        self._whole = whole
        self._values = values
        self._stored = stored
        self._frozen = frozen
        self._ends_only = ends_only
        graph = whole.graph
        self._inputs = {value.name for value in model_inputs(graph)}
        self._initializers = {tensor.name: tensor for tensor in graph.initializer}
        self._constants = {n.output[0]: n for n in graph.node if n.op_type == "Constant"}
        described = (*graph.value_info, *graph.output, *graph.input)
        self._types = {v.name: v.type for v in described if v.type.WhichOneof("value")}
        self._outputs = [value.name for value in graph.output]
        self._used = {name for node in self.nodes for name in names_read(node)}

    def all(self, more_outputs: Iterable[str] = ()) -> Submodel | None:
        """The whole model, with the named values as outputs too."""
        outputs = dict.fromkeys([*self._outputs, *more_outputs])
        return self._submodel(range(len(self.nodes)), list(outputs))

    def of(self, places: Sequence[int]) -> Submodel | None:
        """The model of the nodes at these places, in rising order; nodes without use are left out.

        None when nothing is left, or the run had no value for something that they read.
        """
        chosen = [self.nodes[place] for place in places]
        outputs = self._open_ends(chosen)
        return self._submodel([places[i] for i in nodes_behind(chosen, outputs)], outputs)

    def of_body(self, place: int) -> Submodel | None:
        """The body of If that was chosen, or that of Loop or Scan in the first iteration.

        None for other nodes, or where the run had no value for something that it reads. Its places
        are those in ``Submodels`` of its model.
        """
        found = _body_with_values(self.nodes[place], self._value)
        if found is None:
            return None
        body, own = found
        values = {**self._values, **own}
        inside = Submodels(self._whole, values, self._stored, self._frozen)
        inside.nodes = list(body.node)
        inside._inputs |= own.keys()
        inside._initializers |= {tensor.name: tensor for tensor in body.initializer}
        inside._types |= {value.name: value.type for value in (*body.value_info, *body.output)}
        inside._outputs = [value.name for value in body.output]
        submodel = inside.all()
        count = sum(node.op_type != "Constant" for node in body.node)
        return submodel and submodel._replace(places=tuple(range(count)))

    def _open_ends(self, nodes: Sequence[onnx.NodeProto]) -> list[str]:
        """What the nodes are there for: outputs of the model, and values that others read."""
        read = {name for node in nodes for name in names_read(node)}
        made = [name for node in nodes for name in node.output if name]
        ends = [name for name in made if name not in read and name in {*self._used, *self._outputs}]
        # Sizes are computed along with what they are sizes of, or not at all.
        ends = [name for name in ends if not self._is_short(name)] or ends
        if self._ends_only:
            return ends
        return [name for name in made if name in ends or name in self._outputs]

    def _submodel(self, places: Sequence[int], outputs: Sequence[str]) -> Submodel | None:
        nodes = [self.nodes[place] for place in places]
        read = _free(nodes, outputs)
        fed = [name for name in read if not self._is_stored(name)]
        if not nodes or any(n not in self._values or self._type(n) is None for n in fed):
            return None
        whole = self._whole
        model = helper.make_model(
            onnx.GraphProto(name=whole.graph.name),
            opset_imports=list(whole.opset_import),
            functions=list(whole.functions),
            producer_name="tvm-ext",
            ir_version=whole.ir_version,
        )
        graph = model.graph
        graph.input.extend(onnx.ValueInfoProto(name=name, type=self._type(name)) for name in fed)
        graph.output.extend(onnx.ValueInfoProto(name=n, type=self._type(n)) for n in outputs)
        for name in read:
            if name in self._constants:
                graph.node.append(self._constants[name])
            elif name not in fed:
                graph.initializer.append(self._tensor(name))
        graph.node.extend(nodes)
        # What ONNX itself infers no types for.
        foreign = (node for node in nodes if node.domain not in DEFAULT_DOMAINS)
        inner = {name for node in foreign for name in node.output} - {"", *outputs}
        for name in sorted(inner & self._types.keys()):
            graph.value_info.add(name=name).type.CopyFrom(self._type(name))
        inputs = {name: self._values[name] for name in fed}
        return Submodel(model, inputs, tuple(places), self._frozen)

    def _is_stored(self, name: str) -> bool:
        """Whether it is an initializer or a constant, or becomes one."""
        if name in self._initializers or name in self._constants:
            return True
        return name not in self._inputs and self._is_short(name)

    def _is_short(self, name: str) -> bool:
        value = self._values.get(name)
        if not isinstance(value, np.ndarray) or value.ndim > 1 or value.dtype.kind not in "iuf":
            return False
        return value.size <= (KEPT_NUMBERS if value.dtype.kind == "f" else KEPT_INTEGERS)

    def _tensor(self, name: str) -> onnx.TensorProto:
        tensor = self._initializers.get(name)
        if tensor is None:
            return numpy_helper.from_array(self._values[name], name)
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            return tensor
        read = numpy_helper.from_array(self._stored.read(tensor), name)
        read.data_type = tensor.data_type
        return read

    def _value(self, name: str) -> Any:
        """What a value was, or always is; None where that is not known."""
        if name in self._constants:
            attribute = self._constants[name].attribute[0]
            return numpy_helper.to_array(attribute.t) if attribute.name == "value" else None
        if name in self._initializers:
            return numpy_helper.to_array(self._tensor(name))
        return self._values.get(name)

    def _type(self, name: str) -> onnx.TypeProto | None:
        """The type of a value; None where neither the model nor the run tells it."""
        known, value = self._types.get(name), self._values.get(name)
        if not isinstance(value, np.ndarray):
            return known
        as_known = name in self._inputs and not self._frozen
        if known is not None and (as_known or not known.HasField("tensor_type")):
            return known
        element = known.tensor_type.elem_type if known is not None else _element_type(value)
        shape = list(value.shape) if self._frozen else _symbolic(known, name, value.ndim)
        return helper.make_tensor_type_proto(element, shape)


def _free(nodes: Iterable[onnx.NodeProto], outputs: Iterable[str]) -> list[str]:
    """What nodes read, or outputs pass on, that none of the nodes makes."""
    nodes = list(nodes)
    made = {name for node in nodes for name in node.output}
    read = dict.fromkeys(name for node in nodes for name in names_read(node))
    return [name for name in (read | dict.fromkeys(outputs)) if name not in made]


def _element_type(value: np.ndarray) -> int:
    if value.dtype.kind in "OSU":
        return int(onnx.TensorProto.STRING)
    return int(helper.np_dtype_to_tensor_dtype(value.dtype))


def _symbolic(known: onnx.TypeProto | None, name: str, rank: int) -> list[int | str]:
    """The shape of a type, with a name for every size that has none."""
    dims = list(known.tensor_type.shape.dim) if known is not None else []
    if len(dims) != rank:
        return [f"{name}_{axis}" for axis in range(rank)]
    return [
        dim.dim_value if dim.HasField("dim_value") else dim.dim_param or f"{name}_{axis}"
        for axis, dim in enumerate(dims)
    ]


def _body_with_values(
    node: onnx.NodeProto, value_of: Callable[[str], Any]
) -> tuple[onnx.GraphProto, dict[str, Any]] | None:
    """The body that a node runs first, and the values of its inputs there."""
    if node.domain not in DEFAULT_DOMAINS:
        return None
    attributes = {attribute.name: attribute for attribute in node.attribute}
    given = [value_of(name) if name else None for name in node.input]
    if node.op_type == "If" and given[0] is not None:
        return attributes["then_branch" if bool(given[0]) else "else_branch"].g, {}
    if node.op_type == "Loop":
        body = attributes["body"].g
        own = [np.array(0, np.int64), np.array(True), *given[2:]]
    elif node.op_type == "Scan" and "num_scan_inputs" in attributes:
        body = attributes["body"].g
        own = _first_slices(given, attributes)
    else:
        return None
    names = [value.name for value in body.input]
    if len(own) != len(names) or any(value is None for value in own):
        return None
    return body, dict(zip(names, own, strict=True))


def _first_slices(given: Sequence[Any], attributes: Mapping[str, onnx.AttributeProto]) -> list[Any]:
    """States as they are, and the first slice of everything that is scanned."""
    scanned = attributes["num_scan_inputs"].i
    states = list(given[: len(given) - scanned])

    def listed(name: str) -> Sequence[int]:
        return attributes[name].ints if name in attributes else [0] * scanned

    values = given[len(given) - scanned :]
    slices = [
        None if value is None else np.take(value, -1 if backwards else 0, axis)
        for value, axis, backwards in zip(
            values, listed("scan_input_axes"), listed("scan_input_directions"), strict=True
        )
    ]
    return [*states, *slices]


# The values of a model.


_INTEGERS = (onnx.TensorProto.INT64, onnx.TensorProto.INT32)


def with_types(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the types of its values inferred; as it is when it is above 2 GB."""
    if model.ByteSize() >= onnx.checker.MAXIMUM_PROTOBUF:
        return model
    try:
        return onnx.shape_inference.infer_shapes(model, data_prop=True)
    except onnx.shape_inference.InferenceError:
        return model


def value_types(graph: onnx.GraphProto) -> dict[str, onnx.TypeProto]:
    """Types of the inputs, outputs and values of a graph, as far as they are written in it."""
    values = (*graph.input, *graph.value_info, *graph.output)
    return {value.name: value.type for value in values if value.type.HasField("tensor_type")}


def value_precision(graph: onnx.GraphProto) -> dict[str, str]:
    """The narrowest floating-point type that each value was computed through; "" for none.

    A value can be no more precise than what it was computed from: a float64 output that was cast
    from float32 is as good as float32.
    """
    found = {
        name: _numpy_name(type_.tensor_type.elem_type) for name, type_ in value_types(graph).items()
    }
    found |= {tensor.name: _numpy_name(tensor.data_type) for tensor in graph.initializer}
    for node in graph.node:
        read = [found.get(name, "") for name in names_read(node)]
        for name in filter(None, node.output):
            found[name] = narrowest_float(found.get(name, ""), *read)
    return {name: narrowest_float(dtype) for name, dtype in found.items()}


def exposable_values(graph: onnx.GraphProto) -> list[str]:
    """The intermediate values of the top-level graph that can be outputs as well, in its order.

    Left out are values whose type is not known, sequences, and integers of rank 0 and 1, most of
    which are shape arithmetic that the compiler resolves without ever computing it.
    """
    types = value_types(graph)
    present = {value.name for value in graph.output}
    nodes = (node for node in graph.node if node.op_type != "Constant")
    made = (name for node in nodes for name in filter(None, node.output))
    return [name for name in made if name not in present and _can_be_output(types.get(name))]


def runtime_values(graph: onnx.GraphProto, node: onnx.NodeProto) -> list[str]:
    """What a node reads that is computed in a run: inputs of the model and outputs of nodes."""
    computed = {value.name for value in model_inputs(graph)}
    computed |= {
        name for other in graph.node if other.op_type != "Constant" for name in other.output
    }
    return sorted(names_read(node).keys() & (computed - {""}))


def _can_be_output(type_: onnx.TypeProto | None) -> bool:
    if type_ is None or not type_.tensor_type.HasField("shape"):
        return False
    tensor = type_.tensor_type
    return tensor.elem_type not in _INTEGERS or len(tensor.shape.dim) > 1


def _numpy_name(element_type: int) -> str:
    try:
        return str(onnx.helper.tensor_dtype_to_np_dtype(element_type))
    except KeyError:
        return ""
