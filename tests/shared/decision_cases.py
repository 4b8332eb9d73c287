"""Decisions of a template drawn at random, and what the schedules that follow from them compute."""

import random
from collections.abc import Iterable, Mapping

import numpy as np
import tvm
from lowering import assert_same, run, statements
from thoroughness import ALL_CASES, DRAWS, some_of
from tvm import s_tir, tirx
from tvm_ffi import structural_equal
from unoptimised import built

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.hardware.cpu.host import host_description
from tvm_ext.hardware.machine import MachineDescription
from tvm_ext.tir_schedules.apply_template import finished_schedule
from tvm_ext.tir_schedules.packing import PackedOperand, packed_operand
from tvm_ext.tir_schedules.template import DEFAULT_DECISIONS, FixedDecisions, Knob, Template

Values = dict[str, int]


class SampledDecisions(FixedDecisions):
    """Each decision is one of its options, at random; asked again, it stays the same."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._generator = random.Random(seed)

    def pick(self, name: str, options: Iterable[int], default: int) -> int:
        knob = Knob(name, tuple(sorted({*options, default})), default)
        assert self.knobs.setdefault(name, knob) == knob, f"{name} is two different decisions"
        return self.values.setdefault(name, self._generator.choice(knob.options))


def random_decisions(
    template: Template, func: tirx.PrimFunc, machine: MachineDescription, count: int, seed: int
) -> list[Values]:
    """``count`` sets of decisions, all of a set drawn while the template asks for them."""
    return [_sampled(template, func, machine, f"{seed} {index}") for index in range(count)]


def _sampled(
    template: Template, func: tirx.PrimFunc, machine: MachineDescription, seed: str
) -> Values:
    decisions = SampledDecisions(random.Random(seed).randrange(2**32))
    scheduled_with(template, func, machine, decisions)
    return decisions.values


def single_decisions(
    template: Template, func: tirx.PrimFunc, machine: MachineDescription
) -> list[Values]:
    """One set for each option of each decision that is not the template's own, alone."""
    return [
        {knob.name: option}
        for knob in knobs_of(template, func, machine).values()
        for option in knob.options
        if option != knob.default
    ]


def shared_single_decisions(
    template: Template, kernels: Mapping[str, tirx.PrimFunc], machine: MachineDescription
) -> dict[str, list[Values]]:
    """``single_decisions`` of each kernel: every third, another third than those of the next.

    All of them where all cases are asked for.
    """
    return {
        name: some_of(single_decisions(template, func, machine)[0 if ALL_CASES else place % 3 :])
        for place, (name, func) in enumerate(kernels.items())
    }


def knobs_of(
    template: Template,
    func: tirx.PrimFunc,
    machine: MachineDescription,
    values: Mapping[str, int] = {},
) -> dict[str, Knob]:
    """What the template asks when it is answered with ``values``."""
    decisions = FixedDecisions(values)
    scheduled_with(template, func, machine, decisions)
    return decisions.knobs


def scheduled_with(
    template: Template, func: tirx.PrimFunc, machine: MachineDescription, decisions: FixedDecisions
) -> s_tir.Schedule | NotApplicable:
    """The schedule, or why TVM or the template refuses these decisions."""
    try:
        return template.apply(func, machine, decisions)
    except (NotApplicable, s_tir.ScheduleError) as error:
        return NotApplicable(str(error))


def assert_defaults_give_the_default_schedule(
    template: Template, func: tirx.PrimFunc, machine: MachineDescription
) -> dict[str, Knob]:
    """No values and the defaults as values both give the default schedule; returns the knobs.

    Each decision that has a choice changes the schedule with one of its options at least.
    """
    closed = template.apply(func, machine, DEFAULT_DECISIONS)
    decisions = FixedDecisions({})
    given = template.apply(func, machine, decisions)
    again = template.apply(func, machine, FixedDecisions(decisions.values))
    assert isinstance(closed, s_tir.Schedule), closed
    for same in (given, again):
        assert isinstance(same, s_tir.Schedule)
        tvm.ir.assert_structural_equal(same.mod, closed.mod)
    changing = {
        name
        for single in single_decisions(template, func, machine)
        for name in single
        if not _is_same(scheduled_with(template, func, machine, FixedDecisions(single)), closed)
    }
    assert changing == {knob.name for knob in decisions.knobs.values() if len(knob.options) > 1}
    return decisions.knobs


def _is_same(found: s_tir.Schedule | NotApplicable, closed: s_tir.Schedule) -> bool:
    return isinstance(found, NotApplicable) or structural_equal(found.mod, closed.mod)


def check_numbers(
    template: Template,
    plain: Mapping[str, tirx.PrimFunc],
    decisions: Mapping[str, Iterable[Values]],
    machine: CpuDescription | None = None,
) -> None:
    """Each kernel of ``plain`` computes the same under all its ``decisions``, finished and built.

    Decisions may be refused, but one in four at most.
    """
    machine = machine or host_description()
    names: dict[str, tuple[str, PackedOperand | None]] = {}
    functions: dict[str, tirx.PrimFunc] = {}
    refused: list[str] = []
    for name, func in plain.items():
        for values in decisions[name]:
            chosen = FixedDecisions(values)
            sch = scheduled_with(template, func, machine, chosen)
            label = f"{name}: {values}"
            assert chosen.unused() == [] or isinstance(sch, NotApplicable), label
            if isinstance(sch, NotApplicable):
                refused.append(f"{label}: {sch.reason}")
                continue
            names[label] = name, packed_operand(sch)
            functions[label] = finished_schedule(sch, func, machine)
    assert 3 * len(refused) <= len(functions), "\n".join(refused)
    _compare(dict(plain), names, functions, machine)


def check_random_numbers(
    template: Template,
    plain: Mapping[str, tirx.PrimFunc],
    count: int = DRAWS,
    seed: int = 0,
    machine: CpuDescription | None = None,
) -> None:
    """``check_numbers`` for ``count`` random sets of decisions of each kernel."""
    host = machine or host_description()
    drawn = {
        name: random_decisions(template, func, host, count, seed) for name, func in plain.items()
    }
    check_numbers(template, plain, drawn, host)


def _compare(
    plain: Mapping[str, tirx.PrimFunc],
    names: Mapping[str, tuple[str, PackedOperand | None]],
    functions: Mapping[str, tirx.PrimFunc],
    machine: CpuDescription,
) -> None:
    wanted = run(plain)
    symbols = {label: f"f{index}" for index, label in enumerate(functions)}
    library = built({symbol: functions[label] for label, symbol in symbols.items()}, machine)
    for label, symbol in symbols.items():
        name, packed = names[label]
        written = _written(plain[name])
        arrays = [
            np.zeros_like(array) if position in written else array
            for position, array in enumerate(wanted[name])
        ]
        if packed is not None:
            arrays[packed.parameter] = packed.pack(arrays[packed.parameter])
        tensors = [tvm.runtime.tensor(array) for array in arrays]
        library[symbol](*tensors)
        for position in written:
            assert_same([wanted[name][position]], [tensors[position].numpy()], label)


def _written(func: tirx.PrimFunc) -> list[int]:
    """Positions of the parameters that a kernel stores to."""
    stores = [found for found in statements(func.body) if isinstance(found, tirx.BufferStore)]
    return [
        position
        for position, param in enumerate(func.params)
        if any(param.same_as(store.buffer) for store in stores)
    ]
