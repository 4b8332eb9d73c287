"""Quantised operators with unusual scales, zero points, sizes and forms, beside ONNX Runtime."""

import ml_dtypes
import numpy as np
import pytest
from combinations import pairwise
from microsoft_models import bytes_of, element_type, weights_of
from one_model import in_one_model, run_model
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from quantized_models import assert_as_runtime, by_runtime, quantized_node
from small_models import model, node, rand, value
from unoptimised import HOST

import tvm_ext
from tvm_ext.errors import RunError

U8, I8, I32, F = TensorProto.UINT8, TensorProto.INT8, TensorProto.INT32, TensorProto.FLOAT
BOTH = ("QuantizeLinear", "DequantizeLinear")

SCALES = {
    "zero": 0.0,
    "nan": np.nan,
    "infinite": np.inf,
    "minus infinite": -np.inf,
    "negative": -0.5,
    "subnormal": 1e-40,
    "smallest": 1.4e-45,
    "huge": 3e38,
}
NUMBERS = np.float32([0, -0.0, 1, -3.5, 1e30, np.inf, -np.inf, np.nan, 1e-40, 127.5, 128.5])


def operand(operator: str, numbers: np.ndarray, dtype: str) -> tuple[np.ndarray, int]:
    """What an operator reads, of the shape of ``numbers``, and the type that it makes."""
    if operator == "QuantizeLinear":
        return numbers, element_type(np.zeros((), dtype))
    return bytes_of(*numbers.shape, dtype=dtype), F


# Scales that are no usual numbers.


@pytest.mark.extended
@in_one_model
@pairwise(
    operator=BOTH,
    dtype=["uint8", "int8", "int16"],
    scale=SCALES,
    stored=[True, False],
)
def test_scales(operator, dtype, scale, stored):
    x, made = operand(operator, NUMBERS, dtype)
    s, z = ("s", "z") if stored else ("xs", "xz")
    inputs = {"x": x, s: np.float32(SCALES[scale]), z: np.array(3, dtype)}
    proto, fed = quantized_node(operator, inputs, made)
    assert_as_runtime(run_model(proto, fed), by_runtime(proto, fed))


@in_one_model
@pytest.mark.parametrize("operator", BOTH)
@pytest.mark.parametrize("stored", [True, False])
def test_one_such_scale_among_others(operator, stored):
    x, made = operand(operator, np.tile(NUMBERS[:, None], len(SCALES)), "int8")
    s, z = ("s", "z") if stored else ("xs", "xz")
    zeros = np.linspace(-128, 127, len(SCALES)).astype(np.int8)
    inputs = {"x": x, s: np.float32(list(SCALES.values())), z: zeros}
    proto, fed = quantized_node(operator, inputs, made, axis=-1)
    assert_as_runtime(run_model(proto, fed), by_runtime(proto, fed))


@pytest.mark.slow
@in_one_model
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("place", ["xs", "s"])
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_activations_in_a_table(scale, place, dtype):
    """A chain of operators between bytes is a table of 256 at O3, which compiling computes."""
    info = np.iinfo(dtype)
    x = np.arange(info.min, info.max + 1).astype(dtype)
    stored = {"xs": np.float32(0.03), "s": np.float32(1 / 256), place: np.float32(SCALES[scale])}
    stored |= {"xz": np.array(info.max - 127, dtype), "z": np.array(info.min, dtype)}
    nodes = [
        node("DequantizeLinear", ["x", "xs", "xz"], ["a"]),
        node("Sigmoid", ["a"], ["b"]),
        node("Mul", ["a", "b"], ["c"]),
        node("QuantizeLinear", ["c", "s", "z"], ["y"]),
    ]
    kind = element_type(x)
    proto = model(nodes, [value("x", [256], kind)], [value("y", None, kind)], 21, **stored)
    assert_as_runtime(run_model(proto, {"x": x}), by_runtime(proto, {"x": x}))


# NaN behind all numbers, which ONNX Runtime's vectors treat otherwise than its rest, is left out.
RANGES = {
    "equal": [2.5] * 7,
    "equal, negative": [-2.5] * 7,
    "one": [5],
    "none": [],
    "NaN": [np.nan, 1, -2],
    "NaN only": [np.nan] * 3,
    "infinite": [1, np.inf, -2],
    "minus infinite": [1, -np.inf, 2],
    "both": [1, np.nan, np.inf, -np.inf],
    "subnormal": [1e-40, -1e-40, 0],
    "a scale of zero": [1e-44, 0],
    "huge": [3e38, -3e38, 1],
}


