"""Names every dynamic dimension of a model's inputs so that TVM's importer reads a name."""

import re

import onnx

from tvm_ext.onnx_frontend.input_shapes import model_inputs
from tvm_ext.onnx_frontend.scopes import free_names, names_read


def name_dimensions(graph: onnx.GraphProto) -> None:
    """Renames in place, in inputs, outputs and inner values alike.

    The importer calculates with names: ``a/b`` is a division to it, ``1`` the number, and operators
    have no precedence. So an expression becomes a name of its own, and sizes that are unknown (no
    name, "?", or not positive) get a name each.
    """
    named = [(f"{v.name}_{axis}", dim) for v in model_inputs(graph) for axis, dim in _unknown(v)]
    names = {dim.dim_param: dim.dim_param for _, dim in named if _is_plain(dim.dim_param)}
    for position, dim in named:
        given = position if dim.dim_param in ("", "?") else dim.dim_param
        if given not in names:
            names[given] = _free_name(given, names)
        dim.dim_param = names[given]
    for value in (*graph.output, *graph.value_info):
        for _, dim in _unknown(value):
            dim.dim_param = names.get(dim.dim_param, dim.dim_param)


def name_sizes_of_branches(graph: onnx.GraphProto) -> None:
    """Gives sizes of inputs that one branch of an If alone reads names of their own, in place.

    Whoever chooses the other branch feeds something small there: the keys of the encoder in a
    merged decoder without past, under the name of the encoder's length. The first axis keeps its
    name: it is the batch, of which all inputs are.
    """
    side_of = _sides(graph)
    users: dict[str, set[str]] = {}
    for value in model_inputs(graph):
        for _, dim in _unknown(value):
            users.setdefault(dim.dim_param, set()).add(side_of.get(value.name, ""))
    taken = {name: name for name in users}
    for value in model_inputs(graph):
        side = side_of.get(value.name, "")
        for axis, dim in _unknown(value):
            if not (axis and side and dim.dim_param and len(users[dim.dim_param]) > 1):
                continue
            key = f"{dim.dim_param} {side}"
            if key not in taken:
                taken[key] = _free_name(f"{dim.dim_param}_{side}", taken)
            dim.dim_param = taken[key]


def _sides(graph: onnx.GraphProto) -> dict[str, str]:
    """The branch of an If that alone reads a value: ``then`` or ``else``, with the If's place."""
    readers: dict[str, set[str]] = {value.name: {""} for value in graph.output}
    for place, node in enumerate(graph.node):
        sides = {"": list(node.input) if node.op_type == "If" else list(names_read(node))}
        if node.op_type == "If":
            for attribute in node.attribute:
                side = attribute.name.removesuffix("_branch")
                sides[f"{side}{place}"] = list(free_names(attribute.g))
        for side, names in sides.items():
            for name in names:
                readers.setdefault(name, set()).add(side)
    return {name: found.pop() for name, found in readers.items() if len(found) == 1}


def _unknown(value: onnx.ValueInfoProto) -> list[tuple[int, onnx.TensorShapeProto.Dimension]]:
    dims = enumerate(value.type.tensor_type.shape.dim)
    return [(axis, dim) for axis, dim in dims if dim.dim_value <= 0]


def _is_plain(name: str) -> bool:
    return name.isidentifier() and name.isascii()


def _free_name(wanted: str, names: dict[str, str]) -> str:
    name = re.sub(r"[^0-9A-Za-z_]", "_", wanted)
    name = name if _is_plain(name) else f"d_{name}"
    while name in names or name in names.values():
        name += "_"
    return name
