"""Which of TVM's passes kernels go through."""

import pytest
import tvm
from lowering import f32, kernel_of
from machines import MACHINE
from tvm import relax, tirx

from tvm_ext.tir_schedules import lowering_pipeline
from tvm_ext.tir_schedules.lowering_pipeline import compile_kernels, pass_options
from tvm_ext.tir_schedules.schedule_kernels import schedule_kernel
from tvm_ext.tir_schedules.statements import has_exact_arrays


def _matmul(*rows: int | tirx.Var) -> tirx.PrimFunc:
    func = kernel_of(relax.op.matmul, ((*rows, 32), "float32"), f32(32, 48))
    return schedule_kernel(func, MACHINE)[0]


def test_only_kernels_with_arrays_of_a_schedule_are_looked_through(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernels = {"static": _matmul(40), "symbolic": _matmul(tirx.Var("rows", "int64"))}
    assert {name: has_exact_arrays(func) for name, func in kernels.items()} == {
        "static": False,
        "symbolic": True,
    }
    compacted: set[str] = set()
    without = lowering_pipeline._context_without

    @tvm.instrument.pass_instrument
    class Compacted:
        def run_before_pass(self, mod: tvm.IRModule, info: tvm.transform.PassInfo) -> None:
            if info.name == "s_tir.CompactBufferAllocation":
                compacted.update(str(var.name_hint) for var in mod.get_global_vars())

    def watched(ctx, passes):
        made = without(ctx, passes)
        made.override_instruments([Compacted()])
        return made

    monkeypatch.setattr(lowering_pipeline, "_context_without", watched)
    named = {name: func.with_attr("global_symbol", name) for name, func in kernels.items()}
    built = compile_kernels(tvm.IRModule(named), MACHINE.tvm_target())
    assert compacted == {"static"}
    assert all(built[name] is not None for name in kernels)


@pytest.mark.parametrize("rows", [40, tirx.Var("rows", "int64")], ids=["static", "symbolic"])
def test_the_passes_left_out_change_no_kernel(rows, monkeypatch: pytest.MonkeyPatch) -> None:
    named = {"main": _matmul(rows).with_attr("global_symbol", "main")}

    def code() -> str:
        target = MACHINE.tvm_target()
        with tvm.transform.PassContext(opt_level=3, config=pass_options(target)):
            name = lowering_pipeline.lowering_pipeline(target)
            return str(tirx.build(tvm.IRModule(named), target, name).inspect_source("asm"))

    without = code()
    monkeypatch.setattr(lowering_pipeline, "_WITHOUT_WORK_ON_CPUS", ())
    assert code() == without


def test_the_timing_of_passes_survives() -> None:
    """TVM's timing forgets what it counts when a context inside of its own ends with it."""
    timing = tvm.ir.instrument.PassTimingInstrument()
    func = schedule_kernel(kernel_of(relax.op.exp, f32(64)), MACHINE)[0]
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    assert compile_kernels(mod, MACHINE.tvm_target(), [timing])["main"] is not None
