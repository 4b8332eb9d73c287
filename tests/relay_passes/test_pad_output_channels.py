"""Before and after IR, equal numbers, and refusals of PadOutputChannels."""

import numpy as np
import pytest
import tvm
from gemm_modules import fused_kernels, half, module, tensor
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax, te, tirx
from tvm_ffi import structural_equal
from unoptimised import LLVM

from tvm_ext.hardware.targets import compiling_for, resolve_target
from tvm_ext.relay_passes.gemm_compute import GemmCompute
from tvm_ext.relay_passes.gemm_fusion import GemmFusion
from tvm_ext.relay_passes.pad_output_channels import (
    LEAST_ROWS,
    PadOutputChannels,
    lane_use,
    whole_vectors,
)
from tvm_ext.relay_passes.pass_log import recording

AVX512 = resolve_target("avx512")


def conv_module(channels, layout=("NHWC", "HWIO"), groups=1, constant=True, batch=1):
    random = np.random.default_rng(0)
    inputs = 6 if groups == 1 else channels
    x_shape = (batch, 5, 7, inputs) if layout[0] == "NHWC" else (batch, inputs, 5, 7)
    x = relax.Var("x", relax.TensorType(x_shape, "float32"))
    weight = random.normal(size=(channels, inputs // groups, 3, 3)).astype("float32")
    if layout[1] == "HWIO":
        weight = np.ascontiguousarray(weight.transpose(2, 3, 1, 0))
    w = relax.const(weight)
    params = [x]
    if not constant:
        w = relax.Var("w", relax.TensorType(weight.shape, "float32"))
        params.append(w)
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            conv = builder.emit(
                relax.op.nn.conv2d(
                    x,
                    w,
                    padding=1,
                    groups=groups,
                    data_layout=layout[0],
                    kernel_layout=layout[1],
                )
            )
            result = builder.emit_output(relax.op.nn.relu(conv))
        builder.emit_func_output(result)
    return builder.get()


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


def padded(mod):
    with compiling_for(AVX512):
        return tvm.transform.Sequential([PadOutputChannels()])(mod)


def kernels(mod):
    return [str(g.name_hint) for g, f in mod.functions.items() if isinstance(f, tirx.PrimFunc)]


def run(mod, *arrays):
    executable = tvm.compile(mod, target=LLVM)
    machine = relax.VirtualMachine(executable, tvm.cpu())
    return machine["main"](*map(tvm.runtime.tensor, arrays)).numpy()


def test_lane_use_of_a_count_that_divides_badly():
    assert lane_use(243, 16) == (4.5 / 16, 243 / 256)
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
            turned = builder.emit(relax.op.permute_dims(x, axes))
            weight = relax.const(random.normal(size=(8, columns)).astype("float32"))
            product = builder.emit(relax.op.matmul(turned, weight))
            half = builder.emit(relax.op.multiply(product, relax.const(0.5)))
            total = builder.emit(relax.op.add(half, c))
            result = builder.emit_output(relax.op.nn.relu(total))
        builder.emit_func_output(result)
    return GemmFusion()(builder.get())


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
    got, wanted = run(after, values), run(before, values)
    assert got.dtype == wanted.dtype
    np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-3)


def variable_product(left, right, transposed="", dtype="float32"):
    """``tanh(a @ b)`` of two inputs; the letters in ``transposed`` are turned before."""

    def operand(var, name):
        axes = [*range(var.ty.ndim - 2), var.ty.ndim - 1, var.ty.ndim - 2]
        return builder.emit(relax.op.permute_dims(var, axes)) if name in transposed else var

    a, b = tensor("a", left, dtype), tensor("b", right, dtype)
    builder = relax.BlockBuilder()
    with builder.function("main", [a, b]):
        with builder.dataflow():
            product = builder.emit(relax.op.matmul(operand(a, "a"), operand(b, "b")))
            result = builder.emit_output(relax.op.tanh(product))
        builder.emit_func_output(result)
    return GemmFusion()(builder.get()) if transposed else builder.get()


def zero_columns(mod):
    """Columns of zeros that the kernels add to a weight: width of the padded array less its own."""
    found = []
    for func in mod.functions.values():
        if not isinstance(func, tirx.PrimFunc):
            continue
        arrays = func.body.block.alloc_buffers
        (padded_array,) = (array for array in arrays if array.name == "PadInput")
        own = next(p for p in func.params if p.name in ("b", "B"))
        found.append([int(x) - int(y) for x, y in zip(padded_array.shape, own.shape, strict=True)])
    return found


VARIABLE = {
    "matrices": ((40, 24), (24, 197), ""),
    "few channels": ((16, 7), (7, 3), ""),
    "batch": ((3, 40, 24), (3, 24, 19), ""),
    "two batch axes": ((2, 3, 17, 5), (2, 3, 5, 37), ""),
    "one matrix for all": ((3, 40, 24), (24, 19), ""),
    "batch of one": ((3, 2, 40, 24), (1, 2, 24, 19), ""),
    "batch of the left is one": ((1, 40, 24), (3, 24, 19), ""),
    "right is turned": ((40, 24), (197, 24), "b"),
    "left is turned": ((24, 40), (24, 19), "a"),
    "both are turned": ((3, 24, 40), (3, 19, 24), "ab"),
    "turned, one for all": ((3, 24, 40), (19, 24), "ab"),
}


def turn(array, name, transposed):
    return np.swapaxes(array, -1, -2) if name in transposed else array


@pytest.mark.parametrize("case", VARIABLE)
def test_weight_that_is_not_constant(case):
    left, right, transposed = VARIABLE[case]
    before = variable_product(left, right, transposed)
    script = before.script()
    with recording() as decisions:
        after = padded(before)
    assert before.script() == script
    assert len(kernels(after)) == 1
    assert kernels(after)[0].endswith("_padded")
    channels = right[-2 if "b" in transposed else -1]
    whole = whole_vectors(channels, 16)
    assert f"{channels} output channels computed as {whole}" in decisions[-1].reason
    extra = [0] * len(right)
    extra[-2 if "b" in transposed else -1] = whole - channels
    assert zero_columns(after) == [extra]
    assert structural_equal(padded(after), after)
    random = np.random.default_rng(9)
    a, b = (random.normal(size=shape).astype("float32") for shape in (left, right))
    wanted = np.tanh(turn(a, "a", transposed) @ turn(b, "b", transposed))
    np.testing.assert_allclose(run(after, a, b), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", ["float16", "float64", "int32"])
def test_types_of_weights_that_are_not_constant(dtype):
    a, b = tensor("a", (40, 24), dtype), tensor("b", (24, 67), dtype)
    before = module([a, b], [lambda a, b: relax.op.matmul(a, b)])
    after = padded(before)
    assert kernels(after) == ["matmul_padded"]
    random = np.random.default_rng(10)
    values = [random.integers(-3, 4, shape).astype(dtype) for shape in ((40, 24), (24, 67))]
    got = run(after, *values)
    assert got.dtype == dtype
    np.testing.assert_array_equal(got, values[0] @ values[1])


@pytest.mark.parametrize(
    ("left", "right", "transposed"),
    [
        ((LEAST_ROWS - 1, 24), (24, 197), ""),
        ((1, 24), (24, 197), ""),
        ((64, 1, 24), (64, 24, 197), ""),
        ((24, LEAST_ROWS - 1), (24, 197), "a"),
        ((24,), (24, 197), ""),
        ((40, 24), (24,), ""),
        ((40, 24), (24, 192), ""),
        ((40, 24), (192, 24), "b"),
        ((tirx.Var("n", "int64"), 24), (24, 197), ""),
    ],
    ids=[
        "few rows",
        "one row",
        "one row for each matrix",
        "few rows, turned",
        "vector on the left",
        "vector on the right",
        "full vectors",
        "full vectors, turned",
        "symbolic rows",
    ],
)
def test_weight_that_is_not_constant_is_left_alone(left, right, transposed):
    before = variable_product(left, right, transposed)
    assert structural_equal(padded(before), before)


def test_symbolic_channels_are_left_alone():
    before = variable_product((40, 24), (24, tirx.Var("n", "int64")))
    assert structural_equal(padded(before), before)


def test_least_rows_are_padded():
    assert kernels(padded(variable_product((LEAST_ROWS, 24), (24, 197)))) == ["matmul_padded"]


def test_padded_weight_and_what_follows_are_one_kernel():
    after = fused_kernels(padded(variable_product((40, 24), (24, 197))))
    assert len(kernels(after)) == 1


def test_weight_that_two_products_share():
    """Each kernel pads it for itself."""
    params = [tensor("a", (40, 24)), tensor("c", (20, 24)), tensor("b", (24, 19))]
    steps = [
        lambda a, c, b: relax.op.matmul(a, b),
        lambda *v: relax.op.matmul(v[1], v[2]),
        lambda *v: relax.op.concat([v[-2], v[-1]], 0),
    ]
    after = padded(module(params, steps))
    assert len([name for name in kernels(after) if name.startswith("matmul_padded")]) == 2
    random = np.random.default_rng(11)
    a, c, b = (
        random.normal(size=shape).astype("float32") for shape in ((40, 24), (20, 24), (24, 19))
    )
    wanted = np.concatenate([a @ b, c @ b])
    np.testing.assert_allclose(run(after, a, c, b), wanted, rtol=1e-4, atol=1e-4)


def test_function_with_an_addend_and_a_weight_that_is_not_constant():
    """``relu(a @ transpose(b) / 2 + c)``: the addend has as many columns as the result."""
    params = [tensor("a", (40, 24)), tensor("b", (19, 24)), tensor("c", (19,))]
    steps = [
        lambda a, b, c: relax.op.permute_dims(b),
        lambda *v: relax.op.matmul(v[0], v[-1]),
        lambda *v: half(v[-1]),
        lambda *v: relax.op.add(v[-1], v[2]),
        lambda *v: relax.op.nn.relu(v[-1]),
    ]
    before = GemmFusion()(module(params, steps))
    after = padded(before)
    assert kernels(after) == [f"{kernels(before)[0]}_padded"]
    random = np.random.default_rng(12)
    a, b, c = (random.normal(size=shape).astype("float32") for shape in ((40, 24), (19, 24), 19))
    wanted = np.maximum(a @ b.T / 2 + c, 0)
    np.testing.assert_allclose(run(after, a, b, c), wanted, rtol=1e-4, atol=1e-4)


def test_weight_that_is_not_constant_for_a_model_with_symbolic_images():
    """The number of rows is known, that of the matrices is not."""
    before = variable_product((tirx.Var("n", "int64"), 40, 24), (24, 19))
    after = padded(before)
    assert structural_equal(after, before)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(
    rows=st.integers(1, 9),
    depth=st.integers(1, 9),
    columns=st.integers(1, 9),
    extra=st.integers(0, 9),
    turned=st.tuples(st.booleans(), st.booleans()),
)
def test_extra_columns_of_a_product(rows, depth, columns, extra, turned):
    kernel = GemmCompute(*turned, "float32", columns=columns, extra_columns=extra)
    assert GemmCompute.from_attribute(kernel.to_attribute()) == kernel
    shapes = [(rows, depth), (depth, columns)]
    shapes = [shape[::-1] if turn else shape for shape, turn in zip(shapes, turned, strict=True)]
    a, b = (
        te.placeholder(shape, "float32", name) for shape, name in zip(shapes, "ab", strict=True)
    )
    result = kernel.compute(a, b)
    assert [int(size) for size in result.shape] == [rows, columns]
    func = te.create_prim_func([a, b, result])
    (product,) = (x for x in func.body.block.alloc_buffers if x.name == "matmul")
    assert [int(size) for size in product.shape] == [rows, columns + extra]
    random = np.random.default_rng(13)
    x, y = (random.normal(size=shape).astype("float32") for shape in shapes)
    got = tvm.runtime.tensor(np.zeros((rows, columns), "float32"))
    tvm.compile(func, target=LLVM)(tvm.runtime.tensor(x), tvm.runtime.tensor(y), got)
    x, y = (v.T if turn else v for v, turn in zip((x, y), turned, strict=True))
    np.testing.assert_allclose(got.numpy(), x @ y, rtol=1e-4, atol=1e-4)
