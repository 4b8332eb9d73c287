"""QuantizeLinear, DequantizeLinear, DynamicQuantizeLinear and products of integers."""

import functools

import numpy as np
import onnx
import pytest
from combinations import pairwise
from hypothesis import given, settings
from hypothesis import strategies as st
from one_model import in_one_model, run_model
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from random_numbers import RANDOM
from small_models import model, rand, value
from thoroughness import DRAWS, one_in
from unoptimised import HOST

import tvm_ext
from tvm_ext.check.reference import ReferenceSession
from tvm_ext.errors import ModelError, RunError
from tvm_ext.onnx_frontend import import_model

pytest.importorskip("onnxruntime")
node = helper.make_node


def element_type(array: np.ndarray) -> int:
    return helper.np_dtype_to_tensor_dtype(np.asarray(array).dtype)


def integers(*shape: int, dtype: str) -> np.ndarray:
    info = np.iinfo(dtype)
    return RANDOM.integers(info.min, info.max + 1, shape).astype(dtype)


def weights(*shape: int, dtype: str) -> np.ndarray:
    """As ``integers``, but of int8 seven bits: see ``weights_of`` of ``microsoft_models``."""
    found = integers(*shape, dtype=dtype)
    return found // 2 if dtype == "int8" else found


def one_node(op: str, inputs: dict, outputs: dict, opset: int = 21, **attributes):
    """A model of one node; arrays are stored, except those whose name begins with x."""
    fed = {name: np.asarray(a) for name, a in inputs.items() if name.startswith("x")}
    stored = {name: a for name, a in inputs.items() if name not in fed and name.strip("_")}
    proto = model(
        [node(op, [name.strip("_") and name for name in inputs], list(outputs), **attributes)],
        [value(name, list(array.shape), element_type(array)) for name, array in fed.items()],
        [value(name, None, dtype) for name, dtype in outputs.items()],
        opset,
        **stored,
    )
    proto.ir_version = 10
    return proto, fed


def assert_exact(proto: onnx.ModelProto, inputs: dict, level: str = "O3") -> list[np.ndarray]:
    session = ReferenceSession(proto)
    wanted = list(session.run(inputs).values())
    found = list(run_model(proto, inputs, level).values())
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)
    return found


# Halfway between two steps, at both ends and behind them, with a scale that is no power of two.
HALVES = (np.arange(-600, 600, dtype=np.float32) / 2 * np.float32(0.1)).reshape(2, 4, 150)


@pytest.mark.extended
@in_one_model
@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16"])
@pytest.mark.parametrize("stored", [True, False])
def test_quantize_rounds_half_to_even(dtype, stored):
    scale, zero = np.array(0.1, np.float32), np.array(100, dtype)
    names = ("s", "z") if stored else ("xs", "xz")
    inputs = {"x": HALVES, names[0]: scale, names[1]: zero}
    proto, fed = one_node("QuantizeLinear", inputs, {"y": element_type(zero)})
    (found,) = assert_exact(proto, fed)
    if dtype.endswith("8"):
        assert {found.min(), found.max()} == {np.iinfo(dtype).min, np.iinfo(dtype).max}


@pytest.mark.extended
def test_quantize_without_a_zero_point_makes_uint8():
    proto, fed = one_node(
        "QuantizeLinear", {"x": HALVES, "s": np.float32(0.1)}, {"y": TensorProto.UINT8}, 13
    )
    assert_exact(proto, fed)


@pytest.mark.extended
@in_one_model
@pytest.mark.parametrize("axis", [1, -2, 0])
@pytest.mark.parametrize("op", ["QuantizeLinear", "DequantizeLinear"])
def test_per_axis(op, axis):
    size = HALVES.shape[axis]
    scale = np.linspace(0.05, 0.2, size, dtype=np.float32)
    zero = integers(size, dtype="int8")
    x = HALVES if op == "QuantizeLinear" else integers(*HALVES.shape, dtype="int8")
    made = TensorProto.INT8 if op == "QuantizeLinear" else TensorProto.FLOAT
    proto, fed = one_node(op, {"x": x, "s": scale, "z": zero}, {"y": made}, 13, axis=axis)
    assert_exact(proto, fed)


