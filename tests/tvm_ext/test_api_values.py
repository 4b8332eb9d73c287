"""Kinds of inputs and outputs: scalars, integers, truth values, halves, constants, repeats."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from small_models import model, rand, value
from unoptimised import HOST

import tvm_ext
from tvm_ext.errors import InputError

node = helper.make_node
FLOAT, INT64, BOOL, HALF = (
    TensorProto.FLOAT,
    TensorProto.INT64,
    TensorProto.BOOL,
    TensorProto.FLOAT16,
)


def run_one(proto: onnx.ModelProto, opt_level="O3", **inputs) -> dict[str, np.ndarray]:
    return tvm_ext.compile(proto, HOST, opt_level=opt_level).run(inputs)


@pytest.mark.parametrize("level", ["O0", "O3"])
def test_a_scalar_comes_in_and_goes_out(level):
    proto = model(
        [node("Add", ["s", "s"], ["y"]), node("ReduceSum", ["v"], ["t"], keepdims=0)],
        [value("s", []), value("v", [3])],
        [value("y", []), value("t", [])],
    )
    outputs = run_one(proto, level, s=np.float32(1.5), v=rand(3))
    assert outputs["y"].shape == outputs["t"].shape == ()
    assert outputs["y"] == 3.0


@pytest.mark.parametrize("level", ["O0", "O3"])
def test_truth_values_and_integers(level):
    proto = model(
        [
            node("Where", ["flag", "a", "b"], ["w"]),
            node("Not", ["flag"], ["n"]),
            node("Greater", ["a", "b"], ["g"]),
            node("Mul", ["a", "b"], ["m"]),
        ],
        [value("flag", [4], BOOL), value("a", [4], INT64), value("b", [4], INT64)],
        [
            *(value(name, [4], INT64) for name in "wm"),
            *(value(name, [4], BOOL) for name in "ng"),
        ],
    )
    flag, a, b = np.array([True, False, True, False]), np.arange(4), np.array([9, -1, 2, 1 << 40])
    outputs = run_one(proto, level, flag=flag, a=a, b=b)
    wanted = {"w": np.where(flag, a, b), "n": ~flag, "g": a > b, "m": a * b}
    for name, array in wanted.items():
        assert outputs[name].dtype == array.dtype
        np.testing.assert_array_equal(outputs[name], array)


@pytest.mark.parametrize("level", ["O0", "O3"])
def test_half_precision(level):
    w = rand(6, 4, dtype="float16")
    proto = model(
        [node("MatMul", ["x", "w"], ["m"]), node("Relu", ["m"], ["y"])],
        [value("x", [2, 6], HALF)],
        [value("y", [2, 4], HALF)],
        w=w,
    )
    x = rand(2, 6, dtype="float16")
    y = run_one(proto, level, x=x)["y"]
    assert y.dtype == np.float16
    wanted = np.maximum(x.astype("float32") @ w.astype("float32"), 0)
    np.testing.assert_allclose(y.astype("float32"), wanted, rtol=2e-2, atol=5e-3)


@pytest.mark.parametrize("level", ["O0", "O3"])
def test_an_unused_input_and_an_output_that_is_an_input(level):
    proto = model(
        [node("Exp", ["x"], ["y"])],
        [value("x", [2, 3]), value("idle", ["K"], INT64)],
        [value("x", [2, 3]), value("y", [2, 3]), value("idle", ["K"], INT64)],
    )
    x, idle = rand(2, 3), np.arange(5)
    outputs = run_one(proto, level, x=x, idle=idle)
    assert list(outputs) == ["x", "y", "idle"]
    np.testing.assert_array_equal(outputs["x"], x)
    np.testing.assert_array_equal(outputs["idle"], idle)
    assert not np.shares_memory(outputs["x"], x)
    with pytest.raises(InputError, match="'idle' is missing"):
        run_one(proto, level, x=x)


@pytest.mark.parametrize("level", ["O0", "O3"])
def test_an_output_that_is_a_constant_and_one_that_comes_twice(level):
    proto = model(
        [
            node("Identity", ["stored"], ["c"]),
            node("Exp", ["x"], ["y"]),
            node("Identity", ["y"], ["again"]),
        ],
        [value("x", [3])],
        [value("c", [2]), value("y", [3]), value("again", [3])],
        stored=np.array([1, 2], "float32"),
    )
    made = tvm_ext.compile(proto, HOST, opt_level=level)
    first, second = made.run({"x": rand(3)}), made.run({"x": rand(3)})
    np.testing.assert_array_equal(first["c"], [1, 2])
    np.testing.assert_array_equal(first["y"], first["again"])
    first["c"][...] = 9
    np.testing.assert_array_equal(second["c"], [1, 2])
    np.testing.assert_array_equal(made.run({"x": rand(3)})["c"], [1, 2])


def test_one_constant_with_two_readers_is_folded_for_neither_wrongly():
    """The batch norm behind one convolution must not scale the weights of the other."""
    nodes = [
        node("Conv", ["x", "w"], ["a"], name="plain", pads=[1, 1, 1, 1]),
        node("Conv", ["x", "w"], ["b"], name="scaled", pads=[1, 1, 1, 1], strides=[2, 2]),
        node("BatchNormalization", ["b", "s", "o", "m", "v"], ["c"], name="bn"),
    ]
    stats = {name: np.abs(rand(2, seed=i)) + np.float32(0.5) for i, name in enumerate("somv")}
    weights = {"w": rand(2, 2, 3, 3), **stats}
    outputs = [value("a", [1, 2, 6, 6]), value("c", [1, 2, 3, 3])]
    proto = model(nodes, [value("x", [1, 2, 6, 6])], outputs, **weights)
    x = rand(1, 2, 6, 6)
    plain, folded = run_one(proto, "O0", x=x), run_one(proto, "O3", x=x)
    for name in ("a", "c"):
        np.testing.assert_allclose(folded[name], plain[name], rtol=1e-4, atol=1e-5)
