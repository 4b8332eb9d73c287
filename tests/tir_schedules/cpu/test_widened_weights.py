"""Matmuls that widen weights of 8 and 16 bits, against NumPy; and what they are saved as."""

import re

import ml_dtypes
import numpy as np
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper
from unoptimised import HOST

import tvm_ext
from tvm_ext.check.check import check_model
from tvm_ext.check.tolerance import WEIGHT_TOLERANCES
from tvm_ext.hardware.targets import resolve_target
from tvm_ext.relay_passes.compress_weights import compressed_matmul
from tvm_ext.tir_schedules.schedule_kernels import schedule_kernel

RANDOM = np.random.default_rng(0)
# With caches that hold few weights, and a memory that takes its time.
MEMORY = {"l2_bytes": 1024, "l3_bytes": 0, "core_memory_gbs": 1e-3}
MACHINE = HOST.with_cores(2).model_copy(update=MEMORY)
TYPES = {
    "float32": (TensorProto.FLOAT, np.float32),
    "float16": (TensorProto.FLOAT16, np.float16),
    "bfloat16": (TensorProto.BFLOAT16, ml_dtypes.bfloat16),
}


def normal(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


def model(weights, rows, dtype="float32", layers=1):
    """``relu(x @ weights + bias)``, ``layers`` times."""
    element, kind = TYPES[dtype]
    nodes, last = [], "x"
    for n in range(layers):
        nodes += [
            helper.make_node("MatMul", [last, "w"], [f"m{n}"]),
            helper.make_node("Add", [f"m{n}", "b"], [f"a{n}"]),
            helper.make_node("Relu", [f"a{n}"], [f"y{n}"]),
        ]
        last = f"y{n}"
    depth, columns = weights.shape
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", element, [rows, depth])],
        [helper.make_tensor_value_info(last, element, [rows, columns])],
        [
            numpy_helper.from_array(weights.astype(kind), "w"),
            numpy_helper.from_array(bias(columns).astype(kind), "b"),
        ],
    )
    opsets = [helper.make_opsetid("", 22)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def bias(columns):
    return np.linspace(-1, 1, columns, dtype=np.float32)


def schedules(compiled):
    return [record.schedule for record in compiled.report.kernels]


@pytest.mark.extended
@pytest.mark.parametrize(("depth", "columns"), [(65, 130), (256, 64), (33, 21)])
@pytest.mark.parametrize("rows", ["rows", 1, 2, 7, 33])
def test_products_are_those_of_rounded_weights(rows, depth, columns):
    weights = normal(depth, columns)
    compiled = tvm_ext.compile(model(weights, rows), MACHINE, precision="float16")
    assert schedules(compiled) == ["dequantize matmul"]
    rounded = weights.astype(np.float16).astype(np.float32)
    for count in (1, 2, 7, 16, 33) if isinstance(rows, str) else (rows,):
        x = normal(count, depth)
        (found,) = compiled.run({"x": x}).values()
        wanted = np.maximum(x @ rounded + bias(columns), 0)
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5 * np.abs(wanted).max())


@pytest.mark.parametrize(("depth", "columns"), [(65, 130), (33, 21)])
@pytest.mark.parametrize("rows", ["rows", 1, 7])
def test_products_of_whole_weights_are_exact(rows, depth, columns):
    """Sums of whole numbers are, in any order."""
    weights = RANDOM.integers(-128, 128, (depth, columns)).astype(np.float32)
    compiled = tvm_ext.compile(model(weights, rows), MACHINE)
    assert schedules(compiled) == ["dequantize matmul"]
    for count in (1, 2, 7, 16, 33) if isinstance(rows, str) else (rows,):
        x = RANDOM.integers(-255, 256, (count, depth)).astype(np.float32)
        (found,) = compiled.run({"x": x}).values()
        np.testing.assert_array_equal(found, np.maximum(x @ weights + bias(columns), 0))


