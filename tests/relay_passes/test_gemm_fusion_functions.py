"""GemmFusion: products that become one function, and their origins."""

import ml_dtypes
import numpy as np
import pytest
import tvm
from gemm_modules import (
    apply_pass,
    attention_like,
    check_one_kernel,
    constant,
    function_names,
    half,
    module,
    operators_of,
    tensor,
    values_of,
)
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.script import ir as I
from tvm.script import relax as R

from tvm_ext.relay_passes.spans import origins_of, retyped_var


@pytest.mark.extended
@pytest.mark.parametrize(("left", "right"), [(False, True), (True, False), (True, True)])
@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
def test_run_time_transposes_become_one_function(left, right, batch):
    axes = [*range(len(batch)), len(batch) + 1, len(batch)]
    a = tensor("a", (*batch, 3, 5) if left else (*batch, 5, 3))
    b = tensor("b", (*batch, 7, 3) if right else (*batch, 3, 7))

    def product(a, b, *_):
        at = relax.op.permute_dims(a, axes) if left else a
        bt = relax.op.permute_dims(b, axes) if right else b
        return relax.op.matmul(at, bt)

    new = check_one_kernel(module([a, b], [product]))
    letters = ("t" if left else "n") + ("t" if right else "n")
    kind = "batch_gemm" if batch else "gemm"
    assert function_names(new) == [f"{kind}_{letters}"]


ACTS = {
    "relu": relax.op.nn.relu,
    "gelu": relax.op.nn.gelu,
    "gelu_tanh": relax.op.nn.gelu_tanh,
    "silu": relax.op.nn.silu,
    "sigmoid": relax.op.sigmoid,
    "tanh": relax.op.tanh,
    "clip": lambda x: relax.op.clip(x, 0, 6),
    "leakyrelu": lambda x: relax.op.nn.leakyrelu(x, 0.1),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ACTS)
def test_function_takes_in_scale_addend_and_activation(name):
    new = check_one_kernel(attention_like(ACTS[name]))
    assert function_names(new) == [f"batch_gemm_nt_scale_add_{name}"]
    assert operators_of(new) == ["relax.call_tir"]


@pytest.mark.extended
@pytest.mark.parametrize("name", ACTS)
def test_half_precision_activations_agree_with_the_operators(name):
    check_one_kernel(attention_like(ACTS[name], "float16"), rtol=5e-3)


@pytest.mark.parametrize("addend", [(), (7,), (1, 7), (5, 1), (2, 5, 7), (2, 1, 1)])
def test_addends_of_every_broadcast_shape(addend):
    check_one_kernel(attention_like(relax.op.nn.relu, addend=addend))


def test_function_folds_a_constant_operand_and_scales_the_addend():
    w = constant(7, 3)
    steps = [
        lambda x, c: relax.op.permute_dims(x),
        lambda x, c, t: half(t),
        lambda *v: relax.op.permute_dims(w),
        lambda *v: relax.op.matmul(v[3], v[4]),
        lambda *v: half(v[1]),
        lambda *v: relax.op.add(v[5], v[6]),
    ]
    new = check_one_kernel(module([tensor("x", (3, 5)), tensor("c", (5, 7))], steps))
    assert function_names(new) == ["gemm_tn_add"]
    folded = values_of(new)[0].args[1].fields[1]
    np.testing.assert_allclose(folded.value.numpy(), w.value.numpy().T * 0.5)


def test_batch_axes_broadcast_as_in_matmul():
    a, b = tensor("a", (4, 1, 5, 3)), tensor("b", (2, 7, 3))
    steps = [
        lambda a, b: relax.op.permute_dims(b, [0, 2, 1]),
        lambda a, b, t: relax.op.matmul(a, t),
    ]
    check_one_kernel(module([a, b], steps))


def test_half_precision_accumulates_as_asked():
    params = [tensor("a", (5, 64), "float16"), tensor("b", (7, 64), "float16")]
    steps = [
        lambda a, b: relax.op.permute_dims(b),
        lambda a, b, t: relax.op.matmul(a, t, out_dtype="float32"),
        lambda *v: half(v[-1]),
    ]
    new = check_one_kernel(module(params, steps), rtol=1e-5)
    assert str(new["main"].ret_ty.dtype) == "float32"


def test_exact_scale_stays_out_of_narrower_constants():
    w = constant(3, 7, dtype="float16")
    steps = [
        lambda x: relax.op.matmul(x, w, out_dtype="float32"),
        lambda x, m: relax.op.multiply(m, relax.const(0.3, "float32")),
    ]
    mod = module([tensor("x", (5, 3), "float16")], steps)
    new, applied, _ = apply_pass(mod)
    assert not applied
    tvm.ir.assert_structural_equal(new, mod)


