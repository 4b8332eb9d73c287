"""Before and after IR, equal numbers, and refusals of PadOutputChannels."""

import numpy as np
import pytest
import tvm
from conv_modules import AVX512, apply, conv_relu, kernels, run
from tvm import relax, tirx
from tvm_ffi import structural_equal

from tvm_ext.hardware.targets import compiling_for
from tvm_ext.relay_passes.gemm_fusion import GemmFusion
from tvm_ext.relay_passes.graph_pass import recording
from tvm_ext.relay_passes.pad_output_channels import PadOutputChannels, lane_use

padded = apply(PadOutputChannels())


def conv_module(channels, layout=("NHWC", "HWIO"), groups=1, constant=True, batch=1):
    random = np.random.default_rng(0)
    inputs = 6 if groups == 1 else channels
    x_shape = (batch, 5, 7, inputs) if layout[0] == "NHWC" else (batch, inputs, 5, 7)
    weight = random.normal(size=(channels, inputs // groups, 3, 3)).astype("float32")
    if layout[1] == "HWIO":
        weight = np.ascontiguousarray(weight.transpose(2, 3, 1, 0))
    attrs = {"data_layout": layout[0], "kernel_layout": layout[1], "groups": groups}
    return conv_relu(relax.op.nn.conv2d, x_shape, weight, constant, padding=1, **attrs)


def matmul_module(shape, columns):
    random = np.random.default_rng(1)
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    w = relax.const(random.normal(size=(shape[-1], columns)).astype("float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            product = builder.emit(relax.op.matmul(x, w))
            result = builder.emit_output(relax.op.tanh(product))
        builder.emit_func_output(result)
    return builder.get()


def test_lane_use_of_a_count_that_divides_badly():
    assert lane_use(243, 16) == (4.5 / 16, 243 / 256)
    assert lane_use(17, 16) == (1 / 16, 17 / 32)
    # A vector and half of one, or two of the padded channels.
    assert lane_use(24, 16) == (12 / 16, 24 / 32)
    assert lane_use(64, 16) == (1.0, 1.0)
    assert lane_use(97, 16) == (1 / 16, 97 / 112)


def test_convolution_computes_whole_vectors_and_keeps_its_shape():
    before = conv_module(19)
    after = padded(before)
    assert kernels(after) == ["conv2d_padded"]
    weight = after["main"].body.blocks[0].bindings[0].value.args[1].fields[1]
    assert list(weight.ty.shape.values) == [3, 3, 6, 32]
    assert not weight.value.numpy()[..., 19:].any()
    assert list(map(int, after["main"].ret_ty.shape.values)) == [1, 5, 7, 19]


@pytest.mark.extended
@pytest.mark.parametrize("channels", [5, 19, 40])
def test_convolution_numbers(channels):
    x = np.random.default_rng(2).normal(size=(1, 5, 7, 6)).astype("float32")
    before = conv_module(channels)
    np.testing.assert_allclose(run(padded(before), x), run(before, x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(3, 8), (2, 3, 8)])
def test_matmul_numbers(shape):
    x = np.random.default_rng(3).normal(size=shape).astype("float32")
    before = matmul_module(shape, 17)
    after = padded(before)
    assert kernels(after) == ["matmul_padded"]
    np.testing.assert_allclose(run(after, x), run(before, x), rtol=1e-5, atol=1e-5)


@pytest.mark.extended
@pytest.mark.parametrize(
    ("rows", "columns", "found"),
    [
        ("n", 1008, ["matmul_padded"]),
        # Tiles of two vectors divide it, a cache holds it, or the schedule of known rows packs it.
        ("n", 1024, []),
        ("n", 112, []),
        (4, 1008, []),
    ],
)
def test_a_large_weight_of_an_open_product_is_read_in_order(rows, columns, found):
    size = tirx.Var("n", "int64") if rows == "n" else rows
    before = matmul_module((size, 600), columns)
    assert AVX512.l2_bytes < 4 * 600 * 1008
    assert [name for name in kernels(padded(before)) if "padded" in name] == found
    if found:
        x = np.random.default_rng(4).normal(size=(3, 600)).astype("float32")
        np.testing.assert_allclose(run(padded(before), x), run(before, x), rtol=1e-4, atol=1e-4)


def test_padded_kernel_and_activation_become_one():
    mod = padded(conv_module(19))
    with compiling_for(AVX512):
        mod = tvm.transform.Sequential(
            [
                relax.transform.LegalizeOps(),
                relax.transform.AnnotateTIROpPattern(),
                relax.transform.FuseOps(),
                relax.transform.FuseTIR(),
                relax.transform.DeadCodeElimination(),
            ]
        )(mod)
    assert len(kernels(mod)) == 1


@pytest.mark.extended
def test_symbolic_batch_stays_symbolic():
    before = conv_module(19, batch=tirx.Var("n", "int64"))
    after = padded(before)
    x = np.random.default_rng(4).normal(size=(3, 5, 7, 6)).astype("float32")
    np.testing.assert_allclose(run(after, x), run(before, x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "mod",
    [
        conv_module(32),
        conv_module(8),
        conv_module(19, layout=("NCHW", "OIHW")),
        conv_module(19, groups=19),
        conv_module(19, constant=False),
        matmul_module((3, 8), 48),
    ],
    ids=["full", "good enough", "channels first", "depthwise", "weight not constant", "matmul"],
)
def test_leaves_alone(mod):
    assert structural_equal(padded(mod), mod)


def test_shared_weight_is_padded_once_and_left_as_it_was():
    weight = relax.const(np.random.default_rng(5).normal(size=(8, 19)).astype("float32"))
    copy = weight.value.numpy().copy()
    x = relax.Var("x", relax.TensorType((3, 8), "float32"))
    y = relax.Var("y", relax.TensorType((5, 8), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, y]):
        with builder.dataflow():
            products = [builder.emit_output(relax.op.matmul(v, weight)) for v in (x, y)]
        builder.emit_func_output(relax.Tuple(products))
    after = padded(builder.get())
    bindings = after["main"].body.blocks[0].bindings
    first, second = (binding.value.args[1].fields[1] for binding in bindings)
    assert first.same_as(second)
    assert list(map(int, first.ty.shape)) == [8, 32]
    np.testing.assert_array_equal(weight.value.numpy(), copy)


def transposed_gemm_module(columns, batch=()):
    """``relu(transpose(x) @ W / 2 + c)``, which GemmFusion makes a function of."""
    random = np.random.default_rng(6)
    axes = [*range(len(batch)), len(batch) + 1, len(batch)]
    x = relax.Var("x", relax.TensorType((*batch, 8, 5), "float32"))
    c = relax.Var("c", relax.TensorType((columns,), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, c]):
        with builder.dataflow():
            transposed = builder.emit(relax.op.permute_dims(x, axes))
            weight = relax.const(random.normal(size=(8, columns)).astype("float32"))
            product = builder.emit(relax.op.matmul(transposed, weight))
            half = builder.emit(relax.op.multiply(product, relax.const(0.5)))
            total = builder.emit(relax.op.add(half, c))
            result = builder.emit_output(relax.op.nn.relu(total))
        builder.emit_func_output(result)
    return GemmFusion()(builder.get())


@pytest.mark.extended
@pytest.mark.parametrize("batch", [(), (2,)])
def test_function_of_gemm_fusion(batch):
    before = transposed_gemm_module(17, batch)
    after = padded(before)
    (name,) = kernels(before)
    assert kernels(after) == [f"{name}_padded"]
    assert structural_equal(padded(after), after)
    random = np.random.default_rng(7)
    x = random.normal(size=(*batch, 8, 5)).astype("float32")
    c = random.normal(size=17).astype("float32")
    np.testing.assert_allclose(run(after, x, c), run(before, x, c), rtol=1e-5, atol=1e-5)


def test_function_of_gemm_fusion_that_fills_vectors_is_left_alone():
    before = transposed_gemm_module(32)
    assert padded(before).same_as(before)


def test_second_run_changes_nothing_and_says_what_it_did():
    with recording() as decisions:
        once = padded(conv_module(19))
    assert [d.applied for d in decisions] == [True]
    assert "19 output channels computed as 32" in decisions[0].reason
    assert structural_equal(padded(once), once)


@pytest.mark.extended
@pytest.mark.parametrize(
    ("convolve", "x_shape", "w_shape", "options"),
    [
        (relax.op.nn.conv1d, (2, 9, 4), (3, 4, 37), {"strides": 2, "padding": 1}),
        (relax.op.nn.conv3d, (1, 5, 6, 7, 3), (3, 3, 1, 3, 37), {"strides": (1, 2, 1)}),
    ],
    ids=["conv1d", "conv3d"],
)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_other_ranks_and_types(convolve, x_shape, w_shape, options, dtype):
    data_layout = "N" + "DHW"[-(len(x_shape) - 2) :] + "C"
    kernel_layout = data_layout[1:-1] + "IO"
    random = np.random.default_rng(8)
    x = relax.Var("x", relax.TensorType(x_shape, dtype))
    weight = relax.const(random.normal(size=w_shape).astype(dtype), dtype)
    layouts = {"data_layout": data_layout, "kernel_layout": kernel_layout}
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(convolve(x, weight, **options, **layouts))
        builder.emit_func_output(result)
    before = builder.get()
    after = padded(before)
    assert len(kernels(after)) == 1
    values = random.normal(size=x_shape).astype(dtype)
    (got,), (wanted,) = run(after, values), run(before, values)
    assert got.dtype == wanted.dtype
    np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-3)
