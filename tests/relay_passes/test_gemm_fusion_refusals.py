"""GemmFusion: what it leaves alone, whole or in part, and why."""

import numpy as np
import pytest
from gemm_modules import (
    apply_pass,
    attention_like,
    check_refused,
    constant,
    function_names,
    half,
    kernel_count,
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


def test_gelu_with_another_constant_is_left():
    w = constant(3, 8)
    steps = [
        lambda x: relax.op.matmul(x, w),
        lambda x, m: relax.op.erf(half(m)),
        lambda *v: half(relax.op.multiply(v[1], relax.op.add(v[2], relax.const(1.0, "float32")))),
    ]
    assert "relax.erf" in operators_of(apply_pass(module([tensor("x", (5, 3))], steps))[0])


def test_shared_operand_is_left_and_recorded():
    steps = [
        lambda a, b: relax.op.permute_dims(b),
        lambda a, b, t: relax.op.matmul(a, t),
        lambda a, b, t, m: relax.op.add(m, t),
    ]
    mod = module([tensor("a", (3, 3)), tensor("b", (3, 3))], steps)
    check_refused(mod, "prepared operand has another user")


@pytest.mark.parametrize("keep", [3, 4, 5])
def test_inner_results_with_another_user_end_the_function(keep):
    steps = [
        lambda a, b: relax.op.permute_dims(b),
        lambda a, b, t: relax.op.matmul(a, t),
        lambda *v: half(v[-1]),
        lambda *v: relax.op.add(v[-1], relax.const(1.0, "float32")),
        lambda *v: relax.op.nn.relu(v[-1]),
        lambda *v: relax.op.concat([v[-1], v[keep]], axis=0),
    ]
    mod = module([tensor("a", (5, 3)), tensor("b", (7, 3))], steps)
    new, _, refused = apply_pass(mod)
    names = {3: "gemm_nt", 4: "gemm_nt_scale", 5: "gemm_nt_scale_add"}
    assert function_names(new) == [names[keep]]
    assert "the result has another user, what follows stays outside" in refused
    inputs = random_inputs(mod)
    np.testing.assert_allclose(run(new, inputs), run(mod, inputs), rtol=1e-4, atol=1e-5)


def test_product_with_another_user_keeps_its_weight():
    w = constant(3, 7)
    steps = [
        lambda x: relax.op.matmul(x, w),
        lambda x, m: half(m),
        lambda x, m, s: relax.op.add(m, s),
    ]
    check_refused(module([tensor("x", (5, 3))], steps), "its scale is not folded")


def test_products_that_share_a_weight_share_its_transpose_and_keep_its_scale():
    w = constant(7, 3)
    steps = [
        lambda x, y: relax.op.matmul(half(x), relax.op.permute_dims(w)),
        lambda x, y, m: relax.op.matmul(y, relax.op.permute_dims(w)),
        lambda x, y, m, n: relax.op.add(m, n),
    ]
    mod = module([tensor("x", (5, 3)), tensor("y", (5, 3))], steps)
    new, applied, _ = apply_pass(mod)
    assert len(applied) == 2
    weights = [v.args[1] for v in values_of(new) if v.op.name == "relax.matmul"]
    assert weights[0].same_as(weights[1])
    inputs = random_inputs(mod)
    np.testing.assert_allclose(run(new, inputs), run(mod, inputs), rtol=1e-4, atol=1e-5)


def test_two_products_that_meet_in_one_addition():
    steps = [
        lambda a, b, c: relax.op.matmul(a, relax.op.permute_dims(b)),
        lambda a, b, c, m: relax.op.matmul(a, relax.op.permute_dims(c)),
        lambda a, b, c, m, n: relax.op.add(m, n),
    ]
    mod = module([tensor("a", (5, 3)), tensor("b", (7, 3)), tensor("c", (7, 3))], steps)
    new, applied, _ = apply_pass(mod)
    assert len(applied) == 2
    assert sorted(function_names(new)) == ["gemm_nt", "gemm_nt_add"]
    inputs = random_inputs(mod)
    np.testing.assert_allclose(run(new, inputs), run(mod, inputs), rtol=1e-4, atol=1e-5)


def test_head_split_of_attention_is_left():
    steps = [
        lambda q, k: relax.op.permute_dims(k, [0, 2, 3, 1]),
        lambda q, k, t: relax.op.matmul(q, t),
    ]
    mod = module([tensor("q", (1, 2, 5, 3)), tensor("k", (1, 7, 2, 3))], steps)
    check_refused(mod, "permute_dims [0, 2, 3, 1] moves more than the last two axes")


def test_integer_products_are_left():
    steps = [lambda a, b: relax.op.matmul(a, relax.op.permute_dims(b))]
    mod = module([tensor("a", (5, 3), "int32"), tensor("b", (7, 3), "int32")], steps)
    check_refused(mod, "operands are int32, not of one floating point type")


def test_operands_of_different_types_are_left():
    steps = [lambda a, b: relax.op.matmul(a, relax.op.permute_dims(b), out_dtype="float32")]
    mod = module([tensor("a", (5, 3), "float16"), tensor("b", (7, 3))], steps)
    check_refused(mod, "operands are float16 and float32")


def test_scale_that_is_a_vector_is_left():
    steps = [
        lambda a, b: relax.op.multiply(a, constant(3)),
        lambda a, b, s: relax.op.matmul(s, b),
    ]
    mod = module([tensor("a", (5, 3)), tensor("b", (3, 7))], steps)
    check_refused(mod, "not one finite number")


def test_scale_before_half_precision_accumulation_is_left():
    steps = [lambda a, b: half(a, "float16"), lambda a, b, s: relax.op.matmul(s, b)]
    mod = module([tensor("a", (5, 3), "float16"), tensor("b", (3, 7), "float16")], steps)
    check_refused(mod, "may be what avoids overflow")


def test_addend_that_enlarges_the_result_stays_outside():
    mod = attention_like(relax.op.nn.relu, addend=(4, 5, 7), batch=())
    new, _, refused = apply_pass(mod)
    assert function_names(new) == ["gemm_nt_scale"]
    assert "the addend enlarges the result" in refused


def test_vector_operand_is_left():
    steps = [lambda a, b: relax.op.matmul(a, relax.op.permute_dims(b))]
    mod = module([tensor("a", (3,)), tensor("b", (7, 3))], steps)
    check_refused(mod, "an operand is a vector")


def test_unknown_shape_is_left():
    unknown = relax.Var("a", relax.TensorType(dtype="float32", ndim=2))
    steps = [lambda a, b: relax.op.matmul(a, relax.op.permute_dims(b))]
    check_refused(module([unknown, tensor("b", (7, 3))], steps), "a shape is unknown")


def test_plain_products_are_not_mentioned():
    w, c = constant(3, 7), constant(7)
    steps = [
        lambda x: relax.op.matmul(x, w),
        lambda x, m: relax.op.add(m, c),
        lambda *v: relax.op.nn.relu(v[-1]),
    ]
    mod = module([tensor("x", (5, 3))], steps)
    assert apply_pass(mod)[1:] == ([], [])
    assert kernel_count(mod) == 1


def test_values_of_another_dataflow_block_are_not_reached():
    @I.ir_module
    class Before:
        @R.function
        def main(a: R.Tensor((5, 3), "float32"), b: R.Tensor((7, 3), "float32")) -> R.Tensor(
            (5, 7), "float32"
        ):
            with R.dataflow():
                inner = R.nn.relu(b)
                t = R.permute_dims(inner)
                R.output(t)
            m = R.matmul(a, t)
            return m

    check_refused(Before, "another dataflow block")
