"""Accuracy, fusion and refusals of VectorMath."""

import numpy as np
import pytest
import scipy.special
import tvm
from tvm import relax, tirx
from tvm_ffi import structural_equal

from tvm_ext.relay_passes.pass_log import recording
from tvm_ext.relay_passes.vector_math import VectorMath

FUNCTIONS = {
    "exp": (relax.op.exp, np.exp, 80),
    "tanh": (relax.op.tanh, np.tanh, 12),
    "erf": (relax.op.erf, scipy.special.erf, 6),
    "sigmoid": (relax.op.sigmoid, scipy.special.expit, 80),
    "silu": (relax.op.nn.silu, lambda x: x * scipy.special.expit(x), 30),
    "gelu": (relax.op.nn.gelu, lambda x: x * scipy.special.ndtr(x), 4),
    "gelu_tanh": (
        relax.op.nn.gelu_tanh,
        lambda x: x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
        3,
    ),
}

# Without fused multiply-add, which the plain "llvm" target does not have.
RELATIVE_ERROR = {"exp": 5e-6, "tanh": 5e-7, "erf": 5e-7, "sigmoid": 5e-6}


def module(operator, shape=(3, 17), dtype="float32"):
    x = relax.Var("x", relax.TensorType(shape, dtype))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(operator(x))
        builder.emit_func_output(result)
    return builder.get()


def vectorised(mod):
    return tvm.transform.Sequential([VectorMath()])(mod)


def run(mod, *arrays):
    machine = relax.VirtualMachine(tvm.compile(mod, target="llvm"), tvm.cpu())
    return machine["main"](*map(tvm.runtime.tensor, arrays)).numpy()


def kernels(mod):
    return [str(g.name_hint) for g, f in mod.functions.items() if isinstance(f, tirx.PrimFunc)]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_error_is_a_few_units_in_the_last_place(name):
    operator, exact, end = FUNCTIONS[name]
    x = np.linspace(-end, end, 40001).astype("float32")
    after = vectorised(module(operator, x.shape))
    assert kernels(after) == [f"vector_{name}"]
    expected = exact(x.astype("float64"))
    error = np.abs(run(after, x) - expected)
    if name in RELATIVE_ERROR:
        assert np.max(error / np.abs(expected).clip(1e-30)) < RELATIVE_ERROR[name]
    else:
        # Products of x: where the other factor goes to 0, the error stays below that of x.
        assert np.max(error / np.maximum(np.abs(x), 1)) < 3e-7


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_softmax(axis):
    x = np.random.default_rng(0).normal(scale=9, size=(5, 19)).astype("float32")
    after = vectorised(module(lambda v: relax.op.nn.softmax(v, axis), x.shape))
    np.testing.assert_allclose(run(after, x), scipy.special.softmax(x, axis), rtol=1e-5, atol=1e-7)


def test_masked_softmax_gives_nothing_to_what_is_masked():
    x = np.array([[0.0, -np.inf, 1.0], [-np.inf, -np.inf, 2.0]], "float32")
    after = vectorised(module(lambda v: relax.op.nn.softmax(v, -1), x.shape))
    np.testing.assert_allclose(run(after, x), scipy.special.softmax(x, -1), rtol=1e-5, atol=1e-7)


def test_infinite_arguments_saturate():
    x = np.array([-np.inf, np.inf], "float32")
    np.testing.assert_allclose(run(vectorised(module(relax.op.tanh, (2,))), x), [-1, 1], rtol=1e-6)
    sigmoid = run(vectorised(module(relax.op.sigmoid, (2,))), x)
    np.testing.assert_allclose(sigmoid, [0, 1], atol=1e-30)


def test_exp_beyond_its_range():
    x = np.array([-np.inf, -200, -87.5, 88.5, 200, np.inf], "float32")
    np.testing.assert_array_equal(
        run(vectorised(module(relax.op.exp, (6,))), x), [0] * 3 + [np.inf] * 3
    )


@pytest.mark.parametrize("name", FUNCTIONS)
def test_nan_stays_nan(name):
    x = np.array([0.5, np.nan, -0.5], "float32")
    result = run(vectorised(module(FUNCTIONS[name][0], (3,))), x)
    np.testing.assert_array_equal(np.isnan(result), [False, True, False])


def test_softmax_of_nan_and_of_masks_alone_is_nan():
    x = np.array([[0.0, np.nan], [-np.inf, -np.inf], [0.0, -np.inf]], "float32")
    after = vectorised(module(lambda v: relax.op.nn.softmax(v, -1), x.shape))
    np.testing.assert_array_equal(run(after, x), [[np.nan] * 2, [np.nan] * 2, [1.0, 0.0]])


def test_fuses_with_what_comes_before_and_after():
    mod = vectorised(module(lambda x: relax.op.nn.relu(relax.op.nn.gelu(relax.op.add(x, x)))))
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


def test_symbolic_shape():
    x = np.random.default_rng(1).normal(size=(4, 3)).astype("float32")
    after = vectorised(module(relax.op.sigmoid, (tirx.Var("n", "int64"), 3)))
    np.testing.assert_allclose(run(after, x), scipy.special.expit(x), rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_other_types_are_refused(dtype):
    before = module(relax.op.exp, dtype=dtype)
    with recording() as decisions:
        after = vectorised(before)
    assert structural_equal(after, before)
    assert [(d.applied, d.reason) for d in decisions] == [
        (False, "exp of another type than float32")
    ]


def test_other_operators_are_left_alone():
    before = module(relax.op.log)
    assert vectorised(before).same_as(before) or structural_equal(vectorised(before), before)


def test_second_run_changes_nothing():
    once = vectorised(module(relax.op.nn.silu))
    assert structural_equal(vectorised(once), once)
