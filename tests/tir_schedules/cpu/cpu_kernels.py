"""Kernels as a template for CPUs leaves them, before anything else is done to their loops."""

from functools import partial

import pytest
from lowering import Kernels, assert_same, run
from machines import MACHINE, NARROW
from thoroughness import ALL_CASES
from tvm import tirx

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.machine import MachineDescription
from tvm_ext.tir_schedules.cpu.register_tile import RegisterTile
from tvm_ext.tir_schedules.template import DEFAULT_DECISIONS, Decisions, Template


def scheduled(
    template: Template,
    func: tirx.PrimFunc,
    machine: MachineDescription = MACHINE,
    decisions: Decisions = DEFAULT_DECISIONS,
) -> tirx.PrimFunc:
    """``func`` as ``template`` schedules it; raises the template's reason otherwise."""
    return template.apply(func, machine, decisions).mod["main"]


# Without what is done to register tiles afterwards.
tiled = partial(scheduled, RegisterTile())


def refusal_of(
    template: Template, func: tirx.PrimFunc, machine: MachineDescription = MACHINE
) -> str:
    """Why ``template`` leaves ``func`` alone."""
    with pytest.raises(NotApplicable) as refused:
        template.apply(func, machine, DEFAULT_DECISIONS)
    return refused.value.reason


def check_vectors_and_threads(template: Template, plain: Kernels) -> None:
    """The same numbers with wide and with narrow vectors, on one thread and on several.

    Threads share loops outside of the vectors: not every pair of both unless all are asked for.
    """
    machines = [MACHINE.with_cores(1), NARROW.with_cores(4)]
    if ALL_CASES:
        machines += [MACHINE.with_cores(4), NARROW.with_cores(1)]
    found = {
        (name, f"{name} {machine.name} {machine.cores}"): scheduled(template, func, machine)
        for name, func in plain.items()
        for machine in machines
    }
    results = run(plain | {label: func for (_, label), func in found.items()})
    for name, label in found:
        assert_same(results[name], results[label], label)
