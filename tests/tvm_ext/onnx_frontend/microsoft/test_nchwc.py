"""What ONNX Runtime's optimiser writes at its default level: channels and weights in blocks."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from control_flow_models import by_runtime
from onnx import helper
from small_models import model, node, rand, value
from thoroughness import one_in
from unoptimised import HOST

import tvm_ext
from tvm_ext.errors import UnsupportedOperatorError
from tvm_ext.onnx_frontend.microsoft.nchwc import NCHWC


def optimised(proto: onnx.ModelProto, folder: Path) -> onnx.ModelProto:
    """The model as ONNX Runtime writes it when asked to keep what it runs."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = str(folder / "optimised.onnx")
    onnxruntime.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return onnx.load(options.optimized_model_filepath)


PAD = {"pads": [1, 1, 1, 1]}
IMAGES = [
    node("Conv", ["x", "w0", "b0"], ["c0"], strides=[2, 2], **PAD),
    node("Relu", ["c0"], ["r0"]),
    node("Conv", ["r0", "w1"], ["c1"], group=32, **PAD),
    node("Clip", ["c1", "zero", "six"], ["r1"]),
    node("Conv", ["r1", "w2", "b2"], ["c2"]),
    node("Add", ["c2", "r0"], ["s"]),
    node("Relu", ["s"], ["r2"]),
    node("MaxPool", ["r2"], ["p0"], kernel_shape=[2, 2], strides=[2, 2]),
    node("AveragePool", ["p0"], ["p1"], kernel_shape=[3, 3], **PAD),
    node("Conv", ["p1", "w3"], ["c3"], group=2),
    node("HardSwish", ["c3"], ["r3"]),
    node("Resize", ["r3", "", "scales"], ["u"], mode="nearest",
         coordinate_transformation_mode="asymmetric", nearest_mode="floor"),
    node("Concat", ["u", "r2"], ["d"], axis=1),
    node("Conv", ["d", "w4", "b4"], ["c4"]),
    node("HardSigmoid", ["c4"], ["h"], alpha=0.3),
    node("GlobalAveragePool", ["h"], ["g"]),
    node("Mul", ["h", "g"], ["m"]),
    node("Transpose", ["m"], ["y"], perm=[0, 2, 3, 1]),
]  # fmt: skip
STORED = {
    "w0": rand(32, 3, 3, 3),
    "b0": rand(32),
    "w1": rand(32, 1, 3, 3),
    "zero": np.float32(0),
    "six": np.float32(6),
    "w2": rand(32, 32, 1, 1),
    "b2": rand(32),
    "w3": rand(64, 16, 1, 1),
    "scales": np.array([1, 1, 2, 2], np.float32),
    "w4": rand(20, 96, 1, 1),
    "b4": rand(20),
}


@pytest.mark.extended
@pytest.mark.parametrize(
    ("sizes", "level"),
    one_in(2, [([2, 3, 16, 12], "O0"), (["batch", 3, "height", "width"], "O3")]),
)
def test_a_network_as_the_optimiser_leaves_it(sizes, level, tmp_path):
    proto = model(IMAGES, [value("x", sizes)], [value("y", None)], 17, **STORED)
    written = optimised(proto, tmp_path)
    made = {one.op_type for one in written.graph.node if one.domain == NCHWC}
    if not made:
        pytest.skip("this machine's ONNX Runtime has no blocks")
    assert {"Conv", "MaxPool", "AveragePool", "ReorderOutput"} <= made
    x = rand(2, 3, 16, 12)
    (wanted,) = by_runtime(proto, {"x": x})
    found = tvm_ext.compile(written, HOST, opt_level=level).run({"x": x})["y"]
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def blocked_model(block: int, inputs: int, outputs: int, channels: int) -> onnx.ModelProto:
    """A pointwise convolution written by hand in blocks; its plain weights are ``weights``."""
    rows = -(-outputs // block) * block
    columns = -(-inputs // block) * block
    padded = np.zeros((rows, columns), np.float32)
    padded[:outputs, :inputs] = weights(outputs, inputs)
    parts = padded.reshape(rows // block, block, columns // block, block)
    nodes = [
        helper.make_node("ReorderInput", ["x"], ["i"], domain=NCHWC),
        helper.make_node("Conv", ["i", "w"], ["c"], domain=NCHWC, group=1, kernel_shape=[1, 1]),
        helper.make_node("ReorderOutput", ["c"], ["y"], domain=NCHWC, channels=channels),
    ]
    stored = parts.transpose(0, 2, 3, 1).reshape(rows, columns, 1, 1)
    inner = [value("x", ["n", inputs, "h", "w"])]
    proto = model(nodes, inner, [value("y", None)], 17, w=np.ascontiguousarray(stored))
    proto.opset_import.append(helper.make_opsetid(NCHWC, 1))
    return proto


def weights(outputs: int, inputs: int) -> np.ndarray:
    return np.random.default_rng(outputs).normal(size=(outputs, inputs)).astype(np.float32)


@pytest.mark.parametrize(("block", "inputs", "outputs"), [(8, 20, 24), (16, 20, 20)])
def test_the_size_of_a_block_follows_from_the_channels(block, inputs, outputs):
    proto = blocked_model(block, inputs, outputs, outputs)
    x = rand(2, inputs, 3, 5)
    found = tvm_ext.compile(proto, HOST, opt_level="O0").run({"x": x})["y"]
    wanted = np.einsum("oi,nihw->nohw", weights(outputs, inputs), x)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_weights_of_the_run_are_refused():
    proto = blocked_model(8, 8, 24, 24)
    (stored,) = proto.graph.initializer
    proto.graph.input.append(value("w", list(stored.dims)))
    del proto.graph.initializer[:]
    with pytest.raises(UnsupportedOperatorError, match="nchwc::Conv"):
        tvm_ext.compile(proto)
