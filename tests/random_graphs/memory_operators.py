"""Draws what is hard for a plan of memory: views, chains that may run in place, bodies, empties.

Values are small and stay so. What is drawn holds for any length of the dynamic sizes, so that a
graph can be asked for the sizes that it was not built with.
"""

from collections.abc import Sequence

import numpy as np
from control_flow import BodyOfNodes
from graph_builder import GraphBuilder, NotApplicable, Value
from onnx import GraphProto, NodeProto, TensorProto, ValueInfoProto, helper

_INT64 = np.int64
# The last sizes are rows of 64 bytes, since only what begins at such a place can be a view.
SHAPES = ((4, 16), (6, 16), (2, 16), (3, 4, 16), (2, 8, 2, 8), (1, 16, 4, 4), (5, 7), (3, 16, 3))
# Where few shapes are wanted: rows of 64 bytes or of 32, and rows that begin anywhere.
ROWS = (((4, 16), (6, 16), (2, 16)),) * 3 + (((4, 7), (6, 7), (2, 7)),)
_MOST_BODIES = 4
# More rows are not joined: each number of them is another kernel.
_MOST_ROWS = 12


def chain(g: GraphBuilder) -> None:
    """Operators on elements, each of which may write over its operand."""
    value = g.value()
    for _ in range(g.integer(2, 5)):
        op = g.pick(("Tanh", "Neg", "Abs", "Sigmoid", "Relu", *_BINARY))
        others = [v for v in g.pool if v.shape == value.shape]
        inputs = [value, g.pick([value, *others])] if op in _BINARY else [value]
        (value,) = g.add(op, inputs)
        if g.chance(3):
            g.pool.append(value)
    g.pool.extend(g.add("Tanh", [value]))


_BINARY = ("Add", "Mul")


def rows_apart(g: GraphBuilder) -> None:
    """A Split along the first axis in halves, of which often only one is used."""
    x = g.value(lambda v: v.rank >= 2 and v.shape[0] % 2 == 0)
    given = {"num_outputs": 2} if g.opset >= 18 else {}
    g.pool.extend(g.add("Split", [x], 2, axis=0, **given))


def rows_cut(g: GraphBuilder) -> None:
    """All rows but the first ones or the last ones."""
    x = g.value(lambda v: v.rank >= 2 and v.shape[0] >= 2)
    first, last = g.pick(((1, 1 << 40), (0, -1)))
    g.pool.extend(_cut(g, x, first, last))


def rows_joined(g: GraphBuilder) -> None:
    """Values below each other, one of them sometimes twice; some were computed for that alone."""
    x = g.value(lambda v: v.rank >= 2 and v.shape[0] <= 8)
    parts = [g.value(lambda v: v.rank == x.rank and v.shape[1:] == x.shape[1:]) for _ in "12"]
    if x.shape[0] + sum(part.shape[0] for part in parts) > _MOST_ROWS:
        raise NotApplicable
    parts = [*g.add(g.pick(("Tanh", "Neg")), [x]), *parts]
    g.pool.extend(g.add("Concat", parts, axis=0))


def rotated(g: GraphBuilder) -> None:
    """Both parts of a value in the other order, which are views of it and of the result."""
    x = g.value(lambda v: v.rank >= 2 and v.shape[0] >= 2)
    parts = [*_cut(g, x, 1, 1 << 40), *_cut(g, x, 0, 1)]
    if g.chance():
        parts = [one for part in parts for one in g.add("Neg", [part])]
    g.pool.extend(g.add("Concat", parts, axis=0))


def reshaped(g: GraphBuilder) -> None:
    """The same memory in another shape."""
    x = g.value(lambda v: v.rank >= 2)
    shape = g.pick(([0, -1], [-1, x.shape[-1]], [1, -1]))
    results = g.add("Reshape", [x, g.constant(shape, _INT64)])
    if x.rank == 2:
        # And back, behind something that may run in place.
        results = g.add("Neg", results) if g.chance() else results
        results = g.add("Reshape", [*results, g.constant([-1, x.shape[-1]], _INT64)])
    g.pool.extend(results)


def empty(g: GraphBuilder) -> None:
    """A value without elements, which is an output, a part of a concatenation, or summed up."""
    x = g.value(lambda v: v.rank >= 2)
    (none,) = g.add(g.pick(("Tanh", "Neg")), _cut(g, x, 0, 0), may_be_empty=True)
    if g.chance():
        g.outputs.append(none)
    if g.chance():
        twice = g.chance() and 2 * x.shape[0] <= _MOST_ROWS
        g.pool.extend(g.add("Concat", [x, none, x] if twice else [none, x], axis=0))
        return
    total = g.add("ReduceSum", [none, g.constant([0], _INT64)], keepdims=1)
    g.pool.extend(g.add("Add", [x, *total]))


def put_out(g: GraphBuilder) -> None:
    """A value, or an input as it is, is an output while others still use it."""
    x = g.value()
    g.outputs += g.add("Identity", [x]) if g.chance() else [x]


