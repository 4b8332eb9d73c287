"""Names every dynamic dimension of a model's inputs so that TVM's importer reads a name."""

import re

import onnx

from tvm_ext.onnx_frontend.input_shapes import model_inputs


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
