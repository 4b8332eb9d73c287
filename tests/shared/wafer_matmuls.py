"""Products as kernels, scheduled for a mesh and run on this CPU."""

import numpy as np
import tvm
from tvm import te
from unoptimised import built

from tvm_ext.hardware.targets import resolve_target
from tvm_ext.tir_schedules.apply_template import ScheduledKernel, apply_template
from tvm_ext.tir_schedules.template import FixedDecisions

WSE2 = resolve_target("wse2")


def product(
    m: int, n: int, k: int, *, batch: int = 0, transposed: bool = False, relu: bool = False
):
    """C[b, m, n] of A[b, m, k] and B[b, k, n], or B[b, n, k] if ``transposed``."""
    lead = (batch,) if batch else ()
    a = te.placeholder((*lead, m, k), name="A")
    b = te.placeholder((*lead, n, k) if transposed else (*lead, k, n), name="B")
    r = te.reduce_axis((0, k), name="k")

    def body(*indices):
        *outer, i, j = indices
        right = b[(*outer, j, r)] if transposed else b[(*outer, r, j)]
        return te.sum(a[(*outer, i, r)] * right, axis=r)

    c = te.compute((*lead, m, n), body, name="C")
    if not relu:
        return te.create_prim_func([a, b, c])
    d = te.compute(c.shape, lambda *at: te.max(c(*at), 0.0), name="D")
    return te.create_prim_func([a, b, d])


def scheduled(template, func, **decisions) -> ScheduledKernel:
    """``func`` as ``template`` schedules it for wse2 with some decisions given."""
    found = apply_template(template, func, WSE2, FixedDecisions(decisions))
    assert isinstance(found, ScheduledKernel), found
    return found


def run(func, *arrays: np.ndarray) -> np.ndarray:
    """The last parameter after a run on this CPU."""
    shape = [int(size) for size in func.params[-1].shape]
    result = tvm.runtime.tensor(np.full(shape, np.nan, "float32"))
    built({"main": func})["main"](*map(tvm.runtime.tensor, arrays), result)
    return result.numpy()


def random(*shape: int) -> np.ndarray:
    """Numbers around 0, the same at every call."""
    return np.random.default_rng(0).standard_normal(shape).astype("float32")
