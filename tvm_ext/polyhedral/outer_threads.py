"""Loops as they were written, the outermost ones on threads."""

from collections.abc import Sequence

from tvm import tirx
from tvm_ffi import structural_map

from tvm_ext.polyhedral.dependences import Dependence
from tvm_ext.polyhedral.kernel_domain import KernelDomain
from tvm_ext.polyhedral.legality import carried_by
from tvm_ext.tir_schedules.statements import in_root_block


def with_outer_threads(
    kernel: KernelDomain, dependences: Sequence[Dependence]
) -> tirx.PrimFunc | None:
    """The kernel with each outermost loop parallel that carries no dependence.

    Nothing else changes. Where no tiles and no vectors were found, another order of the loops is of
    no use, and LLVM makes the best of the one that was written, as of short loops that it unrolls.
    None where no outermost loop may be parallel.
    """
    outermost = [one.loops[0] for one in kernel.statements if one.loops]
    free = [
        loop
        for loop in outermost
        if all(carried_by(kernel, one, loop).is_empty() for one in dependences)
    ]
    if not free:
        return None

    def parallel(loop: tirx.For) -> tirx.Stmt:
        if not any(loop.loop_var.same_as(one.loop_var) for one in free):
            return loop
        return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.PARALLEL, loop.body)

    body = structural_map(kernel.func.body, (tirx.For, parallel))
    return kernel.func.with_body(in_root_block(body))
