"""RewriteDataflowReshape: what is returned in another shape is a view, and never of an input."""

import numpy as np
import pytest
import tvm
from small_models import model, node, value
from tvm import relax
from tvm_ffi import structural_equal

import tvm_ext
from tvm_ext.relay_passes.rewrite_dataflow_reshape import rewrite_dataflow_reshape


def reshaped(shape: list[int]) -> tvm.IRModule:
    """``reshape(tanh(x))`` as it is after legalisation, returned."""
    x = relax.Var("x", relax.TensorType([2, 12], "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(relax.op.tanh(x))
            result = builder.emit_output(relax.op.reshape(y, shape))
        builder.emit_func_output(result)
    return relax.transform.LegalizeOps()(builder.get())


def results(mod: tvm.IRModule) -> list[str]:
    """Operators of the bindings of ``main``."""
    return [str(one.value.op.name) for one in mod["main"].body.blocks[0].bindings]


def test_what_a_function_returns_becomes_a_view() -> None:
    before = reshaped([4, 6])
    assert results(before) == ["relax.call_tir", "relax.call_tir"]
    after = rewrite_dataflow_reshape()(before)
    assert results(after) == ["relax.call_tir", "relax.reshape"]
    assert structural_equal(rewrite_dataflow_reshape()(after), after)


def test_other_kernels_stay() -> None:
    x = relax.Var("x", relax.TensorType([2, 12], "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(relax.op.permute_dims(x))
        builder.emit_func_output(result)
    before = relax.transform.LegalizeOps()(builder.get())
    assert structural_equal(rewrite_dataflow_reshape()(before), before)


@pytest.mark.parametrize("batch", [2, "n"])
def test_a_model_that_ends_in_a_convolution_of_one_tap_copies_nothing(batch: int | str) -> None:
    weight = np.random.default_rng(0).normal(size=(8, 4, 1, 1)).astype("float32")
    nodes = [node("Conv", ["x", "w"], ["y"])]
    proto = model(nodes, [value("x", [batch, 4, 6, 10])], [value("y", None)], w=weight)
    compiled = tvm_ext.compile(proto)
    assert len(compiled.report.kernels) == 1
    x = np.random.default_rng(1).normal(size=(2, 4, 6, 10)).astype("float32")
    wanted = np.einsum("oc,nchw->nohw", weight[:, :, 0, 0], x)
    np.testing.assert_allclose(compiled.run({"x": x})["y"], wanted, rtol=1e-5, atol=1e-5)


def test_an_input_in_another_shape_is_copied() -> None:
    nodes = [node("Reshape", ["x", "shape"], ["y"])]
    proto = model(nodes, [value("x", [2, 6])], [value("y", None)], shape=np.array([3, 4]))
    compiled = tvm_ext.compile(proto)
    x = np.arange(12, dtype="float32").reshape(2, 6)
    y = compiled.run({"x": x})["y"]
    x[:] = -1
    np.testing.assert_array_equal(y, np.arange(12, dtype="float32").reshape(3, 4))