@pytest.mark.slow
@in_one_model
@pytest.mark.parametrize("numbers", RANGES)
@pytest.mark.parametrize("stored", [True, False])
def test_ranges_of_dynamic_quantization(numbers, stored):
    made = {"y": U8, "scale": F, "zero": U8}
    inputs = {"w" if stored else "x": np.float32(RANGES[numbers])}
    proto, fed = quantized_node("DynamicQuantizeLinear", inputs, made, 11)
    assert_as_runtime(run_model(proto, fed), by_runtime(proto, fed))


# Forms of QuantizeLinear and DequantizeLinear.


LISTS = {
    "a scalar": ((), {}),
    "one element": ((1,), {"axis": 5}),
    "the default axis": ((3,), {}),
    "the last axis": ((4,), {"axis": -1}),
    "the first axis": ((2,), {"axis": -3}),
}


@pytest.mark.slow
@in_one_model
@pairwise(operator=BOTH, opset=[13, 19, 21, 25], dtype=["uint8", "int8"], form=LISTS)
def test_lists_of_each_opset(operator, opset, dtype, form):
    shape, attributes = LISTS[form]
    x, made = operand(operator, 20 * rand(2, 3, 4), dtype)
    inputs = {"x": x, "s": rand(*shape) ** 2 + np.float32(0.05), "z": bytes_of(*shape, dtype=dtype)}
    proto, fed = quantized_node(operator, inputs, made, opset, **attributes)
    assert_as_runtime(run_model(proto, fed), by_runtime(proto, fed))


@in_one_model
@pytest.mark.parametrize("operator", BOTH)
@pytest.mark.parametrize("rank", [0, 1])
def test_a_number_with_a_list_of_one_scale(operator, rank):
    x, made = operand(operator, rand(*[8] * rank), "int8")
    inputs = {"x": x, "s": np.float32([0.1]), "z": np.int8([3])}
    proto, fed = quantized_node(operator, inputs, made)
    assert_as_runtime(run_model(proto, fed), by_runtime(proto, fed))


@pytest.mark.extended
@in_one_model
@pairwise(operator=BOTH, block=[1, 3, 5, 8, 9, 100], stored=[True, False])
def test_blocks_that_do_not_divide_the_axis(operator, block, stored):
    x, made = operand(operator, 5 * rand(3, 8), "int8")
    s, z = ("s", "z") if stored else ("xs", "xz")
    count = -(-8 // block)
    inputs = {"x": x, s: rand(3, count) ** 2 + np.float32(0.05)}
    inputs[z] = bytes_of(3, count, dtype="int8")
    proto, fed = quantized_node(operator, inputs, made, axis=1, block_size=block)
    assert_as_runtime(run_model(proto, fed), by_runtime(proto, fed))


NARROW = {
    "int16": np.int16,
    "uint16": np.uint16,
    "int4": ml_dtypes.int4,
    "uint4": ml_dtypes.uint4,
    "int2": ml_dtypes.int2,
    "uint2": ml_dtypes.uint2,
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8_e5m2": ml_dtypes.float8_e5m2,
}


@pytest.mark.extended
@in_one_model
@pairwise(dtype=NARROW, form=["a scale", "an axis", "blocks"])
def test_types_there_and_back(dtype, form):
    shape, attributes = {
        "a scale": ((), {}),
        "an axis": ((4,), {"axis": -1}),
        "blocks": ((6, 2), {"axis": 1, "block_size": 3}),
    }[form]
    is_float = dtype.startswith("float")
    zero = np.zeros(shape, NARROW[dtype]) if is_float else np.ones(shape, NARROW[dtype])
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"], **attributes),
        node("DequantizeLinear", ["q", "s", "z"], ["y"], **attributes),
    ]
    stored = {"s": rand(*shape) ** 2 + np.float32(0.05), "z": zero}
    proto = model(nodes, [value("x", [6, 4])], [value("y", None)], 25, **stored)
    proto.ir_version = 13
    x = 9 * rand(6, 4)
    (wanted,) = ReferenceEvaluator(proto).run(None, {"x": x})
    np.testing.assert_allclose(run_model(proto, {"x": x})["y"], wanted, rtol=1e-6)
    # Two bits with one scale have four values at most, of which random ones may leave two.
    assert len(np.unique(wanted)) > (1 if dtype.endswith("int2") else 3)


