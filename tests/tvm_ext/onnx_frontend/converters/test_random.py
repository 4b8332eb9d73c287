"""Random operators: their distribution, that a seed decides, and the known answers of Philox."""

from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto, helper
from tvm import te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T
from unoptimised import HOST, built

import tvm_ext
from tvm_ext.errors import ModelError
from tvm_ext.onnx_frontend.converters.random import philox_rounds

COUNT = 20000


def drawn(operator: str, x: np.ndarray | None = None, name: str = "draw", **attributes: Any) -> Any:
    proto = random_model(operator, x, name, **attributes)
    return tvm_ext.compile(proto, HOST).run({} if x is None else {"x": x})["y"]


def random_model(
    operator: str, x: np.ndarray | None = None, name: str = "draw", **attributes: Any
) -> onnx.ModelProto:
    node = helper.make_node(operator, [] if x is None else ["x"], ["y"], name=name, **attributes)
    inputs = []
    if x is not None:
        dtype = helper.np_dtype_to_tensor_dtype(x.dtype)
        inputs = [helper.make_tensor_value_info("x", dtype, x.shape)]
    default = TensorProto.INT32 if operator == "Multinomial" else TensorProto.FLOAT
    if "dtype" not in attributes and x is not None and operator != "Multinomial":
        default = helper.np_dtype_to_tensor_dtype(x.dtype)
    output = helper.make_tensor_value_info("y", attributes.get("dtype", default), None)
    graph = helper.make_graph([node], "small", inputs, [output])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


@pytest.mark.extended
@pytest.mark.parametrize(
    ("counter", "key", "wanted"),
    [
        ((0, 0), 0, (0xFF1DAE59, 0x6CD10DF2)),
        ((0xFFFFFFFF, 0xFFFFFFFF), 0xFFFFFFFF, (0x2C3F628B, 0xAB4FD7AD)),
        ((0x243F6A88, 0x85A308D3), 0x13198A2E, (0xDD7CE038, 0xF62A4C12)),
    ],
)
def test_philox_gives_the_known_answers_of_random123(
    counter: tuple, key: int, wanted: tuple
) -> None:
    state = [counter[0] | counter[1] << 32]

    def statement(_read: Any, written: Any) -> Any:
        with IRBuilder() as builder:
            result = T.buffer_proxy(written[0])
            with T.serial(0, 1):
                result[0] = tirx.const(state[0], "uint64")
                philox_rounds(result, key)
            return builder.get()

    kernel = te.create_prim_func([te.extern([(1,)], [], statement, dtype=["uint64"])])
    y = tvm.runtime.tensor(np.zeros(1, np.uint64))
    built({"main": kernel})["main"](y)
    word = int(y.numpy()[0])
    assert (word & 0xFFFFFFFF, word >> 32) == wanted


@pytest.mark.extended
def test_what_reads_random_numbers_twice_reads_the_same() -> None:
    nodes = [
        helper.make_node("RandomNormal", [], ["z"], shape=[64]),
        helper.make_node("Mul", ["z", "z"], ["square"]),
        helper.make_node("Abs", ["z"], ["size"]),
        helper.make_node("Mul", ["size", "size"], ["again"]),
        helper.make_node("Sub", ["square", "again"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "small", [], [helper.make_tensor_value_info("y", TensorProto.FLOAT, [64])]
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    assert not tvm_ext.compile(proto, HOST).run({})["y"].any()


@pytest.mark.extended
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_uniform_numbers(dtype: type) -> None:
    number = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    y = drawn("RandomUniform", shape=[COUNT], low=-1.0, high=3.0, seed=7.0, dtype=number)
    assert y.dtype == dtype
    assert y.min() >= -1
    assert y.max() <= 3
    y = y.astype(np.float64)
    assert abs(y.mean() - 1) < 0.04
    assert abs(y.var() - 16 / 12) < 0.04
    counts = np.histogram(y, 16, (-1, 3))[0]
    assert np.abs(counts / COUNT * 16 - 1).max() < 0.15


@pytest.mark.extended
def test_normal_numbers() -> None:
    y = drawn("RandomNormal", shape=[4, COUNT // 4], mean=2.0, scale=3.0, seed=1.0)
    z = (y - 2) / 3
    assert y.shape == (4, COUNT // 4)
    assert abs(z.mean()) < 0.03
    assert abs(z.std() - 1) < 0.03
    assert abs((z**3).mean()) < 0.1
    assert abs((z**4).mean() - 3) < 0.25
    assert abs(np.corrcoef(z)[0, 1:]).max() < 0.06


@pytest.mark.extended
def test_a_seed_decides_and_without_one_the_name_does() -> None:
    x = np.zeros((3, 5), np.float64)
    first = drawn("RandomNormalLike", x, seed=1.0)
    assert first.dtype == np.float64
    assert first.shape == (3, 5)
    np.testing.assert_array_equal(drawn("RandomNormalLike", x, "other", seed=1.0), first)
    assert (drawn("RandomNormalLike", x, seed=2.0) != first).all()
    nameless = drawn("RandomUniformLike", x)
    np.testing.assert_array_equal(drawn("RandomUniformLike", x), nameless)
    assert (drawn("RandomUniformLike", x, "other") != nameless).all()


@pytest.mark.extended
@pytest.mark.parametrize("dtype", [TensorProto.BOOL, TensorProto.DOUBLE, None])
def test_bernoulli(dtype: int | None) -> None:
    chance = np.repeat(np.float32([0, 0.25, 0.9, 1]), 2000)
    wanted = {} if dtype is None else {"dtype": dtype}
    y = drawn("Bernoulli", chance, seed=3.0, **wanted).astype(np.float64).reshape(4, -1)
    np.testing.assert_allclose(y.mean(1), [0, 0.25, 0.9, 1], atol=0.03)
    assert set(np.unique(y)) == {0, 1}
    assert y[0].max() == 0
    assert y[3].min() == 1


def test_multinomial() -> None:
    shares = np.float32([[0.1, 0.2, 0.7, 0], [0.25, 0.25, 0.25, 0.25]])
    with np.errstate(divide="ignore"):
        logarithms = np.log(shares) + np.float32([[3], [-2]])
    y = drawn("Multinomial", logarithms, sample_size=4000, seed=5.0)
    assert y.dtype == np.int32
    found = [np.bincount(row, minlength=4) / 4000 for row in y]
    np.testing.assert_allclose(found, shares, atol=0.03)
    assert found[0][3] == 0


def test_normal_numbers_of_a_type_without_fractions_are_refused() -> None:
    x = np.zeros(3, np.int64)
    with pytest.raises(ModelError, match="int64"):
        tvm_ext.compile(random_model("RandomUniformLike", x))
