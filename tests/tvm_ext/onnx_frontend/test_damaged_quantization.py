"""Quantised operators whose inputs contradict each other: refused in a line that says how."""

import re

import numpy as np
import pytest
from microsoft_models import bytes_of, element_type, weights_of
from onnx import TensorProto
from quantized_models import quantized_node
from small_models import rand

import tvm_ext
from tvm_ext.errors import ModelError, UnsupportedOperatorError

U8, I8, I32, F = TensorProto.UINT8, TensorProto.INT8, TensorProto.INT32, TensorProto.FLOAT


def assert_refused(model: tuple, *words: str) -> None:
    """One line with these words, the node's name, and what to do."""
    with pytest.raises(ModelError) as caught:
        tvm_ext.compile(model[0], opt_level="O0")
    text = str(caught.value)
    assert len(text.splitlines()) == 1
    assert not caught.value.defect
    for word in ("'it'", "expected", "correct the model", *words):
        assert re.search(word, text), text


S2, S3, S8 = (np.full(size, 0.1, np.float32) for size in (2, 3, 8))
Z2, Z3, Z8 = (np.full(size, 3, np.int8) for size in (2, 3, 8))
BLOCKS = np.full((3, 2), 0.1, np.float32)

# Scale, zero point, attributes, and what is said.
LINEAR = {
    "a list for another axis": (S2, Z2, {}, r"scale has the sizes \(2\), expected \(8\)"),
    "an axis that is none": (S2, Z2, {"axis": 5}, "its axis is 5, expected one of the 2 axes"),
    "other zero points": (S8, Z3, {}, r"zero point has the sizes \(3\), expected \(8\)"),
    "a matrix": (BLOCKS, None, {}, "scale has 2 axes and it has no block_size"),
    "a matrix of zero points": (S8, Z8[None], {}, "zero point has 2 axes"),
    "blocks of less than nothing": (BLOCKS, None, {"block_size": -1}, "its block_size is -1"),
    "too few blocks": (BLOCKS, None, {"block_size": 2}, r"\(3, 2\), expected \(3, 4\)"),
    "too many blocks": (BLOCKS, None, {"block_size": 8}, r"\(3, 2\), expected \(3, 1\)"),
    "blocks of other rows": (BLOCKS[:1], None, {"block_size": 4}, r"\(1, 2\), expected \(3, 2\)"),
    "a list of blocks": (S2, None, {"block_size": 4}, "scale of blocks has 1 axes, expected 2"),
}


@pytest.mark.parametrize("fault", LINEAR)
@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("operator", ["QuantizeLinear", "DequantizeLinear"])
def test_scales_and_zero_points_of_other_shapes(operator, stored, fault):
    scale, zero, attributes, words = LINEAR[fault]
    quantizes = operator == "QuantizeLinear"
    s, z = ("s", "z") if stored else ("xs", "xz")
    inputs = {"x": rand(3, 8) if quantizes else bytes_of(3, 8, dtype="int8"), s: scale, z: zero}
    if quantizes:
        attributes = attributes | {"output_dtype": I8}
    made = I8 if quantizes else F
    assert_refused(quantized_node(operator, inputs, made, **attributes), operator, words)


def test_stored_zero_points_of_nothing():
    inputs = {"x": bytes_of(3, 8, dtype="int8"), "s": np.float32(0.1), "z": Z3[:0]}
    assert_refused(quantized_node("DequantizeLinear", inputs, F), r"zero point has the sizes \(0\)")


def test_a_precision_that_is_no_float():
    inputs = {"x": rand(3, 8), "s": np.float32(0.1)}
    proto = quantized_node("QuantizeLinear", inputs, U8, 23, precision=TensorProto.INT64)
    assert_refused(proto, "its precision is int64")


# Of MatMulInteger: first operand's zero point, the other's, and what is said.
LINES = {
    "a list for the sums": (bytes_of(8), None, r"a_zero_point has the sizes \(8\), expected \(3\)"),
    "other rows": (bytes_of(4), None, r"\(4\), expected \(3\), one for each row"),
    "no rows": (bytes_of(0), None, r"\(0\), expected \(3\)"),
    "rows in columns": (bytes_of(1, 8), None, r"\(1, 8\), expected \(3, 1\)"),
    "a stack": (bytes_of(2, 3, 1), None, "a_zero_point has 3 axes, expected one or 2"),
    "other columns": (None, weights_of(4), r"\(4\), expected \(5\), one for each column"),
    "columns in rows": (None, weights_of(8, 1), r"\(8, 1\), expected \(1, 5\)"),
}