def test_differences_of_int32_wrap_around():
    x = np.array([2**31 - 1, -(2**31), 300], np.int32)
    for name in ("x", "w"):
        inputs = {name: x, "s": np.float32(0.1), "z": np.int32(3)}
        proto, fed = quantized_node("DequantizeLinear", inputs, F)
        found = tvm_ext.compile(proto, HOST, opt_level="O0").run(fed)
        assert_as_runtime(found, by_runtime(proto, fed))


# Sizes that a run decides.


SIZED = {
    "a list": ((8,), {"axis": 1}),
    "one element": ((1,), {"axis": 1}),
    "blocks": ((3, 3), {"axis": 1, "block_size": 3}),
    "blocks of rows": ((2, 8), {"axis": 0, "block_size": 2}),
}


@pytest.mark.extended
@pytest.mark.parametrize("form", SIZED)
@pytest.mark.parametrize("operator", BOTH)
def test_lists_and_blocks_of_dynamic_sizes(operator, form):
    shape, attributes = SIZED[form]
    x, made = operand(operator, 5 * rand(3, 8), "int8")
    inputs = {"x": x, "xs": rand(*shape) ** 2 + np.float32(0.05)}
    inputs["xz"] = bytes_of(*shape, dtype="int8")
    proto, fed = quantized_node(operator, inputs, made, dynamic=True, **attributes)
    compiled = tvm_ext.compile(proto, HOST, opt_level="O0")
    assert_as_runtime(compiled.run(fed), by_runtime(proto, fed))
    # One line less, and one element less of a list or block for others.
    other = x[:2, :7] if form == "a list" else x[:2, :6] if form == "blocks" else x[:2]
    if form != "one element":
        with pytest.raises(RunError):
            compiled.run(fed | {"x": other})


@pytest.mark.extended
@in_one_model
@pytest.mark.parametrize("operator", BOTH)
@pytest.mark.parametrize("form", ["a list", "a list of none", "blocks"])
def test_tensors_without_elements(operator, form):
    numbers, shape, attributes = {
        "a list": (rand(0, 8), (8,), {}),
        "a list of none": (rand(3, 0), (0,), {}),
        "blocks": (rand(0, 8), (0, 2), {"block_size": 4}),
    }[form]
    x, made = operand(operator, numbers, "uint8")
    inputs = {"x": x, "s": np.ones(shape, np.float32), "z": np.zeros(shape, np.uint8)}
    proto, fed = quantized_node(operator, inputs, made, **attributes)
    assert_as_runtime(run_model(proto, fed), by_runtime(proto, fed))


# Products of integers.


def centred(numbers: np.ndarray, zero: np.ndarray) -> np.ndarray:
    return numbers.astype(np.int32) - zero.astype(np.int32)


# By what the zero points are: shapes of the first operand and of its zero point, and of the other.
ZERO_POINTS = {
    "rows": ((3, 8), (3,), (8, 5), ()),
    "columns": ((3, 8), (), (8, 5), (5,)),
    "rows and columns": ((3, 8), (3,), (8, 5), (5,)),
    "as many rows as products": ((8, 8), (8,), (8, 8), (8,)),
    "rows of a stack": ((2, 3, 8), (2, 3, 1), (8, 5), ()),
    "rows of all of a stack": ((2, 3, 8), (3,), (8, 5), (1,)),
    "columns of a stack": ((3, 8), (1,), (2, 8, 5), (2, 1, 5)),
    "of a vector": ((8,), (1,), (8, 5), (5,)),
    "of nothing": ((3, 0), (3,), (0, 5), ()),
    "of no columns": ((3, 8), (), (8, 0), ()),
}


