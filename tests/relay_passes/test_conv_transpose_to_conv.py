"""Forms, numbers and refusals of ConvTransposeToConv."""

import numpy as np
import pytest
import tvm
from conv_modules import (
    AVX512,
    apply,
    bindings,
    conv_transpose,
    draw,
    kernels,
    module,
    operators,
    run,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from side_by_side import Rewrite, assert_all_same
from thoroughness import DRAWS
from tvm import relax, tirx
from tvm_ffi import structural_equal

from tvm_ext.hardware.targets import compiling_for, resolve_target
from tvm_ext.relay_passes.cancel_transposes import CancelTransposes
from tvm_ext.relay_passes.conv_bn_relu_fold import ConvBnReluFold
from tvm_ext.relay_passes.conv_transpose_to_conv import ConvTransposeToConv, UpsampledAxis
from tvm_ext.relay_passes.fold_constant_calls import FoldConstantCalls
from tvm_ext.relay_passes.graph_pass import recording
from tvm_ext.relay_passes.layout_planning import LayoutPlanning
from tvm_ext.relay_passes.sink_reshapes import SinkReshapes
from tvm_ext.relay_passes.spans import origins_of

nn = relax.op.nn
rewrite = apply(ConvTransposeToConv())


def transposed(x, weight, **attrs):
    return getattr(nn, f"conv{weight.ndim - 2}d_transpose")(x, relax.const(weight), **attrs)


def one(x_shape, w_shape, dtype="float32", **attrs):
    weight = draw(*w_shape, dtype=dtype, seed=1)
    return module(x_shape, lambda emit, x: [transposed(x, weight, **attrs)], dtype)


def check(x_shape, w_shape, **attrs):
    """The rewritten module, after comparing its numbers with the definition."""
    rank = len(x_shape) - 2
    after = rewrite(one(x_shape, w_shape, **attrs))
    assert not any(name.endswith("d_transpose") for name in operators(after))
    x, weight = draw(*x_shape), draw(*w_shape, seed=1)
    given_attrs = {
        name: list(np.broadcast_to(attrs.get(name, default), count))
        for name, default, count in (
            ("strides", 1, rank),
            ("output_padding", 0, rank),
            ("dilation", 1, rank),
        )
    }
    padding = attrs.get("padding", 0)
    both = padding if np.size(padding) == 2 * rank else list(np.broadcast_to(padding, rank)) * 2
    wanted = conv_transpose(x, weight, padding=both, groups=attrs.get("groups", 1), **given_attrs)
    np.testing.assert_allclose(run(after, x)[0], wanted, rtol=1e-4, atol=1e-5)
    return after


def test_kernel_that_writes_every_output_to_its_place():
    after = check((1, 5, 3, 4), (5, 16, 2, 2), strides=(2, 2))
    assert operators(after) == ["permute_dims", "call_tir", "reshape", "permute_dims"]
    assert kernels(after) == ["conv2d_transpose"]
    made = bindings(after)[1].var.ty
    assert list(map(int, made.shape)) == [1, 3, 2, 4, 2, 1, 16]


@pytest.mark.parametrize(
    ("kernel", "stride", "before", "taps", "shift"),
    [(4, 2, 1, 2, 1), (6, 2, 2, 3, 0), (3, 2, 1, 2, 0), (8, 2, 3, 4, 1), (16, 8, 4, 3, 0)],
)
def test_phases_start_where_they_have_weights(kernel, stride, before, taps, shift):
    length = 16
    axis = UpsampledAxis(length, stride * length, kernel, stride, 1, before).shifted()
    assert (axis.taps, axis.shift) == (taps, shift)
    x, weight = draw(length), draw(kernel)
    padded = np.pad(x, axis.padding)
    table = axis.weight_table()
    found = [
        sum(
            padded[m + tap + axis.skipped + axis.shift * phase] * weight[table[phase, tap]]
            for tap in range(axis.taps)
            if table[phase, tap] >= 0
        )
        for m in range(axis.positions)
        for phase in range(stride)
    ]
    spread = np.zeros(stride * length + kernel)
    for i, value in enumerate(x):
        spread[stride * i : stride * i + kernel] += value * weight
    np.testing.assert_allclose(found, spread[before : before + len(found)], rtol=1e-5, atol=1e-6)


def test_kernel_of_phases_that_all_have_weights_has_no_branch():
    after = check((1, 40, 6, 6), (40, 48, 4, 4), strides=(2, 2), padding=(1, 1))
    (kernel,) = (func for func in after.functions.values() if isinstance(func, tirx.PrimFunc))
    assert list(map(int, kernel.params[1].shape)) == [2, 2, 2, 2, 40, 1, 48]
    assert "if_then_else" not in str(kernel.body.script().split("conv_transpose")[-1])


def test_phases_and_channels_are_joined_where_that_fills_vectors():
    after = check((1, 24, 8, 8), (24, 24, 2, 2), strides=(2, 2))
    made = bindings(after)[1].var.ty
    assert list(map(int, made.shape)) == [1, 8, 2, 8, 48]


@pytest.mark.extended
def test_phases_as_channels_where_there_are_few_channels():
    after = check((1, 8, 32, 32), (8, 1, 4, 4), strides=(2, 2), padding=(1, 1))
    weight = draw(8, 1, 4, 4, seed=1)
    # Phase f of the outputs that are not cut off reads taps f + 2 and f, in this order.
    packed = np.stack([[weight[:, 0, f::2, g::2][:, ::-1, ::-1] for g in (0, 1)] for f in (0, 1)])

    def expected(emit, x):
        conv = emit(nn.conv2d(x, relax.const(packed.reshape(4, 8, 2, 2)), padding=1))
        parts = emit(relax.op.reshape(conv, [1, 1, 2, 2, 1, 33, 33]))
        moved = emit(relax.op.permute_dims(parts, [0, 1, 4, 5, 2, 6, 3]))
        image = emit(relax.op.reshape(moved, [1, 1, 66, 66]))
        return [relax.op.strided_slice(image, [2, 3], [1, 1], [65, 65])]

    wanted = module((1, 8, 32, 32), expected)
    assert operators(after) == operators(wanted)
    x = draw(1, 8, 32, 32)
    np.testing.assert_allclose(run(after, x)[0], run(wanted, x)[0], atol=1e-5)
    got = next(b.value for b in bindings(after) if b.value.op.name == "relax.nn.conv2d")
    np.testing.assert_array_equal(got.args[1].value.numpy(), packed.reshape(4, 8, 2, 2))


def test_without_stride_it_is_a_convolution_with_the_weights_flipped():
    weight = draw(4, 3, 3, 3, seed=1)
    after = check((1, 4, 5, 6), (4, 3, 3, 3), padding=(1, 1))
    turned = np.ascontiguousarray(weight.transpose(1, 0, 2, 3)[..., ::-1, ::-1])
    expected = module(
        (1, 4, 5, 6),
        lambda emit, x: [
            nn.conv2d(x, relax.const(turned), padding=1, dilation=1, out_dtype="float32")
        ],
    )
    assert structural_equal(after["main"], expected["main"])


@pytest.mark.extended
@pytest.mark.parametrize(
    ("x_shape", "w_shape", "attrs"),
    [
        ((2, 4, 5), (4, 3, 4), {"strides": 3, "padding": (1, 2), "output_padding": 1}),
        ((1, 4, 7), (4, 2, 3), {"strides": 2, "groups": 2, "dilation": 2}),
        ((1, 3, 5, 3), (3, 7, 3, 3), {"strides": (2, 2), "output_padding": (1, 1), "padding": 1}),
        ((1, 3, 4, 3), (3, 2, 1, 1), {"strides": (2, 3)}),
        ((1, 4, 4, 4), (4, 1, 4, 4), {"strides": (2, 2), "padding": 1, "groups": 4}),
        ((1, 4, 3, 5), (4, 17, 3, 2), {"strides": (1, 2), "dilation": (2, 1)}),
        ((1, 4, 5, 5), (4, 3, 3, 3), {"padding": (4, 3, 0, 0)}),
        ((1, 2, 2, 3, 2), (2, 3, 2, 3, 2), {"strides": (2, 1, 3), "padding": (0, 1, 0)}),
    ],
    ids=["1d", "1d groups", "3x3", "holes", "depthwise", "mixed", "cropped", "3d"],
)
def test_numbers(x_shape, w_shape, attrs):
    check(x_shape, w_shape, **attrs)


@pytest.mark.extended
@given(st.data())
@settings(max_examples=6 * DRAWS, deadline=None)
def test_numbers_of_any_attributes(data):
    stride, dilation = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 2))
    groups, outputs = data.draw(st.sampled_from([(1, 1), (1, 16), (2, 3)]))
    kernel, length = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4))
    full = (length - 1) * stride + (kernel - 1) * dilation + 1
    before = data.draw(st.integers(0, min(2, full - 1)))
    after = data.draw(st.integers(0, min(2, full - 1 - before)))
    check(
        (1, 4, length),
        (4, outputs, kernel),
        strides=stride,
        padding=(before, after),
        output_padding=data.draw(st.integers(0, stride - 1)),
        dilation=dilation,
        groups=groups,
    )


