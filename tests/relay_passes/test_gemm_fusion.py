"""GemmFusion: products that stay operators, and what stands around them."""

import numpy as np
import pytest
import tvm
from gemm_modules import (
    apply_pass,
    check_one_kernel,
    constant,
    half,
    module,
    operators_of,
    random_inputs,
    run,
    tensor,
    values_of,
)
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R


@pytest.mark.extended
def test_scale_and_constant_transpose_are_folded():
    weight = np.arange(6, dtype="float32").reshape(2, 3)

    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((5, 3), "float32"), w: R.Tensor((2, 3), "float32")) -> R.Tensor(
            (5, 2), "float32"
        ):
            with R.dataflow():
                s = R.multiply(x, R.const(0.5, "float32"))
                t = R.permute_dims(w, axes=[1, 0])
                m = R.matmul(s, t)
                y = R.nn.relu(m)
                R.output(y)
            return y

    @I.ir_module
    class Expected:
        @R.function
        def main(x: R.Tensor((5, 3), "float32"), w: R.Tensor((3, 2), "float32")) -> R.Tensor(
            (5, 2), "float32"
        ):
            with R.dataflow():
                m = R.matmul(x, w)
                y = R.nn.relu(m)
                R.output(y)
            return y

    bind = relax.transform.BindParams
    before = bind("main", {"w": weight})(Before)
    expected = bind("main", {"w": np.ascontiguousarray(weight.T) * np.float32(0.5)})(Expected)
    tvm.ir.assert_structural_equal(check_one_kernel(before), expected)


def test_scale_between_run_time_operands_follows_the_product():
    @I.ir_module
    class Before:
        @R.function
        def main(q: R.Tensor((2, 5, 3), "float32"), k: R.Tensor((2, 3, 7), "float32")) -> R.Tensor(
            (2, 5, 7), "float32"
        ):
            with R.dataflow():
                s = R.multiply(q, R.const(0.5, "float32"))
                m = R.matmul(s, k)
                y = R.divide(m, R.const(4.0, "float32"))
                R.output(y)
            return y

    @I.ir_module
    class Expected:
        @R.function
        def main(q: R.Tensor((2, 5, 3), "float32"), k: R.Tensor((2, 3, 7), "float32")) -> R.Tensor(
            (2, 5, 7), "float32"
        ):
            with R.dataflow():
                m = R.matmul(q, k)
                y = R.multiply(m, R.const(0.125, "float32"))
                R.output(y)
            return y

    tvm.ir.assert_structural_equal(check_one_kernel(Before), Expected)


def test_scale_after_the_product_goes_into_the_weight():
    w = constant(3, 7)
    new = check_one_kernel(
        module(
            [tensor("x", (2, 5, 3))],
            [lambda x: relax.op.matmul(x, w), lambda x, m: half(m)],
        )
    )
    assert operators_of(new) == ["relax.matmul"]
    np.testing.assert_allclose(values_of(new)[0].args[1].value.numpy(), w.value.numpy() * 0.5)


def test_scale_of_a_constant_addend_is_folded():
    w, c = constant(3, 7), constant(7)
    new = check_one_kernel(
        module(
            [tensor("x", (5, 3))],
            [
                lambda x: relax.op.matmul(x, w),
                lambda x, m: half(c),
                lambda x, m, b: relax.op.add(m, b),
            ],
        )
    )
    assert operators_of(new) == ["relax.matmul", "relax.add"]


def _erf_gelu(v, half_first):
    gate = relax.op.add(
        relax.op.erf(relax.op.divide(v, relax.const(2**0.5, "float32"))),
        relax.const(1.0, "float32"),
    )
    return relax.op.multiply(half(v), gate) if half_first else half(relax.op.multiply(v, gate))