@pytest.mark.slow
@in_one_model
@pairwise(form=ZERO_POINTS, stored=[True, False], level=["O0", "O3"])
def test_zero_points_of_rows_and_columns(form, stored, level):
    a, a_zero, b, b_zero = ZERO_POINTS[form]
    names = ("b", "bz") if stored else ("xb", "xbz")
    inputs = {"x": bytes_of(*a), names[0]: weights_of(*b), "xz": bytes_of(*a_zero)}
    inputs[names[1]] = weights_of(*b_zero)
    ordered = [inputs[name] for name in inputs]
    proto, fed = quantized_node("MatMulInteger", inputs, I32, 10)
    zero = ordered[2][:, None] if ordered[2].ndim == 1 and len(a) > 1 else ordered[2]
    wanted = centred(ordered[0], zero) @ centred(ordered[1], ordered[3])
    np.testing.assert_array_equal(run_model(proto, fed, level)["y"], wanted)


@pytest.mark.extended
def test_zero_points_of_rows_and_columns_of_dynamic_sizes():
    inputs = {"x": bytes_of(3, 8), "xb": weights_of(8, 5), "xz": bytes_of(3), "xbz": weights_of(5)}
    proto, fed = quantized_node("MatMulInteger", inputs, I32, 10, dynamic=True)
    compiled = tvm_ext.compile(proto, HOST, opt_level="O0")
    wanted = centred(fed["x"], fed["xz"][:, None]) @ centred(fed["xb"], fed["xbz"])
    np.testing.assert_array_equal(compiled.run(fed)["y"], wanted)
    one = {"xz": fed["xz"][:1], "xbz": fed["xbz"][:1]}
    wanted = centred(fed["x"], one["xz"]) @ centred(fed["xb"], one["xbz"])
    np.testing.assert_array_equal(compiled.run(fed | one)["y"], wanted)
    for wrong in ({"xz": bytes_of(4)}, {"xbz": weights_of(4)}):
        with pytest.raises(RunError):
            compiled.run(fed | wrong)


@in_one_model
@pytest.mark.parametrize("stored", [True, False])
def test_filters_with_zero_points_of_their_own(stored):
    w, z = ("w", "wz") if stored else ("xw", "xwz")
    inputs = {"x": bytes_of(1, 4, 9), w: bytes_of(6, 4, 3), "z": np.uint8([9]), z: bytes_of(6)}
    proto, fed = quantized_node("ConvInteger", inputs, I32, 10)
    windows = np.lib.stride_tricks.sliding_window_view(centred(inputs["x"], inputs["z"]), 3, -1)
    filters = centred(inputs[w], inputs[z][:, None, None])
    wanted = np.einsum("ncpk,ock->nop", windows, filters)
    np.testing.assert_array_equal(run_model(proto, fed)["y"], wanted)


@pytest.mark.slow
@in_one_model
@pytest.mark.parametrize("place", ["as", "ws", "ys"])
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("operator", ["QLinearMatMul", "QLinearConv"])
def test_scales_of_products(operator, scale, place):
    is_matmul = operator == "QLinearMatMul"
    x, w = ((3, 8), (8, 5)) if is_matmul else ((1, 4, 6, 5), (5, 4, 3, 3))
    inputs = {"x": bytes_of(*x), "as": np.float32(0.02), "az": np.uint8(5)}
    inputs |= {"w": weights_of(*w), "ws": np.full(5, 0.01, np.float32), "wz": np.zeros(5, np.int8)}
    inputs |= {"ys": np.float32(0.3), "yz": np.uint8(17)}
    if place == "ws":
        inputs["ws"][2] = SCALES[scale]
    else:
        inputs[place] = np.float32(SCALES[scale])
    proto, fed = quantized_node(operator, inputs, U8, 10)
    assert_as_runtime(run_model(proto, fed), by_runtime(proto, fed))


EMPTY_SUMS = {
    "MatMul": ((3, 0), (0, 5), F, (3, 5)),
    "Conv": ((1, 0, 6, 5), (8, 0, 3, 3), F, (1, 8, 4, 3)),
    "ConvTranspose": ((1, 0, 6, 5), (0, 8, 3, 3), F, (1, 8, 8, 7)),
    "ConvInteger": ((1, 0, 6, 5), (8, 0, 3, 3), I32, (1, 8, 4, 3)),
}


