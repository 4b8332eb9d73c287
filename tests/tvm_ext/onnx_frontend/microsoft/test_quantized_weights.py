"""Operators of com.microsoft whose stored weights take a few bits each, beside ONNX Runtime."""

import ml_dtypes
import numpy as np
import pytest
from microsoft_models import bytes_of, compared, element_type, microsoft_model
from one_model import in_one_model
from onnx import TensorProto, helper, numpy_helper
from random_numbers import RANDOM
from small_models import rand, value
from unoptimised import HOST

import tvm_ext
from tvm_ext.errors import ModelError
from tvm_ext.tir_schedules.cpu.block_integer_matmul import dot_product_of_bytes

F = TensorProto.FLOAT


@pytest.mark.extended
@in_one_model
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zero", [False, True])
def test_matmul_n_bits(bits, zero):
    rows, columns, block = 6, 64, 32
    inputs = {
        "x": rand(3, columns),
        "w": bytes_of(rows, columns // block, block * bits // 8),
        "s": rand(rows, columns // block),
    }
    if zero:
        inputs["z"] = bytes_of(rows, columns // block * bits // 8)
    attributes = {"K": columns, "N": rows, "bits": bits, "block_size": block}
    proto, fed = microsoft_model("MatMulNBits", inputs, {"y": F}, **attributes)
    ((found, wanted),) = compared(proto, fed)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5 * np.abs(wanted).max())


@pytest.mark.extended
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_matmul_n_bits_of_float16(bits):
    rows, columns, block = 24, 64, 32
    inputs = {
        "x": rand(3, columns).astype("float16"),
        "w": bytes_of(rows, columns // block, block * bits // 8),
        "s": rand(rows, columns // block).astype("float16"),
    }
    attributes = {"K": columns, "N": rows, "bits": bits, "block_size": block}
    outputs = {"y": TensorProto.FLOAT16}
    proto, fed = microsoft_model("MatMulNBits", inputs, outputs, **attributes)
    ((found, wanted),) = compared(proto, fed)
    np.testing.assert_allclose(found, wanted, rtol=1e-2, atol=2e-3 * np.abs(wanted).max())
    (kernel,) = (k for k in tvm_ext.compile(proto).report.kernels if k.flops and k.flops > 3000)
    assert kernel.schedule == "dequantize matmul"


def test_columns_of_sorted_groups_have_the_scale_of_their_group():
    rows, columns, block = 5, 64, 16
    inputs = {
        "x": rand(2, columns),
        "w": bytes_of(rows, columns // block, block // 2),
        "s": rand(rows, columns // block),
        "_": np.array(0),
        "g": RANDOM.permutation(np.arange(columns, dtype=np.int32) // block),
    }
    attributes = {"K": columns, "N": rows, "bits": 4, "block_size": block}
    proto, fed = microsoft_model("MatMulNBits", inputs, {"y": F}, **attributes)
    ((found, wanted),) = compared(proto, fed)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5 * np.abs(wanted).max())


def bytes_model(columns, rows, block, zero=False, lead=("n",)):
    """A MatMulNBits that asks for products of bytes, with an open number of rows."""
    arrays = {
        "w": bytes_of(rows, columns // block, block // 2),
        "s": rand(rows, columns // block),
    }
    if zero:
        arrays["z"] = bytes_of(rows, -(-columns // block // 2))
    node = helper.make_node(
        "MatMulNBits",
        ["x", *arrays],
        ["y"],
        domain="com.microsoft",
        **{"K": columns, "N": rows, "bits": 4, "block_size": block, "accuracy_level": 4},
    )
    graph = helper.make_graph(
        [node],
        "bytes",
        [helper.make_tensor_value_info("x", F, [*lead, columns])],
        [helper.make_tensor_value_info("y", F, [*lead, rows])],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


@pytest.mark.extended
@pytest.mark.skipif(
    dot_product_of_bytes(HOST) is None, reason="products of bytes are float32's here"
)
@pytest.mark.parametrize(
    ("columns", "rows", "block", "zero"),
    [(64, 96, 32, False), (320, 72, 32, True), (96, 33, 16, False), (128, 8, 64, True)],
)
def test_accuracy_level_4_multiplies_bytes_as_onnx_runtime(columns, rows, block, zero):
    runtime = pytest.importorskip("onnxruntime")
    proto = bytes_model(columns, rows, block, zero, ("b", "n"))
    session = runtime.InferenceSession(proto.SerializeToString())
    compiled = tvm_ext.compile(proto, HOST)
    for length in (1, 3, 4, 9):
        x = rand(2, length, columns)
        x[0, 0] = 0
        (wanted,) = session.run(None, {"x": x})
        (found,) = compiled.run({"x": x}).values()
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5 * np.abs(wanted).max())


@pytest.mark.extended
def test_bytes_are_multiplied_by_an_instruction_for_them():
    templates = {"x86-64": "dequantize matmul"} | dict.fromkeys(
        ("avx2", "avx512", "avx512-amx"), "block integer matmul"
    )
    for target, template in templates.items():
        compiled = tvm_ext.compile(bytes_model(64, 40, 32), target)
        assert [kernel.schedule for kernel in compiled.report.kernels] == [template]


@pytest.mark.extended
def test_without_an_instruction_for_bytes_rows_are_not_rounded():
    proto = bytes_model(128, 8, 32)
    packed, scales = (numpy_helper.to_array(array) for array in proto.graph.initializer)
    x = rand(4, 128)
    (found,) = tvm_ext.compile(proto, "x86-64").run({"x": x}).values()
    numbers = np.stack([packed & 15, packed >> 4], -1).reshape(8, -1, 32) - 8.0
    weight = (numbers * scales[..., None]).reshape(8, 128)
    np.testing.assert_allclose(found, x @ weight.T, rtol=1e-4, atol=1e-4)


@in_one_model
@pytest.mark.parametrize("kind", [0, 1])
def test_matmul_bnb4(kind):
    columns, rows, block = 48, 10, 32
    largest = rand(columns * rows // block) ** 2 + np.float32(0.1)
    inputs = {"x": rand(3, columns), "w": bytes_of(columns * rows // 2), "s": largest}
    attributes = {"K": columns, "N": rows, "quant_type": kind, "block_size": block}
    proto, fed = microsoft_model("MatMulBnb4", inputs, {"y": F}, **attributes)
    ((found, wanted),) = compared(proto, fed)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5 * np.abs(wanted).max())
    assert np.abs(wanted).max() > 1


def packed_table(bits: int, columns: int, blocks: int) -> dict:
    return {
        "w": bytes_of(9, columns * bits // 8),
        "x": np.array([[3, -1], [8, 0]]),
        "s": rand(9, blocks),
        "z": bytes_of(9, -(-blocks * bits // 8)),
    }


def narrow_table(dtype: type, shape: tuple, scales: tuple, zero: bool = True) -> dict:
    low = 0 if dtype is not ml_dtypes.int4 else -8
    inputs = {
        "w": RANDOM.integers(low, low + 12, shape).astype(dtype),
        "x": np.array([1, 0, -2], np.int32),
        "s": rand(*scales),
        "z": RANDOM.integers(low, low + 12, scales).astype(dtype),
    }
    return inputs if zero else {key: inputs[key] for key in "wxs"}


def half_scales(inputs: dict) -> dict:
    return inputs | {"s": inputs["s"].astype(np.float16)}


def without_zero(inputs: dict) -> dict:
    return {key: inputs[key] for key in "wxs"}


TABLES = {
    "4 bits": (packed_table(4, 64, 2), {"block_size": 32}),
    "4 bits, odd blocks": (packed_table(4, 40, 3), {"block_size": 16}),
    "4 bits, no zero points": (without_zero(packed_table(4, 64, 4)), {"block_size": 16}),
    "8 bits": (packed_table(8, 64, 2), {"block_size": 32, "bits": 8, "quantize_axis": -1}),
    "8 bits, no zero points": (without_zero(packed_table(8, 20, 1)), {"bits": 8}),
    "float16": (half_scales(packed_table(4, 64, 2)), {"block_size": 32, "gather_axis": -2}),
    "int4": (narrow_table(ml_dtypes.int4, (5, 40), (5, 3)), {"block_size": 16}),
    "uint4, no zero points": (
        narrow_table(ml_dtypes.uint4, (5, 32), (5, 2), zero=False),
        {"block_size": 16},
    ),
    "int4, blocks down the rows": (
        narrow_table(ml_dtypes.int4, (33, 6), (3, 6)),
        {"block_size": 16, "quantize_axis": 0, "gather_axis": 1},
    ),
    "uint4, gathered where quantised": (
        narrow_table(ml_dtypes.uint4, (4, 20, 3), (4, 2, 3)),
        {"block_size": 16, "quantize_axis": 1, "gather_axis": 1},
    ),
    "float8": (
        narrow_table(ml_dtypes.float8_e4m3fn, (5, 8), (1, 1), zero=False),
        {"block_size": 0},
    ),
}


@in_one_model
@pytest.mark.parametrize("case", TABLES)
def test_gather_block_quantized(case):
    inputs, attributes = TABLES[case]
    made = {"y": element_type(inputs["s"])}
    proto, fed = microsoft_model("GatherBlockQuantized", inputs, made, 21, **attributes)
    proto.ir_version = 10
    ((found, wanted),) = compared(proto, fed)
    np.testing.assert_array_equal(found, wanted)
    assert len(np.unique(wanted)) > 8


@pytest.mark.extended
@in_one_model
@pytest.mark.parametrize("sizes", [[9, 32], [0, -1]])
def test_an_embedding_shares_the_weights_of_the_last_product(sizes):
    inputs = packed_table(4, 64, 2)
    attributes = {"K": 64, "N": 9, "bits": 4, "block_size": 32}
    table = inputs["w"]
    inputs = {"e": 0, "w": table.reshape(9, 2, 16), "s": inputs["s"], "z": inputs["z"]}
    proto, _ = microsoft_model("MatMulNBits", inputs, {"y": F}, **attributes)
    del proto.graph.initializer[0]
    proto.graph.input.append(value("x", [1, 3], TensorProto.INT64))
    proto.graph.initializer.append(numpy_helper.from_array(np.array(sizes), "sizes"))
    gather = helper.make_node(
        *("GatherBlockQuantized", ["flat", "x", "s", "z"], ["e"]),
        domain="com.microsoft",
        block_size=32,
    )
    proto.graph.node.insert(0, gather)
    proto.graph.node.insert(0, helper.make_node("Reshape", ["w", "sizes"], ["flat"]))
    ((found, wanted),) = compared(proto, {"x": np.array([[4, -2, 0]])})
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5 * np.abs(wanted).max())


def test_a_table_with_scales_for_other_blocks_is_refused():
    inputs, attributes = packed_table(4, 64, 4), {"block_size": 32}
    proto, _ = microsoft_model("GatherBlockQuantized", inputs, {"y": F}, **attributes)
    with pytest.raises(ModelError, match=r"GatherBlockQuantized node .* expected \[9, 2\]"):
        tvm_ext.compile(proto)
