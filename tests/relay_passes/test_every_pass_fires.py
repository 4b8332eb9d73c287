"""Every registered graph pass has a module that it changes, for each machine it is for.

A pass that never fires passes all tests of what holds for every pass. The modules are those of
``test_every_pass`` and those below, which are made for one pass each.
"""

from collections.abc import Callable

import numpy as np
import pytest
import tvm
from every_pass_modules import ANNOTATED, MODULES, RUNS_AFTER, build, const, rand, run_passes
from tvm import relax
from tvm_ffi import structural_equal

from tvm_ext.hardware.targets import compiling_for, resolve_target
from tvm_ext.passes import registry
from tvm_ext.relay_passes.spans import bindings_of, origins_of, write_origins

op, nn = relax.op, relax.op.nn
MACHINES = {
    # What MixedPrecision is for; other passes do not ask.
    "cpu": resolve_target("avx512-amx").with_threads(1).with_precision("bfloat16"),
    "cuda": resolve_target("nvidia-h200"),
    "wafer": resolve_target("wse3"),
}

# Backends for which a pass has nothing to do; the passes' own words say why ("Leaves alone").
# These do nothing unless a session has named the states and logits of its model (KeepStateInPlace
# and LastPositionOnly), or the model is for several devices (SpmdPartition).
NOT_FOR = {
    "cpu": (
        *("FreshOutputs", "FuseCastIntoSoftmax", "KeepStateInPlace", "LastPositionOnly"),
        "SpmdPartition",
    ),
    "cuda": (
        *("FlattenPointwise", "PadOutputChannels", "PadOutputWidth", "WinogradConvolution"),
        *("FakeQuantizationToInteger", "FuseDequantizeMatmul", "ZeroPointCompensation"),
        *("ActivationLookupTables", "CompressWeights", "MinMaxFusion", "MixedPrecision"),
        *("MultiOutputFusion", "FuseHeadsIntoAttention", "KeepStateInPlace"),
        *("LastPositionOnly", "SpmdPartition"),
    ),
    "wafer": (
        *("AccumulateInFloat32", "AttentionFusion", "ConvTransposeToConv"),
        *("FlattenPointwise", "FuseCastIntoSoftmax", "GroupedConvolution"),
        *("FakeQuantizationToInteger", "FuseDequantizeMatmul"),
        *("PadOutputChannels", "PadOutputWidth"),
        *("WinogradConvolution", "ZeroPointCompensation"),
        *("ActivationLookupTables", "CompressWeights", "MinMaxFusion", "MixedPrecision"),
        *("MultiOutputFusion", "FuseHeadsIntoAttention", "KeepStateInPlace"),
        *("LastPositionOnly", "SpmdPartition"),
    ),
}


def cast_product(emit, x):
    wide = emit(op.astype(x, "float32"))
    return [emit(op.matmul(wide, emit(op.astype(const_half(64, 32), "float32"))))]


def dequantized_matmul(emit, x):
    data = emit(op.multiply(emit(op.astype(x, "float32")), relax.const(np.float32(0.1))))
    integers = relax.const(np.round(50 * rand(64, 32)).clip(-100, 100).astype(np.float32))
    weights = emit(op.multiply(integers, relax.const(np.float32(0.01))))
    return [emit(op.matmul(data, weights))]


def weights_in_blocks(emit, x):
    integers = relax.const(np.round(5 * rand(64, 32)).clip(-8, 7).astype(np.int8))
    scale = emit(op.repeat(relax.const(rand(2, 32)), 32, 0))
    weights = emit(op.multiply(emit(op.astype(integers, "float32")), scale))
    return [emit(op.matmul(x, weights))]


def rounded_in_blocks(emit, x):
    blocks = emit(op.reshape(x, (16, 2, 32)))
    most = emit(op.max(emit(op.abs(blocks)), axis=[-1], keepdims=True))
    least = emit(op.maximum(most, relax.const(np.float32(1e-30))))
    factor = emit(op.divide(relax.const(np.float32(127)), least))
    numbers = emit(op.round(emit(op.multiply(blocks, factor))))
    steps = emit(op.multiply(most, relax.const(np.float32(1 / 127))))
    rounded = emit(op.reshape(emit(op.multiply(numbers, steps)), (16, 64)))
    return weights_in_blocks(emit, rounded)


def halves_of_a_model(emit, x):
    """More of them than a core's L2 holds."""
    weights = rand(1024, 1024).astype("float16").astype("float32")
    return [emit(op.matmul(x, relax.const(weights)))]


def quantized_sigmoid(emit, x):
    real = emit(op.multiply(emit(op.astype(x, "float32")), relax.const(np.float32(0.1))))
    steps = emit(op.multiply(emit(op.sigmoid(real)), relax.const(np.float32(255))))
    return [emit(op.astype(emit(op.clip(emit(op.round(steps)), 0, 255)), "uint8"))]


def extrema(emit, x):
    return [emit(op.subtract(emit(op.max(x)), emit(op.min(x))))]


