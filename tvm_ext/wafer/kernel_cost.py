"""What the kernels of a model cost on a mesh, each with its schedule."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import tvm
from tvm import tirx

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.tvm_compat import without_scope_marks
from tvm_ext.hardware.wafer.description import WaferDescription, WaferLimitError
from tvm_ext.hardware.wafer.program import WaferProgram
from tvm_ext.hardware.wafer.program_cost import WaferCost, program_cost
from tvm_ext.tir_schedules.apply_template import ScheduledKernel, apply_template
from tvm_ext.tir_schedules.backend import scheduling_of
from tvm_ext.tir_schedules.recorded_schedule import RecordedSchedule, RecordSource
from tvm_ext.tir_schedules.schedule_kernels import ScheduleChoice, schedule_kernel
from tvm_ext.tir_schedules.template import FixedDecisions
from tvm_ext.tuning.candidate import refusal_of_known
from tvm_ext.tuning.wafer.cost_model import read_program

# Regions whose sides differ by less than this part of them get the same schedule.
_SIDE_STEPS = 16


@dataclass(frozen=True)
class KernelCost:
    """One kernel on a mesh.

    Attributes
    ----------
    name : str
        In the model.
    calls : int
        In one run.
    origins : tuple[str, ...]
        The model's nodes that it computes, one text a call.
    schedule, source, reason : str
        As in ``ScheduleChoice``.
    decisions : Mapping[str, int]
        What the template decided, or was told by a record.
    program : WaferProgram or None
        What it asks of the mesh; None if its loops cannot be read as one.
    cost : WaferCost or None
        Of one call, modelled; None without a program.
    refusal : str
        Why it cannot run on the mesh: the hard limit that it breaks, or what cannot be read. Empty
        if it can.
    """

    name: str
    calls: int
    origins: tuple[str, ...]
    schedule: str
    source: str
    reason: str
    decisions: Mapping[str, int] = field(default_factory=dict)
    program: WaferProgram | None = None
    cost: WaferCost | None = None
    refusal: str = ""

    @property
    def node_names(self) -> tuple[str, ...]:
        """The model's nodes of all calls, alone and as they were fused."""
        alone = [name for origin in self.origins for name in origin.split(" + ")]
        return (*self.origins, *alone)

    @property
    def cycles(self) -> float:
        """Of all calls; 0 if it is not known."""
        return self.cost.cycles * self.calls if self.cost is not None else 0.0


class KernelCosts:
    """Schedules kernels for a mesh, and for smaller rectangles of it, each once.

    Parameters
    ----------
    kernels : tvm.IRModule
        The kernels without schedules.
    origins : Mapping[str, Sequence[str]]
        By kernel, the nodes of each of its calls.
    mesh : WaferDescription
        The machine.
    records : RecordSource, optional
        Schedules for the whole mesh that are taken instead of the templates' own.
    """

    def __init__(
        self,
        kernels: tvm.IRModule,
        origins: Mapping[str, Sequence[str]],
        mesh: WaferDescription,
        records: RecordSource | None = None,
    ) -> None:
        self._kernels = kernels
        self._origins = origins
        self._mesh = mesh
        self._records = records
        self._known: dict[tuple[str, int, int], KernelCost] = {}

    def on_mesh(self, name: str) -> KernelCost:
        """A kernel with all of the mesh for itself."""
        key = (name, self._mesh.rows, self._mesh.columns)
        if key not in self._known:
            self._known[key] = self._cost(name, self._mesh, self._records)
        return self._known[key]

    def in_region(self, name: str, rows: int, columns: int) -> KernelCost:
        """A kernel in a rectangle of the mesh: as on all of it if that fits, else scheduled anew,
        without a record.
        """
        whole = self.on_mesh(name)
        cost = whole.cost
        if cost is not None and cost.rows <= rows and cost.columns <= columns:
            return whole
        key = (name, _rounded(rows), _rounded(columns))
        if key not in self._known:
            self._known[key] = self._cost(name, self._mesh.with_grid(*key[1:]), None)
        return self._known[key]

    def _cost(self, name: str, mesh: WaferDescription, records: RecordSource | None) -> KernelCost:
        func = without_scope_marks(self._kernels[name])
        origins = tuple(self._origins.get(name, ()))
        unknown = refusal_of_known(func)
        if unknown:
            found = KernelCost(name, len(origins), origins, "as written", "as written", unknown)
            return replace(found, refusal=unknown)
        scheduled, choice = schedule_kernel(func, mesh, records, name)
        found = KernelCost(
            name,
            len(origins),
            origins,
            choice.schedule,
            choice.source,
            choice.reason,
            _decisions(func, choice, mesh, records),
        )
        return _with_cost(found, scheduled, mesh)


def _with_cost(kernel: KernelCost, scheduled: tirx.PrimFunc, mesh: WaferDescription) -> KernelCost:
    try:
        program = read_program(scheduled, kernel.name)
    except NotApplicable as error:
        unscheduled = kernel.source == "as written"
        why = f"no schedule for a mesh: {kernel.reason}" if unscheduled else str(error)
        return replace(kernel, refusal=why)
    try:
        cost = program_cost(program, mesh)
    except WaferLimitError as error:
        return replace(kernel, program=program, refusal=str(error))
    return replace(kernel, program=program, cost=cost, refusal=cost.refusal)


def _decisions(
    func: tirx.PrimFunc,
    choice: ScheduleChoice,
    mesh: WaferDescription,
    records: RecordSource | None,
) -> Mapping[str, int]:
    """Those of the record, or those that the template takes by itself."""
    if choice.source == "record" and records is not None:
        recorded = records.find("", func)
        return recorded.decisions if isinstance(recorded, RecordedSchedule) else {}
    known = scheduling_of(mesh).recordable
    template = next((one for one in known if one.name == choice.schedule), None)
    chosen = FixedDecisions()
    if template is None or not isinstance(
        apply_template(template, func, mesh, chosen), ScheduledKernel
    ):
        return {}
    return chosen.values


def _rounded(side: int) -> int:
    step = max(1, side // _SIDE_STEPS)
    return side // step * step
