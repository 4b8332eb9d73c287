"""Recurrent layers: structure, decisions, assembly, and what is left."""

import re
from typing import Any

import pytest
import tvm
from combinations import pairwise
from cpu_kernels import refusal_of, scheduled
from decision_cases import assert_defaults_give_the_default_schedule, check_random_numbers
from lowering import f32, kernel_of, loops_of
from machines import MACHINE, NARROW, _cpu
from recurrent_kernels import recurrence, recurrent_kernel
from tvm import relax, s_tir, tirx
from unoptimised import built

from tvm_ext.hardware.cpu.host import host_description
from tvm_ext.tir_schedules.analysis.buffer_access import CONSTANTS_ATTRIBUTE
from tvm_ext.tir_schedules.cpu.recurrent_decision import decide_recurrence
from tvm_ext.tir_schedules.cpu.recurrent_layer import CpuRecurrentLayer
from tvm_ext.tir_schedules.cpu.thread_choice import with_thread_choice
from tvm_ext.tir_schedules.cpu.vector_math.rewrite import with_vector_math
from tvm_ext.tir_schedules.operators.recurrence import (
    Recurrence,
    described_by,
    recurrence_of,
)
from tvm_ext.tir_schedules.recorded_schedule import recorded_schedule, template_trace, workload
from tvm_ext.tir_schedules.schedule_kernels import schedule_kernel
from tvm_ext.tir_schedules.template import DEFAULT_DECISIONS, FixedDecisions


def assembly(func: tirx.PrimFunc, machine: Any) -> str:
    scheduled, choice = schedule_kernel(func, machine)
    assert (choice.schedule, choice.source) == ("recurrent layer", "template")
    final = with_vector_math(scheduled).func.with_attr("global_symbol", "main")
    mod = tvm.IRModule({"main": final})
    return str(tvm.compile(mod, target=machine.tvm_target()).mod.inspect_source("asm"))


MULTIPLY_ADDS = {
    "avx512": r"vfmadd231ps\s+-?\d*\(%r\w+(?:,%r\w+(?:,\d)?)?\), %zmm\d+, %zmm\d+",
    "avx2": r"vfmadd231ps\s+-?\d*\(%r\w+(?:,%r\w+(?:,\d)?)?\), %ymm\d+, %ymm\d+",
    "aarch64-neon": r"fmla\s+v\d+\.4s, v\d+\.4s, v\d+\.s\[\d\]|fmla\s+v\d+\.4s",
}


@pytest.mark.extended
@pairwise(target=MULTIPLY_ADDS, cell=["LSTM", "GRU", "RNN"])
def test_weights_are_operands_of_vector_multiply_adds(target: str, cell: str) -> None:
    text = assembly(recurrent_kernel(recurrence(cell)), _cpu(target))
    assert len(re.findall(MULTIPLY_ADDS[target], text)) >= 16
    # No call for each element.
    assert not re.search(r"\b(call|callq|bl)\s+_?(expf|tanhf)", text)


def test_the_annotation_says_all() -> None:
    layer = recurrence("GRU", 33, 2, clip=0.5, initial_h=True, batch_first=True)
    assert described_by(layer.annotation()) == layer
    found = recurrence_of(workload(recurrent_kernel(recurrence("GRU", 33, 2)))["main"])
    assert found is not None
    assert found.recurrence == recurrence("GRU", 33, 2)


@pytest.mark.parametrize(
    ("layer", "units", "padded"),
    [
        (recurrence("LSTM", 128), 32, 128),
        (recurrence("LSTM", 100), 16, 112),
        (recurrence("GRU", 64), 64, 64),
        (recurrence("GRU", 64, linear_before_reset=True), 32, 64),
        (recurrence("RNN", 100), 112, 112),
        (recurrence("RNN", 5), 16, 16),
    ],
    ids=str,
)
def test_blocks_of_units_pad_as_little_as_they_can(
    layer: Recurrence, units: int, padded: int
) -> None:
    assert (layer.units, layer.padded) == (units, padded)


def test_one_sequence_keeps_eight_vectors_of_sums() -> None:
    for machine, lanes in ((MACHINE, 16), (NARROW, 8)):
        for cell in ("LSTM", "GRU", "RNN"):
            operands = recurrence_of(recurrent_kernel(recurrence(cell)))
            assert operands is not None
            loops = decide_recurrence(operands, machine)
            gates = max(len(p.gates) for p in operands.recurrence.products())
            assert loops.rows == 1
            assert loops.ways * min(loops.gates, gates) * loops.units // lanes >= 8


def test_sequences_share_weights_and_leave_work_for_all_cores() -> None:
    layer = recurrence("LSTM", 256)
    operands = recurrence_of(recurrent_kernel(layer, 32, 8))
    assert operands is not None
    # Two groups of like size, though six would fit.
    assert decide_recurrence(operands, MACHINE.with_cores(1)).rows == 4
    loops = decide_recurrence(operands, MACHINE.with_cores(4))
    assert (loops.rows, loops.threads) == (2, True)


def kinds_of_loops(hidden: int, directions: int, batch: Any = 1) -> list[str]:
    func = recurrent_kernel(recurrence("LSTM", hidden, directions), 32, batch)
    sch = CpuRecurrentLayer().apply(func, MACHINE.with_cores(2), DEFAULT_DECISIONS)
    assert isinstance(sch, s_tir.Schedule)
    return [str(loop.kind) for loop in loops_of(sch.mod["main"])]


def test_directions_run_on_threads() -> None:
    assert kinds_of_loops(256, 2)[0] == "parallel"
    assert kinds_of_loops(256, 2).count("parallel") == 1
    assert "parallel" not in kinds_of_loops(64, 1)