def const_half(*shape: int) -> relax.Expr:
    return relax.const(rand(*shape).astype("float16"))


def spread_window(emit, x):
    return [emit(nn.conv2d(x, const(4, 3, 3, 3), padding=12, dilation=12))]


def enlarged(emit, x):
    image = op.image.resize2d(x, relax.ShapeExpr([28, 36]), layout="NCHW", method="linear")
    return [emit(nn.conv2d(emit(image), const(2, 3, 1, 1)))]


def cast_softmax(emit, x):
    return [emit(nn.softmax(emit(op.astype(x, "float32")), -1))]


def softmax_in_parts(emit, x):
    exponential = emit(op.exp(emit(op.subtract(x, emit(op.max(x, -1, keepdims=True))))))
    return [emit(op.divide(exponential, emit(op.sum(exponential, -1, keepdims=True))))]


def channels_last(emit, x):
    weight = const(3, 3, 64, 64)
    return [emit(nn.conv2d(x, weight, padding=1, data_layout="NHWC", kernel_layout="HWIO"))]


def large_convolution(emit, x):
    y = emit(nn.relu(emit(nn.conv2d(x, const(64, 64, 3, 3), padding=1))))
    return [emit(nn.conv2d(y, const(64, 64, 3, 3), padding=1))]


def large_matmul(emit, x):
    return [emit(op.matmul(x, const(256, 512)))]


def many_convolutions(emit, x):
    """On a GPU one alone gains less than the conversions cost."""
    weight, y = const_half(64, 64, 3, 3), x
    for _ in range(8):
        y = emit(nn.relu(emit(nn.conv2d(y, weight, padding=1))))
    return [y]


def groups_of_channels(emit, x):
    return [emit(nn.conv2d(x, const(64, 16, 3, 3), padding=1, groups=4))]


def reshaped_convolution(emit, x):
    y = emit(op.reshape(emit(nn.conv2d(x, const(4, 3, 1, 1))), [1, 2, 2, 7, 9]))
    return [emit(nn.relu(y))]


def image_to_sequence(emit, x):
    y = emit(op.add(emit(op.permute_dims(x, [0, 3, 1, 2])), const(1, 4, 1, 1)))
    return [emit(op.permute_dims(emit(op.reshape(y, [1, 4, 63])), [0, 2, 1]))]


def integer_matmul(emit, x):
    """Of numbers as 8-bit steps, less their zero point."""
    steps = emit(op.astype(emit(op.astype(x, "uint8")), "int16"))
    centred = emit(op.subtract(steps, relax.const(7, "int16")))
    weights = relax.const(rand(64, 32, dtype="int16"), "int16")
    return [emit(op.matmul(centred, weights, out_dtype="int32"))]


def integer_scores(emit, x):
    """Products of two results of 8 bits."""
    wide = emit(op.astype(emit(op.astype(x, "uint8")), "int16"))
    return [emit(op.matmul(wide, emit(op.permute_dims(wide)), out_dtype="int32"))]


def sorted_rows(emit, x):
    return [emit(op.sort(x, axis=-1))]


def drawn(emit, x):
    uniform, index = relax.const(rand(4, 1)), relax.const(np.arange(4)[:, None], "int64")
    return [emit(op.multinomial_from_uniform(x, uniform, index, dtype="int64"))]


def every_other(emit, x):
    """Computed sizes, those of a pool with strides."""
    return [emit(nn.relu(emit(nn.max_pool2d(x, (3, 3), strides=(2, 2), padding=(1, 1)))))]


def projected_attention(emit, x):
    """Query, key and value of two heads, of one input."""
    cut = [emit(op.reshape(emit(op.matmul(x, const(32, 16))), [2, 6, 2, 8])) for _ in range(3)]
    q, k, v = (emit(op.permute_dims(one, [0, 2, 1, 3])) for one in cut)
    scores = emit(op.matmul(q, emit(op.permute_dims(k, [0, 1, 3, 2]))))
    return [emit(op.matmul(emit(nn.softmax(scores, -1)), v))]


def with_no_rows(emit, x):
    return [emit(op.concat([x, relax.const(np.zeros((0, 6), np.float32))], 0))]


def half_with_origins() -> tvm.IRModule:
    """Of two bindings one has an origin."""
    mod = build([4, 6], lambda emit, x: [emit(op.tanh(emit(op.exp(x))))])
    return write_origins(mod, {bindings_of(mod["main"])[0].var: ("Exp_0",)})


def neutral_factor(emit, x):
    return [emit(op.tanh(emit(op.multiply(x, relax.const(np.float32(1))))))]


def sum_and_difference(emit, x):
    y = relax.const(rand(4, 6))
    return [emit(op.add(x, y)), emit(op.subtract(x, y))]


