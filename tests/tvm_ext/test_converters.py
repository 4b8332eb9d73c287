"""Our converters against ONNX Runtime: Clip, Gather and the variadic operators."""

import numpy as np
import onnx
import pytest
from onnx import helper
from small_models import model, value

import tvm_ext
from tvm_ext.onnx_frontend import import_model
from tvm_ext.onnx_frontend.converters import CONVERTERS
from tvm_ext.onnx_frontend.operator_key import split_key

runtime = pytest.importorskip("onnxruntime")
node = helper.make_node
INF, NAN = float("inf"), float("nan")


def element_type(array: np.ndarray) -> int:
    return helper.np_dtype_to_tensor_dtype(np.asarray(array).dtype)


def assert_as_reference(proto: onnx.ModelProto, rtol: float = 1e-6, **inputs: np.ndarray) -> None:
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = runtime.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    (wanted,) = session.run(None, inputs)
    for level in ("O0", "O3"):
        (found,) = tvm_ext.compile(proto, opt_level=level).run(inputs).values()
        assert found.dtype == wanted.dtype
        np.testing.assert_allclose(found, wanted, rtol=rtol)


def relax_operators(proto: onnx.ModelProto) -> set[str]:
    text = import_model(proto).mod.script()
    return {word for word in ("call_tir", "maximum", "minimum", "where", "take") if word in text}


VALUES = np.array([-INF, -9, -1, -0.5, 0, 0.5, 1, 9, INF, NAN], np.float32)


def clip(*, opset: int = 17, stored: bool = True, low=None, high=None, x=VALUES, **attributes):
    bounds = {k: np.array(v, x.dtype) for k, v in (("low", low), ("high", high)) if v is not None}
    names = [name if name in bounds else "" for name in ("low", "high")]
    while names and not names[-1]:
        names.pop()
    inputs = [value("x", list(x.shape), element_type(x))]
    if not stored:
        inputs += [value(name, [], element_type(x)) for name in bounds]
    proto = model(
        [node("Clip", ["x", *names], ["y"], name="clip", **attributes)],
        inputs,
        [value("y", list(x.shape), element_type(x))],
        opset,
        **(bounds if stored else {}),
    )
    return proto, {"x": x} if stored else {"x": x, **bounds}


BOUNDS = [
    {},
    {"low": -1},
    {"high": 1},
    {"low": 0, "high": 6},
    {"low": 2, "high": -2},
    {"low": -INF, "high": INF},
]


@pytest.mark.parametrize("stored", [True, False], ids=["stored", "run time"])
@pytest.mark.parametrize("bounds", BOUNDS, ids=str)
def test_clip(bounds, stored):
    # An absent bound is the largest finite number there, and none here: infinity stays.
    x = VALUES if len(bounds) == 2 else VALUES[~np.isinf(VALUES)]
    proto, inputs = clip(x=x, stored=stored, **bounds)
    assert_as_reference(proto, **inputs)


@pytest.mark.parametrize("dtype", ["float64", "float16", "int8", "int32", "int64", "uint8"])
def test_clip_of_other_types(dtype):
    x = np.array([0, 1, 3, 5, 7, 100]).astype(dtype)
    proto, inputs = clip(x=x, low=2, high=6)
    assert_as_reference(proto, **inputs)


@pytest.mark.parametrize("attributes", [{}, {"min": -1.0}, {"max": 1.0}, {"min": 0.0, "max": 6.0}])
def test_clip_with_bounds_as_attributes(attributes):
    proto, inputs = clip(opset=6, x=VALUES[np.isfinite(VALUES)], **attributes)
    assert_as_reference(proto, **inputs)


def test_a_bound_that_is_no_number_is_no_bound():
    proto, inputs = clip(stored=False, low=-1, high=2)
    inputs["high"] = np.array(NAN, np.float32)
    (found,) = tvm_ext.compile(proto).run(inputs).values()
    np.testing.assert_array_equal(found, np.maximum(VALUES, -1))


def test_clip_is_two_operators_that_passes_can_see():
    proto, _ = clip(low=0, high=6)
    assert relax_operators(proto) == {"maximum", "minimum"}


