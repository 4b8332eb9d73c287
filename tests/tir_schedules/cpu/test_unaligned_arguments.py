"""Kernels read and write vectors at any address of their arguments."""

import numpy as np
import pytest
import tvm
import tvm_ffi
from machines import _cpu
from tvm import te, tirx

from tvm_ext.tir_schedules.cpu.unaligned_arguments import UnalignedArguments
from tvm_ext.tir_schedules.lowering_pipeline import compile_kernels
from tvm_ext.tir_schedules.schedule_kernels import schedule_kernel

SIZE = 256


def doubled() -> tirx.PrimFunc:
    x = te.placeholder((SIZE,), "float32", "x")
    kernel = te.create_prim_func([x, te.compute((SIZE,), lambda i: x[i] + x[i], "y")])
    machine = _cpu("avx2").with_cores(1)
    return schedule_kernel(kernel, machine)[0].with_attr("global_symbol", "doubled")


def test_the_promise_goes_and_nothing_else() -> None:
    packed = tirx.transform.MakePackedAPI()(
        tirx.transform.BindTarget(_cpu("avx2").tvm_target().with_host("llvm"))(
            tvm.IRModule({"doubled": doubled()})
        )
    )
    found = UnalignedArguments()(packed)
    assert packed.script().count("storage_alignment") == 2
    assert "storage_alignment" not in found.script()
    assert found.script().count("assert") == packed.script().count("assert")
    assert UnalignedArguments()(found).script() == found.script()


@pytest.mark.parametrize("offset", [0, 1, 4])
def test_memory_that_begins_anywhere(offset: int) -> None:
    built = compile_kernels(tvm.IRModule({"doubled": doubled()}), _cpu("avx2").tvm_target())
    room = np.arange(2 * SIZE + 16, dtype="float32")
    x, y = room[offset : offset + SIZE], np.zeros(SIZE + 8, "float32")[offset : offset + SIZE]
    built["doubled"](tvm_ffi.from_dlpack(x), tvm_ffi.from_dlpack(y))
    np.testing.assert_array_equal(y, 2 * x)
