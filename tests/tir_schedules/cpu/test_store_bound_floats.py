"""Floats that are bound to names, while LLVM's code is generated."""

import numpy as np
import tvm
import tvm_ffi
from machines import _cpu
from tvm import tirx

from tvm_ext.tir_schedules.analysis.buffer_access import nodes
from tvm_ext.tir_schedules.cpu.store_bound_floats import StoreBoundFloats
from tvm_ext.tir_schedules.lowering_pipeline import compile_kernels
from tvm_ext.tir_schedules.statements import in_root_block, sequence

SQUARES = 6


def repeated_squares() -> tirx.PrimFunc:
    """Each value is the last one's square less half of it: written out, it has 2^6 terms."""
    x, y = (tirx.decl_buffer((1,), "float32", name) for name in "xy")
    first = [tirx.const(0, "int64")]
    count = tirx.Var("count", "int64")
    values = [tirx.BufferLoad(x, first)]
    binds = [tirx.Bind(count, tirx.const(3, "int64"))]
    for number in range(SQUARES):
        var = tirx.Var(f"v{number}", "float32")
        binds.append(tirx.Bind(var, values[-1] * values[-1] - values[-1] * tirx.const(0.5)))
        values.append(var)
    store = tirx.BufferStore(y, values[-1], first)
    func = tirx.PrimFunc([x, y], in_root_block(sequence([*binds, store])))
    return func.with_attr({"global_symbol": "main", "tirx.noalias": True})


def test_names_of_floats_become_arrays_and_those_of_integers_stay() -> None:
    mod = tvm.IRModule({"main": repeated_squares()})
    found = StoreBoundFloats()(mod)["main"]
    assert [str(bound.var.name) for bound in nodes(found.body, tirx.Bind)] == ["count"]
    assert len(nodes(found.body, tirx.AllocBuffer)) == SQUARES
    assert StoreBoundFloats()(tvm.IRModule({"main": found}))["main"].same_as(found)


def test_what_was_stored_is_computed_with() -> None:
    built = compile_kernels(tvm.IRModule({"main": repeated_squares()}), _cpu("avx2").tvm_target())
    x, y = np.full(1, 0.75, "float32"), np.zeros(1, "float32")
    built["main"](tvm_ffi.from_dlpack(x), tvm_ffi.from_dlpack(y))
    expected = x[0]
    for _ in range(SQUARES):
        expected = np.float32(expected * expected - expected * np.float32(0.5))
    np.testing.assert_allclose(y[0], expected, rtol=1e-4)
