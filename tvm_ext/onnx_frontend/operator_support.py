"""Which operators have a converter, and ONNX's function bodies in place of others.

Subgraphs are looked into, and all of it happens before any work is done.
"""

from collections.abc import Callable

import onnx
import onnx_ir as ir

from tvm_ext.errors import UnsupportedOperatorError
from tvm_ext.onnx_frontend.converters import CONVERTERS
from tvm_ext.onnx_frontend.onnx_graph import DEFAULT_DOMAINS, WHY_NOT, graphs_within, operator_key
from tvm_ext.onnx_frontend.tvm_compat import onnx_converter_names

# TVM's table of converters knows no domains; these are the names that it implements for
# com.microsoft, the rest of it is for the default domain.
_MICROSOFT_NAMES = frozenset(
    {
        "Attention",
        "BiasGelu",
        "EmbedLayerNormalization",
        "FastGelu",
        "Gelu",
        "SkipLayerNormalization",
    }
)
_ONLY_MICROSOFT = _MICROSOFT_NAMES - {"Gelu"}


# What a converter gives one result of: ONNX's function bodies compute the others too.
_ONE_RESULT = frozenset({"LayerNormalization"})


def is_supported(node: onnx.NodeProto) -> bool:
    """Whether the importer has a converter for this node that computes the right thing."""
    name = node.op_type
    if operator_key(node) in _ONE_RESULT and any(node.output[1:]):
        return False
    if operator_key(node) in CONVERTERS:
        return True
    if node.domain == "com.microsoft":
        return name in _MICROSOFT_NAMES and name in onnx_converter_names()
    if node.domain not in DEFAULT_DOMAINS or name in _ONLY_MICROSOFT:
        return False
    return name in onnx_converter_names() or name in ("Constant", "If", "Loop")


def unsupported_operators(graph: onnx.GraphProto) -> dict[str, list[str]]:
    """Unsupported operators (``domain::Name`` outside the default domain) and their node names.

    Bodies of If, Loop and Scan are looked into, also where the outer operator is unsupported.
    """
    found: dict[str, list[str]] = {}
    for inner in graphs_within(graph):
        for index, node in enumerate(inner.node):
            if not is_supported(node):
                name = node.name or f"{node.op_type}_{index}"
                found.setdefault(operator_key(node), []).append(name)
    return found


def require_supported(graph: onnx.GraphProto) -> None:
    """Raises UnsupportedOperatorError, which lists every unsupported operator of the graph."""
    found = unsupported_operators(graph)
    if found:
        raise UnsupportedOperatorError(found, _reasons(graph))


def _reasons(graph: onnx.GraphProto) -> dict[str, str]:
    """By name of a node, why it was left as it is where its operator has another form."""
    return {
        node.name: entry.value
        for inner in graphs_within(graph)
        for node in inner.node
        for entry in node.metadata_props
        if entry.key == WHY_NOT and node.name
    }


# Expands operators that have no converter of their own by the function bodies of ONNX's schemas.
#
# About a third of ONNX's operators are functions: their schema spells them out in other
# operators, for some depending on the attributes and the types at hand (Attention,
# NegativeLogLikelihoodLoss).


# A domain of our own: the call of a body must not meet a function of the model.
_DOMAIN = "tvm_ext.function_bodies"


def expand_functions(model: ir.Model) -> bool:
    """Replaces such nodes in place, those in bodies of If, Loop and Scan too; whether any was.

    Types must have been inferred: bodies depend on them. The nodes of a body are named after the
    node that they replace. Bodies may hold functions again: call it until it says False.
    """
    found = False
    for node in list(model.graph.all_nodes()):
        schema = _schema(node, model)
        if schema is None or not _needs_expansion(node, schema):
            continue
        body = _body(node, schema, model)
        if body is None:
            continue
        function = _named_after(node, body, model)
        model.functions[function.identifier()] = function
        _call(node, function, schema)
        found = True
    if found:
        ir.passes.common.InlinePass()(model)
    return found


def align_opsets(model: ir.Model) -> None:
    """Has functions of the model follow its version of the default domain, in place.

    skl2onnx writes older ones; they cannot be inlined as they are. A function with an operator that
    means something else in the model's version stays as it is.
    """
    version = _opset("", model)
    for function in model.functions.values():
        if function.opset_imports.get("", version) == version:
            continue
        nodes = [node for node in function.all_nodes() if node.domain in DEFAULT_DOMAINS]
        if all(_means_the_same(ir.serde.serialize_node(node), version) for node in nodes):
            function.opset_imports[""] = version


def _needs_expansion(node: ir.Node, schema: onnx.defs.OpSchema) -> bool:
    if not (schema.has_function or schema.has_context_dependent_function):
        return False
    narrow = _TOO_NARROW.get(node.op_type)
    if narrow is not None and node.domain in DEFAULT_DOMAINS and narrow(node):
        return True
    return not is_supported(ir.serde.serialize_node(node))


def _scales_every_axis(node: ir.Node) -> bool:
    """TVM's kernel for a normalisation over all axes reads one-dimensional data with no index."""
    axis = node.attributes.get("axis")
    rank = len(node.inputs[0].shape) if node.inputs[0] and node.inputs[0].shape is not None else 0
    return axis is not None and axis.as_int() in (0, -rank)


