"""Joins many tensors of open sizes group by group.

An element of a Concat finds its source by comparing its place with the sum of the sizes ahead. Of
sizes that the run decides these sums stay expressions, and a kernel of 90 of them took minutes to
compile. A kernel of a few is quick, and what it makes has one size again.
"""

import onnx_ir as ir

from tvm_ext.onnx_frontend.ir_edits import Inserter

_GROUP = 8


def concat_in_groups(node: ir.Node) -> None:
    """Puts Concats of a few inputs in front of one of many, in place."""
    axis = node.attributes["axis"].as_int()
    parts = [value for value in node.inputs if value is not None]
    if len(parts) <= _GROUP or all(_is_known(value, axis) for value in parts):
        return
    inserter = Inserter(node, f"{node.name}/group")
    while len(parts) > _GROUP:
        groups = [parts[start : start + _GROUP] for start in range(0, len(parts), _GROUP)]
        parts = [_joined(inserter, group, axis) for group in groups]
    node.resize_inputs(len(parts))
    for place, value in enumerate(parts):
        node.replace_input_with(place, value)


def _is_known(value: ir.Value, axis: int) -> bool:
    return value.shape is not None and isinstance(value.shape[axis], int)


def _joined(inserter: Inserter, group: list[ir.Value], axis: int) -> ir.Value:
    if len(group) == 1:
        return group[0]
    joined = inserter.node("Concat", group, axis=axis)
    joined.dtype = group[0].dtype
    return joined
