"""The iterations of loops in which a node draws random numbers, which make these numbers differ.

In the body of a Loop the iteration numbers around a node are a value beside those of the graph, and
reach bodies of bodies like any value from outside. A loop that was written out has no such value:
there every copy of the node holds its number.
"""

import onnx
import onnx_ir as ir

from tvm_ext.onnx_frontend.converters import CONVERTERS
from tvm_ext.onnx_frontend.converters.random import ITERATIONS
from tvm_ext.onnx_frontend.converters.traits import draws_numbers
from tvm_ext.onnx_frontend.operator_key import DEFAULT_DOMAINS, operator_key
from tvm_ext.onnx_frontend.scopes import nodes_within


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
