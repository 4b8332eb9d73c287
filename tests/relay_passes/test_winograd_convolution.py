"""Before and after IR, numbers, and refusals of WinogradConvolution."""

import numpy as np
import pytest
import tvm
from conv_modules import AVX512, kernels, run
from hypothesis import given, settings
from hypothesis import strategies as st
from thoroughness import DRAWS
from tvm import relax, te, tirx
from tvm_ffi import structural_equal
from unoptimised import built

from tvm_ext.hardware.targets import compiling_for
from tvm_ext.relay_passes import expressions
from tvm_ext.relay_passes.graph_pass import recording
from tvm_ext.relay_passes.winograd_convolution import WinogradConvolution
from tvm_ext.relay_passes.winograd_cost import WinogradWork
from tvm_ext.relay_passes.winograd_transforms import WinogradForm, transforms


def conv_module(
    side=56, inputs=64, outputs=64, kernel=3, batch=1, constant=True, dtype="float32", **attrs
):
    random = np.random.default_rng(0)
    x = relax.Var("x", relax.TensorType((batch, side, side, inputs), dtype))
    groups = attrs.get("groups", 1)
    taps = kernel if isinstance(kernel, tuple) else (kernel, kernel)
    weights = random.normal(size=(*taps, inputs // groups, outputs)).astype(dtype)
    w = relax.const(weights) if constant else relax.Var("w", relax.TensorType(weights.shape, dtype))
    builder = relax.BlockBuilder()
    with builder.function("main", [x] if constant else [x, w]):
        with builder.dataflow():
            conv = builder.emit(
                relax.op.nn.conv2d(
                    x,
                    w,
                    padding=attrs.pop("padding", 1),
                    data_layout="NHWC",
                    kernel_layout="HWIO",
                    **attrs,
                )
            )
            result = builder.emit_output(relax.op.nn.relu(conv))
        builder.emit_func_output(result)
    return builder.get()


def rewritten(mod):
    with compiling_for(AVX512):
        return tvm.transform.Sequential([WinogradConvolution()])(mod)


def direct(x, w, padding):
    """The convolution in float64."""
    top, left, bottom, right = padding
    wide = np.pad(x.astype("float64"), [(0, 0), (top, bottom), (left, right), (0, 0)])
    rows, columns = w.shape[:2]
    height, width = wide.shape[1] - rows + 1, wide.shape[2] - columns + 1
    return sum(
        wide[:, i : i + height, j : j + width] @ w[i, j].astype("float64")
        for i in range(rows)
        for j in range(columns)
    )


@pytest.mark.extended
def test_rewritten_once_with_equal_numbers():
    mod = conv_module()
    after = rewritten(mod)
    assert kernels(after) == ["winograd_conv2d"]
    assert relax.analysis.check_well_formed(after)
    assert structural_equal(rewritten(after), after)
    x = np.random.default_rng(1).normal(size=(1, 56, 56, 64)).astype("float32")
    (want,), (found,) = run(mod, x), run(after, x)
    assert np.abs(found - want).max() < 2e-5 * np.abs(want).max()


def test_what_follows_joins_the_kernel():
    with compiling_for(AVX512):
        steps = [
            WinogradConvolution(),
            relax.transform.LegalizeOps(),
            relax.transform.AnnotateTIROpPattern(),
            relax.transform.FuseOps(),
            relax.transform.FuseTIR(),
        ]
        fused = tvm.transform.Sequential(steps)(conv_module())
    assert kernels(fused) == ["fused_winograd_conv2d_relu"]


def test_shared_weights_are_transformed_once():
    mod = conv_module()
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 56, 56, 64), "float32"))
    weights = relax.const(np.ones((3, 3, 64, 64), "float32"))
    attrs = {"padding": 1, "data_layout": "NHWC", "kernel_layout": "HWIO"}
    with builder.function("main", [x]):
        with builder.dataflow():
            first = builder.emit(relax.op.nn.conv2d(x, weights, **attrs))
            second = builder.emit_output(relax.op.nn.conv2d(first, weights, **attrs))
        builder.emit_func_output(second)
    after = rewritten(builder.get())
    assert kernels(after) == ["winograd_conv2d"]
    constants = {hash(b.value.args[1].fields[1]) for b in after["main"].body.blocks[0].bindings}
    assert len(constants) == 1
    assert kernels(mod) == []


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"constant": False}, "not constant"),
        ({"dtype": "float16"}, "float16"),
        ({"side": 4, "inputs": 512, "outputs": 512}, "modelled"),
        ({"inputs": 3}, "modelled"),
    ],
)
def test_near_matches_are_refused_with_the_reason(changes, reason):
    mod = conv_module(**changes)
    with recording() as log:
        assert structural_equal(rewritten(mod), mod)
    (refusal,) = log
    assert not refusal.applied
    assert reason in refusal.reason


@pytest.mark.extended
def test_a_batch_that_a_run_decides_is_one_and_eight():
    """Weights that are too large for one item pay for eight; of images of any size one counts."""
    large = {"side": 4, "inputs": 256, "outputs": 256}
    taken = []
    for batch in (1, 8, tirx.Var("n", "int64")):
        before = conv_module(batch=batch, **large)
        taken.append(not structural_equal(rewritten(before), before))
    assert taken == [False, True, True]
    side = tirx.Var("side", "int64")
    anywhere = conv_module(batch=tirx.Var("n", "int64"), **{**large, "side": side})
    sizes = {"n": 1, "side": 4}
    token = expressions._nominal.set(sizes)
    try:
        assert structural_equal(rewritten(anywhere), anywhere)
    finally:
        expressions._nominal.reset(token)


