"""Takes a prepared graph apart into host nodes and compiled parts.

A node runs on the host where it reads or makes what only the host holds, where only the host can do
it, and where only the run knows the number of axes of what it reads or makes: it depends on a host
value without one, or on a list of sizes or axes whose length the run decides. All other nodes are
compiled. They are dealt into as few parts as the order allows: usually one, with host nodes in
front of it or behind.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import onnx

from tvm_ext.errors import UnsupportedOperatorError
from tvm_ext.onnx_frontend.host.known_types import with_known_types
from tvm_ext.onnx_frontend.host.operators import HOST_OPERATORS
from tvm_ext.onnx_frontend.host.operators.containers import CONTAINER_OPERATORS
from tvm_ext.onnx_frontend.host.operators.reference import has_reference
from tvm_ext.onnx_frontend.host.program import CONTROL_FLOW, part_call
from tvm_ext.onnx_frontend.host.values import is_host_type
from tvm_ext.onnx_frontend.operator_key import DEFAULT_DOMAINS, operator_key
from tvm_ext.onnx_frontend.scopes import names_read, subgraphs_of
from tvm_ext.onnx_frontend.support import is_supported
from tvm_ext.report.records import HostRecord

Types = dict[str, onnx.TypeProto]

# Attributes that are data: others of type string, or lists of it, are words of ONNX.
_TEXTS = frozenset(
    {
        *("cats_strings", "classes_strings", "classlabels_strings", "keys_strings"),
        *("pool_strings", "string_vocabulary", "stopwords", "value_string", "value_strings"),
        "values_strings",
    }
)

# Which input of an operator is a list of sizes or axes, whose length decides how many axes the
# result has.
_LISTS = {"ConstantOfShape": 0, "Expand": 1, "Reshape": 1, "Squeeze": 1, "Unsqueeze": 1}

# In a body that runs on the host, calls of compiled code pay from a product or a few nodes on.
_LARGE = frozenset(
    {"Conv", "ConvTranspose", "Gemm", "MatMul", "LSTM", "GRU", "RNN", "Einsum", "Attention"}
)
_MANY_NODES = 8


@dataclass(frozen=True)
class Division:
    """A model in steps.

    Attributes
    ----------
    host : onnx.ModelProto
        The host nodes and calls of parts, with the model's own inputs and outputs.
    parts : tuple[onnx.ModelProto, ...]
        What is compiled, in the order of their calls.
    records : tuple[HostRecord, ...]
        What falls to the host, and why.
    """

    host: onnx.ModelProto
    parts: tuple[onnx.ModelProto, ...]
    records: tuple[HostRecord, ...]


def divide(prepared: onnx.ModelProto, given: onnx.GraphProto) -> Division | None:
    """The division of a prepared model; None where all of it can be compiled.

    Parameters
    ----------
    prepared : onnx.ModelProto
        Nodes in order.
    given : onnx.GraphProto
        The graph as it was given, whose inputs and outputs have types of maps, which do not
        outlast the preparation.

    Raises
    ------
    UnsupportedOperatorError
        An operator has strings, sequences or the like, and the host does not know it.
    """
    values = (*given.input, *given.output)
    may_be_divided = (
        any(is_host_type(value.type) for value in values)
        or any(_is_open_list(value.type) for value in prepared.graph.input)
        or _has_host_nodes(prepared.graph)
    )
    if not may_be_divided:
        return None
    model = _with_types(prepared, given)
    divider = _Divider(model)
    graph = divider.divided(model.graph)
    if divider.unsupported:
        raise UnsupportedOperatorError(divider.unsupported)
    if not divider.records:
        return None
    host = onnx.ModelProto()
    host.CopyFrom(model)
    host.graph.CopyFrom(graph)
    return Division(host, tuple(divider.parts), tuple(divider.records))


def _has_host_nodes(graph: onnx.GraphProto) -> bool:
    """Whether some node makes what only the host holds, or cannot be compiled."""
    if any(tensor.data_type == onnx.TensorProto.STRING for tensor in graph.initializer):
        return True
    for node in graph.node:
        if (
            _only_host(node)
            or _is_container(node)
            or any(_has_host_nodes(body) for body in subgraphs_of(node))
        ):
            return True
    return False


def _only_host(node: onnx.NodeProto) -> str:
    """Why the node cannot be compiled whatever it reads; "" where it can."""
    attributes = {a.name: a for a in node.attribute}
    if any(
        name in _TEXTS or a.t.data_type == onnx.TensorProto.STRING for name, a in attributes.items()
    ):
        return "it has strings"
    if node.op_type == "Cast" and attributes["to"].i == onnx.TensorProto.STRING:
        return "it makes strings"
    if node.op_type == "OneHotEncoder" and "zeros" in attributes and not attributes["zeros"].i:
        return "it refuses unknown categories"
    key = operator_key(node)
    if is_supported(node) or node.op_type in ("If", "Loop", "Scan", "Constant"):
        return ""
    if key in HOST_OPERATORS or _is_container(node):
        return "compiled code has no form of it"
    return ""


def _is_container(node: onnx.NodeProto) -> bool:
    """Whether the node is about sequences or optionals whose contents only the run knows."""
    return node.domain in DEFAULT_DOMAINS and (
        node.op_type in CONTAINER_OPERATORS or node.op_type in _CONTAINERS
    )


_CONTAINERS = ("ConcatFromSequence", "SequenceMap", "SplitToSequence")


def _with_types(prepared: onnx.ModelProto, given: onnx.GraphProto) -> onnx.ModelProto:
    """A copy with the types of all values, those that were taken away included."""
    model = onnx.ModelProto()
    model.CopyFrom(prepared)
    types = {value.name: value.type for value in (*given.input, *given.output)}
    for value in (*model.graph.input, *model.graph.output):
        if value.type.WhichOneof("value") is None and value.name in types:
            value.type.CopyFrom(types[value.name])
    return with_known_types(model)


@dataclass
class _Place:
    """Where a node runs: even phases are the host's, odd ones those of compiled parts."""

    node: onnx.NodeProto
    reason: str
    reads: set[str]
    phase: int = 0


