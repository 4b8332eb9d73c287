"""Arrays between the kernels of one function are planned with all other storage."""

import numpy as np
import onnx
import pytest
from emulated_models import emulated_model
from small_models import model, node, rand, value


def split_product() -> onnx.ModelProto:
    """A product of one tile and a long reduction, twice: both share one kernel."""
    nodes = [
        node("MatMul", ["x", "w"], ["a"]),
        node("Relu", ["a"], ["b"]),
        node("MatMul", ["b", "w"], ["y"]),
    ]
    return model(
        nodes,
        [value("x", [24, 512])],
        [value("y", [24, 512])],
        w=rand(512, 512) / 16,
    )


@pytest.mark.emulated
def test_numbers_and_storage() -> None:
    source = split_product()
    compiled = emulated_model(source, target="nvidia-h100")
    weights = onnx.numpy_helper.to_array(source.graph.initializer[0])
    x = np.random.default_rng(0).standard_normal((24, 512)).astype("float32")
    found = compiled.run({"x": x})["y"]
    np.testing.assert_allclose(found, np.maximum(x @ weights, 0) @ weights, rtol=1e-4, atol=1e-4)
    # Besides the two results the partial sums, for which both kernels share one place.
    memory = compiled.report.memory
    assert memory.planned_peak_bytes >= (2 + 8) * 24 * 512 * 4
    assert memory.unplanned_bytes > 1.5 * memory.planned_peak_bytes
