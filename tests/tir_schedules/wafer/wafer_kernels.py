"""Kernels scheduled for a mesh by a template, read as programs of the mesh, and run on this CPU."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import tvm
from lowering import assert_same, run
from tvm import tirx
from unoptimised import built

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.targets import resolve_target
from tvm_ext.hardware.wafer.description import WaferDescription
from tvm_ext.hardware.wafer.program import BlockWork, Transfer, WaferProgram
from tvm_ext.tir_schedules.analysis.buffer_access import CONSTANTS_ATTRIBUTE
from tvm_ext.tir_schedules.apply_template import ScheduledKernel, apply_template
from tvm_ext.tir_schedules.template import FixedDecisions, Template
from tvm_ext.tuning.wafer.cost_model import read_program


def _mesh(name: str) -> WaferDescription:
    found = resolve_target(name)
    assert isinstance(found, WaferDescription)
    return found


WAFER = _mesh("wse2")
MESH = _mesh("mesh16")
# Rows and columns that differ, and that few extents are multiples of.
SMALL = MESH.with_grid(3, 5)


def scheduled(
    template: Template, func: tirx.PrimFunc, machine: WaferDescription = SMALL, **decisions: int
) -> tirx.PrimFunc:
    """``func`` as ``template`` schedules it, with some decisions given."""
    chosen = FixedDecisions(decisions)
    found = apply_template(template, func, machine, chosen)
    assert isinstance(found, ScheduledKernel), found
    assert chosen.unused() == []
    return found.func


def refusal(template: Template, func: tirx.PrimFunc, machine: Any = SMALL) -> str:
    """Why ``template`` leaves ``func`` alone."""
    found = apply_template(template, func, machine)
    assert isinstance(found, NotApplicable), "it was taken"
    return found.reason


def options(
    template: Template, func: tirx.PrimFunc, machine: WaferDescription = SMALL, **decisions: int
) -> dict[str, tuple[int, ...]]:
    """What ``template`` lets a tuner choose from, where there is a choice."""
    chosen = FixedDecisions(decisions)
    assert isinstance(apply_template(template, func, machine, chosen), ScheduledKernel)
    return {knob.name: knob.options for knob in chosen.knobs.values() if len(knob.options) > 1}


def program(
    template: Template, func: tirx.PrimFunc, machine: WaferDescription = SMALL, **decisions: int
) -> WaferProgram:
    """The program that the analysis reads from the schedule."""
    return read_program(scheduled(template, func, machine, **decisions))


def works(found: WaferProgram) -> dict[str, BlockWork]:
    """The work of each block, by its name."""
    return {leaf.name: leaf for leaf, _ in found.leaves() if isinstance(leaf, BlockWork)}


def transfers(found: WaferProgram) -> dict[str, Transfer]:
    """The messages, by the name of the buffer that they fill."""
    return {leaf.name: leaf for leaf, _ in found.leaves() if isinstance(leaf, Transfer)}


def message(transfer: Transfer) -> tuple[str, float, int]:
    """The pattern, the words of one PE and the PEs of the line."""
    return transfer.pattern, transfer.words, transfer.extent


def with_constants(func: tirx.PrimFunc, *positions: int) -> tirx.PrimFunc:
    """``func`` with the note that some of its parameters are the same in every call."""
    return func.with_attr(CONSTANTS_ATTRIBUTE, list(positions))


def check_numbers(
    template: Template,
    plain: Mapping[str, tirx.PrimFunc],
    machines: Iterable[WaferDescription] = (SMALL,),
    **decisions: int,
) -> None:
    """Each kernel computes the same for every mesh as without a schedule."""
    wanted = run(plain)
    for machine in machines:
        found = {name: scheduled(template, f, machine, **decisions) for name, f in plain.items()}
        results = run(found)
        for name in plain:
            assert_same(wanted[name], results[name], f"{name}, {machine.rows}x{machine.columns}")


def computed(func: tirx.PrimFunc, *inputs: np.ndarray) -> list[np.ndarray]:
    """The results of a kernel, which are its last parameters."""
    results = [
        tvm.runtime.tensor(np.zeros([int(size) for size in param.shape], str(param.dtype)))
        for param in list(func.params)[len(inputs) :]
    ]
    built({"main": func})["main"](*map(tvm.runtime.tensor, inputs), *results)
    return [one.numpy() for one in results]


def random(*shape: int) -> np.ndarray:
    """Numbers around 0, float32, the same at every call."""
    return np.random.default_rng(0).standard_normal(shape).astype("float32")