# Forms on which TVM's converter or the lowering of what it makes fails.
_TOO_NARROW: dict[str, Callable[[ir.Node], bool]] = {"RMSNormalization": _scales_every_axis}


def _schema(node: ir.Node, model: ir.Model) -> onnx.defs.OpSchema | None:
    version = _opset(node.domain, model)
    try:
        return onnx.defs.get_schema(node.op_type, version, node.domain)
    except onnx.defs.SchemaError:
        return None


def _opset(domain: str, model: ir.Model) -> int:
    return model.opset_imports.get("" if domain in DEFAULT_DOMAINS else domain, 1)


def _body(node: ir.Node, schema: onnx.defs.OpSchema, model: ir.Model) -> onnx.FunctionProto | None:
    """The body in the operator set of the model, or an older one that means the same in it.

    ONNX gives none where an operator in the body has a newer version, even if it only takes more
    types than before. Bodies of other domains follow the version of their domain, and hold the
    operators of the default domain as they are today.
    """
    version = _opset("", model)
    if node.domain not in DEFAULT_DOMAINS:
        body = _body_in(node, schema, _opset(node.domain, model))
        is_valid = body is not None and all(_is_valid(inner, version) for inner in body.node)
        return body if is_valid else None
    wanted = _body_in(node, schema, version)
    if wanted is not None:
        return wanted
    versions = {*schema.function_opset_versions, *schema.context_dependent_function_opset_versions}
    for older in sorted((v for v in versions if v < version), reverse=True):
        body = _body_in(node, schema, older)
        if body is not None and all(_means_the_same(inner, version) for inner in body.node):
            return body
    return None


def _body_in(node: ir.Node, schema: onnx.defs.OpSchema, version: int) -> onnx.FunctionProto | None:
    if schema.has_context_dependent_function:
        types = [_type_of(value) for value in node.inputs]
        proto = ir.serde.serialize_node(node).SerializeToString()
        data = schema.get_context_dependent_function_with_opset_version(version, proto, types)
    else:
        data = schema.get_function_with_opset_version(version)
    body = onnx.FunctionProto.FromString(data) if data else None
    return body if body is not None and body.node else None


def _means_the_same(node: onnx.NodeProto, version: int) -> bool:
    """Whether a node of an older operator set is valid in this one, with the same meaning.

    Softmax and its like kept their attributes and changed (set 13).
    """
    changed = node.op_type in ("Softmax", "LogSoftmax", "Hardmax")
    return _is_valid(node, version) and not changed


def _is_valid(node: onnx.NodeProto, version: int) -> bool:
    """Whether a node has inputs and attributes that its operator has in this operator set.

    Operators whose attributes became inputs do not have them any more.
    """
    try:
        schema = onnx.defs.get_schema(node.op_type, version, node.domain)
    except onnx.defs.SchemaError:
        return False
    known = all(attribute.name in schema.attributes for attribute in node.attribute)
    fits = schema.min_input <= len(node.input) <= schema.max_input
    return known and fits


def _type_of(value: ir.Value | None) -> bytes:
    """The serialised type of an input; empty for one that is absent or not known."""
    described = onnx.ValueInfoProto()
    if value is not None and value.type is not None:
        described = ir.serde.serialize_value(value)
    return described.type.SerializeToString()


def _named_after(node: ir.Node, body: onnx.FunctionProto, model: ir.Model) -> ir.Function:
    """The body as a function that only this node calls, in the operator sets of the model."""
    body.domain, body.name = _DOMAIN, f"{node.op_type}_{node.name}"
    _complete_outputs(body, len(node.outputs))
    for index, inner in enumerate(body.node):
        inner.name = f"{node.name}/{inner.op_type}_{index}"
    versions = {opset.domain: opset.version for opset in body.opset_import}
    versions = {domain: model.opset_imports.get(domain, v) for domain, v in versions.items()}
    versions[""] = _opset("", model)
    del body.opset_import[:]
    body.opset_import.extend(onnx.helper.make_opsetid(d, v) for d, v in versions.items())
    return ir.serde.deserialize_function(body)


def _complete_outputs(body: onnx.FunctionProto, count: int) -> None:
    """Gives the body ``count`` outputs, each a value of its own.

    Bodies name all outputs of the operator and compute what a node uses; an input that is passed
    on as it is would take the name of the output.
    """
    del body.output[count:]
    produced = {name for node in body.node for name in node.output}
    for index, name in enumerate(body.output):
        if name in body.input:
            body.output[index] = f"{name}_passed_on"
            body.node.append(onnx.helper.make_node("Identity", [name], [body.output[index]]))
        elif name not in produced:
            body.node.append(onnx.helper.make_node("Constant", [], [name], value_int=0))


def _call(node: ir.Node, function: ir.Function, schema: onnx.defs.OpSchema) -> None:
    """Turns the node into a call of the function, with the defaults of the schema written out."""
    node.domain, node.op_type = function.domain, function.name
    for name, value in list(node.attributes.items()):
        # A graph is part of the body already, and the inliner takes none.
        if value.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
            del node.attributes[name]
    for name, value in schema.attributes.items():
        if value.default_value.name:
            node.attributes.setdefault(name, ir.serde.deserialize_attribute(value.default_value))