@pytest.mark.extended
@in_one_model
@pytest.mark.parametrize("op", ["QuantizeLinear", "DequantizeLinear"])
@pytest.mark.parametrize("stored", [True, False])
def test_blocks_with_a_remainder(op, stored):
    x = rand(3, 10) if op == "QuantizeLinear" else integers(3, 10, dtype="uint8")
    scale, zero = rand(3, 3) ** 2 + np.float32(0.01), integers(3, 3, dtype="uint8")
    names = ("s", "z") if stored else ("xs", "xz")
    made = TensorProto.UINT8 if op == "QuantizeLinear" else TensorProto.FLOAT
    inputs = {"x": x, names[0]: scale, names[1]: zero}
    proto, fed = one_node(op, inputs, {"y": made}, axis=1, block_size=4)
    assert_exact(proto, fed)


@pytest.mark.extended
@in_one_model
@pytest.mark.parametrize("dtype", [TensorProto.INT4, TensorProto.UINT4])
def test_four_bits_there_and_back(dtype):
    nodes = [
        node("QuantizeLinear", ["x", "s"], ["q"], output_dtype=dtype),
        node("DequantizeLinear", ["q", "s"], ["y"]),
    ]
    outputs = [value("q", [2, 4, 150], dtype), value("y", [2, 4, 150])]
    proto = model(nodes, [value("x", [2, 4, 150])], outputs, 21, s=np.float32(0.1))
    found = run_model(proto, {"x": HALVES})
    wanted = dict(zip("qy", ReferenceEvaluator(proto).run(None, {"x": HALVES}), strict=True))
    for name, array in found.items():
        assert array.dtype == wanted[name].dtype
        np.testing.assert_array_equal(array.astype(np.float32), wanted[name].astype(np.float32))
    assert len(np.unique(found["y"])) == 16


@pytest.mark.extended
@in_one_model
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_dequantize_has_the_type_of_its_scale(dtype):
    inputs = {"x": integers(4, 5, dtype="int8"), "s": np.array(0.3, dtype), "z": np.int8(-5)}
    proto, fed = one_node("DequantizeLinear", inputs, {"y": element_type(inputs["s"])}, 19)
    assert_exact(proto, fed)


def test_stored_weights_become_the_numbers_that_they_stand_for():
    inputs = {
        "w": integers(6, 4, dtype="uint8"),
        "s": rand(4) ** 2,
        "z": integers(4, dtype="uint8"),
    }
    nodes = [node("DequantizeLinear", list(inputs), ["v"]), node("MatMul", ["x", "v"], ["y"])]
    proto = model(nodes, [value("x", [2, 6])], [value("y", [2, 4])], 17, **inputs)
    assert "uint8" not in import_model(proto).mod.script()
    centred = inputs["w"].astype(np.float32) - inputs["z"].astype(np.float32)
    x = rand(2, 6)
    (found,) = run_model(proto, {"x": x}).values()
    np.testing.assert_allclose(found, x @ (centred * inputs["s"]), rtol=1e-4)


# Of a range of subnormal numbers the scale is zero, and the result divided by it anything.
RANGE_ENDS = st.floats(-100, 100, width=32).map(lambda end: 0.0 if abs(end) < 1e-30 else end)


@pytest.mark.extended
@settings(max_examples=4 * DRAWS, deadline=None)
@given(low=RANGE_ENDS, high=RANGE_ENDS)
def test_dynamic_quantize_linear(low, high):
    x = np.linspace(low, high, 33, dtype=np.float32)
    (found, scale, zero), (wanted, *rest) = dynamic(x)
    np.testing.assert_array_equal(zero, rest[1])
    np.testing.assert_array_equal(scale, rest[0])
    np.testing.assert_array_equal(found, wanted)


@functools.cache
def dynamic_models() -> tuple:
    x = np.zeros(33, np.float32)
    outputs = {"y": TensorProto.UINT8, "s": TensorProto.FLOAT, "z": TensorProto.UINT8}
    proto, _ = one_node("DynamicQuantizeLinear", {"x": x}, outputs, 11)
    session = ReferenceSession(proto)
    return tvm_ext.compile(proto, HOST), session


def dynamic(x: np.ndarray) -> tuple[list, list]:
    compiled, session = dynamic_models()
    return list(compiled.run({"x": x}).values()), list(session.run({"x": x}).values())


