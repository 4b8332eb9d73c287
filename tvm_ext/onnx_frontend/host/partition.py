"""Takes a prepared graph apart into host nodes and compiled parts.

A node runs on the host where it reads or makes what only the host holds, where only the host
can do it, and where only the run knows the number of axes of what it reads or makes: it
depends on a host value without one, or on a list of sizes or axes whose length the run
decides. All other nodes are compiled. They are dealt into as few parts as the order allows:
usually one, with host nodes in front of it or behind.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import onnx
from onnx import TensorProto

from tvm_ext.errors import UnsupportedOperatorError
from tvm_ext.onnx_frontend.host.operators import HOST_OPERATORS
from tvm_ext.onnx_frontend.host.operators.containers import CONTAINER_OPERATORS
from tvm_ext.onnx_frontend.host.operators.operator import has_reference
from tvm_ext.onnx_frontend.host.program import CONTROL_FLOW, part_call
from tvm_ext.onnx_frontend.host.values import is_host_type
from tvm_ext.onnx_frontend.onnx_graph import DEFAULT_DOMAINS, names_read, operator_key, subgraphs_of
from tvm_ext.onnx_frontend.operator_support import is_supported
from tvm_ext.report.records import HostRecord

# Types of values that ONNX's inference leaves open: results of host operators and classifiers.
#
# A compiled part must know the number of axes of what it reads.


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
class GraphPartition:
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


def partition_graph(prepared: onnx.ModelProto, given: onnx.GraphProto) -> GraphPartition | None:
    """The partition of a prepared model; None where all of it can be compiled.

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
        or any(_is_dynamic_list(value.type) for value in prepared.graph.input)
        or _has_host_nodes(prepared.graph)
    )
    if not may_be_divided:
        return None
    model = _with_types(prepared, given)
    partitioner = _Partitioner(model)
    graph = partitioner.divided(model.graph)
    if partitioner.unsupported:
        raise UnsupportedOperatorError(partitioner.unsupported)
    if not partitioner.records:
        return None
    host = onnx.ModelProto()
    host.CopyFrom(model)
    host.graph.CopyFrom(graph)
    return GraphPartition(host, tuple(partitioner.parts), tuple(partitioner.records))


def _has_host_nodes(graph: onnx.GraphProto) -> bool:
    """Whether some node makes what only the host holds, or cannot be compiled."""
    return any(tensor.data_type == TensorProto.STRING for tensor in graph.initializer) or any(
        _only_host(node)
        or _is_container(node)
        or any(_has_host_nodes(body) for body in subgraphs_of(node))
        for node in graph.node
    )


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
    is_known = key in HOST_OPERATORS or _is_container(node)
    return "compiled code has no form of it" if is_known else ""


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
    dynamic_lists : set[str]
        Lists whose length a run decides, as far as a list that the host holds or computes does.
    """

    types: Types
    constants: dict[str, onnx.TensorProto]
    values: set[str]
    of_host: set[str]
    dynamic_lists: set[str]

    @classmethod
    def of(cls, graph: onnx.GraphProto, around: "_Scope | None" = None) -> "_Scope":
        """The scope of a graph, where all values around it come from the host."""
        outer = around or cls({}, {}, set(), set(), set())
        constants = {**outer.constants, **_constants(graph)}
        known = {value.name for value in graph.input} | outer.values
        made = {name for node in graph.node for name in node.output if name}
        types = {**outer.types, **_types(graph)}
        fed = known - set(constants)
        lists = {name for name in fed if _is_dynamic_list(types.get(name))}
        return cls(
            types, constants, (known | made) - set(constants), fed, lists | outer.dynamic_lists
        )

    def note_lists(self, node: onnx.NodeProto, reads: set[str], of_host: bool) -> None:
        """Takes down which results of a node are lists whose length the host decides."""
        if of_host or reads & self.dynamic_lists:
            made = {name for name in node.output if _is_dynamic_list(self.types.get(name))}
            self.dynamic_lists.update(made)


class _Partitioner:
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
        if (
            node.domain in DEFAULT_DOMAINS
            and set(node.input[place : place + 1]) & scope.dynamic_lists
        ):
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


def _is_dynamic_list(type_: onnx.TypeProto | None) -> bool:
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