@dataclass(frozen=True)
class _Scope:
    """What the nodes of a graph can read, from the graphs around it as well.

    Attributes
    ----------
    types : Types
        Of all values, as far as they are known.
    constants : dict[str, TensorProto]
        Stored tensors.
    values : set[str]
        Names of what is computed or fed in a run.
    of_host : set[str]
        Those of them that no part of this graph computes.
    open_lists : set[str]
        Lists whose length a run decides, as far as a list that the host holds or computes does.
    """

    types: Types
    constants: dict[str, onnx.TensorProto]
    values: set[str]
    of_host: set[str]
    open_lists: set[str]

    @classmethod
    def of(cls, graph: onnx.GraphProto, around: "_Scope | None" = None) -> "_Scope":
        """The scope of a graph, where all values around it come from the host."""
        outer = around or cls({}, {}, set(), set(), set())
        constants = {**outer.constants, **_constants(graph)}
        known = {value.name for value in graph.input} | outer.values
        made = {name for node in graph.node for name in node.output if name}
        types = {**outer.types, **_types(graph)}
        fed = known - set(constants)
        lists = {name for name in fed if _is_open_list(types.get(name))}
        return cls(types, constants, (known | made) - set(constants), fed, lists | outer.open_lists)

    def note_lists(self, node: onnx.NodeProto, reads: set[str], of_host: bool) -> None:
        """Takes down which results of a node are lists whose length the host decides."""
        if of_host or reads & self.open_lists:
            made = {name for name in node.output if _is_open_list(self.types.get(name))}
            self.open_lists.update(made)


