"""Models that simplifiers changed the results of, as far as the reports say, against ONNX Runtime.

onnxsim #1284: pads computed by Concat, Reshape, Slice and Transpose, with a cosine behind. OnnxSlim
#277: slices of slices. onnx/optimizer #263 and its neighbours: operators that do nothing, and those
that only look so. TVM #17835: -1 as the index of a maximum.
"""

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from unoptimised import HOST

import tvm_ext

FAR = 2**62
X = np.array([[1.5, -2, 0.0, -0.0], [np.nan, np.inf, -np.inf, 7], [3, 1e-3, -5, 2.5]], np.float32)
LARGE = np.arange(2 * 6 * 8, dtype=np.float32).reshape(2, 6, 8) / 7 - 5


class Graph:
    """Nodes of a model of one input ``x``; every result that is asked for is an output."""

    def __init__(self) -> None:
        self.nodes: list[NodeProto] = []
        self.initializers: list[TensorProto] = []

    def constant(self, *values: object, dtype: str = "int64") -> str:
        name = f"c{len(self.initializers)}"
        array = np.array(values[0] if len(values) == 1 else values, dtype)
        self.initializers.append(numpy_helper.from_array(array, name))
        return name

    def __call__(self, operator: str, *inputs: str, **attributes: object) -> str:
        name = f"{operator}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [name], **attributes))
        return name

    def slice(self, x: str, starts: list, ends: list, axes: list, steps: list) -> str:
        return self("Slice", x, *(self.constant(one) for one in (starts, ends, axes, steps)))

    def model(self, x: np.ndarray, outputs: list[str]) -> ModelProto:
        kind = helper.np_dtype_to_tensor_dtype(x.dtype)
        value = helper.make_tensor_value_info("x", kind, list(x.shape))
        results = [helper.make_empty_tensor_value_info(name) for name in outputs]
        graph = helper.make_graph(self.nodes, "reported", [value], results, self.initializers)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def computed_pads(g: Graph) -> list[str]:
    """Before and after the last axes, as an exporter writes F.pad; some of them cut off."""
    found = []
    for pads in ([1, 0, -1, 2], [0, 0, 0, 0], [-1, -1, 0, 0], [-1, 1, 0, 0]):
        # PyTorch has pairs from the last axis on; ONNX all beginnings, then all ends.
        zeros = g("ConstantOfShape", g.constant([2]), value=helper.make_tensor("v", 7, [1], [0]))
        pairs = g("Reshape", g("Concat", g.constant(pads), zeros, axis=0), g.constant([-1, 2]))
        turned = g.slice(pairs, [-1], [-FAR], [0], [-1])
        flat = g("Reshape", g("Transpose", turned, perm=[1, 0]), g.constant([-1]))
        found.append(g("Cos", g("Pad", "x", g("Cast", flat, to=TensorProto.INT64))))
    return found


def slices_of_slices(g: Graph) -> list[str]:
    """Of one axis and of others, from the end, with steps, backwards, beyond the end, empty."""
    first = g.slice("x", [1], [5], [1], [1])
    pairs = [
        (first, [1], [3], [1], [1]),
        (first, [-2], [FAR], [1], [1]),
        (first, [0], [2], [2], [1]),
        (first, [-1], [-FAR], [1], [-1]),
        (g.slice("x", [0, 1], [2, FAR], [0, 2], [1, 2]), [1], [FAR], [2], [2]),
        (g.slice("x", [-3], [FAR], [-1], [1]), [0], [FAR], [2], [1]),
        (g.slice("x", [FAR], [-FAR], [1], [-2]), [1], [2], [1], [1]),
        (g.slice("x", [2], [100], [1], [1]), [0], [100], [1], [3]),
        (g.slice("x", [0], [FAR], [1], [1]), [0], [FAR], [0], [1]),
    ]
    joined = g("Concat", g.slice("x", [0], [2], [1], [1]), g.slice("x", [2], [6], [1], [1]), axis=1)
    turned = g("Concat", g.slice("x", [2], [6], [1], [1]), g.slice("x", [0], [2], [1], [1]), axis=1)
    return [*(g.slice(*one) for one in pairs), joined, turned]


