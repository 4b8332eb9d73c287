"""Which kernels TVM looks through for arrays that can be smaller."""

import tvm
from lowering import f32, kernel_of
from machines import MACHINE
from tvm import relax, tirx

from tvm_ext.tir_schedules.lowering_pipeline import compile_kernels
from tvm_ext.tir_schedules.schedule_kernels import schedule_kernel
from tvm_ext.tir_schedules.statements import has_exact_arrays


@tvm.instrument.pass_instrument
class _Compacted:
    """The kernels that CompactBufferAllocation runs on."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def run_before_pass(self, mod: tvm.IRModule, info: tvm.transform.PassInfo) -> None:
        if info.name == "s_tir.CompactBufferAllocation":
            self.names |= {str(var.name_hint) for var in mod.get_global_vars()}


def _matmul(*rows: int | tirx.Var) -> tirx.PrimFunc:
    func = kernel_of(relax.op.matmul, ((*rows, 32), "float32"), f32(32, 48))
    return schedule_kernel(func, MACHINE)[0]


def test_only_kernels_with_arrays_of_a_schedule_are_looked_through() -> None:
    kernels = {"static": _matmul(40), "symbolic": _matmul(tirx.Var("rows", "int64"))}
    assert {name: has_exact_arrays(func) for name, func in kernels.items()} == {
        "static": False,
        "symbolic": True,
    }
    named = {name: func.with_attr("global_symbol", name) for name, func in kernels.items()}
    seen = _Compacted()
    built = compile_kernels(tvm.IRModule(named), MACHINE.tvm_target(), [seen])
    assert seen.names == {"static"}
    assert all(built[name] is not None for name in kernels)


def test_the_timing_of_passes_survives() -> None:
    """TVM's timing forgets what it counts when a context inside of its own ends with it."""
    timing = tvm.ir.instrument.PassTimingInstrument()
    func = schedule_kernel(kernel_of(relax.op.exp, f32(64)), MACHINE)[0]
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    assert compile_kernels(mod, MACHINE.tvm_target(), [timing])["main"] is not None
