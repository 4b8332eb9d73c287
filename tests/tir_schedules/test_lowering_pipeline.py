"""Which of TVM's passes kernels go through."""

import re

import numpy as np
import pytest
import tvm
from lowering import f32, kernel_of
from machines import MACHINE
from tvm import relax, s_tir, tirx
from unoptimised import HOST

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


def _assembly(func: tirx.PrimFunc) -> str:
    target = MACHINE.tvm_target()
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    with tvm.transform.PassContext(opt_level=3, config=pass_options(target)):
        built = tirx.build(mod, target, lowering_pipeline.lowering_pipeline(target))
    return str(built.inspect_source("asm"))


@pytest.mark.extended
@pytest.mark.parametrize("rows", [40, tirx.Var("rows", "int64")], ids=["static", "symbolic"])
def test_the_passes_left_out_change_no_kernel(
    rows: int | tirx.Var, monkeypatch: pytest.MonkeyPatch
) -> None:
    without = _assembly(_matmul(rows))
    monkeypatch.setattr(lowering_pipeline, "_WITHOUT_WORK", ())
    assert _assembly(_matmul(rows)) == without


def test_kernels_of_others_that_need_the_passes_get_them() -> None:
    """A template of a user's may bind loops to virtual threads, which TVM unrolls."""
    i = tirx.Var("i", "int32")
    x = tirx.decl_buffer((8,), "float32", "x")
    body = tirx.BufferStore(x, i.astype("float32"), [i])
    thread = tirx.IterVar((0, 8), i, tirx.IterVar.ThreadIndex, "vthread.x")
    bound = tirx.For(i, 0, 8, tirx.ForKind.THREAD_BINDING, body, thread)
    plain = tirx.For(i, 0, 8, tirx.ForKind.SERIAL, body)
    func = tirx.PrimFunc([x], bound).with_attr({"s_tir": True, "global_symbol": "main"})
    left_out = set(lowering_pipeline._WITHOUT_WORK)
    assert left_out <= set(lowering_pipeline._idle_passes(func.with_body(plain)))
    assert not left_out & set(lowering_pipeline._idle_passes(func))
    written = tvm.runtime.tensor(np.zeros(8, "float32"))
    compile_kernels(func, HOST.tvm_target())(written)
    np.testing.assert_array_equal(written.numpy(), np.arange(8))


def test_a_loop_of_others_in_a_pipeline_is_lowered() -> None:
    """TVM writes stages before and after the loop as well; InjectVirtualThread renames arrays."""
    schedule = s_tir.Schedule(kernel_of(lambda x: relax.op.negative(x), f32(8, 16)))
    (block,) = schedule.get_child_blocks(schedule.get_sblock("root"))
    i, j = schedule.get_loops(block)
    row, element = (schedule.cache_read(block, 0, "global") for _ in range(2))
    schedule.compute_at(element, j)
    schedule.compute_at(row, i)
    schedule.annotate(i, "software_pipeline_stage", [0, 1])
    schedule.annotate(i, "software_pipeline_order", [0, 1])
    x, y = (tvm.runtime.tensor(np.arange(128, dtype="float32").reshape(8, 16)) for _ in "xy")
    func = schedule.mod["main"].with_attr("global_symbol", "main")
    assert "s_tir.InjectVirtualThread" not in lowering_pipeline._idle_passes(func)
    compile_kernels(func, HOST.tvm_target())(x, y)
    np.testing.assert_array_equal(y.numpy(), -x.numpy())


def _copied_by_threads(*extents: int) -> tirx.PrimFunc:
    """Two threads for each of ``extents``, which copy as many elements each."""
    x, y = (tirx.decl_buffer((256,), "float32", name) for name in "xy")
    loops, begin = [], 0
    for extent in extents:
        part, i = tirx.Var("part", "int32"), tirx.Var("i", "int32")
        place = begin + part * extent + i
        copy = tirx.BufferStore(y, x[place], [place])
        serial = tirx.For(i, 0, extent, tirx.ForKind.SERIAL, copy)
        loops.append(tirx.For(part, 0, 2, tirx.ForKind.PARALLEL, serial))
        begin += 2 * extent
    return tirx.PrimFunc([x, y], tirx.stmt_seq(*loops)).with_attr("s_tir", True)


def test_threads_are_not_started_for_nothing() -> None:
    """The tail of a loop that is cut into whole parts may have no iterations."""
    launched = [
        len(
            re.findall(
                r"(?m)^\S*__tvm_parallel_lambda\S*:", _assembly(_copied_by_threads(*extents))
            )
        )
        for extents in [(32,), (32, 0), (32, 16)]
    ]
    assert launched == [1, 1, 2]


def test_the_timing_of_passes_survives() -> None:
    """TVM's timing forgets what it counts when a context inside of its own ends with it."""
    timing = tvm.ir.instrument.PassTimingInstrument()
    func = schedule_kernel(kernel_of(relax.op.exp, f32(64)), MACHINE)[0]
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    assert compile_kernels(mod, MACHINE.tvm_target(), [timing])["main"] is not None
