"""Loops that are computed at once: what becomes of them, numbers against ONNX Runtime, refusals."""

import numpy as np
import onnx
import pytest
from one_model import in_one_model, run_model
from onnx import TensorProto, helper
from onnx import numpy_helper as arrays
from operator_models import by_runtime
from small_models import model, node, rand, value
from thoroughness import one_in
from unoptimised import HOST

import tvm_ext
from tvm_ext.onnx_frontend.prepare import prepare

INT64 = TensorProto.INT64


def distances(rows: int | str, reduced: dict, axis: int = 0) -> onnx.ModelProto:
    """Of all rows of ``x`` to all of ``y``, as scikit-learn's converter writes them."""
    body = helper.make_graph(
        [
            node("Identity", ["state"], ["next"]),
            node("Sub", ["state", "row"], ["apart"]),
            node("ReduceSumSquare", ["apart"], ["sums"], **reduced),
        ],
        "body",
        [value("state", None), value("row", None)],
        [value("next", None), value("sums", None)],
    )
    scan = node("Scan", ["x", "y"], ["last", "found"], body=body, num_scan_inputs=1)
    scan.attribute.append(helper.make_attribute("scan_input_axes", [axis]))
    nodes = [scan, node("Sqrt", ["found"], ["z"])]
    shape = [rows, 3] if axis == 0 else [3, rows]
    proto = model(nodes, [value("x", ["B", 3]), value("y", shape)], [value("z", None)])
    proto.opset_import[0].version = 17
    return proto


def loop(nodes: list, outputs: list, trips: str = "n", opset: int = 18) -> onnx.ModelProto:
    """Of ``trips`` iterations ``i``, whose body may read the rows of ``y`` from outside."""
    body = helper.make_graph(
        [node("Identity", ["going"], ["on"]), *nodes],
        "body",
        [value("i", [], INT64), value("going", [], TensorProto.BOOL)],
        [value("on", [], TensorProto.BOOL), *(value(name, None) for name in outputs)],
        [arrays.from_array(np.array([-1]), "last_axis")],
    )
    found = [f"all_{name}" for name in outputs]
    kinds = [INT64 if name == "number" else TensorProto.FLOAT for name in outputs]
    for info, kind in zip(body.output[1:], kinds, strict=True):
        info.type.tensor_type.elem_type = kind
    proto = model(
        [node("Loop", [trips, ""], found, body=body)],
        [value("n", [], INT64), value("x", ["B", 3]), value("y", ["T", 3])],
        [value(name, None, kind) for name, kind in zip(found, kinds, strict=True)],
    )
    proto.opset_import[0].version = opset
    return proto


def loops_left(proto: onnx.ModelProto) -> int:
    return sum(n.op_type in ("Loop", "Scan") for n in prepare(proto, "loops").graph.node)


@pytest.mark.extended
@pytest.mark.parametrize("reduced", [{"axes": [1]}, {"axes": [-1], "keepdims": 0}, {}])
@pytest.mark.parametrize("axis", one_in(2, [0, 1]))
def test_distances_are_one_kernel(reduced: dict, axis: int) -> None:
    proto = distances("T", reduced, axis)
    assert loops_left(proto) == 0
    compiled = tvm_ext.compile(proto, HOST)
    for batch, rows in ((1, 700), (5, 2), (4, 1)):
        y = rand(rows, 3) if axis == 0 else rand(3, rows)
        fed = {"x": rand(batch, 3), "y": y}
        np.testing.assert_allclose(
            compiled.run(fed)["z"], by_runtime(proto, fed)[0], rtol=1e-5, atol=1e-6
        )
    assert len(compiled.kernel_calls()) <= 2 + axis


@in_one_model
@pytest.mark.parametrize("trips", [1, 4])
def test_fewer_iterations_than_rows(trips: int) -> None:
    nodes = [
        node("Gather", ["y", "i"], ["row"]),
        node("Mul", ["row", "x"], ["product"]),
        node("ReduceMax", ["product", "last_axis"], ["most"], keepdims=1),
        node("Add", ["i", "i"], ["number"]),
    ]
    proto = loop(nodes, ["most", "number"])
    assert loops_left(proto) == 0
    fed = {"n": np.array(trips), "x": rand(2, 3), "y": rand(6, 3)}
    found = run_model(proto, fed)
    for name, wanted in zip(found, by_runtime(proto, fed), strict=True):
        np.testing.assert_allclose(found[name], wanted, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "nodes",
    [
        # Two nodes read it: it would be stored for all iterations.
        [
            node("Gather", ["y", "i"], ["row"]),
            node("Mul", ["row", "x"], ["product"]),
            node("Exp", ["product"], ["high"]),
            node("Sub", ["high", "product"], ["most"]),
        ],
        # No operator whose meaning for all iterations is known here.
        [
            node("Gather", ["y", "i"], ["row"]),
            node("CumSum", ["row", "last"], ["most"]),
        ],
        # The same in every iteration.
        [node("Exp", ["x"], ["most"])],
    ],
)
def test_other_loops_stay(nodes: list) -> None:
    proto = loop(nodes, ["most"])
    proto.graph.initializer.append(arrays.from_array(np.array(0), "last"))
    assert loops_left(proto) == 1
    fed = {"n": np.array(3), "x": rand(2, 3), "y": rand(6, 3)}
    found = tvm_ext.compile(proto, HOST).run(fed)
    np.testing.assert_allclose(found["all_most"], by_runtime(proto, fed)[0], rtol=1e-5)