@pytest.mark.extended
@pytest.mark.parametrize("level", ["O0", "O3"])
def test_sums_of_no_products_are_zero(level):
    nodes = [node(name, [f"{name}x", f"{name}w"], [name]) for name in EMPTY_SUMS]
    kinds = {name: U8 if made == I32 else F for name, (_, _, made, _) in EMPTY_SUMS.items()}
    dtypes = {name: helper.tensor_dtype_to_np_dtype(kind) for name, kind in kinds.items()}
    stored = {f"{name}w": np.zeros(EMPTY_SUMS[name][1], dtypes[name]) for name in EMPTY_SUMS}
    inputs = [value(f"{name}x", list(EMPTY_SUMS[name][0]), kinds[name]) for name in EMPTY_SUMS]
    outputs = [value(name, None, made) for name, (_, _, made, _) in EMPTY_SUMS.items()]
    compiled = tvm_ext.compile(model(nodes, inputs, outputs, **stored), HOST, opt_level=level)
    fed = {f"{name}x": np.zeros(EMPTY_SUMS[name][0], dtypes[name]) for name in EMPTY_SUMS}
    for name, found in compiled.run(fed).items():
        assert found.shape == EMPTY_SUMS[name][3]
        assert not found.any(), name


# Operators of com.microsoft.


def microsoft(op: str, inputs: dict, made: int, **attributes):
    return quantized_node(op, inputs, made, 17, "com.microsoft", **attributes)


@pytest.mark.extended
@in_one_model
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("scale", ["zero", "nan", "infinite", "negative"])
@pytest.mark.parametrize("operator", ["QLinearSigmoid", "QLinearLeakyRelu"])
def test_scales_of_activations(operator, scale, dtype):
    x = bytes_of(3, 20, dtype=dtype)
    inputs = {"x": x, "s": np.float32(0.05), "z": np.array(9, dtype)}
    inputs |= {"ys": np.float32(SCALES[scale]), "yz": np.array(3, dtype)}
    proto, fed = microsoft(operator, inputs, element_type(x))
    assert_as_runtime(run_model(proto, fed), by_runtime(proto, fed))


@in_one_model
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_without_zero_points_results_have_the_type_of_the_input(dtype):
    x = bytes_of(3, 20, dtype=dtype)
    inputs = {"x": x, "s": np.float32(0.05), "z": None, "ys": np.float32(1 / 100)}
    proto, fed = microsoft("QLinearSigmoid", inputs, element_type(x))
    steps = np.rint(100 / (1 + np.exp(-x.astype(np.float32) * np.float32(0.05))))
    found = run_model(proto, fed)["y"]
    assert found.dtype == x.dtype
    np.testing.assert_allclose(found, steps, atol=1)


def unpacked(packed: np.ndarray, bits: int) -> np.ndarray:
    """The numbers of each row, the first one in the lowest bits."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    return ((packed[..., None] >> shifts) & ((1 << bits) - 1)).reshape(len(packed), -1)


@pytest.mark.extended
@in_one_model
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize(("columns", "block"), [(33, 16), (15, 16), (64, 128)])
@pytest.mark.parametrize("zeros", ["none", "packed", "floats"])
def test_weights_of_a_few_bits_and_odd_sizes(bits, columns, block, zeros):
    rows, blocks = 5, -(-columns // block)
    packed, scales = bytes_of(rows, blocks, block * bits // 8), rand(rows, blocks)
    inputs = {"x": rand(2, columns), "w": packed, "s": scales}
    numbers = unpacked(packed.reshape(rows, -1), bits)
    offset = np.full((rows, blocks), 1 << (bits - 1), np.float32)
    if zeros == "floats":
        inputs["z"] = offset = 3 * rand(rows, blocks, seed=1)
    elif zeros == "packed":
        inputs["z"] = bytes_of(rows, -(-blocks * bits // 8))
        offset = unpacked(inputs["z"], bits)[:, :blocks].astype(np.float32)
    floats = (numbers.reshape(rows, blocks, block) - offset[..., None]) * scales[..., None]
    weight = floats.reshape(rows, -1)[:, :columns]
    attributes = {"K": columns, "N": rows, "bits": bits, "block_size": block}
    proto, fed = microsoft("MatMulNBits", inputs, F, **attributes)
    wanted = fed["x"] @ weight.T
    found = run_model(proto, fed)["y"]
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())