def without_effect(g: Graph) -> list[str]:
    """Operators that do nothing, each beside one that looks alike."""
    relu = g("Relu", g("Relu", "x"))
    found = [relu, g("Abs", g("Neg", g("Abs", "x"))), g("Floor", g("Ceil", g("Floor", "x")))]
    for shape in ([0, -1], [-1, 4], [0, 0], [4, 3], [3, -1]):
        found.append(g("Reshape", g("Reshape", "x", g.constant([2, -1])), g.constant([3, 4])))
        found.append(g("Reshape", "x", g.constant(shape)))
    found += [g("Expand", "x", g.constant(shape)) for shape in ([1, 1], [3, 4], [2, 3, 4])]
    found += [g("Concat", "x", axis=0), g("Concat", "x", "x", axis=1)]
    found += [g("Split", "x", g.constant([4]), axis=1), g("Tile", "x", g.constant([1, 1]))]
    for operator, number in (
        ("Mul", 1),
        ("Mul", 0),
        ("Add", 0),
        ("Sub", 0),
        ("Div", 1),
        ("Pow", 1),
    ):
        found.append(g(operator, "x", g.constant(number, dtype="float32")))
    found += [g("Sub", "x", "x"), g("Div", "x", "x"), g("Equal", "x", "x")]
    found += [g("Squeeze", g("Unsqueeze", "x", g.constant([1])), g.constant([1]))]
    found += [g("Transpose", g("Relu", g("Transpose", "x", perm=[1, 0])), perm=[1, 0])]
    return [*found, g("Dropout", "x"), g("Pad", "x", g.constant([0, 0, 0, 0]))]


def indices_of_extremes(g: Graph) -> list[str]:
    """Of values that no start value of a reduction is beaten by."""
    low = g("Clip", "x", "", g.constant(-np.inf, dtype="float32"))
    found = []
    for source in (low, g("Cast", low, to=TensorProto.INT32), g("Cast", low, to=TensorProto.INT64)):
        whole = g("Reshape", source, g.constant([-1]))
        found += [g("ArgMax", whole, axis=0, keepdims=0), g("ArgMin", whole, axis=0, keepdims=0)]
    mask = g("Cast", g("Equal", "x", low), to=TensorProto.UINT8)
    return [*found[:2], mask, g("ReduceSum", g("Cast", mask, to=TensorProto.INT64), keepdims=0)]


def masks_and_casts(g: Graph) -> list[str]:
    """Where with constant and repeated masks, and casts through narrow types."""
    mask = g("Greater", "x", g.constant(0.25, dtype="float32"))
    twice = g("Where", mask, g("Where", mask, "x", g("Neg", "x")), g.constant(3.0, dtype="float32"))
    as_number = g("Cast", mask, to=TensorProto.FLOAT)
    again = g("Cast", as_number, to=TensorProto.BOOL)
    found = [twice, again, g("Where", again, "x", "x"), g("Not", g("Not", mask))]
    whole = g("Cast", g("Mul", g("Floor", "x"), g.constant(100.0, dtype="float32")), to=7)
    for narrow in (TensorProto.INT8, TensorProto.INT16, TensorProto.INT32):
        found.append(g("Cast", g("Cast", whole, to=narrow), to=TensorProto.INT64))
    for wide in (TensorProto.DOUBLE, TensorProto.FLOAT16):
        found.append(g("Cast", g("Cast", "x", to=wide), to=TensorProto.FLOAT))
    return [*found, g("Equal", whole, whole), g("Not", g("Less", "x", g("Neg", "x")))]


MODELS = {
    "onnxsim 1284": (computed_pads, LARGE),
    "OnnxSlim 277": (slices_of_slices, LARGE),
    "optimizer 263": (without_effect, X),
    "TVM 17835": (indices_of_extremes, np.full((2, 12), -np.inf, np.float32)),
    "masks and casts": (masks_and_casts, LARGE[0]),
}


@pytest.mark.parametrize("name", MODELS)
def test_results_are_those_of_onnx_runtime(name: str) -> None:
    body, x = MODELS[name]
    graph = Graph()
    outputs = list(dict.fromkeys(body(graph)))
    model = graph.model(x, outputs)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    wanted = dict(zip(outputs, session.run(outputs, {"x": x}), strict=True))

    found = tvm_ext.compile(model, HOST).run({"x": x})

    for output in outputs:
        assert found[output].dtype == wanted[output].dtype, output
        np.testing.assert_allclose(found[output], wanted[output], 1e-6, 1e-6, err_msg=output)
