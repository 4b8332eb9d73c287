"""GemmFusion: one kernel per matrix product, the same numbers, and recorded refusals."""

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.script import ir as I
from tvm.script import relax as R

from tvm_ext.relay_passes.gemm_fusion import GemmFusion
from tvm_ext.relay_passes.origin import origins_of, retyped_var
from tvm_ext.relay_passes.pass_log import recording

RNG = np.random.default_rng(7)


def _tensor(name, shape, dtype="float32"):
    return relax.Var(name, R.Tensor(shape, dtype))


def _const(*shape, dtype="float32"):
    return relax.const(RNG.standard_normal(shape).astype(dtype), dtype)


def _module(params, steps):
    """A module whose values are ``steps``: each is given the values so far and returns one more."""
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            values = list(params)
            for step in steps[:-1]:
                values.append(builder.emit(step(*values)))
            result = builder.emit_output(steps[-1](*values))
        builder.emit_func_output(result)
    return builder.get()


def _fused(mod):
    passes = [
        relax.transform.DecomposeOpsForInference(),
        relax.transform.LegalizeOps(),
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.FoldConstant(),
        relax.transform.FuseOps(),
        relax.transform.FuseTIR(),
        relax.transform.DeadCodeElimination(),
    ]
    return tvm.transform.Sequential(passes)(mod)


def _values(mod):
    return [b.value for block in mod["main"].body.blocks for b in block.bindings]


def _ops(mod):
    return [v.op.name for v in _values(mod) if isinstance(v, relax.Call)]


def _kernels(mod):
    return _ops(_fused(mod)).count("relax.call_tir")


def _run(mod, inputs):
    machine = relax.VirtualMachine(tvm.compile(_fused(mod), target="llvm"), tvm.cpu())
    return machine["main"](*[tvm.runtime.tensor(x) for x in inputs]).numpy()


def _inputs(mod, sizes=None):
    made = []
    for param in mod["main"].params:
        shape = [int((sizes or {}).get(str(d), 0) or d) for d in param.ty.shape.values]
        made.append(RNG.standard_normal(shape).astype(str(param.ty.dtype)))
    return made


def _apply(mod):
    before = mod.script()
    with recording() as log:
        new = GemmFusion()(mod)
    assert mod.script() == before
    relax.analysis.well_formed(new)
    tvm.ir.assert_structural_equal(GemmFusion()(new), new)
    return new, [d.reason for d in log if d.applied], [d.reason for d in log if not d.applied]


def _check(mod, rtol=1e-4, sizes=None):
    """Applies the pass, asserts one kernel and equal results; returns the new module."""
    new, applied, _ = _apply(mod)
    assert applied
    assert _kernels(new) == 1
    inputs = _inputs(mod, sizes)
    expected = _run(mod, inputs).astype("float64")
    got = _run(new, inputs).astype("float64")
    np.testing.assert_allclose(got, expected, rtol=rtol, atol=rtol * np.abs(expected).max())
    return new


def _is_call(value, name):
    return isinstance(value, relax.Call) and value.op.name == name


def _function_names(new):
    return [str(v.args[0].name_hint) for v in _values(new) if _is_call(v, "relax.call_tir")]


def _refused(mod, part):
    new, applied, refused = _apply(mod)
    assert not applied
    tvm.ir.assert_structural_equal(new, mod)
    assert any(part in reason for reason in refused), refused


def _half(value, dtype="float32"):
    return relax.op.multiply(value, relax.const(0.5, dtype))


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
    tvm.ir.assert_structural_equal(_check(before), expected)


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

    tvm.ir.assert_structural_equal(_check(Before), Expected)


def test_scale_after_the_product_goes_into_the_weight():
    w = _const(3, 7)
    new = _check(
        _module(
            [_tensor("x", (2, 5, 3))],
            [lambda x: relax.op.matmul(x, w), lambda x, m: _half(m)],
        )
    )
    assert _ops(new) == ["relax.matmul"]
    np.testing.assert_allclose(_values(new)[0].args[1].value.numpy(), w.value.numpy() * 0.5)


def test_scale_of_a_constant_addend_is_folded():
    w, c = _const(3, 7), _const(7)
    new = _check(
        _module(
            [_tensor("x", (5, 3))],
            [
                lambda x: relax.op.matmul(x, w),
                lambda x, m: _half(c),
                lambda x, m, b: relax.op.add(m, b),
            ],
        )
    )
    assert _ops(new) == ["relax.matmul", "relax.add"]


