"""Running sums, remainders, determinants and statistics of a batch."""

import numpy as np
import onnx
import pytest
from combinations import pairwise
from one_model import in_one_model, run_model
from operator_models import by_reference, by_runtime, check_operator
from small_models import model, node, rand, value
from unoptimised import HOST

import tvm_ext
from tvm_ext.onnx_frontend import import_model

X = rand(2, 3, 4)


@in_one_model
@pairwise(stored=[("axis",), ()], flags=[(0, 0), (1, 0), (0, 1), (1, 1)], axis=[0, 1, -1])
def test_running_sums(axis: int, flags: tuple, stored: tuple) -> None:
    attributes = {"exclusive": flags[0], "reverse": flags[1]}
    check_operator("CumSum", {"x": X, "axis": np.array(axis)}, stored=stored, **attributes)


@in_one_model
@pytest.mark.parametrize("fmod", [0, 1])
def test_modulo_zero_does_not_end_the_process(fmod: int) -> None:
    low = np.iinfo(np.int32).min
    a, b = np.array([7, -7, low, 5], np.int32), np.array([0, 3, -1, -3], np.int32)
    proto = model(
        [node("Mod", ["a", "b"], ["y"], fmod=fmod)],
        [value("a", [4], onnx.TensorProto.INT32), value("b", [4], onnx.TensorProto.INT32)],
        [value("y", [4], onnx.TensorProto.INT32)],
    )
    found = run_model(proto, {"a": a, "b": b})["y"]
    np.testing.assert_array_equal(found, [0, -1 if fmod else 2, 0, 2 if fmod else -1])


@in_one_model
@pytest.mark.parametrize("dtype", ["int32", "uint8", "int64"])
def test_integers_divided_by_zero_do_not_end_the_process(dtype: str) -> None:
    kind = getattr(onnx.TensorProto, dtype.upper())
    low = np.iinfo(dtype).min
    a, b = np.array([7, 7, low, 5], dtype), np.array([0, 3, -1, -3]).astype(dtype)
    proto = model(
        [node("Div", ["a", "b"], ["y"])],
        [value("a", ["N"], kind), value("b", [4], kind)],
        [value("y", None, kind)],
    )
    wanted = np.array([0, 2, low, int(5 / int(b[3]))], dtype)
    np.testing.assert_array_equal(run_model(proto, {"a": a, "b": b})["y"], wanted)


def test_determinants() -> None:
    check_operator("Det", {"x": rand(2, 3, 4, 4)}, tolerance=1e-4)


@pytest.mark.extended
def test_batch_statistics() -> None:
    channels = {name: rand(3, seed=k) + 2 for k, name in enumerate(["s", "b", "m", "v"])}
    check_operator(
        "BatchNormalization",
        {"x": X, **channels},
        3,
        reference=by_reference,
        training_mode=1,
        tolerance=1e-4,
    )


ANGLES = [
    node("Unsqueeze", ["t", "middle"], ["rows"]),
    node("Expand", ["speeds", "shape"], ["columns"]),
    node("MatMul", ["columns", "rows"], ["angles"]),
    node("Cos", ["angles"], ["y"]),
]


@pytest.mark.extended
def test_a_column_by_a_row_is_fused_with_its_readers() -> None:
    """As the angles of rotary embeddings are computed."""
    proto = model(
        ANGLES,
        [value("t", ["N", "T"])],
        [onnx.ValueInfoProto(name="y")],
        speeds=rand(1, 4, 1),
        shape=np.array([1, 4, 1]),
        middle=np.array([1]),
    )
    compiled = tvm_ext.compile(proto, HOST)
    assert len(compiled.kernel_calls()) == 1
    for sizes in ((2, 3), (1, 1), (1, 5)):
        feed = {"t": rand(*sizes)}
        np.testing.assert_allclose(compiled.run(feed)["y"], by_runtime(proto, feed)[0], rtol=1e-6)


@pytest.mark.extended
@in_one_model
@pytest.mark.parametrize("shapes", [((4, 1), (1, 3)), ((2, 1, 4, 1), (3, 1, 5)), ((1, 1), (1, 1))])
def test_a_matmul_of_one_term(shapes: tuple) -> None:
    a, b = (rand(*shape, seed=seed) for seed, shape in enumerate(shapes))
    a.flat[0], b.flat[0] = -0.0, 2.0
    check_operator("MatMul", {"a": a, "b": b})


def test_a_matmul_of_one_term_has_no_negative_zero() -> None:
    proto = model(
        [node("MatMul", ["a", "b"], ["c"]), node("Reciprocal", ["c"], ["y"])],
        [value("a", ["N", 1]), value("b", [1, "M"])],
        [onnx.ValueInfoProto(name="y")],
    )
    feed = {"a": np.float32([[-0.0], [3], [np.inf]]), "b": np.float32([[2, -0.0, np.nan]])}
    np.testing.assert_array_equal(run_model(proto, feed)["y"], by_runtime(proto, feed)[0])


def test_the_weights_of_a_layer_stay_a_matmul() -> None:
    proto = model(
        [node("MatMul", ["x", "w"], ["y"])],
        [value("x", ["N", 1])],
        [onnx.ValueInfoProto(name="y")],
        w=rand(1, 8),
    )
    assert "R.matmul" in str(import_model(proto).mod)
