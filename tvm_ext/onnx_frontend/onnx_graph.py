"""Names in ONNX graphs (protobuf): operators with their domain and opset, scopes of values.

Converters are found by ``operator_key``. Edits of the same graphs as ``onnx_ir`` are in
``ir_edits``.
"""

from collections.abc import Iterable, Iterator, Mapping

import onnx

DEFAULT_DOMAINS = ("", "ai.onnx")


def operator_key(node: onnx.NodeProto) -> str:
    """``Name`` in the default domain, ``domain::Name`` in every other."""
    return node.op_type if node.domain in DEFAULT_DOMAINS else f"{node.domain}::{node.op_type}"


def split_key(key: str) -> tuple[str, str]:
    """The domain ("" for the default one) and the operator's own name."""
    domain, _, name = key.rpartition("::")
    return domain, name


def opset_of(model: onnx.ModelProto, domain: str) -> int:
    """The opset version that the model imports for a domain; 1 where it imports none."""
    same = DEFAULT_DOMAINS if domain in DEFAULT_DOMAINS else (domain,)
    return next((o.version for o in model.opset_import if o.domain in same), 1)


# Scopes of the names in a graph: which values a body defines, and which it reads from outside.
#
# A name that a body of If, Loop or Scan defines (an input, an initializer, an output of a node)
# hides the same name outside of it, wherever in the body it is defined, and is no read of that
# value.


