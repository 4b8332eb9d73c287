"""Modules with matmuls, and what holds for each that GemmFusion changes."""

import numpy as np
import tvm
from random_numbers import RANDOM
from tvm import relax
from tvm.script import relax as R
from unoptimised import machine_of

from tvm_ext.relay_passes.gemm_fusion import GemmFusion
from tvm_ext.relay_passes.graph_pass import recording


def tensor(name, shape, dtype="float32"):
    return relax.Var(name, R.Tensor(shape, dtype))


def constant(*shape, dtype="float32"):
    return relax.const(RANDOM.standard_normal(shape).astype(dtype), dtype)


def module(params, steps):
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


def fused_kernels(mod):
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


def values_of(mod):
    return [b.value for block in mod["main"].body.blocks for b in block.bindings]


def operators_of(mod):
    return [v.op.name for v in values_of(mod) if isinstance(v, relax.Call)]


def kernel_count(mod):
    return operators_of(fused_kernels(mod)).count("relax.call_tir")


def run(mod, inputs):
    machine = machine_of(fused_kernels(mod))
    return machine["main"](*[tvm.runtime.tensor(x) for x in inputs]).numpy()


def random_inputs(mod, sizes=None):
    made = []
    for param in mod["main"].params:
        shape = [int((sizes or {}).get(str(d), 0) or d) for d in param.ty.shape.values]
        made.append(RANDOM.standard_normal(shape).astype(str(param.ty.dtype)))
    return made


def apply_pass(mod):
    before = mod.script()
    with recording() as log:
        new = GemmFusion()(mod)
    assert mod.script() == before
    relax.analysis.well_formed(new)
    tvm.ir.assert_structural_equal(GemmFusion()(new), new)
    return new, [d.reason for d in log if d.applied], [d.reason for d in log if not d.applied]


def check_one_kernel(mod, rtol=1e-4, sizes=None):
    """Applies the pass, asserts one kernel and equal results; returns the new module."""
    new, applied, _ = apply_pass(mod)
    assert applied
    assert kernel_count(new) == 1
    inputs = random_inputs(mod, sizes)
    expected = run(mod, inputs).astype("float64")
    got = run(new, inputs).astype("float64")
    np.testing.assert_allclose(got, expected, rtol=rtol, atol=rtol * np.abs(expected).max())
    return new


def is_call(value, name):
    return isinstance(value, relax.Call) and value.op.name == name


def function_names(new):
    return [str(v.args[0].name_hint) for v in values_of(new) if is_call(v, "relax.call_tir")]


def check_refused(mod, part):
    new, applied, refused = apply_pass(mod)
    assert not applied
    tvm.ir.assert_structural_equal(new, mod)
    assert any(part in reason for reason in refused), refused


def half(value, dtype="float32"):
    return relax.op.multiply(value, relax.const(0.5, dtype))


def attention_like(act, dtype="float32", addend=(5, 7), batch=(2,)):
    axes = [*range(len(batch)), len(batch) + 1, len(batch)]
    params = [
        tensor("q", (*batch, 5, 3), dtype),
        tensor("k", (*batch, 7, 3), dtype),
        tensor("c", addend, dtype),
    ]
    steps = [
        lambda q, k, c: relax.op.permute_dims(k, axes),
        lambda q, k, c, t: relax.op.matmul(q, t),
        lambda *v: relax.op.divide(v[-1], relax.const(2.0, dtype)),
        lambda *v: relax.op.add(v[-1], v[2]),
        lambda *v: act(v[-1]),
    ]
    return module(params, steps)
