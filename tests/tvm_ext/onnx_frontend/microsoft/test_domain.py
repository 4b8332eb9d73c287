"""Operators that ONNX Runtime has in the default domain at opsets in which ONNX does not."""

import numpy as np
import onnx
import pytest
from combinations import pairwise
from one_model import in_one_model, run_model
from onnx import helper
from operator_models import array_info, by_runtime
from small_models import rand


def default_domain(operator: str, inputs: list[str], outputs: int, opset: int, **attributes):
    names = [f"y{place}" for place in range(outputs)]
    made = helper.make_node(operator, inputs, names, name="tested", **attributes)
    stored = [onnx.numpy_helper.from_array(rand(*s), n) for n, s in STORED.items() if n in inputs]
    infos = [array_info(name, None) for name in names]
    graph = helper.make_graph([made], "old", [array_info("x", ["n", 3, 4])], infos, stored)
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


STORED = {"scale": (4,), "bias": (4,), "scales": (3, 4), "biases": (3, 4)}


@in_one_model
@pairwise(
    opset=[9, 13],
    form=[
        ("LayerNormalization", ["x", "scale", "bias"], 1, {}),
        ("LayerNormalization", ["x", "scale"], 3, {"epsilon": 0.1}),
        ("LayerNormalization", ["x", "scales", "biases"], 3, {"axis": 1}),
        ("LayerNormalization", ["x", "scales", "biases"], 3, {"axis": -2}),
        ("SimplifiedLayerNormalization", ["x", "scale"], 1, {}),
    ],
)
def test_normalisations(opset: int, form: tuple[str, list[str], int, dict]) -> None:
    operator, inputs, outputs, attributes = form
    proto = default_domain(operator, inputs, outputs, opset, **attributes)
    feeds = {"x": rand(2, 3, 4)}
    found = run_model(proto, feeds, "O0")
    for array, wanted in zip(found.values(), by_runtime(proto, feeds), strict=True):
        assert array.shape == wanted.shape
        np.testing.assert_allclose(array, wanted, rtol=1e-5, atol=1e-6)


@in_one_model
@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_is_that_of_opset_20(approximate: str) -> None:
    feeds = {"x": rand(2, 3, 4)}
    old, new = (
        run_model(default_domain("Gelu", ["x"], 1, opset, approximate=approximate), feeds, "O0")
        for opset in (16, 20)
    )
    np.testing.assert_allclose(old["y0"], new["y0"], rtol=1e-5, atol=1e-6)


def test_a_domain_that_the_model_does_not_import() -> None:
    proto = default_domain("Gelu", ["x"], 1, 17)
    proto.graph.node[0].domain = "com.microsoft"
    feeds = {"x": rand(2, 3, 4)}
    (wanted,) = by_runtime(proto, feeds)
    found = run_model(proto, feeds, "O0")["y0"]
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
