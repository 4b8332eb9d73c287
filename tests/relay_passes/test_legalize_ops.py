"""LegalizeOps: where its kernels are others than TVM's."""

from collections.abc import Callable

import numpy as np
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper
from operator_models import by_runtime
from small_models import model, node, rand, value
from tvm import relax
from unoptimised import HOST, LLVM, machine_of

import tvm_ext
from tvm_ext.relay_passes.legalize_ops import legalize_ops


@pytest.mark.extended
@pytest.mark.parametrize("exponent", [3.0, 5.0, 8.0])
def test_a_high_power_is_right_and_silent(
    exponent: float, capfd: pytest.CaptureFixture[str]
) -> None:
    stored = np.array([exponent], np.float32)
    proto = model(
        [node("Pow", ["x", "e"], ["y"])],
        [value("x", ["rows", 6])],
        [value("y", ["rows", 6])],
        e=stored,
    )
    compiled = tvm_ext.compile(proto, HOST)
    assert "pow" not in capfd.readouterr().err
    feed = {"x": rand(3, 6)}
    np.testing.assert_allclose(
        compiled.run(feed)["y"], by_runtime(proto, feed)[0], rtol=2e-6, atol=1e-7
    )


@pytest.mark.extended
@pytest.mark.parametrize("rows", [0, 1, 5])
def test_the_mean_of_no_elements_is_zero(rows: int) -> None:
    mean = node("ReduceMean", ["x"], ["y"], axes=[0, 1])
    proto = model([mean], [value("x", ["rows", 3, 4])], [value("y", [1, 1, 4])])
    feed = {"x": rand(rows, 3, 4)}
    found = tvm_ext.compile(proto, HOST).run(feed)["y"]
    np.testing.assert_allclose(found, by_runtime(proto, feed)[0], rtol=1e-6)


@pytest.mark.parametrize("zero", [np.float32(0), np.float32(-0.0), np.array([0], np.float16)])
@pytest.mark.parametrize("operator", ["Div", "Mul"])
def test_a_division_and_a_product_of_a_stored_zero(zero: np.ndarray, operator: str) -> None:
    kind = helper.np_dtype_to_tensor_dtype(np.asarray(zero).dtype)
    x = np.array([2, -3, 0, np.nan, np.inf], np.asarray(zero).dtype)
    proto = model(
        [node(operator, ["x", "zero"], ["y"])], [value("x", [5], kind)], [value("y", None, kind)]
    )
    proto.graph.initializer.append(numpy_helper.from_array(np.asarray(zero), "zero"))
    with np.errstate(all="ignore"):
        wanted = x / zero if operator == "Div" else x * zero
    found = tvm_ext.compile(proto, HOST).run({"x": x})["y"]
    np.testing.assert_array_equal(found, wanted)
    numbers = ~np.isnan(wanted)
    np.testing.assert_array_equal(np.signbit(found[numbers]), np.signbit(wanted[numbers]))


def test_a_narrow_batch_normalisation_that_no_pass_took_apart_keeps_its_type() -> None:
    half = TensorProto.FLOAT16
    stored = {name: np.linspace(0.5, 1.5, 3).astype(np.float16) for name in ("g", "b", "m", "v")}
    nodes = [node("BatchNormalization", ["x", *stored], ["n"]), node("Relu", ["n"], ["y"])]
    proto = model(nodes, [value("x", [2, 3, 4], half)], [value("y", [2, 3, 4], half)], **stored)
    compiled = tvm_ext.compile(proto, HOST, disabled_passes=["DecomposeOpsForInference"])
    feed = {"x": rand(2, 3, 4).astype(np.float16)}
    found, wanted = compiled.run(feed)["y"], by_runtime(proto, feed)[0]
    assert found.dtype == np.float16
    np.testing.assert_allclose(found, wanted, rtol=2e-3, atol=2e-3)


# By name: the shape of a Reshape of ``x``, float32['N', 1, 'M'], and how many kernels there are.
RESHAPES = {
    "without an axis of one": ([0, -1], 1),
    "with more of them": ([0, 1, 1, -1], 1),
    "two axes as one": ([-1], 2),
}


@pytest.mark.extended
@pytest.mark.parametrize("name", RESHAPES)
def test_a_reshape_by_axes_of_one_element_is_fused(name: str) -> None:
    """Others of symbolic sizes are views, with a kernel before them and one behind them."""
    shape, count = RESHAPES[name]
    nodes = [
        node("Transpose", ["x"], ["a"], perm=[2, 1, 0]),
        node("Reshape", ["a", "shape"], ["b"]),
        node("Mul", ["b", "w"], ["y"]),
    ]
    proto = model(
        nodes,
        [value("x", ["N", 1, "M"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        shape=np.array(shape, "int64"),
        w=np.float32([2]),
    )
    compiled = tvm_ext.compile(proto, HOST, opt_level="O2")
    assert len(compiled.kernel_calls()) == count
    for sizes in ((2, 1, 3), (1, 1, 1), (4, 1, 2)):
        feed = {"x": rand(*sizes)}
        np.testing.assert_allclose(
            compiled.run(feed)["y"], by_runtime(proto, feed)[0], rtol=1e-6, atol=1e-7
        )


@pytest.mark.extended
@pytest.mark.parametrize("batch", [1, "N"])
def test_what_is_sampled_from_a_narrow_image_is_narrow(batch: int | str) -> None:
    """TVM's kernel gives float32, which cannot be joined with another narrow value."""
    half = TensorProto.FLOAT16
    proto = model(
        [
            node("GridSample", ["x", "grid"], ["s"], align_corners=1),
            node("Concat", ["s", "x"], ["y"], axis=3),
        ],
        [value("x", [batch, 1, 6, 6], half), value("grid", [batch, 6, 5, 2], half)],
        [value("y", [batch, 1, 6, 11], half)],
    )
    feed = {"x": rand(1, 1, 6, 6).astype("float16"), "grid": rand(1, 6, 5, 2).astype("float16")}
    found = tvm_ext.compile(proto, HOST).run(feed)["y"]
    assert found.dtype == np.float16
    np.testing.assert_allclose(found, by_runtime(proto, feed)[0], atol=4e-3, rtol=4e-3)


@pytest.mark.parametrize("operator", [relax.op.mean, relax.op.variance])
def test_a_narrow_mean_is_summed_in_float32(operator: Callable) -> None:
    """A sum in float16 of numbers around 3 stands still long before the 6400 of an image."""
    x = (rand(1, 80, 80, 3) + 3).astype("float16")
    builder = relax.BlockBuilder()
    param = relax.Var("x", relax.TensorType(x.shape, "float16"))
    with builder.function("main", [param]):
        builder.emit_func_output(builder.emit(operator(param, [1, 2])))
    machine = machine_of(relax.build(legalize_ops()(builder.get()), LLVM))
    found = machine["main"](tvm.runtime.tensor(x)).numpy()
    assert found.dtype == np.float16
    wide = x.astype("float32")
    wanted = wide.mean((1, 2)) if operator is relax.op.mean else wide.var((1, 2))
    np.testing.assert_allclose(found, wanted, rtol=2e-3)
