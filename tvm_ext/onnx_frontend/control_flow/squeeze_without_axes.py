"""Squeeze that names no axes, where only the run knows which sizes are 1.

The rank of its result differs with the sizes, so it is written as a choice, and the nodes behind it
go where ``convert_if`` puts them:

    Before: ``y = Squeeze(x)`` with x of [n, 1, 3]
    After:  ``y = If(n == 1) {Squeeze(x, [0, 1])} {Squeeze(x, [1])}``
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import onnx
from onnx import helper
from tvm import relax

from tvm_ext.errors import FormError
from tvm_ext.onnx_frontend.converters.arguments import Size, sizes_of
from tvm_ext.onnx_frontend.converters.shape_constraints import equal_sizes
from tvm_ext.onnx_frontend.onnx_graph import operator_key
from tvm_ext.onnx_frontend.sizes.scalar_rules import analyzer_of

# Sizes that may be 1: each doubles the forms of all that follows.
_MOST_SYMBOLIC_SIZES = 3


def with_named_axes(node: onnx.NodeProto, data: Any, opset: int) -> Sequence[onnx.NodeProto] | None:
    """The nodes in place of a Squeeze of ``data`` without axes; None for any other node.

    Raises
    ------
    FormError
        Too many sizes are symbolic for a form of the program for each choice.
    """
    if not _names_no_axes(node) or not _is_symbolic(data):
        return None
    sizes = sizes_of(data)
    ones = [axis for axis, size in enumerate(sizes) if equal_sizes(size, 1)]
    symbolic_axes = [axis for axis, size in enumerate(sizes) if _may_be_one(size)]
    groups: list[list[int]] = []
    for axis in symbolic_axes:
        same = [group for group in groups if equal_sizes(sizes[group[0]], sizes[axis])]
        if same:
            same[0].append(axis)
        else:
            groups.append([axis])
    if len(groups) > _MOST_SYMBOLIC_SIZES:
        raise FormError(
            f"it names no axes, and the rank of its output depends on {len(groups)} sizes that "
            "only the run knows"
        )
    return _Choice(node, opset).nodes(ones, groups, node.name, node.output[0])


def _names_no_axes(node: onnx.NodeProto) -> bool:
    return (
        operator_key(node) == "Squeeze"
        and not any(node.input[1:])
        and not any(a.name == "axes" and a.ints for a in node.attribute)
    )


def _is_symbolic(data: Any) -> bool:
    ty = data.ty if isinstance(data, relax.Var) else None
    if not isinstance(ty, relax.TensorType) or not isinstance(ty.shape, relax.ShapeExpr):
        return False
    return any(not isinstance(size, int) for size in sizes_of(data))


def _may_be_one(size: Size) -> bool:
    return not isinstance(size, int) and not analyzer_of(size).can_prove(size != 1)


@dataclass(frozen=True)
class _Choice:
    """Writes one Squeeze out."""

    node: onnx.NodeProto
    opset: int

    def nodes(
        self, ones: list[int], groups: Sequence[list[int]], name: str, result: str
    ) -> list[onnx.NodeProto]:
        """What gives ``result``: the axes ``ones`` go, those of a group where the run says so."""
        if not groups:
            return self._squeeze(sorted(ones), name, result)
        first, rest = groups[0], groups[1:]
        made = {
            branch: helper.make_graph(
                self.nodes(axes, rest, f"{name}/{branch}", f"{name}/{branch}"),
                branch,
                [],
                [onnx.ValueInfoProto(name=f"{name}/{branch}")],
            )
            for branch, axes in (("then_branch", [*ones, *first]), ("else_branch", ones))
        }
        place, one = f"{name}/axis", f"{name}/one"
        sizes, size, is_one = f"{name}/sizes", f"{name}/size", f"{name}/is_one"
        return [
            helper.make_node("Constant", [], [place], name=place, value=_scalar(first[0])),
            helper.make_node("Constant", [], [one], name=one, value=_scalar(1)),
            helper.make_node("Shape", self.node.input[:1], [sizes], name=sizes),
            helper.make_node("Gather", [sizes, place], [size], name=size),
            helper.make_node("Equal", [size, one], [is_one], name=is_one),
            helper.make_node("If", [is_one], [result], name=name, **made),
        ]

    def _squeeze(self, axes: list[int], name: str, result: str) -> list[onnx.NodeProto]:
        data = self.node.input[0]
        if not axes:
            return [helper.make_node("Identity", [data], [result], name=name)]
        if self.opset < 13:
            return [helper.make_node("Squeeze", [data], [result], name=name, axes=axes)]
        listed = f"{name}/axes"
        stored = helper.make_tensor(listed, onnx.TensorProto.INT64, [len(axes)], axes)
        return [
            helper.make_node("Constant", [], [listed], name=listed, value=stored),
            helper.make_node("Squeeze", [data, listed], [result], name=name),
        ]


def _scalar(value: int) -> onnx.TensorProto:
    return helper.make_tensor("value", onnx.TensorProto.INT64, [], [value])
