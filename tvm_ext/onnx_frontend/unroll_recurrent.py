"""LSTM, GRU and RNN as the operators of each step, for training.

Inference runs all steps in one kernel, which keeps no gates. Training needs the gates of every
step, and their gradients: with the steps written out each gate is a value of the graph. A layer
that no trained weight reaches keeps the kernel.

    Before: ``Y, Y_h, Y_c = LSTM(X, W, R, B)``
    After:  ``P = X @ W' + B'`` for all steps, then for each step ``g = P[t] + h @ R'``, the gates
            as parts of ``g``, and ``Y`` as the states of all steps joined.
"""

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tvm_ext.errors import ModelError
from tvm_ext.onnx_frontend.onnx_graph import DEFAULT_DOMAINS

# How many gates a cell has, and its activations where the node names none.
_GATES = {"GRU": 3, "LSTM": 4, "RNN": 1}
_ACTIVATIONS = {
    "GRU": ("Sigmoid", "Tanh"),
    "LSTM": ("Sigmoid", "Tanh", "Tanh"),
    "RNN": ("Tanh",),
}
_KNOWN = ("Sigmoid", "Tanh", "Relu")


def unroll_recurrent(graph: onnx.GraphProto, label: str, reached: Container[str]) -> bool:
    """Writes out each LSTM, GRU and RNN of a prepared graph that is trained or lies behind weights.

    The graph changes in place; the result is whether there is any. ``reached`` are the names of
    trained weights and of what is computed from them.

    Raises
    ------
    ModelError
        A node has a form that cannot be trained; the message names it and the form.
    """
    known = {
        value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in (*graph.value_info, *graph.input, *graph.output)
    }
    known |= {tensor.name: list(tensor.dims) for tensor in graph.initializer}
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        is_layer = node.op_type in _GATES and node.domain in DEFAULT_DOMAINS
        if not is_layer or not any(name in reached for name in node.input):
            nodes.append(node)
            continue
        writer = _Writer(graph, node)
        _write(writer, _Layer.of(node, known, label))
        nodes += writer.nodes
    found = len(nodes) != len(graph.node)
    del graph.node[:]
    graph.node.extend(nodes)
    return found


@dataclass(frozen=True)
class _Layer:
    """A recurrent node whose form can be written out."""

    node: onnx.NodeProto
    attributes: dict[str, Any]
    steps: int
    batch: int
    units: int
    directions: tuple[str, ...]

    @classmethod
    def of(cls, node: onnx.NodeProto, known: dict[str, list[int]], label: str) -> "_Layer":
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        shape = known.get(node.input[0], [])
        reason = _obstacle(node, attributes, shape)
        if reason:
            raise ModelError(
                f"{label}: {node.op_type} node '{node.name}' cannot be trained, since {reason}; "
                "expected a layer over all steps with the usual activations: freeze the weights "
                "of this node and those ahead of it with train"
            )
        direction = attributes.get("direction", b"forward").decode()
        pair = ("forward", "reverse") if direction == "bidirectional" else (direction,)
        return cls(node, attributes, shape[0], shape[1], int(attributes["hidden_size"]), pair)

    def input(self, place: int) -> str:
        """The name of an input, empty where there is none."""
        return self.node.input[place] if place < len(self.node.input) else ""

    def activations(self, direction: int) -> tuple[str, ...]:
        """Those of one direction, as operators."""
        usual = _ACTIVATIONS[self.node.op_type]
        names = [name.decode() for name in self.attributes.get("activations", [])]
        return tuple(names[direction * len(usual) :][: len(usual)]) or usual


def _obstacle(node: onnx.NodeProto, attributes: dict[str, Any], shape: Sequence[int]) -> str:
    if len(shape) != 3 or not all(shape):
        return "the number of its steps is not known"
    if len(node.input) > 4 and node.input[4]:
        return "it takes lengths of sequences"
    if len(node.input) > 7 and node.input[7]:
        return "it has peepholes"
    if attributes.get("clip") or attributes.get("input_forget") or attributes.get("layout"):
        return "it has clip, input_forget or layout"
    names = [name.decode() for name in attributes.get("activations", [])]
    unknown = [name for name in names if name not in _KNOWN]
    return f"its activation is {unknown[0]}" if unknown else ""


