"""The loops of gradients that are derived from a kernel's expression."""

from collections.abc import Callable

import numpy as np
import pytest
import tvm
from tvm import relax, te, tirx
from tvm.script import tirx as T
from unoptimised import machine_of

from tvm_ext.tir_schedules.analysis.buffer_access import is_load, nodes
from tvm_ext.training.gradients.kernels import DifferentiableKernel, NoGradient


def _gradient_of(func: tirx.PrimFunc, shape: tuple[int, ...]) -> tvm.IRModule:
    """From the operand of a kernel and the gradient of its result, of one shape, to that by it."""
    made = DifferentiableKernel.of(func, [0])
    bb = relax.BlockBuilder()
    value, given = (relax.Var(name, relax.TensorType(shape, "float32")) for name in ("x", "dy"))
    with bb.function("main", [value, given]):
        with bb.dataflow():
            out = bb.emit_output(made.emit(bb, [value], given)[0])
        bb.emit_func_output(out)
    return bb.get()


def _run(mod: tvm.IRModule, *arrays: np.ndarray) -> np.ndarray:
    return machine_of(mod)["main"](*map(tvm.runtime.tensor, arrays)).numpy()


def test_threads_do_not_add_to_the_same_element() -> None:
    """``x[i, j] * x[j, i]`` adds to an element in two rows: neither loop is on threads."""
    x = te.placeholder((4, 4), "float32", "x")
    y = te.compute((4, 4), lambda i, j: x[i, j] * x[j, i], "y")
    func = te.create_prim_func([x, y])
    mod = _gradient_of(func, (4, 4))
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
    a, b = (np.random.default_rng(n).random((4, 4), "float32") for n in (0, 1))
    found = _run(mod, a, b)
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


@pytest.mark.parametrize(
    ("element", "wanted"),
    [
        # Half to each operand that is equal, as in PyTorch and JAX: the number there has none.
        (lambda x: tirx.max(x, tirx.const(0, "float32")), [0, 0.5, 1]),
        (lambda x: tirx.min(x, tirx.const(0, "float32")), [1, 0.5, 0]),
        (lambda x: tirx.max(x, tirx.abs(x)), [-1, 0.5, 1]),
        (tirx.abs, [-1, 0, 1]),
    ],
    ids=["max", "min", "max of two", "abs"],
)
def test_what_is_equal_has_its_share(
    element: Callable[[tirx.Expr], tirx.Expr], wanted: list[float]
) -> None:
    x = te.placeholder((3,), "float32", "x")
    func = te.create_prim_func([x, te.compute((3,), lambda i: element(x[i]), "y")])
    values, given = np.array([-2, 0, 3], "float32"), np.full(3, 10, "float32")
    found = _run(_gradient_of(func, (3,)), values, given)
    # Of max(x, |x|) at 0, half is that of x, and half that of |x|, which is 0.
    np.testing.assert_allclose(found, 10 * np.array(wanted), rtol=1e-6)