def gather(data: np.ndarray, indices: np.ndarray, axis: int, stored: bool) -> tuple:
    shape = np.take(data, indices, axis).shape
    inputs = [value("data", list(data.shape), element_type(data))]
    if not stored:
        inputs.append(value("indices", list(indices.shape), element_type(indices)))
    proto = model(
        [node("Gather", ["data", "indices"], ["y"], name="gather", axis=axis)],
        inputs,
        [value("y", list(shape), element_type(data))],
        **({"indices": indices} if stored else {}),
    )
    return proto, {"data": data} if stored else {"data": data, "indices": indices}


DATA = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


@pytest.mark.parametrize("stored", [True, False], ids=["stored", "run time"])
@pytest.mark.parametrize("axis", [0, 1, 2, -1, -3])
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_gather(axis, stored, dtype):
    size = DATA.shape[axis]
    indices = np.array([[0, size - 1], [-1, -size]], dtype)
    proto, inputs = gather(DATA, indices, axis, stored)
    assert_as_reference(proto, **inputs)


def test_gather_of_one_and_of_integers():
    proto, inputs = gather(DATA.astype("int64"), np.array(-1), 1, False)
    assert_as_reference(proto, **inputs)


@pytest.mark.parametrize("level", ["O0", "O3"])
def test_an_index_beyond_the_data_does_not_end_the_process(level):
    proto, inputs = gather(DATA, np.array([0, 1]), 0, False)
    model = tvm_ext.compile(proto, opt_level=level)
    for index in (2, 10**6, 2**40, -3, -(10**6), -(2**40)):
        (found,) = model.run({**inputs, "indices": np.array([index, 1])}).values()
        np.testing.assert_array_equal(found[0], DATA[1 if index > 0 else 0])
        np.testing.assert_array_equal(found[1], DATA[1])


def variadic(operator: str, *arrays: np.ndarray) -> tuple:
    names = [f"x{i}" for i in range(len(arrays))]
    shape = np.broadcast_shapes(*(array.shape for array in arrays))
    proto = model(
        [node(operator, names, ["y"], name="many")],
        [
            value(name, list(array.shape), element_type(array))
            for name, array in zip(names, arrays, strict=True)
        ],
        [value("y", list(shape), element_type(arrays[0]))],
    )
    return proto, dict(zip(names, arrays, strict=True))


def rand(*shape: int, seed: int = 0, dtype: str = "float32") -> np.ndarray:
    return (np.random.default_rng([seed, *shape]).uniform(-9, 9, shape)).astype(dtype)


@pytest.mark.parametrize("operator", ["Max", "Min", "Sum", "Mean"])
@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_any_number_of_inputs(operator, count):
    proto, inputs = variadic(operator, *(rand(2, 3, seed=i) for i in range(count)))
    assert_as_reference(proto, **inputs)


@pytest.mark.parametrize("operator", ["Max", "Min", "Sum", "Mean"])
def test_inputs_are_broadcast(operator):
    proto, inputs = variadic(operator, rand(3), rand(2, 1), rand(1, 2, 3), rand())
    assert_as_reference(proto, **inputs)


@pytest.mark.parametrize("operator", ["Max", "Min"])
@pytest.mark.parametrize("dtype", ["int32", "int64", "float64", "uint8"])
def test_largest_and_smallest_of_other_types(operator, dtype):
    arrays = [np.abs(rand(2, 3, seed=i)).astype(dtype) for i in range(3)]
    proto, inputs = variadic(operator, *arrays)
    assert_as_reference(proto, **inputs)


def test_variadic_operators_are_a_chain_that_passes_can_see():
    proto, _ = variadic("Max", rand(2, 3), rand(2, 3), rand(2, 3))
    assert relax_operators(proto) == {"maximum"}
    assert import_model(proto).mod.script().count("R.maximum") == 2


def test_every_converter_says_what_it_is_for():
    for name, converter in CONVERTERS.items():
        # An operator and its form "Like" differ in where the shape comes from only.
        assert split_key(name)[1] in (converter.__name__, f"{converter.__name__}Like")
        assert converter.__doc__


@pytest.mark.parametrize(("dtype", "rtol"), [("float32", 1e-6), ("float16", 4e-3)])
def test_hard_swish(dtype, rtol):
    x = np.linspace(-5, 5, 41).astype(dtype)
    elements = element_type(x)
    node = helper.make_node("HardSwish", ["x"], ["y"])
    proto = model([node], [value("x", [41], elements)], [value("y", [41], elements)])
    assert_as_reference(proto, rtol, x=x)
    assert "relax.divide" not in relax_operators(proto)