class _Writer:
    """Nodes and constants in place of one node, under names that begin with its own."""

    def __init__(self, graph: onnx.GraphProto, node: onnx.NodeProto) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self._graph, self._name = graph, node.name
        self._count = 0

    def __call__(
        self, kind: str, inputs: Sequence[str], output: str = "", **attributes: Any
    ) -> str:
        """The result of a new node."""
        return self.several(kind, inputs, [output], **attributes)[0]

    def several(
        self, kind: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any
    ) -> list[str]:
        """The results of a new node; an empty name becomes a new one."""
        names = [name or self._fresh() for name in outputs]
        self.nodes.append(
            helper.make_node(kind, list(inputs), names, name=self._name, **attributes)
        )
        return names

    def numbers(self, values: Sequence[int]) -> str:
        """A constant of integers."""
        name = self._fresh()
        array = np.array(values, np.int64)
        self._graph.initializer.append(numpy_helper.from_array(array, name))
        return name

    def zeros(self, shape: Sequence[int], like: str) -> str:
        """Zeros in the type of a tensor."""
        value = self.numbers([0])
        return self("CastLike", [self("Expand", [value, self.numbers(shape)]), like])

    def _fresh(self) -> str:
        self._count += 1
        return f"{self._name}::{self._count}"


# From the writer, the projected input of a step, the states and the weights of a direction to the
# new states.
_Cell = Callable[[_Writer, str, list[str], "_Weights"], list[str]]


@dataclass(frozen=True)
class _Weights:
    """Of one direction.

    Attributes
    ----------
    recurrent : tuple[str, ...]
        [units, gates * units]; of a GRU that resets the state, those of the first two gates and
        those of the last, each a product of its own in every step.
    bias : str
        Of the recurrent part, [gates * units], or empty.
    activations : tuple[str, ...]
        Operators.
    units : int
        How many.
    resets_behind : bool
        Whether a GRU resets the product rather than the state.
    """

    recurrent: tuple[str, ...]
    bias: str
    activations: tuple[str, ...]
    units: int
    resets_behind: bool


def _write(write: _Writer, layer: _Layer) -> None:
    """The layer's outputs, under their names."""
    sequences, last = [], []
    for place in range(len(layer.directions)):
        steps, states = _direction(write, layer, place)
        sequences.append(steps)
        last.append(states)
    outputs = [*layer.node.output, "", "", ""]
    if outputs[0]:
        write("Concat", sequences, outputs[0], axis=1)
    for place in range(len(last[0])):
        if outputs[place + 1]:
            axes = write.numbers([0])
            parts = [write("Unsqueeze", [states[place], axes]) for states in last]
            write("Concat", parts, outputs[place + 1], axis=0)


def _direction(write: _Writer, layer: _Layer, place: int) -> tuple[str, list[str]]:
    """The states of all steps, [steps, 1, batch, units], and the last states."""
    gates = _GATES[layer.node.op_type] * layer.units
    projected, weights = _projected(write, layer, place, gates)
    count = 2 if layer.node.op_type == "LSTM" else 1
    states = [_initial(write, layer, place, 5 + number) for number in range(count)]
    cell: _Cell = {"GRU": _gru, "LSTM": _lstm, "RNN": _rnn}[layer.node.op_type]
    inputs = [write("Squeeze", [one, write.numbers([0])]) for one in projected]
    found: list[str] = []
    order = range(layer.steps)
    for step in order if layer.directions[place] == "forward" else reversed(order):
        states = cell(write, inputs[step], states, weights)
        found.append(states[0])
    if layer.directions[place] != "forward":
        found.reverse()
    axes = write.numbers([0, 1])
    parts = [write("Unsqueeze", [state, axes]) for state in found]
    return write("Concat", parts, axis=0), states


