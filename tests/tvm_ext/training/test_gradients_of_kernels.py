"""The loops of gradients that are derived from a kernel's expression."""

import numpy as np
import pytest
import tvm
from tvm import relax, te, tirx
from tvm.script import tirx as T
from unoptimised import machine_of

from tvm_ext.tir_schedules.analysis.buffer_access import is_load, nodes
from tvm_ext.training.gradients.kernels import DifferentiableKernel, NoGradient


def test_threads_do_not_add_to_the_same_element() -> None:
    """``x[i, j] * x[j, i]`` adds to an element in two rows: neither loop is on threads."""
    x = te.placeholder((4, 4), "float32", "x")
    y = te.compute((4, 4), lambda i, j: x[i, j] * x[j, i], "y")
    func = te.create_prim_func([x, y])
    made = DifferentiableKernel.of(func, [0])
    bb = relax.BlockBuilder()
    value, given = (relax.Var(name, relax.TensorType((4, 4), "float32")) for name in ("x", "dy"))
    with bb.function("main", [value, given]):
        with bb.dataflow():
            out = bb.emit_output(made.emit(bb, [value], given)[0])
        bb.emit_func_output(out)
    mod = bb.get()
    added_on_threads = [
        store
        for func in mod.functions.values()
        if isinstance(func, tirx.PrimFunc)
        for loop in nodes(func.body, tirx.For)
        if loop.kind == tirx.ForKind.PARALLEL
        for store in nodes(loop.body, tirx.BufferStore)
        if any(is_load(load, store.buffer) for load in nodes(store.value, tvm.ir.TensorLoad))
    ]
    assert not added_on_threads
    machine = machine_of(mod)
    a, b = (np.random.default_rng(n).random((4, 4), "float32") for n in (0, 1))
    found = machine["main"](tvm.runtime.tensor(a), tvm.runtime.tensor(b)).numpy()
    np.testing.assert_allclose(found, a.T * (b + b.T), rtol=1e-6)


def test_a_kernel_that_reads_what_it_writes_has_no_gradient() -> None:
    @T.prim_func(private=True, s_tir=True)
    def running(x: T.Buffer((4,), "float32"), y: T.Buffer((4,), "float32")):
        for n in range(4):
            with T.sblock("y"):
                i = T.axis.spatial(4, n)
                y[i] = x[i] + y[i]

    with pytest.raises(NoGradient):
        DifferentiableKernel.of(running, [0])