class _Divider:
    """Divides a graph and the bodies in it; the parts of all of them are in one list."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model
        self.opsets = {opset.domain: opset.version for opset in model.opset_import}
        self.parts: list[onnx.ModelProto] = []
        self.records: list[HostRecord] = []
        self.unsupported: dict[str, list[str]] = {}

    def divided(self, graph: onnx.GraphProto, around: _Scope | None = None) -> onnx.GraphProto:
        """The graph with calls of parts for what is compiled; ``around`` is where it stands."""
        scope = _Scope.of(graph, around)
        places = self._places(graph, scope)
        kept = {value.name for value in graph.output}
        nodes: list[onnx.NodeProto] = []
        for phase in sorted({place.phase for place in places}):
            group = [place for place in places if place.phase == phase]
            if phase % 2 and self._is_compiled(group, inner=around is not None):
                later = {name for place in places if place.phase > phase for name in place.reads}
                nodes += self._part(group, later | kept, scope)
                continue
            for place in group:
                reason = place.reason or "it is small and stands in a body that the host runs"
                self.records.append(HostRecord(operator_key(place.node), place.node.name, reason))
                nodes.append(self._host_node(place.node, scope))
        return _graph(graph, nodes)

    def _places(self, graph: onnx.GraphProto, scope: _Scope) -> list[_Place]:
        """Each node with its phase: the earliest, but parts wait for what they can be with."""
        places: list[_Place] = []
        phase_of: dict[str, int] = {}
        for node in graph.node:
            if node.output and node.output[0] in scope.constants:
                continue
            reads = set(names_read(node)) & (scope.values | set(scope.constants))
            reason = self._host_reason(node, reads, scope)
            earliest = max((phase_of.get(name, 0) for name in reads), default=0)
            phase = earliest + (earliest % 2 != (0 if reason else 1))
            places.append(_Place(node, reason, reads, phase))
            phase_of.update(dict.fromkeys(filter(None, node.output), phase))
            scope.note_lists(node, reads, bool(reason))
            if reason:
                scope.of_host.update(filter(None, node.output))
        _delay(places)
        return places

    def _host_reason(self, node: onnx.NodeProto, reads: set[str], scope: _Scope) -> str:
        """Why a node runs on the host; "" where it is compiled."""
        reason = _only_host(node)
        if reason:
            return reason
        for name in (*node.output, *sorted(reads)):
            if is_host_type(scope.types.get(name)):
                return f"'{name}' is no tensor of numbers"
        if any(self._has_host_nodes(body, scope) for body in subgraphs_of(node)):
            return "its body holds nodes of the host"
        for name in sorted(reads & scope.of_host):
            if not _has_rank(scope.types.get(name)):
                return f"the number of axes of '{name}' is not known"
        place = _LISTS.get(node.op_type, len(node.input))
        if node.domain in DEFAULT_DOMAINS and set(node.input[place : place + 1]) & scope.open_lists:
            return f"the length of '{node.input[place]}' is not known"
        return ""

    def _has_host_nodes(self, body: onnx.GraphProto, around: _Scope) -> bool:
        scope = replace(_Scope.of(body, around), of_host=set())
        if any(is_host_type(value.type) for value in (*body.input, *body.output)):
            return True
        for node in body.node:
            reads = set(names_read(node))
            if self._host_reason(node, reads, scope):
                return True
            scope.note_lists(node, reads, False)
        return False

    def _is_compiled(self, group: Sequence[_Place], inner: bool) -> bool:
        if not inner or len(group) >= _MANY_NODES:
            return True
        nodes = [place.node for place in group]
        return any(
            node.op_type in _LARGE or subgraphs_of(node) or not has_reference(node, self.opsets)
            for node in nodes
        )

    def _host_node(self, node: onnx.NodeProto, scope: _Scope) -> onnx.NodeProto:
        key = operator_key(node)
        if not (key in HOST_OPERATORS or key in CONTROL_FLOW or has_reference(node, self.opsets)):
            self.unsupported.setdefault(key, []).append(node.name)
        host = onnx.NodeProto()
        host.CopyFrom(node)
        for attribute in host.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                attribute.g.CopyFrom(self.divided(attribute.g, scope))
        return host

    def _part(
        self, group: Sequence[_Place], wanted: set[str], scope: _Scope
    ) -> list[onnx.NodeProto]:
        """The call of a new part of these nodes; none where nobody wants its results."""
        nodes = [place.node for place in group]
        made = {name for node in nodes for name in node.output if name}
        reads = {name for place in group for name in place.reads}
        outputs = [name for node in nodes for name in node.output if name and name in wanted]
        if not outputs:
            return []
        index = len(self.parts)
        inputs = sorted((reads - made) & scope.values)
        inner = sorted((made - set(outputs)) & set(scope.types))
        part = onnx.ModelProto()
        part.CopyFrom(self.model)
        graph = onnx.helper.make_graph(
            nodes,
            f"{self.model.graph.name}_part_{index}",
            [self._value(name, scope) for name in inputs],
            [self._value(name, scope) for name in outputs],
            [scope.constants[name] for name in sorted(reads & set(scope.constants))],
            value_info=[self._value(name, scope) for name in inner],
        )
        part.graph.CopyFrom(graph)
        self.parts.append(part)
        return [part_call(index, inputs, outputs, f"part_{index}")]

    def _value(self, name: str, scope: _Scope) -> onnx.ValueInfoProto:
        """A value as an input or output of a part, with what the model notes of its own."""
        for value in (*self.model.graph.input, *self.model.graph.output):
            if value.name == name:
                return value
        return onnx.ValueInfoProto(name=name, type=scope.types.get(name))


def _graph(graph: onnx.GraphProto, nodes: Sequence[onnx.NodeProto]) -> onnx.GraphProto:
    """The graph with other nodes, and of its constants those that are read or returned."""
    own = _constants(graph)
    used = {value.name for value in graph.output}.union(*(names_read(node) for node in nodes))
    return onnx.helper.make_graph(
        nodes,
        graph.name,
        [value for value in graph.input if value.name not in own],
        graph.output,
        [tensor for name, tensor in own.items() if name in used],
    )


def _delay(places: Sequence[_Place]) -> None:
    """Moves compiled nodes to where they are first needed, so that the last part has most."""
    needed: dict[str, int] = {}
    for place in reversed(places):
        phases = [needed[name] for name in place.node.output if name in needed]
        if not place.reason and phases:
            place.phase = min(phases)
        before = place.phase if not place.reason else place.phase - 1
        for name in place.reads:
            needed[name] = min(before, needed.get(name, before))


def _types(graph: onnx.GraphProto) -> Types:
    found = {
        value.name: value.type
        for value in (*graph.value_info, *graph.output, *graph.input)
        if value.type.WhichOneof("value") is not None
    }
    for tensor in graph.initializer:
        found[tensor.name] = onnx.helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
    return found


def _constants(graph: onnx.GraphProto) -> dict[str, onnx.TensorProto]:
    """Stored tensors by name: initializers, and what Constant nodes hold."""
    found = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and node.domain in DEFAULT_DOMAINS:
            for attribute in node.attribute:
                if attribute.name == "value":
                    tensor = onnx.TensorProto()
                    tensor.CopyFrom(attribute.t)
                    tensor.name = node.output[0]
                    found[tensor.name] = tensor
    return found


def _is_open_list(type_: onnx.TypeProto | None) -> bool:
    """Whether a value is a list of int64, sizes or axes, whose length a run decides."""
    if type_ is None or not _has_rank(type_):
        return False
    tensor = type_.tensor_type
    sizes = tensor.shape.dim
    is_list = tensor.elem_type == onnx.TensorProto.INT64 and len(sizes) == 1
    return is_list and not sizes[0].HasField("dim_value")


def _has_rank(type_: onnx.TypeProto | None) -> bool:
    if type_ is None or type_.WhichOneof("value") != "tensor_type":
        return False
    tensor = type_.tensor_type
    return bool(tensor.HasField("shape")) and tensor.elem_type != onnx.TensorProto.UNDEFINED
