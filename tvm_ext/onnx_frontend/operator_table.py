"""Which operators of a model, or of all that ONNX has, can be compiled, and how."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx

from tvm_ext.onnx_frontend import import_prepared, prepare_model
from tvm_ext.onnx_frontend.converters import CONVERTERS
from tvm_ext.onnx_frontend.microsoft_domain import MICROSOFT
from tvm_ext.onnx_frontend.microsoft_rewrites import REWRITES, SAME
from tvm_ext.onnx_frontend.operator_key import operator_key
from tvm_ext.onnx_frontend.scopes import nodes_within
from tvm_ext.onnx_frontend.support import is_supported, unsupported_operators

SUPPORTED = "supported"
EXPANDED = "by expansion"
UNSUPPORTED = "unsupported"


@dataclass(frozen=True)
class OperatorUse:
    """One operator of a model.

    Attributes
    ----------
    operator : str
        ``Name`` in the default domain, ``domain::Name`` in every other.
    support : str
        SUPPORTED, EXPANDED (into other operators: the body in ONNX's schema, a function of the
        model, or a rewrite of ours) or UNSUPPORTED.
    nodes : tuple[str, ...]
        The nodes that use it so, those in bodies of If, Loop and Scan too.
    """

    operator: str
    support: str
    nodes: tuple[str, ...]


def operator_uses(
    source: str | Path | onnx.ModelProto,
    input_shapes: Mapping[str, Sequence[int | str]] | None = None,
) -> list[OperatorUse]:
    """Every operator of a model, unsupported ones first, then by name.

    The model is prepared as for compiling, so that a node counts as what becomes of it: one that is
    folded away needs no converter. Where all operators are supported, the graph is converted too,
    since an operator may still be used in a form that cannot be compiled.

    Raises
    ------
    ModelError, InputError
        The model or the shapes given for it are not valid, or a node has a form that cannot be
        converted; the message names it.
    """
    ready = prepare_model(source, input_shapes)
    model, prepared = ready.model, ready.prepared
    refused = [node for names in unsupported_operators(prepared.graph).values() for node in names]
    found: dict[tuple[str, str], list[str]] = {}
    for node in nodes_within(model.graph):
        support = _support(node, model, refused)
        found.setdefault((operator_key(node), support), []).append(node.name)
    order = (UNSUPPORTED, EXPANDED, SUPPORTED)
    uses = [OperatorUse(key, support, tuple(nodes)) for (key, support), nodes in found.items()]
    if not refused:
        import_prepared(*ready)
    return sorted(uses, key=lambda use: (order.index(use.support), use.operator))


def _support(node: onnx.NodeProto, model: onnx.ModelProto, refused: Sequence[str]) -> str:
    # What a node is expanded into is named after it.
    if any(name == node.name or name.startswith(f"{node.name}/") for name in refused):
        return UNSUPPORTED
    is_function = any((f.domain, f.name) == (node.domain, node.op_type) for f in model.functions)
    return EXPANDED if is_function or not is_supported(node) else SUPPORTED


def all_operators() -> dict[str, str]:
    """By operator, its support: all of the onnx package that are not deprecated, and ours beyond.

    An operator that is supported may still have forms that are refused when a model has them.
    """
    found = {}
    for schema in onnx.defs.get_all_schemas():
        node = onnx.helper.make_node(schema.name, [], [], domain=schema.domain)
        if not schema.deprecated:
            found[operator_key(node)] = _support_of(node, schema)
    found |= {f"{MICROSOFT}::{name}": EXPANDED for name in (*REWRITES, *SAME)}
    found |= {key: SUPPORTED for key in CONVERTERS}
    return dict(sorted(found.items(), key=lambda item: ("::" in item[0], item[0])))


def _support_of(node: onnx.NodeProto, schema: onnx.defs.OpSchema) -> str:
    if is_supported(node):
        return SUPPORTED
    has_body = schema.has_function or schema.has_context_dependent_function
    return EXPANDED if has_body else UNSUPPORTED
