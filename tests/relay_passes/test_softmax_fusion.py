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


@pytest.mark.parametrize("operator", [op.nn.softmax, op.nn.log_softmax])
def test_a_maximum_is_taken_away_once(operator):
    def twice(emit, x):
        return [emit(operator(emit(op.subtract(x, emit(op.max(x, 2, keepdims=True)))), -1))]

    def of_other_axis(emit, x):
        return [emit(operator(emit(op.subtract(x, emit(op.max(x, 1, keepdims=True)))), -1))]

    assert operators(named(module([N, 3, K], twice))) == [f"nn.{operator.__name__}"]
    assert len(operators(named(module([N, 3, K], of_other_axis)))) == 3


def dropped_axes(emit, x):
    """jnp: reductions drop their axis, and a reshape puts it back."""
    maximum = emit(op.reshape(emit(op.max(x, 2)), [N, 3, 1]))
    exponential = emit(op.exp(emit(op.subtract(x, maximum))))
    total = emit(op.reshape(emit(op.sum(exponential, 2)), [N, 3, 1]))
    return [emit(op.divide(exponential, total))]


def test_axes_that_are_put_back():
    assert operators(named(module([N, 3, K], dropped_axes))) == ["nn.softmax"]


def sum_of(emit, x, maximum, keepdims=True):
    exponential = emit(op.exp(emit(op.subtract(x, maximum))))
    total = emit(op.log(emit(op.sum(exponential, -1, keepdims=keepdims))))
    return emit(op.add(total, maximum if keepdims else emit(op.reshape(maximum, [N, 3]))))


def plain(emit, x):
    return [sum_of(emit, x, emit(op.max(x, -1, keepdims=True)))]


def squeezed(emit, x):
    """ReduceLogSumExp without its axes."""
    return [emit(op.squeeze(plain(emit, x)[0], [2]))]


def tensorflow(emit, x):
    """tf.reduce_logsumexp chooses by multiplication, and drops the axis of the sum alone."""
    maximum = emit(op.max(x, -1, keepdims=True))
    tests = [emit(op.equal(maximum, relax.const(s * np.inf, "float32"))) for s in (1, -1)]
    infinite = emit(op.logical_or(emit(op.logical_or(*tests)), emit(op.isnan(maximum))))
    finite = emit(op.astype(emit(op.logical_not(infinite)), "float32"))
    nothing = emit(op.multiply(relax.const(0.0), emit(op.astype(infinite, "float32"))))
    chosen = emit(op.add(emit(op.multiply(finite, maximum)), nothing))
    return [sum_of(emit, x, chosen, keepdims=False)]


def torch(emit, x):
    """torch.logsumexp of torch.export."""
    maximum = emit(op.max(x, -1, keepdims=True))
    infinite = emit(op.equal(emit(op.abs(maximum)), relax.const(np.inf, "float32")))
    return [sum_of(emit, x, emit(op.where(infinite, relax.const(0.0), maximum)))]


def jax(emit, x):
    """jax.nn.logsumexp."""
    maximum = emit(op.max(x, -1, keepdims=True))
    chosen = emit(op.where(emit(op.isfinite(maximum)), maximum, relax.const(0.0)))
    return [sum_of(emit, x, chosen)]


@pytest.mark.parametrize("parts", [plain, squeezed, tensorflow, torch, jax])
def test_logarithm_of_a_sum_of_exponentials(parts):
    mod = module([N, 3, K], parts)
    new = named(mod)
    assert operators(new) == ["call_tir"]
    assert structural_equal(named(new), new)
    x = np.random.default_rng(1).normal(size=(3, 3, 5)).astype("float32") * 100
    x[0, 0, 1], x[0, 1], x[1, 0, 2], x[1, 1, 4] = -np.inf, -np.inf, np.nan, np.inf
    (found,) = run(new, x)
    with np.errstate(invalid="ignore", divide="ignore"):
        wanted = np.logaddexp.reduce(x, -1, keepdims=found.ndim == 3)
    if parts not in (torch, jax):
        wanted[wanted == np.inf] = np.nan
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    np.testing.assert_allclose(found, run(mod, x)[0], rtol=1e-5)


def compiled_nodes(names):
    graph = helper.make_graph(
        [helper.make_node(kind, inputs, [output]) for kind, inputs, output in names],
        "nodes",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 7])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(np.array([-1]), "axis")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    return tvm_ext.compile(model, target=HOST)


def test_nodes_of_onnx_become_a_logarithm_of_a_sum():
    """Of nothing but minus infinity the difference from the maximum is NaN, as in the nodes."""
    names = [("ReduceMax", ["x", "axis"], "m"), ("Sub", ["x", "m"], "d"), ("Exp", ["d"], "e")]
    names += [("ReduceSum", ["e", "axis"], "s"), ("Log", ["s"], "l"), ("Add", ["m", "l"], "k")]
    compiled = compiled_nodes([*names, ("Squeeze", ["k", "axis"], "y")])
    assert compiled.report.kernel_calls == 1
    x = np.array([[1, 2, 3, -np.inf, 0, 500, 500], [-np.inf] * 7, [np.nan] + [0] * 6], "float32")
    wanted = np.array([500 + np.log(2), np.nan, np.nan])
    np.testing.assert_allclose(compiled.run({"x": x})["y"], wanted, rtol=1e-6)


def other_maximum(emit, x):
    return [sum_of(emit, x, emit(op.max(emit(op.negative(x)), -1, keepdims=True)))]


def one_infinity(emit, x):
    """Minus infinity is not guarded against, which the kernel would do."""
    maximum = emit(op.max(x, -1, keepdims=True))
    infinite = emit(op.equal(maximum, relax.const(np.inf, "float32")))
    return [sum_of(emit, x, emit(op.where(infinite, relax.const(0.0), maximum)))]


def another_number(emit, x):
    maximum = emit(op.max(x, -1, keepdims=True))
    return [sum_of(emit, x, emit(op.where(emit(op.isinf(maximum)), relax.const(1.0), maximum)))]


def whole_tensor(emit, x):
    maximum = emit(op.max(x, [0, 1, 2], keepdims=True))
    exponential = emit(op.exp(emit(op.subtract(x, maximum))))
    total = emit(op.sum(exponential, [0, 1, 2], keepdims=True))
    return [emit(op.add(emit(op.log(total)), maximum))]


@pytest.mark.parametrize("parts", [other_maximum, one_infinity, another_number, whole_tensor])
def test_other_sums_are_left_alone(parts):
    mod = module([2, 3, 4], parts)
    assert structural_equal(named(mod), mod)


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
    compiled = compiled_nodes(names)
    assert compiled.report.kernel_calls == 1
    x = np.array([[1, 2, 3, -np.inf, 0, 500, 500], [np.nan, 0, 0, 0, 0, 0, 0]], "float32")
    with np.errstate(invalid="ignore"):
        exponential = np.exp(x - x.max(1, keepdims=True))
    wanted = exponential / exponential.sum(1, keepdims=True)
    np.testing.assert_allclose(compiled.run({"x": x})["y"], wanted, rtol=1e-5, atol=1e-6)