@in_one_model
@pytest.mark.parametrize("weight", [rand(7, 9), rand(5, 4) ** 2 + 1, np.zeros((2, 3), np.float32)])
def test_stored_weights_are_quantised_while_compiling(weight):
    outputs = {"q": TensorProto.UINT8, "s": TensorProto.FLOAT, "z": TensorProto.UINT8}
    proto, _ = one_node("DynamicQuantizeLinear", {"w": weight}, outputs, 11)
    imported = import_model(proto)
    assert "round" not in imported.mod.script()
    wanted = list(ReferenceSession(proto).run({}).values())
    found = run_model(proto, {}, "O0")
    for one, other in zip(found.values(), wanted, strict=True):
        np.testing.assert_array_equal(one, other)


def test_dynamic_quantize_linear_of_zeros():
    (found, scale, zero), (wanted, *rest) = dynamic(np.zeros(33, np.float32))
    np.testing.assert_array_equal(found, wanted)
    assert (scale, zero) == (rest[0], rest[1]) == (1, 0)


CONVOLUTIONS = {
    "plain": {},
    "same": {"auto_pad": "SAME_UPPER", "strides": [2, 2]},
    "padded": {"pads": [1, 0, 2, 1], "dilations": [2, 1]},
}


@in_one_model
@pairwise(case=CONVOLUTIONS, dtypes=[("uint8", "uint8"), ("uint8", "int8"), ("int8", "int8")])
def test_qlinear_conv(case, dtypes):
    first, second = dtypes
    inputs = {"x": integers(1, 6, 11, 9, dtype=first)}
    inputs |= {"s": np.float32(0.02), "z": integers(dtype=first)}
    inputs |= {"w": weights(8, 6, 3, 3, dtype=second), "ws": rand(8) ** 2 + np.float32(0.01)}
    inputs |= {"wz": np.zeros(8, second) if second == "int8" else integers(dtype=second)}
    if second == "uint8":
        inputs["ws"] = np.float32(0.03)
    inputs |= {"ys": np.float32(7.3), "yz": np.array(17, first)}
    inputs |= {"b": RANDOM.integers(-9000, 9000, 8).astype(np.int32)}
    made = {"y": element_type(inputs["x"])}
    proto, fed = one_node("QLinearConv", inputs, made, 10, **CONVOLUTIONS[case])
    (found,) = assert_exact(proto, fed)
    assert len(np.unique(found)) > 3


