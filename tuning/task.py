"""A kernel to tune: what it computes, and what it means for its model."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import tvm
from tvm import tirx

from tvm_ext.tir_schedules.block_access import static_extent
from tvm_ext.tir_schedules.kernel_identity import kernel_hash, workload


@dataclass(frozen=True)
class KernelTask:
    """One kernel, however often the model calls it.

    Attributes
    ----------
    name : str
        Name of the kernel in the program; of the first of several equal ones.
    func : tirx.PrimFunc
        The kernel without a schedule.
    workload : tvm.IRModule
        The same alone, under the name "main": the key of records.
    hash : str
        16 hexadecimal digits that are the same for the same workload in any process.
    calls : int
        Calls in one run of the model.
    origins : tuple[str, ...]
        The model's nodes that it computes, one text a call.
    """

    name: str
    func: tirx.PrimFunc
    workload: tvm.IRModule
    hash: str
    calls: int = 1
    origins: tuple[str, ...] = field(default=())


def kernel_task(
    name: str, func: tirx.PrimFunc, calls: int = 1, origins: Iterable[str] = ()
) -> KernelTask:
    """The task for one kernel."""
    mod = workload(func)
    return KernelTask(name, func, mod, kernel_hash(mod), calls, tuple(origins))


def distinct_tasks(tasks: Iterable[KernelTask]) -> list[KernelTask]:
    """Equal kernels joined: their calls and origins are those of all of them."""
    joined: dict[str, KernelTask] = {}
    for task in tasks:
        known = joined.get(task.hash)
        if known is not None:
            calls, origins = known.calls + task.calls, known.origins + task.origins
            task = replace(known, calls=calls, origins=origins)
        joined[task.hash] = task
    return list(joined.values())


def refusal(func: tirx.PrimFunc) -> str:
    """Why a kernel cannot be tuned; empty when it can."""
    if any(not hasattr(param, "shape") for param in func.params):
        return "it has a parameter that is no tensor"
    sizes = [size for param in func.params for size in param.shape]
    if any(static_extent(size) is None for size in sizes):
        return "a size is known only at run time: freeze it with --input-shape"
    if any(static_extent(size) == 0 for size in sizes):
        return "a tensor is empty"
    return ""