@pytest.mark.extended
def test_integers_are_exact():
    mod = one((1, 3, 4, 5), (3, 16, 3, 3), "int32", strides=(2, 2), out_dtype="int32")
    x = draw(1, 3, 4, 5, dtype="int32")
    np.testing.assert_array_equal(run(rewrite(mod), x)[0], run(mod, x)[0])


@pytest.mark.extended
def test_batch_norm_folds_first_and_the_bias_joins_the_kernel():
    weight = draw(5, 16, 2, 2, seed=1)
    statistics = [relax.const(draw(16, seed=n)) for n in (2, 3, 4)]
    variance = relax.const(np.abs(draw(16, seed=5)) + np.float32(0.5))

    def body(emit, x):
        y = emit(transposed(x, weight, strides=(2, 2)))
        y = emit(nn.batch_norm(y, *statistics, variance, axis=1, training=False))
        return [nn.relu(emit(relax.TupleGetItem(y, 0)))]

    before = module((1, 5, 3, 4), body)
    with recording() as decisions:
        after = apply(ConvBnReluFold(), FoldConstantCalls(), ConvTransposeToConv())(before)
    assert [d.pass_name for d in decisions if d.applied][:2] == [
        "ConvBnReluFold",
        "ConvTransposeToConv",
    ]
    x = draw(1, 5, 3, 4)
    plain = relax.transform.DecomposeOpsForInference()(before)
    np.testing.assert_allclose(run(after, x)[0], run(plain, x)[0], rtol=1e-4, atol=1e-5)