@pytest.mark.parametrize("batch", [1, 3])
def test_units_are_shared_where_sequences_do_not_fill_the_cores(batch: int) -> None:
    kinds = kinds_of_loops(256, 1, batch)
    assert kinds.count("parallel") == 1
    # Within the loop over steps.
    assert kinds.index("serial") < kinds.index("parallel")


def test_a_batch_of_any_size_goes_in_groups_of_falling_size() -> None:
    for hidden, shared in ((256, True), (64, False)):
        func = recurrent_kernel(recurrence("LSTM", hidden), 32, tirx.Var("batch", "int64"))
        operands = recurrence_of(func)
        assert operands is not None
        loops = decide_recurrence(operands, MACHINE.with_cores(2))
        assert [part.rows for part in (loops, *loops.rest)] == [4, 3, 2, 1]
        assert {part.step_threads for part in (loops, *loops.rest)} == {shared}
        # A sequence alone has more units in registers.
        assert loops.units < loops.rest[-1].units


def test_sequences_share_a_part_of_the_weights_while_it_is_in_l1() -> None:
    """Whole lines of one gate's weights in registers, for all sequences before the next part."""
    batch = tirx.Var("batch", "int64")
    operands = recurrence_of(recurrent_kernel(recurrence("LSTM", 256), 32, batch))
    assert operands is not None
    loops = decide_recurrence(operands, NARROW.with_cores(1))
    assert (loops.rows, loops.gates, loops.units, loops.sequences) == (4, 1, 16, 16)
    part = loops.depth * loops.gates * loops.units * 4
    assert 0 < part <= NARROW.l1d_bytes // 4
    assert [(rest.rows, rest.depth) for rest in loops.rest] == [(3, 0), (2, 0), (1, 0)]


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("hidden", [64, 128])
def test_threads_of_an_open_batch_are_chosen_in_the_run(hidden: int, directions: int) -> None:
    """Of one sequence there is no whole group: nothing is divided by how many there are."""
    steps, batch = (tirx.Var(name, "int64") for name in ("steps", "batch"))
    func = recurrent_kernel(recurrence("LSTM", hidden, directions), steps, batch)
    machine = NARROW.with_cores(2)
    kernel = scheduled(CpuRecurrentLayer(), func, machine)
    assert with_thread_choice(kernel, machine).left == 0


def test_a_batch_of_no_sequence() -> None:
    func = recurrent_kernel(recurrence("LSTM", 20, 2), 2, 0)
    schedule, choice = schedule_kernel(func, MACHINE.with_cores(2))
    assert (choice.schedule, choice.source) == ("recurrent layer", "template")
    built({"main": schedule})


def integers(hidden: int = 64) -> tirx.PrimFunc:
    layer = recurrence("LSTM", hidden, quantized_state=True, integer_weights=True)
    return recurrent_kernel(layer).with_attr(CONSTANTS_ATTRIBUTE, [1])


def test_bytes_are_multiplied_four_at_a_time() -> None:
    # Weights are operands of the instruction: nothing widens them.
    pattern = r"vpdpbusd\s+-?\d*\(%r\w+[^)]*\), %zmm\d+, %zmm\d+"
    assert len(re.findall(pattern, assembly(integers(), _cpu("avx512-amx")))) >= 8


@pytest.mark.extended
def test_bytes_are_widened_where_no_instruction_multiplies_them() -> None:
    text = assembly(integers(), _cpu("avx512"))
    assert "vpdpbusd" not in text
    assert "vpmovsxbd" in text


@pytest.mark.slow
def test_decisions_at_random() -> None:
    plain = {
        "lstm": recurrent_kernel(recurrence("LSTM", 40, 2, initial_c=True, peepholes=True), 3, 5),
        "gru": recurrent_kernel(recurrence("GRU", 20), 3, 4),
        "gru, linear": recurrent_kernel(recurrence("GRU", 20, linear_before_reset=True), 3, 3),
        "rnn": recurrent_kernel(recurrence("RNN", 33, 2), 3, 7),
        "lstm, sums in memory": recurrent_kernel(recurrence("LSTM", 72), 2, 9),
    }
    machine = host_description().with_cores(2)
    check_random_numbers(CpuRecurrentLayer(), plain, machine=machine)


def test_every_decision_has_a_choice() -> None:
    func = recurrent_kernel(recurrence("LSTM", 64), 3, 4)
    knobs = assert_defaults_give_the_default_schedule(CpuRecurrentLayer(), func, MACHINE)
    assert {name: knob.options for name, knob in knobs.items()} == {
        "step_threads": (0, 1),
        "rows": (1, 2, 3, 4),
        "gates": (1, 2, 4),
        "units": (16,),
        "ways": (1,),
        "sequences": (4,),
        "depth": (0,),
        "threads": (0,),
    }
    scheduled(CpuRecurrentLayer(), func, MACHINE, FixedDecisions({"rows": 1}))


def test_a_record_holds_its_decisions() -> None:
    """The outermost block of the kernel is not called "root"."""
    func = recurrent_kernel(recurrence("LSTM", 64), 3, 4)
    chosen = FixedDecisions({"rows": 2})
    scheduled(CpuRecurrentLayer(), func, MACHINE, chosen)
    found = recorded_schedule(workload(func), template_trace(func, "recurrent layer", chosen))
    assert (found.template, found.decisions) == ("recurrent layer", chosen.free())
    assert found.decisions["rows"] == 2


def test_leaves_other_kernels() -> None:
    func = kernel_of(relax.op.exp, f32(16))
    assert refusal_of(CpuRecurrentLayer(), func) == "the kernel is no recurrent layer"
