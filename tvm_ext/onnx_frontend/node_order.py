"""Puts the nodes of an ONNX graph into topological order; ONNX Runtime accepts unsorted graphs."""

from graphlib import CycleError, TopologicalSorter

import onnx

from tvm_ext.errors import ModelError
from tvm_ext.onnx_frontend.scopes import names_read, subgraphs_of


def sort_nodes(graph: onnx.GraphProto, label: str) -> None:
    """Sorts ``graph.node`` in place, subgraphs included; leaves a sorted graph as it is.

    Raises
    ------
    ModelError
        The graph has a cycle; the message names the nodes on it.
    """
    for node in graph.node:
        for subgraph in subgraphs_of(node):
            sort_nodes(subgraph, label)
    producer = {out: i for i, node in enumerate(graph.node) for out in node.output if out}
    needs = {
        i: {producer[name] for name in names_read(node) if name in producer}
        for i, node in enumerate(graph.node)
    }
    if all(before < i for i, befores in needs.items() for before in befores):
        return
    try:
        order = list(TopologicalSorter(needs).static_order())
    except CycleError as error:
        cycle = [graph.node[i].name or graph.node[i].op_type for i in error.args[1]]
        raise ModelError(
            f"{label}: the graph has a cycle through the nodes {' -> '.join(cycle)}; "
            "expected an acyclic graph: repair or export it again"
        ) from error
    nodes = [graph.node[i] for i in order]
    copies = []
    for node in nodes:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copies.append(copy)
    del graph.node[:]
    graph.node.extend(copies)