def test_sizes_of_a_padded_image_are_written_as_the_operator_has_them():
    """FuseTIR compares them as they stand, and failed on ``side + 1 + 1 - 2`` beside ``side``."""
    side = tirx.Var("side", "int64")
    x = relax.Var("x", relax.TensorType((1, side, side, 64), "float32"))
    weights = relax.const(np.ones((3, 3, 64, 64), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            padded = builder.emit(relax.op.nn.pad(x, [0, 0, 1, 1, 1, 1, 0, 0]))
            attrs = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
            result = builder.emit_output(relax.op.nn.conv2d(padded, weights, **attrs))
        builder.emit_func_output(result)
    before = builder.get()
    after = rewritten(before)
    assert len(kernels(after)) == 1
    assert structural_equal(after["main"].ret_ty, before["main"].ret_ty, map_free_vars=True)


def of_integers(layout: str, weight: float) -> tvm.IRModule:
    builder = relax.BlockBuilder()
    shape = (1, 56, 56, 64) if layout == "NHWC" else (1, 64, 56, 56)
    x = relax.Var("x", relax.TensorType(shape, "int16"))
    weights = relax.const(np.full((3, 3, 64, 64), weight, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            wide = builder.emit(relax.op.astype(x, "float32"))
            if layout == "NCHW":
                wide = builder.emit(relax.op.permute_dims(wide, [0, 2, 3, 1]))
            attrs = {"padding": 1, "data_layout": "NHWC", "kernel_layout": "HWIO"}
            result = builder.emit_output(relax.op.nn.conv2d(wide, weights, **attrs))
        builder.emit_func_output(result)
    return builder.get()


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_sums_of_integers_stay_exact(layout):
    """Transforms would round them."""
    mod = of_integers(layout, weight=3)
    with recording() as log:
        assert structural_equal(rewritten(mod), mod)
    assert "whole numbers" in log[0].reason
    # An image that was stored as integers, and weights as they are learned.
    assert not structural_equal(rewritten(of_integers(layout, weight=0.3)), mod)


@pytest.mark.parametrize(
    "changes", [{"strides": 2}, {"dilation": 2}, {"groups": 4}, {"kernel": 9}, {"kernel": 1}]
)
def test_other_convolutions_are_left_without_a_word(changes):
    mod = conv_module(**changes)
    with recording() as log:
        assert structural_equal(rewritten(mod), mod)
    assert not log


FORMS = [
    WinogradForm((4, 4), (3, 3)),
    WinogradForm((2, 2), (5, 5)),
    WinogradForm((4, 1), (3, 1)),
    WinogradForm((1, 4), (1, 5)),
    WinogradForm((2, 1), (7, 1)),
]


@settings(max_examples=5 * DRAWS, deadline=None)
@given(
    st.sampled_from(FORMS),
    st.integers(1, 2),
    st.integers(1, 9),
    st.integers(1, 9),
    st.integers(1, 5),
    st.integers(1, 5),
    st.tuples(*(st.integers(0, 2) for _ in range(4))),
)
def test_any_size_and_padding(form, batch, height, width, inputs, outputs, padding):
    if height + padding[0] + padding[2] < form.taps[0]:
        return
    if width + padding[1] + padding[3] < form.taps[1]:
        return
    random = np.random.default_rng(0)
    x = random.normal(size=(batch, height, width, inputs)).astype("float32")
    w = random.normal(size=(*form.taps, inputs, outputs)).astype("float32")
    u = form.transformed_weights(w, outputs + 3)
    data, weights = te.placeholder(x.shape, "float32"), te.placeholder(u.shape, "float32")
    result = form.convolution(data, weights, padding, outputs)
    kernel = built({"main": te.create_prim_func([data, weights, result])})["main"]
    want = direct(x, w, padding)
    found = tvm.runtime.tensor(np.zeros(want.shape, "float32"))
    kernel(tvm.runtime.tensor(x), tvm.runtime.tensor(u), found)
    assert np.abs(found.numpy() - want).max() <= 5e-5 * max(np.abs(want).max(), 1.0)


@pytest.mark.parametrize("outputs", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("taps", [1, 2, 3, 5, 7])
def test_transforms_are_exact_in_rational_numbers(outputs, taps):
    if outputs + taps > 9:
        with pytest.raises(ValueError, match="needs"):
            transforms(outputs, taps)
        return
    matrices = transforms(outputs, taps)
    for tap in range(taps):
        for position in range(matrices.inputs):
            products = [
                row[tap] * column[position]
                for row, column in zip(matrices.weight, matrices.input, strict=True)
            ]
            for output, row in enumerate(matrices.output):
                total = sum(a * p for a, p in zip(row, products, strict=True))
                assert total == (position == output + tap)


def test_work_counts_cut_tiles():
    work = WinogradWork.of(WinogradForm((4, 4), (3, 3)), 2, (5, 8), 16, 32)
    assert work.tiles == 2 * 2 * 2
    assert work.weight_bytes == 4 * 36 * 16 * 32


@pytest.mark.parametrize(("kernel", "name"), [((3, 1), "F(4x1, 3x1)"), ((1, 5), "F(1x4, 1x5)")])
def test_rows_and_columns_of_taps(kernel, name):
    with recording() as log:
        assert kernels(rewritten(conv_module(kernel=kernel, padding=0))) == ["winograd_conv2d"]
    assert log[0].reason.startswith(name)