@pytest.mark.parametrize(("left", "right"), [(False, True), (True, False), (True, True)])
@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
def test_run_time_transposes_become_one_function(left, right, batch):
    axes = [*range(len(batch)), len(batch) + 1, len(batch)]
    a = _tensor("a", (*batch, 3, 5) if left else (*batch, 5, 3))
    b = _tensor("b", (*batch, 7, 3) if right else (*batch, 3, 7))

    def product(a, b, *_):
        at = relax.op.permute_dims(a, axes) if left else a
        bt = relax.op.permute_dims(b, axes) if right else b
        return relax.op.matmul(at, bt)

    new = _check(_module([a, b], [product]))
    letters = ("t" if left else "n") + ("t" if right else "n")
    kind = "batch_gemm" if batch else "gemm"
    assert _function_names(new) == [f"{kind}_{letters}"]


def _leaky(x):
    return relax.op.nn.leakyrelu(x, 0.1)


ACTS = {
    "relu": relax.op.nn.relu,
    "gelu": relax.op.nn.gelu,
    "gelu_tanh": relax.op.nn.gelu_tanh,
    "silu": relax.op.nn.silu,
    "sigmoid": relax.op.sigmoid,
    "tanh": relax.op.tanh,
    "clip": lambda x: relax.op.clip(x, 0, 6),
    "leakyrelu": _leaky,
}


def _attention_like(act, dtype="float32", addend=(5, 7), batch=(2,)):
    axes = [*range(len(batch)), len(batch) + 1, len(batch)]
    params = [
        _tensor("q", (*batch, 5, 3), dtype),
        _tensor("k", (*batch, 7, 3), dtype),
        _tensor("c", addend, dtype),
    ]
    steps = [
        lambda q, k, c: relax.op.permute_dims(k, axes),
        lambda q, k, c, t: relax.op.matmul(q, t),
        lambda *v: relax.op.divide(v[-1], relax.const(2.0, dtype)),
        lambda *v: relax.op.add(v[-1], v[2]),
        lambda *v: act(v[-1]),
    ]
    return _module(params, steps)


@pytest.mark.parametrize("name", ACTS)
def test_function_takes_in_scale_addend_and_activation(name):
    new = _check(_attention_like(ACTS[name]))
    assert _function_names(new) == [f"batch_gemm_nt_scale_add_{name}"]
    assert _ops(new) == ["relax.call_tir"]


@pytest.mark.parametrize("name", ACTS)
def test_half_precision_activations_agree_with_the_operators(name):
    _check(_attention_like(ACTS[name], "float16"), rtol=5e-3)


@pytest.mark.parametrize("addend", [(), (7,), (1, 7), (5, 1), (2, 5, 7), (2, 1, 1)])
def test_addends_of_every_broadcast_shape(addend):
    _check(_attention_like(relax.op.nn.relu, addend=addend))


def test_function_folds_a_constant_operand_and_scales_the_addend():
    w = _const(7, 3)
    steps = [
        lambda x, c: relax.op.permute_dims(x),
        lambda x, c, t: _half(t),
        lambda *v: relax.op.permute_dims(w),
        lambda *v: relax.op.matmul(v[3], v[4]),
        lambda *v: _half(v[1]),
        lambda *v: relax.op.add(v[5], v[6]),
    ]
    new = _check(_module([_tensor("x", (3, 5)), _tensor("c", (5, 7))], steps))
    assert _function_names(new) == ["gemm_tn_add"]
    constant = _values(new)[0].args[1].fields[1]
    np.testing.assert_allclose(constant.value.numpy(), w.value.numpy().T * 0.5)


def test_batch_axes_broadcast_as_in_matmul():
    a, b = _tensor("a", (4, 1, 5, 3)), _tensor("b", (2, 7, 3))
    steps = [
        lambda a, b: relax.op.permute_dims(b, [0, 2, 1]),
        lambda a, b, t: relax.op.matmul(a, t),
    ]
    _check(_module([a, b], steps))


def test_half_precision_accumulates_as_asked():
    params = [_tensor("a", (5, 64), "float16"), _tensor("b", (7, 64), "float16")]
    steps = [
        lambda a, b: relax.op.permute_dims(b),
        lambda a, b, t: relax.op.matmul(a, t, out_dtype="float32"),
        lambda *v: _half(v[-1]),
    ]
    new = _check(_module(params, steps), rtol=1e-5)
    assert str(new["main"].ret_ty.dtype) == "float32"


