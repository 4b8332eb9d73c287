"""Constants without elements in programs."""

from typing import Any

import numpy as np
import onnx
import pytest
from small_models import model, node, rand, value
from tvm.script import ir as I
from tvm.script import relax as R
from unoptimised import HOST

import tvm_ext

NONE = node("NonZero", ["zeros"], ["none"])
CASES: dict[str, list[Any]] = {
    "an output": [node("NonZero", ["zeros"], ["y"])],
    "joined": [
        NONE,
        node("Cast", ["none"], ["cast"], to=onnx.TensorProto.FLOAT),
        node("Concat", ["x", "cast"], ["y"], axis=1),
    ],
    "broadcast": [
        NONE,
        node("Cast", ["none"], ["cast"], to=onnx.TensorProto.FLOAT),
        node("Mul", ["x", "cast"], ["y"]),
    ],
}
SHAPES = {"an output": (1, 0), "joined": (1, 1), "broadcast": (1, 0)}


@pytest.mark.parametrize("level", ["O0", "O3"])
@pytest.mark.parametrize("name", CASES)
def test_a_constant_without_elements(name: str, level: str) -> None:
    outputs = [onnx.ValueInfoProto(name="y")]
    proto = model(CASES[name], [value("x", [1, 1])], outputs, zeros=np.zeros(3, np.float32))
    x = rand(1, 1)
    got = tvm_ext.compile(proto, HOST, opt_level=level).run({"x": x})["y"]
    assert got.shape == SHAPES[name]
    np.testing.assert_array_equal(got, x if name == "joined" else np.zeros((1, 0)))


@I.ir_module
class Viewed:
    @R.function
    def main(x: R.Tensor((4, 6), "float32")):
        with R.dataflow():
            y = R.exp(x)
            v = R.memory.view(y, R.shape([24]), R.dtype("float32"))
            z = R.add(v, R.const(1.0, "float32"))
            R.output(z)
        return z


@pytest.mark.parametrize("level", ["O0", "O3"])
def test_a_constant_that_is_no_tensor_stays(level: str) -> None:
    x = rand(4, 6)
    found = tvm_ext.compile(Viewed, HOST, opt_level=level).run({"x": x})["output"]
    np.testing.assert_allclose(found, np.exp(x).ravel() + 1, rtol=1e-5)
