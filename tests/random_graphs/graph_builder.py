"""Builds random small ONNX graphs, node by node, from one source of random numbers."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 13, 16, 17)
MAX_ELEMENTS = 3000
OPSETS = (17, 18, 21)
# Largest size of an input by its rank.
LARGEST = {1: 17, 2: 17, 3: 13, 4: 8, 5: 4}


class NotApplicable(Exception):
    """An operator does not fit the values that there are; another one is drawn."""


@dataclass(frozen=True)
class Value:
    """A tensor of the graph; ``shape`` and the ONNX element type are always known."""

    name: str
    shape: tuple[int, ...]
    elem_type: int

    @property
    def rank(self) -> int:
        return len(self.shape)


@dataclass
class RandomGraph:
    """A model and inputs for it; prints as text, for the report of a failing example."""

    model: onnx.ModelProto
    inputs: dict[str, np.ndarray]

    def __repr__(self) -> str:
        shapes = {name: (str(a.dtype), a.shape) for name, a in self.inputs.items()}
        return f"{onnx.printer.to_text(self.model)}\ninputs {shapes}"


@dataclass
class GraphBuilder:
    """A graph under construction.

    ``pool`` holds the values of its main float type, ``outputs`` those that are outputs in any
    case.
    """

    rng: random.Random
    elem_type: int = TensorProto.FLOAT
    opset: int = 17
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    stored: dict[str, np.ndarray] = field(default_factory=dict)
    inputs: list[Value] = field(default_factory=list)
    pool: list[Value] = field(default_factory=list)
    fed: dict[str, np.ndarray] = field(default_factory=dict)
    outputs: list[Value] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.numbers = np.random.default_rng(self.rng.randint(0, 1 << 16))

    # Choices ---------------------------------------------------------------------------------

    def integer(self, low: int, high: int) -> int:
        return self.rng.randint(low, high)

    def pick(self, options: Sequence[Any]) -> Any:
        return options[self.rng.randint(0, len(options) - 1)]

    def chance(self, one_in: int = 2) -> bool:
        return self.rng.randint(1, one_in) == one_in

    def value(self, wanted: Callable[[Value], bool] = lambda value: True) -> Value:
        """A value of the pool, more often a late one; not applicable when none is as ``wanted``."""
        fitting = [value for value in self.pool if wanted(value)]
        if not fitting:
            raise NotApplicable
        return fitting[-1] if self.chance() else self.pick(fitting)

    # Values ----------------------------------------------------------------------------------

    @property
    def dtype(self) -> np.dtype:
        return helper.tensor_dtype_to_np_dtype(self.elem_type)

    def input(self, shape: Sequence[int], elem_type: int | None = None) -> Value:
        elem_type = elem_type or self.elem_type
        value = Value(f"input{len(self.inputs)}", tuple(shape), elem_type)
        self.inputs.append(value)
        dtype = helper.tensor_dtype_to_np_dtype(elem_type)
        if elem_type == TensorProto.BOOL:
            array = self.numbers.integers(0, 2, value.shape).astype(dtype)
        elif np.issubdtype(dtype, np.integer):
            array = self.numbers.integers(-5, 6, value.shape).astype(dtype)
        else:
            array = self.numbers.uniform(-2, 2, value.shape).astype(dtype)
        self.fed[value.name] = array
        return value

    def constant(self, array: Any, dtype: Any = None) -> Value:
        """An initializer or, sometimes, a Constant node."""
        array = np.asarray(array, dtype)
        name = f"stored{len(self.stored) + len(self.nodes)}"
        if self.chance(6):
            tensor = numpy_helper.from_array(array)
            self.nodes.append(helper.make_node("Constant", [], [name], value=tensor))
        else:
            self.stored[name] = array
        return Value(name, array.shape, helper.np_dtype_to_tensor_dtype(array.dtype))

    def weight(self, shape: Sequence[int], scale: float = 0.5) -> Value:
        """Random numbers of the main type; sometimes those that another node uses already."""
        shared = [
            Value(name, array.shape, self.elem_type)
            for name, array in self.stored.items()
            if array.shape == tuple(shape) and array.dtype == self.dtype
        ]
        if shared and self.chance(3):
            return self.pick(shared)
        return self.constant(self.numbers.normal(0, scale, shape), self.dtype)

    def positive(self, shape: Sequence[int]) -> Value:
        """Random numbers between a half and one and a half."""
        return self.constant(self.numbers.uniform(0.5, 1.5, shape), self.dtype)

    # Nodes -----------------------------------------------------------------------------------

    def add(
        self,
        op_type: str,
        inputs: Sequence[Value | None],
        outputs: int = 1,
        may_be_empty: bool = False,
        **attributes: Any,
    ) -> list[Value]:
        """Adds a node; not applicable when a result would be too large, or empty and may not be.

        Shapes and types of the results come from ONNX's own inference.
        """
        names = [f"value{len(self.nodes)}_{index}" for index in range(outputs)]
        read = [value.name if value is not None else "" for value in inputs]
        node = helper.make_node(op_type, read, names, f"{op_type}{len(self.nodes)}", **attributes)
        results = self._inferred(node, [value for value in inputs if value is not None])
        for result in results:
            least = 0 if may_be_empty else 1
            if not least <= int(np.prod(result.shape)) <= MAX_ELEMENTS or result.rank > 5:
                raise NotApplicable
        self.nodes.append(node)
        return results

    def add_float(self, op_type: str, inputs: Sequence[Value | None], **attributes: Any) -> None:
        """As ``add`` for one result, which goes to the pool."""
        self.pool.extend(self.add(op_type, inputs, **attributes))

    def _inferred(self, node: onnx.NodeProto, inputs: list[Value]) -> list[Value]:
        graph = helper.make_graph(
            [*(n for n in self.nodes if n.op_type == "Constant"), node],
            "one_node",
            [_info(v) for v in {v.name: v for v in inputs}.values() if v.name not in self.stored],
            [onnx.ValueInfoProto(name=name) for name in node.output],
            [
                numpy_helper.from_array(self.stored[v.name], v.name)
                for v in {v.name: v for v in inputs}.values()
                if v.name in self.stored
            ],
        )
        produced = {name for n in graph.node[:-1] for name in n.output}
        kept = [value for value in graph.input if value.name not in produced]
        del graph.input[:]
        graph.input.extend(kept)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)])
        inferred = onnx.shape_inference.infer_shapes(model, True, True, True)
        return [
            Value(
                info.name,
                tuple(dim.dim_value for dim in info.type.tensor_type.shape.dim),
                info.type.tensor_type.elem_type,
            )
            for info in inferred.graph.output
        ]

    def finish(self, outputs: list[Value]) -> RandomGraph:
        graph = helper.make_graph(
            self.nodes,
            "random",
            [_info(value) for value in self.inputs],
            [_info(value) for value in outputs],
            [numpy_helper.from_array(array, name) for name, array in self.stored.items()],
        )
        opsets = [helper.make_opsetid("", self.opset)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        onnx.checker.check_model(model, full_check=True)
        return RandomGraph(model, self.fed)


def _info(value: Value) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(value.name, value.elem_type, value.shape)


@dataclass(frozen=True)
class GraphForm:
    """The operator set of a graph, and the element type of most of its values."""

    opset: int
    elem_type: int


def draw_form(rng: random.Random) -> GraphForm:
    """One of eight forms has values of 16 bits."""
    opset = OPSETS[rng.randint(0, len(OPSETS) - 1)]
    return GraphForm(opset, TensorProto.FLOAT16 if rng.randint(1, 8) == 8 else TensorProto.FLOAT)


def build_graph(
    rng: random.Random,
    operators: Sequence[Callable[[GraphBuilder], None]],
    shapes: Sequence[Sequence[int]] = (),
    most: int = 10,
    form: GraphForm | None = None,
) -> RandomGraph:
    """A graph of three to ``most`` operators with an output or more.

    The first inputs have some of these shapes, or any where there are none. ``form`` is drawn where
    it is None.
    """
    builder = GraphBuilder(rng)
    form = form or draw_form(rng)
    builder.opset, builder.elem_type = form.opset, form.elem_type
    for _ in range(builder.pick((1, 1, 2))):
        if shapes:
            builder.pool.append(builder.input(builder.pick(shapes)))
            continue
        rank = builder.pick((4, 3, 2, 4, 3, 1, 5))
        largest = LARGEST[rank]
        sizes = [size for size in SIZES if size <= largest]
        builder.pool.append(builder.input([builder.pick(sizes) for _ in range(rank)]))
    wanted, tries = builder.integer(3, most), 0
    while wanted and tries < 60:
        tries += 1
        try:
            builder.pick(operators)(builder)
            wanted -= 1
        except NotApplicable:
            continue
    return builder.finish(_outputs(builder))


def _outputs(builder: GraphBuilder) -> list[Value]:
    """The last value, sometimes with values that are used inside as well, or with an input."""
    outputs = [builder.pool[-1], *builder.outputs]
    while builder.chance(3):
        outputs.append(builder.pick(builder.pool))
    return list({value.name: value for value in outputs}.values())
