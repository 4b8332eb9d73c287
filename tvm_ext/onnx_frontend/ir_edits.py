"""Small edits of an ONNX graph in memory (``onnx_ir``): new nodes, numbered copies of bodies."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from tvm_ext.errors import FormError
from tvm_ext.onnx_frontend.converters import CONVERTERS
from tvm_ext.onnx_frontend.converters.arguments import draws_numbers
from tvm_ext.onnx_frontend.converters.random import ITERATIONS
from tvm_ext.onnx_frontend.onnx_graph import DEFAULT_DOMAINS, nodes_within, operator_key

# The iterations of loops in which a node draws random numbers, which make these numbers differ.
#
# In the body of a Loop the iteration numbers around a node are a value beside those of the graph,
# and reach bodies of bodies like any value from outside. A loop that was written out has no such
# value: there every copy of the node holds its number.


def draws_inside(graph: onnx.GraphProto) -> bool:
    """Whether a node of a body, or of the bodies in it, draws random numbers."""
    return any(draws_numbers(CONVERTERS.get(operator_key(node))) for node in nodes_within(graph))


def number_copy(node: ir.Node, iteration: int) -> None:
    """Notes the iteration that a copy of a loop's node stands for, inside of those noted before."""
    nodes = [node, *(inner for graph in _bodies(node) for inner in graph.all_nodes())]
    for one in nodes:
        if one.domain in DEFAULT_DOMAINS and draws_numbers(CONVERTERS.get(one.op_type)):
            around = one.metadata_props.get(ITERATIONS)
            one.metadata_props[ITERATIONS] = f"{around},{iteration}" if around else str(iteration)


def written_iterations(node: onnx.NodeProto) -> str:
    """What ``number_copy`` noted: numbers with commas, or nothing."""
    return next((entry.value for entry in node.metadata_props if entry.key == ITERATIONS), "")


def _bodies(node: ir.Node) -> list[ir.Graph]:
    kinds = ir.AttributeType
    found = [a.as_graph() for a in node.attributes.values() if a.type == kinds.GRAPH]
    for attribute in node.attributes.values():
        if attribute.type == kinds.GRAPHS:
            found += list(attribute.as_graphs())
    return found


class Inserter:
    """Puts nodes in front of one node, with names that begin with a prefix."""

    def __init__(self, before: ir.Node, prefix: str) -> None:
        if before.graph is None:
            raise FormError(f"node '{before.name}' is in no graph")
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
    return next((v for d, v in model.opset_imports.items() if d in DEFAULT_DOMAINS), 1)