def quantised(g: GraphBuilder) -> None:
    """Bytes: an input is quantised, which is exact, joined with itself, multiplied, and back."""
    if g.elem_type != TensorProto.FLOAT:
        raise NotApplicable
    x = g.value(lambda v: v in g.inputs and v.elem_type == g.elem_type and v.rank >= 2)
    scale, zero = g.constant(0.03, np.float32), g.constant(g.pick((0, 128)), np.uint8)
    (bits,) = g.add("QuantizeLinear", [x, scale, zero])
    if g.chance():
        (bits,) = g.add("Concat", [bits, bits], axis=0)
    if g.chance():
        weight = g.constant(g.numbers.integers(0, 255, (x.shape[-1], 16)), np.uint8)
        total = g.add("MatMulInteger", [bits, weight, zero])
        (number,) = g.add("Cast", total, to=g.elem_type)
        g.pool.extend(g.add("Mul", [number, g.constant(1e-4, np.float32)]))
    else:
        g.pool.extend(g.add("DequantizeLinear", [bits, scale, zero]))


def decided(g: GraphBuilder) -> None:
    """Truth values of an input, combined, choose between two values."""
    x = g.value(lambda v: v in g.inputs and v.elem_type == g.elem_type)
    like = g.value(lambda v: v.shape == x.shape)
    bits = [g.add(op, [x, g.constant(0.1, g.dtype)])[0] for op in ("Less", "Greater")]
    (both,) = g.add(g.pick(("And", "Or", "Xor")), bits)
    (turned,) = g.add("Not", [both])
    g.pool.extend(g.add("Where", [turned, x, like]))


def mixed(g: GraphBuilder) -> None:
    """A product with a weight, which reads all of a row for each value that it writes."""
    x = g.value(lambda v: v.rank >= 2)
    size = x.shape[-1]
    g.pool.extend(g.add("MatMul", [x, g.weight((size, size), 1 / size)]))


def normalised(g: GraphBuilder) -> None:
    """Rows whose values sum up to 1."""
    x = g.value(lambda v: v.rank >= 2)
    g.pool.extend(g.add("Softmax", [x], axis=-1))


def scaled(g: GraphBuilder) -> None:
    """Each row times the same weights."""
    x = g.value(lambda v: v.rank >= 2)
    g.pool.extend(g.add(g.pick(_BINARY), [x, g.weight(x.shape[-1:])]))


def branch_of_two(g: GraphBuilder) -> None:
    """An If with two results, of which one side gives a value of the graph as it is."""
    x, y = _for_body(g), g.value(lambda v: v.rank >= 1)
    condition = g.input((), TensorProto.BOOL)
    number = len(g.nodes)
    graphs: list[GraphProto] = []
    for side in ("then", "else"):
        bodies = [BodyOfNodes(g, f"{side}{number}{i}", v.name, v) for i, v in enumerate((x, y))]
        bodies[0].grow(g.integer(1, 3))
        _rotate(bodies[0], x)
        bodies[1].wrap("Identity" if g.chance() else "Tanh")
        nodes = [node for body in bodies for node in body.nodes]
        graphs.append(helper.make_graph(nodes, side, [], [body.output() for body in bodies]))
    names = [f"value{number}_if{i}" for i in range(2)]
    g.nodes.append(
        helper.make_node(
            *("If", [condition.name], names, f"If{number}"),
            then_branch=graphs[0],
            else_branch=graphs[1],
        )
    )
    g.pool += [Value(name, v.shape, v.elem_type) for name, v in zip(names, (x, y), strict=True)]


def loop_of_two(g: GraphBuilder) -> None:
    """A Loop that carries two values, which may change places, and may stack one for each turn."""
    x = _for_body(g)
    y = g.value(lambda v: v.shape == x.shape)
    number = len(g.nodes)
    stacks = g.chance()
    count = g.constant(g.integer(0, 3), _INT64) if g.chance() else g.input((), TensorProto.INT64)
    if stacks:
        # Of no turn at all, ONNX leaves open how large a value would have been.
        (count,) = g.add("Max", [count, g.constant(1, _INT64)])
    keep = g.constant(True, np.bool_)
    bodies = [BodyOfNodes(g, f"loop{number}{i}", f"carried{number}{i}", x) for i in range(2)]
    for body in bodies:
        body.grow(g.integer(0, 2))
        _rotate(body, x)
        body.wrap("Tanh")
    if g.chance():
        bodies.append(_branch_in(g, bodies[0], x))
        del bodies[0]
    go_on = helper.make_node("Identity", [f"go{number}"], [f"on{number}"], f"on{number}")
    stacked = [BodyOfNodes(g, f"stacked{number}", bodies[0].last, x)] if stacks else []
    for body in stacked:
        body.wrap("Neg")
    results = [body.output() for body in (bodies[::-1] if g.chance() else bodies)]
    graph = helper.make_graph(
        [go_on, *(node for body in (*bodies, *stacked) for node in body.nodes)],
        "body",
        [
            _info(f"turn{number}", TensorProto.INT64, ()),
            _info(f"go{number}", TensorProto.BOOL, ()),
            *(_info(f"carried{number}{i}", x.elem_type, x.shape) for i in range(2)),
        ],
        [_info(f"on{number}", TensorProto.BOOL, ()), *results, *(one.output() for one in stacked)],
    )
    names = [f"value{number}_loop{i}" for i in range(2 + len(stacked))]
    inputs = [count.name, keep.name, x.name, y.name]
    g.nodes.append(helper.make_node("Loop", inputs, names, f"Loop{number}", body=graph))
    g.pool += [Value(name, x.shape, x.elem_type) for name in names[:2]]
    for name in names[2:]:
        _summed(g, name, x)