def test_exact_scale_stays_out_of_narrower_constants():
    w = _const(3, 7, dtype="float16")
    steps = [
        lambda x: relax.op.matmul(x, w, out_dtype="float32"),
        lambda x, m: relax.op.multiply(m, relax.const(0.3, "float32")),
    ]
    mod = _module([_tensor("x", (5, 3), "float16")], steps)
    new, applied, _ = _apply(mod)
    assert not applied
    tvm.ir.assert_structural_equal(new, mod)


def test_constant_that_would_lose_bits_is_not_scaled():
    w = relax.const(np.full((3, 7), 2e-7, "float16"), "float16")
    steps = [lambda x: relax.op.matmul(x, w), lambda x, m: _half(m, "float16")]
    _, applied, _ = _apply(_module([_tensor("x", (5, 3), "float16")], steps))
    assert not applied


def test_bfloat16_constants_are_folded():
    w = relax.const(np.ones((3, 4), ml_dtypes.bfloat16), "bfloat16")
    steps = [lambda x: relax.op.matmul(x, w), lambda x, m: _half(m, "bfloat16")]
    new, applied, _ = _apply(_module([_tensor("x", (5, 3), "bfloat16")], steps))
    assert applied
    assert _ops(new) == ["relax.matmul"]


def test_symbolic_dimensions_of_every_kind():
    n, k, m = (tvm.tirx.Var(name, "int64") for name in "nkm")
    params = [_tensor("a", (n, 5, k)), _tensor("b", (n, m, k))]
    steps = [
        lambda a, b: relax.op.permute_dims(b, [0, 2, 1]),
        lambda a, b, t: relax.op.matmul(a, t),
        lambda *v: _half(v[-1]),
    ]
    _check(_module(params, steps), sizes={"n": 2, "k": 3, "m": 7})


def test_following_operators_join_the_function():
    steps = [
        lambda a, b: relax.op.permute_dims(b),
        lambda a, b, t: relax.op.matmul(a, t),
        lambda *v: relax.op.nn.relu(v[-1]),
        lambda *v: relax.op.exp(v[-1]),
    ]
    new = _check(_module([_tensor("a", (5, 3)), _tensor("b", (7, 3))], steps))
    assert _ops(new) == ["relax.call_tir", "relax.exp"]


def _erf_gelu(v, half_first):
    gate = relax.op.add(
        relax.op.erf(relax.op.divide(v, relax.const(2**0.5, "float32"))),
        relax.const(1.0, "float32"),
    )
    return relax.op.multiply(_half(v), gate) if half_first else _half(relax.op.multiply(v, gate))


@pytest.mark.parametrize("half_first", [False, True])
def test_spelled_out_gelu_behind_reshaped_product_is_one_kernel(half_first):
    w, c = _const(3, 8), _const(8)
    steps = [
        lambda x: relax.op.matmul(x, w),
        lambda x, m: relax.op.add(m, c),
        lambda *v: relax.op.reshape(v[-1], (2, 3, 8)),
        lambda *v: _erf_gelu(v[-1], half_first),
        lambda *v: relax.op.reshape(v[-1], (6, 8)),
    ]
    new = _check(_module([_tensor("x", (6, 3))], steps))
    assert _ops(new) == ["relax.matmul", "relax.add", "relax.nn.gelu"]


def test_spelled_out_silu_is_named():
    w = _const(3, 8)
    steps = [
        lambda x: relax.op.matmul(x, w),
        lambda x, m: relax.op.sigmoid(m),
        lambda x, m, s: relax.op.multiply(m, s),
    ]
    assert _ops(_check(_module([_tensor("x", (5, 3))], steps))) == ["relax.matmul", "relax.nn.silu"]


def test_gelu_with_another_constant_is_left():
    w = _const(3, 8)
    steps = [
        lambda x: relax.op.matmul(x, w),
        lambda x, m: relax.op.erf(_half(m)),
        lambda *v: _half(relax.op.multiply(v[1], relax.op.add(v[2], relax.const(1.0, "float32")))),
    ]
    assert "relax.erf" in _ops(_apply(_module([_tensor("x", (5, 3))], steps))[0])


