"""MurmurHash3 on the host against ONNX Runtime."""

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper
from unoptimised import HOST

import tvm_ext


@pytest.mark.parametrize(("positive", "kind"), [(1, TensorProto.UINT32), (0, TensorProto.INT32)])
def test_hashes_of_texts(positive: int, kind: int) -> None:
    texts = ["", "a", "ab", "abc", "abcd", "New York", "São Paulo", "x" * 33]
    node = helper.make_node(
        "MurmurHash3", ["x"], ["y"], domain="com.microsoft", positive=positive, seed=7
    )
    x = helper.make_tensor_value_info("x", TensorProto.STRING, ["n"])
    y = helper.make_tensor_value_info("y", kind, ["n"])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], "hashes", [x], [y])
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    feed = {"x": np.array(texts, object)}
    (wanted,) = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, feed)
    found = tvm_ext.compile(proto, HOST).run(feed)["y"]
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found, wanted)