@pytest.mark.parametrize("fault", LINES)
def test_zero_points_of_other_lines(fault):
    first, second, words = LINES[fault]
    inputs = {"x": bytes_of(3, 8), "b": weights_of(8, 5), "az": first, "bz": second}
    assert_refused(quantized_node("MatMulInteger", inputs, I32, 10), words)


def test_a_vector_has_one_zero_point():
    inputs = {"x": bytes_of(8), "b": weights_of(8, 5), "az": bytes_of(8)}
    model = quantized_node("MatMulInteger", inputs, I32, 10)
    assert_refused(model, r"a_zero_point has the sizes \(8\), expected one number")


@pytest.mark.parametrize(
    ("name", "array", "words"),
    [
        # As long as the sums: by TVM's rules both would multiply something.
        ("as", np.ones((1, 8), np.float32), r"a_scale has the sizes \(1, 8\), expected \(8, 1\)"),
        ("bs", np.ones((8, 1), np.float32), r"b_scale has the sizes \(8, 1\), expected \(1, 8\)"),
        ("ys", np.ones(5, np.float32), r"y_scale has the sizes \(5\), expected \(8\)"),
        ("yz", bytes_of(1, 8), r"y_zero_point has the sizes \(1, 8\), expected \(8, 1\)"),
    ],
)
def test_scales_of_other_lines(name, array, words):
    inputs = {"x": bytes_of(8, 8), "as": np.float32(0.02), "az": np.uint8(5)}
    inputs |= {"b": weights_of(8, 8), "bs": np.float32(0.03), "bz": np.int8(0)}
    inputs |= {"ys": np.float32(0.5), "yz": np.uint8(100), name: array}
    assert_refused(quantized_node("QLinearMatMul", inputs, U8, 10), words)


@pytest.mark.parametrize(
    ("name", "array", "words"),
    [
        ("xs", np.ones(4, np.float32), r"x_scale has the sizes \(4\), expected one number"),
        ("xz", bytes_of(4), r"x_zero_point has the sizes \(4\), expected one number"),
        ("ws", np.ones(4, np.float32), r"w_scale has the sizes \(4\), expected \(6\)"),
        ("wz", weights_of(4), r"w_zero_point has the sizes \(4\), expected \(6\)"),
        ("ys", np.ones(6, np.float32), r"y_scale has the sizes \(6\), expected one number"),
        ("yz", bytes_of(6), r"y_zero_point has the sizes \(6\), expected one number"),
        ("bias", np.ones(4, np.int32), r"bias has the sizes \(4\), expected \(6\)"),
    ],
)
def test_parameters_of_a_convolution(name, array, words):
    inputs = {"x": bytes_of(1, 4, 6, 5), "xs": np.float32(0.02), "xz": np.uint8(5)}
    inputs |= {"w": weights_of(6, 4, 3, 3), "ws": np.float32(0.01), "wz": np.int8(0)}
    inputs |= {"ys": np.float32(0.3), "yz": np.uint8(9), "bias": np.ones(6, np.int32), name: array}
    # What is fed would get the same name as another input.
    inputs = {name if name == "x" else f"p{name}": array for name, array in inputs.items()}
    assert_refused(quantized_node("QLinearConv", inputs, U8, 10), words)


# Operators of com.microsoft, of which ONNX's checker knows nothing.


def microsoft(op: str, inputs: dict, made: int, **attributes):
    return quantized_node(op, inputs, made, 17, "com.microsoft", **attributes)


@pytest.mark.parametrize(
    ("name", "array", "words"),
    [
        ("s", S3, r"its input 1 has the sizes \[3\], expected one number"),
        ("z", Z3.astype(np.uint8), r"its input 2 has the sizes \[3\], expected one number"),
        ("z", np.int8(3), "its input 2, a zero point, is int8, expected uint8"),
        ("yz", np.int8(3), "its input 4, a zero point, is int8, expected uint8"),
        ("x", rand(2, 3), "its input 0 is float, expected int8 or uint8"),
    ],
)
def test_parameters_of_activations(name, array, words):
    inputs = {"x": bytes_of(2, 3), "s": np.float32(0.1), "z": np.uint8(3)}
    inputs |= {"ys": np.float32(0.01), "yz": np.uint8(0), name: array}
    made = element_type(inputs["yz"])
    assert_refused(microsoft("QLinearSigmoid", inputs, made), "QLinearSigmoid", words)


def test_attributes_that_are_missing():
    inputs = {"ys": np.float32(1), "yz": np.uint8(0)}
    inputs |= {"x": bytes_of(2, 3), "s": np.float32(0.1), "z": np.uint8(3)}
    assert_refused(microsoft("QLinearConcat", inputs, U8), "it has no attribute 'axis'")


