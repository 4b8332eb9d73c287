"""Small models with If and Loop, and random ones, for the tests of analyses."""

from collections.abc import Sequence

import numpy as np
import onnx
import onnxruntime
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from small_models import model, node, value

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def if_model(first: str, second: str, size: int | str = 3) -> onnx.ModelProto:
    """``y = If(c) {first(x)} {second(x)}``."""
    branches = {
        side: helper.make_graph(
            [node(operator, ["x"], [side], name=side)], side, [], [value(side, None)]
        )
        for side, operator in (("then_branch", first), ("else_branch", second))
    }
    nodes = [node("If", ["c"], ["y"], name="choice", **branches)]
    return model(nodes, [value("x", [size]), value("c", [], BOOL)], [value("y", [size])])


def loop_model(nodes: Sequence[onnx.NodeProto]) -> onnx.ModelProto:
    """A Loop over ``a``, which starts as ``x``; ``nodes`` compute ``b``, its next value."""
    body = helper.make_graph(
        [*nodes, node("Identity", ["going"], ["go_on"]), node("Identity", ["b"], ["scan"])],
        "body",
        [value("i", [], INT64), value("going", [], BOOL), value("a", [2])],
        [value("go_on", [], BOOL), value("b", [2]), value("scan", [2])],
    )
    outer = [node("Loop", ["n", "", "x"], ["y", "ys"], name="loop", body=body)]
    return model(
        outer, [value("x", [2]), value("n", [], INT64)], [value("y", [2]), value("ys", [None, 2])]
    )


# Random graphs of matrices of 3 x 3.

_UNARY = (
    *("Relu", "Sigmoid", "Tanh", "Exp", "Abs", "Neg", "Sqrt", "Log", "Erf", "Softplus"),
    *("Floor", "Ceil", "Round", "Sign", "Transpose", "Softmax", "Reciprocal"),
)
_SMOOTH = ("Relu", "Sigmoid", "Tanh", "Exp", "Abs", "Neg", "Transpose", "Softmax")
_BINARY = ("Add", "Sub", "Mul", "Div", "Max", "Min", "MatMul")
_SMOOTH_BINARY = ("Add", "Sub", "Mul", "Max", "Min", "MatMul")


@st.composite
def graphs(draw, is_smooth: bool = False) -> onnx.ModelProto:
    """A model whose nodes are all outputs, named like them."""
    unary, binary = (_SMOOTH, _SMOOTH_BINARY) if is_smooth else (_UNARY, _BINARY)
    # What follows from constants alone would be folded, and count as exact.
    names, nodes = ["x"], []
    for place in range(draw(st.integers(2, 7))):
        name = f"v{place}"
        kind = draw(st.sampled_from(["unary", "binary", "reduce", "clip"]))
        first, second = draw(st.sampled_from(names)), draw(st.sampled_from([*names, "w"]))
        if kind == "unary":
            nodes.append(node(draw(st.sampled_from(unary)), [first], [name], name=name))
        elif kind == "binary":
            nodes.append(node(draw(st.sampled_from(binary)), [first, second], [name], name=name))
        elif kind == "reduce":
            operator = draw(st.sampled_from(["ReduceMean", "ReduceMax", "ReduceMin"]))
            nodes.append(node(operator, [first], [f"r{place}"], axes=[1], name=f"r{place}"))
            nodes.append(node("Add", [second, f"r{place}"], [name], name=name))
        else:
            nodes.append(node("Clip", [first, "least", "most"], [name], name=name))
        names.append(name)
    weights = np.array(draw(st.lists(st.floats(-2, 2, width=32), min_size=9, max_size=9)))
    stored = {"w": weights.reshape(3, 3).astype("float32")}
    return model(
        nodes,
        [value("x", [3, 3])],
        [value(name, [3, 3]) for name in names[1:]],
        least=np.float32(-1),
        most=np.float32(2.5),
        **stored,
    )


def computed(proto: onnx.ModelProto, x: np.ndarray) -> list[np.ndarray]:
    """What ONNX Runtime gives."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, {"x": x})


def in_float64(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The same model in double precision."""
    wide = onnx.ModelProto()
    wide.CopyFrom(proto)
    for stored in wide.graph.initializer:
        stored.CopyFrom(
            numpy_helper.from_array(numpy_helper.to_array(stored).astype("float64"), stored.name)
        )
    for info in (*wide.graph.input, *wide.graph.output):
        info.type.tensor_type.elem_type = TensorProto.DOUBLE
    return wide