def scan(g: GraphBuilder) -> None:
    """A Scan over rows that carries a row and gives a row for each."""
    x = _for_body(g)
    if x.rank < 2:
        raise NotApplicable
    row = Value("", x.shape[1:], x.elem_type)
    first = g.weight(row.shape) if g.chance() else _mean_row(g, x)
    number = len(g.nodes)
    state = BodyOfNodes(g, f"state{number}", f"row{number}", row)
    state.join("Add", f"carried{number}")
    state.wrap("Tanh")
    given = BodyOfNodes(g, f"given{number}", state.last, row)
    given.join(g.pick(("Mul", "Add")), f"row{number}")
    graph = helper.make_graph(
        [*state.nodes, *given.nodes],
        "body",
        [_info(name, x.elem_type, row.shape) for name in (f"carried{number}", f"row{number}")],
        [state.output(), given.output()],
    )
    names = [f"value{number}_scan{i}" for i in range(2)]
    inputs = [first.name, x.name]
    g.nodes.append(
        helper.make_node("Scan", inputs, names, f"Scan{number}", body=graph, num_scan_inputs=1)
    )
    g.pool += [Value(names[0], row.shape, x.elem_type), Value(names[1], x.shape, x.elem_type)]


def _for_body(g: GraphBuilder) -> Value:
    if sum(node.op_type in ("If", "Loop", "Scan") for node in g.nodes) >= _MOST_BODIES:
        raise NotApplicable
    return g.value(lambda v: v.rank >= 1)


def _cut(g: GraphBuilder, x: Value, first: int, last: int) -> list[Value]:
    bounds = [g.constant([one], _INT64) for one in (first, last, 0)]
    return g.add("Slice", [x, *bounds], may_be_empty=first == last)


def _rotate(body: BodyOfNodes, x: Value) -> None:
    """Sometimes the first row goes to the end, as two slices and a concatenation."""
    g = body.graph
    if x.rank < 2 or x.shape[0] < 2 or not g.chance():
        return
    zero, one, end = (g.constant([number], _INT64) for number in (0, 1, 1 << 40))
    parts = [
        body.node("Slice", [body.last, one.name, end.name, zero.name]),
        body.node("Slice", [body.last, zero.name, one.name, zero.name]),
    ]
    body.last = body.node("Concat", parts, axis=0)


def _branch_in(g: GraphBuilder, around: BodyOfNodes, x: Value) -> BodyOfNodes:
    """The body with an If at its end, whose condition is an input of the graph."""
    condition = g.input((), TensorProto.BOOL)
    graphs: list[GraphProto] = []
    for side in ("then", "else"):
        inner = BodyOfNodes(g, f"{around.prefix}{side}", around.last, x)
        inner.wrap("Neg" if side == "then" else "Identity")
        if g.chance():
            inner.wrap("Abs")
        graphs.append(helper.make_graph(inner.nodes, side, [], [inner.output()]))
    around.last = around.node("If", [condition.name], then_branch=graphs[0], else_branch=graphs[1])
    return around


def _mean_row(g: GraphBuilder, x: Value) -> Value:
    if g.opset >= 18:
        return g.add("ReduceMean", [x, g.constant([0], _INT64)], keepdims=0)[0]
    return g.add("ReduceMean", [x], axes=[0], keepdims=0)[0]


def _summed(g: GraphBuilder, name: str, like: Value) -> None:
    """The sum of as many values as a loop had turns, which nobody knows before the run."""
    axes = g.constant([0], _INT64)
    node: NodeProto = helper.make_node(
        "ReduceSum", [name, axes.name], [f"{name}_sum"], f"{name}_sum", keepdims=0
    )
    g.nodes.append(node)
    g.pool.append(Value(f"{name}_sum", like.shape, like.elem_type))


def _info(name: str, elem_type: int, shape: Sequence[int]) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, elem_type, shape)


MEMORY = (
    chain, chain, rows_apart, rows_apart, rows_cut, rows_joined, rows_joined, rotated, reshaped,
    empty, put_out, quantised, decided, branch_of_two, loop_of_two, scan,
)  # fmt: skip

# Beside those, for graphs whose shapes are alike and which are to need few kernels.
FEW_KERNELS = (mixed, normalised, scaled)
