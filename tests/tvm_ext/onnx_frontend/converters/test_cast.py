"""Cast and CastLike of narrow types against ml_dtypes and onnx.reference."""

import ml_dtypes
import numpy as np
import pytest
from one_model import in_one_model, run_model
from onnx import TensorProto, helper
from onnx.numpy_helper import saturate_cast, to_float8e8m0
from small_models import model, value
from unoptimised import HOST

import tvm_ext

node = helper.make_node
F = TensorProto.FLOAT
INF, NAN = float("inf"), float("nan")

FLOAT8 = {
    name: np.dtype(getattr(ml_dtypes, name))
    for name in ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")
}
PACKED = {name: np.dtype(getattr(ml_dtypes, name)) for name in ("int4", "uint4", "float4_e2m1fn")}


def element_type(dtype: np.dtype) -> int:
    return helper.np_dtype_to_tensor_dtype(dtype)


def run(x: np.ndarray, to: int, opset: int = 24, level: str = "O3", **attributes) -> np.ndarray:
    proto = model(
        [node("Cast", ["x"], ["y"], to=to, **attributes)],
        [value("x", list(x.shape), element_type(x.dtype))],
        [value("y", list(x.shape), to)],
        opset,
    )
    proto.ir_version = 12
    (found,) = run_model(proto, {"x": x}, level).values()
    return found


def any_floats() -> np.ndarray:
    """Bit patterns of all kinds, halves between small numbers, and the ends of ranges."""
    rng = np.random.default_rng(1)
    bits = rng.integers(0, 2**32, 5000, dtype=np.uint64).astype(np.uint32).view(np.float32)
    small = np.arange(-600, 600, dtype=np.float32)
    ends = [0, -0.0, INF, -INF, NAN, 448, 464, 464.01, 57344, 61440, 240, 248, 6, 5, 0.25]
    parts = (bits, small / 32, small / 1024, rng.normal(0, 50, 3000), ends)
    return np.concatenate([np.asarray(part, np.float32) for part in parts])


def assert_same(found: np.ndarray, wanted: np.ndarray) -> None:
    assert found.dtype == wanted.dtype
    numbers, others = found.astype(np.float32), wanted.astype(np.float32)
    np.testing.assert_array_equal(numbers, others)
    kept = ~np.isnan(others)
    np.testing.assert_array_equal(np.signbit(numbers[kept]), np.signbit(others[kept]))


@in_one_model
@pytest.mark.parametrize("saturate", [True, False])
@pytest.mark.parametrize("name", FLOAT8)
def test_float8_there_and_back(name, saturate):
    x, dtype = any_floats(), FLOAT8[name]
    with np.errstate(all="ignore"):
        wanted = saturate_cast(x, dtype) if saturate else x.astype(dtype)
    assert_same(run(x, element_type(dtype), saturate=int(saturate)), wanted)
    codes = np.arange(256, dtype=np.uint8).view(dtype)
    with np.errstate(all="ignore"):
        assert_same(run(codes, F), codes.astype(np.float32))


@in_one_model
@pytest.mark.parametrize("rounding", ["up", "down", "nearest"])
def test_float8_that_is_an_exponent(rounding):
    x = np.abs(any_floats())
    wanted = to_float8e8m0(x, True, rounding)
    assert_same(run(x, TensorProto.FLOAT8E8M0, saturate=1, round_mode=rounding), wanted)


def test_three_in_float8_is_not_six():
    # TVM's own conversion reads every number of this type as twice what it is.
    x = np.array([-3, 0, 1], FLOAT8["float8_e4m3fnuz"])
    np.testing.assert_array_equal(run(x, F), np.array([-3, 0, 1], np.float32))


@in_one_model
@pytest.mark.parametrize("name", PACKED)
@pytest.mark.parametrize("level", ["O0", "O3"])
def test_types_below_a_byte_as_inputs_and_outputs(name, level):
    dtype = PACKED[name]
    x = np.arange(-8, 8, dtype=np.float32) / (1 if "int" in name else 2)
    x = np.abs(x) if name == "uint4" else x
    narrow = run(x, element_type(dtype), level=level)
    assert_same(narrow, x.astype(dtype))
    assert_same(run(narrow, F, level=level), narrow.astype(np.float32))


@in_one_model
@pytest.mark.parametrize("name", ["int4", "uint4"])
def test_integers_out_of_range_lose_their_higher_bits(name):
    x = np.array([200, -3, 7, 9, -9, 2**20 + 5], np.int32)
    found = run(x, element_type(PACKED[name]))
    np.testing.assert_array_equal(found.astype(int), x.astype(PACKED[name]).astype(int))


def test_cast_like_a_narrow_input():
    like = np.zeros(1, PACKED["uint4"])
    proto = model(
        [node("CastLike", ["x", "like"], ["y"])],
        [value("x", [3]), value("like", [1], TensorProto.UINT4)],
        [value("y", [3], TensorProto.UINT4)],
        21,
    )
    proto.ir_version = 10
    compiled = tvm_ext.compile(proto, HOST)
    assert [spec.dtype for spec in compiled.inputs + compiled.outputs] == [
        *("float32", "uint4", "uint4")
    ]
    x = np.array([1, 14.7, 3], np.float32)
    assert compiled.run({"x": x, "like": like})["y"].tolist() == [1, 14, 3]


def test_packed_weights_pass_through_shape_operators():
    w = np.arange(-8, 8).reshape(2, 8).astype(PACKED["int4"])
    nodes = [
        node("Transpose", ["w"], ["t"], perm=[1, 0]),
        node("Cast", ["t"], ["f"], to=F),
        node("MatMul", ["x", "f"], ["y"]),
    ]
    proto = model(nodes, [value("x", [3, 8])], [value("y", [3, 2])], 21, w=w)
    proto.ir_version = 10
    x = np.arange(24, dtype=np.float32).reshape(3, 8)
    (found,) = run_model(proto, {"x": x}).values()
    np.testing.assert_array_equal(found, x @ w.astype(np.float32).T)


@in_one_model
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "int64"])
def test_bool_is_true_for_all_but_zero(dtype):
    x = np.array([0, 1, 2, 100], dtype)
    np.testing.assert_array_equal(run(x, TensorProto.BOOL), x != 0)
    halves = np.array([0.0, -0.0, 0.5, NAN], np.float32)
    np.testing.assert_array_equal(run(halves, TensorProto.BOOL), [False, False, True, True])


@pytest.mark.parametrize("level", ["O0", "O3"])
def test_a_cast_to_bfloat16_and_back_rounds(level):
    numbers = [1, 1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-9, 3.4e38, NAN, INF, -INF, 1e-40]
    x = np.array(numbers, "float32")
    proto = model(
        [
            node("Cast", ["x"], ["a"], to=TensorProto.BFLOAT16),
            node("Cast", ["a"], ["b"], to=F),
            node("Neg", ["b"], ["y"]),
        ],
        [value("x", [9])],
        [value("y", [9])],
    )
    (found,) = run_model(proto, {"x": x}, level).values()
    np.testing.assert_array_equal(found, -x.astype(ml_dtypes.bfloat16).astype("float32"))