def subgraphs_of(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """The graphs in the attributes of a node (bodies of If, Loop and Scan)."""
    found = [attr.g for attr in node.attribute if attr.type == onnx.AttributeProto.GRAPH]
    for attr in node.attribute:
        found.extend(attr.graphs)
    return found


def graphs_within(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """The graph, the bodies in it, and the bodies in those."""
    yield graph
    for node in graph.node:
        for subgraph in subgraphs_of(node):
            yield from graphs_within(subgraph)


def nodes_within(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """The nodes of a graph and of all bodies in it."""
    for inner in graphs_within(graph):
        yield from inner.node


def defined_names(graph: onnx.GraphProto) -> dict[str, None]:
    """What a graph itself defines, bodies in it left out, in order."""
    named = [value.name for value in graph.input]
    named += [tensor.name for tensor in graph.initializer]
    named += [tensor.values.name for tensor in graph.sparse_initializer]
    named += [name for node in graph.node for name in node.output]
    return dict.fromkeys(filter(None, named))


def free_names(graph: onnx.GraphProto) -> dict[str, None]:
    """What a body, or a body in it, reads or passes on and does not define, in order."""
    own = defined_names(graph)
    read = [name for node in graph.node for name in names_read(node)]
    read += [value.name for value in graph.output]
    return dict.fromkeys(name for name in read if name not in own)


def names_read(node: onnx.NodeProto) -> dict[str, None]:
    """Every value that a node may read, in order: its inputs, and what its bodies read outside."""
    names = dict.fromkeys(filter(None, node.input))
    for subgraph in subgraphs_of(node):
        names |= free_names(subgraph)
    return names


def copy_passed_on(graph: onnx.GraphProto) -> None:
    """Has bodies copy, in place, the outer values that they pass on; the checker wants a node."""
    for inner in graphs_within(graph):
        for body in (body for node in inner.node for body in subgraphs_of(node)):
            own = defined_names(body)
            for number, value in enumerate(body.output):
                if value.name not in own:
                    copied = f"{value.name}/{body.name}/{number}"
                    body.node.add(op_type="Identity", input=[value.name], output=[copied])
                    value.name = copied


def tell_names_apart(model: onnx.ModelProto) -> None:
    """Renames in place what a body defines under a name that is defined elsewhere as well.

    Afterwards a name means one value in the whole graph, for whoever looks names up without scopes.
    Each function of the model is a world of its own.
    """
    _tell_apart(model.graph.node, set(defined_names(model.graph)))
    for function in model.functions:
        outputs = (name for node in function.node for name in node.output)
        _tell_apart(function.node, {*function.input, *outputs})


def _tell_apart(nodes: Iterable[onnx.NodeProto], taken: set[str]) -> None:
    """``taken`` are the names of the scope of these nodes; gains those of the bodies in them."""
    bodies = [body for node in nodes for body in subgraphs_of(node)]
    later = {name for body in bodies for graph in graphs_within(body) for name in _names(graph)}
    for body in bodies:
        _rename(body, {}, taken, later)


def _names(graph: onnx.GraphProto) -> list[str]:
    return [*defined_names(graph), *(name for node in graph.node for name in node.input)]


def _rename(
    graph: onnx.GraphProto, around: Mapping[str, str], taken: set[str], avoided: set[str]
) -> None:
    """Renames what a body defines if it is ``taken``; ``around`` says what became of free names."""
    own = defined_names(graph)
    names = {old: new for old, new in around.items() if old not in own}
    for name in own:
        if name in taken:
            names[name] = _unused(name, taken, avoided)
        taken.add(names.get(name, name))
    if names:
        _apply(graph, names)
    for node in graph.node:
        for body in subgraphs_of(node):
            _rename(body, names, taken, avoided)


def _unused(name: str, taken: set[str], avoided: set[str]) -> str:
    number = 1
    while (found := f"{name}_{number}") in taken or found in avoided:
        number += 1
    return found


def _apply(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    stored = [*graph.initializer, *(tensor.values for tensor in graph.sparse_initializer)]
    for value in (*graph.input, *graph.output, *graph.value_info, *stored):
        value.name = names.get(value.name, value.name)
    for node in graph.node:
        for listed in (node.input, node.output):
            listed[:] = [names.get(name, name) for name in listed]


# ONNX Runtime's own domain, and its operators that models have in the default one.


MICROSOFT = "com.microsoft"
# The domain of operators that the default one lacks: ExpertMatMul, products with the weights of
# chosen experts, and AppendRows, new keys behind those that each sequence has.
INTERNAL = "tvm_ext.internal"

# A property of a node of ONNX Runtime's that is left as it is: why it has no other form.
WHY_NOT = "tvm_ext.why_not"

# An attribute of the LSTM that a DynamicQuantizeLSTM becomes: its state is rounded to 8 bits,
# sequence by sequence, before it is multiplied.
QUANTIZED_STATE = "tvm_ext_quantized_state"

# Attributes of such an LSTM: the steps of its weights W and R, one number for each row of both. The
# weights are whole numbers of them.
INPUT_STEPS = "tvm_ext_input_steps"
RECURRENT_STEPS = "tvm_ext_recurrent_steps"

# The opset in which ONNX took over an operator that ONNX Runtime registers in the default domain
# for every one; None for one that it never took over. Its optimiser writes them so.
_TAKEN_OVER: dict[str, int | None] = {
    "Gelu": 20,
    "LayerNormalization": 17,
    "SimplifiedLayerNormalization": None,
}


def name_own_operators(model: onnx.ModelProto) -> None:
    """Gives such operators their own domain, in place: ONNX's checker knows none of them.

    A model that uses the domain imports it then, which ONNX Runtime does not ask for.
    """
    opset = opset_of(model, "")
    nodes = list(nodes_within(model.graph))
    for node in nodes:
        if _is_own(node, opset):
            node.domain = MICROSOFT
    used = any(node.domain == MICROSOFT for node in nodes)
    if used and all(opset.domain != MICROSOFT for opset in model.opset_import):
        model.opset_import.append(onnx.helper.make_opsetid(MICROSOFT, 1))


def _is_own(node: onnx.NodeProto, opset: int) -> bool:
    if node.domain not in DEFAULT_DOMAINS or node.op_type not in _TAKEN_OVER:
        return False
    since = _TAKEN_OVER[node.op_type]
    return since is None or opset < since
