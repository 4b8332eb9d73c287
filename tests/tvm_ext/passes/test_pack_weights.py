"""Weights of a compiled model are packed where all calls of a kernel pass constants."""

import numpy as np
import tvm
from tvm import relax, tirx

from tvm_ext.passes.pack_weights import mark_constant_parameters, pack_weights
from tvm_ext.relay_passes.spans import relax_bindings
from tvm_ext.tir_schedules.analysis.buffer_access import CONSTANTS_ATTRIBUTE
from tvm_ext.tir_schedules.packing import PackedOperand
from tvm_ext.tir_schedules.schedule_kernels import ScheduleChoice


def module(*constant: bool) -> tvm.IRModule:
    """Calls of one matmul kernel, with constant weights where ``constant`` says so."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([4, 8], "float32"))
    w = relax.Var("w", relax.TensorType([8, 8], "float32"))
    with builder.function("main", [x, w]):
        with builder.dataflow():
            result = x
            for position, fixed in enumerate(constant):
                weights = relax.const(np.full((8, 8), position, "float32")) if fixed else w
                result = builder.emit(relax.op.matmul(result, weights))
            result = builder.emit_output(result)
        builder.emit_func_output(result)
    return relax.transform.LegalizeOps()(builder.get())


def constant_positions(mod: tvm.IRModule) -> list[int]:
    (kernel,) = (func for func in mod.functions.values() if isinstance(func, tirx.PrimFunc))
    if kernel.attrs is None or CONSTANTS_ATTRIBUTE not in kernel.attrs:
        return []
    return [int(position) for position in kernel.attrs[CONSTANTS_ATTRIBUTE]]


def test_constant_in_every_call() -> None:
    assert constant_positions(mark_constant_parameters(module(True, True))) == [1]
    assert constant_positions(mark_constant_parameters(module(True, False))) == []
    assert constant_positions(mark_constant_parameters(module(False))) == []


def test_a_kernel_that_is_called_in_another_way_too() -> None:
    """What that gives it is not looked at."""
    mod = module(True)
    builder = relax.BlockBuilder(mod)
    x, w = (
        relax.Var(name, relax.TensorType(shape, "float32"))
        for name, shape in (("x", [4, 8]), ("w", [8, 8]))
    )
    with builder.function("other", [x, w]):
        kernel = mod.get_global_var("matmul")
        changed = relax.op.call_tir_inplace(
            kernel, [x, w], [0], relax.TensorType([4, 8], "float32")
        )
        builder.emit_func_output(builder.emit(changed))
    assert constant_positions(mark_constant_parameters(mod)) == [1]
    assert constant_positions(mark_constant_parameters(builder.get())) == []


def test_every_call_gets_its_packed_constant() -> None:
    mod = module(True, True)
    choice = ScheduleChoice("t", "template", "", packed=PackedOperand(1, 1, 4))
    packed = pack_weights(mod, {"matmul": choice})
    shapes = [
        [int(size) for size in binding.value.args[1].fields[1].ty.shape]
        for binding in relax_bindings(packed)
        if isinstance(binding.value, relax.Call)
    ]
    assert shapes == [[2, 8, 4], [2, 8, 4]]
    assert pack_weights(mod, {}).same_as(mod)
