"""Small edits of an ONNX graph in memory: constants, nodes and bodies in front of a node."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from tvm_ext.onnx_frontend.iterations import number_copy


class Inserter:
    """Puts nodes in front of one node, with names that begin with a prefix."""

    def __init__(self, before: ir.Node, prefix: str) -> None:
        if before.graph is None:
            raise ValueError(f"node '{before.name}' is in no graph")
        self.before, self.graph, self.prefix = before, before.graph, prefix
        self._count = 0

    def node(self, op_type: str, inputs: Sequence[ir.Value | None], **attributes: Any) -> ir.Value:
        """The only output of a new node."""
        name = self._name(op_type)
        added = ir.node(op_type, list(inputs), attributes, name=name)
        added.outputs[0].name = name
        self.graph.insert_before(self.before, added)
        return added.outputs[0]

    def constant(self, array: np.ndarray) -> ir.Value:
        """A constant as a node."""
        name = self._name("constant")
        value = self.node("Constant", [], value=ir.tensor(array, name=name))
        value.const_value = ir.tensor(array, name=name)
        value.shape, value.dtype = ir.Shape(array.shape), ir.DataType.from_numpy(array.dtype)
        return value

    def size(self, value: ir.Value, axis: int) -> ir.Value:
        """One size of a value, int64[]."""
        at = self.constant(np.array(axis, np.int64))
        size = self.node("Gather", [self.node("Shape", [value]), at], axis=0)
        size.dtype, size.shape = ir.DataType.INT64, ir.Shape([])
        return size

    def body(self, body: ir.Graph, inputs: Sequence[ir.Value], iteration: int) -> list[ir.Value]:
        """The outputs of a copy of ``body`` for an iteration, with these values for its inputs."""
        copy = body.clone(allow_outer_scope_values=True)
        outputs = list(copy.outputs)
        copy.outputs.clear()
        given = dict(zip(copy.inputs, inputs, strict=True))
        for formal, actual in given.items():
            formal.replace_all_uses_with(actual)
        for value in list(copy.initializers.values()):
            stored = self.constant(value.const_value.numpy())
            given[value] = stored
            value.replace_all_uses_with(stored)
        nodes = list(copy)
        copy.remove(nodes)
        for node in nodes:
            self._take_over(node)
            number_copy(node, iteration)
        self.graph.insert_before(self.before, nodes)
        return [given.get(value, value) for value in outputs]

    def _take_over(self, node: ir.Node) -> None:
        node.name = f"{self.prefix}/{node.name or node.op_type}"
        for value in node.outputs:
            if value.name:
                value.name = f"{self.prefix}/{value.name}"
            # The body's shapes may hold in some iterations only; inference finds them anew.
            value.shape = None

    def _name(self, kind: str) -> str:
        self._count += 1
        return f"{self.prefix}/{kind}_{self._count}"


def constant_of(value: ir.Value | None) -> np.ndarray | None:
    """The value when it is constant."""
    if value is None:
        return None
    tensor = ir.convenience.get_const_tensor(value)
    return None if tensor is None else tensor.numpy()


def replace_outputs(node: ir.Node, values: Sequence[ir.Value]) -> None:
    """Has everything that reads the node's outputs read ``values``, and removes the node."""
    for output, value in zip(node.outputs, values, strict=False):
        name = output.name
        output.replace_all_uses_with(value, replace_graph_outputs=True)
        if value.is_graph_output() and name and value.name != name:
            output.name, value.name = f"{name}/before", name
    if node.graph is not None:
        node.graph.remove(node, safe=True)


def opset_of(model: ir.Model) -> int:
    """The version of the default domain; bodies follow their model."""
    return next((v for d, v in model.opset_imports.items() if d in ("", "ai.onnx")), 1)