@pytest.mark.extended
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("rows", [3, "rows"])
def test_models_of_narrow_types_keep_their_weights(dtype, rows):
    weights = normal(64, 96)
    compiled = tvm_ext.compile(model(weights, rows, dtype), MACHINE)
    found = schedules(compiled)
    # With instructions for products of bfloat16 these are no sums of float32.
    if HOST.instruction(dtype).k == 1 and HOST.tile_instruction(dtype, dtype) is None:
        assert found[-1] == "dequantize matmul"
    kind = TYPES[dtype][1]
    x = normal(3, 64).astype(kind)
    (y,) = compiled.run({"x": x}).values()
    assert y.dtype == kind
    narrow, shift = (a.astype(kind).astype(np.float32) for a in (weights, bias(96)))
    product = (x.astype(np.float32) @ narrow).astype(kind).astype(np.float32)
    wanted = np.maximum(product + shift, 0)
    step = 2.0**-10 if dtype == "float16" else 2.0**-7
    np.testing.assert_allclose(y.astype(np.float32), wanted, rtol=2 * step, atol=20 * step)


@pytest.mark.extended
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_saved_weights_take_two_bytes(dtype, tmp_path):
    weights = normal(512, 520)
    precision = "float16" if dtype == "float32" else "model"
    tvm_ext.compile(model(weights, 1, dtype), MACHINE, precision=precision).save(
        tmp_path / "model.tvmx"
    )
    tvm_ext.compile(model(weights, 1), MACHINE).save(tmp_path / "wide.tvmx")
    saved, wide = ((tmp_path / f"{name}.tvmx").stat().st_size for name in ("model", "wide"))
    assert wide - saved > 0.8 * weights.size * 2


def test_a_check_allows_for_rounded_weights_and_says_so():
    found = check_model(model(normal(256, 256), 3, layers=3), MACHINE, precision="float16")
    assert found.ok
    assert {output.tolerance for output in found.outputs} == {WEIGHT_TOLERANCES["float16"]}
    assert found.to_dict()["stored_weights"] == "float16"
    plain = check_model(model(normal(256, 256), 3), MACHINE)
    assert plain.stored_weights == ""
    assert check_model(model(normal(256, 256), 3), MACHINE, precision="float16", rtol=0.1).ok


def code_of(target, dtype, rows=4):
    """Assembly of a kernel whose weights are constant."""
    x, w = (
        tvm.te.placeholder(shape, kind, name)
        for name, shape, kind in (("x", (rows, 128), "float32"), ("w", (128, 256), dtype))
    )
    func = tvm.te.create_prim_func([x, w, compressed_matmul(x, w)])
    machine = resolve_target(target)
    func = func.with_attr("tvm_ext.constant_parameters", [1])
    scheduled, choice = schedule_kernel(func, machine)
    mod = tvm.IRModule({"main": scheduled.with_attr("global_symbol", "main")})
    return choice, tvm.compile(mod, target=machine.tvm_target()).mod.inspect_source("asm")


@pytest.mark.extended
@pytest.mark.parametrize(
    ("target", "dtype", "instruction"),
    [
        ("avx2", "float16", r"vcvtph2ps\s.*ymm"),
        ("avx2", "int8", r"vpmovsxbd\s.*ymm"),
        ("avx512", "float16", r"vcvtph2ps\s.*zmm"),
        ("avx512", "bfloat16", r"vpmovzxwd\s.*zmm"),
        ("avx512", "int8", r"vpmovsxbd\s.*zmm"),
        ("aarch64-neon", "float16", r"fcvtl2?\s+v\d+\.4s"),
        ("aarch64-neon", "bfloat16", r"u?shll2?\s+v\d+\.4s"),
    ],
)
def test_whole_vectors_are_widened(target, dtype, instruction):
    choice, code = code_of(target, dtype)
    assert choice.schedule == "dequantize matmul"
    assert re.search(instruction, code)
    # No call for each element.
    assert not re.search(r"\b(call|bl)\s+_?_?extendhfsf2", code)