@pytest.mark.parametrize("addend", [(8,), (1, 1, 8), (2, 3, 8), ()])
def test_reshape_moves_behind_addends(addend):
    w, c = _const(3, 8), _const(*addend)
    steps = [
        lambda x: relax.op.matmul(x, w),
        lambda *v: relax.op.reshape(v[-1], (2, 3, 8)),
        lambda *v: relax.op.add(v[-1], c),
    ]
    mod = _module([_tensor("x", (6, 3))], steps)
    new, applied, _ = _apply(mod)
    assert applied == ["reshape moved behind the add"]
    assert _ops(new)[-1] == "relax.reshape"
    inputs = _inputs(mod)
    np.testing.assert_allclose(_run(new, inputs), _run(mod, inputs), rtol=1e-5)


@pytest.mark.parametrize("addend", [(3, 1), (2, 1, 1)])
def test_reshape_stays_before_addends_of_its_own_axes(addend):
    w, c = _const(3, 8), _const(*addend)
    steps = [
        lambda x: relax.op.matmul(x, w),
        lambda *v: relax.op.reshape(v[-1], (2, 3, 8)),
        lambda *v: relax.op.add(v[-1], c),
    ]
    assert not _apply(_module([_tensor("x", (6, 3))], steps))[1]


def test_shared_operand_is_left_and_recorded():
    steps = [
        lambda a, b: relax.op.permute_dims(b),
        lambda a, b, t: relax.op.matmul(a, t),
        lambda a, b, t, m: relax.op.add(m, t),
    ]
    mod = _module([_tensor("a", (3, 3)), _tensor("b", (3, 3))], steps)
    _refused(mod, "prepared operand has another user")


@pytest.mark.parametrize("keep", [3, 4, 5])
def test_inner_results_with_another_user_end_the_function(keep):
    steps = [
        lambda a, b: relax.op.permute_dims(b),
        lambda a, b, t: relax.op.matmul(a, t),
        lambda *v: _half(v[-1]),
        lambda *v: relax.op.add(v[-1], relax.const(1.0, "float32")),
        lambda *v: relax.op.nn.relu(v[-1]),
        lambda *v: relax.op.concat([v[-1], v[keep]], axis=0),
    ]
    mod = _module([_tensor("a", (5, 3)), _tensor("b", (7, 3))], steps)
    new, _, refused = _apply(mod)
    names = {3: "gemm_nt", 4: "gemm_nt_scale", 5: "gemm_nt_scale_add"}
    assert _function_names(new) == [names[keep]]
    assert "the result has another user, what follows stays outside" in refused
    inputs = _inputs(mod)
    np.testing.assert_allclose(_run(new, inputs), _run(mod, inputs), rtol=1e-4, atol=1e-5)


def test_product_with_another_user_keeps_its_weight():
    w = _const(3, 7)
    steps = [
        lambda x: relax.op.matmul(x, w),
        lambda x, m: _half(m),
        lambda x, m, s: relax.op.add(m, s),
    ]
    _refused(_module([_tensor("x", (5, 3))], steps), "its scale is not folded")


def test_products_that_share_a_weight_share_its_transpose_and_keep_its_scale():
    w = _const(7, 3)
    steps = [
        lambda x, y: relax.op.matmul(_half(x), relax.op.permute_dims(w)),
        lambda x, y, m: relax.op.matmul(y, relax.op.permute_dims(w)),
        lambda x, y, m, n: relax.op.add(m, n),
    ]
    mod = _module([_tensor("x", (5, 3)), _tensor("y", (5, 3))], steps)
    new, applied, _ = _apply(mod)
    assert len(applied) == 2
    weights = [v.args[1] for v in _values(new) if v.op.name == "relax.matmul"]
    assert weights[0].same_as(weights[1])
    inputs = _inputs(mod)
    np.testing.assert_allclose(_run(new, inputs), _run(mod, inputs), rtol=1e-4, atol=1e-5)


def test_two_products_that_meet_in_one_addition():
    steps = [
        lambda a, b, c: relax.op.matmul(a, relax.op.permute_dims(b)),
        lambda a, b, c, m: relax.op.matmul(a, relax.op.permute_dims(c)),
        lambda a, b, c, m, n: relax.op.add(m, n),
    ]
    mod = _module([_tensor("a", (5, 3)), _tensor("b", (7, 3)), _tensor("c", (7, 3))], steps)
    new, applied, _ = _apply(mod)
    assert len(applied) == 2
    assert sorted(_function_names(new)) == ["gemm_nt", "gemm_nt_add"]
    inputs = _inputs(mod)
    np.testing.assert_allclose(_run(new, inputs), _run(mod, inputs), rtol=1e-4, atol=1e-5)


