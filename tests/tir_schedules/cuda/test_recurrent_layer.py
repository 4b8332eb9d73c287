"""Recurrent layers on a GPU: numbers of every form, barriers, registers, decisions."""

from pathlib import Path
from typing import Any

import pytest
from cuda_kernels import (
    assert_numbers,
    cuda_source,
    needs_nvcc,
    resources,
    scheduled,
    shared_bytes,
    whole_source,
)
from emulated_kernels import assert_emulated
from machines import GPU, MACHINE
from recurrent_kernels import SIGMOID, TANH, recurrence, recurrent_kernel
from thoroughness import one_in
from tvm import tirx

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.tir_schedules.apply_template import apply_template
from tvm_ext.tir_schedules.cuda.recurrent_layer import CudaRecurrentLayer, decide_recurrence
from tvm_ext.tir_schedules.operators.recurrence import Activation, Recurrence, recurrence_of
from tvm_ext.tir_schedules.schedule_kernels import schedule_kernel
from tvm_ext.tir_schedules.template import FixedDecisions

TEMPLATE = CudaRecurrentLayer()
STATES = {"initial_h": True, "lengths": True}
DIFFERENT = ((SIGMOID, TANH), (Activation("hardsigmoid", 0.2, 0.5), Activation("relu")))

LAYERS: dict[str, tuple[Recurrence, int, int]] = {
    "lstm": (recurrence("LSTM", 20), 3, 3),
    "lstm with everything": (
        recurrence("LSTM", 19, 2, initial_c=True, peepholes=True, clip=0.7, **STATES),
        *(3, 3),
    ),
    "lstm batch first": (recurrence("LSTM", 16, batch_first=True, input_forget=True), 2, 2),
    "gru": (recurrence("GRU", 20, 2, initial_h=True), 3, 2),
    "gru in one": (recurrence("GRU", 9, linear_before_reset=True, **STATES), 3, 3),
    "rnn": (recurrence("RNN", 33, 2), 4, 1),
    "two kinds of activations": (
        Recurrence("GRU", 17, (False, True), DIFFERENT, lengths=True),
        *(3, 2),
    ),
}


@pytest.mark.parametrize(
    ("names", "decided"),
    one_in(
        2,
        [
            (tuple(LAYERS), {"ways": 4}),
            (("lstm", "gru", "gru in one"), {"rows": 2, "held": 0}),
            (("lstm", "rnn"), {"rows": 1, "ways": 8, "held": 1}),
            (("lstm", "gru in one", "rnn"), {"held": 0, "blocks": 2}),
            (("lstm with everything",), {"held": 0, "blocks": 4}),
        ],
    ),
)
def test_numbers(names: tuple[str, ...], decided: dict[str, int]) -> None:
    plain = {name: recurrent_kernel(*LAYERS[name]) for name in names}
    found = {}
    for name, func in plain.items():
        decisions = FixedDecisions(decided, lenient=True)
        found[name] = scheduled(TEMPLATE, func, decisions=decisions)
        assert not decisions.unused()
    assert_numbers(plain, found)


def test_more_units_than_threads() -> None:
    machine = GPU.model_copy(update={"max_threads_per_block": 32})
    func = recurrent_kernel(recurrence("LSTM", 40), 3, 2)
    found = scheduled(TEMPLATE, func, machine)
    assert 'thread_binding(T.int64(16), thread="threadIdx.x")' in found.script()
    assert_numbers({"layer": func}, {"layer": found})


def test_barriers_between_phases() -> None:
    def barriers(cell: str) -> int:
        func = recurrent_kernel(recurrence(cell, 128), 8, 2)
        loop = cuda_source(scheduled(TEMPLATE, func)).split("for (int i = 0; i < 8")[1]
        return loop.count("__syncthreads")

    assert barriers("LSTM") == 2, "one before the sums, one behind them"
    assert barriers("GRU") == 4, "two for each product"


@needs_nvcc
def test_resources(tmp_path: Path) -> None:
    cells = [("LSTM", 64), ("LSTM", 128), ("GRU", 64), ("LSTM", 512)]
    functions = [scheduled(TEMPLATE, recurrent_kernel(recurrence(*cell))) for cell in cells]
    source = whole_source(*functions)
    assert shared_bytes(source) <= len(cells) * GPU.shared_memory_bytes
    for kernel in resources(source, "sm_80", tmp_path):
        assert not kernel.spilled
        assert not kernel.stack, "weights that are held have constant places"


def test_default_heuristic() -> None:
    def decided(cell: str, hidden: int, batch: int) -> Any:
        operands = recurrence_of(recurrent_kernel(recurrence(cell, hidden), 8, batch))
        assert operands is not None
        return decide_recurrence(operands, GPU)

    small, large, many = decided("LSTM", 64, 1), decided("GRU", 512, 1), decided("GRU", 64, 1000)
    assert small.held
    assert not large.held
    assert small.units * small.ways == large.units * large.ways == 512
    assert small.rows == large.rows == 1
    assert many.rows > 1, "more sequences than multiprocessors"


def test_a_launch_for_each_step_of_large_layers() -> None:
    """Where one multiprocessor would read all weights in every step, at its share of L2."""

    def decided(cell: str, hidden: int, batch: int, steps: Any = 8) -> Any:
        operands = recurrence_of(recurrent_kernel(recurrence(cell, hidden), steps, batch))
        assert operands is not None
        return decide_recurrence(operands, GPU)

    assert decided("LSTM", 64, 1).blocks == 1
    assert decided("LSTM", 512, 1).blocks > GPU.sms // 4
    assert decided("LSTM", 512, 8).rows > 1, "sequences share the weights"
    assert decided("LSTM", 512, 1, tirx.Var("steps", "int64")).blocks == 1
    assert decided("GRU", 512, 1).blocks == 1, "its second product waits for the first"


def test_steps_and_groups_of_sequences_emulated() -> None:
    cases = {"lstm with everything": {"blocks": 4, "rows": 2}, "gru in one": {"blocks": 2}}
    plain = {name: recurrent_kernel(*LAYERS[name]) for name in cases}
    found = {
        name: scheduled(TEMPLATE, plain[name], decisions=FixedDecisions({"held": 0, **how}))
        for name, how in cases.items()
    }
    assert_emulated(plain, found)


def test_it_is_the_template_of_such_layers() -> None:
    _, choice = schedule_kernel(recurrent_kernel(recurrence("GRU", 40)), GPU)
    assert (choice.schedule, choice.source) == ("recurrent layer", "template")


def test_refusals() -> None:
    func = recurrent_kernel(recurrence("LSTM", 40))
    assert isinstance(apply_template(TEMPLATE, func, MACHINE), NotApplicable)
    huge = apply_template(TEMPLATE, recurrent_kernel(recurrence("RNN", 20000)), GPU)
    assert isinstance(huge, NotApplicable)
    assert "shared memory" in huge.reason