def test_constant_that_would_lose_bits_is_not_scaled():
    w = relax.const(np.full((3, 7), 2e-7, "float16"), "float16")
    steps = [lambda x: relax.op.matmul(x, w), lambda x, m: half(m, "float16")]
    _, applied, _ = apply_pass(module([tensor("x", (5, 3), "float16")], steps))
    assert not applied


def test_bfloat16_constants_are_folded():
    w = relax.const(np.ones((3, 4), ml_dtypes.bfloat16), "bfloat16")
    steps = [lambda x: relax.op.matmul(x, w), lambda x, m: half(m, "bfloat16")]
    new, applied, _ = apply_pass(module([tensor("x", (5, 3), "bfloat16")], steps))
    assert applied
    assert operators_of(new) == ["relax.matmul"]


def test_symbolic_dimensions_of_every_kind():
    n, k, m = (tvm.tirx.Var(name, "int64") for name in "nkm")
    params = [tensor("a", (n, 5, k)), tensor("b", (n, m, k))]
    steps = [
        lambda a, b: relax.op.permute_dims(b, [0, 2, 1]),
        lambda a, b, t: relax.op.matmul(a, t),
        lambda *v: half(v[-1]),
    ]
    check_one_kernel(module(params, steps), sizes={"n": 2, "k": 3, "m": 7})


def test_following_operators_join_the_function():
    steps = [
        lambda a, b: relax.op.permute_dims(b),
        lambda a, b, t: relax.op.matmul(a, t),
        lambda *v: relax.op.nn.relu(v[-1]),
        lambda *v: relax.op.exp(v[-1]),
    ]
    new = check_one_kernel(module([tensor("a", (5, 3)), tensor("b", (7, 3))], steps))
    assert operators_of(new) == ["relax.call_tir", "relax.exp"]


def test_instances_of_different_shape_and_type_get_their_own_functions():
    params = [
        tensor("a", (5, 3)),
        tensor("b", (7, 3)),
        tensor("c", (2, 4), "float16"),
        tensor("d", (6, 4), "float16"),
    ]
    steps = [
        lambda a, b, c, d: relax.op.matmul(a, relax.op.permute_dims(b)),
        lambda a, b, c, d, m: relax.op.matmul(c, relax.op.permute_dims(d)),
        lambda *v: relax.Tuple([v[4], v[5]]),
    ]
    new, applied, _ = apply_pass(module(params, steps))
    assert len(applied) == 2
    assert len(set(function_names(new))) == 2


@mutator
class _Stamp(PyExprMutator):
    def visit_var_binding_(self, binding):
        value = self.visit_expr(binding.value)
        var = retyped_var(binding.var, binding.var.ty, [f"node/{binding.value.op.name}"])
        self.builder_.emit_normalized(relax.VarBinding(var, value))
        self.set_var_remap(binding.var, var)


def _stamped(mod):
    stamp = _Stamp(mod)
    stamp.builder_.update_func(mod.get_global_var("main"), stamp.visit_expr(mod["main"]))
    return stamp.builder_.get()


def _origins(mod):
    bindings = [b for block in mod["main"].body.blocks for b in block.bindings]
    return [
        (b.value.op.name, origins_of(b.var)) for b in bindings if isinstance(b.value, relax.Call)
    ]


def test_function_carries_all_origins():
    @I.ir_module
    class Before:
        @R.function
        def main(a: R.Tensor((5, 3), "float32"), b: R.Tensor((7, 3), "float32")) -> R.Tensor(
            (5, 7), "float32"
        ):
            with R.dataflow():
                t = R.permute_dims(b)
                m = R.matmul(a, t)
                s = R.divide(m, R.const(2.0, "float32"))
                y = R.nn.relu(s)
                R.output(y)
            return y

    new, _, _ = apply_pass(_stamped(Before))
    names = ("relax.permute_dims", "relax.matmul", "relax.divide", "relax.nn.relu")
    assert _origins(new) == [("relax.call_tir", tuple(f"node/{name}" for name in names))]


def test_bindings_that_remain_keep_their_own_origins():
    @I.ir_module
    class Before:
        @R.function
        def main(a: R.Tensor((5, 3), "float32"), b: R.Tensor((3, 7), "float32")) -> R.Tensor(
            (5, 7), "float32"
        ):
            with R.dataflow():
                s = R.multiply(a, R.const(0.5, "float32"))
                m = R.matmul(s, b)
                y = R.nn.relu(m)
                R.output(y)
            return y

    new, _, _ = apply_pass(_stamped(Before))
    assert _origins(new) == [
        ("relax.matmul", ("node/relax.matmul",)),
        ("relax.multiply", ("node/relax.multiply", "node/relax.matmul")),
        ("relax.nn.relu", ("node/relax.nn.relu",)),
    ]
