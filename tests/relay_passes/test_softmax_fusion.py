"""Before and after IR, equal numbers, and refusals of SoftmaxFusion."""

import numpy as np
import onnx
import pytest
from conv_modules import apply, module, operators, run
from onnx import TensorProto, helper
from tvm import relax, tirx
from tvm_ffi import structural_equal
from unoptimised import HOST

import tvm_ext
from tvm_ext.relay_passes.graph_pass import recording
from tvm_ext.relay_passes.softmax_fusion import SoftmaxFusion

op = relax.op
N, K = (tirx.Var(name, "int64") for name in "nk")
named = apply(SoftmaxFusion())


def softmax(emit, x, axis=-1, summed=None):
    shifted = emit(op.subtract(x, emit(op.max(x, axis, keepdims=True))))
    exponential = emit(op.exp(shifted))
    total = emit(op.sum(exponential, axis if summed is None else summed, keepdims=True))
    return [emit(op.divide(exponential, total))]


def log_softmax(emit, x):
    shifted = emit(op.subtract(x, emit(op.max(x, 1, keepdims=True))))
    total = emit(op.sum(emit(op.exp(shifted)), 1, keepdims=True))
    return [emit(op.subtract(shifted, emit(op.log(total))))]


@pytest.mark.parametrize("parts", [softmax, log_softmax])
def test_parts_become_the_operator(parts):
    new = named(module([N, 3, K], parts))
    assert operators(new) == [f"nn.{parts.__name__}"]
    x = np.random.default_rng(1).normal(size=(2, 3, 5)).astype("float32")
    axis = 2 if parts is softmax else 1
    exponential = np.exp(x - x.max(axis, keepdims=True))
    wanted = exponential / exponential.sum(axis, keepdims=True)
    wanted = wanted if parts is softmax else np.log(wanted)
    np.testing.assert_allclose(run(new, x)[0], wanted, rtol=1e-5, atol=1e-6)


def shared(emit, x):
    exponential = emit(op.exp(emit(op.subtract(x, emit(op.max(x, -1, keepdims=True))))))
    total = emit(op.sum(exponential, -1, keepdims=True))
    return [emit(op.divide(exponential, total)), total]


def unshifted(emit, x):
    exponential = emit(op.exp(x))
    return [emit(op.divide(exponential, emit(op.sum(exponential, -1, keepdims=True))))]


def several_axes(emit, x):
    return softmax(emit, x, [1, 2])


def other_axes(emit, x):
    return softmax(emit, x, -1, 1)


@pytest.mark.parametrize("parts", [shared, unshifted, several_axes, other_axes])
def test_left_alone(parts):
    mod = module([2, 3, 4], parts)
    with recording() as decisions:
        assert structural_equal(named(mod), mod)
    assert any("used elsewhere" in d.reason for d in decisions) == (parts is shared)


def test_nodes_of_onnx_become_one_kernel():
    """The maximum is a kernel of its own in the importer, as it may be infinite."""
    names = [("ReduceMax", ["x", "axis"], "m"), ("Sub", ["x", "m"], "d"), ("Exp", ["d"], "e")]
    names += [("ReduceSum", ["e", "axis"], "s"), ("Div", ["e", "s"], "y")]
    graph = helper.make_graph(
        [helper.make_node(kind, inputs, [output]) for kind, inputs, output in names],
        "softmax",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 7])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(np.array([-1]), "axis")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    compiled = tvm_ext.compile(model, target=HOST)
    assert compiled.report.kernel_calls == 1
    x = np.array([[1, 2, 3, -np.inf, 0, 500, 500], [np.nan, 0, 0, 0, 0, 0, 0]], "float32")
    with np.errstate(invalid="ignore"):
        exponential = np.exp(x - x.max(1, keepdims=True))
    wanted = exponential / exponential.sum(1, keepdims=True)
    np.testing.assert_allclose(compiled.run({"x": x})["y"], wanted, rtol=1e-5, atol=1e-6)