SIZES = {"K": 32, "N": 5, "bits": 4, "block_size": 16}
N_BITS = {
    "bits": ({"bits": 3}, {}, "its bits is 3, expected one of 2, 4, 8"),
    "blocks of nothing": ({"block_size": 0}, {}, "its block_size is 0, expected 1 or more"),
    "blocks of less": ({"block_size": -16}, {}, "its block_size is -16, expected 1 or more"),
    "weights": ({}, {"w": bytes_of(5, 2, 7)}, r"weights have the sizes \[5, 2, 7\], expected 80"),
    "signed weights": ({}, {"w": weights_of(5, 2, 8)}, "weights are int8, expected one of uint8"),
    "scales": ({}, {"s": rand(5, 3)}, r"scales have the sizes \[5, 3\], expected 10"),
    "zero points": ({}, {"z": bytes_of(5, 3)}, r"zero points have the sizes \[5, 3\], expected 5"),
    "bytes of zero points": ({}, {"z": bytes_of(5, 2)}, r"the sizes \[5, 2\], expected 5"),
    "few groups": ({}, {"g": np.zeros(31, np.int32)}, "g_idx has 31 numbers, expected 32"),
    "other groups": ({}, {"g": np.full(32, 2, np.int32)}, "g_idx has 2, expected .* 0 to 1"),
    "negative groups": ({}, {"g": np.full(32, -1, np.int32)}, "g_idx has -1, expected"),
    "bias": ({}, {"b": rand(2)}, r"bias have the sizes \[2\], expected 5"),
}


@pytest.mark.parametrize("fault", N_BITS)
def test_weights_of_a_few_bits(fault):
    attributes, changed, words = N_BITS[fault]
    inputs = {"x": rand(3, 32), "w": bytes_of(5, 2, 8), "s": rand(5, 2)}
    inputs |= dict.fromkeys("zgb") | changed
    assert_refused(microsoft("MatMulNBits", inputs, F, **SIZES | attributes), words)


@pytest.mark.parametrize(
    ("attributes", "changed", "words"),
    [
        ({"quant_type": 2}, {}, "its quant_type is 2, expected one of 0, 1"),
        ({"quant_type": -1}, {}, "its quant_type is -1, expected one of 0, 1"),
        ({"block_size": 0}, {}, "its block_size is 0, expected 1 or more"),
        ({}, {"w": bytes_of(239)}, r"weights have the sizes \[239\], expected 240"),
        ({}, {"s": rand(14)}, r"scales have the sizes \[14\], expected 15"),
    ],
)
def test_weights_of_bitsandbytes(attributes, changed, words):
    inputs = {"x": rand(3, 48), "w": bytes_of(240), "s": rand(15)} | changed
    given = {"K": 48, "N": 10, "quant_type": 0, "block_size": 32} | attributes
    assert_refused(microsoft("MatMulBnb4", inputs, F, **given), words)


@pytest.mark.parametrize(
    ("attributes", "changed", "words"),
    [
        ({"bits": 3}, {}, "its bits is 3, expected one of 2, 4, 8"),
        ({"block_size": 24}, {}, r"scales have the sizes \[9, 2\], expected \[9, 3\]"),
        ({"block_size": -32}, {}, "its block_size is -32, expected 1 or more"),
        ({"quantize_axis": 2}, {}, "its quantize_axis is 2, expected one of the 2 axes"),
        ({"gather_axis": 5}, {}, "its gather_axis is 5, expected one of the 2 axes"),
        ({}, {"s": rand(8, 2)}, r"scales have the sizes \[8, 2\], expected \[9, 2\]"),
        ({}, {"z": bytes_of(9, 2)}, r"zero points have the sizes \[9, 2\], expected \[9, 1\]"),
    ],
)
def test_tables_of_a_few_bits(attributes, changed, words):
    inputs = {"w": bytes_of(9, 32), "x": np.array([3, -1]), "s": rand(9, 2), "z": bytes_of(9, 1)}
    model = microsoft(
        "GatherBlockQuantized", inputs | changed, F, **{"block_size": 32} | attributes
    )
    assert_refused(model, words)


def test_a_node_without_another_form_says_why():
    inputs = {"x": rand(3, 32), "xw": bytes_of(5, 2, 8), "s": rand(5, 2)}
    proto, _ = microsoft("MatMulNBits", inputs, F, **SIZES)
    with pytest.raises(
        UnsupportedOperatorError, match=r"it \(weights that are computed\)"
    ) as caught:
        tvm_ext.compile(proto)
    assert caught.value.operators == {"com.microsoft::MatMulNBits": ["it"]}
    assert caught.value.reasons == {"it": "weights that are computed"}
