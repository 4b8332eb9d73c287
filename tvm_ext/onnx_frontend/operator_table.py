"""Which operators of a model, or of all that ONNX has, can be compiled, and how.

Run as a module it writes docs/reference/operators.md from the table: ``make docs``.
"""

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx

from tvm_ext.configs.atomic_file import write_text
from tvm_ext.errors import UnsupportedOperatorError
from tvm_ext.onnx_frontend import PreparedModel, import_prepared, part_of, prepare_model
from tvm_ext.onnx_frontend.converters import CONVERTERS
from tvm_ext.onnx_frontend.host.operators import HOST_OPERATORS
from tvm_ext.onnx_frontend.host.partition import partition_graph
from tvm_ext.onnx_frontend.microsoft import REWRITES, SAME
from tvm_ext.onnx_frontend.ml_rewrites import ROUNDED
from tvm_ext.onnx_frontend.onnx_graph import INTERNAL, MICROSOFT, nodes_within, operator_key
from tvm_ext.onnx_frontend.operator_support import is_supported, unsupported_operators

SUPPORTED = "supported"
EXPANDED = "by expansion"
ON_HOST = "on the host"
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
        model, or a rewrite of ours), ON_HOST (computed with NumPy around the compiled code) or
        UNSUPPORTED.
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
    model = ready.model
    parts, refused, on_host = _places(ready)
    found: dict[tuple[str, str], list[str]] = {}
    for node in nodes_within(model.graph):
        support = _support(node, model, refused, on_host)
        found.setdefault((operator_key(node), support), []).append(node.name)
    order = (UNSUPPORTED, ON_HOST, EXPANDED, SUPPORTED)
    uses = [OperatorUse(key, support, tuple(nodes)) for (key, support), nodes in found.items()]
    for part in parts if not refused else ():
        import_prepared(*part)
    return sorted(uses, key=lambda use: (order.index(use.support), use.operator))


def _places(ready: PreparedModel) -> tuple[list[PreparedModel], list[str], list[str]]:
    """What is compiled of a model, and the names of nodes that are refused or run on the host."""
    try:
        partition = partition_graph(ready.prepared, ready.model.graph)
    except UnsupportedOperatorError as error:
        return [], [node for names in error.operators.values() for node in names], []
    parts = [ready] if partition is None else [part_of(ready, part) for part in partition.parts]
    refused = [
        node
        for part in parts
        for names in unsupported_operators(part.prepared.graph).values()
        for node in names
    ]
    return parts, refused, [one.node for one in partition.records] if partition is not None else []


def _support(
    node: onnx.NodeProto, model: onnx.ModelProto, refused: Sequence[str], on_host: Sequence[str]
) -> str:
    # What a node is expanded into is named after it.
    if any(name == node.name or name.startswith(f"{node.name}/") for name in refused):
        return UNSUPPORTED
    if node.name in on_host:
        return ON_HOST
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
    found |= {f"{domain}::{name}" if domain else name: EXPANDED for domain, name in REWRITES}
    found |= {f"{MICROSOFT}::{name}": EXPANDED for name in SAME}
    found |= {key: ON_HOST for key in HOST_OPERATORS if key not in found}
    found |= {key: SUPPORTED for key in CONVERTERS if not key.startswith((ROUNDED, INTERNAL))}
    return dict(sorted(found.items(), key=lambda item: ("::" in item[0], item[0])))


def _support_of(node: onnx.NodeProto, schema: onnx.defs.OpSchema) -> str:
    if is_supported(node):
        return SUPPORTED
    if operator_key(node) in HOST_OPERATORS:
        return ON_HOST
    has_body = schema.has_function or schema.has_context_dependent_function
    return EXPANDED if has_body else UNSUPPORTED


# Writes docs/reference/operators.md from the table of operators: ``make docs``.


_ORDER = (SUPPORTED, EXPANDED, ON_HOST, UNSUPPORTED)

_HEAD = """# ONNX operators

Written by `make docs` from the table that `tvm-ext compile --dry-run` prints; do not edit.

- **supported**: has a converter, ours or TVM's;
- **by expansion**: is taken apart into other operators first, by the function body in ONNX's
  schema or by a rewrite;
- **on the host**: is about strings, sequences, maps or optionals, and computed with NumPy around
  the compiled code;
- **unsupported**: a model with it is refused, with the names of its nodes.

Operator sets 7 to {newest} of the default domain. A supported operator may have forms that are
refused in one line that names the node and the form: `tvm-ext compile --dry-run model.onnx` tries
all of a model's. Where strings, sequences whose length is known only in a run, maps or optionals
meet any operator, the host computes it, by the onnx package's reference implementation if need be.
"""


def operators_page() -> str:
    """The page, as Markdown."""
    found = all_operators()
    counts = Counter(found.values())
    lines = [_HEAD.format(newest=onnx.defs.onnx_opset_version())]
    lines.append(", ".join(f"{counts[one]} {one}" for one in _ORDER) + ".\n")
    for domain in dict.fromkeys(key.rpartition("::")[0] for key in found):
        lines += [f"## {domain or 'ai.onnx (the default domain)'}\n"]
        lines += ["| operator | support |", "| --- | --- |"]
        for key, support in found.items():
            if key.rpartition("::")[0] == domain:
                lines.append(f"| {key.rpartition('::')[2]} | {support} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    write_text(Path(sys.argv[1]), operators_page())