@pytest.mark.extended
@in_one_model
@pytest.mark.parametrize("group", [1, 2, 6])
def test_conv_integer(group):
    inputs = {"x": integers(1, 6, 9, 9, dtype="uint8")}
    inputs |= {"w": integers(6, 6 // group, 3, 3, dtype="uint8")}
    inputs |= {"z": np.uint8(200), "wz": np.uint8(3)}
    proto, fed = one_node("ConvInteger", inputs, {"y": TensorProto.INT32}, 10, group=group)
    (found,) = assert_exact(proto, fed)
    assert np.abs(found).max() > 255


@pytest.mark.extended
@in_one_model
@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("stored", [True, False])
def test_matmul_integer(columns, stored):
    name = "w" if stored else "xw"
    inputs = {"x": integers(3, 5, 40, dtype="uint8"), name: weights(40, 7, dtype="int8")}
    inputs |= {"z": np.uint8(7), "wz": integers(*([7] if columns else []), dtype="int8")}
    proto, fed = one_node("MatMulInteger", inputs, {"y": TensorProto.INT32}, 10)
    assert_exact(proto, fed)


@pytest.mark.extended
def test_matmul_integer_of_rows():
    inputs = {"x": integers(5, 40, dtype="uint8"), "w": integers(40, 7, dtype="uint8")}
    inputs["z"] = integers(5, dtype="uint8")
    proto, fed = one_node("MatMulInteger", inputs, {"y": TensorProto.INT32}, 10)
    (found,) = run_model(proto, fed).values()
    centred = inputs["x"].astype(np.int32) - inputs["z"].astype(np.int32)[:, None]
    np.testing.assert_array_equal(found, centred @ inputs["w"].astype(np.int32))


@pytest.mark.slow
@pytest.mark.parametrize("level", ["O0", "O3"])
def test_a_product_of_two_operands_that_are_quantised_in_the_run(level):
    shapes = {"a": [2, 3, 7, 20], "b": [2, 3, 20, 9]}
    nodes = [
        node("DynamicQuantizeLinear", ["a"], ["aq", "as", "az"]),
        node("DynamicQuantizeLinear", ["b"], ["bq", "bs", "bz"]),
        node("MatMulInteger", ["aq", "bq", "az", "bz"], ["y"]),
        node("Mul", ["as", "bs"], ["s"]),
    ]
    proto = model(
        nodes,
        [value(name, shape) for name, shape in shapes.items()],
        [value("y", None, TensorProto.INT32), value("s", None)],
    )
    compiled = tvm_ext.compile(proto, HOST, opt_level=level)
    session = ReferenceSession(proto)
    for seed in range(20):
        shift = np.float32(seed % 4 - 1)
        fed = {name: rand(*shape, seed=seed) + shift for name, shape in shapes.items()}
        for found, wanted in zip(
            compiled.run(fed).values(), session.run(fed).values(), strict=True
        ):
            np.testing.assert_array_equal(found, wanted)


@pytest.mark.extended
@pairwise(level=["O0", "O3"], group=[3, 24])
def test_convolutions_in_groups_of_images_of_any_size_that_are_quantised_in_the_run(level, group):
    nodes = [
        node("DynamicQuantizeLinear", ["x"], ["xq", "xs", "xz"]),
        node("ConvInteger", ["xq", "w", "xz"], ["sums"], group=group, pads=[1, 1, 1, 1]),
        node("Cast", ["sums"], ["numbers"], to=TensorProto.FLOAT),
        node("Mul", ["numbers", "xs"], ["y"]),
    ]
    proto = model(
        nodes,
        [value("x", ["n", 24, "h", "w"])],
        [value("y", None), value("xz", None, TensorProto.UINT8)],
        w=integers(24, 24 // group, 3, 3, dtype="int8"),
    )
    compiled = tvm_ext.compile(proto, HOST, opt_level=level)
    session = ReferenceSession(proto)
    for n, h, w in [(1, 9, 14), (2, 5, 3), (1, 1, 40)]:
        fed = {"x": rand(n, 24, h, w, seed=h) + np.float32(n - 1)}
        for found, wanted in zip(
            compiled.run(fed).values(), session.run(fed).values(), strict=True
        ):
            np.testing.assert_array_equal(found, wanted)


@pytest.mark.extended
def test_saved_weights_of_groups_take_a_byte_each(tmp_path):
    """Those of 288 KiB in float32, of both quantised forms that models have."""
    weight = integers(256, 32, 3, 3, dtype="int8")
    scales = {"s": np.float32(0.02), "z": np.uint8(3), "ws": np.float32(0.01), "wz": np.int8(0)}
    dequantized = [
        node("DequantizeLinear", ["x", "s", "z"], ["d"]),
        node("DequantizeLinear", ["w", "ws", "wz"], ["e"]),
        node("Conv", ["d", "e"], ["f"], group=8, pads=[1, 1, 1, 1]),
        node("QuantizeLinear", ["f", "s", "z"], ["y"]),
    ]
    names = ["x", "s", "z", "w", "ws", "wz", "s", "z"]
    linear = [node("QLinearConv", names, ["y"], group=8, pads=[1, 1, 1, 1])]
    byte = TensorProto.UINT8
    shape = [1, 256, 8, 8]
    for nodes in (dequantized, linear):
        proto = model(
            nodes, [value("x", shape, byte)], [value("y", shape, byte)], w=weight, **scales
        )
        compiled = tvm_ext.compile(proto, HOST)
        compiled.save(tmp_path / "model.tvmx")
        assert (tmp_path / "model.tvmx").stat().st_size < 2.5 * weight.nbytes
        x = integers(*shape, dtype="uint8")
        session = ReferenceSession(proto)
        wanted = session.run({"x": x})["y"].astype(int)
        assert np.abs(compiled.run({"x": x})["y"].astype(int) - wanted).max() <= 1


@pytest.mark.extended
@in_one_model
@pytest.mark.parametrize("stored", [True, False])
def test_qlinear_matmul(stored):
    s, z = ("s", "z") if stored else ("xs", "xz")
    inputs = {"x": integers(2, 5, 40, dtype="uint8"), s: np.float32(0.02), z: np.uint8(100)}
    inputs |= {"w": integers(40, 7, dtype="uint8"), "ws": np.float32(0.03), "wz": np.uint8(99)}
    inputs |= {"ys": np.float32(3.1), "yz": np.uint8(120)}
    proto, fed = one_node("QLinearMatMul", inputs, {"y": TensorProto.UINT8}, 10)
    (found,) = assert_exact(proto, fed)
    assert len(np.unique(found)) > 10


@pytest.mark.extended
@pytest.mark.parametrize("operator", ["MatMulInteger", "QLinearMatMul"])
def test_products_of_stacks_whose_sizes_the_run_compares(operator):
    """Sizes of two names: a product with unknown sizes has no kernel, one of others reads amiss."""
    a, b = ["a", "as", "az"], ["b", "bs", "bz"]
    names = [*a, *b, "ys", "yz"] if operator == "QLinearMatMul" else ["a", "b", "az", "bz"]
    dtype = TensorProto.UINT8 if operator == "QLinearMatMul" else TensorProto.INT32
    stored = {"as": np.float32(0.1), "bs": np.float32(0.1), "ys": np.float32(9)}
    stored |= {"az": np.uint8(100), "bz": np.uint8(99), "yz": np.uint8(120)}
    kind = TensorProto.UINT8
    proto = model(
        [node(operator, names, ["y"])],
        [value("a", ["m", 5, "k"], kind), value("b", ["n", "l", 7], kind)],
        [value("y", None, dtype)],
        **{name: number for name, number in stored.items() if name in names},
    )
    session = ReferenceSession(proto)
    compiled = tvm_ext.compile(proto, HOST)
    for m, n in [(2, 2), (1, 3), (4, 1)]:
        fed = {"a": integers(m, 5, 40, dtype="uint8"), "b": integers(n, 40, 7, dtype="uint8")}
        np.testing.assert_array_equal(compiled.run(fed)["y"], session.run(fed)["y"])
    for other in (integers(3, 40, 7, dtype="uint8"), integers(2, 20, 7, dtype="uint8")):
        with pytest.raises(RunError):
            compiled.run({"a": integers(2, 5, 40, dtype="uint8"), "b": other})


@pytest.mark.extended
def test_a_division_is_not_folded_into_the_convolution_before_it():
    w = rand(4, 3, 3, 3)
    nodes = [
        node("Conv", ["x", "w"], ["c"]),
        node("QuantizeLinear", ["c", "s", "z"], ["y"]),
    ]
    stored = {"w": w, "s": np.float32(0.003), "z": np.int8(0)}
    outputs = [value("y", [1, 4, 14, 14], TensorProto.INT8), value("c", [1, 4, 14, 14])]
    proto = model(nodes, [value("x", [1, 3, 16, 16])], outputs, 13, **stored)
    found = run_model(proto, {"x": rand(1, 3, 16, 16)})
    steps = np.clip(np.rint(found["c"] / np.float32(0.003)), -128, 127)
    np.testing.assert_array_equal(found["y"], steps.astype(np.int8))


OPERATORS = {
    "MatMul": ([2, 5, 18], (18, 9), 1, {}),
    "Gemm": ([5, 18], (9, 18), 0, {"transB": 1}),
    "Conv": ([2, 6, 7, 8], (24, 6, 3, 3), 0, {"pads": [1] * 4, "strides": [2, 1]}),
    "Conv of one channel": ([1, 1, 7, 8], (8, 1, 3, 5), 0, {"dilations": [2, 1]}),
    "Conv in groups": ([1, 6, 7, 8], (6, 1, 3, 3), 0, {"group": 6}),
    "Conv along one axis": ([1, 6, 30], (8, 6, 5), 0, {"pads": [2, 2]}),
}


def dequantized_operator(form: str, dtype: str, scales: str) -> tuple[onnx.ModelProto, dict]:
    """An operator with a bias on DequantizeLinear of an input and of stored weights."""
    shape, weight, axis, attributes = OPERATORS[form]
    channels = weight[axis]
    lengths = () if scales == "one scale" else (channels,)
    stored = {
        "xs": np.float32(0.03),
        "xz": np.array(5, dtype),
        "w": integers(*weight, dtype="int8"),
        "ws": RANDOM.uniform(0.001, 0.02, lengths).astype("float32"),
        "wz": RANDOM.integers(-3, 4, lengths).astype("int8") * (scales == "zero points"),
        "b": rand(channels, 1, 1)[:, 0, 0] if form != "MatMul" else rand(channels),
    }
    stored["wz"] = np.asarray(stored["wz"], "int8")
    operator = form.split()[0]
    nodes = [
        node("DequantizeLinear", ["x", "xs", "xz"], ["a"]),
        node("DequantizeLinear", ["w", "ws", "wz"], ["v"], axis=axis),
    ]
    if operator == "MatMul":
        nodes += [node("MatMul", ["a", "v"], ["c"]), node("Add", ["c", "b"], ["y"])]
    else:
        nodes += [node(operator, ["a", "v", "b"], ["y"], **attributes)]
    x = value("x", shape, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
    proto = model(nodes, [x], [value("y", None)], 21, **stored)
    return proto, {"x": integers(*shape, dtype=dtype)}


@pytest.mark.slow
@in_one_model
@pairwise(
    form=OPERATORS,
    dtype=["uint8", "int8"],
    scales=["one scale", "a scale for each channel", "zero points"],
)
def test_operators_between_quantised_tensors(form, dtype, scales):
    proto, fed = dequantized_operator(form, dtype, scales)
    (found,) = run_model(proto, fed).values()
    (wanted,) = ReferenceEvaluator(proto).run(None, fed)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-6 * np.abs(wanted).max())


@pytest.mark.extended
@pytest.mark.parametrize("dtype", one_in(2, ["uint8", "int8"]))
def test_quantised_convolutions_of_images_of_any_size(dtype):
    """What pads an image has sizes of its own, which the next kernel has to write alike."""
    names = [("x", "w", "c"), ("d", "v", "y")]
    # With powers of two nothing is rounded.
    stored = {"s": np.float32(2**-6), "z": np.array(3, dtype), "ws": np.float32(2**-7)}
    stored |= {"w": integers(24, 3, 3, 3, dtype="int8"), "v": integers(24, 24, 3, 3, dtype="int8")}
    nodes = []
    for (image, weight, result), strides in zip(names, ([2, 2], [1, 1]), strict=True):
        nodes += [
            node("QuantizeLinear", [image, "s", "z"], [f"{image}q"]),
            node("DequantizeLinear", [f"{image}q", "s", "z"], [f"{image}d"]),
            node("DequantizeLinear", [weight, "ws"], [f"{weight}d"]),
            node("Conv", [f"{image}d", f"{weight}d"], [result], pads=[1] * 4, strides=strides),
        ]
        nodes += [node("Clip", ["c", "low", "high"], ["d"])] if result == "c" else []
    stored |= {"low": np.float32(-2), "high": np.float32(2)}
    proto = model(nodes, [value("x", [1, 3, 9, "w_"])], [value("y", None)], 21, **stored)
    compiled = tvm_ext.compile(proto, HOST)
    if HOST.has_dot_products:
        schedules = [kernel.schedule for kernel in compiled.report.kernels]
        # The tile registers of AMX take what has many channels.
        assert sum(schedules.count(name) for name in ("dot product tile", "amx tile")) == 2
    for width in (5, 16):
        fed = {"x": rand(1, 3, 9, width)}
        (wanted,) = ReferenceEvaluator(proto).run(None, fed)
        # Without dot products float32 computes it, and Winograd's transforms round.
        allowed = 0 if HOST.has_dot_products else 4e-6 * np.abs(wanted).max()
        np.testing.assert_allclose(compiled.run(fed)["y"], wanted, rtol=0, atol=allowed)


def test_an_axis_that_is_none_is_refused():
    inputs = {"x": rand(2, 3), "s": rand(3) ** 2, "z": np.zeros(3, np.int8)}
    proto, _ = one_node("QuantizeLinear", inputs, {"y": TensorProto.INT8}, 13, axis=2)
    with pytest.raises(ModelError, match="QuantizeLinear"):
        tvm_ext.compile(proto)


@pytest.mark.extended
@in_one_model
@pairwise(level=["O0", "O3"], dtype=["uint8", "int8", "int16", "uint16"])
def test_quantize_with_scales_of_a_mask_and_numbers_that_are_none(dtype, level):
    # Calibration finds them where masked scores are -inf; the softmax of those is NaN.
    x = np.array([-np.inf, np.inf, -3.4e38, 0, 1, np.nan], np.float32)
    scales = np.array([np.inf, 3.4e38 / 127, 3.4e38 / 60, 0.1], np.float32)
    zero = np.zeros((), dtype)
    names = [f"s{number}" for number in range(len(scales))]
    proto = model(
        [node("QuantizeLinear", ["x", name, "z"], [f"y{name}"]) for name in names],
        [value("x", list(x.shape))],
        [value(f"y{name}", None, element_type(zero)) for name in names],
        21,
        z=zero,
        **dict(zip(names, scales, strict=True)),
    )
    proto.ir_version = 10
    assert_exact(proto, {"x": x}, level)