def _projected(write: _Writer, layer: _Layer, place: int, gates: int) -> tuple[list[str], _Weights]:
    """``X @ W' + B'``, by step, and the weights of the steps."""
    axes = write.numbers([0])

    def own(name: str) -> str:
        """The part of this direction."""
        bounds = [write.numbers([place]), write.numbers([place + 1]), axes]
        return write("Squeeze", [write("Slice", [name, *bounds]), axes])

    weight, recurrent = (
        write("Transpose", [own(layer.input(number))], perm=[1, 0]) for number in (1, 2)
    )
    # A product of two axes is one for all steps.
    size = write.numbers([layer.steps * layer.batch, -1])
    made = write("MatMul", [write("Reshape", [layer.input(0), size]), weight])
    behind, is_gru = "", layer.node.op_type == "GRU"
    resets_behind = bool(layer.attributes.get("linear_before_reset", 0))
    if layer.input(3):
        halves = write.numbers([gates, gates])
        first, second = write.several("Split", [own(layer.input(3)), halves], ["", ""], axis=0)
        made = write("Add", [made, first])
        if is_gru and resets_behind:
            behind = second
        else:
            made = write("Add", [made, second])
    shape = write.numbers([layer.steps, layer.batch, gates])
    made = write("Reshape", [made, shape])
    parts = write.numbers([1] * layer.steps)
    steps = write.several("Split", [made, parts], [""] * layer.steps, axis=0)
    products: tuple[str, ...] = (recurrent,)
    if is_gru and not resets_behind:
        widths = write.numbers([2 * layer.units, layer.units])
        products = tuple(write.several("Split", [recurrent, widths], ["", ""], axis=1))
    activations = layer.activations(place)
    return steps, _Weights(products, behind, activations, layer.units, resets_behind)


def _initial(write: _Writer, layer: _Layer, place: int, number: int) -> str:
    """A state ahead of the first step."""
    if not layer.input(number):
        return write.zeros([layer.batch, layer.units], layer.input(0))
    axes = write.numbers([0])
    bounds = [write.numbers([place]), write.numbers([place + 1]), axes]
    return write("Squeeze", [write("Slice", [layer.input(number), *bounds]), axes])


def _split(write: _Writer, value: str, units: int, count: int) -> list[str]:
    return write.several("Split", [value, write.numbers([units] * count)], [""] * count, axis=1)


def _lstm(write: _Writer, given: str, states: list[str], weights: _Weights) -> list[str]:
    """``c' = f c + i g``, ``h' = o act(c')``; ONNX has the gates as i, o, f, g."""
    gate, inner, outer = weights.activations
    product = write("MatMul", [states[0], weights.recurrent[0]])
    parts = _split(write, write("Add", [given, product]), weights.units, 4)
    i, o, f = (write(gate, [part]) for part in parts[:3])
    kept = write("Mul", [f, states[1]])
    cell = write("Add", [kept, write("Mul", [i, write(inner, [parts[3]])])])
    return [write("Mul", [o, write(outer, [cell])]), cell]


def _gru(write: _Writer, given: str, states: list[str], weights: _Weights) -> list[str]:
    """``h' = (1 - z) n + z h``, with ``n`` of the reset state; the gates are z, r, n."""
    gate, inner = weights.activations
    units, (state,) = weights.units, states
    z_part, r_part, n_part = _split(write, given, units, 3)
    if weights.resets_behind:
        product = write("MatMul", [state, weights.recurrent[0]])
        if weights.bias:
            product = write("Add", [product, weights.bias])
        by_z, by_r, by_n = _split(write, product, units, 3)
    else:
        by_z, by_r = _split(write, write("MatMul", [state, weights.recurrent[0]]), units, 2)
    z, r = (write(gate, [write("Add", [a, b])]) for a, b in ((z_part, by_z), (r_part, by_r)))
    if weights.resets_behind:
        reset = write("Mul", [r, by_n])
    else:
        reset = write("MatMul", [write("Mul", [r, state]), weights.recurrent[1]])
    new = write(inner, [write("Add", [n_part, reset])])
    # n + z (h - n) is (1 - z) n + z h.
    return [write("Add", [new, write("Mul", [z, write("Sub", [state, new])])])]


def _rnn(write: _Writer, given: str, states: list[str], weights: _Weights) -> list[str]:
    """``h' = act(x' + h R')``."""
    product = write("MatMul", [states[0], weights.recurrent[0]])
    return [write(weights.activations[0], [write("Add", [given, product])])]
