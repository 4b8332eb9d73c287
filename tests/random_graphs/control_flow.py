"""Draws If and Loop nodes whose bodies read values of the graph around them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from graph_builder import GraphBuilder, NotApplicable, Value
from onnx import GraphProto, NodeProto, TensorProto, ValueInfoProto, helper

_UNARY = ("Relu", "Tanh", "Sigmoid", "Neg", "Abs", "Softplus")
_BINARY = ("Add", "Sub", "Mul", "Max", "Min")


class BodyOfNodes:
    """A chain of nodes that keep the shape of one value, with names that no other body has."""

    def __init__(self, g: GraphBuilder, prefix: str, first: str, like: Value) -> None:
        self.graph, self.prefix, self._like = g, prefix, like
        self.nodes: list[NodeProto] = []
        self.last = first

    def node(self, op_type: str, inputs: Sequence[str], **attributes: Any) -> str:
        """Adds a node beside the chain; the name of its result."""
        name = f"{self.prefix}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [name], name, **attributes))
        return name

    def wrap(self, op_type: str) -> None:
        """Adds a node that reads the end of the chain alone."""
        self.last = self.node(op_type, [self.last])

    def join(self, op_type: str, other: str) -> None:
        """Adds a node that reads the end of the chain and another value."""
        self.last = self.node(op_type, [self.last, other])

    def grow(self, count: int) -> None:
        """Adds nodes; some read a value of the graph around the body, or its weights."""
        g, like = self.graph, self._like
        for _ in range(count):
            others = [v for v in g.pool if v.shape == like.shape]
            if g.chance():
                self.wrap(g.pick(_UNARY))
            else:
                other = g.pick(others) if g.chance() else g.weight(like.shape[-1:])
                self.join(g.pick(_BINARY), other.name)

    def output(self) -> ValueInfoProto:
        """What the body computes, as an output of its graph."""
        return helper.make_tensor_value_info(self.last, self._like.elem_type, self._like.shape)


def _of_main_type(g: GraphBuilder) -> Value:
    # More often a loop of a loop would grow out of range than show anything.
    if sum(node.op_type in ("If", "Loop") for node in g.nodes) >= 3:
        raise NotApplicable
    return g.value(lambda v: v.rank >= 1)


def branch(g: GraphBuilder) -> None:
    """An If whose condition is an input, so that both branches are compiled."""
    x = _of_main_type(g)
    condition = g.input((), TensorProto.BOOL)
    number = len(g.nodes)
    graphs: list[GraphProto] = []
    for side in ("then", "else"):
        body = BodyOfNodes(g, f"{side}{number}", x.name, x)
        body.grow(g.integer(1, 3))
        graphs.append(helper.make_graph(body.nodes, side, [], [body.output()]))
    name = f"value{len(g.nodes)}_if"
    g.nodes.append(
        helper.make_node(
            *("If", [condition.name], [name], f"If{number}"),
            then_branch=graphs[0],
            else_branch=graphs[1],
        )
    )
    g.pool.append(Value(name, x.shape, x.elem_type))


def loop(g: GraphBuilder) -> None:
    """A Loop that carries one value; the trip count is a constant or an input."""
    x = _of_main_type(g)
    number = len(g.nodes)
    counts = (g.constant(g.integer(1, 3), np.int64), g.input((), TensorProto.INT64))
    count = g.pick(counts[:1] if g.chance() else counts[1:])
    keep = g.constant(True, np.bool_)
    carried = f"carried{number}"
    body = BodyOfNodes(g, f"loop{number}", carried, x)
    body.grow(g.integer(1, 3))
    # Whatever the body does, a value stays small however often it is repeated.
    bounded = helper.make_node("Tanh", [body.last], [f"bounded{number}"], f"bounded{number}")
    body.nodes.append(bounded)
    body.last = bounded.output[0]
    go_on = helper.make_node("Identity", [f"go{number}"], [f"on{number}"], f"on{number}")
    graph = helper.make_graph(
        [go_on, *body.nodes],
        "body",
        [
            helper.make_tensor_value_info(f"turn{number}", TensorProto.INT64, []),
            helper.make_tensor_value_info(f"go{number}", TensorProto.BOOL, []),
            helper.make_tensor_value_info(carried, x.elem_type, x.shape),
        ],
        [helper.make_tensor_value_info(f"on{number}", TensorProto.BOOL, []), body.output()],
    )
    name = f"value{len(g.nodes)}_loop"
    inputs = [count.name, keep.name, x.name]
    g.nodes.append(helper.make_node("Loop", inputs, [name], f"Loop{number}", body=graph))
    g.pool.append(Value(name, x.shape, x.elem_type))


CONTROL_FLOW = (branch, loop)
