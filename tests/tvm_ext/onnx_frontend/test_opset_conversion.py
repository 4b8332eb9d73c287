"""Scan of opset 8 against ONNX Runtime: a batch, lengths of the sequences, directions."""

import numpy as np
import onnx
import pytest
from control_flow_models import assert_same, by_runtime
from onnx import TensorProto, helper
from small_models import model, node, rand, value

from tvm_ext.onnx_frontend import prepare_model
from tvm_ext.onnx_frontend.opset_conversion import batched_scans_to_loops

VECTOR = [3]


def batched_scan(lengths: bool, **attributes: list[int]) -> onnx.ModelProto:
    """``s = s + a`` and ``o = s * b`` along two sequences."""
    steps = [node("Add", ["s", "a"], ["s2"]), node("Mul", ["s2", "b"], ["o"])]
    formal = [value(name, VECTOR) for name in ("s", "a", "b")]
    body = helper.make_graph(steps, "body", formal, [value("s2", VECTOR), value("o", VECTOR)])
    scan = node(
        "Scan",
        ["n" if lengths else "", "first", "x", "x2"],
        ["y", "ys"],
        body=body,
        num_scan_inputs=2,
        name="scan",
        **attributes,
    )
    inputs = [value("n", ["B"], TensorProto.INT64)] if lengths else []
    inputs += [value("first", ["B", 3]), *(value(name, ["B", "T", 3]) for name in ("x", "x2"))]
    proto = model([scan], inputs, [value("y", ["B", 3]), value("ys", ["B", "T", 3])], opset=8)
    proto.ir_version = 3
    return proto


def feed(batch: int, steps: int) -> dict[str, np.ndarray]:
    sequences = {n: rand(batch, steps, 3, seed=s) for s, n in enumerate(("x", "x2"), 1)}
    return {"first": rand(batch, 3), **sequences}


BATCHES = [feed(3, 4), feed(1, 3), feed(2, 1)]


@pytest.mark.parametrize("directions", [{}, {"directions": [1, 0]}])
def test_loops_in_place_of_a_scan_of_each_element_of_a_batch(directions):
    """By ONNX Runtime: the test with lengths below compiles such loops."""
    proto = batched_scan(lengths=False, **directions)
    loops = onnx.ModelProto()
    loops.CopyFrom(proto)
    batched_scans_to_loops(loops)
    # Loops of opset 8 carry at least one value, these may carry none.
    loops.opset_import[0].version = 11
    assert "Scan" not in {n.op_type for n in loops.graph.node}
    for given in BATCHES:
        for found, wanted in zip(by_runtime(loops, given), by_runtime(proto, given), strict=True):
            assert found.shape == wanted.shape
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("directions", [{}, {"directions": [1, 0]}])
def test_a_scan_of_each_element_of_a_batch(directions):
    proto = batched_scan(lengths=False, **directions)
    assert_same(proto, *BATCHES)
    assert "Scan" not in {n.op_type for n in prepare_model(proto).prepared.graph.node}


@pytest.mark.extended
@pytest.mark.parametrize(
    "directions",
    [
        {"directions": [1, 0]},
        pytest.param({}, marks=pytest.mark.slow),
        pytest.param({"directions": [1, 1]}, marks=pytest.mark.slow),
    ],
)
def test_sequences_end_at_lengths_of_their_own(directions):
    proto = batched_scan(lengths=True, **directions)
    feeds = [
        {"n": np.array(n), **feed(len(n), steps)}
        for n, steps in (([4, 1, 2], 4), ([3], 3), ([1, 6], 6))
    ]
    assert_same(proto, *feeds)
