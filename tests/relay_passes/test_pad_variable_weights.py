"""PadOutputChannels where the weight is an input: zeros are added to it in the kernel."""

import numpy as np
import pytest
import tvm
from conv_modules import apply, kernels, run
from gemm_modules import fused_kernels, half, module, tensor
from hypothesis import given, settings
from hypothesis import strategies as st
from thoroughness import DRAWS
from tvm import relax, te, tirx
from tvm_ffi import structural_equal
from unoptimised import built

from tvm_ext.relay_passes.gemm_epilogue import GemmCompute
from tvm_ext.relay_passes.gemm_fusion import GemmFusion
from tvm_ext.relay_passes.graph_pass import recording
from tvm_ext.relay_passes.pad_output_channels import LEAST_ROWS, PadOutputChannels, whole_vectors

padded = apply(PadOutputChannels())


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
    "right is transposed": ((40, 24), (197, 24), "b"),
    "left is transposed": ((24, 40), (24, 19), "a"),
    "both are transposed": ((3, 24, 40), (3, 19, 24), "ab"),
    "transposed, one for all": ((3, 24, 40), (19, 24), "ab"),
}


def transpose(array, name, transposed):
    return np.swapaxes(array, -1, -2) if name in transposed else array


@pytest.mark.extended
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
    wanted = np.tanh(transpose(a, "a", transposed) @ transpose(b, "b", transposed))
    np.testing.assert_allclose(run(after, a, b)[0], wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", ["float16", "float64", "int32"])
def test_types_of_weights_that_are_not_constant(dtype):
    a, b = tensor("a", (40, 24), dtype), tensor("b", (24, 67), dtype)
    before = module([a, b], [lambda a, b: relax.op.matmul(a, b)])
    after = padded(before)
    assert kernels(after) == ["matmul_padded"]
    random = np.random.default_rng(10)
    values = [random.integers(-3, 4, shape).astype(dtype) for shape in ((40, 24), (24, 67))]
    (got,) = run(after, *values)
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
    np.testing.assert_allclose(run(after, a, c, b)[0], wanted, rtol=1e-4, atol=1e-4)


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
    np.testing.assert_allclose(run(after, a, b, c)[0], wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.extended
def test_weight_that_is_not_constant_for_a_model_with_symbolic_images():
    """The number of rows is known, that of the matrices is not."""
    before = variable_product((tirx.Var("n", "int64"), 40, 24), (24, 19))
    after = padded(before)
    assert not structural_equal(after, before)
    random = np.random.default_rng(12)
    for batch in (1, 3):
        a = random.normal(size=(batch, 40, 24)).astype("float32")
        b = random.normal(size=(24, 19)).astype("float32")
        wanted = run(before, a, b)[0]
        np.testing.assert_allclose(run(after, a, b)[0], wanted, rtol=1e-5, atol=1e-5)


@settings(max_examples=4 * DRAWS, deadline=None, derandomize=True)
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
    built({"main": func})["main"](tvm.runtime.tensor(x), tvm.runtime.tensor(y), got)
    x, y = (v.T if turn else v for v, turn in zip((x, y), turned, strict=True))
    np.testing.assert_allclose(got.numpy(), x @ y, rtol=1e-4, atol=1e-4)