H, W = (tvm.tirx.Var(name, "int64") for name in "hw")
MADE_FOR: dict[str, Callable[[], list[tvm.IRModule]]] = {
    "AccumulateInFloat32": lambda: [
        build([16, 64], cast_product, "float16"),
        build([16, 64], integer_scores),
    ],
    "CorrelatedValuePropagation": lambda: [
        build([4, 6], lambda emit, x: [emit(nn.relu(emit(nn.softmax(x, -1))))])
    ],
    "AlgebraicSimplification": lambda: [build([4, 6], neutral_factor)],
    "DropPaddedTaps": lambda: [build([1, 3, 6, 6], spread_window)],
    "PointwiseBeforeResize": lambda: [build([1, 3, 7, 9], enlarged)],
    "FuseCastIntoSoftmax": lambda: [build([6, 40], cast_softmax, "float16")],
    "SoftmaxFusion": lambda: [build([6, 40], softmax_in_parts)],
    "WinogradConvolution": lambda: [build([1, 56, 56, 64], channels_last)],
    "LayoutPlanning": lambda: [
        build([1, 64, 56, 56], large_convolution),
        build([32, 64, 56, 56], many_convolutions, "float16"),
    ],
    "FakeQuantizationToInteger": lambda: [build([16, 64], dequantized_matmul, "uint8")],
    "FuseBlockIntegerMatmul": lambda: [build([16, 64], rounded_in_blocks)],
    "FuseDequantizeMatmul": lambda: [build([16, 64], weights_in_blocks)],
    "ActivationLookupTables": lambda: [build([16, 64], quantized_sigmoid, "uint8")],
    "MinMaxFusion": lambda: [build([16, 64], extrema)],
    "CompressWeights": lambda: [build([1, 1024], halves_of_a_model)],
    "MixedPrecision": lambda: [build([512, 256], large_matmul)],
    "ZeroPointCompensation": lambda: [build([16, 64], integer_matmul)],
    "GroupedConvolution": lambda: [build([1, 64, 14, 14], groups_of_channels)],
    "SinkReshapes": lambda: [build([1, 3, 7, 9], reshaped_convolution)],
    "SinkTransposes": lambda: [build([1, 7, 9, 4], image_to_sequence)],
    "DispatchSortScan": lambda: [build([4, 100], sorted_rows)],
    "DispatchSampling": lambda: [build([4, 100], drawn)],
    "NameSymbolicSizes": lambda: [build([1, 4, H, W], every_other)],
    "PropagateSpans": lambda: [half_with_origins()],
    "FreshOutputs": lambda: [build([4, 6], lambda emit, x: [x, emit(op.tanh(x))])],
    "MultiOutputFusion": lambda: [build([4, 6], sum_and_difference)],
    "AttentionFusion": lambda: [build([2, 6, 32], projected_attention)],
    "FuseHeadsIntoAttention": lambda: [build([2, 6, 32], projected_attention)],
    "EmptyConstants": lambda: [build([4, 6], with_no_rows)],
}
PLACES = {
    **RUNS_AFTER,
    "NameSymbolicSizes": (*ANNOTATED, "FuseOperators", "FuseTIR"),
    "FuseHeadsIntoAttention": ("AttentionFusion", "CombineParallelMatmul"),
}


def cases() -> list[tuple[str, str]]:
    """Every graph pass with every backend that it is for."""
    names = [
        entry.name
        for entry in registry.all_entries()
        if entry.level == "graph" and entry.in_pipelines
    ]
    return [
        (name, backend) for backend in MACHINES for name in names if name not in NOT_FOR[backend]
    ]


def change_of(name: str) -> tuple[tvm.IRModule, tvm.IRModule] | None:
    """The first module that a pass changes, and what it makes of it."""
    made_for = MADE_FOR.get(name, list)()
    for original in [*made_for, *(mod for mod, _ in MODULES.values())]:
        before = run_passes(original, *PLACES.get(name, ()))
        after = run_passes(before, name)
        if not structural_equal(before, after) or origins(before) != origins(after):
            return before, after
    return None


def origins(mod: tvm.IRModule) -> list[tuple[str, ...]]:
    """Those of all bindings, which modules are not compared by."""
    functions = [func for func in mod.functions.values() if isinstance(func, relax.Function)]
    return [origins_of(binding.var) for func in functions for binding in bindings_of(func)]


@pytest.mark.parametrize(("name", "backend"), cases())
def test_fires_and_leaves_a_module_that_is_well_formed(name: str, backend: str) -> None:
    with compiling_for(MACHINES[backend]):
        changed = change_of(name)
    assert changed is not None, f"{name} changes no module for {backend}: write one in MADE_FOR"
    relax.analysis.well_formed(changed[1])


@pytest.mark.extended
@pytest.mark.parametrize("backend", MACHINES)
def test_a_pass_that_has_nothing_to_do_for_a_backend_leaves_every_module_as_it_is(
    backend: str,
) -> None:
    with compiling_for(MACHINES[backend]):
        assert [name for name in NOT_FOR[backend] if change_of(name) is not None] == []