def test_origin_stays_with_all_that_an_operator_becomes():
    after = rewrite(
        module(
            (1, 5, 3, 4),
            lambda emit, x: [nn.relu(emit(transposed(x, draw(5, 16, 2, 2), strides=(2, 2))))],
        )
    )
    names = [origins_of(b.var) for b in bindings(after)]
    assert names[:4] == [("node0",)] * 4


def test_two_users_of_one_weight_and_of_a_result():
    weight = relax.const(draw(4, 4, 2, 2, seed=1))
    copy = weight.value.numpy().copy()

    def body(emit, x):
        small = emit(nn.conv2d_transpose(x, weight, strides=(2, 2)))
        large = emit(nn.conv2d_transpose(small, weight, strides=(2, 2)))
        return [relax.op.add(small, small), large]

    before = module((1, 4, 3, 5), body)
    after = rewrite(before)
    x = draw(1, 4, 3, 5)
    for got, wanted in zip(run(after, x), run(before, x), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(weight.value.numpy(), copy)


def variable_weight():
    weight = relax.Var("w", relax.TensorType((4, 4, 2, 2), "float32"))
    return module(
        (1, 4, 3, 3),
        lambda emit, x: [nn.conv2d_transpose(x, weight, strides=(2, 2))],
        extra=[weight],
    )


@pytest.mark.extended
@pytest.mark.parametrize(
    ("shape", "weight", "attrs"),
    [((5, 3, 4), (5, 16, 2, 2), {}), ((8, 32, 32), (8, 1, 4, 4), {"padding": (1, 1)})],
    ids=["every output to its place", "phases as channels"],
)
def test_batch_of_any_size(shape, weight, attrs):
    mod = one((tirx.Var("n", "int64"), *shape), weight, strides=(2, 2), **attrs)
    known = operators(rewrite(one((1, *shape), weight, strides=(2, 2), **attrs)))
    after = rewrite(mod)
    assert operators(after) == known
    for batch in (1, 3):
        x = draw(batch, *shape)
        np.testing.assert_allclose(run(after, x)[0], run(mod, x)[0], rtol=1e-4, atol=1e-5)


OF_ANY_SIZE = [
    ((4, 8, 2, 2), {"strides": (2, 2)}),
    ((4, 8, 3, 3), {"strides": (2, 2), "padding": 1, "output_padding": 1}),
    ((4, 8, 4, 4), {"strides": (2, 2), "padding": 1}),
    ((4, 1, 4, 4), {"strides": (2, 2), "padding": 1, "groups": 4}),
    ((4, 2, 3, 3), {"padding": 1}),
    ((4, 2, 2, 2), {"strides": (3, 3)}),
]


@pytest.mark.extended
def test_images_of_any_size():
    rewrites = {}
    for case in OF_ANY_SIZE:
        weight, attrs = case
        mod = one((1, 4, tirx.Var("h", "int64"), tirx.Var("w", "int64")), weight, **attrs)
        after = rewrite(mod)
        assert not any(name.endswith("_transpose") for name in operators(after)), case
        # A size that is not provably the one before leaves a sum with another value unscheduled.
        assert structural_equal(after["main"].ret_ty, mod["main"].ret_ty, map_free_vars=True), case
        images = [[draw(1, 4, *sides)] for sides in ((1, 1), (5, 8))]
        rewrites[str(case)] = Rewrite(mod, after, images)
    assert_all_same(rewrites, rtol=1e-4, atol=1e-5)


REFUSED = {
    "not constant": variable_weight(),
    "layout": one(
        (1, 3, 3, 4), (4, 4, 2, 2), strides=(2, 2), data_layout="NHWC", kernel_layout="IOHW"
    ),
    "empty": one((0, 4, 3, 3), (4, 4, 2, 2), strides=(2, 2)),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_leaves_alone_and_says_why(reason):
    with recording() as decisions:
        after = rewrite(REFUSED[reason])
    assert structural_equal(after, REFUSED[reason])
    assert [(d.applied, reason in d.reason) for d in decisions] == [(False, True)]


def test_other_targets_are_left_alone():
    mod = one((1, 4, 3, 3), (4, 4, 2, 2), strides=(2, 2))
    with compiling_for(resolve_target("mesh16")):
        assert ConvTransposeToConv()(mod).same_as(mod)


def test_a_gpu_multiplies_no_zeros_either():
    mod = one((1, 4, 3, 3), (4, 4, 3, 3), strides=(2, 2))
    with resolve_target("cuda").tvm_target():
        after = ConvTransposeToConv()(mod)
    assert "nn.conv2d_transpose" not in after["main"].script()
    # A branch inside of the sum would hide that it is a matmul.
    (kernel,) = (f for f in after.functions.values() if isinstance(f, tvm.tirx.PrimFunc))
    sums = kernel.script().split('sblock("conv_transpose")', 1)[1]
    assert "if_then_else" not in sums


@pytest.mark.extended
def test_bias_and_activation_become_one_kernel_with_it():
    def body(emit, x):
        turned = emit(transposed(x, draw(16, 24, 2, 2, seed=1), strides=(2, 2)))
        return [nn.relu(emit(relax.op.add(turned, relax.const(draw(1, 24, 1, 1)))))]

    def whole(emit, x):
        image = emit(nn.conv2d(x, relax.const(draw(16, 16, 3, 3, seed=2)), padding=1))
        (y,) = body(emit, image)
        return [nn.conv2d(emit(y), relax.const(draw(16, 24, 3, 3, seed=3)), padding=1)]

    before = module((1, 16, 32, 32), whole)
    planned = apply(ConvTransposeToConv(), LayoutPlanning(), CancelTransposes(), SinkReshapes())(
        before
    )
    names = operators(planned)
    first = names.index("call_tir")
    assert names[first : first + 4] == ["call_tir", "add", "nn.relu", "reshape"]
    assert names.count("permute_dims") == 2
    with compiling_for(AVX512):
        fused = tvm.transform.Sequential(
            [
                relax.transform.LegalizeOps(),
                relax.transform.AnnotateTIROpPattern(),
                relax.transform.FuseOps(),
                relax.transform.FuseTIR(),
                relax.transform.DeadCodeElimination(),
            ]
        )(planned)
    assert "fused_conv2d_transpose_add_relu" in kernels(fused)
    x = draw(1, 16, 32, 32)
    np.testing.assert_allclose(run(planned, x)[0], run(before, x)[0], rtol=1e-4, atol=1e-4)