def test_instances_of_different_shape_and_type_get_their_own_functions():
    params = [
        _tensor("a", (5, 3)),
        _tensor("b", (7, 3)),
        _tensor("c", (2, 4), "float16"),
        _tensor("d", (6, 4), "float16"),
    ]
    steps = [
        lambda a, b, c, d: relax.op.matmul(a, relax.op.permute_dims(b)),
        lambda a, b, c, d, m: relax.op.matmul(c, relax.op.permute_dims(d)),
        lambda *v: relax.Tuple([v[4], v[5]]),
    ]
    new, applied, _ = _apply(_module(params, steps))
    assert len(applied) == 2
    assert len(set(_function_names(new))) == 2


def test_head_split_of_attention_is_left():
    steps = [
        lambda q, k: relax.op.permute_dims(k, [0, 2, 3, 1]),
        lambda q, k, t: relax.op.matmul(q, t),
    ]
    mod = _module([_tensor("q", (1, 2, 5, 3)), _tensor("k", (1, 7, 2, 3))], steps)
    _refused(mod, "permute_dims [0, 2, 3, 1] moves more than the last two axes")


def test_integer_products_are_left():
    steps = [lambda a, b: relax.op.matmul(a, relax.op.permute_dims(b))]
    mod = _module([_tensor("a", (5, 3), "int32"), _tensor("b", (7, 3), "int32")], steps)
    _refused(mod, "operands are int32, not of one floating point type")


def test_operands_of_different_types_are_left():
    steps = [lambda a, b: relax.op.matmul(a, relax.op.permute_dims(b), out_dtype="float32")]
    mod = _module([_tensor("a", (5, 3), "float16"), _tensor("b", (7, 3))], steps)
    _refused(mod, "operands are float16 and float32")


def test_scale_that_is_a_vector_is_left():
    steps = [
        lambda a, b: relax.op.multiply(a, _const(3)),
        lambda a, b, s: relax.op.matmul(s, b),
    ]
    mod = _module([_tensor("a", (5, 3)), _tensor("b", (3, 7))], steps)
    _refused(mod, "not one finite number")


def test_scale_before_half_precision_accumulation_is_left():
    steps = [lambda a, b: _half(a, "float16"), lambda a, b, s: relax.op.matmul(s, b)]
    mod = _module([_tensor("a", (5, 3), "float16"), _tensor("b", (3, 7), "float16")], steps)
    _refused(mod, "may be what avoids overflow")


def test_addend_that_enlarges_the_result_stays_outside():
    mod = _attention_like(relax.op.nn.relu, addend=(4, 5, 7), batch=())
    new, _, refused = _apply(mod)
    assert _function_names(new) == ["gemm_nt_scale"]
    assert "the addend enlarges the result" in refused


def test_vector_operand_is_left():
    steps = [lambda a, b: relax.op.matmul(a, relax.op.permute_dims(b))]
    mod = _module([_tensor("a", (3,)), _tensor("b", (7, 3))], steps)
    _refused(mod, "an operand is a vector")


def test_unknown_shape_is_left():
    unknown = relax.Var("a", relax.TensorType(dtype="float32", ndim=2))
    steps = [lambda a, b: relax.op.matmul(a, relax.op.permute_dims(b))]
    _refused(_module([unknown, _tensor("b", (7, 3))], steps), "a shape is unknown")


def test_plain_products_are_not_mentioned():
    w, c = _const(3, 7), _const(7)
    steps = [
        lambda x: relax.op.matmul(x, w),
        lambda x, m: relax.op.add(m, c),
        lambda *v: relax.op.nn.relu(v[-1]),
    ]
    mod = _module([_tensor("x", (5, 3))], steps)
    assert _apply(mod)[1:] == ([], [])
    assert _kernels(mod) == 1


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

    _refused(Before, "another dataflow block")


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

    new, _, _ = _apply(_stamped(Before))
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

    new, _, _ = _apply(_stamped(Before))
    assert _origins(new) == [
        ("relax.matmul", ("node/relax.matmul",)),
        ("relax.multiply", ("node/relax.multiply", "node/relax.matmul")),
        ("relax.nn.relu", ("node/relax.nn.relu",)),
    ]
