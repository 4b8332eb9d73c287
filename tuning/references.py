"""What candidates of a kernel are compared with: right results, and a kernel to take turns with.

The right results are those of the plainest form of the kernel (``plain_kernel``), on random
arrays.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.s_tir.analysis import estimate_tir_flops
from tvm.s_tir.schedule import SBlockRV
from tvm_ffi import structural_map

from tvm_ext.configs.errors import last_line
from tvm_ext.hardware.cpu.host import host_description
from tvm_ext.hardware.machine import MachineDescription
from tvm_ext.tir_schedules.analysis.buffer_access import nodes, reduction_blocks, static_extent
from tvm_ext.tir_schedules.apply_template import ScheduledKernel, apply_template
from tvm_ext.tir_schedules.backend import scheduling_of
from tvm_ext.tuning.backend import tuning_of
from tvm_ext.tuning.candidate import Candidate, KernelTask, plain_json
from tvm_ext.tuning.jobs import ExpectedJob, build, build_job, compute_expected, save_arrays
from tvm_ext.tuning.kernel_data import KernelArguments, kernel_arguments, random_arrays
from tvm_ext.tuning.runner import QUEUE_SECONDS, RunDeviceAddress, RunnerPool
from tvm_ext.tuning.session_options import Limits
from tvm_ext.tuning.worker import Deadline, WorkerFailure, WorkerPool, WorkRaised

# Sums of half precision added up in float32: what other ways to add them are compared with.
#
# A sum of 4,096 float16 products that is rounded after each of them is off by several per cent.
# Such a kernel as it is written would be a worse judge than any candidate that rounds once.


_WIDE = "float32"
_NARROW = ("float16", "bfloat16")


def with_wide_sums(mod: tvm.IRModule) -> tvm.IRModule:
    """The kernel "main" of ``mod``, unscheduled, with sums in float32 that are rounded at the end.

    A reduction that TVM cannot give another type stays as it is.
    """
    if not isinstance(mod["main"].body, s_tir.SBlockRealize):
        return mod
    sch = s_tir.Schedule(mod)
    for name in [str(sch.get(block).name_hint) for block in reduction_blocks(sch)]:
        writes = sch.get(sch.get_sblock(name)).writes
        if len(writes) == 1 and str(writes[0].source.dtype) in _NARROW:
            sch = _widened(sch, name)
    return sch.mod


def _widened(sch: s_tir.Schedule, name: str) -> s_tir.Schedule:
    """``sch`` with the sum of one block in float32; as it was where that is not possible."""
    changed = sch.copy()
    block = changed.get_sblock(name)
    try:
        changed.cache_write(block, 0, "global")
        changed.unsafe_set_dtype(block, 0, _WIDE)
    except s_tir.ScheduleError:
        return sch
    func = changed.mod["main"]
    return s_tir.Schedule(tvm.IRModule({"main": _without_rounding(func, changed, block)}))


def _without_rounding(func: tirx.PrimFunc, sch: s_tir.Schedule, block: SBlockRV) -> tirx.PrimFunc:
    """The kernel whose sum in ``block`` is not rounded to the narrow type at each step."""
    total = sch.get(block).writes[0].source

    def plain(store: tirx.BufferStore) -> tirx.BufferStore:
        loads = nodes(store.value, tvm.ir.TensorLoad)
        if not store.buffer.same_as(total) or not any(x.source.same_as(total) for x in loads):
            return store
        return tirx.BufferStore(total, _sum(store.value, total), store.indices)

    return func.with_body(structural_map(func.body, (tirx.BufferStore, plain)))


def _sum(value: Any, total: Any) -> Any:
    """``float32(float16(total) + x)`` as ``total + float32(x)``; other values as they are."""
    inner = value.value if isinstance(value, tirx.Cast) else value
    if not isinstance(inner, tirx.Add):
        return value
    for own, other in ((inner.a, inner.b), (inner.b, inner.a)):
        load = own.value if isinstance(own, tirx.Cast) else own
        if isinstance(load, tvm.ir.TensorLoad) and load.source.same_as(total):
            return load + _widest(other)
    return value


def _widest(value: Any) -> Any:
    """``value`` in float32, a product of two narrow numbers without rounding it first."""
    if isinstance(value, tirx.Mul):
        return value.a.astype(_WIDE) * value.b.astype(_WIDE)
    return value.astype(_WIDE)


# The kernel that says what a task's results have to be: as plain as the machine can run it.


# Operations that a CPU does within a second without a schedule, of half precision too.
_MOST_OPERATIONS = 2e8


@dataclass(frozen=True)
class PlainKernel:
    """A kernel that computes a task's results.

    Attributes
    ----------
    mod : tvm.IRModule
        The kernel, named "main".
    target : dict
        Attributes of the TVM target that it is built for.
    is_here : bool
        Whether it runs on this machine's CPU, wherever candidates run.
    """

    mod: tvm.IRModule
    target: dict[str, Any]
    is_here: bool = False


def plain_kernel(task: KernelTask, machine: MachineDescription) -> PlainKernel:
    """The kernel without a schedule; where that does not run, as on a GPU, one of two others.

    What a CPU computes within a second, this one computes, loop by loop. More than that the GPU
    computes with the simplest of schedules: one thread for each result, nothing shared. Both add up
    narrow types in float32.
    """
    scheduling = scheduling_of(machine)
    if scheduling.is_bound is None:
        return PlainKernel(task.workload, _attributes(machine))
    wide = with_wide_sums(task.workload)
    if _operations(wide) > _MOST_OPERATIONS:
        for template in (*scheduling.rules[-1:], *scheduling.fallbacks):
            simple = apply_template(template, wide["main"], machine)
            if isinstance(simple, ScheduledKernel):
                func = simple.func.with_attr("global_symbol", "main")
                return PlainKernel(tvm.IRModule({"main": func}), _attributes(machine))
    return PlainKernel(wide, _attributes(host_description()), is_here=True)


def _attributes(machine: MachineDescription) -> dict[str, Any]:
    attributes: dict[str, Any] = plain_json(dict(machine.tvm_target().export()))
    return attributes


def _operations(mod: tvm.IRModule) -> float:
    """Arithmetic operations, or elements of the largest parameter; infinite if TVM cannot say."""
    tensors = [param for param in mod["main"].params if hasattr(param, "shape")]
    sizes = [[static_extent(size) or 1 for size in param.shape] for param in tensors]
    elements = max((math.prod(shape) for shape in sizes), default=0)
    try:
        return max(float(estimate_tir_flops(mod)), float(elements))
    except (tvm.error.InternalError, RuntimeError, ValueError, TypeError):
        return math.inf


@dataclass(frozen=True)
class Reference:
    """Files of one task.

    Attributes
    ----------
    data : tuple[str, ...]
        Arrays of each call that is measured, with the results that are expected.
    candidate : Candidate
        The kernel that others take turns with.
    library : str
        Its code.
    """

    data: tuple[str, ...]
    candidate: Candidate
    library: str


@dataclass(frozen=True)
class References:
    """Makes the references of tasks, and keeps them until they are forgotten.

    Attributes
    ----------
    machine : MachineDescription
        What candidates are for.
    target : dict
        Attributes of its TVM target.
    limits : Limits
        What the work may take.
    seed : int
        Seed of the arrays.
    builders : WorkerPool
        Where code is generated.
    runners : RunnerPool
        Where kernels run.
    new_file : callable
        Path of a file that does not exist yet, with the ending that is given.
    """

    machine: MachineDescription
    target: dict[str, Any]
    limits: Limits
    seed: int
    builders: WorkerPool
    runners: RunnerPool
    new_file: Callable[[str], Path]
    _made: dict[str, Reference] = field(default_factory=dict, init=False)

    def __contains__(self, task: KernelTask) -> bool:
        return task.hash in self._made

    def __getitem__(self, task: KernelTask) -> Reference:
        return self._made[task.hash]

    def make(self, candidate: Candidate, deadline: Deadline) -> str:
        """Makes ``candidate`` the reference of its task, or says why the task cannot be tuned.

        Raises
        ------
        OutOfTime
            The deadline came first.
        """
        task, limits = candidate.task, self.limits
        calls = [kernel_arguments(task.workload["main"], one) for one in task.measured_calls]
        if not calls[0].results:
            return "it writes no tensor that could be compared"
        plain, library = str(self.new_file("so")), str(self.new_file("so"))
        data: list[str] = []
        what = "without a schedule"
        try:
            source = plain_kernel(task, self.machine)
            job = build_job(source.mod, source.target, plain)
            with deadline.limited(limits.expected_seconds) as seconds:
                self.builders.call(build, job, timeout=seconds)
            for arguments in calls:
                data.append(self._expected(arguments, plain, source.is_here, deadline))
            what = "with its default schedule"
            # The default may spill: others are compared with it.
            check = tuning_of(self.machine).build_check(self.machine, True)
            job = build_job(candidate.mod, self.target, library, check)
            with deadline.limited(limits.build_seconds) as seconds:
                self.builders.call(build, job, timeout=seconds)
        except WorkerFailure as error:
            return f"the kernel {what} is of no use: {last_line(error)}"
        finally:
            Path(plain).unlink(missing_ok=True)
        self._made[task.hash] = Reference(tuple(data), candidate, library)
        return ""

    def _expected(
        self, arguments: KernelArguments, plain: str, is_here: bool, deadline: Deadline
    ) -> str:
        """A file with random arrays for a call, and what the plain kernel makes of them."""
        data, inputs = str(self.new_file("npz")), []
        try:
            for one in (arguments, arguments.positive()):
                inputs.append(str(self.new_file("npz")))
                save_arrays(inputs[-1], random_arrays(one, self.seed), arguments.results)
            with deadline.limited(self.limits.expected_seconds) as seconds:
                job = ExpectedJob(plain, tuple(inputs), data, RunDeviceAddress())
                self._compute(job, seconds, is_here)
        finally:
            for path in inputs:
                Path(path).unlink(missing_ok=True)
        return data

    def forget(self, task: KernelTask) -> None:
        """Removes the files of a task."""
        made = self._made.pop(task.hash, None)
        if made is not None:
            for path in (*made.data, made.library):
                Path(path).unlink(missing_ok=True)

    def _compute(self, job: ExpectedJob, seconds: float, is_here: bool) -> None:
        """Runs a plain kernel: where candidates run, if it is code for that machine or device."""
        on_device = self.runners.is_remote or self.runners.kind != "cpu"
        if is_here or not on_device:
            self.builders.call(compute_expected, job, timeout=seconds)
            return
        with self.runners.lent() as runner:
            there = replace(job, device=replace(runner.address, session_seconds=seconds))
            try:
                runner.worker.call(compute_expected, there, timeout=seconds + QUEUE_SECONDS)
            except WorkRaised:
                # After an error of a GPU its process can do nothing more with it.
                runner.worker.stop()
                raise
