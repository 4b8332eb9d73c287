"""What the passes of one compilation know beside the module, and what they leave for others."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import tvm
from tvm import tirx

from tvm_ext.hardware.machine import MachineDescription
from tvm_ext.hardware.targets import compiling_for
from tvm_ext.report.memory_plan import StoragePlan
from tvm_ext.report.records import MemoryLimitRecord, MemoryRecord
from tvm_ext.tensor_spec import SizeRange
from tvm_ext.tir_schedules.schedule_kernels import ScheduleChoice
from tvm_ext.tuning.logs.record_lookup import RecordLookup

if TYPE_CHECKING:
    from tvm_ext.compiler.kernel_arrays import KernelArrays
    from tvm_ext.compiler.kernel_code import KernelCode

_Result = TypeVar("_Result")


@dataclass
class CompileContext:
    """One compilation.

    Attributes
    ----------
    machine : MachineDescription
        What is compiled for.
    target : tvm.target.Target
        The same for TVM.
    records : RecordLookup, optional
        The tuned records that ScheduleKernels looks in.
    ranges : mapping of str to SizeRange
        The sizes that symbolic dimensions may have, by name, where they are limited.
    choices : dict of str to ScheduleChoice
        How each kernel was scheduled, by its name: ScheduleKernels writes it.
    memory : MemoryRecord
        Memory of one run: ShareStorage writes it.
    storage_bytes : tvm.ir.Expr, optional
        Bytes of all storage of one run as an expression of the inputs' sizes: ShareStorage writes
        it where no other size decides.
    kernels : tvm.IRModule, optional
        The kernels as they were ahead of their schedules, of which times are predicted.
    memory_limit : MemoryLimitRecord, optional
        What was done for a memory limit: LimitMemory writes it.
    call_sources : list of int, optional
        For each kernel call of the program, its number in the program ahead of LimitMemory, which
        writes it where it changes the calls.
    kernels_beside : list of int
        For each all-reduce of the program, how many kernels run until its result is read:
        AsyncAllReduce writes it.
    storage_plan : callable
        Gives where the values of the program lie: ShareStorage writes it.
    kernel_arrays : dict
        What kernels of a program for a CPU allocate for themselves, by the sizes of its inputs.
    kernels_from_cache : int
        Kernels whose code an earlier compilation left: the build writes it.
    code : KernelCode, optional
        The machine code of kernels for a CPU, which the build makes or finds begun.
    begin_code : callable, optional
        ScheduleKernels calls it with each kernel that has its loops, so that code for it is made
        while others are scheduled.
    rewritten : dict
        What passes made of single kernels; see ``once_for_kernel``.
    """

    machine: MachineDescription
    target: tvm.target.Target
    records: RecordLookup | None = None
    ranges: Mapping[str, SizeRange] = field(default_factory=dict)
    choices: dict[str, ScheduleChoice] = field(default_factory=dict)
    memory: MemoryRecord = field(default_factory=MemoryRecord)
    storage_bytes: tvm.ir.Expr | None = None
    kernels: tvm.IRModule | None = None
    memory_limit: MemoryLimitRecord | None = None
    call_sources: list[int] | None = None
    kernels_beside: list[int] = field(default_factory=list)
    storage_plan: Callable[[], StoragePlan] = StoragePlan
    kernel_arrays: "dict[frozenset[tuple[str, int]], KernelArrays]" = field(default_factory=dict)
    kernels_from_cache: int = 0
    code: "KernelCode | None" = None
    begin_code: Callable[[tvm.ir.GlobalVar, tirx.PrimFunc], None] | None = None
    rewritten: dict[tuple[str, tirx.PrimFunc], Any] = field(default_factory=dict)


_current: ContextVar[CompileContext | None] = ContextVar("compile_context", default=None)


@contextmanager
def compiling(
    machine: MachineDescription, code: "KernelCode | None" = None
) -> Iterator[CompileContext]:
    """A compilation for ``machine``, which is the current target as long as it lasts.

    ``code`` is where the machine code of its kernels is made, if any is.
    """
    with compiling_for(machine) as target:
        context = CompileContext(machine, target, code=code)
        token = _current.set(context)
        try:
            yield context
        finally:
            _current.reset(token)


def current_compilation() -> CompileContext | None:
    """The compilation that runs; None where passes are used without one."""
    return _current.get()


def once_for_kernel(pass_name: str, func: tirx.PrimFunc, rewrite: Callable[[], _Result]) -> _Result:
    """What a pass makes of a kernel: once a compilation, in which it may run ahead for that alone.

    The result must follow from ``func`` and the machine.
    """
    context = _current.get()
    if context is None:
        return rewrite()
    key = (pass_name, func)
    if key not in context.rewritten:
        context.rewritten[key] = rewrite()
    made: _Result = context.rewritten[key]
    return made