@pytest.mark.extended
@pytest.mark.parametrize("half_first", [False, True])
def test_spelled_out_gelu_behind_reshaped_product_is_one_kernel(half_first):
    w, c = constant(3, 8), constant(8)
    steps = [
        lambda x: relax.op.matmul(x, w),
        lambda x, m: relax.op.add(m, c),
        lambda *v: relax.op.reshape(v[-1], (2, 3, 8)),
        lambda *v: _erf_gelu(v[-1], half_first),
        lambda *v: relax.op.reshape(v[-1], (6, 8)),
    ]
    new = check_one_kernel(module([tensor("x", (6, 3))], steps))
    assert operators_of(new) == ["relax.matmul", "relax.add", "relax.nn.gelu"]


def _tanh_gelu(v, cube, factor=0.044715):
    third = {
        "power": lambda: relax.op.power(v, relax.const(3.0, "float32")),
        "product": lambda: relax.op.multiply(v, relax.op.multiply(v, v)),
    }[cube]()
    polynomial = relax.op.add(v, relax.op.multiply(third, relax.const(factor, "float32")))
    inner = relax.op.multiply(relax.const((2 / np.pi) ** 0.5, "float32"), polynomial)
    gate = relax.op.add(relax.op.tanh(inner), relax.const(1.0, "float32"))
    return relax.op.multiply(half(v), gate)


@pytest.mark.extended
@pytest.mark.parametrize("cube", ["power", "product"])
def test_spelled_out_gelu_with_tanh_behind_reshaped_product_is_one_kernel(cube):
    """GPT-2, which multiplies rows of all batches and reshapes the result."""
    w, c = constant(3, 8), constant(8)
    steps = [
        lambda x: relax.op.matmul(x, w),
        lambda x, m: relax.op.add(m, c),
        lambda *v: relax.op.reshape(v[-1], (2, 3, 8)),
        lambda *v: _tanh_gelu(v[-1], cube),
        lambda *v: relax.op.reshape(v[-1], (6, 8)),
    ]
    new = check_one_kernel(module([tensor("x", (6, 3))], steps))
    assert operators_of(new) == ["relax.matmul", "relax.add", "relax.nn.gelu_tanh"]


def test_gelu_with_another_cubic_factor_is_left():
    w = constant(3, 8)
    steps = [lambda x: relax.op.matmul(x, w), lambda x, m: _tanh_gelu(m, "power", 0.05)]
    assert "relax.tanh" in operators_of(apply_pass(module([tensor("x", (6, 3))], steps))[0])


def test_spelled_out_silu_is_named():
    w = constant(3, 8)
    steps = [
        lambda x: relax.op.matmul(x, w),
        lambda x, m: relax.op.sigmoid(m),
        lambda x, m, s: relax.op.multiply(m, s),
    ]
    assert operators_of(check_one_kernel(module([tensor("x", (5, 3))], steps))) == [
        "relax.matmul",
        "relax.nn.silu",
    ]


@pytest.mark.extended
@pytest.mark.parametrize("addend", [(8,), (1, 1, 8), (2, 3, 8), ()])
def test_reshape_moves_behind_addends(addend):
    w, c = constant(3, 8), constant(*addend)
    steps = [
        lambda x: relax.op.matmul(x, w),
        lambda *v: relax.op.reshape(v[-1], (2, 3, 8)),
        lambda *v: relax.op.add(v[-1], c),
    ]
    mod = module([tensor("x", (6, 3))], steps)
    new, applied, _ = apply_pass(mod)
    assert applied == ["reshape moved behind the add"]
    assert operators_of(new)[-1] == "relax.reshape"
    inputs = random_inputs(mod)
    np.testing.assert_allclose(run(new, inputs), run(mod, inputs), rtol=1e-5)


@pytest.mark.parametrize("addend", [(3, 1), (2, 1, 1)])
def test_reshape_stays_before_addends_of_its_own_axes(addend):
    w, c = constant(3, 8), constant(*addend)
    steps = [
        lambda x: relax.op.matmul(x, w),
        lambda *v: relax.op.reshape(v[-1], (2, 3, 8)),
        lambda *v: relax.op.add(v[-1], c),
    ]
    assert not apply_pass(module([tensor("x", (6, 3))], steps))[1]
