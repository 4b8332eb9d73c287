"""Before and after IR, numbers and refusals of SinkReshapes."""

import numpy as np
import pytest
from conv_modules import apply, bindings, draw, kernels, module, operators, run
from tvm import relax, topi
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T
from tvm_ffi import structural_equal

from tvm_ext.relay_passes.graph_pass import recording
from tvm_ext.relay_passes.grouped_convolution import GroupedConvolution
from tvm_ext.relay_passes.sink_reshapes import ATTRIBUTE, SinkReshapes
from tvm_ext.relay_passes.spans import origins_of

nn = relax.op.nn
delay = apply(SinkReshapes())
make_kernel = apply(GroupedConvolution())

SHAPE = (1, 5, 6, 12)


def behind_kernel(body, extra=()):
    """``body`` on the result, of SHAPE, of a kernel that gives (1, 5, 6, 2, 6)."""

    def whole(emit, x):
        options = {"data_layout": "NHWC", "kernel_layout": "HWIO", "groups": 2, "padding": 1}
        y = emit(nn.conv2d(x, relax.const(draw(3, 3, 4, 12, seed=1)), **options))
        return body(emit, y)

    return make_kernel(module((1, 5, 6, 8), whole, extra=extra))


def check(before, *more):
    after = delay(before)
    x = draw(1, 5, 6, 8)
    for got, wanted in zip(run(after, x, *more), run(before, x, *more), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
    return after


@I.ir_module
class Before:
    @T.prim_func(private=True, s_tir=True)
    def kernel(x: T.Buffer((4, 6), "float32"), y: T.Buffer((4, 2, 3), "float32")):
        T.func_attr({"tvm_ext.reshaped_result": "kernel"})
        for i, j, k in T.grid(4, 2, 3):
            with T.sblock("y"):
                a, b, c = T.axis.remap("SSS", [i, j, k])
                y[a, b, c] = x[a, b * 3 + c]

    @R.function
    def main(x: R.Tensor((4, 6), "float32"), b: R.Tensor((4, 1), "float32")):
        cls = Before
        with R.dataflow():
            v = R.call_tir(cls.kernel, (x,), out_ty=R.Tensor((4, 2, 3), "float32"))
            y = R.reshape(v, R.shape([4, 6]))
            s = R.add(y, b)
            z = R.nn.relu(s)
            R.output(z)
        return z


@I.ir_module
class Expected:
    @T.prim_func(private=True, s_tir=True)
    def kernel(x: T.Buffer((4, 6), "float32"), y: T.Buffer((4, 2, 3), "float32")):
        T.func_attr({"tvm_ext.reshaped_result": "kernel"})
        for i, j, k in T.grid(4, 2, 3):
            with T.sblock("y"):
                a, b, c = T.axis.remap("SSS", [i, j, k])
                y[a, b, c] = x[a, b * 3 + c]

    @R.function
    def main(x: R.Tensor((4, 6), "float32"), b: R.Tensor((4, 1), "float32")):
        cls = Expected
        with R.dataflow():
            v = R.call_tir(cls.kernel, (x,), out_ty=R.Tensor((4, 2, 3), "float32"))
            c = R.reshape(b, R.shape([4, 1, 1]))
            s = R.add(v, c)
            y = R.nn.relu(s)
            z = R.reshape(y, R.shape([4, 6]))
            R.output(z)
        return z


def test_before_and_after():
    assert structural_equal(delay(Before), Expected)


def test_bias_and_activation_follow_the_kernel():
    def body(emit, y):
        biased = emit(relax.op.add(y, relax.const(draw(12, seed=2))))
        return [nn.leakyrelu(biased, 0.1)]

    after = check(behind_kernel(body))
    assert operators(after) == ["call_tir", "add", "nn.leakyrelu", "reshape"]
    bias = bindings(after)[1].value.args[1]
    assert list(map(int, bias.ty.shape)) == [1, 1, 1, 2, 6]


@pytest.mark.extended
@pytest.mark.parametrize(
    "shape", [(), (1,), (12,), (1, 1, 6, 1), (5, 6, 12), SHAPE, (1, 5, 1, 12)], ids=str
)
def test_constants_of_any_shape(shape):
    check(behind_kernel(lambda emit, y: [relax.op.multiply(relax.const(draw(*shape)), y)]))


@pytest.mark.extended
def test_a_residual_is_reshaped():
    other = relax.Var("other", relax.TensorType(SHAPE, "float32"))
    before = behind_kernel(lambda emit, y: [relax.op.add(other, y)], extra=[other])
    after = check(before, draw(*SHAPE, seed=3))
    assert operators(after) == ["call_tir", "reshape", "add", "reshape"]


@pytest.mark.extended
def test_values_used_twice_within_the_epilogue():
    def body(emit, y):
        return [relax.op.multiply(y, emit(relax.op.sigmoid(y)))]

    after = check(behind_kernel(body))
    assert operators(after) == ["call_tir", "sigmoid", "multiply", "reshape"]


@pytest.mark.extended
def test_another_user_keeps_its_reshape():
    def body(emit, y):
        return [nn.relu(y), relax.op.permute_dims(y)]

    after = check(behind_kernel(body))
    assert operators(after) == ["call_tir", "reshape", "nn.relu", "reshape", "permute_dims"]


def test_a_residual_behind_the_next_convolution_is_left_to_it():
    def body(emit, y):
        wide = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
        z = emit(nn.conv2d(y, relax.const(draw(1, 1, 12, 12, seed=3)), **wide))
        return [relax.op.add(y, z)]

    before = behind_kernel(body)
    with recording() as decisions:
        after = delay(before)
    assert structural_equal(after, before)
    assert "other users" in decisions[0].reason


def joined_axes(addend):
    """A kernel that gives (2, 12), seen as (4, 6), plus ``addend``."""
    x = relax.Var("x", relax.TensorType((2, 12), "float32"))
    params = [x, addend] if isinstance(addend, relax.Var) else [x]
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            made = builder.emit_te(topi.negative, x, primfunc_attrs={ATTRIBUTE: "any"})
            seen = builder.emit(relax.op.reshape(made, [4, 6]))
            result = builder.emit_output(relax.op.add(seen, addend))
        builder.emit_func_output(result)
    return builder.get()


def test_what_broadcasts_along_a_part_of_an_axis_must_be_constant():
    before = joined_axes(relax.Var("other", relax.TensorType((6,), "float32")))
    with recording() as decisions:
        assert structural_equal(delay(before), before)
    assert "broadcasts" in decisions[0].reason


def test_a_constant_is_spread_as_far_as_it_varies():
    before = joined_axes(relax.const(draw(6)))
    after = delay(before)
    addend = bindings(after)[1].value.args[1]
    np.testing.assert_array_equal(addend.value.numpy(), np.tile(draw(6), 2)[None])
    x = draw(2, 12, seed=1)
    np.testing.assert_array_equal(run(after, x)[0], run(before, x)[0])


def test_other_kernels_and_plain_reshapes_are_left_alone():
    before = module(
        (4, 6), lambda emit, x: [nn.relu(emit(relax.op.reshape(emit(nn.relu(x)), [4, 2, 3])))]
    )
    assert structural_equal(delay(before), before)


def test_a_reshape_of_what_is_computed_of_constants_is_left_alone():
    def body(emit, x):
        total = emit(relax.op.add(relax.const(draw(4, 6)), relax.const(draw(4, 1))))
        return [relax.op.add(x, emit(relax.op.reshape(total, [2, 12])))]

    before = module((2, 12), body)
    assert structural_equal(delay(before), before)


def test_origins_stay():
    after = delay(behind_kernel(lambda emit, y: [nn.relu(emit(relax.op.exp(y)))]))
    names = [origins_of(b.var) for b in bindings(after)]
    assert names[:3] == [("node0",), ("node1",), ()]


@pytest.mark.extended
def test_two_kernels_in_one_module():
    def body(emit, y):
        wide = {"data_layout": "NHWC", "kernel_layout": "HWIO", "groups": 3}
        y = emit(nn.relu(y))
        z = emit(nn.conv2d(y, relax.const(draw(1, 1, 4, 6, seed=3)), **wide))
        return [relax.op.tanh(z)]

    after = check(behind_kernel(body))
    assert operators(after) == ["call_tir", "nn.relu", "reshape", "call_tir", "tanh", "reshape"]
    assert len(kernels(after)) == 2
